"""Arrow IPC files and streams, and Feather."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source
from preassert.lazy import need


class ArrowReader(Reader):
    """One Arrow IPC file (Feather 2), Arrow IPC stream, or Feather 1 file."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._magic = source.head(6)
        if self._magic.startswith(b"FEA1"):
            feather = need("pyarrow.feather", extra="data", purpose="read Feather files")
            self._table = feather.read_table(source.path)
            self.schema = self._table.schema
        else:
            self._table = None
            with self._opened() as (opened, _):
                self.schema = opened.schema

    def _opened(self) -> Any:
        return _Opened(self.source, self._magic == b"ARROW1")

    def columns(self) -> tuple[str, ...]:
        return leaves(self.schema)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        return class_names_in_schema(self.schema, column)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        row = 1
        for batch in self._batches():
            arrays = {column: reach(batch, column) for column in columns}
            for array in arrays.values():
                array.validate(full=True)  # offsets of a damaged file would lead outside its buffers
            yield Chunk(row, arrays)
            row += len(batch)

    def _batches(self) -> Iterator[Any]:
        if self._table is not None:
            yield from self._table.to_batches()
            return
        with self._opened() as (opened, is_file):
            if is_file:
                for at in range(opened.num_record_batches):
                    yield opened.get_batch(at)
            else:
                yield from opened


class _Opened:
    """The open IPC reader of a source; local files are memory-mapped."""

    def __init__(self, source: Source, is_file: bool) -> None:
        self._source = source
        self._is_file = is_file

    def __enter__(self) -> tuple[Any, bool]:
        pa = need("pyarrow", extra="data", purpose="read Arrow files")
        ipc = need("pyarrow.ipc", extra="data", purpose="read Arrow files")
        local = self._source.filesystem is None and self._source.compression is None
        if local and not self._source.size_bytes:
            raise ValueError("the file is empty")
        self._stream: Any = pa.memory_map(self._source.path) if local else self._source.open()
        return (ipc.open_file if self._is_file else ipc.open_stream)(self._stream), self._is_file

    def __exit__(self, *exc: object) -> None:
        self._stream.close()


def leaves(schema: Any) -> tuple[str, ...]:
    """Names of the columns of an Arrow schema, and dotted names of the fields of its structs."""
    pa = need("pyarrow", extra="data", purpose="read Arrow files")
    out: list[str] = []

    def visit(prefix: str, field: Any) -> None:
        out.append(prefix + field.name)
        if pa.types.is_struct(field.type):
            for at in range(field.type.num_fields):
                visit(f"{prefix}{field.name}.", field.type.field(at))

    for field in schema:
        visit("", field)
    return tuple(out)


def reach(batch: Any, column: str) -> Any:
    """The array of ``column`` in a record batch or table; a dotted name reaches into structs."""
    pc = need("pyarrow.compute", extra="data", purpose="read Arrow files")
    if column in batch.schema.names:
        return batch.column(batch.schema.names.index(column))
    root, _, rest = column.partition(".")
    while root not in batch.schema.names:
        head, _, rest = rest.partition(".")
        root = f"{root}.{head}"
    return pc.struct_field(batch.column(root), rest.split("."))


def class_names_in_schema(schema: Any, column: str) -> tuple[str, ...] | None:
    """The ``ClassLabel`` names that the `datasets` library stores in the metadata of a schema."""
    metadata = schema.metadata or {}
    stored = metadata.get(b"huggingface")
    if stored is None:
        return None
    try:
        features = json.loads(stored)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return None
    return class_names_of(features.get(column)) if isinstance(features, dict) else None


def class_names_of(feature: Any) -> tuple[str, ...] | None:
    """The names of a ``ClassLabel`` feature, also inside ``Sequence``/``List`` or the bracket form; None for any other."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names = feature.get("names")
            return tuple(map(str, names)) if isinstance(names, list) else None
        elif isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
            feature = feature.get("feature")
        else:
            return None


READER = ArrowReader
