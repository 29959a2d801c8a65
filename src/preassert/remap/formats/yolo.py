"""YOLO folders: the first token of each line of a label file, and ``names`` and ``nc`` of ``data.yaml``; all else is copied."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preassert.data.layouts.yolo import NOT_LABELS
from preassert.data.source import reading
from preassert.errors import InputError
from preassert.labels.sources import numbered_names
from preassert.lazy import need
from preassert.remap.atomic import copy_or_link
from preassert.remap.recode import DROP, UNSEEN, Options, Recoder, Tally

# Class id: the first token of a line that is neither empty nor a comment.
_CLASS = re.compile(rb"(?m)(?:^|(?<=\r))(?:\xef\xbb\xbf)?[ \t]*([^\s#]\S*)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def _label_files(root: Path) -> list[Path]:
    """Those in folders named ``labels``; where there is none, all text files but lists of images and classes."""
    found = sorted(file for file in root.rglob("*.txt") if file.is_file())
    inside = [file for file in found if "labels" in file.relative_to(root.parent).parts[:-1]]
    return [file for file in inside or found if not NOT_LABELS.fullmatch(file.name)]


@dataclass(slots=True)
class _Yaml:
    """``data.yaml`` with the spans of what may change: from the end of a key to the end of its value."""

    path: Path
    mark: str  # byte order mark
    text: str
    content: Any
    spans: dict[str, tuple[int, int]]


def _read_yaml(root: Path) -> _Yaml | None:
    """The YAML file that describes the data set: the one with ``names`` or ``nc``."""
    yaml = need("yaml", extra="data", purpose="rewrite YOLO data sets")
    for path in sorted([*root.glob("*.yaml"), *root.glob("*.yml")]):
        with reading(str(path)):
            # newline="" keeps CRLF, so that positions are those of the file.
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
            mark = "\ufeff" if text.startswith("\ufeff") else ""
            text = text[len(mark) :]
            content = yaml.safe_load(text)
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(content, dict) and ("names" in content or "nc" in content):
            spans = {key.value: (key.end_mark.index, _end(value)) for key, value in node.value}
            return _Yaml(path, mark, text, content, spans)
    return None


def _end(node: Any) -> int:
    """Where a value ends. The mark of a block collection lies behind the comments and empty lines that follow it."""
    if isinstance(node.value, list) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def survey(path: Path, options: Options, tally: Tally) -> None:
    described = _read_yaml(path)
    if described is not None and described.content.get("names") is not None:
        try:
            ids, names = numbered_names(described.content["names"], "names")
        except ValueError as error:
            raise InputError(str(described.path), str(error)) from None
        tally.declare(ids, names, str(described.path))
    files = _label_files(path)
    if not files:
        raise InputError(str(path), "no label files (*.txt) in it")
    for file in files:
        with reading(str(file)):
            data = file.read_bytes()
        tally.add_text(Counter(token.decode("utf-8", "replace") for token in _CLASS.findall(data)))
        options.advance(len(data))
    if described is not None:
        # What --inverse puts back, whatever form the names had.
        tally.origin["yolo"] = {
            name: described.text[slice(*described.spans[name])] for name in ("names", "nc") if name in described.spans
        }
        _note_paths(described, tally)


def _note_paths(described: _Yaml, tally: Tally) -> None:
    for name in ("path", "train", "val", "test"):
        value = described.content.get(name)
        if isinstance(value, str) and (value.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", value)):
            tally.note(f"{described.path}: {name}: {value} still points where it did, not to the output")


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    changed = set(_label_files(path))
    described = _read_yaml(path)
    for file in sorted(changed):
        with reading(str(file)):
            data = file.read_bytes()
        new = target / file.relative_to(path)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(_replace(data, str(file), recoder))
        options.advance(len(data))
    if described is not None:
        (target / described.path.relative_to(path)).write_bytes(_new_yaml(described, recoder).encode("utf-8"))
        changed.add(described.path)
    for file in _others(path, changed):
        copy_or_link(file, target / file.relative_to(path), link=options.link)


def _others(root: Path, changed: set[Path]) -> Iterator[Path]:
    """Files to copy. A ``.cache`` beside the labels holds the old ids, and would be believed."""
    for file in sorted(root.rglob("*")):
        if file.is_file() and file not in changed and file.suffix != ".cache":
            yield file


def _replace(data: bytes, file: str, recoder: Recoder) -> bytes:
    pieces: list[bytes] = []
    done = 0
    for found in _CLASS.finditer(data):
        old = recoder.meaning(found.group(1).decode("utf-8", "replace"))
        new = recoder.value(old)
        recoder.count(old, None if new is UNSEEN else new, 1)
        if new is UNSEEN:
            recoder.unseen_at(old, f"{file} line {len(_LINE_END.findall(data, 0, found.start())) + 1:,}")
        elif new is DROP:
            pieces.append(data[done : found.start()])
            line_end = _LINE_END.search(data, found.end())
            done = line_end.end() if line_end else len(data)
        else:
            pieces += (data[done : found.start(1)], recoder.write_text(new).encode())
            done = found.end(1)
    pieces.append(data[done:])
    return b"".join(pieces)


def _new_yaml(described: _Yaml, recoder: Recoder) -> str:
    """``data.yaml`` with the names in their new order; a list that is right already stays as it is written."""
    labels = recoder.labels
    new: dict[str, str] = {}
    if recoder.inverse:
        new = {name: text for name, text in labels.origin_.get("yolo", {}).items() if name in described.spans}
    else:
        if described.content.get("names") not in (None, labels.names):
            new["names"] = f": {json.dumps(labels.names, ensure_ascii=False)}"
        if described.content.get("nc") not in (None, labels.num_classes):
            new["nc"] = f": {labels.num_classes}"
    text = described.text
    for name in sorted(new, key=lambda name: -described.spans[name][0]):
        start, end = described.spans[name]
        text = text[:start] + new[name] + text[end:]
    return described.mark + text
