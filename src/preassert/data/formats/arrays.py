"""Raw arrays inside files: read in bounded pieces, with every size checked against the file before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

_PIECE_BYTES = 8 << 20


def check_size(declared_bytes: int, present_bytes: int, what: str) -> None:
    """Raise ValueError when a header promises more bytes than are there."""
    if declared_bytes > present_bytes:
        raise ValueError(
            f"{what} should hold {declared_bytes:,} bytes, {present_bytes:,} are there: truncated, or a false header"
        )


def pieces(stream: BinaryIO, dtype: Any, shape: Sequence[int]) -> Iterator[Any]:
    """The array at the current position of ``stream`` in C order, as numpy arrays of consecutive rows (axis 0).

    A row larger than a piece comes whole; a 0-dimensional array is one row.

    Raises:
        EOFError: the stream ends early.
    """
    import numpy as np

    rows = shape[0] if shape else 1
    inner = tuple(shape[1:])
    row_bytes = math.prod(inner) * dtype.itemsize
    if row_bytes == 0:
        if rows:
            yield np.empty((rows, *inner), dtype)
        return
    step = max(1, _PIECE_BYTES // row_bytes)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        data = read_exactly(stream, count * row_bytes)
        yield np.frombuffer(data, dtype).reshape(count, *inner)


def read_exactly(stream: BinaryIO, size_bytes: int) -> bytes:
    """``size_bytes`` bytes from ``stream``, or EOFError."""
    parts: list[bytes] = []
    missing = size_bytes
    while missing:
        part = stream.read(min(missing, _PIECE_BYTES))
        if not part:
            raise EOFError(f"ends {missing:,} bytes early")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
