"""COCO JSON: category ids in annotations and categories (and in panoptic segments and LVIS images); all else is copied.

The file is never loaded whole: one element of a top-level array at a time.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from preassert.errors import InputError
from preassert.labels.sources import numbered_categories
from preassert.remap.formats.jsonl import Shortcut, Tokens
from preassert.remap.jsontext import Span, members, scalars, skip_space, value_at
from preassert.remap.recode import DROP, UNSEEN, Options, Recoder, Tally
from preassert.remap.streams import blocks, sink

# top-level array -> paths of category ids inside an element
ID_PATHS: dict[str | None, tuple[tuple[str, ...], ...]] = {
    "annotations": (("category_id",), ("segments_info", "category_id")),
    "images": (("neg_category_ids",), ("not_exhaustive_category_ids",)),  # LVIS
    "categories": (("id",),),
    None: (("category_id",),),  # a file of results is one array
}

# (name of the array, element as text, how to get its value) -> new text, DROP, or None for "as it was"
Change = Callable[["str | None", str, Callable[[], Any]], Any]

# An object without objects inside, with strings taken whole: most annotations. Its numbers are not turned into objects.
_FLAT = re.compile(r'\{[^{}"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^{}"]*)*\}', re.DOTALL)


class _Text:
    """The file as text, a window at a time: ``text[position:]`` is what comes next."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self._blocks = blocks(path, (None, b""), options.advance)
        # Bytes that are not UTF-8 become surrogates, and are written back as they were.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text = ""
        self.position = 0
        self.ended = False

    def more(self, at_least: int = 1) -> None:
        pieces = [self.text[self.position :]]
        got = 0
        while got < at_least and not self.ended:
            block = next(self._blocks, None)
            self.ended = block is None
            pieces.append(self._decoder.decode(block or b"", final=self.ended))
            got += len(pieces[-1])
        self.text, self.position = "".join(pieces), 0

    def peek(self) -> str:
        """The next character that is not white space; "" at the end. The white space before it is taken."""
        while True:
            after = skip_space(self.text, self.position)
            if after < len(self.text) or self.ended:
                return self.text[after : after + 1]
            self.more()

    def space(self) -> str:
        """Take white space."""
        self.peek()
        after = skip_space(self.text, self.position)
        taken = self.text[self.position : after]
        self.position = after
        return taken

    def mark(self, expected: str) -> str:
        """Take white space and one of the marks."""
        space = self.space()
        found = self.text[self.position : self.position + 1]
        if not found or found not in expected:
            what = f"{found!r}" if found else "the end of the file"
            raise InputError(str(self.path), f"not JSON: {what} where one of {' '.join(expected)} belongs")
        self.position += 1
        return space + found

    def element(self) -> tuple[str, Callable[[], Any]]:
        """Take one element of an array: (its text, how to get its value)."""
        found = _FLAT.match(self.text, self.position)
        if found is not None and found.end() < len(self.text):
            self.position = found.end()
            text = found.group()
            return text, lambda: self._parse(text)
        text, value = self.value()
        return text, lambda: value

    def _parse(self, text: str) -> Any:
        try:
            return value_at(text, 0)[0]
        except ValueError as error:
            raise InputError(str(self.path), f"not JSON: {error} of {text[:60]!r}") from None

    def value(self) -> tuple[str, Any]:
        """Take one value: (its text, the value)."""
        while True:
            try:
                value, end = value_at(self.text, self.position)
            except ValueError as error:
                if self.ended:
                    raise InputError(str(self.path), f"not JSON, or cut off: {error}") from None
            else:
                if end < len(self.text) or self.ended:
                    text = self.text[self.position : end]
                    self.position = end
                    return text, value
            self.more(at_least=len(self.text) - self.position)  # doubling: a long value is not read again and again


def walk(path: Path, options: Options, change: Change) -> Iterator[str]:
    """The file in pieces, with the elements of its top-level arrays changed."""
    source = _Text(path, options)
    source.more()
    if source.text.startswith("\ufeff"):
        source.position = 1
        yield "\ufeff"
    if source.peek() == "[":
        yield from _array(source, None, change)
    else:
        yield source.mark("{[")
        yield from _members(source, change)
    yield source.space()
    if source.peek():
        raise InputError(str(path), "not JSON: more text after the end")


def _members(source: _Text, change: Change) -> Iterator[str]:
    if source.peek() == "}":
        yield source.mark("}")
        return
    while True:
        yield source.space()
        text, name = source.value()
        if not isinstance(name, str):
            raise InputError(str(source.path), "not JSON: a key is not text")
        yield text + source.mark(":") + source.space()
        if source.peek() == "[":
            yield from _array(source, name, change)
        else:
            yield source.value()[0]
        end = source.mark(",}")
        yield end
        if end.endswith("}"):
            return


def _array(source: _Text, name: str | None, change: Change) -> Iterator[str]:
    yield source.mark("[")
    if source.peek() == "]":
        yield source.mark("]")
        return
    before, kept = source.space(), False
    while True:
        text, value = source.element()
        new = change(name, text, value)
        if new is not DROP:
            yield before + (text if new is None else new)
            kept = True
        end = source.mark(",]")
        if end.endswith("]"):
            yield end
            return
        separator = end + source.space()
        before = separator if kept else before  # without a kept element there is nothing to separate from


def _spans(name: str | None, text: str, parse: Callable[[], Any], shortcut: Shortcut | None = None) -> list[Span]:
    """Spans of the category ids in one element."""
    if shortcut is not None and name in ("annotations", None) and "segments_info" not in text:
        short = shortcut.span(text, 0)
        if short is not None:
            return [short]
    if not any(path[0] in text or "\\" in text for path in ID_PATHS.get(name, ())):
        return []
    value = parse()
    if not isinstance(value, dict):
        return []
    found: list[Span] = []
    for path in ID_PATHS.get(name, ()):
        if path[0] in value:
            last = [(start, end, inner) for key, start, end, inner in members(text, 0) if key == path[0]][-1]
            found += scalars(text, *last, path[1:])
    return sorted(found)


def _place(path: Path, name: str | None, value: Any, number: int) -> str:
    kind = {"annotations": "annotation", "images": "image", "categories": "category", None: "result"}[name]
    return (
        f"{path} {kind} id {value['id']}"
        if name is not None and isinstance(value, dict) and "id" in value
        else f"{path} {kind} number {number}"
    )


def survey(path: Path, options: Options, tally: Tally) -> None:
    categories: list[Any] = []
    seen_arrays = set()

    shortcut = Shortcut("category_id")

    def count(name: str | None, text: str, parse: Callable[[], Any]) -> Any:
        seen_arrays.add(name)
        if name == "categories":
            value = parse()
            categories.append({key: value[key] for key in ("id", "name") if key in value} if isinstance(value, dict) else value)
        elif name in ("annotations", None):
            for _, _, label in _spans(name, text, parse, shortcut):
                tally.add(label)
        return None

    for _ in walk(path, options, count):
        pass
    if not seen_arrays & {"annotations", "categories", None}:
        raise InputError(str(path), "no categories and no annotations: not a COCO file")
    if categories:
        ids, names = numbered_categories(categories, str(path))
        tally.declare(ids, names, str(path))


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    tokens = Tokens(recoder)
    uncounted = Tokens(recoder)  # of categories and images: they are not labels of anything
    numbers: dict[str | None, int] = {}

    shortcut = Shortcut("category_id")

    def replace(name: str | None, text: str, parse: Callable[[], Any]) -> Any:
        if name not in ID_PATHS:
            return None
        spans = _spans(name, text, parse, shortcut)
        if not spans:
            return None
        numbers[name] = numbers.get(name, 0) + 1
        counted = name in ("annotations", None)
        if name == "categories" and recoder.value(spans[0][2]) in (UNSEEN, DROP):
            return DROP  # with --used-only: a class without annotations
        return (tokens if counted else uncounted).splice(text, spans, lambda: _place(path, name, parse(), numbers[name]))

    with sink(target, path, (None, b"")) as out:
        for piece in walk(path, options, replace):
            out.write(piece.encode("utf-8", "surrogateescape"))
    tokens.count()
