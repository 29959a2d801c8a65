"""Files as given on the command line: globs, folders, object stores, compression, and limits on hostile ones."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from preassert.errors import InputError, PreassertError, UsageError
from preassert.lazy import need

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
# A stream that unpacks to more than this, at more than this many times its size, is taken for a bomb. Deflate cannot
# exceed 1032:1; label columns stay far below 500:1.
BOMB_BYTES = 1 << 30
BOMB_RATIO = 500

# Libraries whose own exception classes mean "this file is not what it claims to be".
_READERS = frozenset(
    (
        "PIL",
        "_lzma",
        "_pickle",
        "lzma",
        "msgspec",
        "pickle",
        "pyarrow",
        "tarfile",
        "tifffile",
        "xml",
        "yaml",
        "zipfile",
        "zlib",
        "zstandard",
    )
)
_UNREADABLE = (OSError, EOFError, ValueError, OverflowError, MemoryError, RecursionError, NotImplementedError, struct.error)


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Turn whatever a reading library raises about the content of ``file`` into an InputError that names it."""
    try:
        yield
    except PreassertError:
        raise
    except Exception as error:
        root = type(error).__module__.partition(".")[0]
        if isinstance(error, _UNREADABLE) or root in _READERS:
            raise InputError(file, reason_of(error)) from error
        raise


def reason_of(error: BaseException) -> str:
    """One line that says why a file cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read, local or in an object store.

    Attributes:
        path: as the report names it.
        size_bytes: stored size; None where an object store does not tell.
        dtype: element type of a headerless file (``--dtype``), None for its default.
        header: whether a CSV file starts with column names (``--no-header``).
        columns: the ones that are wanted; they tell the header of a CSV file from comments above it.
        comment: what comment lines of a CSV file begin with (``--comment``); None: ``#`` where no record can begin so.
    """

    path: str
    dtype: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()
    comment: str | None = None
    filesystem: Any = field(default=None, compare=False)  # a pyarrow filesystem, None for local files

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name if self.filesystem else os.path.basename(self.path)

    @property
    def compression(self) -> str | None:
        suffix = os.path.splitext(self.name)[1].lower()
        return suffix if suffix in COMPRESSIONS else None

    @property
    def suffix(self) -> str:
        """The suffix that tells the format: lower case, a compression suffix left out."""
        name = self.name.lower()
        compression = self.compression
        return os.path.splitext(name.removesuffix(compression) if compression else name)[1]

    @property
    def size_bytes(self) -> int | None:
        if self.filesystem is None:
            return os.stat(self.path).st_size
        size = self.filesystem.get_file_info(_key(self.path)).size
        return None if size is None else int(size)

    def open_raw(self) -> BinaryIO:
        """The stored bytes, seekable.

        Raises:
            ValueError: a pipe or a device, of which reading could wait for ever.
        """
        if self.filesystem is None:
            refuse_pipe(self.path)
            return open(self.path, "rb")
        return cast(BinaryIO, self.filesystem.open_input_file(_key(self.path)))

    def open(self) -> BinaryIO:
        """The unpacked bytes, from the start; not seekable when compressed. Refuses decompression bombs as it reads."""
        raw = self.open_raw()
        compression = self.compression
        if compression is None:
            return raw
        return io.BufferedReader(_Bounded(_unpack(raw, compression), raw, self.path), 1 << 20)

    def head(self, size: int = 64) -> bytes:
        """The first unpacked bytes."""
        with self.open() as stream:
            return stream.read(size)


def _unpack(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == ".gz":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if compression == ".bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(raw))
    if compression == ".xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(raw))
    zstandard = need("zstandard", extra="data", purpose="read .zst files")
    limited = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return cast(BinaryIO, limited.stream_reader(raw, read_across_frames=True))


class _Bounded(io.RawIOBase):
    """A stream that stops when it unpacks to suspiciously much."""

    def __init__(self, stream: BinaryIO, raw: BinaryIO, path: str) -> None:
        self._stream = stream
        self._raw = raw
        self._path = path
        self._unpacked = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._unpacked += len(data)
        refuse_bomb(self._path, self._unpacked, self._raw.tell())
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._raw.close()
        super().close()


def refuse_bomb(path: str, unpacked_bytes: int, packed_bytes: int) -> None:
    """Raise InputError when a file of ``packed_bytes`` unpacking to ``unpacked_bytes`` looks like a decompression bomb."""
    if unpacked_bytes > BOMB_BYTES and unpacked_bytes > BOMB_RATIO * max(packed_bytes, 1):
        ratio = unpacked_bytes // max(packed_bytes, 1)
        raise InputError(path, f"unpacks to {unpacked_bytes:,} bytes or more, {ratio:,} times its size: a decompression bomb")


def refuse_pipe(path: str) -> None:
    """Raise ValueError for a pipe or a device: reading it could wait for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("not a regular file")


def is_remote(path: str) -> bool:
    return "://" in path


def _key(path: str) -> str:
    return path.partition("://")[2]


def expand(path: str) -> list[str]:
    """The files and folders that one argument names: a glob gives its matches, sorted; anything else gives itself.

    Raises:
        UsageError: nothing matches, or the path does not exist.
    """
    if is_remote(path):
        return _expand_remote(path)
    if os.path.lexists(path):
        return [path]
    if any(character in path for character in "*?["):
        import glob

        found = sorted(glob.glob(path, recursive=True))
        if found:
            return found
        raise UsageError(f"no file matches {path!r}")
    raise UsageError(f"no such file or folder: {path!r}")


def expand_all(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(argument, file or folder that it names) for each argument; what several of them name comes once.

    Raises:
        UsageError: as :func:`expand`.
    """
    seen: set[str] = set()
    for path in paths:
        for target in expand(path):
            key = target if is_remote(target) else os.path.abspath(target)
            if key not in seen:
                seen.add(key)
                yield path, target


def _expand_remote(path: str) -> list[str]:
    filesystem = remote_filesystem(path)
    scheme = path.partition("://")[0]
    fs = need("pyarrow.fs", extra="data", purpose="read object stores")
    with reading(path):
        key = _key(path)
        if not any(character in key for character in "*?["):
            info = filesystem.get_file_info(key)
            if info.type == fs.FileType.NotFound:
                raise UsageError(f"no such file: {path!r}")
            if info.type == fs.FileType.File:
                return [path]
            key, pattern = key.rstrip("/"), "*"
        else:
            base = key[: min(key.index(c) for c in "*?[" if c in key)]
            key, pattern = base.rpartition("/")[0], path.partition("://")[2]
        listed = filesystem.get_file_info(fs.FileSelector(key, recursive=True))
    files = [info.path for info in listed if info.type == fs.FileType.File]
    matches = sorted(name for name in files if pattern == "*" or PurePosixPath(name).match(pattern))
    if not matches:
        raise UsageError(f"no file matches {path!r}")
    return [f"{scheme}://{name}" for name in matches]


def remote_filesystem(path: str) -> Any:
    """The pyarrow filesystem for an address such as ``s3://bucket/key`` or ``gs://bucket/key``."""
    fs = need("pyarrow.fs", extra="data", purpose="read object stores")
    with reading(path):
        return fs.FileSystem.from_uri(path)[0]


def source(
    path: str, *, dtype: str | None = None, header: bool = True, columns: tuple[str, ...] = (), comment: str | None = None
) -> Source:
    """The :class:`Source` of one file."""
    return Source(path, dtype, header, columns, comment, remote_filesystem(path) if is_remote(path) else None)


@dataclass(slots=True)
class Walk:
    """The files below a folder, sorted, and the links that lead back to a folder above them (not followed)."""

    files: list[str]
    loops: list[str]


def walk(folder: str) -> Walk:
    """List ``folder`` recursively; links are followed once. Hidden entries and ``_`` folders (``_delta_log``) are left out."""
    files: list[str] = []
    loops: list[str] = []

    def visit(path: str, above: frozenset[str]) -> None:
        with reading(path):
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if not is_folder:
                files.append(entry.path)
                continue
            if entry.name.startswith("_"):
                continue
            real = os.path.realpath(entry.path)
            if real in above:
                loops.append(entry.path)
            else:
                visit(entry.path, above | {real})

    visit(folder, frozenset({os.path.realpath(folder)}))
    return Walk(files, loops)


def read_small(path: str, limit_bytes: int = 64 << 20) -> bytes:
    """The content of a file that is known to be small (a class list, a configuration).

    Raises:
        InputError: it cannot be read, or is larger than ``limit_bytes``.
    """
    with reading(path):
        refuse_pipe(path)
        size = os.stat(path).st_size
        if size > limit_bytes:
            raise InputError(path, f"{size:,} bytes: too large for a file of this kind")
        return Path(path).read_bytes()
