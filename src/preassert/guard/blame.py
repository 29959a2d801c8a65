"""Which module and which samples? (being written)"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from preassert.model import Sample


def module_path(frames: Sequence[FrameType]) -> str | None:
    return None


def watch() -> None: ...


def unwatch() -> None: ...


def sample(tensor: Any, positions: list[int], values: list[Any]) -> Sample | None:
    return None
