"""What a label may be, how two labels compare, and which ones look alike without being the same."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Union

Label = Union[int, str, bool, float]  # noqa: UP007  (evaluated at run time on Python 3.10)

# Joiners, zero-width spaces, byte order marks and soft hyphens: invisible, and not removed by str.strip.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def plain(value: Any) -> Label | None:
    """The label that ``value`` stands for, as a plain Python object; None for a missing value (None, NaN, NA, NaT).

    Scalars of NumPy, pandas, pyarrow and torch (0-d) become Python scalars. A whole float is the int it equals: a
    column of ints that has one missing value arrives as floats.

    Raises:
        TypeError: lists, dicts, bytes, dates and other things that are not a label.
        ValueError: an infinity.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value  # type: ignore[no-any-return]
    if kind is not float:
        if kind.__name__ in ("NAType", "NaTType"):
            return None
        for method in ("as_py", "item"):  # pyarrow scalars, then NumPy and torch ones
            unbox = getattr(value, method, None)
            if unbox is not None and not isinstance(value, (str, int, float)) and getattr(value, "ndim", 0) == 0:
                unboxed = unbox()
                return None if unboxed is None else plain(unboxed)
        for base in (str, bool, int, float):
            if isinstance(value, base):
                value = base(value)
                break
        else:
            raise TypeError(f"a label is an int, a string, a bool or a float, not {kind.__name__}: {shown(value)}")
    if not isinstance(value, float):
        return value  # type: ignore[no-any-return]
    if math.isnan(value):
        return None
    if math.isinf(value):
        raise ValueError(f"{value} is not a label")
    return int(value) if value.is_integer() else value


def key(label: Label) -> Hashable:
    """Dictionary key under which ``label`` is known. Python holds that ``True == 1``; here they are two labels."""
    return (bool, label) if type(label) is bool else label


def natural_key(label: Label) -> tuple[Any, ...]:
    """Sort key: bools, then numbers by value, then text with runs of digits compared as numbers (``a2`` before ``a10``)."""
    if isinstance(label, bool):
        return (0, int(label))
    if isinstance(label, (int, float)):
        return (1, label)
    pieces = tuple(_magnitude(piece) if i % 2 else (1, 0, piece) for i, piece in enumerate(_DIGITS.split(label)))
    return (2, pieces, label)  # the text itself last: "01" and "1" have equal pieces, and order must be total


def _magnitude(digits: str) -> tuple[int, int, str]:
    """Orders runs of digits as numbers; ``int`` refuses very long ones."""
    digits = digits.lstrip("0")
    return (0, len(digits), digits)


def shown(value: Any, width: int = 60) -> str:
    """``repr`` of a label, bounded: "1" and 1 look different in every message. ASCII escapes for what cannot be printed."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def shown_list(values: Sequence[Any], limit: int = 10) -> str:
    more = f", ... ({len(values) - limit} more)" if len(values) > limit else ""
    return ", ".join(shown(value) for value in values[:limit]) + more


def _unicode_form(label: Label) -> Hashable:
    return unicodedata.normalize("NFKC", label) if isinstance(label, str) else key(label)


def _stripped(label: Label) -> Hashable:
    return _INVISIBLE.sub("", label).strip() if isinstance(label, str) else key(label)


def _as_number(label: Label) -> Hashable:
    if isinstance(label, str):
        text = label.strip()
        if _NUMBER.fullmatch(text):
            number = float(text)
            return int(text) if re.fullmatch(r"[+-]?\d{1,4000}", text, re.ASCII) else number
        lowered = text.lower()
        return (bool, lowered == "true") if lowered in ("true", "false") else label
    return key(label)


def _as_truth(label: Label) -> Hashable:
    return int(label) if isinstance(label, bool) else key(label)


# (why two labels that map to the same thing under the function look alike, the function)
_LIKENESS: tuple[tuple[str, Callable[[Label], Hashable]], ...] = (
    ("a bool and a number", _as_truth),
    ("a number and text", _as_number),
    ("differ by white space or invisible characters", _stripped),
    ("the same text in different Unicode forms", _unicode_form),
)


def lookalikes(labels: Sequence[Label]) -> list[str]:
    """One sentence for each group of labels that are likely meant to be one, and for white space around a label.

    Found: ``1`` and ``"1"``, ``True`` and ``1``, the same text in two Unicode normal forms, white space or invisible
    characters around or inside. Nothing is merged.
    """
    found = []
    reported: set[frozenset[Hashable]] = set()
    for why, fold in _LIKENESS:
        groups: dict[Hashable, list[Label]] = {}
        for label in labels:
            groups.setdefault(fold(label), []).append(label)
        for group in groups.values():
            members = frozenset(map(key, group))
            if len(group) > 1 and members not in reported:
                reported.add(members)
                found.append(f"{' and '.join(ascii(label) for label in group[:4])} are separate classes ({why})")
    in_groups = {member for group in reported for member in group}
    padded = [label for label in labels if isinstance(label, str) and _stripped(label) != label and label not in in_groups]
    if padded:
        found.append(
            f"white space or invisible characters belong to the class: {', '.join(ascii(label) for label in padded[:10])}"
        )
    return found


def resemblance(label: Label, known: Iterable[Label]) -> str | None:
    """Why ``label``, which is not in ``known``, was probably meant to be one of them; None when nothing is close."""
    known = list(known)
    for why, fold in _LIKENESS:
        target = fold(label)
        for other in known:
            if fold(other) == target:
                return f"{label!a} is not {other!a} ({why})"
    return None
