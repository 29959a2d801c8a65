"""JSON Lines: the token of the label in each line is replaced, and every other character is copied."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from preassert.errors import InputError, UsageError
from preassert.labels.values import shown_list
from preassert.remap.jsontext import Span, members, scalars, skip_space
from preassert.remap.recode import DROP, UNSEEN, Options, Recoder, Tally
from preassert.remap.streams import UTF8_BOM, blocks, sink, wide_encoding

LINE_LIMIT_BYTES = 1 << 28
LINES_AT_ONCE = 1000  # written together
_ABSENT = object()


def _lines(path: Path, options: Options) -> Iterator[bytes]:
    """Lines with their ends."""
    tail = b""
    for block in blocks(path, wide_encoding(path, options.encoding), options.advance):
        whole = tail + block
        cut = whole.rfind(b"\n") + 1
        yield from whole[:cut].splitlines(keepends=True) if b"\r" not in whole else _split(whole[:cut])
        tail = whole[cut:]
        if len(tail) > LINE_LIMIT_BYTES:
            raise InputError(str(path), "a line longer than 256 MB: not a JSON Lines file")
    if tail:
        yield tail


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]]


def labels_of(path: Path, options: Options) -> Iterator[tuple[int, int, str, list[Span] | None]]:
    """(row, line, text, spans of the labels) for each line; no spans (None) for a line that is empty or a comment.

    ``text`` holds bytes that are not UTF-8 as surrogates, so that it can be written back.
    """
    if options.column is None:
        raise UsageError(f"{path}: --column is needed; {_keys(path, options)}")
    names = options.column.split(".")
    shortcut = Shortcut(options.column)
    row = 0
    for number, line in enumerate(_lines(path, options), start=1):
        text = line.decode("utf-8", "surrogateescape")
        start = skip_space(text, 1 if number == 1 and line.startswith(UTF8_BOM) else 0)
        if start == len(text) or text.startswith(("#", "//"), start):
            yield row, number, text, None
            continue
        row += 1
        short = shortcut.span(text, start)
        if short is not None:
            yield row, number, text, [short]
            continue
        try:
            spans = list(_spans(text, start, options.column, names))
        except ValueError as error:
            raise InputError(str(path), f"line {number:,}: {error}") from None
        yield row, number, text, spans


class Shortcut:
    """Finds the label of a plain line without reading the rest of it; None where only reading it can tell.

    ``"name":`` with both quotes cannot stand inside a JSON string, where quotes are escaped: it is a key. It must be the only
    one, and no key may be written with escapes. With one brace before it, it is a key of the record itself; with more, it is
    if the record has such a key.
    """

    def __init__(self, column: str) -> None:
        self._key = json.dumps(column, ensure_ascii=False)
        # It also takes what is no number (1.2.3): json.loads refuses that below.
        token = r'("[^"\\\x00-\x1f]*"|-?[0-9][0-9.eE+-]*|true|false|null)'
        self._pattern = re.compile(re.escape(self._key) + r"[ \t]*:[ \t]*" + token + r"[ \t]*[,}]")
        self._values: dict[str, Any] = {}
        self._has_key = _key_test(column)

    def span(self, text: str, start: int) -> Span | None:
        found = self._pattern.search(text, start)
        if found is None or text[start] != "{":
            return None
        if text.count(self._key, start) != 1 or "\\u00" in text or not text.rstrip().endswith("}"):
            return None
        if text.count("{", start, found.start()) != 1 and not self._has_key(text[start:]):
            return None
        token = found[1]
        if token not in self._values:
            try:
                value = json.loads(token)
            except ValueError:
                return None
            if len(self._values) < 1_000_000:
                self._values[token] = value
            return found.start(1), found.end(1), value
        return found.start(1), found.end(1), self._values[token]


def _key_test(key: str) -> Callable[[str], bool]:
    """Whether a line of JSON is an object with ``key``; False also where only a slower reading can tell."""
    try:
        msgspec = importlib.import_module("msgspec")
        record = msgspec.defstruct("Record", [("value", Any, _ABSENT)], rename={"value": key}, gc=False)
    except (ImportError, ValueError):  # ValueError: quotes in the key
        return lambda text: False
    decode, wrong = msgspec.json.Decoder(record).decode, (msgspec.MsgspecError, ValueError)

    def has_key(text: str) -> bool:
        try:
            return decode(text).value is not _ABSENT
        except wrong:
            return False

    return has_key


def _spans(text: str, start: int, column: str, names: list[str]) -> Iterator[Span]:
    """Spans of the labels in one line. A key that is the whole column name goes before a dotted path."""
    last = None
    nested = None
    for name, first, end, value in members(text, start):
        if name == column:
            last = (first, end, value)
        elif name == names[0]:
            nested = (first, end, value)
    if last is not None:
        return scalars(text, *last, ())
    if nested is not None and len(names) > 1:
        return scalars(text, *nested, names[1:])
    raise ValueError(f"no key {column!r}")


def _keys(path: Path, options: Options) -> str:
    for line in _lines(path, options):
        if line.strip():
            try:
                first = json.loads(line.decode("utf-8-sig"))
            except ValueError:
                break
            if isinstance(first, dict):
                return f"keys are {shown_list(list(first), 20)}"
    return "the first line is not an object"


def survey(path: Path, options: Options, tally: Tally) -> None:
    counts: Counter[str] = Counter()
    for _, _, text, spans in labels_of(path, options):
        counts.update([text[start:end] for start, end, _ in spans or ()])
    for token, count in counts.items():
        tally.add_token(json.loads(token), token, count)


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    replacements = Tokens(recoder)
    with sink(target, path, wide_encoding(path, options.encoding)) as out:
        waiting: list[str] = []
        for row, line, text, spans in labels_of(path, options):
            if spans:
                new = replacements.splice(text, spans, lambda: f"{path} row {row:,} (line {line:,})")  # noqa: B023  (called at once)
                if new is DROP and len(spans) > 1:
                    raise UsageError(
                        f"{path} line {line:,}: --unknown drop leaves out whole rows, and this one has a list of labels"
                    )
                if new is DROP:
                    continue
                text = new
            waiting.append(text)
            if len(waiting) == LINES_AT_ONCE:
                out.write("".join(waiting).encode("utf-8", "surrogateescape"))
                waiting.clear()
        out.write("".join(waiting).encode("utf-8", "surrogateescape"))
    replacements.count()


class Tokens:
    """Replaces JSON tokens; each different one is worked out once."""

    def __init__(self, recoder: Recoder) -> None:
        self.recoder = recoder
        self.memo: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()

    def splice(self, text: str, spans: list[Span], place: Callable[[], str]) -> Any:
        """``text`` with each span replaced; DROP if one of them is to be dropped. Unseen ones stay and are remembered."""
        pieces: list[str] = []
        done = 0
        for start, end, value in spans:
            token = text[start:end]
            self.counts[token] += 1
            new = self.memo.get(token)
            if new is None:
                new = self.memo[token] = self._replace(value)
            if new is UNSEEN:
                self.recoder.unseen_at(value, place())
            elif new is DROP:
                return DROP
            else:
                pieces += (text[done:start], new)
                done = end
        pieces.append(text[done:])
        return "".join(pieces)

    def _replace(self, value: Any) -> Any:
        new = self.recoder.value(value)
        return new if new is UNSEEN or new is DROP else self.recoder.write_json(new, value)

    def count(self) -> None:
        """Hand the counts on, once, at the end."""
        for token, count in self.counts.items():
            value = json.loads(token)
            new = self.recoder.value(value)
            self.recoder.count(value, None if new is UNSEEN else new, count)
