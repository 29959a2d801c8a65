"""Every exception preassert raises on purpose."""

from __future__ import annotations

import re
from typing import Any

from preassert.model import ArgumentInfo, BadElement, Sample, Site


class PreassertError(Exception):
    """Base of every error that preassert raises about its own use or input (not of :class:`Violation`)."""


class UsageError(PreassertError):
    """The command line or a call is wrong; exit code 2."""


class InputError(PreassertError):
    """A file cannot be read as what it claims to be. Names the file and the reason."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.file, self.reason))


class MissingExtra(PreassertError, ImportError):
    """An optional library is not installed; exit code 3."""

    def __init__(self, library: str, *, extra: str, purpose: str) -> None:
        super().__init__(f"{library} is needed to {purpose}: pip install 'preassert[{extra}]'")
        self.library = library
        self.extra = extra
        self.purpose = purpose

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_missing, (self.library, self.extra, self.purpose))


def _rebuild_missing(library: str, extra: str, purpose: str) -> MissingExtra:
    return MissingExtra(library, extra=extra, purpose=purpose)


_RELAYED = re.compile(r"^preassert\.Violation: (?P<hazard>[a-z0-9-]+)$", re.MULTILINE)


class Violation(RuntimeError, IndexError, ValueError):
    """A contract broken at run time: an operator was given a value that its GPU kernel does not accept.

    It is a RuntimeError *and* an IndexError *and* a ValueError, so that code which catches what torch raises on the
    CPU for the same fault goes on working. All fields are public; :meth:`to_dict` gives them as plain data.

    Attributes:
        hazard: slug of the hazard, for example ``"target-out-of-range"``.
        operator: ATen operator whose contract is broken, for example ``"aten::nll_loss_forward"``.
        call: the call as the user wrote it, for example ``"F.cross_entropy"``.
        arguments: tensor arguments of that call, with dtype and shape.
        argument: name of the offending argument. ``place``: which of its tensors, where it is a list of several.
        elements: the first offending elements (bounded), values as the user passed them.
        count, total: number of offending elements and of all elements of the argument.
        minimum, maximum: extremes of the argument (NaN is left out of both).
        valid: the valid range in words; ``lowest``/``highest`` as numbers, both inclusive, where it is a range.
        legal: further values that are legal (``ignore_index``, declared sentinels).
        site: the user's line. ``module``: path of the innermost module in the model, or None.
        sample: dataset indices of the bad samples, or why they are unknown; None when no DataLoader is involved.
        likely: the most likely cause, drawn from the numbers.
        mode: ``"immediate"``, ``"deferred"`` or ``"compiled"``. ``rank``: rank of the process, or None.

    ``Violation(text)`` alone is one that was relayed as text: torch makes it so from what a DataLoader worker raised, where no
    guard is active. Its message is that text, its hazard the one that the text names (else ``"unknown"``), and the other
    fields are empty.
    """

    __module__ = "preassert"

    def __init__(
        self,
        hazard: str,
        *,
        operator: str = "",
        call: str = "",
        argument: str = "",
        valid: str = "",
        arguments: tuple[ArgumentInfo, ...] = (),
        elements: tuple[BadElement, ...] = (),
        count: int = 1,
        total: int = 1,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        lowest: int | float | None = None,
        highest: int | float | None = None,
        legal: tuple[int | float, ...] = (),
        site: Site | None = None,
        module: str | None = None,
        sample: Sample | None = None,
        likely: str | None = None,
        detail: str | None = None,
        mode: str = "immediate",
        rank: int | None = None,
        place: int | None = None,
    ) -> None:
        relayed = None if operator else hazard
        if relayed is not None:
            named = _RELAYED.search(relayed)
            hazard = named["hazard"] if named else "unknown"
        self.hazard = hazard
        self.operator = operator
        self.call = call
        self.argument = argument
        self.valid = valid
        self.arguments = arguments
        self.elements = elements
        self.count = count
        self.total = total
        self.minimum = minimum
        self.maximum = maximum
        self.lowest = lowest
        self.highest = highest
        self.legal = legal
        self.site = site
        self.module = module
        self.sample = sample
        self.likely = likely
        self.detail = detail
        self.mode = mode
        self.rank = rank
        self.place = place
        super().__init__(self.to_text() if relayed is None else relayed)

    @property
    def named_argument(self) -> str:
        """The offending argument as a person writes it: ``target``, ``indices[1]``."""
        return self.argument if self.place is None else f"{self.argument}[{self.place}]"

    def to_text(self) -> str:
        """The report a person reads, in the order of house rule 5; several lines, no trailing newline."""
        signature = f"{self.call}({', '.join(map(str, self.arguments))})"
        if self.elements:
            shown = ", ".join(f"{self.named_argument}{_subscript(e.position)} = {number_text(e.value)}" for e in self.elements)
            more = self.count - len(self.elements)
            if more > 0:
                shown += f", ... ({more} more)"
        else:
            shown = self.named_argument
        lines = [self.hazard, f"  {signature}: {shown}, valid {self.valid}"]
        if self.detail:
            lines.append(f"  {self.detail}")
        if self.elements:  # without elements the fault is one of the whole tensor, which ``detail`` tells
            extremes = ""
            if self.minimum is not None and self.maximum is not None:
                extremes = f" (min {number_text(self.minimum)}, max {number_text(self.maximum)})"
            noun, verb = "value" if self.total == 1 else "values", "is" if self.count == 1 else "are"
            lines.append(f"  {self.count:,} of {self.total:,} {noun} {verb} outside{extremes}")
        if self.site is not None:
            lines.append(f"  {self.site}")
        about = [f"module: {self.module}" if self.module else "module: none"]
        if self.sample is not None:
            about.append(f"sample: {_sample(self.sample)}")
        if self.rank is not None:
            about.append(f"rank: {self.rank}")
        lines.append("  " + "; ".join(about))
        next_step = f"Next: preassert hazards {self.hazard}"
        lines.append(f"  likely: {self.likely}. {next_step}" if self.likely else f"  {next_step}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data, ready for JSON (NaN and infinities become strings)."""
        return {
            "schema": "preassert.violation/1",
            "hazard": self.hazard,
            "operator": self.operator,
            "call": self.call,
            "argument": self.argument,
            "place": self.place,
            "valid": self.valid,
            "arguments": [{"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in self.arguments],
            "elements": [{"position": list(e.position), "value": _plain(e.value)} for e in self.elements],
            "count": self.count,
            "total": self.total,
            "minimum": _plain(self.minimum),
            "maximum": _plain(self.maximum),
            "lowest": _plain(self.lowest),
            "highest": _plain(self.highest),
            "legal": [_plain(value) for value in self.legal],
            "site": None
            if self.site is None
            else {"file": self.site.file, "line": self.site.line, "function": self.site.function, "source": self.site.source},
            "module": self.module,
            "sample": None
            if self.sample is None
            else {
                "indices": list(self.sample.indices),
                "unknown_because": self.sample.unknown_because,
                "detail": self.sample.detail,
            },
            "likely": self.likely,
            "detail": self.detail,
            "mode": self.mode,
            "rank": self.rank,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {key: value for key, value in self.__dict__.items() if not key.startswith("_")}
        hazard = fields.pop("hazard")
        if not self.operator:  # relayed
            hazard, fields = str(self), {}
        notes = self.__dict__.get("__notes__")
        return (_rebuild, (hazard, fields), {"__notes__": list(notes)} if notes else None)


def _rebuild(hazard: str, fields: dict[str, Any]) -> Violation:
    return Violation(hazard, **fields)


def _subscript(position: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, position))}]" if position else ""


def number_text(value: int | float) -> str:
    """A value for people: six significant digits, ``NaN``."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value != value:
        return "NaN"
    return f"{value:.6g}"


def _plain(value: int | float | None) -> int | float | str | None:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else ("inf" if value > 0 else "-inf")
    return value


def _sample(sample: Sample) -> str:
    if not sample.indices:
        return f"unknown ({sample.unknown_because})"
    shown = ", ".join(map(str, sample.indices[:10]))
    more = f", ... ({len(sample.indices) - 10} more)" if len(sample.indices) > 10 else ""
    noun = "dataset index" if len(sample.indices) == 1 else "dataset indices"
    detail = f" ({sample.detail})" if sample.detail else ""
    return f"{noun} {shown}{more}{detail}"
