"""Pascal VOC: one XML file a picture, objects labelled by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

from preassert.data.layouts.pictures import SPLITS, subfolders
from preassert.data.rules import Report, Rule
from preassert.data.scan import Options
from preassert.data.source import read_small, reading
from preassert.data.tally import MAX_ROWS
from preassert.data.wording import bad_input, class_counts, in_lines, note, unreadable
from preassert.errors import InputError, UsageError
from preassert.model import Finding, Where

_LIMIT_BYTES = 64 << 20
_ROOT = "annotation"
_ENCODING = re.compile(rb"""\s*<\?xml[^>]{0,100}?\sencoding=["']([A-Za-z0-9._-]{1,40})["']""")
_KNOWN_ENCODINGS = ("utf-8", "utf-16", "us-ascii", "iso-8859-1")  # to expat


@dataclass(slots=True)
class Annotation:
    """Names of the objects of one picture, and the lines on which they stand. ``objects``: how many there are."""

    names: list[tuple[str, int]] = field(default_factory=list)
    objects: int = 0


def annotation_files(path: str) -> list[str]:
    """The XML files of a VOC root (``Annotations`` below it, or below ``VOC2007`` ...), of a folder of them (or of one for each
    split), or the file."""
    if not os.path.isdir(path):
        return [path]
    below = [os.path.join(path, name) for name in subfolders(path)]
    splits = [folder for folder in below if os.path.basename(folder).lower() in SPLITS]
    folders = [os.path.join(folder, "Annotations") for folder in (path, *below)]
    return [
        os.path.join(folder, name)
        for folder in (*folders[:1], path, *folders[1:], *splits)
        if os.path.isdir(folder)
        for name in sorted(os.listdir(folder))
        if name.lower().endswith(".xml")
    ]


def read_annotation(path: str) -> Annotation:
    """The objects of one file.

    Raises:
        InputError: not well-formed, not an annotation, or it declares entities (which can expand without end).
    """
    out = Annotation()
    stack: list[str] = []
    text: list[str] = []
    line = 0
    root = ""

    def start(tag: str, _: dict[str, str]) -> None:
        nonlocal line, root
        root = root or tag
        stack.append(tag)
        text.clear()
        if tag == "object" and len(stack) == 2:
            out.objects += 1
        line = parser.CurrentLineNumber

    def end(_: str) -> None:
        # ``part`` and ``owner`` have names as well: only the object's own counts.
        if stack[1:] == ["object", "name"]:
            out.names.append(("".join(text), line))
        stack.pop()
        text.clear()

    def refuse(*_: object) -> None:
        raise InputError(path, "declares entities; not read")

    data, encoding = _decoded(path, read_small(path, _LIMIT_BYTES))
    parser = expat.ParserCreate(encoding)
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InputError(path, f"line {error.lineno}: {expat.errors.messages[error.code]}") from error
    if root != _ROOT and not out.objects:
        raise InputError(path, f"not a Pascal VOC annotation: no objects, and its root is <{root}>")
    return out


def _decoded(path: str, data: bytes) -> tuple[bytes, str | None]:
    """The document, and its encoding if that is not the one it declares: expat knows no GB2312 or Shift JIS, and Python does."""
    declared = _ENCODING.match(data)
    if declared is None or declared[1].decode("ascii").lower() in _KNOWN_ENCODINGS:
        return data, None
    name = declared[1].decode("ascii")
    try:
        return data.decode(name).encode("utf-8"), "utf-8"
    except LookupError:
        raise InputError(path, f"its encoding {name} is unknown") from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not {name}: byte 0x{data[error.start]:02x} at position {error.start}") from None


def looks_like_annotations(files: Sequence[str]) -> bool:
    """Whether the first of the XML files of a folder are annotations."""
    for file in files[:5]:
        try:
            with open(file, "rb") as stream:
                if f"<{_ROOT}".encode() in stream.read(4096):
                    return True
        except OSError:
            continue
    return False


def check(path: str, rule: Rule, options: Options) -> Report:
    """Every object's name must be in the class list. One finding for each file; values are names, rows are lines.

    Raises:
        UsageError: there are no annotations.
    """
    files = annotation_files(path)
    if not files:
        raise UsageError(f"{path}: no XML annotations in it")
    report = Report(scanned={"files": len(files), "objects": 0})
    histogram: dict[int | str, int] = {}
    for done, file in enumerate(files, start=1):
        try:
            annotation = read_annotation(file)
        except InputError as error:
            report.findings.append(unreadable(error.file, error.reason))
            continue
        report.scanned["objects"] += annotation.objects
        for name, _ in annotation.names:
            histogram[name] = histogram.get(name, 0) + 1
        report.findings.extend(_findings(file, annotation, rule))
        if options.progress:
            options.progress(file, done, len(files))
    report.findings.extend(_listed_without_annotation(path))
    counts, remark = class_counts(rule, histogram)
    report.scanned["columns"] = {"name": counts}
    if remark:
        report.findings.append(note(path, remark))
    highest = rule.limits()[1]
    if rule.names is None and highest is not None and len(histogram) > highest + 1:
        report.findings.append(
            Finding(
                hazard=rule.hazard,
                severity="error",
                where=Where(file=path),
                message=f"{len(histogram)} names of objects, {highest + 1} classes: "
                + ", ".join(sorted(map(str, histogram))[:20]),
                valid=f"{highest + 1} names",
                count=len(histogram),
                fix="give the class list (--classes FILE) to see which names are not in it",
            )
        )
    return report


def _findings(file: str, annotation: Annotation, rule: Rule) -> Iterator[Finding]:
    nameless = annotation.objects - len(annotation.names)
    if nameless:
        yield bad_input(file, f"{nameless} of {annotation.objects} objects have no <name>")
    wrong = [(name, line) for name, line in annotation.names if not name or (rule.names is not None and name not in rule.names)]
    if not wrong:
        return
    values = tuple(dict.fromkeys(name or None for name, _ in wrong))
    shown = ", ".join("an empty name" if value is None else repr(value) for value in values[:6])
    yield in_lines(
        file,
        sorted({line for _, line in wrong})[:MAX_ROWS],
        f"{shown}: not in the class list",
        values,
        hazard=rule.hazard,
        valid=rule.valid,
        count=len(wrong),
        fix="correct the name, or add it to the class list and widen the model's head",
    )


def _listed_without_annotation(path: str) -> Iterator[Finding]:
    """Pictures that a list in ``ImageSets/Main`` names and that have no annotation: training on it would stop there."""
    lists = os.path.join(path, "ImageSets", "Main")
    folder = os.path.join(path, "Annotations")
    if not os.path.isdir(lists) or not os.path.isdir(folder):
        return
    for name in sorted(os.listdir(lists)):
        file = os.path.join(lists, name)
        if not name.endswith(".txt"):
            continue
        with reading(file):
            ids = [line.split()[0] for line in read_small(file).decode("utf-8").splitlines() if line.strip()]
        lost = [entry for entry in ids if not os.path.exists(os.path.join(folder, f"{entry}.xml"))]
        if lost:
            yield bad_input(
                file, f"{len(lost):,} of {len(ids):,} pictures in this list have no annotation: {', '.join(lost[:5])}"
            )
