"""What a child printed to stderr, in bounded memory: the first evidence of a failure, and the end."""

from __future__ import annotations

import re
from collections import deque

TAIL_BYTES = 16 << 20
EVIDENCE_BYTES = 1 << 20  # kept from the first line that looks like a failure, however much follows

_EVIDENCE = re.compile(
    rb"Assertion `|device-side assert|Assertion failed|CUDA error|CUDA out of memory|HIP error|NVRM: Xid|CUBLAS_STATUS"
    rb"|cuDNN error|ncclUnhandled|Watchdog caught|preassert\.Violation"
)
_LINE_BYTES = 64 << 10  # how much of an unfinished line is looked at again with the next block


class Capture:
    """Takes blocks of bytes as they arrive; :meth:`text` gives what is worth reading."""

    def __init__(self, tail_bytes: int = TAIL_BYTES, evidence_bytes: int = EVIDENCE_BYTES) -> None:
        self.size_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._tail_limit, self._evidence_limit = tail_bytes, evidence_bytes
        self._evidence: bytearray | None = None
        self._evidence_at = 0
        self._line = b""  # the unfinished last line: a pattern may be cut by a block

    def add(self, block: bytes) -> None:
        if self._evidence is None:
            self._look(block)
        elif len(self._evidence) < self._evidence_limit:
            self._evidence += block[: self._evidence_limit - len(self._evidence)]
        self.size_bytes += len(block)
        self._tail.append(block)
        self._tail_size += len(block)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    def _look(self, block: bytes) -> None:
        joined = self._line + block
        found = _EVIDENCE.search(joined)
        if found is None:
            self._line = joined[joined.rfind(b"\n") + 1 :][-_LINE_BYTES:]
            return
        start = joined.rfind(b"\n", 0, found.start()) + 1
        self._evidence_at = self.size_bytes - len(self._line) + start
        self._evidence = bytearray(joined[start : start + self._evidence_limit])
        self._line = b""

    def data(self) -> bytes:
        """The evidence, a line that says how much is left out (if anything is), and the tail."""
        tail = b"".join(self._tail)[-self._tail_limit :]
        tail_at = self.size_bytes - len(tail)
        if self._evidence is None or self._evidence_at >= tail_at:
            return tail
        gap = tail_at - (self._evidence_at + len(self._evidence))
        if gap <= 0:
            return bytes(self._evidence[: tail_at - self._evidence_at]) + tail
        return bytes(self._evidence) + b"\n[preassert: %d bytes left out]\n" % gap + tail

    def text(self) -> str:
        """:meth:`data` as text; bytes that are not UTF-8 become replacement characters."""
        return self.data().decode("utf-8", "replace")
