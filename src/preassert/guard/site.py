"""Whose line was it? Frames are walked with ``sys._getframe`` (1 µs); nothing is symbolised before a violation."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

import preassert
from preassert.guard import blame
from preassert.model import Site
from preassert.report.text import clean_line

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


def user_line() -> tuple[CodeType, int] | None:
    """Code and line of the innermost frame of the user's own code. A microsecond or two: called for every check on a budget."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if owner(frame.f_code.co_filename) == "user":
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def site_of(frame: FrameType) -> Site:
    return make_site(frame.f_code.co_filename, frame.f_lineno, _name(frame.f_code), frame.f_globals)


def _name(code: CodeType) -> str:
    if sys.version_info >= (3, 11):
        return code.co_qualname
    return code.co_name


def make_site(filename: str, line: int, function: str, module_globals: dict[str, Any] | None = None) -> Site:
    """The site as people read it: control characters in names and source are shown as escapes."""
    source = clean_line(linecache.getline(filename, line, module_globals).strip()) or None
    return Site(clean_line(_short(filename)), line, clean_line(function.replace("<locals>.", "")), source)


def _short(filename: str) -> str:
    """Relative to the current folder where that is shorter and stays below it."""
    try:
        relative = os.path.relpath(filename)
    except (ValueError, OSError):  # another drive on Windows, or the current folder is gone
        return filename
    return filename if filename.startswith("<") or relative.startswith(os.pardir) else relative


@dataclass(frozen=True, slots=True)
class Outline:
    """What a report needs of a tensor argument, without keeping the tensor alive."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]  # a ragged or symbolic size is a name
    count: int | None  # of elements; None where a size is no number
    start: int | None  # address of the first element; None where there is no storage


def outline(tensor: torch.Tensor | Outline) -> Outline:
    if isinstance(tensor, Outline):
        return tensor
    shape = tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a subclass without storage
        start = None
    return Outline(tensor.dtype, shape, tensor.numel() if all(isinstance(size, int) for size in shape) else None, start)


@dataclass(frozen=True, slots=True)
class Call:
    """The call as the user made it: its name and its tensor arguments by parameter name."""

    name: str
    tensors: Mapping[str, torch.Tensor | Outline]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call was made, as a report names it."""

    site: Site | None
    module: str | None
    call: Call | None


@dataclass(frozen=True, slots=True)
class Trail:
    """Where a call came from, kept without keeping its frames alive."""

    steps: tuple[tuple[CodeType, int], ...]  # code and line, innermost first
    module: str | None
    call: Call | None  # if it went through torch.nn.functional
    user: int | None  # which step is the user's

    def place(self) -> Place:
        site = None
        if self.user is not None:
            code, line = self.steps[self.user]
            site = make_site(code.co_filename, line, _name(code))
        return Place(site, self.module, self.call)


def functional_frame(frames: Iterable[FrameType]) -> FrameType | None:
    """The outermost ``torch.nn.functional`` frame between the kernel and the user's frame."""
    found = None
    for frame in frames:
        code = frame.f_code
        if owner(code.co_filename) in ("user", "package"):
            break
        if _is_functional(code):
            found = frame
    return found


@lru_cache(maxsize=4096)
def _is_functional(code: CodeType) -> bool:
    return os.path.abspath(code.co_filename) == _FUNCTIONAL and not code.co_name.startswith("_") and code.co_name != "fn"


def functional_call(frames: Iterable[FrameType]) -> Call | None:
    """The ``F.something`` call between the user's frame and the kernel, with its tensors, if there is one."""
    found = functional_frame(frames)
    return None if found is None else _call_of(found)


def _call_of(frame: FrameType) -> Call:
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    tensors = {name: outline(values[name]) for name in names if isinstance(values.get(name), torch.Tensor)}
    return Call(f"F.{code.co_name}", tensors)


_module_paths: weakref.WeakKeyDictionary[torch.nn.Module, str | None] = weakref.WeakKeyDictionary()


def trail() -> Trail:
    """The trail of the calling code. Cheap enough for every check on a device: locals are read of two frames at most."""
    steps, user, module, functional, saw_module = [], None, None, None, False
    for frame in frames_from(sys._getframe(1)):
        code = frame.f_code
        steps.append((code, frame.f_lineno))
        who = owner(code.co_filename)
        if not saw_module and code.co_name == "forward":
            innermost = frame.f_locals.get("self")
            if isinstance(innermost, torch.nn.Module):
                saw_module = True
                if innermost not in _module_paths:
                    _module_paths[innermost] = blame.module_path(list(frames_from(frame)))
                module = _module_paths[innermost]
        if who == "user":
            user = len(steps) - 1
            break
        if user is None and _is_functional(code):
            functional = frame
    return Trail(tuple(steps), module, None if functional is None else _call_of(functional), user)
