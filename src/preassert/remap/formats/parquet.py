"""Parquet: row group by row group; schema, compression, encodings, row groups and metadata as they were, and the map added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from preassert.data.source import reading
from preassert.errors import InputError
from preassert.labels import LabelMap
from preassert.lazy import need
from preassert.remap.columns import Column, Rewriting, count_leaves, declared_names, embedded
from preassert.remap.recode import Options, Recoder, Tally

# Encodings that are a choice of the writer, beside dictionary and plain.
_CHOSEN = {"BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}


def _parquet() -> Any:
    return need("pyarrow.parquet", extra="data", purpose="rewrite Parquet files")


def _open(path: Path) -> Any:
    with reading(str(path)):
        return _parquet().ParquetFile(path)


def survey(path: Path, options: Options, tally: Tally) -> None:
    with _open(path) as file:
        column = Column.find(file.schema_arrow, options, str(path))
        names = declared_names(file.schema_arrow.metadata, column)
        if names is not None:
            tally.declare(range(len(names)), names, str(path))
        with reading(str(path)):
            for group in range(file.metadata.num_row_groups):
                for batch in file.iter_batches(row_groups=[group], columns=[file.schema_arrow.names[column.index]]):
                    only = Column(column.name, 0, column.inner)
                    count_leaves(only, batch.column(0), tally)
                options.advance(path.stat().st_size // file.metadata.num_row_groups)


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    with _open(path) as file:
        rewriting = Rewriting(file.schema_arrow, options, recoder, str(path))
        how = _writer_options(file, rewriting)
        # A file without Arrow's own schema gets none; pyarrow then writes no metadata of its own accord either.
        how["store_schema"] |= not hasattr(_parquet().ParquetWriter, "add_key_value_metadata")
        with _parquet().ParquetWriter(target, rewriting.schema, **how) as writer, reading(str(path)):
            if not how["store_schema"] and rewriting.schema.metadata:
                writer.add_key_value_metadata(rewriting.schema.metadata)
            for group in range(file.metadata.num_row_groups):
                table = rewriting.batch(file.read_row_group(group))
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                options.advance(path.stat().st_size // file.metadata.num_row_groups)


def _writer_options(file: Any, rewriting: Rewriting) -> dict[str, Any]:
    """What the footer tells about how the file was written. Page sizes and bloom filters are not in it."""
    metadata = file.metadata
    options: dict[str, Any] = {
        "version": metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6",
        "store_schema": b"ARROW:schema" in (metadata.metadata or {}),
    }
    if not metadata.num_row_groups or not metadata.num_columns:
        return options
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(metadata.num_columns)]
    label = rewriting.schema.names[rewriting.column.index]
    compression, dictionary, statistics, encodings = {}, [], [], {}
    for column in columns:
        name = column.path_in_schema
        compression[name] = "NONE" if column.compression == "UNCOMPRESSED" else column.compression
        if column.compression == "LZO":
            raise InputError(rewriting.file, f"column {name!r} is packed with LZO, which pyarrow cannot write")
        chosen = _CHOSEN.intersection(column.encodings)
        is_label = name == label or name.startswith(label + ".")
        if "RLE_DICTIONARY" in column.encodings or "PLAIN_DICTIONARY" in column.encodings:
            dictionary.append(name)
        elif chosen and not is_label:
            encodings[name] = chosen.pop()
        if column.is_stats_set:
            statistics.append(name)
    options |= {
        "compression": compression,
        "use_dictionary": dictionary or False,
        "write_statistics": statistics or False,
        "column_encoding": encodings or None,
        "use_deprecated_int96_timestamps": any(column.physical_type == "INT96" for column in columns),
        "write_page_index": any(getattr(column, "has_offset_index", False) for column in columns),
    }
    sorting = [entry for entry in group.sorting_columns if not columns[entry.column_index].path_in_schema.startswith(label)]
    if sorting and len(sorting) == len(group.sorting_columns):
        options["sorting_columns"] = sorting
    return options


def embedded_map(path: Path) -> LabelMap | None:
    with _open(path) as file:
        return embedded(file.metadata.metadata, str(path))
