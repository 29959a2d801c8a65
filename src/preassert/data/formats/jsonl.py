"""JSON Lines: one object a line; only the wanted keys are decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
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
        self._even = 0  # rows at the start of the file that stand on the line of the same number

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
        row = 1
        seen: set[str] = set()
        self._comments = []
        for number, block in self._blocks():
            values = decode.lines(block) if _one_object_a_line(block) else None
            if values is not None:
                if number == self._even:
                    self._even += len(values[0])
                yield _chunk(row, columns, values, seen)
                row += len(values[0])
                continue
            for first, batch in self._line_by_line(number, block, decode):
                if batch:
                    yield _chunk(row + first, columns, list(zip(*batch, strict=True)), seen)
                row += first + len(batch)
        if self._comments:
            noun = "line is a comment" if len(self._comments) == 1 else "lines are comments"
            self.notes.append(
                f"line {self._comments[0]}: {len(self._comments):,} {noun}, which most readers of JSON Lines refuse"
            )
        self.absent = tuple(column for column in columns if column not in seen)

    def _line_by_line(self, number: int, block: bytes, decode: Decoder) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """(0 or 1 rows that are no JSON objects, the values of the rows after them)."""
        skipped = 0
        batch: list[tuple[Any, ...]] = []
        for line_number, line in self._records(number, block):
            try:
                values = decode(line)
            except (ValueError, decode.error) as error:
                self.broken_lines.append((line_number, str(error)))
                if len(self.broken_lines) > MAX_BROKEN:
                    reason = f"line {line_number}: {error} (and {MAX_BROKEN} lines before it); not JSON Lines"
                    raise ValueError(reason) from error
                yield skipped, batch
                skipped, batch = 1, []
                continue
            batch.append(values)
        yield skipped, batch

    def lines(self, rows: Sequence[int]) -> tuple[int, ...]:
        wanted = set(rows)
        last = max(wanted, default=0)
        if last <= self._even:
            return tuple(sorted(wanted))
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
        for number, block in self._blocks():
            yield from self._records(number, block)

    def _records(self, number: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        """The same for one block of whole lines, with ``number`` lines before it."""
        for line in block.split(b"\n"):
            number += 1
            if not line or line.isspace():
                continue
            if line[:1] in _MAY_BE_COMMENT and line.lstrip().startswith((b"#", b"//")):
                self._comments.append(number)
            else:
                yield number, line

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """(lines before it, whole lines) for each block of the file, without a byte order mark."""
        number = 0
        parts: list[bytes] = []
        size = 0
        with self.source.open() as stream:
            while block := stream.read(_BLOCK_BYTES):
                whole, end, rest = block.rpartition(b"\n")
                if end:
                    whole = b"".join([*parts, whole, end])
                    yield number, whole.removeprefix(_BOM) if not number else whole
                    number += whole.count(b"\n")
                    parts, size = [], 0
                parts.append(rest)
                size += len(rest)
                if size > _LINE_LIMIT:
                    raise ValueError(f"line {number + 1} is longer than {_LINE_LIMIT >> 20} MiB")
        if size:
            last = b"".join(parts)
            yield number, last.removeprefix(_BOM) if not number else last


def _one_object_a_line(block: bytes) -> bool:
    """Whether each line begins with ``{`` and ends with ``}``: then no object can go on in the next line."""
    count = block.count(b"\n") + (not block.endswith(b"\n"))
    begun = block.startswith(b"{") + block.count(b"\n{")
    ended = block.count(b"}\n") + (block.count(b"}\r\n") if b"\r" in block else 0) + block.endswith(b"}")
    return count == begun == ended


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
        try:
            record = msgspec.defstruct("Record", [(name, Any, ABSENT) for name in names], rename=names, gc=False)
            self._decoder = msgspec.json.Decoder(record)
        except ValueError:  # a key with quotes or backslashes
            self._decoder = None
        self._fields = {key: name for name, key in names.items()}
        self._reach = [self._reacher(column, path) for column, path in zip(self.columns, self._paths, strict=True)]

    def _reacher(self, column: str, path: Sequence[str]) -> Callable[[Any], Any]:
        """Picks the value of one column from a decoded record."""
        own = attrgetter(self._fields[column])
        if len(path) == 1:
            return own
        outer, rest = attrgetter(self._fields[path[0]]), path[1:]

        def reach(record: Any) -> Any:
            value = own(record)
            return _follow(outer(record), rest) if value is ABSENT else value

        return reach

    def __call__(self, line: bytes) -> tuple[Any, ...]:
        if self._decoder is None:
            return self.pick(json.loads(line))
        try:
            record = self._decoder.decode(line)
        except self.error:
            return self.pick(json.loads(line))  # json accepts what Python writes: NaN and Infinity
        return tuple(reach(record) for reach in self._reach)

    def lines(self, block: bytes) -> list[list[Any]] | None:
        """The values of each column in a block with one object in each line; None where only each line by itself can tell."""
        if self._decoder is None:
            return None
        try:
            records = self._decoder.decode_lines(block)
        except self.error:
            return None
        if len(records) != block.count(b"\n") + (not block.endswith(b"\n")):
            return None
        return [list(map(reach, records)) for reach in self._reach]

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


def _chunk(first: int, columns: Sequence[str], values: Sequence[Sequence[Any]], seen: set[str]) -> Chunk:
    """``values``: of each column. Columns that some row has are added to ``seen``."""
    out: dict[str, Any] = {}
    for column, cells in zip(columns, values, strict=True):
        if not all(cell is ABSENT for cell in cells):
            seen.add(column)
        out[column] = [None if cell is ABSENT else cell for cell in cells]
    return Chunk(first, out)


READER = JsonLinesReader
