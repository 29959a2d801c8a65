"""Parquet: row groups whose statistics prove them clean are not read; the others are decoded on all cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from preassert.data.formats.arrow import class_names_in_schema, leaves, reach
from preassert.data.formats.base import Chunk, Covered, Proven, Reader
from preassert.data.source import Source
from preassert.lazy import need

_BATCH_ROWS = 1 << 17


class ParquetReader(Reader):
    """One Parquet file. Row numbers run through the file, not through a row group."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._file = self._open()
        self.metadata = self._file.metadata
        self.schema = self._file.schema_arrow

    def _open(self, metadata: Any = None) -> Any:
        parquet = need("pyarrow.parquet", extra="data", purpose="read Parquet files")
        where = self.source.path if self.source.filesystem is None else self.source.open_raw()
        return parquet.ParquetFile(where, metadata=metadata)

    def columns(self) -> tuple[str, ...]:
        return leaves(self.schema)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        return class_names_in_schema(self.schema, column)

    def count_rows(self) -> int:
        return int(self.metadata.num_rows)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        """Row groups in order. Memory: two decoded row groups per core at most, one column chunk each."""
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(cores) as pool:
            waiting: deque[tuple[int, int, dict[str, Any], Future[list[Any]] | None]] = deque()
            row = 1
            for group in range(self.metadata.num_row_groups):
                rows = self.metadata.row_group(group).num_rows
                proven = {column: proof for column in columns if covered and (proof := self._prove(group, column, covered))}
                unread = [column for column in columns if column not in proven]
                waiting.append((row, rows, dict(proven), pool.submit(self._read, group, unread) if unread else None))
                row += rows
                if len(waiting) > cores:
                    yield from _given(*waiting.popleft())
            while waiting:
                yield from _given(*waiting.popleft())

    def _read(self, group: int, columns: Sequence[str]) -> list[Any]:
        """The batches of one row group: (rows, column -> array) each."""
        file = self._open(self.metadata)
        batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False)
        return [(len(batch), {column: reach(batch, column) for column in columns}) for batch in batches]

    def _prove(self, group: int, column: str, covered: Covered) -> Proven | None:
        """Whether statistics alone show every value of the row group to be a legal whole number."""
        row_group = self.metadata.row_group(group)
        at = self._leaf(column)
        if at is None:
            return None
        chunk = row_group.column(at)
        statistics = chunk.statistics
        if statistics is None or chunk.physical_type not in ("INT32", "INT64"):
            return None
        if not statistics.has_min_max or not statistics.has_null_count:
            return None
        low, high = statistics.min, statistics.max
        if statistics.null_count or not isinstance(low, int) or not isinstance(high, int) or not covered(column, low, high):
            return None
        return Proven(row_group.num_rows, low, high)

    def _leaf(self, column: str) -> int | None:
        """Index of the column chunk of a flat column; None for lists, whose values are more than their rows."""
        schema = self._file.schema
        for at in range(len(schema)):
            leaf = schema.column(at)
            if leaf.path == column and leaf.max_repetition_level == 0:
                return at
        return None


def _given(row: int, rows: int, proven: dict[str, Any], reading: Future[list[Any]] | None) -> Iterator[Chunk]:
    if proven:
        yield Chunk(row, proven)
    if reading is not None:
        for length, arrays in reading.result():
            yield Chunk(row, arrays)
            row += length


READER = ParquetReader
