"""Whose line was it? Frames are walked with ``sys._getframe`` (1 µs); nothing is symbolised before a violation."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

import preassert
from preassert.model import Site

_OURS = os.path.dirname(os.path.abspath(preassert.__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FUNCTIONAL = os.path.join(_TORCH, "nn", "functional.py")
_STDLIB = tuple(
    os.path.abspath(path) + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@lru_cache(maxsize=4096)
def owner(filename: str) -> str:
    """Who wrote the code of ``filename``: ``"preassert"``, ``"torch"``, ``"package"``, ``"stdlib"`` or ``"user"``."""
    if filename.startswith(_OURS):
        return "preassert"
    if filename.startswith("<frozen "):
        return "stdlib"
    if filename.startswith("<") or not filename:
        # <stdin>, <string> and <ipython-input-...> are the user's; generated code (<eval_with_key>) is torch's
        return "torch" if filename.startswith(("<eval_with_key", "<torch")) else "user"
    path = os.path.abspath(filename)
    if path.startswith(_OURS):
        return "preassert"
    if path.startswith(_TORCH) or f"{os.sep}torchinductor_" in path:
        return "torch"
    if any(mark in path for mark in _PACKAGES):
        return "package"
    return "stdlib" if path.startswith(_STDLIB) else "user"


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first, without preassert's own."""
    while frame is not None:
        if owner(frame.f_code.co_filename) != "preassert":
            yield frame
        frame = frame.f_back


def current_frames() -> list[FrameType]:
    return list(frames_from(sys._getframe(1)))


def user_frame(frames: list[FrameType]) -> FrameType | None:
    """The innermost frame of the user's own code; else the innermost one of a package; else None (an autograd thread)."""
    fallback = None
    for frame in frames:
        who = owner(frame.f_code.co_filename)
        if who == "user":
            return frame
        if who == "package" and fallback is None:
            fallback = frame
    return fallback


def site_of(frame: FrameType) -> Site:
    return make_site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name, frame.f_globals)


def make_site(filename: str, line: int, function: str, module_globals: dict[str, Any] | None = None) -> Site:
    source = linecache.getline(filename, line, module_globals).strip() or None
    return Site(_short(filename), line, function.replace("<locals>.", ""), source)


def _short(filename: str) -> str:
    """Relative to the current folder where that is shorter and stays below it."""
    try:
        relative = os.path.relpath(filename)
    except (ValueError, OSError):  # another drive on Windows, or the current folder is gone
        return filename
    return filename if filename.startswith("<") or relative.startswith(os.pardir) else relative


@dataclass(frozen=True, slots=True)
class Call:
    """The call as the user made it: its name and its tensor arguments by parameter name."""

    name: str
    tensors: dict[str, torch.Tensor]


def functional_call(frames: list[FrameType]) -> Call | None:
    """The ``F.something`` call between the user's frame and the kernel, if there is one."""
    found = None
    for frame in frames:
        code = frame.f_code
        who = owner(code.co_filename)
        if who in ("user", "package"):
            break
        if os.path.abspath(code.co_filename) == _FUNCTIONAL and not code.co_name.startswith("_") and code.co_name != "fn":
            found = frame
    if found is None:
        return None
    code = found.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = found.f_locals
    tensors = {name: values[name] for name in names if isinstance(values.get(name), torch.Tensor)}
    return Call(f"F.{code.co_name}", tensors)
