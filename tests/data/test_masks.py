"""Are all pixels legal? The quick answer against the slow one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preassert.data.layouts.masks import _all_legal
from preassert.data.rules import Rule

TYPES = ("uint8", "uint16", "int16", "int32")
NUMBERS = st.integers(0, 300) | st.sampled_from((254, 255, 65534, 65535, -1, 32767))


@pytest.mark.parametrize("dtype", TYPES)
@given(
    pixels=st.lists(NUMBERS, min_size=1, max_size=6),
    lowest=st.none() | st.integers(-2, 300),
    highest=st.none() | st.integers(-2, 300),
    ignore=st.sets(NUMBERS, max_size=3),
)
@example(pixels=[255], lowest=0, highest=20, ignore={255})
@example(pixels=[254], lowest=0, highest=20, ignore={255})
@example(pixels=[255, 254, 20], lowest=0, highest=20, ignore={255, 254})
@example(pixels=[255], lowest=0, highest=254, ignore={255})
@example(pixels=[0, 255], lowest=1, highest=20, ignore={0})
@example(pixels=[0, 255], lowest=1, highest=20, ignore={0, 255})
@example(pixels=[200], lowest=0, highest=20, ignore={200})
def test_all_legal(dtype: str, pixels: list[int], lowest: int | None, highest: int | None, ignore: set[int]) -> None:
    values = np.array(pixels, dtype="int64").astype(dtype)
    rule = Rule(lowest=lowest, highest=highest, ignore=tuple(sorted(ignore)))
    low, high = -(10**9) if lowest is None else lowest, 10**9 if highest is None else highest
    expected = all(low <= value <= high or value in ignore for value in values.tolist())
    info = np.iinfo(values.dtype)
    if max(low, info.min) > min(high, info.max):
        expected = False  # a range without a number of this type is left to the slow way
    assert _all_legal(values, rule) == expected
