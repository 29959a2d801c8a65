"""CSV and TSV: streamed through pyarrow; the standard library's reader takes over where rows are ragged."""

from __future__ import annotations

import codecs
import csv
import io
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from typing import Any

from preassert.data.formats import quotes
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.formats.comments import SIGN, is_comment, is_header
from preassert.data.source import Source
from preassert.lazy import need

DELIMITERS = (",", ";", "\t", "|")
_BLOCK_BYTES = 1 << 20  # with 8 MiB the peak was 230 MiB for 100 MB of CSV and 430 MiB for 800 MB; with 1 MiB, 160 for both
_BATCH_ROWS = 1 << 16
_HEAD_LIMIT = 100_000  # comment lines above a header
_FIELD_LIMIT = 1 << 28  # characters; the standard library's own limit is 128 KiB, short for a document in a cell


class CsvReader(Reader):
    """One CSV or TSV file. Empty lines and comments (:mod:`preassert.data.formats.comments`) are no rows.

    A byte order mark is skipped; quoted fields may hold line breaks. In tab-separated files quotes may be characters like any
    other (:mod:`preassert.data.formats.quotes`).
    """

    text = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.encoding = _encoding(source.head(4))
        self._delimiters = ("\t",) if source.suffix in (".tsv", ".tab") else DELIMITERS
        self._head = self._count_head_lines()
        self._trailing_comment = False
        self._quoting = True
        self.delimiter = "\t" if source.suffix in (".tsv", ".tab") else self._sniff_delimiter()
        if self.encoding == "utf8" and not self._head and source.comment is None:
            self._quoting = not quotes.are_characters(source, self.delimiter, len(self._first_record))

    def columns(self) -> tuple[str, ...]:
        if self.source.header:
            return tuple(self._first_record)
        return tuple(map(str, range(len(self._first_record))))

    @cached_property
    def _first_record(self) -> list[str]:
        return next((record for _, record in self._records()), [])

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        pa = need("pyarrow", extra="data", purpose="read CSV files")
        names = self.columns()
        positions = {column: names.index(column) for column in columns}
        done = 0
        if self.source.comment is not None:  # such a line may have as many fields as a record
            yield from self._plain_chunks(positions, 0)
            return
        try:
            for batch in self._arrow_batches(positions):
                yield Chunk(done + 1, batch)
                done += len(next(iter(batch.values())))
        except pa.ArrowInvalid:  # a row with too few or too many fields, perhaps a comment in one column, or larger than a block
            yield from self._plain_chunks(positions, done)

    def _arrow_batches(self, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Batches of text columns. The header is read as a row like any other and dropped: it may span several lines."""
        pa = need("pyarrow", extra="data", purpose="read CSV files")
        arrow_csv = need("pyarrow.csv", extra="data", purpose="read CSV files")
        fields = {column: f"f{position}" for column, position in positions.items()}
        wanted = list(dict.fromkeys(fields.values()))
        skip = 1 if self.source.header else 0
        plain = self.source.filesystem is None and self.source.compression is None
        with pa.OSFile(self.source.path) if plain else self.source.open() as stream:
            read = arrow_csv.ReadOptions(
                block_size=_BLOCK_BYTES, autogenerate_column_names=True, encoding=self.encoding, skip_rows=self._head
            )
            parse = arrow_csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self._quoting else False,
                newlines_in_values=self._quoting,
                invalid_row_handler=self._skip_comment,
            )
            convert = arrow_csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()))
            with _quiet_where_undecodable():
                opened = arrow_csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            while True:
                with _quiet_where_undecodable():
                    batch = next(opened, None)
                if batch is None:
                    break
                taken = batch.slice(min(skip, len(batch)))
                skip -= len(batch) - len(taken)
                if len(self._first_record) == 1:
                    _refuse_comments(taken.column(0))
                if len(taken):
                    yield {column: self._without_quotes(taken.column(wanted.index(name))) for column, name in fields.items()}

    def _without_quotes(self, values: Any) -> Any:
        """What pyarrow has not done where quotes are characters."""
        pa = need("pyarrow", extra="data", purpose="read CSV files")
        pc = need("pyarrow.compute", extra="data", purpose="read CSV files")
        if self._quoting or not pc.any(pc.starts_with(values, '"')).as_py():
            return values
        return pa.array([quotes.unwrapped(value) for value in values.to_pylist()], pa.string())

    def _skip_comment(self, row: Any) -> str:
        """pyarrow's answer for a row with another number of fields than the header, as every comment has (in several columns)."""
        line = row.text
        one_line = "\n" not in line and "\r" not in line
        return "skip" if one_line and is_comment(line, self.delimiter, row.expected_columns) else "error"

    def _plain_chunks(self, positions: dict[str, int], done: int) -> Iterator[Chunk]:
        """The rows after the first ``done``, by the standard library's reader; a missing field is a missing value.

        A short last row without a line end is no row: the file breaks off within it.
        """
        width = len(self._first_record)
        ragged = 0
        batch: dict[str, list[Any]] = {column: [] for column in positions}
        row = -1 if self.source.header else 0
        first = done + 1
        unfinished = self._unfinished_line(width)
        for line, record in self._records():
            row += 1
            if row <= done:
                continue
            if line == unfinished:
                self.broken_lines.append((line, f"the file ends within a row, after {len(record)} of {width} fields"))
                break
            if len(record) != width:
                ragged += 1
                if ragged == 1:
                    self.notes.append(f"line {line}: {len(record)} fields where the first line has {width}")
            for column, position in positions.items():
                batch[column].append(_utf8(record[position], line) if position < len(record) else None)
            if len(next(iter(batch.values()))) == _BATCH_ROWS:
                yield _text_chunk(first, batch)
                batch = {column: [] for column in positions}
                first = row + 1
        if ragged > 1:
            self.notes.append(f"{ragged - 1} more lines have another number of fields")
        if next(iter(batch.values())):
            yield _text_chunk(first, batch)

    def _unfinished_line(self, width: int) -> int | None:
        """The line of the last record, if it has too few fields and no line end."""
        last = b""
        with self.source.open() as stream:
            while block := stream.read(_BLOCK_BYTES):
                last = block[-1:]
        if last in (b"", b"\n", b"\r"):
            return None
        line, record = deque(self._records(), maxlen=1).pop()
        return line if len(record) < width and not self._trailing_comment else None

    def lines(self, rows: Sequence[int]) -> tuple[int, ...]:
        wanted = set(rows)
        last = max(wanted, default=0)
        header = 1 if self.source.header else 0
        if self._plain_up_to(last + header):
            return tuple(row + header for row in sorted(wanted))
        found: list[int] = []
        row = -1 if self.source.header else 0
        for line, _ in self._records():
            row += 1
            if row in wanted:
                found.append(line)
            if row >= last:
                break
        return tuple(found)

    def _plain_up_to(self, line: int) -> bool:
        """Whether each line up to ``line`` is a record: no quotes, empty lines or ``#``. Looks at bytes only, so it is fast."""
        if self.encoding != "utf8" or self._head or self.source.comment is not None:
            return False
        with self.source.open() as stream:
            while line > 0 and (block := stream.read(_BLOCK_BYTES)):
                block = b"\n" + block + stream.readline(_FIELD_LIMIT)
                if b'"' in block or b"\n\n" in block or b"\n\r\n" in block or block.count(b"\r") != block.count(b"\r\n"):
                    return False
                if b"\n#" in block:
                    return False
                line -= block.count(b"\n") - 1
        return True

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """(1-based line on which it starts, fields) of every record, the header included."""
        limit = csv.field_size_limit(_FIELD_LIMIT)
        number = start = width = 0
        between = True  # the next line begins a record
        comment = False  # the last line was one

        def lines(text: Iterable[str]) -> Iterator[str]:
            nonlocal number, start, between, comment
            for line in text:
                number += 1
                comment = between and self._is_comment(line, number, width)
                if comment:
                    continue
                if between:
                    start, between = number, False
                yield line

        try:
            with self._open_text() as text:
                read = csv.reader if self._quoting else quotes.read_lines
                for record in read(lines(text), delimiter=self.delimiter):
                    between = True
                    if record:
                        width = width or len(record)
                        yield start, record
                self._trailing_comment = comment
        except csv.Error as error:
            raise ValueError(f"line {start}: {error}") from error
        finally:
            csv.field_size_limit(limit)

    def _is_comment(self, line: str, number: int, width: int) -> bool:
        if number <= self._head:
            return True
        if self.source.comment is not None:
            return line.startswith(self.source.comment)
        return width > 0 and line.startswith(SIGN) and is_comment(line, self.delimiter, width)

    @contextmanager
    def _open_text(self) -> Iterator[io.TextIOWrapper]:
        """The lines with their ends, without a byte order mark; bytes that are not UTF-8 as surrogates."""
        encoding = "utf-8-sig" if self.encoding == "utf8" else self.encoding
        with self.source.open() as stream, io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline="") as text:
            yield text

    def _count_head_lines(self) -> int:
        """Lines above the header: comments, and empty lines between them."""
        start = self.source.head(64).removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
        if self.source.comment is not None or not (start.startswith(SIGN.encode()) or self.encoding != "utf8"):
            return 0
        marked: list[tuple[int, str]] = []
        follow = None
        with self._open_text() as text:
            for number, line in enumerate(text, start=1):
                if line.startswith(SIGN):
                    marked.append((number, line.rstrip("\r\n")))
                elif line.strip("\r\n"):
                    follow = line.rstrip("\r\n")
                    break
                if len(marked) > _HEAD_LIMIT:
                    raise ValueError(f"more than {_HEAD_LIMIT:,} lines at its start begin with {SIGN}")
        columns = self.source.columns if self.source.header else ()
        above = takewhile(lambda entry: not is_header(entry[1], follow, columns, self._delimiters), marked)
        return max((number for number, _ in above), default=0)

    def _sniff_delimiter(self) -> str:
        """The delimiter with which the first record names a wanted column; else the comma, or what splits it into most fields
        where the comma does not."""
        split = {}
        for self.delimiter in DELIMITERS:
            self.__dict__.pop("_first_record", None)
            split[self.delimiter] = self._first_record
            if self.source.header and not set(split[self.delimiter]).isdisjoint(self.source.columns):
                return self.delimiter
        del self._first_record
        return "," if len(split[","]) > 1 else max(DELIMITERS, key=lambda mark: len(split[mark]))


@contextmanager
def _quiet_where_undecodable() -> Iterator[None]:
    """pyarrow decodes a row before it asks about it. Where that fails the row counts as wrong, which is right, but a traceback
    is printed as well."""
    usual = sys.unraisablehook

    def hook(failure: Any) -> None:
        if not isinstance(failure.exc_value, UnicodeDecodeError):
            usual(failure)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _refuse_comments(values: Any) -> None:
    """In a file of one column a comment has as many fields as a record; only its line, quotes included, tells.

    Raises:
        pyarrow.ArrowInvalid: one of the values may be a comment.
    """
    pa = need("pyarrow", extra="data", purpose="read CSV files")
    pc = need("pyarrow.compute", extra="data", purpose="read CSV files")
    if pc.any(pc.or_(pc.starts_with(values, f"{SIGN} "), pc.equal(values, SIGN))).as_py():
        raise pa.ArrowInvalid("perhaps a comment")


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf8"


def _text_chunk(first_row: int, columns: dict[str, list[Any]]) -> Chunk:
    pa = need("pyarrow", extra="data", purpose="read CSV files")
    return Chunk(first_row, {column: pa.array(values, pa.string()) for column, values in columns.items()})


def _utf8(text: str, line: int) -> str:
    """``text``, refused if it holds bytes that were not UTF-8."""
    if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
        raise ValueError(f"line {line}: not UTF-8")
    return text


READER = CsvReader
