"""The records of the catalogue. Apart from the loader, which must stay cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Restart = Literal["required", "not-required", "depends"]


@dataclass(frozen=True, slots=True)
class Printed:
    """One assertion as device code prints it."""

    file: str  # base name of the source file that is printed
    expression: str  # text between the backquotes
    kernels: tuple[str, ...]
    operators: tuple[str, ...]  # aten names, most likely first; empty when it is not an operator of torch
    argument: str | None  # schema name of the offending argument
    valid: str | None
    element: str | None  # what block and thread ids say about the element, in words
    versions: str  # releases of torch (or of the library named) whose builds print it
    source: str


@dataclass(frozen=True, slots=True)
class HostMessage:
    """The same fault as the host words it: a CPU kernel or a check; for faults of a device, its runtime or driver."""

    pattern: str  # regular expression, searched in one line of text
    example: str
    operators: tuple[str, ...]
    argument: str | None


@dataclass(frozen=True, slots=True)
class Hazard:
    """One kind of fault."""

    slug: str
    title: str  # one line, states the fault
    since: str  # first release of torch in which it can happen
    until: str | None
    restart: Restart  # whether the process must restart after it happened on a GPU
    meaning: str
    causes: tuple[str, ...]  # most likely first
    confirm: tuple[str, ...]  # a command or a few lines of Python each
    fixes: tuple[str, ...]
    not_this: str | None  # what it is easily taken for
    sources: tuple[str, ...]
    printed: tuple[Printed, ...]
    host: tuple[HostMessage, ...]
