"""What every table format offers: its columns, and their values in chunks with row numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preassert.data.carried import CarriedMap
from preassert.data.source import Source

# (column, lowest, highest) -> would the rule for this column accept every whole number in between?
Covered = Callable[[str, int, int], bool]


@dataclass(frozen=True, slots=True)
class Proven:
    """Rows known to be whole numbers in ``low..high``, none null: by statistics of the file, or read by the format itself."""

    rows: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows. ``columns`` maps a name to a pyarrow array, a numpy array, a list of Python values, or Proven."""

    first_row: int  # 1-based
    columns: dict[str, Any]


class Reader(ABC):
    """One file of a table format. Construction may read the header and nothing else.

    Whatever is wrong with the content is raised as ValueError, OSError or the library's own exception; the caller
    turns it into an InputError that names the file.
    """

    text = False  # strings are how the format writes numbers (CSV), so "1" is the number 1
    row_noun = "row"  # what a row number counts, in the report

    def __init__(self, source: Source) -> None:
        self.source = source
        self.notes: list[str] = []  # oddities worth a warning, filled while reading
        self.broken_lines: list[tuple[int, str]] = []  # (line, reason) of records that could not be read
        self.absent: tuple[str, ...] = ()  # wanted columns that no row had, where there is no schema

    @abstractmethod
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns, or None where only reading the file shows them. ``""``: an array without a name."""

    def example(self) -> tuple[str, ...]:
        """Names to suggest when a column is not there."""
        return self.columns() or ()

    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Column -> class list, for the columns whose classes the file itself declares."""
        return {}

    def label_maps(self) -> dict[str, CarriedMap]:
        """Column -> the label map that ``preassert remap`` left in the file. A damaged map is a note."""
        return {}

    def count_rows(self) -> int | None:
        """Rows as the header states them, or None."""
        return None

    @abstractmethod
    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        """The values of ``columns`` in ascending rows. With ``covered``, rows may be given as :class:`Proven`.

        A column that a file without a schema turns out not to have is left out of every chunk.
        """

    def lines(self, rows: Sequence[int]) -> tuple[int, ...]:
        """1-based lines of the file on which ``rows`` start; empty for formats without lines."""
        return ()
