"""Records that cross rooms: what a contract, a check or a log says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

Severity = Literal["error", "warning", "info"]
Role = Literal["cause", "echo", "context"]
# Of the guard; what each means: preassert.guard.options
Mode = Literal["auto", "immediate", "deferred"]
MODES: tuple[Mode, ...] = get_args(Mode)
Policy = Literal["raise", "warn", "skip", "ignore"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_MISSING_EXTRA = 3
EXIT_DATAERR = 65  # sysexits.h EX_DATAERR: the data is wrong, running again cannot help


class Site(NamedTuple):
    """The place in the user's code where an operator was called."""

    file: str
    line: int
    function: str
    source: str | None = None  # the stripped source line, when the file can be read

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        return f"{place}: {self.source}" if self.source else place


class ArgumentInfo(NamedTuple):
    """Name, dtype and shape of one tensor argument of a call."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]  # a ragged or symbolic size is a name

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class BadElement(NamedTuple):
    """One offending value at its position in the tensor that the user passed."""

    position: tuple[int, ...]
    value: int | float


def unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Coordinates of a flat (row-major) position."""
    out = []
    for size in reversed(shape):
        position, rest = divmod(position, size)
        out.append(rest)
    return tuple(reversed(out))


class Sample(NamedTuple):
    """Which samples of the data set the bad elements came from, or why that is not known."""

    indices: tuple[int, ...] = ()
    unknown_because: str | None = None  # set exactly when ``indices`` is empty
    detail: str | None = None  # for example "labels.csv row 1043"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a finding is. Rows are 1-based data rows (a header is not a row), lines 1-based lines of the file."""

    file: str
    row: int | None = None
    rows: tuple[int, ...] = ()
    line: int | None = None
    lines: tuple[int, ...] = ()
    column: str | None = None
    ids: tuple[int | str, ...] = ()  # ids of annotations (COCO)

    def to_dict(self) -> dict[str, Any]:
        filled = {key: value for key, value in asdict(self).items() if value not in (None, ())}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in filled.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """A hazard found in data or in a model before it runs. ``hazard`` is None for a file that cannot be read."""

    hazard: str | None
    severity: Severity
    where: Where
    message: str
    value: Any = None  # the first offending value
    values: tuple[Any, ...] = ()  # distinct offending values, bounded
    valid: str | None = None
    count: int | None = None  # number of offending elements
    fix: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "hazard": self.hazard,
            "severity": self.severity,
            "where": self.where.to_dict(),
            "value": self.value,
            "values": list(self.values),
            "valid": self.valid,
            "count": self.count,
            "message": self.message,
            "fix": self.fix,
        }
        out.update(self.extra)
        return out


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one event of a log turns out to mean."""

    hazard: str
    role: Role
    evidence: str  # the line as printed
    line: int | None = None  # 1-based line of the file as given
    file: str | None = None
    rank: int | None = None
    count: int = 1  # number of assertion lines (or error lines) it stands for
    operator: str | None = None
    argument: str | None = None
    valid: str | None = None
    elements: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        out = asdict(self)
        extra = out.pop("extra")
        for key in ("elements", "causes", "fixes"):
            out[key] = list(out[key])
        out.update(extra)
        return out
