"""Token files: headerless ``.bin`` (nanoGPT), llm.c shards, Megatron ``.bin`` with its ``.idx``; and ``.bin`` of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.formats.arrays import check_size, pieces, read_exactly
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source
from preassert.errors import UsageError
from preassert.lazy import need

COLUMN = "input_ids"
DEFAULT_DTYPE = "uint16"
_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
# llm.c (train_gpt2.c, dev/data): 256 int32 of header, [0] magic, [1] version, [2] number of tokens.
_LLMC_HEADER_BYTES = 1024
_LLMC = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
# Megatron-LM, megatron/core/datasets/indexed_dataset.py: dtype codes of the .idx file.
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class TokenReader(Reader):
    """One token file: a single column ``input_ids``; rows are tokens, or documents where an index tells them apart."""

    row_noun = "token"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        np = need("numpy", extra="data", purpose="read token files")
        size = source.size_bytes if source.compression is None else None
        self._skip_bytes = 0
        self._tokens: int | None = None
        self._lengths: Any = None
        name = source.dtype or DEFAULT_DTYPE
        if name not in _DTYPES:
            raise UsageError(f"--dtype {name}: one of {', '.join(_DTYPES)} is expected")
        head = source.head(12)
        index = source.path.removesuffix(".bin") + ".idx"
        if source.filesystem is None and os.path.exists(index):
            name, self._lengths = _megatron_index(index)
            self.row_noun = "document"
        elif len(head) == 12:
            magic, version, tokens = np.frombuffer(head, "<i4").tolist()
            if (magic, version) in _LLMC:
                name, self._skip_bytes, self._tokens = _LLMC[magic, version], _LLMC_HEADER_BYTES, tokens
        self._dtype = np.dtype(name).newbyteorder("<")
        if size is None:
            return
        data_bytes = size - self._skip_bytes
        if self._lengths is not None:
            check_size(int(self._lengths.sum()) * self._dtype.itemsize, data_bytes, "by its index, the file")
        elif self._tokens is not None:
            check_size(self._tokens * self._dtype.itemsize, data_bytes, "the file")
        elif data_bytes % self._dtype.itemsize:
            raise ValueError(f"{data_bytes:,} bytes are no whole number of {name} tokens (another --dtype?)")
        else:
            self._tokens = data_bytes // self._dtype.itemsize

    def columns(self) -> tuple[str, ...]:
        return (COLUMN,)

    def count_rows(self) -> int | None:
        return self._tokens if self._lengths is None else len(self._lengths)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        with self.source.open() as stream:
            if self._skip_bytes:
                read_exactly(stream, self._skip_bytes)
            if self._lengths is not None:
                yield from self._documents(stream)
                return
            row = 1
            if self._tokens is not None:
                for piece in pieces(stream, self._dtype, (self._tokens,)):
                    yield Chunk(row, {COLUMN: piece})
                    row += len(piece)
                return
            np = need("numpy", extra="data", purpose="read token files")
            while data := stream.read(8 << 20):
                if len(data) % self._dtype.itemsize:
                    raise ValueError("no whole number of tokens (another --dtype?)")
                yield Chunk(row, {COLUMN: np.frombuffer(data, self._dtype)})
                row += len(data) // self._dtype.itemsize

    def _documents(self, stream: Any) -> Iterator[Chunk]:
        """Documents as lists, a few million tokens at a time."""
        np = need("numpy", extra="data", purpose="read token files")
        pa = need("pyarrow", extra="data", purpose="read token files")
        ends = np.cumsum(self._lengths)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + (1 << 22), "right")))
            offsets = np.concatenate([[0], ends[start:stop] - before])
            flat = np.frombuffer(read_exactly(stream, int(offsets[-1]) * self._dtype.itemsize), self._dtype)
            yield Chunk(start + 1, {COLUMN: pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))})
            start = stop


def _megatron_index(path: str) -> tuple[str, Any]:
    """(dtype, tokens of each sequence) from a Megatron ``.idx`` file."""
    np = need("numpy", extra="data", purpose="read token files")
    with open(path, "rb") as stream:
        if read_exactly(stream, 9) != _MEGATRON_MAGIC:
            raise ValueError(f"{path} is no Megatron index")
        version, code, sequences, _ = np.frombuffer(read_exactly(stream, 25), np.dtype("<u8,u1,<u8,<u8"))[0].tolist()
        if version != 1 or code not in _MEGATRON_DTYPES:
            raise ValueError(f"{path}: version {version}, dtype code {code}: unknown")
        check_size(34 + sequences * 4, os.stat(path).st_size, path)
        lengths = np.frombuffer(read_exactly(stream, sequences * 4), "<i4").astype(np.int64)
    if len(lengths) and lengths.min() < 0:
        raise ValueError(f"{path}: a negative length")
    return _MEGATRON_DTYPES[code], lengths


def open_bin(source: Source) -> Reader:
    """A ``.bin`` file: ``torch.save`` writes zip archives under that name, everything else is tokens."""
    if source.head(4).startswith(b"PK\x03\x04"):
        from preassert.data.formats.torchfile import TorchFileReader

        return TorchFileReader(source)
    return TokenReader(source)


READER = open_bin
