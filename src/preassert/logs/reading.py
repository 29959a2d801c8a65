"""Open a log, whatever wraps it: compression, UTF-16, a notebook. The rest of the room sees UTF-8 lines as bytes.

Nothing here holds more than one block of a file; only a notebook, which is one JSON document, is read whole (and has a
size limit).
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from preassert.errors import InputError
from preassert.lazy import need

BLOCK_BYTES = 1 << 20
NOTEBOOK_LIMIT_BYTES = 256 << 20
LOG_SUFFIXES = (".log", ".out", ".err", ".txt", ".jsonl", ".ipynb", ".gz", ".xz", ".bz2", ".zst")

_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bz2"), (b"\x28\xb5\x2f\xfd", "zstd"))


class Cell(NamedTuple):
    """One notebook output: which cell printed it, and the lines of the text."""

    number: int  # 1-based position of the cell in the notebook
    execution: int | None  # the number in the square brackets, In[...]
    failed: bool  # the output is an exception
    source: str
    lines: tuple[bytes, ...]


@dataclass(eq=False, repr=False, match_args=False)
class Source:
    """One opened log. ``blocks`` may be consumed once; ``notes`` fills while it is (a file that ends early, say)."""

    name: str
    blocks: Iterator[bytes]
    size_bytes: int | None = None  # of the uncompressed text, where it is known before reading
    cells: tuple[Cell, ...] | None = None  # set for a notebook; ``blocks`` is then empty
    notes: list[str] = field(default_factory=list)


def expand(arguments: list[str]) -> list[str]:
    """Files for command line arguments: globs are expanded (a shell on Windows does not), folders give their log files.

    Raises:
        InputError: a pattern or folder that gives no file, or a name that does not exist.
    """
    files: list[str] = []
    for argument in arguments:
        if argument == "-":
            files.append(argument)
        elif os.path.isdir(argument):
            inside = sorted(
                os.path.join(folder, name)
                for folder, _, names in os.walk(argument)
                for name in names
                if name.endswith(LOG_SUFFIXES)
            )
            if not inside:
                raise InputError(argument, f"no log files in this folder (looked for {', '.join(LOG_SUFFIXES)})")
            files.extend(inside)
        elif os.path.exists(argument):
            files.append(argument)
        elif any(mark in argument for mark in "*?["):
            import glob

            found = sorted(path for path in glob.glob(argument, recursive=True) if os.path.isfile(path))
            if not found:
                raise InputError(argument, "no file matches this pattern")
            files.extend(found)
        else:
            raise InputError(argument, "no such file")
    return files


def open_file(path: str) -> Source:
    """Open ``path`` (``"-"`` is standard input).

    Raises:
        InputError: it cannot be opened, or is no notebook although it is named one.
        MissingExtra: a ``.zst`` file without the zstandard package.
    """
    if path == "-":
        return open_stream(sys.stdin.buffer, "<stdin>")
    try:
        stream = open(path, "rb", buffering=0)  # noqa: SIM115  closed when its last block has been read
        size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    return open_stream(stream, path, size)


def open_text(text: str, name: str = "<text>") -> Source:
    """A text that is already in memory (a string passed to :func:`preassert.explain`)."""
    data = text.encode("utf-8", "surrogateescape")
    return open_stream(io.BytesIO(data), name, len(data))


def open_stream(stream: BinaryIO | io.RawIOBase, name: str, size_bytes: int | None = None) -> Source:
    source = Source(name, iter(()))
    raw = _blocks(stream, name)
    first = next(raw, b"")
    while len(first) < 8 and (more := next(raw, b"")):
        first += more  # a pipe may deliver the first bytes one by one
    kind = next((kind for magic, kind in _MAGIC if first.startswith(magic)), None)
    if kind is not None:
        raw = _decompress(_chain(first, raw), kind, source)
        first = next(raw, b"")
        size_bytes = None
    encoding = _wide_encoding(first)
    if encoding is not None:
        raw = _transcode(_chain(first, raw), encoding)
        first = next(raw, b"")
        size_bytes = None
    if first.startswith(codecs.BOM_UTF8):
        first = first[3:]
    if _is_notebook(name, first):
        text = _whole(_chain(first, raw), name)
        try:
            source.cells = _notebook(text, name)
            return source
        except InputError as error:
            if name.endswith(".ipynb"):
                raise
            source.notes.append(f"looks like a notebook and is none ({error.reason}); read as plain text")
        raw, first = iter(()), text
    source.blocks = _chain(first, raw)
    source.size_bytes = size_bytes
    return source


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _blocks(stream: Any, name: str) -> Iterator[bytes]:
    try:
        with stream:
            while True:
                block = stream.read1(BLOCK_BYTES) if hasattr(stream, "read1") else stream.read(BLOCK_BYTES)
                if not block:
                    return
                yield block
    except OSError as error:
        raise InputError(name, error.strerror or str(error)) from error


class _Joined(io.RawIOBase):
    """The blocks as one readable stream, for the decompressors of the standard library."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(self._blocks, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _decompress(blocks: Iterator[bytes], kind: str, source: Source) -> Iterator[bytes]:
    """Decompressed blocks, never more than one at a time; a stream that is cut gives what comes before, with a note."""
    stream = _decompressor(kind, _Joined(blocks))
    try:
        while block := stream.read1(BLOCK_BYTES) if hasattr(stream, "read1") else stream.read(BLOCK_BYTES):
            yield block
    except (EOFError, OSError, ValueError) as error:
        source.notes.append(f"the {kind} stream is damaged ({error}); what comes before the damage was read")
    except Exception as error:
        # zlib.error, lzma.LZMAError and zstandard.ZstdError share no base class but Exception
        if type(error).__name__ not in ("error", "LZMAError", "ZstdError"):
            raise
        source.notes.append(f"the {kind} stream is damaged ({error}); what comes before the damage was read")


def _decompressor(kind: str, stream: Any) -> Any:
    if kind == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=stream)
    if kind == "xz":
        import lzma

        return lzma.LZMAFile(stream)
    if kind == "bz2":
        import bz2

        return bz2.BZ2File(stream)
    zstandard = need("zstandard", extra="data", purpose="read .zst files")
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stream, read_across_frames=True)


def _wide_encoding(first: bytes) -> str | None:
    """UTF-16 (PowerShell's redirection), told by its mark or by the zero bytes of plain English text."""
    marked = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not first.startswith(codecs.BOM_UTF32_LE)
    if marked and b"\0" in first[:2048]:  # without a zero byte it is a text that begins with two stray bytes
        return "utf-16"
    sample = first[:2048]
    sample = sample[: len(sample) // 2 * 2]
    if len(sample) < 16:
        return None
    half = len(sample) // 2
    if sample[1::2].count(0) > 0.7 * half and sample[0::2].count(0) < 0.1 * half:
        return "utf-16-le"
    if sample[0::2].count(0) > 0.7 * half and sample[1::2].count(0) < 0.1 * half:
        return "utf-16-be"
    return None


def _transcode(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def _is_notebook(name: str, first: bytes) -> bool:
    if name.endswith(".ipynb"):
        return True
    return first.lstrip().startswith(b"{") and b'"cells"' in first and b'"cell_type"' in first


def _whole(blocks: Iterator[bytes], name: str) -> bytes:
    held = bytearray()
    for block in blocks:
        held += block
        if len(held) > NOTEBOOK_LIMIT_BYTES:
            raise InputError(name, f"the notebook is larger than {NOTEBOOK_LIMIT_BYTES >> 20} MB")
    return bytes(held)


def _notebook(text: bytes, name: str) -> tuple[Cell, ...]:
    """The outputs of a notebook in the order of the cells."""
    import json

    try:
        document = json.loads(text.decode("utf-8", "replace"))
        cells = document["cells"] if "cells" in document else document["worksheets"][0]["cells"]
        return tuple(_outputs(cells))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(name, f"not a Jupyter notebook ({type(error).__name__}: {error})") from error


def _outputs(cells: list[Any]) -> Iterator[Cell]:
    for number, cell in enumerate(cells, 1):
        code = _joined(cell.get("source", cell.get("input", "")))
        execution = cell.get("execution_count", cell.get("prompt_number"))
        for output in cell.get("outputs") or ():
            failed = output.get("output_type") in ("error", "pyerr")
            if failed:
                text = "\n".join(map(str, output.get("traceback") or ()))
                value = str(output.get("evalue", ""))
                if value not in text:
                    text += f"\n{output.get('ename', '')}: {value}"
            else:
                data = output.get("data", output)
                text = _joined(output.get("text") or data.get("text/plain") or "")
            lines = tuple(line.encode("utf-8", "replace") for line in text.split("\n"))
            yield Cell(number, execution if isinstance(execution, int) else None, failed, code, lines)


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)
