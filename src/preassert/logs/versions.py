"""Which releases of torch print an assertion from which line of which file: read off the device code of the wheels.

``printed_lines.json`` is made by ``tools/build_printed_lines.py``.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "printed_lines.json"), encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    table["squeezed"] = ["".join(expression.split()) for expression in table["expressions"]]
    return table


def sampled() -> tuple[str, ...]:
    """The releases that were read."""
    return tuple(_table()["releases"])


def _rows(file: str, line: int, expressions: set[str]) -> list[tuple[int, list[int]]]:
    table = _table()
    return [
        (mask, kernels)
        for number, expression, mask, kernels in table["files"].get(file, ())
        if number == line and table["squeezed"][expression] in expressions
    ]


def releases(file: str, line: int, expressions: set[str]) -> tuple[str, ...]:
    """Releases whose wheels print one of ``expressions`` (without blanks) from ``file``:``line``, oldest first."""
    mask = 0
    for bits, _ in _rows(file, line, expressions):
        mask |= bits
    return tuple(release for bit, release in enumerate(_table()["releases"]) if mask >> bit & 1)


def kernels(file: str, line: int, expressions: set[str]) -> tuple[str, ...]:
    """The kernels that print it; for Windows, which prints no name."""
    table = _table()
    found = (table["kernels"][kernel] for _, indices in _rows(file, line, expressions) for kernel in indices)
    return tuple(dict.fromkeys(found))
