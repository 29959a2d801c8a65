"""Maps in files, from other sources, and beside models."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preassert import InputError, LabelMap
from preassert.labels import MapMismatch, stamp, verify
from preassert.labels.mapfile import dumps, loads

MAPS = [
    LabelMap().fit(["b", "a10", "a2"]),
    LabelMap(order="frequency", unknown="other", missing="class").fit([5, 5, 1]),
    LabelMap(order="first_seen", ignore_index=None).fit([5, 5, 1, 2.5]),
    LabelMap(lookalikes="ignore").fit([True, 1, "1", 2**80, "\ud800", " \u202e"]),
    LabelMap.from_classes([3, 1], names=["three", "one"], ignore_index=255),
]


@pytest.mark.parametrize("labels", MAPS, ids=range(len(MAPS)))
def test_save_and_load(labels: LabelMap, tmp_path: Path) -> None:
    labels.save(tmp_path / "map.json")
    again = LabelMap.load(tmp_path / "map.json")
    assert again == labels
    assert [type(label) for label in again.labels] == [type(label) for label in labels.labels]
    assert (again.names, again.counts_) == (labels.names, labels.counts_)
    assert [file.name for file in tmp_path.iterdir()] == ["map.json"]
    if labels.classes is None:
        assert again.partial_fit(["new"]).num_classes == labels.num_classes + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(classes=["a", "c"]), "disagree with its fingerprint"),
        (lambda c: c["policy"].update(ignore_index=-1), "disagree with its fingerprint"),
        (lambda c: c["classes"].reverse(), "disagree with its fingerprint"),
        (lambda c: c.update(schema="preassert.labelmap/9"), "version"),
        (lambda c: c.update(schema="other"), "not a label map"),
        (lambda c: c.pop("policy"), "damaged"),
        (lambda c: c.update(classes=[["a"]]), "damaged"),
        (lambda c: c.update(classes=["a", "a"]), "twice"),
        (lambda c: c.update(counts=[1]), "damaged"),
        (lambda c: c["policy"].update(unknown="guess"), "damaged"),
    ],
)
def test_a_changed_file_is_refused(change: Any, says: str) -> None:
    content = json.loads(dumps(LabelMap().fit(["a", "b"])))
    change(content)
    with pytest.raises(InputError, match=says):
        loads(json.dumps(content), "map.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"])
def test_what_is_not_a_map_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"map\.json"):
        LabelMap.load(tmp_path / "map.json")


def test_the_fingerprint_is_fixed() -> None:
    # Written into files and models of users: it must not change between releases.
    assert LabelMap().fit(["b", "a"]).fingerprint == "sha256:" + FINGERPRINT
    assert LabelMap.from_classes(["a", "b"]) == LabelMap().fit(["b", "a"])
    assert LabelMap().fit(["a"]) != LabelMap(unknown="other").fit(["a"])
    assert LabelMap().fit(["1"]) != LabelMap().fit([1])


FINGERPRINT = "5e574a24f53ab71281cb9d58176c17c26401b376ddde39e8a634b41938677e8e"


def test_sources(tmp_path: Path) -> None:
    coco = {"categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}]}
    assert LabelMap.from_coco(coco).transform([18, 1]).tolist() == [1, 0]
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert LabelMap.from_coco(tmp_path / "coco.json").to_id2label() == {0: "person", 1: "dog"}
    (tmp_path / "data.yaml").write_text("names: {2: dog, 0: person}\n")
    assert LabelMap.from_yolo(tmp_path / "data.yaml").to_id2label() == {0: "person", 1: "dog"}
    assert LabelMap.from_yolo({"names": ["a", "b"]}).labels == [0, 1]
    assert LabelMap.from_id2label({"1": "neg", "0": "pos"}).transform(["neg"]).tolist() == [1]
    assert LabelMap.from_id2label(SimpleNamespace(config=SimpleNamespace(id2label={0: "x"}))).labels == ["x"]
    assert LabelMap(missing="class").fit(["a"]).to_id2label() == {0: "a", 1: "<missing>"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LabelMap.from_id2label({1: "a", 2: "b"}), "0..1"),
        (lambda: LabelMap.from_id2label({0: "a", 1: "a"}), "more than once"),
        (lambda: LabelMap.from_coco({"categories": [{"id": 1}, {"id": 1}]}), "two categories"),
        (lambda: LabelMap.from_coco({"images": []}), "no list of categories"),
        (lambda: LabelMap.from_coco({"categories": [{"name": "x"}]}), "whole-number id"),
        (lambda: LabelMap.from_yolo({"names": "abc"}), "list of names"),
        (lambda: LabelMap.from_coco("absent.json"), "absent.json"),
    ],
)
def test_sources_that_are_refused(make: Any, says: str) -> None:
    with pytest.raises((ValueError, InputError), match=says):
        make()


CATS = LabelMap().fit(["cat", "dog"])
SWAPPED = LabelMap.from_classes(["dog", "cat"])


class Model:
    def __init__(self, **config: Any) -> None:
        self.config = SimpleNamespace(**config)


@pytest.mark.parametrize(
    ("model", "agreed"),
    [
        (Model(id2label={0: "cat", 1: "dog"}), ("id2label", "num_labels")),
        ({"id2label": {"0": "cat", "1": "dog"}, "num_labels": 2}, ("id2label", "num_labels")),
        ({"preassert_labelmap": CATS.fingerprint}, ("fingerprint",)),
        ({"config": {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}}, ("num_labels",)),
        ({"epoch": 3}, ()),
    ],
)
def test_verify_says_what_agreed(model: Any, agreed: tuple[str, ...]) -> None:
    assert verify(CATS, model) == agreed


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Model(id2label={0: "dog", 1: "cat"}), "names 0 'dog', the map names it 'cat' (2 of 2 differ)"),
        (Model(id2label={0: "cat"}), "has no name for 1"),
        ({"id2label": {"0": "cat", "1": "dog", "2": "cow"}}, "the map has no such class"),
        ({"preassert_labelmap": SWAPPED.fingerprint}, "another label map"),
        ({"num_labels": 3}, "has 3 labels, the map has 2"),
        ({"id2label": {"0": "LABEL_0"}}, "has 1 labels, the map has 2"),
        ({"id2label": {"zero": "cat"}}, "whole numbers"),
    ],
)
def test_verify_refuses(model: Any, says: str) -> None:
    with pytest.raises(MapMismatch) as caught:
        verify(CATS, model)
    assert says in str(caught.value)


def test_stamp_travels_with_a_transformers_config(tmp_path: Path) -> None:
    from transformers import BertConfig

    config = BertConfig(num_labels=2)
    stamp(CATS, config)
    config.save_pretrained(tmp_path)
    assert verify(CATS, tmp_path) == ("fingerprint", "id2label", "num_labels")
    assert LabelMap.from_id2label(tmp_path) == LabelMap.from_id2label(config) == CATS
    assert verify(CATS, tmp_path / "config.json") == verify(CATS, BertConfig.from_pretrained(tmp_path))
    with pytest.raises(MapMismatch):
        verify(SWAPPED, tmp_path)
    SWAPPED.save(tmp_path / "labelmap.json")
    (tmp_path / "config.json").unlink()
    with pytest.raises(MapMismatch, match="another label map"):
        verify(CATS, tmp_path)


def test_a_stamped_dict_is_json() -> None:
    config: dict[str, Any] = {"num_labels": 9}
    stamp(CATS, config)
    assert verify(CATS, json.loads(json.dumps(config))) == ("fingerprint", "id2label", "num_labels")
