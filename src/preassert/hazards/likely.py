"""The most likely cause of a fault, drawn from the numbers alone. Pure functions, standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

Number = int | float

_MANY = 3  # so many ids in a row past the end look like positions, fewer like added tokens
_ROUNDING = 1e-3  # a probability so close to the interval was once inside it
_CAST_OF_NAN = {-(2**63), -(2**31)}  # what a NaN or an infinity becomes when it is cast to int64 or int32
_UNSIGNED_MINUS_ONE = {2**16 - 1: "uint16", 2**32 - 1: "uint32", 2**64 - 1: "uint64"}
_GARBAGE = 2**40  # no table has so many rows
_POSITIONS = {"pos", "position", "positions", "positional", "wpe"}  # words in the names of position tables
_SEGMENTS = {"segment", "segments", "tokentype"}
REMAP = "preassert remap FILE --column LABEL -o OUT --map labels.json"  # as the command is written where the file is not known


@dataclass(frozen=True, slots=True)
class _Facts:
    argument: str
    minimum: Number | None
    maximum: Number | None
    lowest: Number | None
    highest: Number | None
    legal: tuple[Number, ...]
    bad: frozenset[Number]  # offending values that are known, NaN left out
    has_nan: bool
    size: int | None  # number of classes, rows or elements of the dimension
    share: float  # of the elements that offend
    call: str  # lower case
    table: frozenset[str]  # words of the name of the table that is indexed, lower case
    remap: str  # the command that renumbers labels
    signed_bits: int | None  # of the stored integers, where they are signed
    labels: int | None  # how many distinct labels there are

    @property
    def above(self) -> bool:
        return self.highest is not None and any(value > self.highest for value in self.bad)

    @property
    def below(self) -> bool:
        return self.lowest is not None and any(value < self.lowest for value in self.bad)

    @property
    def reach(self) -> set[Number]:
        """Offending values and extremes: the known values may be a sample that misses the farthest."""
        return {value for value in (*self.bad, self.minimum, self.maximum) if value is not None}

    def only(self, value: Number) -> bool:
        """Is ``value`` the one offending value, as far as the extremes tell?"""
        if self.bad != {value}:
            return False
        extremes = {edge for edge in (self.minimum, self.maximum) if edge is not None and edge not in self.legal}
        return all(edge == value or self._inside(edge) for edge in extremes)

    @property
    def zero_occurs(self) -> bool:
        """Is 0 known to be among the values? Then nothing starts at 1. An ignored value below it hides the answer."""
        return self.minimum == 0

    def one_based(self) -> bool:
        return self.size is not None and self.minimum == 1 and self.maximum == self.size and self.only(self.size)

    def _inside(self, value: Number) -> bool:
        return (self.lowest is None or value >= self.lowest) and (self.highest is None or value <= self.highest)


def likely(
    hazard: str,
    *,
    argument: str | None = None,
    count: int = 1,
    total: int = 1,
    minimum: Number | None = None,
    maximum: Number | None = None,
    lowest: Number | None = None,
    highest: Number | None = None,
    legal: Sequence[Number] = (),
    distinct: Collection[Number] = (),
    num_classes: int | None = None,
    call: str | None = None,
    parameter: str | None = None,
    remap: str = REMAP,
    signed_bits: int | None = None,
    labels: int | None = None,
) -> str | None:
    """One sentence without its final full stop that names the most likely cause, or None where the numbers tell nothing.

    Args:
        hazard: slug.
        argument: name of the offending argument (``"target"``, ``"offsets"`` ...).
        count, total: number of offending elements and of all elements.
        minimum, maximum: extremes of the whole argument, NaN left out; None where there are none or they are unknown.
        lowest, highest: the valid range, both inclusive. legal: further legal values (``ignore_index``).
        distinct: offending values that are known (may be a bounded sample; NaN included where it occurs).
        num_classes: classes, rows or size of the dimension, where it is not ``highest + 1``.
        call: the call as the user wrote it. parameter: name or module path of the table that is indexed.
        remap: the command that makes labels 0..K-1, as exactly as the caller knows it.
        signed_bits: width of the integers as they are stored; None where they are unsigned, no integers, or it is unknown.
        labels: how many distinct labels there are in the whole data set, ignored ones left out; None where it is unknown.
    """
    rule = _RULES.get(hazard)
    if rule is None or count == 0:
        return None
    return rule(
        _Facts(
            argument=argument or "",
            minimum=_finite(minimum),
            maximum=_finite(maximum),
            lowest=lowest,
            highest=highest,
            legal=tuple(legal),
            bad=_bad(distinct, minimum, maximum, lowest, highest, legal),
            has_nan=any(_is_nan(value) for value in distinct) or _is_nan(minimum) or _is_nan(maximum),
            size=num_classes if num_classes is not None else _size(lowest, highest),
            share=count / max(total, 1),
            call=(call or "").lower(),
            table=frozenset(re.split(r"[\W_\d]+", (parameter or "").rpartition(".")[2].lower())),
            remap=remap,
            signed_bits=signed_bits,
            labels=labels,
        )
    )


def _bad(
    distinct: Collection[Number],
    minimum: Number | None,
    maximum: Number | None,
    lowest: Number | None,
    highest: Number | None,
    legal: Sequence[Number],
) -> frozenset[Number]:
    """Offending values: the ones given, else the extremes that are outside."""
    given = frozenset(value for value in distinct if not _is_nan(value))
    if given:
        return given
    outside = set()
    if minimum is not None and lowest is not None and minimum < lowest:
        outside.add(minimum)
    if maximum is not None and highest is not None and maximum > highest:
        outside.add(maximum)
    return frozenset(outside - set(legal))


def _size(lowest: Number | None, highest: Number | None) -> int | None:
    if isinstance(highest, int) and lowest is not None and lowest <= 0 <= highest:
        return highest + 1
    return None


def _is_nan(value: Number | None) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _finite(value: Number | None) -> Number | None:
    return None if value is None or _is_nan(value) else value


def _garbage(facts: _Facts) -> str | None:
    """Integers that no one wrote on purpose."""
    if facts.bad & _CAST_OF_NAN:
        return "a NaN or infinity was cast to an integer earlier"
    for value, dtype in _UNSIGNED_MINUS_ONE.items():
        if facts.only(value):
            return f"{value} is -1 stored as {dtype}"
    if any(abs(value) >= _GARBAGE for value in facts.bad):
        return "the values were never set (torch.empty), or the bytes of another dtype were read as integers"
    return None


def _target(facts: _Facts) -> str | None:
    return _garbage(facts) or _marker(facts) or _wrapped(facts) or _too_high_label(facts) or _negative_label(facts)


def _marker(facts: _Facts) -> str | None:
    """A value that stands for "no label"."""
    ignored = f"ignore_index is {facts.legal[0]}" if len(facts.legal) == 1 else "it is not the ignore_index of the loss"
    if facts.only(-1):
        return f"-1 marks unlabelled elements, while {ignored}"
    if facts.only(-100):
        return f"-100 marks elements to ignore, while {ignored}"
    if facts.only(255):
        if facts.size == 2:
            return "the mask stores its foreground as 255 (map 255 to 1), or 255 is its void value (pass ignore_index=255)"
        return "255 is the border or void value of a mask (or -1 stored as uint8); pass ignore_index=255"
    return None


def _wrapped(facts: _Facts) -> str | None:
    """Ids that the integer type could not hold; where the type is not known, int8 shows by how far the values reach."""
    if facts.size is None or facts.above or not facts.below or facts.only(-1):
        return None
    bits = facts.signed_bits if facts.signed_bits is not None and facts.signed_bits < 64 else None
    if bits is not None and facts.size > 1 << (bits - 1):
        return f"ids of {1 << (bits - 1):,} and more wrapped round in int{bits}"
    if bits is None and min(facts.reach) >= -128 and facts.size > 128:
        return "class ids above 127 wrapped round in an int8 array"
    return None


def _too_high_label(facts: _Facts) -> str | None:
    if not facts.above or facts.below or facts.size is None:
        return None
    if facts.one_based():
        return f"labels start at 1; subtract 1, or make them 0..K-1: {facts.remap}"
    if facts.only(facts.size) and not (facts.zero_occurs and facts.labels is not None):
        if facts.zero_occurs:
            return f"num_classes is one too small, or {facts.size} is a stray label"
        return "labels start at 1, or num_classes is one too small"
    top = max(facts.reach)
    if facts.size in (80, 81) and top <= 90:
        return f"COCO category ids have gaps and run to 90; map them to 0..79: {facts.remap}"
    if top < 2 * facts.size and facts.labels is not None:
        if facts.labels > facts.size:
            return f"num_classes is {facts.size} and there are {facts.labels} labels"
        return f"class ids have gaps ({facts.labels} labels up to {top}; {facts.remap}), or a few are stray"
    if top < 2 * facts.size:
        return f"class ids have gaps ({facts.remap}), or num_classes is smaller than the label set"
    if facts.share > 0.5:
        return "num_classes is far smaller than the label set, or another column was read as the labels"
    return "a few labels do not belong to this label set: a typing error, a corrupted file or another numbering"


def _negative_label(facts: _Facts) -> str | None:
    if facts.below and not facts.above:
        return "negative values mark missing labels; a class is never counted from the end"
    return None


def _embedding(facts: _Facts) -> str | None:
    if facts.argument == "offsets":
        return _offsets(facts)
    wrapped = _wrapped(facts) if facts.signed_bits is not None else None
    return _garbage(facts) or wrapped or _negative_id(facts) or _too_high_id(facts)


def _offsets(facts: _Facts) -> str | None:
    if facts.above:
        return "the offsets count more ids than were given; each is the start of a bag, at most len(indices)"
    return "the offsets are not the running sum of the bag lengths: they start at 0 and never decrease"


def _negative_id(facts: _Facts) -> str | None:
    if not facts.below or facts.above:
        return None
    for value in (-1, -100):
        if facts.only(value):
            return (
                f"{value} is used as padding or as an ignored label; replace it before the lookup, ids never count from the end"
            )
    return "negative ids; an embedding never counts from the end"


def _too_high_id(facts: _Facts) -> str | None:
    if not facts.above or facts.below or facts.size is None:
        return None
    if facts.table & _SEGMENTS or {"token", "type"} <= facts.table:
        return f"token_type_ids go past the {_plural(facts.size, 'token type')} of this model"
    if facts.table & _POSITIONS:
        return f"the sequence is longer than the table of {facts.size} positions; truncate to it"
    if facts.one_based():
        return "ids start at 1, or num_embeddings is one too small (an added token, or the padding id)"
    if facts.only(facts.size):
        return "a token was added after the table was built, or the padding id equals num_embeddings (resize_token_embeddings)"
    run = sorted(value for value in facts.bad if facts.highest is not None and value > facts.highest)
    if len(run) >= _MANY and run == list(range(facts.size, facts.size + len(run))):
        return f"a sequence longer than the table of {facts.size} if these are positions, else tokens added after it was built"
    return (
        "the ids come from a larger vocabulary than the table: another tokenizer, or tokens added without resize_token_embeddings"
    )


def _index(facts: _Facts) -> str | None:
    special = _ARGUMENTS.get(facts.argument)
    return special or _garbage(facts) or _index_value(facts)


# Arguments of indexing operators that are no indices.
_ARGUMENTS = {
    "source": "the mask selects more elements than the source holds, for example more placeholder tokens than image features",
    "repeats": "a count went negative, for example a difference of lengths",
    "output_size": "output_size is not the sum of repeats",
    "lengths": "a length went negative, or the lengths do not add up to the data",
    "offs": "the group offsets are not the running sum of the group sizes, or run past the tensor",
    "q": "a percentage was given where a fraction in 0..1 is needed",
}


def _index_value(facts: _Facts) -> str | None:
    if facts.size is None:
        return None
    if facts.below and not facts.above:
        return _negative_index(facts)
    if not facts.above or facts.below:
        return None
    if facts.one_based():
        return "ids start at 1; subtract 1"
    if facts.only(255) and facts.size < 255:
        return "255 is the border or void value of a mask; replace it before"
    if facts.only(facts.size):
        return "off by one: " + (
            "a length used as an index" if facts.zero_occurs else "ids that start at 1, or a length used as an index"
        )
    return "the index was built for a larger tensor"


def _negative_index(facts: _Facts) -> str | None:
    if facts.lowest is not None and facts.lowest < 0:
        return "the index was built for a larger tensor"  # negatives are legal here, only not so far from the end
    for value in (-1, -100):
        if facts.only(value):
            return f"{value} is used as padding or as an ignored label; this operator never counts from the end"
    return "negative indices; this operator never counts from the end"


def _instability(facts: _Facts) -> str | None:
    if facts.has_nan:
        return "NaN from an earlier step: a learning rate too high, log(0), 0/0, float16 overflow or a NaN in the input data"
    if any(math.isinf(value) for value in (*facts.bad, facts.minimum or 0, facts.maximum or 0)):
        return "infinity from an earlier step: an overflow (float16 above 65504), a division by zero or exp of a large number"
    return None


def _probability(facts: _Facts) -> str | None:
    unstable = _instability(facts)
    if unstable:
        return unstable
    if not facts.bad:
        return None
    low, high = min(facts.reach), max(facts.reach)
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return "rounding pushed the values just outside; clamp them to [0, 1]"
    if facts.argument == "target":
        return _probability_target(facts, high)
    return "logits without a sigmoid; use BCEWithLogitsLoss, or apply torch.sigmoid first"


def _probability_target(facts: _Facts, high: Number) -> str | None:
    if high == 255:
        return "the target is an image in 0..255; divide it by 255"
    if facts.only(-1):
        return "targets are -1 and 1 instead of 0 and 1, or -1 marks unlabelled elements (binary_cross_entropy ignores nothing)"
    if facts.minimum == 1 and facts.only(2):
        return "labels are 1 and 2 instead of 0 and 1"
    if all(value == int(value) for value in facts.bad):
        return "class ids were given as targets; binary_cross_entropy needs 0..1 (one-hot them, or use cross_entropy)"
    return "the target was not scaled to 0..1"


def _sampling(facts: _Facts) -> str | None:
    if _instability(facts):
        return "the logits hold NaN or infinity: float16 overflow, temperature 0, a fully masked row or a diverged model"
    if any(value < 0 for value in facts.bad) or (facts.minimum is not None and facts.minimum < 0):
        if facts.argument in ("std", "rate", "lambda") or "poisson" in facts.call:
            return "a network output was used without making it positive (softplus or exp)"
        return "logits were given where probabilities are needed; apply softmax first"
    if facts.minimum is not None and facts.minimum >= 0:
        return "a row sums to zero: every candidate was filtered out or masked"
    return None


def _ctc(facts: _Facts) -> str | None:
    if facts.argument in ("input_lengths", "target_lengths") and not facts.above:
        return f"{facts.argument} are negative: how they are counted is wrong"
    if facts.argument == "input_lengths":
        return "input_lengths are longer than the network's output; they were taken before down-sampling"
    if facts.argument == "target_lengths":
        return "target_lengths go past the padded targets"
    if facts.argument == "blank":
        return "blank is not one of the classes"
    if facts.above:
        return "the alphabet has more symbols than the network has classes (the blank takes one)"
    if facts.only(0) and facts.lowest == 1:
        return "labels start at 0, which is the blank here; shift them by 1"
    if facts.below:
        return "padding of the targets is inside target_lengths"
    return None


def _pooling(facts: _Facts) -> str | None:
    if facts.above or facts.below:
        return "the indices come from a pooling of another size; pass output_size, the shape before pooling"
    return None


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_RULES: dict[str, Callable[[_Facts], str | None]] = {
    "target-out-of-range": _target,
    "embedding-index-out-of-range": _embedding,
    "index-out-of-range": _index,
    "gather-index-out-of-range": _index,
    "compiled-index-out-of-range": _index,
    "probability-outside-unit-interval": _probability,
    "invalid-sampling-distribution": _sampling,
    "ctc-target-invalid": _ctc,
    "invalid-pooling-index": _pooling,
}
