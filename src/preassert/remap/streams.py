"""Bytes of text files: unpacked, in an encoding where commas and quotes are single bytes, and back the way they came."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from preassert.data.source import COMPRESSIONS, reading
from preassert.errors import InputError, UsageError
from preassert.lazy import need
from preassert.remap.recode import Options

BLOCK_BYTES = 1 << 22
UTF8_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


def _open(path: Path, mode: str) -> BinaryIO:
    """Open for reading ("rb") or writing ("wb"), through the compression that the suffix of ``path`` names."""
    import bz2
    import gzip
    import lzma

    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, mode, compresslevel=6))
    if path.suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path, mode))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, mode))
    if path.suffix == ".zst":
        zstandard = need("zstandard", extra="data", purpose="read and write .zst files")
        return cast(BinaryIO, zstandard.open(path, mode))
    return cast(BinaryIO, open(path, mode))


def wide_encoding(path: Path, encoding: str | None) -> tuple[str | None, bytes]:
    """(encoding, byte order mark) of a file whose characters are not bytes (UTF-16, UTF-32); (None, b"") for all others.

    Raises:
        UsageError: ``encoding`` is not one that Python knows.
    """
    if encoding is not None:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            raise UsageError(f"--encoding {encoding}: no such encoding") from None
        if not name.startswith(("utf-16", "utf-32")):
            return None, b""
    with reading(str(path)), _open(path, "rb") as file:
        head = file.read(4)
    for mark, name in _WIDE_BOMS:
        if head.startswith(mark):
            return name, mark
    return (codecs.lookup(encoding).name, b"") if encoding is not None else (None, b"")


def blocks(path: Path, wide: tuple[str | None, bytes], advance: Any) -> Iterator[bytes]:
    """The file in blocks; wide encodings arrive as UTF-8, without their byte order mark."""
    name, mark = wide
    with reading(str(path)), _open(path, "rb") as file:
        decoder = codecs.getincrementaldecoder(name)() if name else None
        if mark:
            file.read(len(mark))
        raw = getattr(file, "fileobj", None) or file
        done = 0
        while block := file.read(BLOCK_BYTES):
            here = raw.tell() if raw is not file and hasattr(raw, "tell") else done + len(block)
            advance(max(0, here - done))
            done = here
            yield decoder.decode(block).encode("utf-8", "surrogatepass") if decoder else block
        if decoder:
            yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")


class Sink:
    """Writes what ``blocks`` gave, in the encoding and the compression of the input."""

    def __init__(self, file: BinaryIO, wide: tuple[str | None, bytes]) -> None:
        self._file = file
        self._encoding = wide[0]
        if wide[1]:
            file.write(wide[1])

    def write(self, data: bytes) -> None:
        if self._encoding:
            data = data.decode("utf-8", "surrogatepass").encode(self._encoding)
        self._file.write(data)


@contextmanager
def sink(target: Path, like: Path, wide: tuple[str | None, bytes]) -> Iterator[Sink]:
    """Open ``target`` (a temporary name) for output, packed as the suffix of ``like`` says."""
    packed = like.suffix in COMPRESSIONS
    # The compressor is chosen by suffix, and the temporary name has another.
    working = target.with_name(target.name + like.suffix) if packed else target
    file = _open(working, "wb")
    try:
        buffered = io.BufferedWriter(cast(io.RawIOBase, file), BLOCK_BYTES) if packed else None
        yield Sink(cast(BinaryIO, buffered) if buffered else file, wide)
        if buffered:
            buffered.flush()
            buffered.detach()
        file.close()
        if packed:
            working.replace(target)
    except BaseException:
        file.close()
        if packed:
            working.unlink(missing_ok=True)
        raise


def narrow(options: Options) -> str:
    """Encoding of what ``blocks`` gives: wide ones have become UTF-8 there."""
    name = options.encoding
    return "utf-8" if name is None or name.lower().startswith(("utf-16", "utf-32", "utf_16", "utf_32")) else name


def decode(data: bytes, options: Options, path: Path) -> str:
    """A label (or a header) as text.

    Raises:
        InputError: it is not in the encoding.
    """
    encoding = narrow(options)
    try:
        return data.decode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"the label {data[:40]!r} is not {encoding}: {error.reason}; name the encoding with --encoding"
        ) from error


def encode(text: str, options: Options, path: Path) -> bytes:
    encoding = narrow(options)
    try:
        return text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")
    except UnicodeEncodeError as error:
        raise InputError(str(path), f"the label {text[:40]!r} cannot be written in {encoding}") from error
