"""What every format shares: counting labels on the first pass, replacing them on the second, and saying what was not known."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from preassert.errors import UsageError
from preassert.labels import LabelMap, Unseen, UnseenLabels
from preassert.labels.containers import flatten
from preassert.labels.lookup import MISSING, UNKNOWN
from preassert.labels.values import Label, key, plain, shown

# A whole number as CSV and YOLO files write it. "01" and "-0" are not: they would come back as another text.
_NUMBER = re.compile(r"(-?[1-9][0-9]{0,99}|0)(\.0+)?")
# Texts that stand for "no value" in a column of numbers; in a column of names only the empty field does.
MISSING_TEXTS = frozenset(("", "nan", "NaN", "NAN", "null", "NULL", "None", "NA", "N/A", "<NA>"))

LABELS_LIMIT = 5_000_000  # different ones; a column of texts or ids would fill the memory

DROP = object()  # the replacement of an element that is left out
UNSEEN = object()  # the replacement of an element that stops the run


@dataclass(slots=True)
class Options:
    """How to read the inputs; the same for all of them."""

    column: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    comment: str | None = None
    header: bool = True
    used_only: bool = False  # classes are the labels that occur, whatever the file declares
    link: bool = False  # hard links instead of copies of files that do not change
    advance: Callable[[int], None] = lambda size_bytes: None  # progress


def whole_number(text: str) -> int | None:
    found = _NUMBER.fullmatch(text.strip())
    return int(found.group(1)) if found else None


@dataclass(slots=True)
class Tally:
    """All labels of all inputs, counted. Texts of untyped files wait until all are seen: ``"1"`` may be a number or a name."""

    typed: dict[Any, list[Any]] = field(default_factory=dict)  # (type, label) -> [label, count]
    texts: Counter[str] = field(default_factory=Counter)
    tokens: dict[Any, dict[str, None]] = field(default_factory=dict)  # (type, label) -> JSON tokens it was written as
    declared: dict[Label, str] | None = None  # id -> name, as the files declare them
    origin: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    elements: int = 0

    def add(self, label: Label | None, count: int = 1) -> None:
        entry = self.typed.setdefault((type(label), label), [label, 0])
        entry[1] += count
        self.elements += count
        self._check_size()

    def add_text(self, counts: Counter[str]) -> None:
        self.texts.update(counts)
        self.elements += sum(counts.values())
        self._check_size()

    def _check_size(self) -> None:
        if len(self.typed) + len(self.texts) > LABELS_LIMIT:
            raise UsageError(f"more than {LABELS_LIMIT:,} different labels: is this the column of the labels?")

    def add_token(self, value: Any, token: str, count: int) -> None:
        """A label of a JSON file, as it is written there."""
        label = plain(value)
        self.add(label, count)
        if token != json.dumps(label, ensure_ascii=False) or (type(label), label) in self.tokens:
            self.tokens.setdefault((type(label), label), {})[token] = None

    def declare(self, ids: Iterable[Label], names: Iterable[str], file: str) -> None:
        """Classes that a file declares. All files must agree.

        Raises:
            UsageError: another file gives an id another name.
        """
        declared = self.declared = {} if self.declared is None else self.declared
        for label, name in zip(ids, names, strict=True):
            if declared.setdefault(label, name) != name:
                raise UsageError(f"{file} names {shown(label)} {shown(name)}, another input names it {shown(declared[label])}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def text_labels(self) -> dict[str, Label | None]:
        """What each text stands for: numbers where all of them are, else names."""
        texts = {text: text.strip() for text in self.texts}
        bare = [text for text in texts.values() if text not in MISSING_TEXTS]
        any_names = any(isinstance(label, str) for label, _ in self.typed.values())
        if not any_names and all(whole_number(text) is not None for text in bare):
            return {text: None if strip in MISSING_TEXTS else whole_number(strip) for text, strip in texts.items()}
        return {text: text or None for text in texts}

    def pairs(self) -> list[tuple[Label | None, int]]:
        counts = [(label, count) for label, count in self.typed.values()]
        meaning = self.text_labels()
        return counts + [(meaning[text], count) for text, count in self.texts.items()]

    def pairs_for(self, recoder: Recoder) -> list[tuple[Label | None, int]]:
        """``pairs`` as an existing map reads the texts."""
        counts = [(label, count) for label, count in self.typed.values()]
        return counts + [(recoder.meaning(text), count) for text, count in self.texts.items()]

    def fit(self, parameters: dict[str, Any], used_only: bool) -> LabelMap:
        """The map over everything counted; over what the files declare, unless ``used_only``."""
        pairs = self.pairs()
        if self.declared is None or "classes" in parameters:
            labels = LabelMap(**parameters)
            labels.count_labels(pairs)
            if self.declared is not None and all(label in self.declared for label in labels.labels):
                labels.set_names([self.declared[label] for label in labels.labels])
        elif used_only:
            labels = self._used(parameters, pairs)
        else:
            given = {name: value for name, value in parameters.items() if name != "order"}
            labels = LabelMap.from_classes(self.declared, names=list(self.declared.values()), **given)
        labels.origin_ = self._origin(labels)
        self._note_ignored(labels, pairs)
        return labels

    def _note_ignored(self, labels: LabelMap, pairs: list[tuple[Label | None, int]]) -> None:
        """With ``missing="ignore_index"`` two things have one index. ``--inverse`` can tell them apart if only one occurs."""
        found = {label for label, _ in pairs if label is None or type(label) is int}
        if labels.missing != "ignore_index" or labels.ignore_index not in found:
            return
        if None in found:
            ignored = labels.ignore_index
            self.note(f"{ignored} and missing values both occur, and both become {ignored}; --inverse writes missing")
        else:
            labels.origin_["ignore_index"] = "value"

    def _used(self, parameters: dict[str, Any], pairs: list[tuple[Label | None, int]]) -> LabelMap:
        fitted = LabelMap(**parameters)
        fitted.count_labels(pairs)
        declared = self.declared or {}
        if all(label in declared for label in fitted.labels):
            names = [declared[label] for label in fitted.labels]
        elif len(fitted.labels) == len(declared):
            names = list(declared.values())
            self.note(f"ids that occur ({shown(fitted.labels[0])}..{shown(fitted.labels[-1])}) take the declared names in order")
        else:
            stray = [label for label in fitted.labels if label not in declared]
            raise UsageError(
                f"{len(fitted.labels)} ids occur and {len(declared)} names are declared; ids without a name: "
                f"{', '.join(map(shown, stray[:10]))}. Declare them, or take the others out"
            )
        given = {name: value for name, value in parameters.items() if name != "order"}
        return LabelMap.from_classes(fitted.labels, names=names, **given)

    def _origin(self, labels: LabelMap) -> dict[str, Any]:
        """How labels were written, where ``--inverse`` could not know: class index -> text."""
        origin = dict(self.origin)
        spelled: dict[Label, list[str]] = {}
        for text, label in self.text_labels().items():
            if label is not None and text.strip() != str(label):
                spelled.setdefault(label, []).append(text.strip())
        missing = [text for text, label in self.text_labels().items() if label is None]
        if missing != [""] * len(missing):
            origin["missing_text"] = missing[0].strip()
            if len(missing) > 1:
                ways = ", ".join(map(shown, missing[:4]))
                self.note(f"missing values are written in several ways ({ways}); --inverse writes the first")
        plain_texts = {text.strip() for text in self.texts}
        for label, texts in spelled.items():
            if len(texts) > 1 or str(label) in plain_texts:
                both = ", ".join(map(shown, [*texts, *([str(label)] if str(label) in plain_texts else [])][:4]))
                self.note(f"class {shown(label)} is written in several ways ({both}); --inverse writes the first")
        code = {key(label): index for index, label in enumerate(labels.labels)}
        if spelled:
            origin["text"] = {str(code[key(label)]): texts[0] for label, texts in spelled.items() if key(label) in code}
        tokens = {}
        for (_, label), found in self.tokens.items():
            if label is not None and key(label) in code:
                tokens[str(code[key(label)])] = next(iter(found))
                if len(found) > 1:
                    ways = ", ".join(list(found)[:4])
                    self.note(f"class {shown(label)} is written in several ways ({ways}); --inverse writes the first")
        if tokens:
            origin["json"] = tokens
        return origin


class Recoder:
    """Replaces labels by indices, or indices by labels, and remembers what could not be replaced and where."""

    def __init__(self, labels: LabelMap, *, inverse: bool = False) -> None:
        self.labels = labels
        self.inverse = inverse
        self.dropped = 0
        self.elements = 0
        self.counts: dict[Any, list[Any]] = {}  # (type, old) -> [old, new, count]
        self._unseen: dict[Any, list[Any]] = {}
        self._texts: dict[str, Any] = {}
        # What ignore_index was before; None where it is for the map to say.
        self._ignored = labels.ignore_index if labels.origin_.get("ignore_index") == "value" else None

    def value(self, value: Any) -> Any:
        """The replacement of one typed value: int, label, None, DROP or UNSEEN."""
        if self.inverse:
            index = plain(value)
            if index is None:
                return None  # no index, no label
            if type(index) is not int:
                return UNSEEN
            if index == self._ignored:
                return index
            try:
                return self.labels.inverse_look_up(index)
            except UnseenLabels:
                return UNSEEN
        try:
            code = self.labels.look_up(value)
        except UnseenLabels:
            return UNSEEN
        return DROP if code is None else code

    def meaning(self, text: str) -> Label | None:
        """The label (or index) that an untyped text stands for in this map."""
        number = whole_number(text)
        if self.inverse:
            return number if number is not None else (None if text.strip() in MISSING_TEXTS else text)
        index = self.labels._index()
        if text in index:
            return text
        if text.strip() in MISSING_TEXTS and (text == "" or not any(isinstance(label, str) for label in self.labels.labels)):
            return None
        return number if number is not None else text

    def write_text(self, value: Any) -> str:
        """A replacement as a CSV or YOLO file writes it."""
        if value is None:
            return str(self.labels.origin_.get("missing_text", ""))
        if not self.inverse:
            return str(value)
        spelled = self.labels.origin_.get("text")
        if spelled:
            if not self._texts:
                self._texts = {str(self.labels.labels[int(code)]): text for code, text in spelled.items()}
            return str(self._texts.get(str(value), value))
        return str(value)

    def write_json(self, value: Any, code: Any) -> str:
        """A replacement as a JSON token; ``code`` is the index that it replaces on the way back."""
        if self.inverse and value is not None:
            token = self.labels.origin_.get("json", {}).get(str(code))
            if token is not None:
                return str(token)
        return json.dumps(value, ensure_ascii=False)

    def count(self, old: Any, new: Any, count: int) -> None:
        self.elements += count
        if new is DROP:
            self.dropped += count
        entry = self.counts.setdefault((type(old), old), [old, new, 0])
        entry[2] += count

    def count_result(self, old: Any, new: Any, count: int, place: str) -> None:
        """``count`` and, for a replacement of UNSEEN, ``unseen_at``."""
        self.count(old, None if new is UNSEEN else new, count)
        if new is UNSEEN:
            self.unseen_at(old, place, count)

    def absorb(self, other: Recoder) -> None:
        """Add what another recoder of the same map counted and could not replace."""
        self.elements += other.elements
        self.dropped += other.dropped
        for known, (old, new, count) in other.counts.items():
            self.counts.setdefault(known, [old, new, 0])[2] += count
        for known, (value, count, places) in other._unseen.items():
            entry = self._unseen.setdefault(known, [value, 0, []])
            entry[1] += count
            entry[2] += places[: 3 - len(entry[2])]

    def table(self) -> list[tuple[Any, Any, int]]:
        """(old, new, count), in order of the class indices; dropped elements last, with None as new."""

        def order(entry: list[Any]) -> tuple[Any, ...]:
            old, new, _ = entry
            index = old if self.inverse else new
            return (new is DROP, not isinstance(index, int), index if isinstance(index, int) else 0, str(old))

        return [(old, None if new is DROP else new, count) for old, new, count in sorted(self.counts.values(), key=order)]

    def unseen_at(self, value: Any, place: str, count: int = 1) -> None:
        entry = self._unseen.setdefault((type(value), value), [value, 0, []])
        entry[1] += count
        if len(entry[2]) < 3:
            entry[2].append(place)

    @property
    def failed(self) -> bool:
        return bool(self._unseen)

    def error(self) -> UnseenLabels:
        unseen = [Unseen(value, count, tuple(places)) for value, count, places in self._unseen.values()]
        if self.inverse:
            highest = self.labels.num_classes - 1
            return UnseenLabels(
                unseen, known=range(highest + 1), total=self.elements, hint=f"indices of this map are 0..{highest}"
            )
        error = self.labels.unseen_error(unseen, total=self.elements)
        if error.hint is None and self.labels.declared_names is not None:
            hint = "the classes are those that the file declares; --used-only numbers the ones that occur instead"
            return UnseenLabels(error.unseen, known=error.known, total=error.total, hint=hint)
        return error

    def array(self, leaves: Any, place: Callable[[int], str]) -> tuple[Any, Any]:
        """Replace a flat array (NumPy or pyarrow).

        Returns:
            (replacements, keep): ``keep`` is a boolean ndarray where elements are to be dropped, else None. Elements that
            could not be replaced are remembered, and what stands in their place has no meaning.
        """
        import numpy as np

        flat = flatten(leaves)
        for old, count in flat.counted(first_seen=False):
            new = self.value(old)
            self.count(old, None if new is UNSEEN else new, count)
        if self.inverse:
            return self._inverse_array(flat, place)
        codes = self.labels.encode(flat)
        keep = None
        for sentinel, policy in ((UNKNOWN, self.labels.unknown), (MISSING, self.labels.missing)):
            bad = codes == sentinel
            if not bad.any():
                continue
            if policy == "error":
                self._remember(flat, np.flatnonzero(bad), place)
                codes[bad] = 0
            elif policy == "drop":
                keep = ~bad
            else:
                codes[bad] = self.labels.policy_code(sentinel)
        return codes, keep

    def _remember(self, flat: Any, positions: Any, place: Callable[[int], str]) -> None:
        values = flat.values_at(positions)
        seen: Counter[Any] = Counter()
        for value, position in zip(values, positions.tolist(), strict=True):
            seen[(type(value), value)] += 1
            if seen[(type(value), value)] <= 3:
                self.unseen_at(value, place(position), 0)
        for (kind, value), count in seen.items():
            self._unseen[(kind, value)][1] += count

    def _inverse_array(self, flat: Any, place: Callable[[int], str]) -> tuple[Any, Any]:
        import numpy as np

        numbers, gone = _numbers(flat)
        legal = np.zeros(len(flat), bool)
        if numbers is not None:
            legal = (numbers >= 0) & (numbers < self.labels.num_classes)
            if self.labels.ignore_index is not None:
                legal |= numbers == self.labels.ignore_index
        if gone is not None:
            legal |= gone
        if not legal.all():
            self._remember(flat, np.flatnonzero(~legal), place)
        if numbers is None:
            return np.zeros(len(flat), np.int64), None
        labels = self.labels.inverse_transform(np.where(legal if gone is None else legal & ~gone, numbers, 0))
        if gone is not None:
            labels = labels.astype(object)
            labels[gone] = None
        if self._ignored is not None and bool((ignored := numbers == self._ignored).any()):
            labels[ignored] = self._ignored
            labels = (
                np.array(labels.tolist()) if all(type(label) is int for label in self.labels.labels) and gone is None else labels
            )
        return labels, None


def _numbers(flat: Any) -> tuple[Any, Any]:
    """(integers, where there is none or None); (None, None) for text and fractions."""
    import numpy as np

    if flat.ints is not None and flat.ints.dtype != bool:
        return flat.ints, flat.missing
    if flat.objects is not None and all(value is None for value in flat.objects):
        return np.zeros(len(flat), np.int64), np.ones(len(flat), bool)
    return flat.whole_numbers(), None
