"""The bounded memory of a log: the first evidence and the end, whatever the blocks."""

from __future__ import annotations

import pytest

from preassert.supervise.capture import Capture


@pytest.mark.parametrize("block", [1, 3, 7, 64, 10_000])
@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"", b""),
        (b"short\n", b"short\n"),
        (b"a\n" * 100, b"a\n" * 50),  # only the tail
        (b"a\nCUDA error: x\n" + b"b\n" * 100, b"CUDA error: x\nb\nb\nb\n\n[preassert: 94 bytes left out]\n" + b"b\n" * 50),
        (b"CUDA error: x\n" + b"b\n" * 45, b"CUDA error: x\n" + b"b\n" * 45),  # evidence and tail overlap or touch
        (b"c" * 90 + b"CUDA error", b"c" * 90 + b"CUDA error"),
    ],
)
def test_what_is_kept(block: int, log: bytes, expected: bytes) -> None:
    capture = Capture(tail_bytes=100, evidence_bytes=20)
    for start in range(0, len(log), block):
        capture.add(log[start : start + block])
    assert capture.size_bytes == len(log)
    assert capture.data() == expected


def test_memory_is_bounded() -> None:
    capture = Capture(tail_bytes=1000, evidence_bytes=1000)
    for _ in range(10_000):
        capture.add(b"Assertion `x` failed\n" * 10)
    assert sum(map(len, capture._tail)) < 1000 + 210
    assert len(capture.data()) < 2200
