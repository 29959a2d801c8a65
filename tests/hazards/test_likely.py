"""The likely cause, drawn from the numbers: one row per story, the values as the guard and ``check`` pass them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preassert import hazards
from preassert.hazards.likely import REMAP, likely

NAN, INF = math.nan, math.inf
TARGET, EMBEDDING, INDEX, GATHER = (
    "target-out-of-range",
    "embedding-index-out-of-range",
    "index-out-of-range",
    "gather-index-out-of-range",
)
PROBABILITY, SAMPLING = "probability-outside-unit-interval", "invalid-sampling-distribution"


def case(hazard: str, low: Any, high: Any, *, valid: tuple[Any, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    """Extremes of the argument, its valid range, and what else is known."""
    return hazard, {"minimum": low, "maximum": high, "lowest": valid[0], "highest": valid[1], **more}


def target(low: int, high: int, classes: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return case(TARGET, low, high, valid=(0, classes - 1), argument="target", legal=more.pop("legal", (-100,)), **more)


def ids(low: int, high: int, rows: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return case(EMBEDDING, low, high, valid=(0, rows - 1), argument=more.pop("argument", "indices"), **more)


STORIES: dict[str, tuple[tuple[str, dict[str, Any]], str | None]] = {
    # labels
    "labels 1..C": (
        target(1, 5, 5, count=1, total=4),
        "labels start at 1; subtract 1, or make them 0..K-1: preassert remap FILE --column LABEL -o OUT --map labels.json",
    ),
    "labels 1..C, seen": (target(1, 5, 5, distinct=[5]), "labels start at 1; subtract 1"),
    "only C beside 0": (target(0, 5, 5, count=1, total=4), "num_classes is one too small, or 5 is a stray label"),
    "only C beside 0, seen": (target(0, 5, 5, distinct=[5]), "num_classes is one too small, or 5 is a stray label"),
    "only C of many": (target(0, 1000, 1000, distinct=[1000]), "num_classes is one too small, or 1000 is a stray label"),
    "only C, few labels in the batch": (target(3, 5, 5, distinct=[5]), "labels start at 1, or num_classes is one too small"),
    "only C beside ignored": (target(-100, 5, 5, distinct=[5]), "labels start at 1, or num_classes is one too small"),
    "C and C+1": (target(0, 6, 5, distinct=[5, 6]), f"class ids have gaps ({REMAP}), or num_classes is smaller"),
    "gaps, all labels known": (target(0, 5, 5, distinct=[5], labels=4), f"class ids have gaps (4 labels up to 5; {REMAP}), or"),
    "too few classes, all labels known": (target(0, 5, 5, distinct=[5], labels=6), "num_classes is 5 and there are 6 labels"),
    "two too few, all labels known": (target(0, 6, 5, distinct=[5, 6], labels=7), "num_classes is 5 and there are 7 labels"),
    "labels 1..C, all known": (target(1, 5, 5, distinct=[5], labels=5), "labels start at 1; subtract 1"),
    "only C, no 0, all known": (target(2, 5, 5, distinct=[5], labels=3), "labels start at 1, or num_classes"),
    "gaps, file known": (
        target(0, 6, 5, distinct=[5, 6], remap="preassert remap a.csv"),
        "class ids have gaps (preassert remap a.csv)",
    ),
    "C inferred but more is known": (target(0, 6, 5, distinct=[5]), "gaps"),
    "void": (
        target(0, 255, 21, distinct=[255]),
        "255 is the border or void value of a mask (or -1 stored as uint8); pass ignore_index=255",
    ),
    "void, maximum alone": (target(0, 255, 21), "pass ignore_index=255"),
    "white foreground": (target(0, 255, 2, distinct=[255]), "foreground as 255"),
    "255 among others": (target(0, 255, 21, distinct=[254, 255], count=2, total=100), "a few labels do not belong"),
    "unlabelled": (target(-1, 3, 5, distinct=[-1]), "-1 marks unlabelled elements, while ignore_index is -100"),
    "unlabelled, other marker": (target(-1, 3, 5, legal=(255,), distinct=[-1]), "while ignore_index is 255"),
    "ignored, other marker": (
        target(-100, 3, 5, legal=(-1,), distinct=[-100]),
        "-100 marks elements to ignore, while ignore_index is -1",
    ),
    "no ignore_index": (target(-1, 3, 5, legal=(), distinct=[-1]), "while it is not the ignore_index of the loss"),
    "coco": (target(1, 90, 80, distinct=[80, 81, 90]), "COCO category ids"),
    "other gaps": (target(0, 9, 6, distinct=[6, 9]), "gaps"),
    "far off, most": (target(0, 900, 5, distinct=[7, 900], count=90, total=100), "another column was read"),
    "far off, seen in the maximum": (target(0, 900, 5, distinct=[5, 6], count=9, total=100), "a few labels do not belong"),
    "far off, few": (target(0, 900, 5, distinct=[900], count=1, total=100), "a few labels do not belong"),
    "int8": (target(-128, 100, 200, distinct=[-128, -56]), "wrapped round in an int8"),
    "int8, known": (target(-128, 100, 200, distinct=[-128, -56], signed_bits=8), "ids of 128 and more wrapped round in int8"),
    "int16": (ids(-15279, 900, 50257, distinct=[-15279], signed_bits=16), "ids of 32,768 and more wrapped round in int16"),
    "int16 is wide enough": (ids(-7, 900, 1000, distinct=[-7], signed_bits=16), "negative ids"),
    "int16 holds -1": (ids(-1, 900, 50257, distinct=[-1], signed_bits=16), "-1 is used as padding"),
    "int32, the ids would fit": (target(-3, 150, 200, distinct=[-3], signed_bits=32), "negative values mark missing labels"),
    "not int8": (target(-3, 4, 5, distinct=[-3, -2]), "negative values mark missing labels"),
    "NaN cast": (target(-(2**63), 3, 5), "a NaN or infinity was cast to an integer earlier"),
    "NaN cast to int32": (target(-(2**31), 3, 5), "a NaN or infinity was cast to an integer earlier"),
    "-1 as uint16": (ids(0, 65535, 50257, distinct=[65535]), "65535 is -1 stored as uint16"),
    "-1 as uint64": (ids(0, 2**64 - 1, 50257, distinct=[2**64 - 1]), "18446744073709551615 is -1 stored as uint64"),
    "garbage": (target(0, 94208313472123, 5), "never set"),
    "too low and too high": (target(-7, 9, 5, distinct=[-7, 9]), None),
    "multilabel": (case(TARGET, -1, 5, valid=(-1, 4), argument="target"), "labels start at 1, or num_classes"),
    # ids
    "one added token": (ids(101, 30522, 30522, distinct=[30522]), "a token was added after the table was built"),
    "ids 1..V": (ids(1, 10, 10), "ids start at 1"),
    "long sequence": (
        ids(0, 514, 512, distinct=[512, 513, 514]),
        "a sequence longer than the table of 512 if these are positions",
    ),
    "long sequence, table known": (
        ids(0, 514, 512, parameter="bert.embeddings.position_embeddings"),
        "longer than the table of 512 positions",
    ),
    "positions by a short name": (ids(0, 64, 64, parameter="decoder.pos"), "longer than the table of 64 positions"),
    "no position table": (ids(0, 64, 64, parameter="positional_encoder.token"), "a token was added"),
    "token table": (ids(0, 64, 64, parameter="encoder.embeddings.token"), "a token was added"),
    "gpt positions": (ids(0, 1024, 1024, parameter="transformer.wpe"), "longer than the table of 1024 positions"),
    "token types": (
        ids(0, 1, 1, parameter="roberta.embeddings.token_type_embeddings"),
        "token_type_ids go past the 1 token type of",
    ),
    "other tokenizer": (ids(0, 90112, 32000, distinct=[90112, 41003]), "a larger vocabulary than the table"),
    "padding -1": (ids(-1, 9, 10), "-1 is used as padding"),
    "labels as ids": (ids(-100, 9, 10), "-100 is used as padding or as an ignored label"),
    "negative ids": (ids(-7, 9, 10), "never counts from the end"),
    "offsets past the end": (ids(0, 5, 5, argument="offsets", distinct=[5]), "the offsets count more ids than were given"),
    "offsets not from 0": (ids(1, 3, 5, argument="offsets"), "running sum"),
    "ids of NaN": (ids(-(2**63), 3, 5), "a NaN or infinity was cast"),
    # indices
    "off by one beside 0": (case(INDEX, 0, 7, valid=(-7, 6), argument="indices"), "off by one: a length used as an index"),
    "off by one": (
        case(INDEX, 3, 7, valid=(-7, 6), argument="indices"),
        "off by one: ids that start at 1, or a length used as an index",
    ),
    "index 1..size": (case(INDEX, 1, 45, valid=(-45, 44), argument="indices"), "ids start at 1; subtract 1"),
    "other tensor": (case(INDEX, 0, 31, valid=(-25, 24), argument="indices", distinct=[25, 31]), "built for a larger tensor"),
    "too negative": (case(INDEX, -31, 3, valid=(-25, 24), argument="indices"), "built for a larger tensor"),
    "masked_scatter": (case(INDEX, 9, 9, valid=(None, None), argument="source"), "more elements than the source holds"),
    "repeats": (case(INDEX, -1, 3, valid=(0, None), argument="repeats"), "negative"),
    "gather -100": (case(GATHER, -100, 3, valid=(0, 3), argument="index"), "-100 is used as padding or as an ignored label"),
    "one_hot of void": (case(GATHER, 0, 255, valid=(0, 3), argument="self", distinct=[255]), "255 is the border or void value"),
    "quantile": (case(GATHER, 0.5, 95.0, valid=(0, 1), argument="q"), "percentage"),
    "compiled": (case("compiled-index-out-of-range", 0, 13, valid=(0, 12)), "off by one"),
    # probabilities
    "logits": (case(PROBABILITY, -3.0, 4.5, valid=(0, 1), argument="self"), "logits without a sigmoid; use BCEWithLogitsLoss"),
    "NaN": (case(PROBABILITY, 0.1, 0.9, valid=(0, 1), argument="self", distinct=[NAN]), "NaN from an earlier step"),
    "all NaN": (case(PROBABILITY, None, None, valid=(0, 1), argument="self", distinct=[NAN]), "NaN from an earlier step"),
    "extremes not known": (case(SAMPLING, None, None, valid=(0, None), argument="self"), None),
    "NaN extreme": (case(PROBABILITY, NAN, NAN, valid=(0, 1), argument="self"), "NaN from an earlier step"),
    "infinity": (case(PROBABILITY, 0.0, INF, valid=(0, 1), argument="self"), "infinity from an earlier step"),
    "rounding": (case(PROBABILITY, 0.0, 1.0000001, valid=(0, 1), argument="self"), "rounding"),
    "target of an image": (case(PROBABILITY, 0.0, 255.0, valid=(0, 1), argument="target"), "divide it by 255"),
    "target -1, 1": (case(PROBABILITY, -1.0, 1.0, valid=(0, 1), argument="target"), "-1 and 1 instead of 0 and 1"),
    "target 1, 2": (case(PROBABILITY, 1.0, 2.0, valid=(0, 1), argument="target"), "1 and 2 instead of 0 and 1"),
    "class ids as target": (
        case(PROBABILITY, 0.0, 9.0, valid=(0, 1), argument="target", distinct=[3.0, 9.0]),
        "class ids were given",
    ),
    "target not scaled": (case(PROBABILITY, 0.0, 1.7, valid=(0, 1), argument="target"), "not scaled"),
    "the sample misses the farthest": (
        case(PROBABILITY, 0.0, 3.5, valid=(0, 1), distinct=[1.0000001]),
        "logits without a sigmoid",
    ),
    "probabilities not known": (case(PROBABILITY, None, None, valid=(0, 1)), None),
    # sampling
    "sampling from NaN": (case(SAMPLING, None, None, valid=(0, None), argument="self", distinct=[NAN]), "temperature 0"),
    "sampling from logits": (case(SAMPLING, -2.0, 3.0, valid=(0, None), argument="self"), "apply softmax first"),
    "poisson": (case(SAMPLING, -2.0, 3.0, valid=(0, None), argument="self", call="torch.poisson"), "softplus"),
    "zero row": (case(SAMPLING, 0.0, 1.0, valid=(0, None), argument="self"), "a row sums to zero"),
    # ctc
    "ctc label": (
        case("ctc-target-invalid", 1, 11, valid=(0, 10), argument="targets"),
        "more symbols than the network has classes",
    ),
    "ctc blank as label": (
        case("ctc-target-invalid", 0, 9, valid=(1, 10), argument="targets"),
        "labels start at 0, which is the blank",
    ),
    "ctc padding": (case("ctc-target-invalid", -1, 9, valid=(0, 10), argument="targets"), "padding"),
    "ctc input_lengths": (case("ctc-target-invalid", 9, 90, valid=(0, 45), argument="input_lengths"), "down-sampling"),
    # pooling
    "unpooling": (case("invalid-pooling-index", 0, 268, valid=(0, 255), argument="indices"), "output_size"),
    # nothing to say
    "no numbers": ((TARGET, {}), None),
    "nothing offends": (target(1, 5, 5, count=0), None),
    "not about values": (("out-of-memory", {"minimum": 1, "maximum": 2}), None),
    "unknown hazard": (("zzz", {}), None),
}


@pytest.mark.parametrize(("given", "says"), STORIES.values(), ids=STORIES.keys())
def test_likely(given: tuple[str, dict[str, Any]], says: str | None) -> None:
    hazard, numbers = given
    sentence = likely(hazard, **numbers)
    if says is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert says in sentence


def test_sentences_fit_the_report() -> None:
    for (hazard, numbers), _ in STORIES.values():
        sentence = likely(hazard, **numbers)
        if sentence is not None:
            assert not sentence.endswith(".")
            assert "\n" not in sentence
            assert len(sentence) < 140


NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 300), st.floats())
KNOWN = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 300), st.floats())


@settings(max_examples=400, deadline=None)
@given(
    hazard=st.sampled_from(hazards.slugs()),
    argument=st.sampled_from([None, "target", "self", "indices", "offsets", "source", "q", "blank", "std"]),
    count=st.integers(0, 5),
    total=st.integers(0, 5),
    minimum=NUMBERS,
    maximum=NUMBERS,
    lowest=NUMBERS,
    highest=NUMBERS,
    legal=st.lists(KNOWN, max_size=2),
    distinct=st.lists(KNOWN, max_size=4),
    parameter=st.sampled_from([None, "a.position_embeddings", "table", ""]),
    signed_bits=st.sampled_from([None, 8, 16, 32, 64]),
    labels=st.sampled_from([None, 1, 200]),
)
def test_any_numbers_are_answered(hazard: str, **numbers: Any) -> None:
    sentence = likely(hazard, **numbers)
    assert sentence is None or sentence


@pytest.mark.parametrize("hazard", [TARGET, EMBEDDING, INDEX, GATHER])
@pytest.mark.parametrize("size", [1, 2, 5, 80, 1000])
@pytest.mark.parametrize("beyond", [0, 1, 7, 3000])
@pytest.mark.parametrize("known", [True, False])
def test_nothing_starts_at_1_where_0_occurs(hazard: str, size: int, beyond: int, known: bool) -> None:
    sentence = likely(
        hazard, argument="target", minimum=0, maximum=size + beyond, lowest=0, highest=size - 1, legal=(-100,),
        distinct=[size + beyond] if known else [],
    )  # fmt: skip
    assert sentence is not None
    assert "start at 1" not in sentence


def test_the_command_that_sentences_name_exists() -> None:
    from preassert.cli.remap import parser

    words = REMAP.split()
    assert words[:2] == ["preassert", "remap"]
    given = parser().parse_args(words[2:])
    assert (given.inputs, given.column, given.output, given.map) == (["FILE"], "LABEL", "OUT", "labels.json")


def test_hazards_with_rules_exist() -> None:
    from preassert.hazards.likely import _RULES

    assert set(_RULES) <= set(hazards.slugs())
