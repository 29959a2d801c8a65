"""NumPy ``.npy`` and ``.npz``: streamed; arrays of Python objects (pickles) are refused."""

from __future__ import annotations

import ast
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from preassert.data.formats.arrays import check_size, pieces, read_exactly
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.source import Source, refuse_bomb
from preassert.lazy import need

_MAGIC = b"\x93NUMPY"
_HEADER_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of one ``.npy`` stream says."""

    dtype: Any
    shape: tuple[int, ...]
    fortran: bool
    size_bytes: int  # of the header itself

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class NpyReader(Reader):
    """One ``.npy`` file (a single array, named ``""``, or the fields of a structured one) or one ``.npz`` archive."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.headers: dict[str, Header] = {}
        if source.suffix == ".npz":
            with self._archive() as archive:
                for member in archive.infolist():
                    name = member.filename.removesuffix(".npy")
                    refuse_bomb(source.path, member.file_size, member.compress_size)
                    with archive.open(member) as stream:
                        header = read_header(cast(BinaryIO, stream))
                    check_size(header.size_bytes + header.data_bytes, member.file_size, f"array {name!r}")
                    self.headers[name] = header
            return
        with source.open() as stream:
            header = read_header(stream)
        size = source.size_bytes if source.compression is None else None
        if size is not None:
            check_size(header.size_bytes + header.data_bytes, size, "the file")
        self.headers[""] = header

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self.source.open() as stream, zipfile.ZipFile(stream) as archive:
            yield archive

    def columns(self) -> tuple[str, ...]:
        out: list[str] = []
        for name, header in self.headers.items():
            fields = header.dtype.names
            out.extend([_join(name, field) for field in fields] if fields else [name])
        return tuple(out)

    def count_rows(self) -> int | None:
        counts = [header.shape[0] if header.shape else 1 for header in self.headers.values()]
        return max(counts, default=0)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        for column in columns:
            name, field = self._locate(column)
            row = 1
            for piece in self._pieces(name):
                yield Chunk(row, {column: piece[field] if field else piece})
                row += len(piece)

    def _locate(self, column: str) -> tuple[str, str | None]:
        """(array, field of a structured array)."""
        if column in self.headers and not self.headers[column].dtype.names:
            return column, None
        name, _, field = column.rpartition(".")
        return name, field

    def _pieces(self, name: str) -> Iterator[Any]:
        header = self.headers[name]
        if header.dtype.hasobject:
            raise ValueError(
                f"array {name!r} holds Python objects (a pickle, which could run code): save it as numbers or fixed-width text"
            )
        if self.source.suffix == ".npz":
            with self._archive() as archive:
                member = next(entry for entry in archive.infolist() if entry.filename.removesuffix(".npy") == name)
                with archive.open(member) as stream:
                    yield from _rows(cast(BinaryIO, stream), header)
        else:
            with self.source.open() as stream:
                yield from _rows(stream, header)


def _join(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _rows(stream: BinaryIO, header: Header) -> Iterator[Any]:
    read_exactly(stream, header.size_bytes)
    if header.fortran and len(header.shape) > 1:
        # Column-major: rows are spread over the whole file, so it is read as one.
        flat = next(pieces(stream, header.dtype, (1, math.prod(header.shape))))
        yield flat.reshape(header.shape[::-1]).T
    else:
        yield from pieces(stream, header.dtype, header.shape)


def read_header(stream: BinaryIO) -> Header:
    """The header of an ``.npy`` stream (versions 1 to 3); the stream then stands at the data.

    Raises:
        ValueError: it is none, or damaged. EOFError: it ends early.
    """
    fmt = need("numpy.lib.format", extra="data", purpose="read .npy files")
    magic = read_exactly(stream, 8)
    if not magic.startswith(_MAGIC):
        raise ValueError("not a NumPy array file")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(read_exactly(stream, width), "little")
    if length > _HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    try:
        fields = ast.literal_eval(read_exactly(stream, length).decode("latin1" if magic[6] < 3 else "utf8"))
        dtype = fmt.descr_to_dtype(fields["descr"])
        shape = fields["shape"]
        fortran = bool(fields["fortran_order"])
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"damaged header ({error})") from error
    if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"damaged header (shape {shape!r})")
    return Header(dtype, shape, fortran, 8 + width + length)


READER = NpyReader
