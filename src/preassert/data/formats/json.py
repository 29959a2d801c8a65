"""JSON documents: an array of objects, an object of columns, or an object that holds an array of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.formats.jsonl import ABSENT, Decoder, JsonLinesReader
from preassert.data.source import Source
from preassert.lazy import need

_BATCH_ROWS = 1 << 16
_SIZE_LIMIT_BYTES = 8 << 30  # a document is decoded whole


class JsonReader(Reader):
    """One JSON document.

    Rows are the objects of the array; in an object of columns (``{"label": [...]}`` or pandas' ``{"label": {"0": ...}}``)
    they are the positions in the column.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        size = source.size_bytes or 0
        if size > _SIZE_LIMIT_BYTES:
            raise ValueError(f"{size:,} bytes: a JSON document is decoded whole; convert it to JSON Lines")
        with source.open() as stream:
            document = decode_json(stream.read())
        self._records, self._columns = _tabular(document)

    def columns(self) -> tuple[str, ...] | None:
        return None if self._records is not None else tuple(self._columns)

    def example(self) -> tuple[str, ...]:
        if self._records is None:
            return tuple(self._columns)
        return tuple(self._records[0]) if self._records and isinstance(self._records[0], dict) else ()

    def count_rows(self) -> int:
        return len(self._records) if self._records is not None else max(map(len, self._columns.values()), default=0)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        if self._records is None:
            for column in columns:
                yield Chunk(1, {column: self._columns[column]})
            return
        pick = Decoder(columns).pick
        seen: set[str] = set()
        for start in range(0, len(self._records), _BATCH_ROWS):
            rows = [pick(record) for record in self._records[start : start + _BATCH_ROWS]]
            batch: dict[str, Any] = {}
            for column, values in zip(columns, zip(*rows, strict=True), strict=True):
                if any(value is not ABSENT for value in values):
                    seen.add(column)
                batch[column] = [None if value is ABSENT else value for value in values]
            yield Chunk(start + 1, batch)
        self.absent = tuple(column for column in columns if column not in seen)


def decode_json(data: bytes) -> Any:
    """A JSON document; also as Python writes it, with NaN and Infinity."""
    msgspec = need("msgspec", extra="data", purpose="read JSON files")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data.decode("utf-8"))


def _tabular(document: Any) -> tuple[list[Any] | None, dict[str, list[Any]]]:
    """(array of objects, columns); one of the two."""
    if isinstance(document, list):
        if document and not isinstance(document[0], dict):
            return None, {"": document}
        return document, {}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__}, where rows are expected")
    tables = {key: value for key, value in document.items() if isinstance(value, list) and value and isinstance(value[0], dict)}
    if len(tables) == 1:
        return next(iter(tables.values())), {}
    columns = {key: value for key, value in document.items() if isinstance(value, list) and key not in tables}
    if columns:
        return None, columns
    mappings = {key: list(value.values()) for key, value in document.items() if isinstance(value, dict) and value}
    if mappings and len({len(values) for values in mappings.values()}) == 1:
        return None, mappings
    raise ValueError("neither an array of objects, nor an object of columns, nor an object that holds one array of objects")


def open_json(source: Source) -> Reader:
    """A ``.json`` file: JSON Lines under that name are common, so two objects on two lines are taken for them."""
    with source.open() as stream:
        head = stream.read(1 << 20)
    if not head.strip():
        raise ValueError("the file is empty")
    first, _, rest = head.lstrip().removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    if first.startswith(b"{") and first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{"):
        return JsonLinesReader(source)
    return JsonReader(source)


READER = open_json
