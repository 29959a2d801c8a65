"""What ``LabelMap`` does, input beside expectation."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from preassert import LabelMap
from preassert.labels import LabelWarning, MapMismatch, NotFitted, UnseenLabels

FAR = [7, -(2**60), 2**61, 5_000_000_000]


@pytest.mark.parametrize(
    ("parameters", "labels", "classes"),
    [
        ({}, ["c10", "c2", "c2", "b"], ["b", "c2", "c10"]),
        ({}, [10, 2, -3], [-3, 2, 10]),
        ({}, [2.5, 1.0, float(2**40)], [1, 2.5, 2**40]),
        ({}, [True, False], [False, True]),
        ({}, np.array([3.0, 1.0], np.float32), [1, 3]),
        ({"order": "first_seen"}, ["b", "a", "b"], ["b", "a"]),
        ({"order": "first_seen"}, np.array([9, 3, 9, 4]), [9, 3, 4]),
        ({"order": "first_seen"}, pa.array(["z", "a", "z"]), ["z", "a"]),
        ({"order": "frequency"}, ["a", "b", "b", "c10", "c9"], ["b", "a", "c9", "c10"]),
        ({"order": "given", "classes": ["z", "a"]}, ["a"], ["z", "a"]),
        ({"classes": [5, 3]}, [3, 3], [5, 3]),
        ({"missing": "ignore_index"}, ["a", None], ["a"]),
        ({"ignore_index": 255}, np.array([[0, 255], [7, 7]], np.uint8), [0, 7]),
        ({}, [-100, 4, 2], [2, 4]),
    ],
)
def test_classes(parameters: dict[str, Any], labels: Any, classes: list[Any]) -> None:
    fitted = LabelMap(**parameters).fit(labels)
    assert fitted.labels == classes
    assert [type(label) for label in fitted.labels] == [type(label) for label in classes]
    assert list(fitted.classes_) == classes
    assert fitted.num_classes == len(classes)


@pytest.mark.parametrize(
    ("parameters", "fitted_on", "labels", "codes"),
    [
        ({}, ["b", "a"], ["b", "a", "b"], [1, 0, 1]),
        ({"unknown": "ignore_index"}, ["b", "a"], ["b", "x"], [1, -100]),
        ({"unknown": "other"}, ["b", "a"], ["b", "x"], [1, 2]),
        ({"unknown": "drop"}, ["b", "a"], ["x", "b", "y"], [1]),
        ({"unknown": "drop"}, [4, 5], [9, 5], [1]),
        ({"missing": "ignore_index"}, ["b", "a"], ["b", None, float("nan"), pd.NA, pd.NaT], [1, -100, -100, -100, -100]),
        ({"missing": "class"}, ["b", "a"], ["b", None], [1, 2]),
        ({"missing": "class", "unknown": "other"}, ["b", "a"], ["b", None, "x"], [1, 2, 3]),
        ({"missing": "ignore_index", "ignore_index": -1}, [4, 5], np.array([4, np.nan]), [0, -1]),
        ({}, [4, 5], [5, -100, 5.0, np.int8(4)], [1, -100, 1, 0]),
        ({}, [0, 1, True], [True, 1, 0], [0, 2, 1]),
        ({}, FAR, [2**61, 7, -100], [3, 1, -100]),
        ({"unknown": "other"}, FAR, np.array([0, 7, 2**63 - 1, -(2**63)]), [4, 1, 4, 4]),
        ({"unknown": "other"}, [1, 2], np.array([2**63 - 1, -(2**63), 2, 3, 0]), [2, 2, 1, 2, 2]),
        ({"unknown": "other"}, [2**63 - 1, 2**63 - 2], np.array([-(2**63), 2**63 - 1]), [2, 1]),
        ({"unknown": "other"}, [2**64, 3], np.array([2**64 - 1, 3], np.uint64), [2, 0]),
        ({"unknown": "other"}, [False, True], np.array([True, False]), [1, 0]),
        ({"unknown": "other"}, [0, 1], np.array([True, False]), [2, 2]),  # True is not 1
        ({"unknown": "other"}, ["1"], [1, "1"], [1, 0]),
        ({"unknown": "other"}, ["a"], pd.Series(["a", "b"], dtype="category"), [0, 1]),
    ],
)
def test_transform(parameters: dict[str, Any], fitted_on: Any, labels: Any, codes: list[int]) -> None:
    fitted = LabelMap(**parameters, lookalikes="ignore").fit(fitted_on)
    out = fitted.transform(labels)
    assert list(out) == codes
    assert np.asarray(out).dtype == np.int64
    assert [code for code in map(fitted.look_up, list(labels)) if code is not None] == codes


def containers(labels: list[Any]) -> dict[str, Any]:
    text = isinstance(labels[0], str)
    out = {
        "list": labels,
        "tuple": tuple(labels),
        "numpy": np.array(labels),
        "object": np.array(labels, object),
        "pandas": pd.Series(labels, index=range(5, 5 + len(labels)), name="y"),
        "pandas index": pd.Index(labels),
        "pandas category": pd.Series(labels).astype("category"),
        "polars": pl.Series("y", labels),
        "arrow": pa.array(labels),
        "arrow sliced": pa.array([labels[0], *labels])[1:],
        "arrow chunked": pa.chunked_array([labels[:1], labels[1:]]),
        "arrow dictionary": pa.array(labels).dictionary_encode(),
    }
    if text:
        out["pandas object"] = pd.Series(labels, dtype=object)
        out["arrow large"] = pa.array(labels, pa.large_string())
        out["arrow view"] = pa.array(labels, pa.string_view())
        out["polars category"] = pl.Series(labels, dtype=pl.Categorical)
    else:
        out["torch"] = torch.tensor(labels)
        out["torch float"] = torch.tensor(labels, dtype=torch.float64)
        out["torch bfloat16"] = torch.tensor(labels, dtype=torch.bfloat16)
        out["numpy int16 strided"] = np.repeat(np.array(labels, np.int16), 2)[::2]
        out["numpy float16"] = np.array(labels, np.float16)
        out["numpy big-endian"] = np.array(labels, ">i4")
        out["pandas nullable"] = pd.Series(labels, dtype="Int64")
    return out


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("labels", [["b", "a10", "a2", "b", "é"], [8, 3, 3, 96, 8]], ids=["text", "ints"])
def test_every_container_gets_the_same_codes_and_its_own_kind_back(labels: list[Any]) -> None:
    fitted = LabelMap().fit(labels)
    expected = fitted.transform(labels)
    for name, container in containers(labels).items():
        assert LabelMap().fit(container).labels == fitted.labels, name
        out = fitted.transform(container)
        assert np.array_equal(np.asarray(out), expected), name
        assert np.asarray(out).dtype == np.int64, name
        if not name.startswith(("list", "tuple", "arrow", "pandas index")):
            assert type(out) is type(container), name
        if name.startswith("arrow"):
            assert isinstance(out, (pa.Array, pa.ChunkedArray)), name
        assert [str(x) for x in np.asarray(fitted.inverse_transform(out)).tolist()] == [str(x) for x in labels], name
    series = fitted.transform(containers(labels)["pandas"])
    assert (list(series.index), series.name) == ([5, 6, 7, 8, 9], "y")


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(0, 200), min_size=1, max_size=20),
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4), min_size=1, max_size=20),
    ),
    st.sampled_from(["natural", "frequency", "first_seen"]),
)
def test_containers_are_bit_identical(labels: list[Any], order: Any) -> None:
    fitted = LabelMap(order=order, lookalikes="ignore").fit(labels)
    expected = fitted.transform(labels).tobytes()
    for name, container in containers(labels).items():
        assert LabelMap(order=order, lookalikes="ignore").fit(container) == fitted, name
        assert np.ascontiguousarray(fitted.transform(container)).tobytes() == expected, name


def test_shapes_and_nesting() -> None:
    fitted = LabelMap().fit([1, 5, 9])
    mask = np.array([[[1, 5], [9, 9]]], np.uint8)
    assert fitted.transform(mask).tolist() == [[[0, 1], [2, 2]]]
    assert fitted.transform(torch.from_numpy(mask).transpose(1, 2)).tolist() == [[[0, 2], [1, 2]]]
    assert fitted.transform(np.asfortranarray(mask)).tolist() == [[[0, 1], [2, 2]]]
    assert fitted.transform([[1], [], [9, [5]]]) == [[0], [], [2, [1]]]
    assert fitted.transform([torch.tensor([1, 9]), torch.tensor([5])]) == [[0, 2], [1]]
    assert fitted.transform(pa.array([[1], None, [], [9, 5]])[1:]).to_pylist() == [None, [], [2, 1]]
    assert fitted.transform(pa.array([[1, 5], None, [9, 9]], pa.list_(pa.int8(), 2))).to_pylist() == [[0, 1], None, [2, 2]]
    assert fitted.transform(pl.Series([[1, 9], [5]])).to_list() == [[0, 2], [1]]
    assert fitted.transform(Image.fromarray(mask[0])).tolist() == [[0, 1], [2, 2]]
    assert fitted.inverse_transform([[0], [2, 1]]) == [[1], [9, 5]]
    assert fitted.transform(np.empty((0, 3), int)).shape == (0, 3)
    with pytest.raises(TypeError, match="mode RGB"):
        fitted.transform(Image.new("RGB", (2, 2)))


def test_drop_says_which_elements_stay() -> None:
    fitted = LabelMap(unknown="drop").fit(["a", "b"])
    series = pd.Series(["x", "b", "a"], index=[10, 11, 12])
    assert fitted.transform(series).to_dict() == {11: 1, 12: 0}
    assert fitted.is_known(series).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="needs flat labels"):
        fitted.transform([["a", "x"]])


def test_unseen_labels_are_listed_with_counts_and_places() -> None:
    fitted = LabelMap().fit(range(20))
    with pytest.raises(UnseenLabels) as caught:
        fitted.transform(np.array([[0, 77], [77, 88]]))
    assert [(entry.label, entry.count, entry.places) for entry in caught.value.unseen] == [
        (77, 2, ("[0, 1]", "[1, 0]")),
        (88, 1, ("[1, 1]",)),
    ]
    assert "77, 2 times, first at [0, 1], [1, 0]" in str(caught.value)
    assert "3 of 4 elements" in str(caught.value)
    with pytest.raises(UnseenLabels) as caught:
        fitted.transform([f"name {i}" for i in range(15)])
    assert str(caught.value).count("once, at") == 10
    assert "5 more labels" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).unseen == caught.value.unseen


@pytest.mark.parametrize(
    ("known", "asked", "hint"),
    [
        ([1, 2], "1", "'1' is not 1 (a number and text)"),
        (["1", "2"], 2, "2 is not '2' (a number and text)"),
        ([0, 1], True, "True is not 1 (a bool and a number)"),
        (["cat"], "cat ", "'cat ' is not 'cat' (differ by white space"),
        (["cat"], "ca\u200bt", "differ by white space or invisible"),
        (["\u00e9"], "e\u0301", "'e\\u0301' is not '\\xe9' (the same text in different Unicode forms)"),
    ],
)
def test_an_unseen_label_that_resembles_a_class_says_so(known: list[Any], asked: Any, hint: str) -> None:
    with pytest.raises(UnseenLabels) as caught:
        LabelMap().fit(known).transform([asked])
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1, "1", 2], "number and text"),
        ([True, 1, 0], "bool and a number"),
        (["True", True], "number and text"),
        (["\u00e9", "e\u0301"], "Unicode forms"),
        (["a", "a "], "white space"),
        ([" only"], "white space"),
        (["a", "b", "a b", "1a", 5, 1.5], None),
    ],
)
def test_lookalikes_are_reported_and_not_merged(labels: list[Any], said: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = LabelMap().fit(labels)
    assert fitted.num_classes == len(labels)
    assert sorted(fitted.transform(labels)) == list(range(len(labels)))
    assert [warning.category for warning in caught] == ([LabelWarning] if said else [])
    if said:
        assert said in str(caught[0].message)
        with pytest.raises(ValueError, match=said):
            LabelMap(lookalikes="error").fit(labels)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: LabelMap().transform([1]), NotFitted, "no classes yet"),
        (lambda: LabelMap(order="alphabetic").fit([1]), ValueError, "'natural'"),  # type: ignore[arg-type]
        (lambda: LabelMap(order="given").fit([1]), ValueError, "belong together"),
        (lambda: LabelMap(order="frequency", classes=[1]).fit([1]), ValueError, "belong together"),
        (lambda: LabelMap(ignore_index=0).fit([1, 2]), ValueError, "also the index of a class"),
        (lambda: LabelMap(ignore_index=None, unknown="ignore_index").fit([1]), ValueError, "needs an ignore_index"),
        (lambda: LabelMap.from_classes([1, -100]), ValueError, "also ignore_index"),
        (lambda: LabelMap.from_classes(["a", "a"]), ValueError, "twice"),
        (lambda: LabelMap.from_classes(["a", None]), ValueError, "missing"),
        (lambda: LabelMap().fit([]), ValueError, "no labels"),
        (lambda: LabelMap().fit([1, None]), UnseenLabels, "1 of 2 elements is missing"),
        (lambda: LabelMap().fit("abc"), TypeError, "not str"),
        (lambda: LabelMap().fit([b"a"]), TypeError, "bytes"),
        (lambda: LabelMap().fit([{"a": 1}]), TypeError, "dict"),
        (lambda: LabelMap().fit([float("inf")]), ValueError, "inf is not a label"),
        (lambda: LabelMap(classes=["a"]).fit(["a", "b"]), UnseenLabels, "'b'"),
        (lambda: LabelMap.from_classes(["a"]).inverse_transform([1]), UnseenLabels, "class indices are 0..0 or -100"),
        (lambda: LabelMap.from_classes(["a"]).inverse_transform([-1]), UnseenLabels, "-1"),
        (lambda: LabelMap.from_classes(["a"]).inverse_transform(["a"]), TypeError, "whole numbers"),
        (lambda: LabelMap.from_classes(["a"]).transform([["a"], [None]]), UnseenLabels, "element 1 (nested lists"),
        (lambda: LabelMap.from_classes(["a"]).transform(pl.DataFrame({"a": ["a"]})), TypeError, "one column"),
        (lambda: LabelMap.from_classes(["a"]).transform(pa.table({"a": ["a"]})), TypeError, "one column"),
    ],
)
def test_refusals(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


def test_transform_never_emits_minus_one_by_accident() -> None:
    everything = [1, "a", None, float("nan"), True, -1, 2.5, np.int64(-1)]
    fitted = LabelMap(unknown="other", missing="class", lookalikes="ignore").fit([1, "a"])
    assert -1 not in fitted.transform(everything).tolist()
    assert fitted.transform(np.array([-1, 1])).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("parameters", "labels", "back"),
    [
        ({"missing": "class"}, ["a", None], ["a", None]),
        ({"missing": "ignore_index"}, ["a", None], ["a", None]),
        ({"missing": "ignore_index"}, [3, None], [3, None]),
        ({}, [3, -100], [3, -100]),
        ({"unknown": "other"}, ["a", "zebra"], ["a", "<other>"]),
        ({}, ["a\0", "a"], ["a\0", "a"]),
        ({}, [2**70, 1], [2**70, 1]),
        ({}, [2.5, 1], [2.5, 1]),
    ],
)
def test_inverse(parameters: dict[str, Any], labels: list[Any], back: list[Any]) -> None:
    fitted = LabelMap(**parameters).fit([label for label in labels if label != "zebra"])
    codes = fitted.transform(labels)
    assert fitted.inverse_transform(codes).tolist() == back
    assert [fitted.inverse_look_up(int(code)) for code in codes] == back


def test_with_policy_copies() -> None:
    strict = LabelMap().fit([3, 4])
    lenient = strict.with_policy(unknown="other")
    assert lenient.transform([9, 4]).tolist() == [2, 1]
    assert (strict.unknown, strict.num_classes) == ("error", 2)
    assert strict.fingerprint != lenient.fingerprint
    for policy in ({"ignore_index": 4}, {"ignore_index": 1}, {"unknown": "guess"}, {"order": "given"}):
        with pytest.raises(ValueError):
            strict.with_policy(**policy)


def test_merge_adds_up() -> None:
    left, right = LabelMap(order="frequency").fit(["a", "b", "b"]), LabelMap(order="frequency").fit(["c", "c", "a", "c"])
    merged = left.merge(right)
    assert (merged.labels, merged.counts_) == (["c", "a", "b"], [3, 2, 2])
    assert left.labels == ["b", "a"]
    with pytest.raises(MapMismatch):
        left.merge(LabelMap().fit(["a"]))
    with pytest.raises(MapMismatch):
        LabelMap.from_classes(["a"]).merge(LabelMap.from_classes(["b"]))


SCALARS = st.one_of(
    st.integers(-(2**66), 2**66).filter(lambda value: value != -100),
    st.text(max_size=6),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SCALARS, min_size=1, max_size=40), st.sampled_from(["natural", "first_seen", "frequency"]), st.data())
def test_inverse_undoes_transform_whatever_the_pieces(labels: list[Any], order: Any, data: st.DataObject) -> None:
    whole = LabelMap(order=order, lookalikes="ignore").fit(labels)
    assert whole.inverse_transform(whole.transform(labels)).tolist() == labels
    assert sorted(set(whole.transform(labels).tolist())) == list(range(whole.num_classes))
    cut = data.draw(st.integers(0, len(labels)))
    pieces = [labels[:cut], labels[cut:]]
    streamed = LabelMap(order=order, lookalikes="ignore")
    for piece in pieces:
        streamed.partial_fit(piece)
    assert streamed == whole
    assert np.concatenate([streamed.transform(piece) for piece in pieces]).tolist() == whole.transform(labels).tolist()
    if order != "first_seen":
        backwards = LabelMap(order=order, lookalikes="ignore").partial_fit(pieces[1]).partial_fit(pieces[0])
        assert backwards == whole
        first, second = (LabelMap(order=order, lookalikes="ignore").partial_fit(piece) for piece in pieces)
        assert second.merge(first) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30, unique=True), st.integers(0, 2**32))
def test_every_int_table_agrees_with_a_dict(ids: list[int], seed: int) -> None:
    from preassert.labels import lookup

    codes = {label: code for code, label in enumerate(ids)}
    probes = np.array([*ids, *(min(i + 1, 2**63 - 1) for i in ids), 0, -1, -(2**63), 2**63 - 1], np.int64)
    expected = [codes.get(int(probe), lookup.UNKNOWN) for probe in probes]
    tables = [lookup.build(codes), lookup.Hashed(codes), lookup.Sorted(codes)]
    near = {label % 1000: code for code, label in enumerate(ids)}
    tables_near = [lookup.Dense(near, min(near), max(near) - min(near) + 1), lookup.Sorted(near)]
    near_expected = [near.get(int(probe), lookup.UNKNOWN) for probe in probes]
    for table, wanted in [*((t, expected) for t in tables), *((t, near_expected) for t in tables_near)]:
        out = np.empty(len(probes), np.int64)
        table.look_up(probes, out)
        assert out.tolist() == wanted, type(table).__name__


def test_long_inputs_cross_chunks() -> None:
    random = np.random.default_rng(0)
    for ids in (np.arange(1000) + 7, random.choice(2**40, 1000, replace=False), random.choice(2**40, 5000, replace=False)):
        labels = random.choice(ids, 100_000)
        fitted = LabelMap().fit(ids)
        assert np.array_equal(fitted.transform(labels), np.searchsorted(np.sort(ids), labels))
        assert np.array_equal(fitted.inverse_transform(fitted.transform(labels)), labels)
        labels[-1] = -5
        with pytest.raises(UnseenLabels, match=r"-5, once, at \[99999\]"):
            fitted.transform(labels)


def test_processes_do_not_matter() -> None:
    shards = [[f"class {i * 7 % 23}" for i in range(k, k + 40)] for k in range(0, 120, 40)]
    whole = LabelMap(order="frequency").fit([label for shard in shards for label in shard])
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        first, *others = pool.map(LabelMap(order="frequency").fit, reversed(shards))
    assert first.merge(*others) == whole


@pytest.mark.gpu
def test_cuda_tensors_stay_on_their_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_device("cuda")


def check_device(device: str) -> None:
    random = np.random.default_rng(1)
    for ids in (np.arange(100) * 3, random.choice(2**40, 100, replace=False)):
        labels = random.choice(ids, (64, 64))
        fitted = LabelMap(unknown="other").fit(ids)
        on_device = torch.from_numpy(labels).to(device)
        out = fitted.transform(on_device)
        assert out.device == on_device.device
        assert out.dtype == torch.int64
        assert np.array_equal(out.cpu().numpy(), fitted.transform(labels))
        assert fitted.transform(torch.tensor([1, -100], device=device)).tolist() == [100, -100]
        assert fitted.transform(torch.tensor([1.0, -100.0], device=device)).tolist() == [100, -100]
    strict = LabelMap().fit([1, 5])
    with pytest.raises(UnseenLabels, match=r"7, once, at \[0, 1\]"):
        strict.transform(torch.tensor([[1, 7]], device=device))


def test_the_path_for_devices_agrees_with_the_host() -> None:
    from preassert.labels.on_device import transform

    random = np.random.default_rng(1)
    for ids in (np.arange(100) * 3, random.choice(2**40, 100, replace=False)):
        fitted = LabelMap(unknown="other").fit(ids)
        labels = np.append(random.choice(ids, 500), [1, -100, 2**62, -(2**63)])
        out = transform(fitted, torch.from_numpy(labels))
        assert out is not None
        assert np.array_equal(out.numpy(), fitted.transform(labels))
    strict = LabelMap().fit([1, 5])
    assert transform(strict, torch.tensor([7])) is None  # the host path words the error
    assert transform(strict, torch.tensor([1.5])) is None
    assert transform(strict, torch.tensor([5.0, 1.0])).tolist() == [1, 0]  # type: ignore[union-attr]
    assert transform(LabelMap(unknown="other").fit(["a"]), torch.tensor([5])).tolist() == [1]  # type: ignore[union-attr]
