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

    Rows are the objects of the array, or of an object of objects that have the wanted key (``{"a.jpg": {"label": 1}, ...}``);
    in an object of columns (``{"label": [...]}`` or pandas' ``{"label": {"0": ...}}``) they are the positions in the column.
    Of several arrays in one object, each has its own rows: ``train.label``, or ``label`` where one array only has it.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        size = source.size_bytes or 0
        if size > _SIZE_LIMIT_BYTES:
            raise ValueError(f"{size:,} bytes: a JSON document is decoded whole; convert it to JSON Lines")
        with source.open() as stream:
            document = decode_json(stream.read())
        self._tables, self._columns = _tabular(document, source.columns)

    def columns(self) -> tuple[str, ...] | None:
        if len(self._tables) == 1:
            return None  # objects need not have the same keys
        return tuple(self._columns) + self._keys()

    def example(self) -> tuple[str, ...]:
        return tuple(self._columns) + self._keys()

    def _keys(self) -> tuple[str, ...]:
        """Keys of the first object of each array; with the name of the array where there are several."""
        keys = {
            name: list(records[0]) if records and isinstance(records[0], dict) else [] for name, records in self._tables.items()
        }
        if len(keys) == 1:
            return tuple(next(iter(keys.values())))
        every = [key for names in keys.values() for key in names]
        alone = [key for key in dict.fromkeys(every) if every.count(key) == 1]
        return (*alone, *(f"{name}.{key}" for name, names in keys.items() for key in names))

    def count_rows(self) -> int:
        return max(map(len, [*self._tables.values(), *self._columns.values()]), default=0)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        absent = []
        for column in columns:
            if column in self._columns:
                yield Chunk(1, {column: self._columns[column]})
                continue
            records, key = self._locate(column)
            pick = Decoder([key]).pick
            present = False
            for start in range(0, len(records), _BATCH_ROWS):
                values = [pick(record)[0] for record in records[start : start + _BATCH_ROWS]]
                present = present or any(value is not ABSENT for value in values)
                yield Chunk(start + 1, {column: [None if value is ABSENT else value for value in values]})
            if not present:
                absent.append(column)
        self.absent = tuple(absent)

    def _locate(self, column: str) -> tuple[list[Any], str]:
        """(array of objects, key) of a column."""
        name, _, key = column.partition(".")
        records = next(iter(self._tables.values()))
        if len(self._tables) == 1 and (not key or name not in self._tables or name in records[0]):
            return records, column
        if name in self._tables and key:
            return self._tables[name], key
        return next(records for records in self._tables.values() if records and column in records[0]), column


def decode_json(data: bytes) -> Any:
    """A JSON document; also as Python writes it, with NaN and Infinity."""
    msgspec = need("msgspec", extra="data", purpose="read JSON files")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data.decode("utf-8"))


def _tabular(document: Any, wanted: Sequence[str]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """(arrays of objects by name, columns by name); one of the two is empty."""
    if isinstance(document, list):
        if document and not isinstance(document[0], dict):
            return {}, {"": document}
        return {"": document}, {}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__}, where rows are expected")
    keys = {column.partition(".")[0] for column in wanted}
    if any(not isinstance(document.get(key, {}), (list, dict)) for key in keys):  # one row
        return {"": [document]}, {}
    tables = {key: value for key, value in document.items() if isinstance(value, list) and value and isinstance(value[0], dict)}
    if tables:
        return tables, {}
    if set(document) == {"columns", "index", "data"}:  # pandas, orient="split"
        rows = document["data"]
        values = map(list, zip(*rows, strict=True)) if rows else ([] for _ in document["columns"])
        return {}, dict(zip(map(str, document["columns"]), values, strict=True))
    columns = {key: value for key, value in document.items() if isinstance(value, list)}
    if columns:
        return {}, columns
    records = list(document.values())
    by_name = bool(records) and all(isinstance(value, dict) for value in records)
    if by_name and keys.isdisjoint(document) and not all(map(keys.isdisjoint, records)):
        return {"": records}, {}
    mappings = {key: list(value.values()) for key, value in document.items() if isinstance(value, dict) and value}
    if mappings and len({len(values) for values in mappings.values()}) == 1:
        return {}, mappings
    raise ValueError("neither an array of objects, nor an object of columns, nor an object that holds arrays of objects")


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
