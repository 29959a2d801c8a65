"""YOLO: a ``data.yaml`` with ``nc`` and ``names``, and one text file a picture: class, then coordinates from 0 to 1."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from preassert.data.layouts.pictures import is_picture, pictures_below
from preassert.data.rules import TARGET, Report, Rule
from preassert.data.scan import Options
from preassert.data.source import read_small, reading, reason_of
from preassert.data.tally import MAX_ROWS, MAX_VALUES, Plain, Tally
from preassert.data.wording import bad_input, class_counts, in_lines, note, unreadable, values_in_words
from preassert.errors import InputError, UsageError
from preassert.lazy import need
from preassert.model import Finding, Where

INDEX = "index-out-of-range"
SPLITS = ("train", "val", "test")
_LABEL_LIMIT_BYTES = 256 << 20
_MOST_CLASSES = 100_000
_LINE_END = re.compile(r"\r\n|\n|\r")
# Text files of a data set that hold no labels: lists of pictures and classes, and what people write beside them.
NOT_LABELS = re.compile(
    r"(?i)(?:(?:obj[._-]?)?(?:classes|labels|names)|train|val|valid|test|trainval|readme.*|license.*|requirements|notes?)\.txt"
)


@dataclass(slots=True)
class Split:
    """The label files of one split. ``pictures``: without a label file, a picture is background."""

    name: str
    labels: list[str] = field(default_factory=list)
    pictures: int = 0
    background: int = 0
    without_picture: list[str] = field(default_factory=list)


def is_description(path: str) -> bool:
    """Whether a YAML file describes a YOLO data set."""
    try:
        document = _load(path)
    except InputError:
        return True  # let the check say what is wrong with it
    return "names" in document or "nc" in document


def description_in(folder: str) -> str | None:
    """The ``data.yaml`` (or the only YAML file with ``names``) in a folder."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith((".yaml", ".yml")))
    names.sort(key=lambda name: name not in ("data.yaml", "data.yml", "dataset.yaml"))
    for name in names:
        path = os.path.join(folder, name)
        try:
            if "names" in _load(path):
                return path
        except InputError:
            if name.startswith("data."):
                return path
    return None


def check(path: str, rule: Rule, options: Options) -> Report:
    """Check a data set by its YAML file, or a folder of label files against the rule.

    Classes must be whole numbers below ``nc``, centres and corners must lie in 0..1. One finding for each label file and
    hazard; rows are lines. Pictures without a label file are background and counted, never dropped.

    Raises:
        UsageError: a folder of label files without a number of classes.
        InputError: the YAML file cannot be read.
    """
    report = Report(scanned={"files": 0, "pictures": 0, "background": 0, "boxes": 0})
    description = description_in(path) if os.path.isdir(path) else path
    keypoints = False
    if description is None:
        if not rule.bounded:
            raise UsageError(f"{path}: label files without a data.yaml: give --classes N")
        splits = [Split("", labels=_label_files(path))]
        if not splits[0].labels:
            raise UsageError(f"{path}: no label files in it")
    else:
        document = _load(description)
        keypoints = "kpt_shape" in document
        rule = _classes(report, description, document, rule)
        splits = list(_splits(report, description, document))
        report.scanned["class_names"] = {description: _class_names(document.get("names"))}
    histogram: dict[int | str, int] = {}
    checked: set[str] = set()
    legal = _legal_classes(rule)
    for split in splits:
        report.scanned["pictures"] += split.pictures
        report.scanned["background"] += split.background
        for file in split.labels:
            if file in checked:  # val may be train (coco128)
                continue
            checked.add(file)
            report.scanned["files"] += 1
            _check_labels(report, file, rule, legal, keypoints, histogram)
            if options.progress:
                options.progress(file, report.scanned["files"], None)
        if split.without_picture:
            first = split.without_picture[0]
            message = f"{len(split.without_picture):,} label files without a picture; the loader never sees them"
            report.findings.append(note(first, message, severity="warning"))
        if split.pictures and split.background == split.pictures and split.name != "test":
            message = f"{split.name}: no picture has a label file; are the labels where YOLO looks (/images/ -> /labels/)?"
            report.findings.append(note(description or path, message, severity="warning"))
    counts, remark = class_counts(rule, histogram)
    report.scanned["columns"] = {"class": {"valid": rule.valid, **counts}}
    if remark:
        report.findings.append(note(description or path, remark))
    return report


def _load(path: str) -> dict[Any, Any]:
    yaml = need("yaml", extra="data", purpose="read data.yaml")
    with reading(path):
        try:
            document = yaml.safe_load(read_small(path, 16 << 20).decode("utf-8"))
        except RecursionError as error:
            raise InputError(path, "nested too deeply") from error
    if not isinstance(document, dict):
        raise InputError(path, "no mapping with nc, names, train and val")
    return document


def _classes(report: Report, path: str, document: dict[Any, Any], given: Rule) -> Rule:
    """The rule for class ids: what the caller gave, else ``nc``, else the number of names; their contradictions are findings."""
    nc = document.get("nc")
    names = document.get("names")
    if nc is not None and (isinstance(nc, bool) or not isinstance(nc, int) or nc < 0):
        report.findings.append(bad_input(path, f"nc is {nc!r}, a whole number is expected"))
        nc = None
    if names is not None and not isinstance(names, (list, dict)):
        report.findings.append(bad_input(path, f"names is a {type(names).__name__}, a list or a mapping is expected"))
        names = None
    count = len(names) if names is not None else None
    if nc is None and count is None and not given.bounded:
        raise InputError(path, "neither nc nor names: the number of classes is unknown")
    if nc is not None and count is not None and nc != count:
        report.findings.append(
            _contradiction(path, f"nc is {nc}, but names has {count} entries", [count], f"{nc} names", "make nc and names agree")
        )
    if isinstance(names, dict):
        ids = set(map(str, range(len(names))))  # "0" is 0 to ultralytics too
        wrong = [key for key in names if str(key) not in ids] if nc is None or nc == count else []
        if wrong:
            message = (
                f"names has the ids {', '.join(map(str, wrong[:5]))}, outside 0..{len(names) - 1}: ids start at 0, without gaps"
            )
            report.findings.append(
                _contradiction(
                    path, message, wrong, f"0..{len(names) - 1}", "number the names from 0, and the label files with them"
                )
            )
    if given.bounded:
        return given
    classes = nc if nc is not None else count or 0
    return Rule(lowest=0, highest=classes - 1, ignore=(), bound_by="nc" if nc is not None else "names")


def _class_names(names: Any) -> dict[str, str | None]:
    pairs = names.items() if isinstance(names, dict) else enumerate(names if isinstance(names, list) else ())
    return {str(key): str(label) for key, label in pairs}


def _contradiction(path: str, message: str, values: list[Any], valid: str, fix: str) -> Finding:
    plain = tuple(value if isinstance(value, (int, float, str)) else str(value) for value in values)
    return Finding(
        hazard=TARGET,
        severity="error",
        where=Where(file=path),
        message=message,
        value=plain[0],
        values=plain,
        valid=valid,
        count=len(plain),
        fix=fix,
    )


def _splits(report: Report, path: str, document: dict[Any, Any]) -> Iterator[Split]:
    base = os.path.dirname(path)
    root = _root(report, path, document.get("path"))
    for name in SPLITS:
        entry = document.get(name)
        if entry is None:
            if name != "test":
                report.findings.append(note(path, f"no {name} split", severity="warning"))
            continue
        split = Split(name)
        labels: set[str] = set()
        for item in entry if isinstance(entry, list) else [entry]:
            if not _collect(split, labels, str(item), root, base):
                finding = bad_input(path, f"{name}: {item} is not there")
                report.findings.append(
                    finding if name != "test" else note(path, f"test: {item} is not there", severity="warning")
                )
        split.labels = sorted(labels)
        yield split


def _root(report: Report, path: str, stated: Any) -> str:
    """The folder that splits are relative to: ``path`` of the document, seen from the document's own folder."""
    base = os.path.dirname(path)
    if stated is None:
        return base
    root = os.path.join(base, str(stated))
    if os.path.isdir(root):
        return root
    report.findings.append(note(path, f"path: {stated} is not there; the folder of this file is taken", severity="warning"))
    return base


def _collect(split: Split, labels: set[str], item: str, root: str, base: str) -> bool:
    """Add pictures and label files that one entry of a split names; False when it is not there."""
    candidates = [os.path.join(root, item), os.path.join(base, item)]
    if item.startswith("../"):  # what Roboflow exports; ultralytics looks there too
        candidates.append(os.path.join(root, item[3:]))
    for candidate in map(os.path.normpath, candidates):
        labels_folder = label_path(os.path.join(candidate, "x.jpg")).rpartition(os.sep)[0]
        if os.path.isfile(candidate) and not is_picture(candidate):
            _add(split, labels, _listed(candidate, root))
            return True
        if os.path.isdir(candidate) or os.path.isdir(labels_folder):
            pictures = list(pictures_below(candidate)) if os.path.isdir(candidate) else []
            expected = _add(split, labels, pictures)
            if os.path.isdir(labels_folder) and os.path.normpath(labels_folder) != candidate:
                stray = [file for file in _label_files(labels_folder) if file not in expected]
                split.without_picture.extend(stray)
                labels.update(stray)
            return True
    return False


def _add(split: Split, labels: set[str], pictures: list[str]) -> set[str]:
    """Count the pictures; returns where their label files are expected."""
    expected: set[str] = set()
    for picture in pictures:
        split.pictures += 1
        label = os.path.normpath(label_path(picture))
        expected.add(label)
        if os.path.lexists(label):
            labels.add(label)
        else:
            split.background += 1
    return expected


def label_path(picture: str) -> str:
    """Where YOLO looks for the labels of a picture: the last ``/images/`` becomes ``/labels/``, the suffix ``.txt``."""
    head, found, tail = picture.rpartition(f"{os.sep}images{os.sep}")
    if found:
        picture = f"{head}{os.sep}labels{os.sep}{tail}"
    elif picture.startswith(f"images{os.sep}"):
        picture = f"labels{os.sep}{picture[len('images') + 1 :]}"
    return os.path.splitext(picture)[0] + ".txt"


def _listed(path: str, root: str) -> list[str]:
    """The pictures that a text file names, one a line; ``./`` is seen from the text file."""
    with reading(path):
        lines = read_small(path).decode("utf-8").split("\n")
    base = os.path.dirname(path)
    out = []
    for line in map(str.strip, lines):
        if line:
            near, far = os.path.join(base, line), os.path.join(root, line)
            out.append(near if line.startswith("./") or not os.path.exists(far) else far)
    return out


def _label_files(folder: str) -> list[str]:
    """Text files below a folder, without the lists that annotation tools leave there."""
    out: list[str] = []
    for parent, _, files in os.walk(folder):
        out.extend(os.path.normpath(os.path.join(parent, name)) for name in files if _is_label_file(name))
    return sorted(out)


def _is_label_file(name: str) -> bool:
    return name.endswith(".txt") and not NOT_LABELS.fullmatch(name)


def looks_like_labels(folder: str, listed: Sequence[str] | None = None) -> bool:
    """Whether the text files of a folder are YOLO labels: the first lines are a number and four or more numbers.

    Empty ones may be: where there is nothing else, they are if no picture is there that could be something else.

    Args:
        listed: all files below the folder, where they are known.
    """
    known = _label_files(folder) if listed is None else [file for file in listed if _is_label_file(os.path.basename(file))]
    files = sorted(known)
    labels = 0
    for file in files[:20]:
        try:
            with open(file, encoding="utf-8-sig") as stream:
                lines = [stream.readline(4096) for _ in range(20)]
        except (OSError, UnicodeDecodeError):
            return False
        fields = next((fields for fields in map(str.split, lines) if fields and not _is_comment(fields)), [])
        if fields and (len(fields) < 5 or any(_float(text) is None for text in fields[1:5])):
            return False
        labels += bool(fields)
    return labels > 0 or (bool(files) and not any(True for _ in pictures_below(folder)))


def _legal_classes(rule: Rule) -> dict[str, int]:
    """How classes in the range are mostly written; these need not be judged one by one."""
    lowest, highest = rule.limits()
    if rule.names is not None or lowest is None or highest is None:
        return {}
    return {str(number): number for number in range(max(lowest, 0), min(highest, _MOST_CLASSES) + 1)}


def _check_labels(
    report: Report, file: str, rule: Rule, legal: dict[str, int], keypoints: bool, histogram: dict[int | str, int]
) -> None:
    try:
        with reading(file):
            text = read_small(file, _LABEL_LIMIT_BYTES).decode("utf-8-sig")
    except InputError as error:
        report.findings.append(unreadable(file, error.reason))
        return
    except UnicodeDecodeError as error:
        report.findings.append(unreadable(file, reason_of(error)))
        return
    classes = Tally(rule, None, histogram=False)
    outside: dict[Plain, int] = {}
    outside_lines: list[int] = []
    odd_sizes: list[int] = []
    broken: list[tuple[int, str]] = []
    comments: list[int] = []
    for number, line in enumerate(_LINE_END.split(text), start=1):
        fields = line.split()
        if not fields:
            continue
        if _is_comment(fields):
            comments.append(number)
            continue
        report.scanned["boxes"] += 1
        known = legal.get(fields[0])
        if known is None:
            classes.feed([fields[0]], number, text=True)
            value = _float(fields[0])
            known = int(value) if value is not None and value.is_integer() else None
        if known is not None:
            histogram[known] = histogram.get(known, 0) + 1
        numbers = [_float(text) for text in fields[1:]]
        if len(numbers) < 4:
            broken.append((number, f"{len(fields)} fields; a class and four or more coordinates are expected"))
            continue
        if any(coordinate is None for coordinate in numbers):
            broken.append((number, "a coordinate is no number"))
            continue
        coordinates = [coordinate for coordinate in numbers if coordinate is not None]
        polygon = len(coordinates) >= 6 and len(coordinates) % 2 == 0 and not keypoints
        points = coordinates if polygon else coordinates[:2]
        wrong = [point for point in points if not 0 <= point <= 1]
        if wrong:
            outside_lines.append(number)
            for point in wrong:
                plain = point if point == point and abs(point) != float("inf") else str(point)
                outside[plain] = outside.get(plain, 0) + 1
        elif not polygon and not all(0 <= extent <= 1 for extent in coordinates[2:4]):
            odd_sizes.append(number)
    report.findings.extend(_class_findings(file, classes))
    if outside_lines:
        report.findings.append(_outside(file, outside, outside_lines))
    for line_number, reason in broken[:MAX_ROWS]:
        report.findings.append(bad_input(file, f"line {line_number}: {reason}", line=line_number))
    if comments:
        noun = "line is a comment" if len(comments) == 1 else "lines are comments"
        message = f"line {comments[0]}: {len(comments):,} {noun}; a loader that expects numbers drops the whole picture"
        report.findings.append(note(file, message, severity="warning"))
    if odd_sizes:
        message = (
            f"line {odd_sizes[0]}: width or height outside 0..1 ({len(odd_sizes)} boxes); the loader drops the whole picture"
        )
        report.findings.append(note(file, message, severity="warning"))


def _class_findings(file: str, classes: Tally) -> Iterator[Finding]:
    if not classes.count:
        return
    rule = classes.rule
    highest = rule.limits()[1]
    by = f" (set by {rule.bound_by})" if rule.bound_by else ""
    larger = isinstance(classes.maximum, int) and highest is not None and classes.maximum > highest
    grow = f", or set nc: {int(classes.maximum or 0) + 1} and name the classes" if larger else ""
    yield in_lines(
        file,
        classes.first_rows,
        f"class {values_in_words(classes.values, classes.more_values)} outside {rule.valid}{by}",
        tuple(classes.values),
        hazard=rule.hazard,
        valid=rule.valid,
        count=classes.count,
        fix=f"correct the class{grow}",
    )


def _outside(file: str, outside: dict[Plain, int], lines: list[int]) -> Finding:
    values = tuple(outside)[:MAX_VALUES]
    pixels = all(isinstance(value, (int, float)) and value > 1.5 for value in values)
    return in_lines(
        file,
        lines[:MAX_ROWS],
        f"coordinate {values_in_words(outside, False)} outside 0..1: its grid cell lies outside the grid",
        values,
        hazard=INDEX,
        valid="0..1",
        count=len(lines),
        fix="divide by width and height of the picture" if pixels else "clip the box to the picture",
        likely="coordinates in pixels instead of fractions" if pixels else None,
    )


def _is_comment(fields: list[str]) -> bool:
    """Whether a line begins with ``#``: ``preassert remap`` copies it."""
    return fields[0].startswith("#")


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
