"""Arrow IPC (files, streams, Feather 2): batch by batch, with the compression and the custom metadata that were there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preassert.data.source import reading
from preassert.errors import InputError
from preassert.labels import LabelMap
from preassert.lazy import need
from preassert.remap.columns import Column, Rewriting, count_leaves, declared_names, embedded
from preassert.remap.recode import Options, Recoder, Tally

_RECORD_BATCH = 3  # MessageHeader.RecordBatch in Message.fbs


def _arrow() -> Any:
    need("pyarrow", extra="data", purpose="rewrite Arrow files")
    return need("pyarrow.ipc", extra="data", purpose="rewrite Arrow files")


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, bool]]:
    """(reader, whether it is the file format and not the stream format)."""
    ipc = _arrow()
    pa = need("pyarrow", extra="data", purpose="rewrite Arrow files")
    with reading(str(path)), open(path, "rb") as head:
        magic = head.read(6)
    if magic.startswith(b"FEA1"):
        raise InputError(str(path), "Feather version 1, which holds no schema; write it again as version 2")
    if not magic:
        raise InputError(str(path), "empty file")
    with reading(str(path)), pa.memory_map(str(path)) as source:
        is_file = magic == b"ARROW1"
        with ipc.open_file(source) if is_file else ipc.open_stream(source) as reader:
            yield reader, is_file


def _batches(reader: Any, is_file: bool) -> Iterator[tuple[Any, Any]]:
    """(batch, custom metadata)."""
    if is_file:
        for number in range(reader.num_record_batches):
            yield reader.get_batch_with_custom_metadata(number)
        return
    while True:
        try:
            yield reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return


def survey(path: Path, options: Options, tally: Tally) -> None:
    with _open(path) as (reader, is_file):
        column = Column.find(reader.schema, options, str(path))
        names = declared_names(reader.schema.metadata, column)
        if names is not None:
            tally.declare(range(len(names)), names, str(path))
        for batch, _ in _batches(reader, is_file):
            count_leaves(column, batch.column(column.index), tally)
    options.advance(path.stat().st_size)


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    ipc = _arrow()
    with _open(path) as (reader, is_file):
        rewriting = Rewriting(reader.schema, options, recoder, str(path))
        how = ipc.IpcWriteOptions(compression=_compression(path), emit_dictionary_deltas=True, unify_dictionaries=is_file)
        maker = ipc.new_file if is_file else ipc.new_stream
        with maker(str(target), rewriting.schema, options=how) as writer:
            for batch, custom in _batches(reader, is_file):
                writer.write_batch(rewriting.batch(batch), custom_metadata=custom)
    options.advance(path.stat().st_size)


def embedded_map(path: Path) -> LabelMap | None:
    with _open(path) as (reader, _):
        return embedded(reader.schema.metadata, str(path))


def _compression(path: Path) -> str | None:
    """Codec of the record batches: pyarrow unpacks them without telling, so the flatbuffer of the first batch is read.

    Source: format/Message.fbs of Apache Arrow, tables Message (header_type 1, header 2) and RecordBatch (compression 3).
    """
    ipc, pa = _arrow(), need("pyarrow", extra="data", purpose="rewrite Arrow files")
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            source.seek(8)
        else:
            source.seek(0)
        while True:
            try:
                message = ipc.read_message(source)
            except (EOFError, pa.ArrowInvalid, OSError):
                return None
            if message.type == "record batch":
                return _codec(message.metadata.to_pybytes())


def _codec(buffer: bytes) -> str | None:
    def field(table: int, number: int) -> int | None:
        vtable = table - struct.unpack_from("<i", buffer, table)[0]
        size = struct.unpack_from("<H", buffer, vtable)[0]
        offset = struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0] if 4 + 2 * number < size else 0
        return table + offset if offset else None

    def follow(position: int) -> int:
        return int(position + struct.unpack_from("<I", buffer, position)[0])

    try:
        message = follow(0)
        kind, header = field(message, 1), field(message, 2)
        if kind is None or header is None or buffer[kind] != _RECORD_BATCH:
            return None
        compression = field(follow(header), 3)
        if compression is None:
            return None
        codec = field(follow(compression), 0)  # CompressionType: LZ4_FRAME 0 (the default, then left out), ZSTD 1
        return "zstd" if codec is not None and buffer[codec] == 1 else "lz4"
    except struct.error:
        return None
