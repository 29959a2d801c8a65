"""Quotes in tab-separated files. One rule for two rooms: ``check`` and ``remap`` read the same fields.

In some (GLUE, Common Voice) a quote is a character like any other, and one that begins a field need not be closed. Such files
are told by their lines: each has the tabs of a record. Where quotes enclose fields, and a field so holds a tab or a line
break, some line has not; where none does, both readings are the same but for the quotes around a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preassert.data.source import Source

_BLOCK_BYTES = 1 << 20
_LINE_LIMIT = 1 << 28  # bytes


def are_characters(source: Source, delimiter: str, width: int) -> bool:
    """Whether there are quotes in a file of ``width`` fields, and no line that only a reading of quotes explains."""
    if delimiter != "\t" or width < 2 or not _has_quotes(source):
        return False
    with source.open() as stream:
        while block := stream.read(_BLOCK_BYTES):
            lines = (block + stream.readline(_LINE_LIMIT)).split(b"\n")
            if any(line.count(b"\t") != width - 1 for line in lines if line.strip(b"\r")):
                return False
    return True


def _has_quotes(source: Source) -> bool:
    with source.open() as stream:
        while block := stream.read(_BLOCK_BYTES):
            if b'"' in block:
                return True
    return False


def read_lines(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The fields of each line of a file whose quotes are characters; none of an empty line, as ``csv.reader`` has it."""
    for line in lines:
        text = line.rstrip("\r\n")
        yield list(map(unwrapped, text.split(delimiter))) if text else []


def unwrapped(field: str) -> str:
    """A field of a file whose quotes are characters, without the quotes around it: there are files with both."""
    inner = field[1:-1]
    if len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return field
