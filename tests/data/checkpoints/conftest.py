"""Builds small checkpoint folders: real file formats, tensors of zeros."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preassert.model import Finding

Shapes = Mapping[str, Sequence[int]]


def write_safetensors(path: Path, shapes: Shapes, dtype: str = "F32", item_bytes: int = 4) -> None:
    """A valid file with tensors of zeros; the data is a hole in the file, so that size costs nothing."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * item_bytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    os.truncate(path, 8 + len(raw) + end)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def tokenizer(size: int, added: Mapping[str, int] | None = None, kind: str = "WordPiece") -> dict[str, Any]:
    """A tokenizer.json with tokens t0 .. t<size-1> and the added ones."""
    names = [f"t{number}" for number in range(size)]
    vocabulary: Any = {name: number for number, name in enumerate(names)}
    if kind == "Unigram":
        vocabulary = [[name, 0.0] for name in names]
    listed = [{"id": number, "content": token, "special": True} for token, number in (added or {}).items()]
    return {"version": "1.0", "added_tokens": listed, "model": {"type": kind, "vocab": vocabulary}}


BERT: dict[str, tuple[int, ...]] = {
    "bert.embeddings.word_embeddings.weight": (60, 8),
    "bert.embeddings.position_embeddings.weight": (24, 8),
    "bert.embeddings.token_type_embeddings.weight": (2, 8),
    "classifier.weight": (3, 8),
    "classifier.bias": (3,),
}
BERT_CONFIG: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 60,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "id2label": {"0": "no", "1": "maybe", "2": "yes"},
    "label2id": {"no": 0, "maybe": 1, "yes": 2},
}
LLAMA: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (64, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "lm_head.weight": (64, 8),
}
LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(folder: Path, config: Mapping[str, Any], shapes: Shapes | None, tokens: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if shapes is not None:
        write_safetensors(folder / "model.safetensors", shapes)
    if tokens is not None:
        write_json(folder / "tokenizer.json", tokens)
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A BERT classifier with 60 tokens, 24 positions and 3 classes; clean."""
    return make(tmp_path / "bert", BERT_CONFIG, BERT, tokenizer(60))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A Llama with 64 rows for 62 tokens; clean."""
    return make(tmp_path / "llama", LLAMA_CONFIG, LLAMA, tokenizer(62, kind="BPE"))


@pytest.fixture(name="write_safetensors")
def _write_safetensors() -> Callable[..., None]:
    return write_safetensors


@pytest.fixture
def edit() -> Callable[..., None]:
    """Change keys of a JSON file (made if it is not there)."""

    def change(path: Path, **changes: Any) -> None:
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        write_json(path, {**content, **changes})

    return change


Seen = tuple[str | None, str, tuple[Any, ...]]


@pytest.fixture
def errors() -> Callable[[Sequence[Finding]], list[Seen]]:
    """(hazard, file name, values) of the findings that are errors."""

    def pick(findings: Sequence[Finding]) -> list[Seen]:
        return [(f.hazard, os.path.basename(f.where.file), f.values) for f in findings if f.severity == "error"]

    return pick
