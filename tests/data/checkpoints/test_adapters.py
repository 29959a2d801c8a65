"""Adapters of PEFT: the base model is found, and their own tables count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check
from preassert.data.checkpoints.load import find_base

EMBEDDING = "embedding-index-out-of-range"
LORA = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (2, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (8, 2),
}


def words(size: int) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {f"t{number}": number for number in range(size)}}


@pytest.fixture
def adapter(llama: Path, edit: Any, write_safetensors: Any) -> Path:
    """A LoRA adapter beside its base, which has 64 rows."""
    folder = llama.parent / "adapter"
    folder.mkdir()
    edit(folder / "adapter_config.json", peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path="llama")
    edit(folder / "tokenizer.json", model=words(64))
    write_safetensors(folder / "adapter_model.safetensors", LORA)
    return folder


def test_a_clean_adapter(adapter: Path) -> None:
    report = check(str(adapter))
    assert report.findings == []
    assert report.scanned["checkpoint"][0]["limits"]["tokens"]["size"] == 64


def test_tokens_without_rows(adapter: Path, edit: Any, errors: Any) -> None:
    edit(adapter / "tokenizer.json", model=words(66))
    assert errors(check(str(adapter)).findings) == [(EMBEDDING, "tokenizer.json", (64, 65))]


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.embed_tokens.weight",
        "base_model.model.model.embed_tokens.modules_to_save.weight",
        "base_model.model.model.embed_tokens.modules_to_save.default.weight",
        "base_model.model.model.embed_tokens.base_layer.weight",
    ],
)
def test_an_adapter_with_its_own_embedding(name: str, adapter: Path, edit: Any, errors: Any, write_safetensors: Any) -> None:
    head = "base_model.model.lm_head.weight"
    write_safetensors(adapter / "adapter_model.safetensors", {**LORA, name: (66, 8), head: (66, 8)})
    edit(adapter / "tokenizer.json", model=words(66))
    report = check(str(adapter))
    assert errors(report.findings) == []
    assert [f.severity for f in report.findings if "resized base" in f.message] == ["warning"]
    edit(adapter / "tokenizer.json", model=words(67))
    assert errors(check(str(adapter)).findings) == [(EMBEDDING, "tokenizer.json", (66,))]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([1, 63], []),
        ([63, 64], [(EMBEDDING, "adapter_config.json", (64,))]),
        ({"embed_tokens": [70]}, [(EMBEDDING, "adapter_config.json", (70,))]),
    ],
)
def test_trainable_tokens(chosen: Any, expected: Any, adapter: Path, edit: Any, errors: Any) -> None:
    edit(adapter / "adapter_config.json", trainable_token_indices=chosen)
    assert errors(check(str(adapter)).findings) == expected


def test_a_classifier_on_a_base_without_one(llama: Path, adapter: Path, edit: Any, write_safetensors: Any) -> None:
    edit(adapter / "adapter_config.json", task_type="SEQ_CLS", modules_to_save=["score"])
    write_safetensors(adapter / "adapter_model.safetensors", {**LORA, "base_model.model.score.weight": (5, 8)})
    report = check(str(adapter))
    assert report.findings == []
    assert report.scanned["checkpoint"][0]["limits"]["classes"]["size"] == 5
    assert report.scanned["checkpoint"][0]["task"] == "classes"


def test_faults_of_the_base_are_reported(llama: Path, adapter: Path, errors: Any) -> None:
    (llama / "model.safetensors").write_bytes(b"junk")
    assert errors(check(str(adapter)).findings) == [(None, "model.safetensors", ())]


def test_a_base_that_is_not_here_is_said(adapter: Path, edit: Any) -> None:
    edit(adapter / "adapter_config.json", base_model_name_or_path="nobody/nothing-7b")
    report = check(str(adapter))
    assert [(f.severity, f.hazard) for f in report.findings] == [("warning", None)]
    assert "nobody/nothing-7b" in report.findings[0].message
    assert report.exit_code() == 0


def test_a_base_named_by_a_path_must_be_there(adapter: Path, edit: Any, errors: Any) -> None:
    edit(adapter / "adapter_config.json", base_model_name_or_path="./gone")
    assert errors(check(str(adapter)).findings) == [(None, "adapter_config.json", ())]


def test_adapters_in_a_circle_end(adapter: Path, edit: Any) -> None:
    edit(adapter / "adapter_config.json", base_model_name_or_path="adapter")
    assert check(str(adapter)).exit_code() == 0


def test_where_a_base_is_looked_for(llama: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_base("llama", str(adapter)) == str(llama)
    assert find_base(str(llama), str(adapter)) == str(llama)
    assert find_base("../llama", str(adapter)) == str(llama)
    monkeypatch.chdir(llama.parent)
    assert find_base("llama", "adapter") == "llama"
    revision = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--org--base"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(revision, encoding="ascii")
    (cache / "snapshots" / revision).mkdir(parents=True)
    (cache / "snapshots" / revision / "config.json").write_text("{}", encoding="ascii")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_base("org/base", "adapter") == str(cache / "snapshots" / revision)
    assert find_base("org/other", "adapter") is None
    assert find_base("../../etc", "adapter") is None
