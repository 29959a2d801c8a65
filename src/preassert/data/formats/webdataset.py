"""WebDataset tar shards: the members that share a name up to the first dot are one sample, its suffixes the columns."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from preassert.data.formats.arrays import check_size
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source

_MEMBER_LIMIT_BYTES = 64 << 20
_BATCH_ROWS = 4096


class WebDatasetReader(Reader):
    """One tar shard. Columns are suffixes (``cls``) and, for JSON members, ``json.label``, or ``label`` alone."""

    text = True
    row_noun = "sample"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._example = self._first_columns()

    def columns(self) -> None:
        return None

    def example(self) -> tuple[str, ...]:
        return self._example

    def _first_columns(self) -> tuple[str, ...]:
        for sample in self._samples(None):
            names: list[str] = []
            for suffix, data in sample.items():
                names.append(suffix)
                if suffix == "json" and data is not None:
                    record = json.loads(data)
                    names.extend(record if isinstance(record, dict) else ())
            # Labels first: ``cls`` is what WebDataset calls a class.
            return tuple(sorted(names, key=lambda name: name != "cls"))
        return ()

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        wanted = {column.partition(".")[0] for column in columns} | {"json"}
        batch: dict[str, list[Any]] = {column: [] for column in columns}
        seen: set[str] = set()
        row = first = 1
        for sample in self._samples(wanted):
            record = _record(sample)
            for column in columns:
                present, value = _value(sample, record, column)
                if present:
                    seen.add(column)
                batch[column].append(value)
            row += 1
            if row - first == _BATCH_ROWS:
                yield Chunk(first, batch)
                batch, first = {column: [] for column in columns}, row
        if row > first:
            yield Chunk(first, batch)
        self.absent = tuple(column for column in columns if column not in seen)

    def _samples(self, wanted: set[str] | None) -> Iterator[dict[str, bytes | None]]:
        """Suffix -> content (None for members that are not wanted) of each sample."""
        current: dict[str, bytes | None] = {}
        key: str | None = None
        last: tarfile.TarInfo | None = None
        mode: Literal["r|gz", "r|"] = "r|gz" if self.source.suffix == ".tgz" else "r|"
        with self.source.open() as stream, tarfile.open(fileobj=stream, mode=mode) as archive:
            for member in archive:
                last = member
                if not member.isfile() or member.name.rpartition("/")[2].startswith("."):
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, dot, suffix = base.partition(".")
                if not dot:
                    continue
                name = f"{folder}/{stem}"
                if name != key and current:
                    yield current
                    current = {}
                key = name
                current[suffix] = self._content(archive, member) if _wants(wanted, suffix) else None
            if current:
                yield current
        if last is not None and self.source.suffix == ".tar" and self.source.compression is None:
            # tarfile takes a shard that ends within a member for one that ends before it
            check_size(last.offset_data + last.size, self.source.size_bytes or 0, last.name)

    def _content(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
        if member.size > _MEMBER_LIMIT_BYTES:
            raise ValueError(f"{member.name}: {member.size:,} bytes, too large for a label")
        opened = archive.extractfile(member)
        return opened.read() if opened is not None else None


def _record(sample: dict[str, bytes | None]) -> Any:
    data = sample.get("json")
    return None if data is None else json.loads(data)


def _wants(wanted: set[str] | None, suffix: str) -> bool:
    return suffix == "json" if wanted is None else suffix in wanted or suffix.partition(".")[0] in wanted


def _value(sample: dict[str, bytes | None], record: Any, column: str) -> tuple[bool, Any]:
    """(present?, value) of ``column`` in one sample."""
    if column in sample and column != "json":
        data = sample[column]
        return True, None if data is None else data.decode("utf-8").strip()
    value = record
    for key in column.removeprefix("json.").split("."):
        if not isinstance(value, dict) or key not in value:
            return False, None
        value = value[key]
    return True, value


READER = WebDatasetReader
