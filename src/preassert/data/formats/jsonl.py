"""JSON Lines: one object a line; only the wanted keys are decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source
from preassert.lazy import need

_BLOCK_BYTES = 4 << 20
_LINE_LIMIT = 256 << 20
MAX_BROKEN = 20  # lines that are no JSON objects; with more, the file is not JSON Lines
_BOM = b"\xef\xbb\xbf"
_MAY_BE_COMMENT = b"#/ \t\r"  # first bytes


class JsonLinesReader(Reader):
    """One JSON Lines file. A line that is no JSON object is a row without values, and noted.

    Empty lines are no rows, nor are lines that begin with ``#`` or ``//``, which :mod:`preassert.remap` copies.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._comments: list[int] = []  # the lines of the last reading

    def columns(self) -> None:
        return None

    def example(self) -> tuple[str, ...]:
        """Keys of the first object."""
        for _, line in self._lines():
            try:
                record = json.loads(line)
            except ValueError:
                return ()
            return tuple(record) if isinstance(record, dict) else ()
        return ()

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        decode = Decoder(columns)
        row = 0
        first = 1
        batch: list[tuple[Any, ...]] = []
        size = 0
        seen: set[int] = set()
        for number, line in self._lines():
            row += 1
            try:
                values = decode(line)
            except (ValueError, decode.error) as error:
                self.broken_lines.append((number, str(error)))
                if len(self.broken_lines) > MAX_BROKEN:
                    raise ValueError(f"line {number}: {error} (and {MAX_BROKEN} lines before it); not JSON Lines") from error
                if batch:
                    yield _chunk(first, columns, batch, seen)
                batch, size, first = [], 0, row + 1
                continue
            batch.append(values)
            size += len(line)
            if size >= _BLOCK_BYTES:
                yield _chunk(first, columns, batch, seen)
                batch, size, first = [], 0, row + 1
        if batch:
            yield _chunk(first, columns, batch, seen)
        if self._comments:
            noun = "line is a comment" if len(self._comments) == 1 else "lines are comments"
            self.notes.append(
                f"line {self._comments[0]}: {len(self._comments):,} {noun}, which most readers of JSON Lines refuse"
            )
        self.absent = tuple(column for at, column in enumerate(columns) if at not in seen)

    def lines(self, rows: Sequence[int]) -> tuple[int, ...]:
        wanted = set(rows)
        last = max(wanted, default=0)
        found: list[int] = []
        for row, (number, _) in enumerate(self._lines(), start=1):
            if row in wanted:
                found.append(number)
            if row >= last:
                break
        return tuple(found)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(1-based line, content) of every line that is neither blank nor a comment."""
        self._comments = []
        for number, line in self._all_lines():
            if line[:1] in _MAY_BE_COMMENT and line.lstrip().startswith((b"#", b"//")):
                self._comments.append(number)
            else:
                yield number, line

    def _all_lines(self) -> Iterator[tuple[int, bytes]]:
        """(1-based line, content) of every line that is not blank."""
        number = 0
        rest = b""
        with self.source.open() as stream:
            while block := stream.read(_BLOCK_BYTES):
                pieces = (rest + block).split(b"\n")
                rest = pieces.pop()
                if len(rest) > _LINE_LIMIT:
                    raise ValueError(f"line {number + len(pieces) + 1} is longer than {_LINE_LIMIT >> 20} MiB")
                for piece in pieces:
                    number += 1
                    if number == 1:
                        piece = piece.removeprefix(_BOM)
                    if piece and not piece.isspace():
                        yield number, piece
        if rest and not rest.isspace():
            yield number + 1, rest.removeprefix(_BOM) if number == 0 else rest


class Absent:
    """The one value for a key that an object does not have."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Decoder:
    """Decodes one JSON object and picks the values of ``columns``; a key that is absent gives ``ABSENT``.

    Raises (when called):
        ValueError or ``self.error``: not a JSON object.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        msgspec = need("msgspec", extra="data", purpose="read JSON files")
        self.error: type[Exception] = msgspec.MsgspecError
        self.columns = tuple(columns)
        self._paths = [tuple(column.split(".")) for column in columns]
        keys = list(dict.fromkeys([*self.columns, *(path[0] for path in self._paths)]))
        names = {f"f{at}": key for at, key in enumerate(keys)}
        record = msgspec.defstruct("Record", [(name, Any, ABSENT) for name in names], rename=names, gc=False)
        self._decode = msgspec.json.Decoder(record).decode
        self._fields = {key: name for name, key in names.items()}
        self._plain = len(keys) == len(self.columns)
        self._names = [self._fields[column] for column in self.columns]

    def __call__(self, line: bytes) -> tuple[Any, ...]:
        try:
            record = self._decode(line)
        except self.error:
            return self.pick(json.loads(line))  # json accepts what Python writes: NaN and Infinity
        if self._plain:
            return tuple(getattr(record, name) for name in self._names)
        return self.pick({key: value for key, name in self._fields.items() if (value := getattr(record, name)) is not ABSENT})

    def pick(self, record: Any) -> tuple[Any, ...]:
        """The values of the columns in a decoded object."""
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__} where an object is expected")
        return tuple(_reach(record, column, path) for column, path in zip(self.columns, self._paths, strict=True))


def _reach(record: dict[str, Any], column: str, path: Sequence[str]) -> Any:
    return record[column] if column in record else _follow(record, path)


def _follow(value: Any, path: Sequence[str]) -> Any:
    """The value at the end of ``path``; in a list, that of each object, and None for an object without it."""
    for at, key in enumerate(path):
        if isinstance(value, list):
            found = [_follow(inner, path[at:]) for inner in value]
            return [None if inner is ABSENT else inner for inner in found]
        if not isinstance(value, dict) or key not in value:
            return ABSENT
        value = value[key]
    return value


def _chunk(first: int, columns: Sequence[str], batch: list[tuple[Any, ...]], seen: set[int]) -> Chunk:
    out: dict[str, Any] = {}
    for at, (column, values) in enumerate(zip(columns, zip(*batch, strict=True), strict=True)):
        if any(value is not ABSENT for value in values):
            seen.add(at)
        out[column] = [None if value is ABSENT else value for value in values]
    return Chunk(first, out)


READER = JsonLinesReader
