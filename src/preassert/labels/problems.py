"""Errors and warnings about labels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preassert.errors import PreassertError
from preassert.labels.values import shown, shown_list

SHOWN_LABELS = 10  # an error lists at most this many
SHOWN_PLACES = 3  # places for each of them


class LabelWarning(UserWarning):
    """Labels that look alike, or targets that were changed."""


class MapMismatch(PreassertError, ValueError):
    """A label map and a model (or another map) do not belong together."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """One label that the map does not know. ``label`` is None for a missing value."""

    label: Any
    count: int
    places: tuple[str, ...]  # the first places, in words: "[3]", "row 7 (line 9)", "annotation id 12"

    def __str__(self) -> str:
        name = "missing value (None or NaN)" if self.label is None else shown(self.label)
        times = "once" if self.count == 1 else f"{self.count:,} times"
        if not self.places:
            return f"{name}, {times}"
        return f"{name}, {times}, {'at' if self.count == 1 else 'first at'} {', '.join(self.places[:SHOWN_PLACES])}"


class UnseenLabels(PreassertError, ValueError):
    """Labels that are not in the map, or missing values where the map has no place for them.

    Attributes:
        unseen: all of them, missing values first, then the most frequent; the message lists at most ten.
        total: number of elements looked at, or None.
        hint: what was probably meant, or None.
    """

    def __init__(
        self, unseen: Sequence[Unseen], *, known: Sequence[Any], total: int | None = None, hint: str | None = None
    ) -> None:
        self.unseen = tuple(unseen)
        self.known = tuple(known)
        self.total = total
        self.hint = hint
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_unseen, (self.unseen, self.known, self.total, self.hint))

    def _text(self) -> str:
        count = sum(entry.count for entry in self.unseen)
        of = f" of {self.total:,}" if self.total is not None else ""
        labels = [entry for entry in self.unseen if entry.label is not None]
        if labels:
            noun = "previously unseen label" if len(labels) == 1 else "previously unseen labels"
            classes = f"the map has {len(self.known):,} classes: {shown_list(self.known)}"
            head = f"{len(labels):,} {noun} ({count:,}{of} elements); {classes}"
        else:
            head = (
                f"{count:,}{of} elements {'is' if count == 1 else 'are'} missing (None or NaN), and the policy is missing='error'"
            )
        lines = [head, *(f"  {entry}" for entry in self.unseen[:SHOWN_LABELS])]
        if len(self.unseen) > SHOWN_LABELS:
            lines.append(f"  ... and {len(self.unseen) - SHOWN_LABELS:,} more labels")
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


def _rebuild_unseen(unseen: Sequence[Unseen], known: Sequence[Any], total: int | None, hint: str | None) -> UnseenLabels:
    return UnseenLabels(unseen, known=known, total=total, hint=hint)


class NotFitted(PreassertError, ValueError, AttributeError):
    """The map has no classes yet: call ``fit`` first, or build it with ``from_classes``."""


def not_fitted() -> Exception:
    """The error for an unfitted map; where scikit-learn is loaded, one that its code recognises too."""
    text = "this LabelMap has no classes yet: call fit() first, or build it with LabelMap.from_classes()"
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is None:
        return NotFitted(text)
    both = type("NotFitted", (NotFitted, exceptions.NotFittedError), {"__module__": __name__})
    error: Exception = both(text)
    return error
