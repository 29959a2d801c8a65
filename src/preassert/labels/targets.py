"""``clamp_targets`` and ``mask_targets``: they make the assertion go away and hide the fault; so they say what is lost."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from preassert.labels.containers import flatten, is_torch
from preassert.labels.problems import LabelWarning
from preassert.labels.values import shown


@dataclass(frozen=True, slots=True)
class ChangedTargets:
    """What ``clamp_targets`` or ``mask_targets`` did."""

    targets: Any  # same container, shape and device; int64
    count: int  # elements changed
    values: dict[int, int]  # value as it was -> how often
    positions: list[str]  # the first ten, in words: "[3]", "[0, 7]"


class ChangedTargetsWarning(LabelWarning):
    """Targets were changed. ``changes`` is the :class:`ChangedTargets`."""

    def __init__(self, text: str, changes: ChangedTargets) -> None:
        super().__init__(text)
        self.changes = changes


def clamp_targets(targets: Any, num_classes: int, *, ignore_index: int | None = -100, return_changes: bool = False) -> Any:
    """``targets`` with each value below 0 set to 0 and each above ``num_classes - 1`` set to that; ``ignore_index`` stays.

    A clamped sample trains the model on a *wrong class*; :class:`LabelMap` gives each label its own class instead, and
    :func:`mask_targets` at least leaves the sample out. The argument itself is not changed. Synchronises a GPU tensor.

    Args:
        targets: integers in any container that ``LabelMap`` takes.
        return_changes: return :class:`ChangedTargets` instead of the targets alone.

    Warns:
        ChangedTargetsWarning: values were changed: how many, which, and what that means.

    Raises:
        TypeError, ValueError: not whole numbers, or ``num_classes`` below 1.
    """
    return _change(targets, num_classes, ignore_index, None, return_changes)


def mask_targets(targets: Any, num_classes: int, *, ignore_index: int = -100, return_changes: bool = False) -> Any:
    """``targets`` with each value outside 0..num_classes-1 set to ``ignore_index``: the loss leaves those samples out.

    Arguments, warnings and errors as :func:`clamp_targets`.
    """
    if ignore_index is None or 0 <= ignore_index < num_classes:
        raise ValueError(f"ignore_index={ignore_index} must lie outside 0..{num_classes - 1}")
    return _change(targets, num_classes, ignore_index, ignore_index, return_changes)


def _change(targets: Any, num_classes: int, ignore_index: int | None, mask: int | None, return_changes: bool) -> Any:
    import numpy as np

    if isinstance(num_classes, bool) or num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, not {num_classes!r}")
    if is_torch(targets) and targets.is_floating_point():
        raise TypeError(f"class targets are integers, not {targets.dtype}")
    flat = flatten(targets)
    numbers = flat.whole_numbers()
    if numbers is None:
        raise TypeError("class targets are whole numbers; this holds text, fractions, bools or missing values")
    values = numbers.astype(np.int64)
    bad = (values < 0) | (values >= num_classes)
    if ignore_index is not None:
        bad &= values != ignore_index
    positions = np.flatnonzero(bad)
    if not len(positions):
        unchanged = ChangedTargets(flat.wrap(values, None), 0, {}, [])
        return unchanged if return_changes else unchanged.targets
    before, counts = np.unique(values[positions], return_counts=True)
    values[positions] = mask if mask is not None else np.clip(values[positions], 0, num_classes - 1)
    changes = ChangedTargets(
        flat.wrap(values, None),
        len(positions),
        dict(zip(before.tolist(), counts.tolist(), strict=True)),
        [flat.place(position) for position in positions[:10].tolist()],
    )
    warnings.warn(ChangedTargetsWarning(_sentence(changes, len(flat), num_classes, mask), changes), stacklevel=3)
    return changes if return_changes else changes.targets


def _sentence(changes: ChangedTargets, total: int, num_classes: int, mask: int | None) -> str:
    ranked = sorted(changes.values.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{shown(value)} ({count:,})" for value, count in ranked[:10])
    more = f" and {len(ranked) - 10:,} more values" if len(ranked) > 10 else ""
    loss = (
        f"they are left out of the loss (ignore_index={mask})"
        if mask is not None
        else "each now trains the model on a class that it does not have"
    )
    return (
        f"{changes.count:,} of {total:,} targets were outside 0..{num_classes - 1} and were changed: {listed}{more}, "
        f"first at {', '.join(changes.positions[:3])}; {loss}. If these labels are real, use preassert.LabelMap."
    )
