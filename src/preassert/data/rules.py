"""What a column may hold (:class:`Rule`) and what a check found (:class:`Report`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from preassert.model import EXIT_CLEAN, EXIT_FINDINGS, Finding, Severity

TARGET = "target-out-of-range"
EMBEDDING = "embedding-index-out-of-range"

# Column names that hold indices into an embedding table, as transformers, nanoGPT and Megatron name them.
_EMBEDDED = ("input_ids", "token_ids", "tokens", "ids", "token_type_ids", "position_ids", "decoder_input_ids", "segment_ids")


def hazard_of_column(column: str | None) -> str:
    """The hazard of a value out of range in ``column``: token ids are looked up in an embedding, all else is a target."""
    name = (column or "").rpartition(".")[2].lower()
    return EMBEDDING if name in _EMBEDDED or name.endswith("input_ids") else TARGET


@dataclass(frozen=True, slots=True)
class Rule:
    """What the values of one column (array, tensor, feature) may be. Lists are checked element by element, at any depth.

    Attributes:
        column: name of the column; a dotted name reaches into JSON objects and Parquet/Arrow structs. None: the only
            column there is, or the one that is evidently the label.
        lowest, highest: legal whole numbers, both inclusive; None leaves that side open.
        ignore: further legal values (``ignore_index``).
        names: legal labels where the column holds text. Where it holds numbers, they are positions in this list.
        alphabet: legal characters of a transcript (CTC); excludes ``names``, ``lowest`` and ``highest``.
        real: fractions are legal, for probabilities; otherwise only whole numbers are (``1.0`` is the label 1).
        hazard: slug for a value outside, missing, NaN or not a whole number.
        max_length: most elements that a list of one row may have; None does not bound it.
        padding: an element that does not count towards the length (models that number only what is no padding).
        length_hazard: slug for a longer list. The finding's values are the lengths.
        optional: a file without this column is passed over in silence; otherwise that is an error.
        bound_by: what sets the range, in words that follow "set by": ``"num_labels in encoder/config.json"``.
        fix: what to do about it; None lets the check word it (``preassert remap`` where that applies).
    """

    column: str | None = None
    lowest: int | None = None
    highest: int | None = None
    ignore: tuple[int, ...] = (-100,)
    names: tuple[str, ...] | None = None
    alphabet: frozenset[str] | None = None
    real: bool = False
    hazard: str = TARGET
    max_length: int | None = None
    padding: int | None = None
    length_hazard: str = EMBEDDING
    optional: bool = False
    bound_by: str | None = None
    fix: str | None = None

    @property
    def bounded(self) -> bool:
        """Whether the rule says anything about values (and not about lengths alone)."""
        return self.lowest is not None or self.highest is not None or self.names is not None or self.alphabet is not None

    @property
    def provable(self) -> bool:
        """Whether the extremes of a column of whole numbers are enough to prove it clean."""
        return self.bounded and self.max_length is None and self.alphabet is None

    @property
    def valid(self) -> str:
        """The legal values in words: ``"0..4 or ignore_index -100"``."""
        if self.alphabet is not None:
            return f"the {len(self.alphabet)} characters of the alphabet"
        if self.names is not None:
            shown = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
            return f"the {len(self.names)} classes ({shown})"
        if self.lowest is None and self.highest is None:
            return "whole numbers"
        low = "" if self.lowest is None else str(self.lowest)
        high = "" if self.highest is None else str(self.highest)
        text = f"{low}..{high}"
        outside = [value for value in self.ignore if not self.covers(value, value)]
        if outside:
            text += " or ignore_index " + ", ".join(map(str, outside))
        return text

    def covers(self, low: int, high: int) -> bool:
        """Whether every whole number in ``low..high`` lies in the range (``ignore`` not counted)."""
        lowest, highest = self.limits()
        return (lowest is None or low >= lowest) and (highest is None or high <= highest)

    def limits(self) -> tuple[int | None, int | None]:
        """The range for numbers: ``lowest``/``highest``, or the positions in ``names``."""
        if self.names is not None and self.lowest is None and self.highest is None:
            return 0, len(self.names) - 1
        return self.lowest, self.highest


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        findings: hazards, unreadable files (hazard None, severity error, ``where.file``), and notes.
        scanned: what was read, as plain data: ``files``, ``rows``, ``columns`` (name -> rows, min, max, missing,
            histogram, empty_classes) and whatever a format adds.
    """

    findings: list[Finding] = field(default_factory=list)
    scanned: dict[str, Any] = field(default_factory=dict)

    def extend(self, other: Report) -> None:
        """Take over the findings of ``other``; counts in ``scanned`` add up, lists and mappings join."""
        self.findings.extend(other.findings)
        for key, value in other.scanned.items():
            mine = self.scanned.get(key)
            if isinstance(value, int) and isinstance(mine, int):
                self.scanned[key] = mine + value
            elif isinstance(value, list) and isinstance(mine, list):
                self.scanned[key] = [*mine, *value]
            elif isinstance(value, dict) and isinstance(mine, dict):
                self.scanned[key] = {**mine, **value}
            else:
                self.scanned[key] = value

    def exit_code(self, fail_on: Severity | str = "error") -> int:
        """1 if there is a finding at least as severe as ``fail_on`` (``"never"``: none is), else 0."""
        order = ("info", "warning", "error")
        if fail_on not in order:
            return EXIT_CLEAN
        worst = worst_severity(self.findings)
        return EXIT_FINDINGS if worst is not None and order.index(worst) >= order.index(fail_on) else EXIT_CLEAN


def tidy(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with ``./`` taken off their files, which a walk from the current folder puts there."""
    out: list[Finding] = []
    for finding in findings:
        file = finding.where.file
        while file.startswith("./") and file != "./":
            file = file[2:].lstrip("/")
        out.append(replace(finding, where=replace(finding.where, file=file)) if file != finding.where.file else finding)
    return out


def worst_severity(findings: Iterable[Finding]) -> Severity | None:
    """The most severe of the findings; None if there are none."""
    order: tuple[Severity, ...] = ("error", "warning", "info")
    present = {finding.severity for finding in findings}
    return next((severity for severity in order if severity in present), None)
