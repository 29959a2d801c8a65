"""Pieces of a SentencePiece ``.model`` file, without the sentencepiece library.

The file is one protocol-buffer message, ``ModelProto`` of sentencepiece_model.proto: field 1, repeated, is a piece, whose
own field 1 is its text. A piece's id is its position. Everything else is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from preassert.data.checkpoints.files import read_bytes
from preassert.errors import InputError


def read_pieces(path: str) -> list[str]:
    """The pieces, in the order of their ids.

    Raises:
        InputError: unreadable, truncated, or not a SentencePiece model.
    """
    data = memoryview(read_bytes(path))
    try:
        pieces = [_text(body) for number, body in _fields(data) if number == 1]
    except ValueError as error:
        raise InputError(path, f"not a SentencePiece model ({error})") from error
    if not pieces:
        raise InputError(path, "not a SentencePiece model (no pieces)")
    return pieces


def _text(piece: memoryview) -> str:
    for number, body in _fields(piece):
        if number == 1:
            return bytes(body).decode("utf-8", "replace")
    raise ValueError("a piece without text")


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, body) of the length-delimited fields of one message; others are skipped."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 1 or wire == 5:
            at += 8 if wire == 1 else 4
        elif wire == 2:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise ValueError(f"truncated: a field of {size:,} bytes at {at:,} of {len(data):,}")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > len(data):
        raise ValueError("truncated")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number of more than 10 bytes at {at}")
