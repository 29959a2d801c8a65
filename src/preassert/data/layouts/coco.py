"""COCO annotations: only ids are decoded, whatever else the document holds is skipped over."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from preassert.data.fixes import remap_command
from preassert.data.rules import Report, Rule
from preassert.data.scan import Options
from preassert.data.source import COMPRESSIONS, reading, source
from preassert.data.tally import MAX_VALUES, Plain
from preassert.data.wording import bad_input, note, sorted_pairs, values_in_words
from preassert.data.wording import name as in_words
from preassert.errors import InputError
from preassert.lazy import need
from preassert.model import Finding, Where

MAX_IDS = 1000  # annotations named in a finding
# Keys that stand near the start of every COCO document.
_KEYS = (b'"annotations"', b'"categories"', b'"images"')


def looks_like_coco(path: str) -> bool:
    """Whether a JSON file holds COCO annotations, judged by its first and last bytes."""
    try:
        with source(path).open() as stream:
            head = stream.read(1 << 20)
        if not head.lstrip().removeprefix(b"\xef\xbb\xbf").startswith(b"{"):
            return False
        found = [key for key in _KEYS if key in head]
        if len(found) >= 2:
            return True
        if os.path.splitext(path)[1].lower() not in COMPRESSIONS:
            with open(path, "rb") as raw:
                raw.seek(max(0, os.path.getsize(path) - (1 << 20)))
                tail = raw.read()
            found = [key for key in _KEYS if key in head or key in tail]
        return len(found) >= 2
    except (OSError, EOFError, ValueError, InputError):
        return False


def check(path: str, rule: Rule, options: Options) -> Report:
    """Every annotation must name a declared category and picture; with a range, the ids as they stand must lie in it.

    One finding for each fault; ``where.ids`` are annotation ids.

    Raises:
        InputError: the file cannot be read as COCO annotations.
    """
    document = load(path)
    declared = [category for category in document.categories or () if _hashable(category.id)]
    categories = {category.id: category for category in declared}
    report = Report(scanned={"files": 1, "rows": len(document.annotations or ()), "categories": len(categories)})
    if document.categories is None and all(category is None for _, category in _labelled(document.annotations or ())):
        report.findings.append(note(path, "no categories: captions or the like; nothing to check"))
        return report
    judge = _Judge(rule, categories, document.categories is not None)
    histogram: dict[Any, int] = {}
    for identity, category in _labelled(document.annotations or ()):
        if _hashable(category):
            histogram[category] = histogram.get(category, 0) + 1
        judge(identity, category)
    report.findings.extend(judge.findings(path))
    if document.images is not None:
        known = {image.id for image in document.images if _hashable(image.id)}
        lost = [entry for entry in document.annotations or () if not _hashable(entry.image_id) or entry.image_id not in known]
        if lost:
            report.findings.append(_lost_images(path, lost))
    if len(declared) < len(document.categories or ()):
        report.findings.append(bad_input(path, "a category whose id is neither a number nor text"))
    report.findings.extend(_notes(path, declared, categories, histogram))
    plain = {key: count for key, count in histogram.items() if isinstance(key, (int, str))}
    empty = [category.id for category in categories.values() if category.id not in histogram]
    report.scanned["columns"] = {"category_id": {"valid": rule.valid, "histogram": sorted_pairs(plain), "empty_classes": empty}}
    report.scanned["class_names"] = {path: {str(key): category.name for key, category in categories.items()}}
    if options.progress:
        options.progress(path, report.scanned["rows"], report.scanned["rows"])
    return report


class _Judge:
    """Collects annotations whose category is not declared, or outside the range."""

    def __init__(self, rule: Rule, categories: dict[Any, Any], declared: bool) -> None:
        self.rule = rule
        self.categories = categories
        self.declared = declared
        self.values: dict[Plain, int] = {}
        self.ids: list[int | str] = []
        self.count = 0
        self.undeclared = 0
        self._known: dict[Any, tuple[bool, Plain]] = {}

    def __call__(self, identity: Any, category: Any) -> None:
        verdict = self._known.get(category) if _hashable(category) else None
        if verdict is None:
            verdict = self._judge(category)
            if _hashable(category):
                self._known[category] = verdict
        legal, plain = verdict
        if legal:
            return
        self.count += 1
        self.undeclared += self.declared and not (_hashable(category) and category in self.categories)
        if plain in self.values or len(self.values) < MAX_VALUES:
            self.values[plain] = self.values.get(plain, 0) + 1
        if len(self.ids) < MAX_IDS and isinstance(identity, (int, str)):
            self.ids.append(identity)

    def _judge(self, category: Any) -> tuple[bool, Plain]:
        if not isinstance(category, (int, float, str)) or category != category:
            return False, None
        if self.declared and category not in self.categories:
            return False, category
        if not self.rule.bounded:
            return True, category
        if self.rule.names is not None:
            label = self.categories[category].name if category in self.categories else None
            label = label if isinstance(label, str) else None
            return label in self.rule.names, label if label is not None else category
        whole = isinstance(category, (int, float)) and float(category).is_integer()
        return whole and (self.rule.covers(int(category), int(category)) or category in self.rule.ignore), category

    def findings(self, path: str) -> Iterator[Finding]:
        if not self.count:
            return
        values = tuple(self.values)
        noun = "annotation names a category" if self.count == 1 else "annotations name categories"
        faults = []
        if self.undeclared:
            faults.append("not declared in the file")
        if self.count > self.undeclared:
            faults.append(f"outside {self.rule.valid}")
        lowest, highest = self.rule.limits()
        sparse = lowest == 0 and highest is not None and not self.undeclared and 0 < len(self.categories) <= highest + 1
        likely = f"; likely: {len(self.categories)} categories with sparse ids, used as they stand" if sparse else ""
        fix = remap_command(path) if sparse and path.lower().endswith(".json") else None
        yield Finding(
            hazard=self.rule.hazard,
            severity="error",
            where=Where(file=path, column="category_id", ids=tuple(self.ids)),
            message=f"{self.count:,} {noun} {' or '.join(faults)}: {values_in_words(self.values, False)}; "
            f"first annotation id {in_words(self.ids[0]) if self.ids else 'unknown'}{likely}",
            value=values[0],
            values=values,
            valid=f"the {len(self.categories)} declared categories" if self.undeclared else self.rule.valid,
            count=self.count,
            fix=fix or "correct category_id, or declare the category",
        )


def _labelled(annotations: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """(annotation id, category id); panoptic annotations have one for each segment."""
    for entry in annotations:
        if entry.segments_info is not None:
            for segment in entry.segments_info:
                yield segment.id, segment.category_id
        else:
            yield entry.id, entry.category_id


def _lost_images(path: str, lost: list[Any]) -> Finding:
    values = tuple(dict.fromkeys(entry.image_id for entry in lost if _hashable(entry.image_id)))
    return Finding(
        hazard=None,
        severity="error",
        where=Where(
            file=path, column="image_id", ids=tuple(entry.id for entry in lost[:MAX_IDS] if isinstance(entry.id, (int, str)))
        ),
        message=f"{len(lost):,} annotations belong to pictures that the file does not list: image_id "
        + ", ".join(map(str, values[:6])),
        value=values[0] if values else None,
        values=values[:MAX_VALUES],
        valid="an id in images",
        count=len(lost),
        fix="add the pictures, or drop their annotations",
    )


def _notes(path: str, declared: list[Any], categories: dict[Any, Any], histogram: dict[Any, int]) -> Iterator[Finding]:
    if len(declared) > len(categories):
        names: dict[Any, str | None] = {}
        twice = [entry.id for entry in declared if names.setdefault(entry.id, entry.name) != entry.name]
        message = (
            f"category ids declared twice with different names: {', '.join(map(str, twice[:6]))}"
            if twice
            else "categories declared twice"
        )
        yield note(path, message, severity="warning")
    ids = sorted(key for key in categories if isinstance(key, int))
    if ids and ids[-1] - ids[0] + 1 > len(ids):
        yield note(
            path, f"{len(ids)} category ids run {ids[0]}..{ids[-1]} with gaps: a head needs {ids[-1] + 1} outputs, or a map"
        )
    empty = [entry.id for entry in categories.values() if entry.id not in histogram]
    if empty:
        yield note(path, f"{len(empty):,} categories without an annotation: {', '.join(map(str, empty[:10]))}")


def _hashable(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, type(None)))


def load(path: str) -> Any:
    """The document as records that hold ids only.

    Raises:
        InputError: not JSON, or not laid out as COCO.
    """
    msgspec = need("msgspec", extra="data", purpose="read COCO files")
    document_type = _types(msgspec)
    opened = source(path)
    with reading(path):
        if opened.filesystem is not None or opened.compression is not None:
            with opened.open() as stream:
                return _decode(msgspec, stream.read(), document_type)
        if not opened.size_bytes:
            raise InputError(path, "the file is empty")
        # Mapped, not read: the pages belong to the file and need no memory of their own.
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:3] == b"\xef\xbb\xbf":
                return _decode(msgspec, data[3:], document_type)
            with memoryview(data) as view:
                return _decode(msgspec, view, document_type)


def _decode(msgspec: Any, data: Any, document_type: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=document_type)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            document = json.loads(bytes(data).decode("utf-8"))  # NaN, as Python writes it
        except ValueError:
            raise error from None
        return msgspec.convert(document, document_type)


def _types(msgspec: Any) -> Any:
    """The record types of a document; built here because msgspec is loaded late."""

    def struct(type_name: str, **fields: Any) -> Any:
        return msgspec.defstruct(type_name, [(key, kind, None) for key, kind in fields.items()], gc=False)

    def several(kind: Any) -> Any:
        return Optional[list[kind]]  # noqa: UP045 - a value, not an annotation

    segment = struct("Segment", id=Any, category_id=Any)
    annotation = struct("Annotation", id=Any, image_id=Any, category_id=Any, segments_info=several(segment))
    image = struct("Image", id=Any)
    category = struct("Category", id=Any, name=Any)
    return struct("Document", images=several(image), annotations=several(annotation), categories=several(category))
