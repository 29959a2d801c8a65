"""Text without white space, with the way back to the lines.

Terminals and forums break an assertion anywhere, even inside a word, and pad or lose blanks. Without white space every
wrap of a line is the same text, so one grammar reads them all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from preassert.logs.lines import Text

WRAPPED_CHARS = 50  # no terminal is narrower


class Squeezed:
    """The texts of one passage in one string; ``at`` gives the index of the text that a position belongs to."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self._texts = texts
        pieces = ["".join(text.text.split()) for text in texts]
        self.text = "".join(pieces)
        self.starts: list[int] = []
        position = 0
        for piece in pieces:
            self.starts.append(position)
            position += len(piece)

    def at(self, position: int) -> int:
        """Index of the text that holds ``position`` (of the last one that begins there, where several are empty)."""
        return max(bisect_right(self.starts, position) - 1, 0)

    def begins(self, index: int) -> int:
        return self.starts[index]

    def ends(self, index: int) -> int:
        return self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)

    def is_wrapped(self, first: int, last: int) -> bool:
        """May the texts from ``first`` to ``last`` be one line that a terminal or a form broke? Only full lines are broken."""
        texts = self._texts[first : last + 1]
        return all(
            len(text.shown) + len((below.text.split(None, 1) or [""])[0]) >= WRAPPED_CHARS for text, below in pairwise(texts)
        )

    def last_word(self, index: int) -> str:
        """What stands after the last blank of a text."""
        words = self._texts[index].text.rsplit(None, 1)
        return words[-1] if words else ""

    def last_words(self, index: int, mark: str) -> str:
        """What stands after the last but trailing ``mark`` of a text."""
        return self._texts[index].text.rstrip(f" {mark}").rpartition(mark)[2].strip()
