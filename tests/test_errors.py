"""The exceptions: a Violation is what torch would raise, tells everything, and survives every way it may travel."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from preassert.errors import InputError, MissingExtra, PreassertError, UsageError, Violation
from preassert.model import ArgumentInfo, BadElement, Sample, Site


def make(**changed: Any) -> Violation:
    fields: dict[str, Any] = {
        "operator": "aten::nll_loss_forward",
        "call": "F.cross_entropy",
        "argument": "target",
        "valid": "0..4 or ignore_index=-100",
        "arguments": (ArgumentInfo("input", "float32", (4, 5)), ArgumentInfo("target", "int64", (4,))),
        "elements": (BadElement((3,), 5),),
        "count": 1,
        "total": 4,
        "minimum": 0,
        "maximum": 5,
        "lowest": 0,
        "highest": 4,
        "legal": (-100,),
        "site": Site("train.py", 41, "train_step", "loss = criterion(model(x), y)"),
        "sample": Sample(indices=(1041,)),
        "likely": "labels start at 1, or num_classes is one too small",
    }
    return Violation("target-out-of-range", **{**fields, **changed})


TEXT = """\
target-out-of-range
  F.cross_entropy(input: float32[4, 5], target: int64[4]): target[3] = 5, valid 0..4 or ignore_index=-100
  1 of 4 values is outside (min 0, max 5)
  train.py:41 in train_step: loss = criterion(model(x), y)
  module: none; sample: dataset index 1041
  likely: labels start at 1, or num_classes is one too small. Next: preassert hazards target-out-of-range"""


def test_the_report_is_in_the_order_of_the_house() -> None:
    assert str(make()) == TEXT


def test_it_is_what_torch_raises_for_the_same_fault() -> None:
    for kind in (RuntimeError, IndexError, ValueError, LookupError):
        with pytest.raises(kind):
            raise make()
    assert not isinstance(make(), PreassertError)


def test_its_name_in_a_traceback_is_the_public_one() -> None:
    assert f"{Violation.__module__}.{Violation.__qualname__}" == "preassert.Violation"
    import preassert

    assert preassert.Violation is Violation


def test_the_fields_are_plain_data() -> None:
    data = make(elements=(BadElement((0, 2), float("nan")),), maximum=float("inf"), rank=3).to_dict()
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data
    assert (again["schema"], again["rank"]) == ("preassert.violation/1", 3)
    assert again["elements"] == [{"position": [0, 2], "value": "NaN"}]
    assert again["maximum"] == "inf"
    assert again["arguments"][1] == {"name": "target", "dtype": "int64", "shape": [4]}
    assert again["site"]["line"] == 41
    assert again["sample"]["indices"] == [1041]


def test_many_elements_are_bounded_and_the_rest_is_counted() -> None:
    elements = tuple(BadElement((place,), 9) for place in range(5))
    text = str(make(elements=elements, count=1234, total=5000))
    assert "target[4] = 9, ... (1229 more)" in text
    assert "1,234 of 5,000 values are outside" in text


def test_a_sample_that_is_not_known_says_why() -> None:
    text = str(make(sample=Sample(unknown_because="the data set is iterable and has no indices")))
    assert "sample: unknown (the data set is iterable and has no indices)" in text
    many = str(make(sample=Sample(indices=tuple(range(12)))))
    assert "dataset indices 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... (2 more)" in many


def same(one: Violation, other: Violation) -> bool:
    return type(other) is Violation and str(other) == str(one) and other.to_dict() == one.to_dict()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(protocol: int) -> None:
    violation = make()
    assert same(violation, pickle.loads(pickle.dumps(violation, protocol)))


def test_copies() -> None:
    violation = make(module="bert.embeddings", detail="more")
    assert same(violation, copy.copy(violation))
    assert same(violation, copy.deepcopy(violation))


def test_notes_travel_along() -> None:
    violation = make()
    violation.__notes__ = ["2 more violations followed"]
    again = pickle.loads(pickle.dumps(violation))
    assert again.__notes__ == ["2 more violations followed"]
    assert same(violation, again)


def fail() -> None:
    raise make()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_comes_back_from_another_process(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    # spawned children import this file by its name, which pytest's importlib mode does not give; so a builtin raises there
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        if method == "fork":
            with pytest.raises(Violation) as caught:
                pool.submit(fail).result(60)
            assert same(make(), caught.value)
        else:
            assert same(make(), pool.submit(copy.copy, make()).result(60))


def test_relayed_as_text_it_keeps_its_hazard() -> None:
    """What torch does with an exception of a DataLoader worker: ``type(message)``."""
    message = f"Caught Violation in DataLoader worker process 0.\nOriginal Traceback:\n  ...\npreassert.Violation: {make()}\n"
    relayed = Violation(message)
    assert (relayed.hazard, str(relayed), relayed.operator, relayed.elements) == ("target-out-of-range", message, "", ())
    again = pickle.loads(pickle.dumps(relayed))
    assert (again.hazard, str(again)) == (relayed.hazard, message)
    assert json.dumps(relayed.to_dict())
    assert Violation("something else").hazard == "unknown"
    assert str(Violation("something else")) == "something else"


def test_the_other_errors() -> None:
    assert issubclass(UsageError, PreassertError)
    error = InputError("labels.csv", "row 3 has two columns")
    assert str(error) == "labels.csv: row 3 has two columns"
    again = pickle.loads(pickle.dumps(error))
    assert (again.file, again.reason) == (error.file, error.reason)
    missing = MissingExtra("pyarrow", extra="data", purpose="read Parquet files")
    assert isinstance(missing, ImportError)
    assert str(missing) == "pyarrow is needed to read Parquet files: pip install 'preassert[data]'"
    copied = pickle.loads(pickle.dumps(missing))
    assert (str(copied), copied.extra) == (str(missing), "data")
