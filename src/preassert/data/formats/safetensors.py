"""Safetensors: the header is read here, bounded, and the tensors are streamed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from preassert.data.formats.arrays import check_size, pieces, read_exactly
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source
from preassert.lazy import need

_HEADER_LIMIT_BYTES = 100 << 20  # the limit of the safetensors library itself
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


class SafetensorsReader(Reader):
    """One ``.safetensors`` file; each tensor is a column."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        size = source.size_bytes or 0
        with source.open() as stream:
            length = int.from_bytes(read_exactly(stream, 8), "little")
            check_size(length, max(size - 8, 0), "the header")
            if length > _HEADER_LIMIT_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            header = json.loads(read_exactly(stream, length))
        if not isinstance(header, dict):
            raise ValueError("the header is no JSON object")
        self._start = 8 + length
        self.tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
        for name, entry in header.items():
            if name != "__metadata__":
                self.tensors[name] = _tensor(name, entry, size - self._start)

    def columns(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def count_rows(self) -> int:
        return max((shape[0] if shape else 1 for _, shape, _ in self.tensors.values()), default=0)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        np = need("numpy", extra="data", purpose="read safetensors files")
        for column in columns:
            kind, shape, offset = self.tensors[column]
            if kind not in DTYPES:
                raise ValueError(f"tensor {column!r} holds {kind}, which cannot be labels")
            row = 1
            with self.source.open_raw() as stream:
                stream.seek(self._start + offset)
                for piece in pieces(stream, np.dtype(DTYPES[kind]), shape):
                    yield Chunk(row, {column: widen_bfloat16(piece) if kind == "BF16" else piece})
                    row += len(piece)


def _tensor(name: str, entry: Any, present_bytes: int) -> tuple[str, tuple[int, ...], int]:
    """(dtype, shape, offset) of one entry, checked against the file."""
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError("negative")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"damaged header: tensor {name!r}") from error
    check_size(end, present_bytes, f"tensor {name!r}")
    if kind in DTYPES:
        width = {"?": 1}.get(DTYPES[kind]) or int(DTYPES[kind][-1])
        check_size(math.prod(shape) * width, end - start, f"tensor {name!r}")
    return kind, shape, start


def widen_bfloat16(bits: Any) -> Any:
    """bfloat16 values, given as their bits in uint16, as float32."""
    np = need("numpy", extra="data", purpose="read bfloat16 tensors")
    return (bits.astype(np.uint32) << 16).view(np.float32)


READER = SafetensorsReader
