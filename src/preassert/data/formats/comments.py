"""Comment lines in CSV files. One rule for two rooms: ``check`` passes them over, ``remap`` copies them.

A comment is a line that begins with ``#`` and cannot be a record: its number of fields is not that of the header. In a file
of one column, where every line could be one, it is ``#`` alone or ``# `` and text. Before the header the wanted column
tells the two apart, and where none is named, the line below does. A line that leaves a quote open is never a comment.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

SIGN = "#"


def is_comment(line: str, delimiter: str, width: int, sign: str | None = None) -> bool:
    """Whether a line (or record) below the header is a comment.

    Args:
        width: fields of the header.
        sign: what comments begin with, where the user says so; every such line is one then.
    """
    if sign is not None:
        return line.startswith(sign)
    if not line.startswith(SIGN):
        return False
    line = line.rstrip("\r\n")
    if width == 1:
        return line == SIGN or line.startswith(f"{SIGN} ")
    fields = count_fields(line, delimiter)
    return fields is not None and fields != width


def count_fields(line: str, delimiter: str) -> int | None:
    """Fields of a line; None where a quote is open at its end."""
    if '"' in line:
        mark = re.escape(delimiter)
        line = re.sub(rf'(^|{mark})"[^"]*(?:""[^"]*)*"', r"\1", line)
        if re.search(rf'(?:^|{mark})"', line):
            return None
    return line.count(delimiter) + 1


def is_header(line: str, follow: str | None, columns: Sequence[str], delimiters: Sequence[str]) -> bool:
    """Whether the first line that begins with ``#`` is the header (or, without one, the first record).

    Args:
        follow: the next line that is neither empty nor begins with ``#``; None: there is none.
        columns: the ones that are wanted. delimiters: possible ones, the usual one first.
    """
    if columns and _names_one(line, columns, delimiters):
        return True
    if follow is None or (columns and _names_one(follow, columns, delimiters)):
        return False
    delimiter = likeliest(follow, delimiters)
    width = count_fields(follow, delimiter)
    return width is not None and not is_comment(line, delimiter, width)


def likeliest(line: str, delimiters: Sequence[str]) -> str:
    """The usual delimiter if the line has it, else the one that it has most."""
    return delimiters[0] if delimiters[0] in line else max(delimiters, key=line.count)


def _names_one(line: str, columns: Sequence[str], delimiters: Sequence[str]) -> bool:
    for delimiter in delimiters:
        if count_fields(line, delimiter) is None:
            continue
        try:
            names = next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:
            continue
        if any(column in names for column in columns):
            return True
    return False
