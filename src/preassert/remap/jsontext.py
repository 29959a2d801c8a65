"""Where values are in a JSON text. The standard library's scanner does the work; this only keeps the positions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode

Span = tuple[int, int, Any]  # start, end, value


def skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]


def value_at(text: str, position: int) -> tuple[Any, int]:
    """(value, end) of the value that starts at ``position``.

    Raises:
        ValueError: not JSON, or not all of it is there.
    """
    try:
        return _decode(text, position)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def members(text: str, position: int) -> Iterator[tuple[str, int, int, Any]]:
    """(key, start, end, value) for each member of the object that starts at ``position``; spans are those of the values."""
    if text[position : position + 1] != "{":
        raise ValueError("not an object")
    position = skip_space(text, position + 1)
    if text[position : position + 1] == "}":
        return
    while True:
        if text[position : position + 1] != '"':
            raise ValueError(f"a key is expected at character {position}")
        name, position = scanstring(text, position + 1)
        position = skip_space(text, position)
        if text[position : position + 1] != ":":
            raise ValueError(f"':' is expected at character {position}")
        start = skip_space(text, position + 1)
        value, end = value_at(text, start)
        yield name, start, end, value
        position = skip_space(text, end)
        mark = text[position : position + 1]
        if mark == "}":
            return
        if mark != ",":
            raise ValueError(f"',' or '}}' is expected at character {position}")
        position = skip_space(text, position + 1)


def items(text: str, position: int) -> Iterator[Span]:
    """Spans of the items of the array that starts at ``position``."""
    position = skip_space(text, position + 1)
    if text[position : position + 1] == "]":
        return
    while True:
        value, end = value_at(text, position)
        yield position, end, value
        position = skip_space(text, end)
        if text[position : position + 1] == "]":
            return
        position = skip_space(text, position + 1)


def scalars(text: str, start: int, end: int, value: Any, path: Sequence[str]) -> Iterator[Span]:
    """Spans of the scalars under ``path`` in a value: lists are entered, at each name of the path an object is.

    Raises:
        ValueError: an object where the path ends.
    """
    if isinstance(value, list):
        for span in items(text, start):
            yield from scalars(text, *span, path)
    elif not path:
        if isinstance(value, dict):
            raise ValueError(f"an object, not a label, at character {start}")
        yield start, end, value
    elif isinstance(value, dict):
        found = [(first, last, inner) for name, first, last, inner in members(text, start) if name == path[0]]
        if found:
            yield from scalars(text, *found[-1], path[1:])  # of two equal keys the last counts, for every reader
