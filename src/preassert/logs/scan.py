"""The passages of a log that matter, with their line numbers; everything else is only counted.

A small log is one passage. In a large one, passages are cut around the words of a failure; a printed assertion is kept a
few thousand times and then only counted, so ten million identical lines cost no memory and little time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from preassert.logs.patterns import lazy_bytes

Line = tuple[int | None, bytes]
Passage = list[Line]

BEFORE_BYTES, AFTER_BYTES = 8 << 10, 8 << 10  # kept around a word of failure
LONGEST_LINE_BYTES = 1 << 20
THOROUGH_BYTES = 2 << 20  # after the first assertion, every line is still looked at for so long
HELD_BLOCKS = 4  # ... and again in the last blocks before the end
SAMPLE_EVERY = 64

# Words that begin with a capital: Python's matcher skips the lower-case text of an ordinary log quickly
_WORDS = lazy_bytes(
    rb"Assertion|Error\b|Traceback|CUDA (?:error|failure|out of)|Cuda failure|CU(?:BLAS|DNN|SOLVER)_STATUS"
    rb"|CUDA_ERROR|HSA_STATUS|Device-side"
    rb"|Xid \(|NCCL (?:error|WARN)|Watchdog caught|Fatal|Killed\b|Aborted\b|Segmentation|Memory access fault"
    rb"|HIP (?:error|out of)|Out of memory"
    rb"|GPU (?:has fallen|is lost|assertion)|Bus error|FAILED|EmbeddingBoundsCheck"
)
# From the end of the coordinates to `failed`: what follows (the time in a JSON record) may differ from line to line
_TAIL = lazy_bytes(rb"[)\]}] ?:? (?:\*\*)?Assertion [^\r\n]{1,1000}?failed|Device-side assertion [^\r\n]{1,1000}?failed")


class Limits(NamedTuple):
    """How much of one log is kept."""

    small_bytes: int = 4 << 20  # a log up to this size is kept whole
    assertions: int = 1000  # lines kept of one assertion text
    head_bytes: int = 8 << 20  # passages kept from the front of a larger one ...
    tail_bytes: int = 4 << 20  # ... and from its end


def limits_for(logs: int) -> Limits:
    """The limits when ``logs`` of them (one of each rank, say) are held together."""
    share = max(logs // 4, 1)
    whole = Limits()
    return Limits(
        max(whole.small_bytes // share, 256 << 10),
        max(whole.assertions // share, 100),
        max(whole.head_bytes // share, 512 << 10),
        max(whole.tail_bytes // share, 256 << 10),
    )


@dataclass(eq=False, repr=False, match_args=False)
class Scan:
    """What is left of a log. ``tallies``: assertion lines that were counted and dropped, by the text from ``Assertion`` on."""

    passages: list[Passage] = field(default_factory=list)
    tallies: dict[bytes, int] = field(default_factory=dict)
    lines: int = 0
    size_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def scan(blocks: Iterator[bytes], limits: Limits | None = None) -> Scan:
    """Read ``blocks`` to the end."""
    limits = limits or Limits()
    result = Scan()
    head: list[bytes] = []
    size = 0
    for block in blocks:
        head.append(block)
        size += len(block)
        if size > limits.small_bytes:
            _Large(result, limits).run(_aligned(_again(head, blocks)))
            return result
    text = b"".join(head)
    result.size_bytes = size
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    result.lines = len(lines)
    passage: Passage = []
    kept: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if b"Assertion" not in line or not _surplus(line, kept, result.tallies, limits.assertions):
            passage.append((number, line))
    result.passages.append(passage)
    return result


def _again(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while head:
        yield head.pop(0)
    yield from rest


class _Piece:
    """Whole lines of a log: ``head`` (a line that began in the block before), then ``data[begin:end]``; nothing is copied."""

    __slots__ = ("begin", "data", "end", "head")

    def __init__(self, head: bytes, data: bytes, begin: int, end: int) -> None:
        self.head = head
        self.data = data
        self.begin = begin
        self.end = end

    @property
    def size_bytes(self) -> int:
        return len(self.head) + self.end - self.begin

    def count(self, needle: bytes) -> int:
        return self.head.count(needle) + self.data.count(needle, self.begin, self.end)

    def line_ends(self) -> int:
        return self.head.count(b"\n") + _count_line_ends(self.data, self.begin, self.end)

    def joined(self) -> bytes:
        return self.head + self.data[self.begin : self.end]


def _aligned(blocks: Iterator[bytes]) -> Iterator[_Piece]:
    """Pieces that end with a line; a line without an end is cut, since it may be as long as the file."""
    carry = b""
    for block in blocks:
        begin = block.find(b"\n") + 1
        if not begin:
            carry += block
            if len(carry) > LONGEST_LINE_BYTES * 4:
                yield _Piece(carry, b"", 0, 0)
                carry = b""
            continue
        end = block.rfind(b"\n") + 1
        yield _Piece(carry + block[:begin], block, begin, end)
        carry = block[end:]
    if carry:
        yield _Piece(carry, b"", 0, 0)


def _count_line_ends(data: bytes, begin: int, end: int) -> int:
    """NumPy, where it is installed, counts short lines several times faster than ``bytes.count``."""
    numpy = _numpy()
    if numpy is None or end - begin < 1 << 16:
        return data.count(b"\n", begin, end)
    return int(numpy.count_nonzero(numpy.frombuffer(data, numpy.uint8, end - begin, begin) == 10))


@lru_cache(maxsize=1)
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _surplus(line: bytes, kept: dict[bytes, int], tallies: dict[bytes, int], most: int) -> bool:
    """Count an assertion line; True if enough like it have been kept. Lines with several assertions are always kept."""
    if line.count(b"Assertion") != 1 and b"Device-side" not in line:
        return False
    match = _TAIL.search(line.rstrip())
    if match is None:
        return False
    tail = match.group()
    number = kept.get(tail, 0) + 1
    if number <= most:
        if number == 1 and len(kept) >= 1024:
            return False  # texts that all differ are no repetition; the size limit of the passages holds them
        kept[tail] = number
        return False
    tallies[tail] = tallies.get(tail, 0) + 1
    return True


class _Large:
    """State of one pass over a log that is not held in memory."""

    def __init__(self, result: Scan, limits: Limits) -> None:
        self.result = result
        self.limits = limits
        self.number = 0  # complete lines before the current block
        self.kept: dict[bytes, int] = {}
        self.head: list[Passage] = []
        self.head_bytes = 0
        self.tail: deque[tuple[int, Passage]] = deque()
        self.tail_bytes = 0
        self.dropped = 0
        self.open = False  # the last passage reaches the end of the last block
        self.want = 0  # bytes of the next block that still belong to it
        self.last_piece: list[Line] = []  # end of the last block, not part of a passage
        self.thorough = 0  # bytes looked at since the first assertion was known
        self.counted_blocks = 0
        self.counted_bytes = 0

    def run(self, pieces: Iterator[_Piece]) -> None:
        held: deque[_Piece] = deque()
        density = 0
        turn = 0
        for piece in pieces:
            self.result.size_bytes += piece.size_bytes
            needles = self._needles() if self.thorough > THOROUGH_BYTES else ()
            if not needles:
                while held:
                    self._look(held.popleft().joined())
                self._look(piece.joined())
                continue
            held.append(piece)
            if len(held) <= HELD_BLOCKS:
                continue
            piece = held.popleft()
            turn += 1
            counts = [piece.count(needle) for needle in needles]
            seen = sum(counts)
            if seen == 0 or seen * 2 < density or turn % SAMPLE_EVERY == 0:
                self._look(piece.joined())
            else:
                self._count(piece, needles, counts)
            density = seen
        while held:
            self._look(held.popleft().joined())
        self._finish()

    def _needles(self) -> tuple[bytes, ...]:
        """Texts of the assertions that have been kept often enough to be only counted."""
        full = tuple(tail for tail, number in self.kept.items() if number >= self.limits.assertions)
        return full if 0 < len(full) <= 4 else ()

    def _count(self, piece: _Piece, needles: tuple[bytes, ...], counts: list[int]) -> None:
        for needle, number in zip(needles, counts, strict=True):
            if number:
                self.result.tallies[needle] = self.result.tallies.get(needle, 0) + number
        self.number += piece.line_ends()
        self.counted_blocks += 1
        self.counted_bytes += piece.size_bytes
        self.open = False
        self.last_piece = []

    def _look(self, block: bytes) -> None:
        if self.kept:
            self.thorough += len(block)
        spans, surplus = self._spans(block)
        position, line = 0, self.number
        for begin, end in spans:
            line += block.count(b"\n", position, begin)
            passage, line = _cut(block, begin, end, line, surplus)
            position = end
            joined = begin == 0 and self.open
            if begin == 0 and not joined and self.last_piece:
                passage = self.last_piece + passage
            self._keep(passage, joined)
        total = line + block.count(b"\n", position)
        self.open = bool(spans) and spans[-1][1] == len(block)
        self.number = total
        if not self.open:
            begin = max(len(block) - BEFORE_BYTES, position)
            begin = block.find(b"\n", begin) + 1 or len(block)
            self.last_piece, _ = _cut(block, begin, len(block), total - block.count(b"\n", begin), surplus)
        else:
            self.last_piece = []

    def _spans(self, block: bytes) -> tuple[list[tuple[int, int]], set[int]]:
        """Byte ranges worth keeping (whole lines, in order, not overlapping), and where lines begin that were only counted."""
        spans: list[tuple[int, int]] = []
        surplus: set[int] = set()
        if self.open and self.want:
            spans.append((0, _line_end(block, min(self.want, len(block)))))
        self.want = 0
        position = 0
        for begin, end in self._known(block, surplus):
            self._search(block, position, begin, spans, surplus)
            position = end
        self._search(block, position, len(block), spans, surplus)
        return spans, surplus

    def _known(self, block: bytes, surplus: set[int]) -> Iterator[tuple[int, int]]:
        """The lines that repeat an assertion which has been kept often enough; they are counted here."""
        needles = self._needles()
        if not needles:
            return
        tallies = self.result.tallies
        for match in re.finditer(b"|".join(map(re.escape, needles)), block):
            tail = match.group()
            tallies[tail] = tallies.get(tail, 0) + 1
            begin = block.rfind(b"\n", 0, match.start()) + 1
            if begin not in surplus:
                surplus.add(begin)
                yield begin, _line_end(block, match.end())

    def _search(self, block: bytes, position: int, stop: int, spans: list[tuple[int, int]], surplus: set[int]) -> None:
        """Add the surroundings of words of failure between two positions to ``spans``."""
        while position < stop and (match := _WORDS.search(block, position, stop)):
            begin = block.rfind(b"\n", 0, match.start()) + 1
            end = position = _line_end(block, match.end())
            if match.group() == b"Assertion" and _surplus(
                block[begin:end], self.kept, self.result.tallies, self.limits.assertions
            ):
                surplus.add(begin)
                continue
            near = end + AFTER_BYTES // 2
            if block.find(b"Assertion", end, near) < 0:
                position = _line_end(block, min(near, stop))  # the next words are in the same passage anyway
            begin = _line_begin(block, max(begin - BEFORE_BYTES, 0))
            want = end + AFTER_BYTES
            end = _line_end(block, min(want, len(block)))
            self.want = max(want - len(block), 0)
            if spans and begin <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))

    def _keep(self, passage: Passage, joined: bool) -> None:
        if not passage:
            return
        size = sum(len(line) for _, line in passage) + 64 * len(passage)
        if self.head_bytes + size <= self.limits.head_bytes:
            if joined and self.head:
                self.head[-1].extend(passage)
            else:
                self.head.append(passage)
            self.head_bytes += size
            return
        self.tail.append((size, passage))
        self.tail_bytes += size
        while self.tail_bytes > self.limits.tail_bytes and len(self.tail) > 1:
            gone, _ = self.tail.popleft()
            self.tail_bytes -= gone
            self.dropped += 1

    def _finish(self) -> None:
        result = self.result
        result.lines = self.number
        result.passages = [*self.head, *(passage for _, passage in self.tail)]
        if self.counted_blocks:
            size_mb = self.counted_bytes / 1e6
            result.notes.append(f"{size_mb:,.0f} MB after the first assertions were only searched for the same assertions")
        if self.dropped:
            result.notes.append(f"{self.dropped:,} passages in the middle with words of failure were not looked at closely")


def _line_begin(block: bytes, position: int) -> int:
    return block.rfind(b"\n", 0, position) + 1


def _line_end(block: bytes, position: int) -> int:
    """The position after the end of the line that holds ``position``."""
    if position > 0 and block[position - 1 : position] == b"\n":
        return position
    return block.find(b"\n", position) + 1 or len(block)


def _cut(block: bytes, begin: int, end: int, line: int, surplus: set[int]) -> tuple[Passage, int]:
    """The lines of ``block[begin:end]`` and the number of the last; ``line`` is that of the line before."""
    passage: Passage = []
    pieces = block[begin:end].split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        line += 1
        if begin not in surplus:
            passage.append((line, piece[:LONGEST_LINE_BYTES]))
        begin += len(piece) + 1
    return passage, line
