"""Parquet: row groups whose statistics prove them clean are not read; the others are decoded on all cores."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from preassert.data.carried import CarriedMap, carried_maps
from preassert.data.formats.arrow import class_names_in_schema, leaves, reach, root_of
from preassert.data.formats.base import Chunk, Covered, Proven, Reader
from preassert.data.source import Source
from preassert.lazy import need

_BATCH_ROWS = 1 << 16
_BATCH_VALUES = 1 << 22
_AHEAD_VALUES = 1 << 24  # a row group of more values is not decoded ahead: it would be held whole
_Batch = tuple[int, dict[str, Any]]


class ParquetReader(Reader):
    """One Parquet file. Row numbers run through the file, not through a row group."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._file = self._open()
        self.metadata = self._file.metadata
        self.schema = self._file.schema_arrow
        self._leaf_of: dict[str, int | None] = {}

    def _open(self, metadata: Any = None) -> Any:
        parquet = need("pyarrow.parquet", extra="data", purpose="read Parquet files")
        where = self.source.path if self.source.filesystem is None else self.source.open_raw()
        return parquet.ParquetFile(where, metadata=metadata)

    def columns(self) -> tuple[str, ...]:
        return leaves(self.schema)

    def class_names(self) -> dict[str, tuple[str, ...]]:
        return class_names_in_schema(self.schema)

    def label_maps(self) -> dict[str, CarriedMap]:
        # The footer's own entries: a file without an Arrow schema has no others.
        found, wrong = carried_maps({**(self.schema.metadata or {}), **(self.metadata.metadata or {})})
        self.notes += wrong
        return found

    def count_rows(self) -> int:
        return int(self.metadata.num_rows)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        """Row groups in order: small ones are decoded ahead, one a core; large ones are streamed, a batch at a time."""
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(cores) as pool:
            waiting: deque[tuple[int, dict[str, Any], Iterable[_Batch] | Future[list[_Batch]]]] = deque()
            row = 1
            for group in range(self.metadata.num_row_groups):
                row_group = self.metadata.row_group(group)
                proven = {column: proof for column in columns if covered and (proof := self._prove(row_group, column, covered))}
                unread = [column for column in columns if column not in proven]
                values = self._count_values(row_group, unread) if unread else 0
                if not unread and waiting and waiting[-1][2] == ():
                    first, before, _ = waiting.pop()
                    waiting.append((first, {column: _together(before[column], proven[column]) for column in proven}, ()))
                elif not unread:
                    waiting.append((row, proven, ()))
                elif values > _AHEAD_VALUES:
                    waiting.append((row, proven, self._read(group, unread, values, covered)))
                else:
                    ahead = pool.submit(lambda *given: list(self._read(*given)), group, unread, values, covered)
                    waiting.append((row, proven, ahead))
                row += row_group.num_rows
                if len(waiting) > cores:
                    yield from _given(*waiting.popleft())
            while waiting:
                yield from _given(*waiting.popleft())

    def _read(self, group: int, columns: Sequence[str], values: int, covered: Covered | None) -> Iterator[_Batch]:
        """The batches of one row group: (rows, column -> array or Proven) each, those proven clean as few as can be.

        Whole numbers are compared here, on the core that has just decoded them, and what is proven clean is let go. A small
        row group is decoded by one call: threads that come back to Python for each batch wait for each other there.
        """
        rows = max(1, self.metadata.row_group(group).num_rows)
        size = max(1, min(_BATCH_ROWS, _BATCH_VALUES * rows // max(values, 1)))
        file = self._open(self.metadata)
        roots = list({root_of(self.schema.names, column) for column in columns})
        if values > _AHEAD_VALUES:
            batches = file.iter_batches(batch_size=size, row_groups=[group], columns=roots, use_threads=False)
        else:
            batches = iter(file.read_row_group(group, columns=roots, use_threads=False).to_batches())
        is_integer = need("pyarrow", extra="data", purpose="read Parquet files").types.is_integer

        def settle(batch: Any) -> dict[str, Any]:
            arrays = {column: reach(batch, column) for column in columns}
            if covered is None:
                return arrays
            return {column: _settle(column, array, covered, is_integer) for column, array in arrays.items()}

        clean: dict[str, Any] = {}
        clean_rows = 0
        while (batch := next(batches, None)) is not None:
            settled = settle(batch)
            if all(isinstance(values, Proven) for values in settled.values()):
                clean = {column: _together(clean.get(column), proof) for column, proof in settled.items()}
                clean_rows += len(batch)
                continue
            if len(batch) > size:
                batches = itertools.chain([batch.slice(start, size) for start in range(0, len(batch), size)], batches)
                continue
            if clean:
                yield clean_rows, clean
                clean, clean_rows = {}, 0
            yield len(batch), settled
        if clean:
            yield clean_rows, clean

    def _count_values(self, row_group: Any, columns: Sequence[str]) -> int:
        """Values in the row group, elements of lists one by one."""
        roots = {root_of(self.schema.names, column) for column in columns}
        chunks = map(row_group.column, range(row_group.num_columns))
        return sum(chunk.num_values for chunk in chunks if root_of(self.schema.names, chunk.path_in_schema) in roots)

    def _prove(self, row_group: Any, column: str, covered: Covered) -> Proven | None:
        """Whether statistics alone show every value of the row group to be a legal whole number."""
        at = self._leaf(column)
        if at is None:
            return None
        statistics = row_group.column(at).statistics
        if statistics is None or not statistics.has_min_max or not statistics.has_null_count:
            return None
        low, high = statistics.min, statistics.max
        if statistics.null_count or not isinstance(low, int) or not isinstance(high, int) or not covered(column, low, high):
            return None
        return Proven(row_group.num_rows, low, high)

    def _leaf(self, column: str) -> int | None:
        """Index of the column chunk of a flat column of whole numbers; None for lists, whose values are more than their rows."""
        if column not in self._leaf_of:
            self._leaf_of[column] = self._find_leaf(column)
        return self._leaf_of[column]

    def _find_leaf(self, column: str) -> int | None:
        schema = self._file.schema
        for at in range(len(schema)):
            leaf = schema.column(at)
            if leaf.path == column and leaf.max_repetition_level == 0 and leaf.physical_type in ("INT32", "INT64"):
                return at
        return None


def _settle(column: str, array: Any, covered: Covered, is_integer: Callable[[Any], bool]) -> Any:
    """``Proven`` for an array of legal whole numbers, the array itself otherwise."""
    if not len(array) or not is_integer(array.type) or array.null_count:
        return array
    numbers = array.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    return Proven(len(array), low, high) if covered(column, low, high) else array


def _together(before: Proven | None, proof: Proven) -> Proven:
    """Two neighbouring proofs as one."""
    if before is None:
        return proof
    return Proven(before.rows + proof.rows, min(before.low, proof.low), max(before.high, proof.high))


def _given(row: int, proven: dict[str, Any], batches: Iterable[_Batch] | Future[list[_Batch]]) -> Iterator[Chunk]:
    if proven:
        yield Chunk(row, proven)
    for length, arrays in batches.result() if isinstance(batches, Future) else batches:
        yield Chunk(row, arrays)
        row += length


READER = ParquetReader
