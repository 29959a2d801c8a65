"""Logs in, the cause out: read a log of any shape, find what failed first, say what it means.

``reading`` opens, ``scan`` cuts out what matters, ``lines`` cleans, ``assertion``, ``failures`` and ``frames`` recognise,
``diagnose`` answers. Nothing here imports torch, and no text is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from preassert.logs.diagnose import CLEAN, SCHEMA, UNKNOWN, Report, diagnose, read
from preassert.logs.reading import expand, open_file, open_text
from preassert.logs.scan import limits_for

__all__ = ["CLEAN", "SCHEMA", "UNKNOWN", "Report", "expand", "explain_files", "explain_text"]


def explain_files(paths: Sequence[str], *, shape: tuple[int, ...] | None = None) -> Report:
    """One report for logs that belong together, one of each rank, say.

    Args:
        paths: files; ``"-"`` is standard input. They may be compressed, UTF-16 or notebooks.
        shape: shape of the offending argument, to turn positions into coordinates.

    Raises:
        InputError: a file cannot be opened, or is no notebook although it is named one.
        MissingExtra: a ``.zst`` file without zstandard.
    """
    limits = limits_for(len(paths))
    return diagnose([read(open_file(path), limits) for path in paths], shape)


def explain_text(text: str, *, name: str = "<text>", shape: tuple[int, ...] | None = None) -> Report:
    """The report of a text that is already in memory."""
    return diagnose([read(open_text(text, name))], shape)
