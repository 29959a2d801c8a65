"""No pattern may take quadratic time on a long line: logs hold lines of a megabyte."""

from __future__ import annotations

import time

import pytest

from preassert.logs import explain_text

UNITS = [
    "a",
    "(",
    "[",
    "'",
    "`",
    "/",
    "\\",
    "1",
    ":",
    " ",
    ".",
    "A",
    "_",
    "-",
    "<",
    "{",
    "|",
    "#",
    "a.",
    "a:",
    "(a",
    "Error",
    "1:1 ",
    "[a]",
    "::",
    "│ ",
    "&lt;",
    "\\n",
    "**",
]
AROUND = [
    "{}",
    "{} Assertion `{}` failed.",
    "{}: block: [1,0,0], thread: [2,0,0] Assertion `srcIndex < srcSelectDimSize` failed. {}",
    "{} RuntimeError: CUDA error: device-side assert triggered {}",
    "> {} IndexError: Target 5 is out of bounds. {}",
    '  File "{}", line 3, in {}',
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_length_of_a_line(unit: str) -> None:
    """Four times the length may take about four times as long, never sixteen; the floor hides the noise of a busy machine."""

    def seconds(length: int) -> float:
        filler = unit * (length // len(unit))
        text = "\n".join(pattern.format(*[filler] * pattern.count("{}")) for pattern in AROUND)
        start = time.process_time()
        explain_text(text)
        return time.process_time() - start

    short = min(seconds(2_500) for _ in range(2))
    long = min(seconds(10_000) for _ in range(2))
    assert long < 9 * max(short, 0.05), (short, long)
