"""From integer labels to class indices, fast. NumPy is imported when a table is built.

Three tables, one interface. *Dense*: the ids lie close together, one array look-up. *Hashed*: at most ``HASHED_LIMIT``
ids anywhere in int64, a multiplicative hash that was searched until no two ids collide, and a comparison that finds
strangers. *Sorted*: everything else, binary search. All work in chunks that stay in the cache; a second thread did not
help where it was measured (the work is bound by memory), so there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    IntArray = np.ndarray[Any, np.dtype[Any]]

# Two codes that no class index and no ignore_index can be. Every table answers UNKNOWN for an id that it does not hold.
UNKNOWN = -(2**63)
MISSING = UNKNOWN + 1

CHUNK = 1 << 15  # elements; three int64 buffers of it fit into a level 2 cache
DENSE_SPAN = 1 << 18  # ids apart: up to 2 MB of table
DENSE_SPAN_AT_MOST = 1 << 22  # for more ids than HASHED_LIMIT
HASHED_LIMIT = 4096
_SAFE = 2**62  # ids beyond it could wrap around in the subtraction of the dense table


class IntTable(Protocol):
    def look_up(self, ids: IntArray, out: IntArray) -> None:
        """Write the code of each of ``ids`` (1-d, any integer dtype that fits int64) into ``out`` (int64, same length)."""


def build(codes: Mapping[int, int]) -> IntTable:
    """The fastest table for these ids."""
    fitting = {label: code for label, code in codes.items() if -(2**63) <= label < 2**63}
    if not fitting:
        return Sorted({})
    low, high = min(fitting), max(fitting)
    near = low > -_SAFE and high < _SAFE
    span = high - low + 1
    if near and span <= DENSE_SPAN:
        return Dense(fitting, low, span)
    if len(fitting) <= HASHED_LIMIT:
        return Hashed(fitting)
    if near and span <= DENSE_SPAN_AT_MOST:
        return Dense(fitting, low, span)
    return Sorted(fitting)


class Dense:
    def __init__(self, codes: Mapping[int, int], low: int, span: int) -> None:
        import numpy as np

        # One slot more at each end: whatever is clipped to it is a stranger.
        self.low = low - 1
        self.table = np.full(span + 2, UNKNOWN, np.int64)
        for label, code in codes.items():
            self.table[label - self.low] = code

    def look_up(self, ids: IntArray, out: IntArray) -> None:
        import numpy as np

        buffer = np.empty(min(CHUNK, len(ids)), np.int64)
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            slots = buffer[: len(chunk)]
            # int64 arithmetic wraps around, but a far id never wraps *into* the table: its ends are within +-2**62
            np.subtract(chunk, self.low, out=slots, dtype=np.int64, casting="unsafe")
            np.take(self.table, slots, mode="clip", out=out[start : start + len(chunk)])


class Hashed:
    def __init__(self, codes: Mapping[int, int]) -> None:
        import numpy as np

        # By code, negative ones (ignore_index) last: most often the slot of an id is then its code already.
        ordered = sorted(codes.items(), key=lambda item: (item[1] < 0, item[1]))
        self.direct = next((slot for slot, (_, code) in enumerate(ordered) if slot != code), len(ordered))
        # Empty slots lead to one more entry. Its id must never be looked up there: one that has a slot of its own never is.
        self.ids = np.array([label for label, _ in ordered] + [ordered[0][0]], np.int64)
        self.codes = np.array([code for _, code in ordered] + [UNKNOWN], np.int64)
        self.count = len(ordered)
        keys = self.ids[:-1].view(np.uint64)
        random = np.random.default_rng(0)
        bits = max(6, (self.count * self.count // 6).bit_length())  # about one try in 20 has no collision
        tries = 0
        while True:
            self.factor = np.uint64(int(random.integers(2**63)) * 2 + 1)
            self.shift = np.uint64(64 - bits)
            slots = ((keys * self.factor) >> self.shift).astype(np.int64)
            if len(np.unique(slots)) == self.count:
                break
            tries += 1
            bits += tries % 100 == 0
        self.table = np.full(1 << bits, self.count, np.int16)
        self.table[slots] = np.arange(self.count)

    def look_up(self, ids: IntArray, out: IntArray) -> None:
        import numpy as np

        size = min(CHUNK, len(ids))
        hashes, slots, found = np.empty(size, np.uint64), np.empty(size, np.int16), np.empty(size, np.int64)
        for start in range(0, len(ids), CHUNK):
            chunk = np.ascontiguousarray(ids[start : start + CHUNK], np.int64)
            n = len(chunk)
            np.multiply(chunk.view(np.uint64), self.factor, out=hashes[:n])
            np.right_shift(hashes[:n], self.shift, out=hashes[:n])
            np.take(self.table, hashes[:n].view(np.int64), mode="clip", out=slots[:n])
            place = out[start : start + n]
            place[:] = slots[:n]
            np.take(self.ids, place, mode="clip", out=found[:n])
            strangers = found[:n] != chunk
            if self.direct < self.count and int(place.max()) >= self.direct:
                place[:] = self.codes[place]
            if strangers.any():
                place[strangers] = UNKNOWN


class Sorted:
    def __init__(self, codes: Mapping[int, int]) -> None:
        import numpy as np

        ordered = sorted(codes)
        self.ids = np.array(ordered, np.int64)
        self.codes = np.array([codes[label] for label in ordered], np.int64)

    def look_up(self, ids: IntArray, out: IntArray) -> None:
        import numpy as np

        if not len(self.ids):
            out[:] = UNKNOWN
            return
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK].astype(np.int64, copy=False)
            slots = np.minimum(np.searchsorted(self.ids, chunk), len(self.ids) - 1)
            place = out[start : start + len(chunk)]
            np.take(self.codes, slots, mode="clip", out=place)
            place[self.ids[slots] != chunk] = UNKNOWN
