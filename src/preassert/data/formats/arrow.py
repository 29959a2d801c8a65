"""Arrow IPC files and streams, and Feather."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.carried import CarriedMap, carried_maps
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

    def class_names(self) -> dict[str, tuple[str, ...]]:
        return class_names_in_schema(self.schema)

    def label_maps(self) -> dict[str, CarriedMap]:
        found, wrong = carried_maps(self.schema.metadata)
        self.notes += wrong
        return found

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
    """Names of the columns of an Arrow schema, and dotted names of the fields of structs, also of lists of structs."""
    pa = need("pyarrow", extra="data", purpose="read Arrow files")
    out: list[str] = []

    def visit(name: str, kind: Any) -> None:
        out.append(name)
        while _is_list(pa.types, kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            for at in range(kind.num_fields):
                field = kind.field(at)
                visit(f"{name}.{field.name}", field.type)

    for field in schema:
        visit(field.name, field.type)
    return tuple(out)


def root_of(names: Sequence[str], column: str) -> str:
    """The column of ``names`` that ``column`` is, or is reached through; names may hold dots themselves."""
    root = column
    while root not in names:
        root, dot, _ = root.rpartition(".")
        if not dot:
            raise ValueError(f"no column {column!r}")
    return root


def reach(batch: Any, column: str) -> Any:
    """The array of ``column`` in a record batch; a dotted name reaches into structs, and into each struct of a list."""
    root = root_of(batch.schema.names, column)
    array = batch.column(batch.schema.names.index(root))
    return _field(array, column[len(root) + 1 :].split(".")) if root != column else array


def _field(array: Any, path: Sequence[str]) -> Any:
    pa = need("pyarrow", extra="data", purpose="read Arrow files")
    pc = need("pyarrow.compute", extra="data", purpose="read Arrow files")
    if not path:
        return array
    if _is_list(pa.types, array.type):
        lengths = pc.list_value_length(array).fill_null(0)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
        return pa.LargeListArray.from_arrays(offsets, _field(pc.list_flatten(array), path))
    return _field(pc.struct_field(array, path[0]), path[1:])


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def class_names_in_schema(schema: Any) -> dict[str, tuple[str, ...]]:
    """Column -> names of its ``ClassLabel``, as the `datasets` library stores them in the metadata of a schema."""
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        return class_names_of(json.loads(stored)["info"]["features"]) if stored is not None else {}
    except (ValueError, KeyError, TypeError):
        return {}


def class_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """Column (dotted where nested) -> names, for every ``ClassLabel`` among the features of a data set."""
    out: dict[str, tuple[str, ...]] = {}

    def visit(name: str, feature: Any) -> None:
        if isinstance(feature, list) and len(feature) == 1:
            visit(name, feature[0])
        elif not isinstance(feature, dict):
            return
        elif feature.get("_type") == "ClassLabel":
            if isinstance(feature.get("names"), list):
                out[name] = tuple(map(str, feature["names"]))
        elif feature.get("_type") in ("Sequence", "List", "LargeList"):
            visit(name, feature.get("feature"))
        elif "_type" not in feature or isinstance(feature["_type"], dict):
            for key, inner in feature.items():
                visit(f"{name}.{key}" if name else str(key), inner)

    visit("", features)
    return out


READER = ArrowReader
