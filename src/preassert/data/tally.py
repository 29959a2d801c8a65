"""Holds the values of one column of one file against a rule, chunk by chunk, in bounded memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from preassert.data.rules import Rule
from preassert.lazy import need

MAX_ROWS = 10  # offending rows that are kept
MAX_VALUES = 1000  # distinct offending values that are kept
MAX_CLASSES = 1 << 18  # a histogram of more distinct values is given up
MAX_NAMES = 1 << 16  # the same for texts; also as many verdicts on texts are remembered
_FEW = 4096  # texts of a chunk: below, how many are there twice tells nothing
MAX_TEXT = 200  # characters of an offending text that are kept

# What pandas.read_csv takes for a missing value.
MISSING_TEXT = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A")
) | {"NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
# A column of these words alone is one of booleans, as pandas.read_csv takes it.
_BOOLEANS = {"False": 0, "FALSE": 0, "false": 0, "True": 1, "TRUE": 1, "true": 1}
_BEYOND_FLOAT = 1 << 53  # whole numbers from here on are not exact in a float64

Plain = int | float | str | None
RowsOf = Callable[[Any], Any]  # positions in a flat array -> 0-based rows within the chunk


class Tally:
    """Counts what breaks ``rule`` in ``column``.

    Attributes:
        rows, elements: what was fed. missing, fractional: how many of the offenders are null/NaN, or not whole.
        count: offending elements. values: distinct offenders with counts (at most ``MAX_VALUES``; then ``more_values``).
        first_rows: first offending rows, 1-based, ascending, at most ``MAX_ROWS``.
        minimum, maximum: extremes of all numbers, legal or not; None without any.
        histogram: value -> count of every value that is present; None when it was not counted.
        too_long: rows with more than ``rule.max_length`` elements; long_rows, lengths: as for the values.
        width_bits: bits of the stored integer type, negative for signed; None if values were not stored as integers.
    """

    def __init__(self, rule: Rule, column: str | None, *, histogram: bool = True) -> None:
        self.rule = rule
        self.column = column
        self.rows = 0
        self.elements = 0
        self.count = 0
        self.missing = 0
        self.fractional = 0
        self.values: dict[Plain, int] = {}
        self.more_values = False
        self.first_rows: list[int] = []
        self.minimum: int | float | None = None
        self.maximum: int | float | None = None
        self.histogram: dict[int | str, int] | None = {} if histogram else None
        self.too_long = 0
        self.long_rows: list[int] = []
        self.lengths: dict[int, int] = {}
        self.width_bits: int | None = None
        self.nested = False
        self._names = frozenset(rule.names or ())
        self._names_are_ids: bool | None = None
        self._booleans: bool | None = None
        self._many_texts: bool | None = None  # hardly one is there twice, and they are numbers; None: not seen yet
        self._judged: dict[Any, tuple[bool, Plain]] = {}

    # -- input ---------------------------------------------------------------------------------------------------

    def prove(self, rows: int, low: int, high: int) -> None:
        """Count ``rows`` values that are known to lie in ``low..high``, none of them null."""
        self.rows += rows
        self.elements += rows
        self._extremes(low, high)
        self.histogram = None

    def feed(self, values: Any, first_row: int, *, text: bool = False) -> None:
        """Check one chunk.

        Args:
            values: a pyarrow Array or ChunkedArray, a numpy array (axis 0 are the rows), or a list of Python values.
            first_row: 1-based row of its first value. Chunks come in ascending order.
            text: strings come from a text format, where ``"1"`` is the number 1.

        Raises:
            ValueError: the column holds something that cannot be a label (timestamps, structs, pickled objects).
        """
        if isinstance(values, list):
            self.rows += len(values)
            self._feed_list(values, first_row, text)
        elif hasattr(values, "chunks"):
            for chunk in values.chunks:
                self.feed(chunk, first_row, text=text)
                first_row += len(chunk)
        elif hasattr(values, "buffers"):
            self.rows += len(values)
            self._feed_arrow(values, first_row, text)
        else:
            self.rows += len(values)
            self._feed_numpy(values, first_row)

    def _feed_list(self, values: list[Any], first_row: int, text: bool, parents: Any = None) -> None:
        import numpy as np

        kinds = set(map(type, values))
        if list in kinds or tuple in kinds or dict in kinds:
            self._feed_nested_list(values, first_row, text, parents)
            return
        if kinds == {int} and not text:
            try:
                numbers = np.fromiter(values, np.int64, len(values))
            except OverflowError:
                pass
            else:
                self._feed_numbers(numbers, None, first_row, _rows_from(parents))
                return
        rows = range(len(values)) if parents is None else parents
        self._decide(values, text)
        if self.rule.alphabet is not None:
            self._feed_transcripts(values, [row + first_row for row in rows])
            return
        self.elements += len(values)
        for value, row in zip(values, rows, strict=True):
            legal, plain = self._judge(value, text)
            self._count_value(plain, 1)
            if not legal:
                self._offend([plain], [1], [row + first_row])

    def _feed_transcripts(self, values: Sequence[Any], rows: Sequence[int]) -> None:
        """Texts are checked character by character; elements and offenders are characters."""
        alphabet = self.rule.alphabet or frozenset()
        self.nested = True
        for value, row in zip(values, rows, strict=True):
            if not isinstance(value, str):
                self.elements += 1
                self._offend([None if value is None else str(value)], [1], [row])
                continue
            self.elements += len(value)
            for character in sorted(set(value) - alphabet):
                self._offend([character], [value.count(character)], [row])

    def _feed_nested_list(self, values: list[Any], first_row: int, text: bool, parents: Any) -> None:
        rows = range(len(values)) if parents is None else parents
        self.nested = True
        numbers = _lists_of_integers(values)
        if numbers is not None:
            self._feed_arrow(numbers, first_row, text, _rows_from(parents))
            return
        flat: list[Any] = []
        flat_rows: list[int] = []
        for value, row in zip(values, rows, strict=True):
            if isinstance(value, (list, tuple)):
                if not value or not isinstance(value[0], (list, tuple)):
                    self._measure_list(value, row + first_row)
                flat.extend(value)
                flat_rows.extend([row] * len(value))
            elif isinstance(value, dict):
                raise ValueError(f"column {self.column!r} holds objects, not labels; {self.column}.<key> reaches into them")
            else:
                flat.append(value)
                flat_rows.append(row)
        if flat:
            self._feed_list(flat, first_row, text, flat_rows)

    def _feed_arrow(self, values: Any, first_row: int, text: bool, rows_of: RowsOf | None = None) -> None:
        pa, pc = _arrow()
        kind = values.type
        rows_of = rows_of or _identity
        if isinstance(values, pa.ExtensionArray):
            self._feed_arrow(values.storage, first_row, text, rows_of)
        elif pa.types.is_dictionary(kind):
            if _is_kind(pa.types, kind.value_type, "string_view"):  # which pyarrow cannot look up in
                values = pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.large_string()))
            self._feed_arrow(values.dictionary_decode(), first_row, text, rows_of)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self._feed_arrow_lists(values, first_row, text, rows_of)
        elif _is_kind(pa.types, kind, "list_view", "large_list_view"):  # whose parts may overlap and lie in any order
            self._feed_arrow(pa.array(values.to_pylist(), pa.large_list(kind.value_type)), first_row, text, rows_of)
        elif _is_kind(pa.types, kind, "run_end_encoded"):
            self._feed_arrow(pc.run_end_decode(values), first_row, text, rows_of)
        elif pa.types.is_null(kind):
            self._feed_missing(len(values), first_row, rows_of)
        elif pa.types.is_boolean(kind):
            self._feed_arrow(pc.cast(values, pa.uint8()), first_row, text, rows_of)
        elif pa.types.is_decimal(kind):
            self._feed_arrow_decimals(values, first_row, text, rows_of)
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
            numbers = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)
            self._feed_numbers(numbers, valid, first_row, rows_of)
        elif _is_text(pa.types, kind):
            self._feed_arrow_text(values, first_row, text, rows_of)
        else:
            raise ValueError(f"column {self.column!r} holds {kind}, which cannot be a label")

    def _feed_arrow_decimals(self, values: Any, first_row: int, text: bool, rows_of: RowsOf) -> None:
        import numpy as np

        pa, pc = _arrow()
        try:
            numbers = pc.cast(values, pa.int64() if values.type.scale <= 0 else pa.float64())
        except pa.ArrowInvalid:  # too large for 64 bits
            rows = [int(row) for row in rows_of(np.arange(len(values)))]
            self._feed_list([None if value is None else int(value) for value in values.to_pylist()], first_row, text, rows)
        else:
            self._feed_arrow(numbers, first_row, text, rows_of)

    def _feed_arrow_lists(self, values: Any, first_row: int, text: bool, rows_of: RowsOf) -> None:
        import numpy as np

        pa, pc = _arrow()
        self.nested = True
        inner = values.type.value_type
        if self.rule.max_length is not None and not pa.types.is_nested(inner):
            lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
            for at in np.flatnonzero(lengths > self.rule.max_length):
                row = int(rows_of(at)) + first_row
                if self.rule.padding is None:
                    self._measure(int(lengths[at]), 1, [row])
                else:
                    self._measure_list(values[int(at)].as_py(), row)
        parents = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
        self._feed_arrow(pc.list_flatten(values), first_row, text, lambda at: rows_of(parents[at]))
        if values.null_count:
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            self._feed_missing(len(nulls), first_row, lambda at: rows_of(nulls[at]))

    def _feed_arrow_text(self, values: Any, first_row: int, text: bool, rows_of: RowsOf) -> None:
        import numpy as np

        if self._many_texts and self._feed_numbers_in_text(values, first_row, rows_of):
            return
        encoded = values.dictionary_encode(null_encoding="encode")
        if text and self._many_texts is None and len(values) > _FEW:
            self._many_texts = len(encoded.dictionary) > len(values) // 4
            if self._many_texts and self._feed_numbers_in_text(values, first_row, rows_of):
                return
        distinct = [_decoded(value) for value in encoded.dictionary.to_pylist()]
        if text and self.rule.alphabet is None and any(_is_list_text(value) for value in distinct):
            at = np.arange(len(values))
            parsed = [_parse_list(_decoded(value)) for value in values.to_pylist()]
            self._feed_list(parsed, first_row, text, [int(row) for row in rows_of(at)])
            return
        self._decide(distinct, text)
        if self.rule.alphabet is not None:
            rows = [int(row) + first_row for row in rows_of(np.arange(len(values)))]
            self._feed_transcripts([_decoded(value) for value in values.to_pylist()], rows)
            return
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        self.elements += len(codes)
        judged = [self._judge(value, text) for value in distinct]
        counts = np.bincount(codes, minlength=len(distinct))
        for (_, plain), count in zip(judged, counts, strict=True):
            if count:
                self._count_value(plain, int(count))
        illegal = [code for code, (legal, _) in enumerate(judged) if not legal and counts[code]]
        if illegal:
            at = np.flatnonzero(np.isin(codes, illegal))
            self._offend(
                [judged[code][1] for code in illegal],
                [int(counts[code]) for code in illegal],
                self._some_rows(at, first_row, rows_of),
            )

    def _feed_numbers_in_text(self, values: Any, first_row: int, rows_of: RowsOf) -> bool:
        """Check texts that all spell numbers (or nothing) as numbers; False, with nothing done, where one does not.

        Texts are judged one by one otherwise, each spelling once, and a column of ids has as many spellings as rows.
        """
        names_matter = self.rule.names is not None and not self._names_are_ids
        if self._booleans or names_matter or self.rule.alphabet is not None:
            return False
        pa, pc = _arrow()
        try:
            numbers = _parsed(values)
            if numbers is None:
                missing = pc.is_in(pc.utf8_trim_whitespace(values), value_set=pa.array(sorted(MISSING_TEXT), values.type))
                numbers = _parsed(pc.if_else(missing, None, values))
        except pa.ArrowInvalid:  # not UTF-8: said by what reads the texts one by one
            return False
        if numbers is None:
            self._many_texts = False
            return False
        self._booleans = False
        self._feed_arrow(numbers, first_row, True, rows_of)
        self.width_bits = None  # nothing was stored in a type of that width
        return True

    def _feed_numpy(self, values: Any, first_row: int) -> None:
        import numpy as np

        kind = values.dtype.kind
        if values.ndim > 1:
            width = math.prod(values.shape[1:])
            self.nested = True
            self._measure_rows(values, first_row)
            rows_of: RowsOf = lambda at: at // width  # noqa: E731 - the one-line twin of _identity
            values = values.reshape(-1)
        else:
            rows_of = _identity
        if kind == "b":
            self._feed_numbers(values.astype(np.uint8), None, first_row, rows_of)
        elif kind in "iuf":
            self._feed_numbers(values, None, first_row, rows_of)
        elif kind in "US":
            at = range(len(values))
            self._feed_list([_decoded(value) for value in values.tolist()], first_row, False, [int(rows_of(i)) for i in at])
        else:
            raise ValueError(f"holds {values.dtype}, which cannot be labels")

    def _feed_missing(self, count: int, first_row: int, rows_of: RowsOf) -> None:
        import numpy as np

        self.elements += count
        if count and self.rule.bounded:
            self._offend([None], [count], self._some_rows(np.arange(count), first_row, rows_of))

    def _feed_numbers(self, numbers: Any, valid: Any, first_row: int, rows_of: RowsOf) -> None:
        import numpy as np

        self.elements += len(numbers)
        if not len(numbers):
            return
        if numbers.dtype == np.float16:
            numbers = numbers.astype(np.float32)
        whole = numbers.dtype.kind in "iu"
        if whole:
            self.width_bits = numbers.dtype.itemsize * (8 if numbers.dtype.kind == "u" else -8)
        present = numbers if valid is None else numbers[valid]
        if not whole:
            present = present[np.isfinite(present)]
        if len(present):
            low, high = present.min().item(), present.max().item()
            self._extremes(_plain(low), _plain(high))
            self._count_numbers(present, low, high)
        if not self.rule.bounded or self.rule.alphabet is not None:
            return
        if whole and valid is None and self.rule.covers(low, high):
            return
        illegal = self._illegal(numbers, valid, whole)
        at = np.flatnonzero(illegal)
        if len(at):
            offenders = numbers[at]
            if valid is not None:
                lost = int((~valid[at]).sum())
                if lost:
                    self._offend([None], [lost], [])
                offenders = offenders[valid[at]]
            distinct, counts = np.unique(offenders, return_counts=True)
            self._offend([_plain(value) for value in distinct.tolist()], counts.tolist(), self._some_rows(at, first_row, rows_of))

    def _illegal(self, numbers: Any, valid: Any, whole: bool) -> Any:
        """Mask of the numbers that are not legal."""
        import numpy as np

        lowest, highest = self.rule.limits()
        legal = np.ones(len(numbers), bool)
        if lowest is not None:
            legal &= _compare(np.greater_equal, numbers, lowest)
        if highest is not None:
            legal &= _compare(np.less_equal, numbers, highest)
        if not whole:
            legal &= np.isfinite(numbers)
            if not self.rule.real:
                legal &= np.floor(numbers) == numbers
        for value in self.rule.ignore:
            legal |= _compare(np.equal, numbers, value)
        if valid is not None:
            legal &= valid
        return ~legal

    # -- judging single values -----------------------------------------------------------------------------------

    def _decide(self, values: Iterable[Any], text: bool) -> None:
        """Decide once what texts are here: words for booleans (text files); with a class list, names, positions in the list
        (text files), or written in the letters of an alphabet."""
        names_decided = self.rule.names is None or self._names_are_ids is not None
        if names_decided and (self._booleans is not None or not text):
            return
        present = [value for value in values if not (value is None or (text and _is_missing(value)))]
        if text and present and self._booleans is None:
            self._booleans = all(value in _BOOLEANS for value in present)
        if names_decided:
            return
        if self._are_transcripts([value for value in values if value]):
            alphabet = self._names | ({" "} if "|" in self._names else frozenset())  # "|" is the blank of wav2vec 2.0
            self.rule = replace(self.rule, names=None, alphabet=alphabet, hazard="ctc-target-invalid")
            return
        if not text:
            self._names_are_ids = False
            return
        if present:
            self._names_are_ids = not any(value in self._names for value in present) and all(
                _is_whole(_number(value)) for value in present
            )

    def _are_transcripts(self, values: list[Any]) -> bool:
        """Whether the class list is an alphabet and the column is written in it: no value is a name, most letters are."""
        if len(self._names) < 2 or any(len(known) != 1 for known in self._names) or not values:
            return False
        if not all(isinstance(value, str) and len(value) > 1 for value in values):
            return False
        text = "".join(values[:1000])
        return sum(character in self._names or character == " " for character in text) > 0.7 * len(text)

    def _judge(self, value: Any, text: bool) -> tuple[bool, Plain]:
        """(legal?, the value as the report names it)."""
        if isinstance(value, float):
            return self._judge_number(value)  # NaN is never equal to itself: it would miss the cache
        key = (type(value), value)
        known = self._judged.get(key)
        if known is None:
            known = self._judge_anew(value, text)
            if len(self._judged) < MAX_NAMES:
                self._judged[key] = known
        return known

    def _judge_anew(self, value: Any, text: bool) -> tuple[bool, Plain]:
        if value is None:
            return not self.rule.bounded, None
        if isinstance(value, (bool, int)):
            return self._judge_number(int(value))
        if not isinstance(value, str):
            return not self.rule.bounded, str(value)
        if self.rule.names is not None and not self._names_are_ids:
            if value in self._names:
                return True, value
            return False, None if text and _is_missing(value) else value
        if not text:
            return not self.rule.bounded, value
        if _is_missing(value):
            return not self.rule.bounded, None
        number = _BOOLEANS[value] if self._booleans and value in _BOOLEANS else _number(value)
        return (not self.rule.bounded, value) if number is None else self._judge_number(number)

    def _judge_number(self, value: int | float) -> tuple[bool, Plain]:
        plain = _plain(value)
        if not self.rule.bounded:
            return True, plain
        if isinstance(plain, float):
            if not self.rule.real:
                return False, plain
            lowest, highest = self.rule.limits()
            return (lowest is None or plain >= lowest) and (highest is None or plain <= highest), plain
        if not isinstance(plain, int):
            return False, plain
        return self.rule.covers(plain, plain) or plain in self.rule.ignore, plain

    # -- bookkeeping ---------------------------------------------------------------------------------------------

    def _offend(self, values: Sequence[Plain], counts: Sequence[int], rows: Sequence[int]) -> None:
        for value, count in zip(values, counts, strict=True):
            if isinstance(value, str) and len(value) > MAX_TEXT:
                value = f"{value[: MAX_TEXT - 3]}..."
            self.count += count
            if value is None:
                self.missing += count
            elif isinstance(value, float):
                self.fractional += count
            if value in self.values or len(self.values) < MAX_VALUES:
                self.values[value] = self.values.get(value, 0) + count
            else:
                self.more_values = True
        _keep_rows(self.first_rows, rows)

    def _measure_rows(self, values: Any, first_row: int) -> None:
        """The lengths of the rows of a NumPy array of two or more dimensions."""
        if self.rule.max_length is None or values.shape[-1] <= self.rule.max_length:
            return
        if self.rule.padding is not None and values.ndim == 2:
            for row, length in enumerate((values != self.rule.padding).sum(-1).tolist()):
                self._measure(length, 1, [row + first_row])
            return
        self._measure(values.shape[-1], len(values), list(range(first_row, first_row + min(len(values), MAX_ROWS))))

    def _measure_list(self, values: Sequence[Any], row: int) -> None:
        length = len(values)
        if self.rule.padding is not None and self.rule.max_length is not None and length > self.rule.max_length:
            length -= sum(value == self.rule.padding for value in values)
        self._measure(length, 1, [row])

    def _measure(self, length: int, count: int, rows: Sequence[int]) -> None:
        if self.rule.max_length is None or length <= self.rule.max_length:
            return
        self.too_long += count
        if length in self.lengths or len(self.lengths) < MAX_VALUES:
            self.lengths[length] = self.lengths.get(length, 0) + count
        _keep_rows(self.long_rows, rows)

    def _some_rows(self, at: Any, first_row: int, rows_of: RowsOf) -> list[int]:
        """The first distinct rows of the flat positions ``at``; enough of them, not all."""
        rows: list[int] = []
        for start in range(0, len(at), 4096):
            _keep_rows(rows, [int(row) + first_row for row in rows_of(at[start : start + 4096])])
            if len(rows) >= MAX_ROWS:
                break
        return rows

    def _extremes(self, low: Plain, high: Plain) -> None:
        if isinstance(low, (int, float)) and (self.minimum is None or low < self.minimum):
            self.minimum = low
        if isinstance(high, (int, float)) and (self.maximum is None or high > self.maximum):
            self.maximum = high

    def _count_numbers(self, numbers: Any, low: int | float, high: int | float) -> None:
        """Add whole numbers to the histogram, or give it up when they spread too far."""
        import numpy as np

        if self.histogram is None:
            return
        if numbers.dtype.kind == "f":
            numbers = numbers[(np.floor(numbers) == numbers) & (np.abs(numbers) < _BEYOND_FLOAT)].astype(np.int64)
            if not len(numbers):
                return
            low, high = int(numbers.min()), int(numbers.max())
        if high - low < MAX_CLASSES and low > -(1 << 62) and high < 1 << 62:
            counts = np.bincount(numbers.astype(np.int64, copy=False) - low if low else numbers)
            present = np.flatnonzero(counts)
            pairs = zip((present + low).tolist(), counts[present].tolist(), strict=True)
        else:
            distinct, amounts = np.unique(numbers, return_counts=True)
            pairs = zip(distinct.tolist(), amounts.tolist(), strict=True)
        for value, count in pairs:
            self.histogram[value] = self.histogram.get(value, 0) + count
        if len(self.histogram) > MAX_CLASSES:
            self.histogram = None

    def _count_value(self, plain: Plain, count: int) -> None:
        if isinstance(plain, (int, float)):
            self._extremes(plain, plain)
        if self.histogram is None or not isinstance(plain, (int, str)) or self.rule.alphabet is not None:
            return
        self.histogram[plain] = self.histogram.get(plain, 0) + count
        if len(self.histogram) > (MAX_NAMES if isinstance(plain, str) else MAX_CLASSES):
            self.histogram = None


def _keep_rows(kept: list[int], rows: Sequence[int]) -> None:
    """Keep the smallest ``MAX_ROWS`` of both; a chunk may report its null lists before its bad elements."""
    if rows and (len(kept) < MAX_ROWS or min(rows) < kept[-1]):
        kept[:] = sorted({*kept, *rows})[:MAX_ROWS]


def _arrow() -> tuple[Any, Any]:
    return tuple(need(name, extra="data", purpose="read Arrow data") for name in ("pyarrow", "pyarrow.compute"))


def _identity(at: Any) -> Any:
    return at


def _rows_from(parents: Any) -> RowsOf:
    if parents is None:
        return _identity
    import numpy as np

    rows = np.asarray(parents)
    return lambda at: rows[at]


def _lists_of_integers(values: list[Any]) -> Any:
    """Lists (of lists) of integers as an Arrow array; None where something else is in them."""
    pa, _ = _arrow()
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    kind = array.type
    if not pa.types.is_list(kind):
        return None
    while pa.types.is_list(kind):
        kind = kind.value_type
    return array if pa.types.is_int64(kind) else None


def _parsed(texts: Any) -> Any:
    """An Arrow array of texts as one of numbers; None where a text spells none, or one beyond what the type holds exactly."""
    pa, pc = _arrow()
    try:
        numbers = pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        pass
    else:
        hexadecimal = pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py()  # which Arrow takes for numbers
        return None if hexadecimal else numbers
    try:
        numbers = pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        return None
    return None if pc.any(pc.greater_equal(pc.abs(numbers), float(_BEYOND_FLOAT))).as_py() else numbers


def _is_missing(value: Any) -> bool:
    """Whether a field of a text file says that there is no value."""
    return isinstance(value, str) and value.strip() in MISSING_TEXT


def _is_list_text(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("[") and value.endswith("]")


def _parse_list(value: Any) -> Any:
    """The list that a CSV field spells (``[0, 3]``), as pandas writes lists; any other value as it stands."""
    if not _is_list_text(value):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return parsed if isinstance(parsed, list) else value


def _is_text(types: Any, kind: Any) -> bool:
    return _is_kind(types, kind, "string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def _is_kind(types: Any, kind: Any, *names: str) -> bool:
    """Whether an Arrow type is one of those named, of which an older pyarrow may not know all."""
    checks = (getattr(types, f"is_{name}", None) for name in names)
    return any(check(kind) for check in checks if check is not None)


def _decoded(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _compare(compare: Any, numbers: Any, bound: int) -> Any:
    """``compare(numbers, bound)`` where ``bound`` may lie outside the dtype of ``numbers``."""
    import numpy as np

    if numbers.dtype.kind == "f":
        return compare(numbers, float(bound))
    info = np.iinfo(numbers.dtype)
    if info.min <= bound <= info.max:
        return compare(numbers, numbers.dtype.type(bound))
    below = bound < info.min
    answer = {np.greater_equal: below, np.less_equal: not below, np.equal: False}[compare]
    return np.full(len(numbers), answer)


def _number(text: str) -> int | float | None:
    """The number that ``text`` spells, or None. Underscores and the digits of other scripts, which Python takes, spell none
    in data files."""
    text = text.strip()
    if "_" in text or not text.isascii():
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _is_whole(number: int | float | None) -> bool:
    return isinstance(number, int) or (isinstance(number, float) and math.isfinite(number) and number.is_integer())


def _plain(value: int | float) -> Plain:
    """The value for the report: 5.0 is 5, NaN is missing (None), infinities are words (JSON has none)."""
    if isinstance(value, bool) or not isinstance(value, float):
        return int(value)
    if value != value:
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if value.is_integer() and abs(value) < _BEYOND_FLOAT else value
