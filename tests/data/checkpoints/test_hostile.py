"""Whatever stands in the files of a checkpoint, the check answers with findings and never falls over."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check
from preassert.errors import PreassertError

STRANGE: list[Any] = [None, True, -1, 0, 3.5, 10**30, "", "12", "\x1b[31m", "x" * 1000, float("inf")]
STRANGE += [[], [None], [[1, 2]], [10**20], {}, {"0": None}, {"a": [1]}]
FILES: dict[str, dict[str, Any]] = {
    "config.json": {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "roberta",
        "vocab_size": 60,
        "max_position_embeddings": 24,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "eos_token_id": [1, 2],
        "num_labels": 3,
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "label2id": {"a": 0, "b": 1, "c": 2},
        "is_encoder_decoder": False,
        "text_config": {"vocab_size": 60},
        "problem_type": None,
        "position_embedding_type": "absolute",
        "additional_vocab_size": 0,
        "semantic_loss_ignore_index": 255,
    },
    "generation_config.json": {"pad_token_id": 0, "suppress_tokens": [3], "bos_token_id": 1},
    "tokenizer.json": {
        "added_tokens": [{"id": 5, "content": "<x>"}],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 59}},
        "truncation": {"max_length": 20},
        "padding": {"strategy": {"Fixed": 20}},
    },
    "tokenizer_config.json": {
        "model_max_length": 24,
        "pad_token": "a",
        "additional_special_tokens": ["b"],
        "extra_special_tokens": {"i": "a"},
        "added_tokens_decoder": {"0": {"content": "a"}},
        "chat_template": [{"name": "d", "template": "<|a|>"}],
        "target_lang": "eng",
    },
    "special_tokens_map.json": {"pad_token": {"content": "a"}},
    "added_tokens.json": {"<y>": 7},
    "vocab.json": {"a": 0, "eng": {"a": 0}},
    "sentence_bert_config.json": {"max_seq_length": 20},
    "adapter_config.json": {
        "peft_type": "P_TUNING",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": "base",
        "num_virtual_tokens": 3,
        "trainable_token_indices": {"w": [1]},
    },
}


def strange(value: Any, generator: random.Random) -> Any:
    """The document with one part of it replaced by something that does not belong there."""
    if isinstance(value, dict) and value and generator.random() < 0.85:
        key = generator.choice(list(value))
        return {**value, key: strange(value[key], generator)}
    if isinstance(value, list) and value and generator.random() < 0.6:
        place = generator.randrange(len(value))
        return [*value[:place], strange(value[place], generator), *value[place + 1 :]]
    return generator.choice(STRANGE)


@pytest.mark.parametrize("name", FILES)
def test_values_that_do_not_belong_there(name: str, bert: Path) -> None:
    generator = random.Random(name)
    (bert.parent / "base").mkdir()
    (bert.parent / "base" / "config.json").write_text(json.dumps(FILES["config.json"]), encoding="utf-8")
    data = bert.parent / "data.jsonl"
    data.write_text('{"input_ids": [1, 2], "labels": 1}\n', encoding="utf-8")
    for other, content in FILES.items():
        if other not in ("adapter_config.json", "vocab.json") or other == name:
            (bert / other).write_text(json.dumps(content), encoding="utf-8")
    for _ in range(60):
        (bert / name).write_text(json.dumps(strange(FILES[name], generator)), encoding="utf-8")
        try:
            report = check(str(bert), [str(data)])
        except PreassertError:
            continue
        json.dumps([finding.to_dict() for finding in report.findings])


@pytest.mark.parametrize("name", [*FILES, "tokenizer.model", "vocab.txt", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 64, b"[" * 50_000, b"{" + b'"a":{' * 5000, b"\xff\xfe\x00", b"null", b"7", b'{"a": NaN}']
)
def test_files_that_are_something_else(name: str, data: bytes, bert: Path) -> None:
    (bert / name).write_bytes(data)
    report = check(str(bert))
    assert all(finding.message for finding in report.findings)
