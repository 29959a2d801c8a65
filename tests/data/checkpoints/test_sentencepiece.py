"""Pieces of SentencePiece models, against the library and on damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from preassert.data.checkpoints.sentencepiece import read_pieces
from preassert.errors import InputError


def test_the_library_agrees(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    words = random.Random(0).choices(["the", "cat", "sat", "on", "mat", "dog", "ran", "far", "über"], k=4000)
    (tmp_path / "text.txt").write_text("\n".join(" ".join(words[at : at + 8]) for at in range(0, 4000, 8)), encoding="utf-8")
    library.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), vocab_size=28, minloglevel=2
    )
    reference = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    assert read_pieces(str(tmp_path / "m.model")) == [reference.id_to_piece(n) for n in range(reference.get_piece_size())]


def piece(text: bytes) -> bytes:
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15\x00\x00\x80\xbf"  # field 1: text; field 2: a float
    return b"\x0a" + bytes([len(body)]) + body


def test_other_fields_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    path.write_bytes(piece(b"<unk>") + b"\x12\x02\x08\x01" + b"\x18\x96\x01" + b"\x21" + bytes(8) + piece("é".encode()))
    assert read_pieces(str(path)) == ["<unk>", "é"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no pieces"),
        (piece(b"abc")[:-1], "truncated"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "truncated"),  # a field of 2**62 bytes
        (b"\x0a\x05\x10\x01\x10\x01\x10", "truncated"),
        (b"\x0a\x02\x10\x01", "without text"),
        (b"\xff" * 11, "more than 10 bytes"),
        (b"\x0b\x00", "wire type 3"),
        (b"\x12\x00", "no pieces"),
    ],
)
def test_damaged(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason):
        read_pieces(str(path))
