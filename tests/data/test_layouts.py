"""COCO, YOLO, Pascal VOC, ImageFolder and masks: each fault is found where it is, and nothing else is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from preassert.data import source as source_module
from preassert.data.layouts import LAYOUTS, pictures, yolo
from preassert.data.rules import Report, Rule
from preassert.data.scan import Options
from preassert.data.targets import check_targets
from preassert.errors import UsageError
from preassert.model import Finding


def check(*paths: Path, classes: int | Sequence[str] | None = None, kind: str | None = None, **rule: Any) -> Report:
    if isinstance(classes, int):
        rule.update(lowest=0, highest=classes - 1)
    elif classes is not None:
        rule.update(names=tuple(classes))
    return check_targets([str(path) for path in paths], [Rule(**rule)], Options(), kind)


def errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "error"]


def one(report: Report) -> Finding:
    assert len(errors(report)) == 1, errors(report)
    return errors(report)[0]


def messages(report: Report, severity: str) -> str:
    return "\n".join(finding.message for finding in report.findings if finding.severity == severity)


# -- COCO --------------------------------------------------------------------------------------------------------------


def coco(path: Path, annotations: Sequence[Mapping[str, Any]], categories: Any = ((1, "cat"), (2, "dog")), **more: Any) -> Path:
    document = {
        "images": [{"id": 1, "file_name": "1.jpg"}],
        "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1], **entry} for entry in annotations],
        "categories": [{"id": key, "name": name} for key, name in categories],
        **more,
    }
    path.write_text(json.dumps(document))
    return path


class TestCoco:
    def test_clean(self, tmp_path: Path) -> None:
        report = check(coco(tmp_path / "a.json", [{"id": 1, "category_id": 1}, {"id": 2, "category_id": 2}]))
        assert errors(report) == []
        assert report.scanned["rows"] == 2

    def test_undeclared_and_outside_are_counted_once(self, tmp_path: Path) -> None:
        path = coco(tmp_path / "a.json", [{"id": 5, "category_id": 7}, {"id": 6, "category_id": 2}, {"id": 7, "category_id": 1}])
        finding = one(check(path, classes=2))
        assert finding.values == (7, 2)
        assert finding.count == 2
        assert finding.where.ids == (5, 6)

    @pytest.mark.parametrize(
        ("category", "value"), [(None, None), (0.5, 0.5), ("1", "1"), (float("nan"), None), ([1], None), ({"id": 1}, None)]
    )
    def test_categories_that_are_no_ids(self, tmp_path: Path, category: Any, value: Any) -> None:
        assert one(check(coco(tmp_path / "a.json", [{"id": 1, "category_id": category}]))).values == (value,)

    def test_picture_that_is_not_listed(self, tmp_path: Path) -> None:
        finding = one(check(coco(tmp_path / "a.json", [{"id": 3, "category_id": 1, "image_id": 9}])))
        assert finding.hazard is None
        assert finding.where.ids == (3,)
        assert finding.values == (9,)

    def test_names_against_a_class_list(self, tmp_path: Path) -> None:
        path = coco(tmp_path / "a.json", [{"id": 1, "category_id": 1}, {"id": 2, "category_id": 2}])
        assert one(check(path, classes=["cat", "cow"])).values == ("dog",)

    def test_same_id_with_another_name_in_another_split(self, tmp_path: Path) -> None:
        train = coco(tmp_path / "train.json", [{"id": 1, "category_id": 1}])
        val = coco(tmp_path / "val.json", [{"id": 1, "category_id": 1}], [(1, "dog"), (2, "cat"), (3, "cow")])
        finding = one(check(train, val))
        assert finding.where.file == str(val)
        assert finding.values == (1, 2)
        assert errors(check(tmp_path)) == errors(check(train, val))

    def test_panoptic_segments(self, tmp_path: Path) -> None:
        path = coco(tmp_path / "a.json", [{"segments_info": [{"id": 11, "category_id": 1}, {"id": 12, "category_id": 5}]}])
        finding = one(check(path))
        assert finding.where.ids == (12,)

    def test_captions_have_no_categories(self, tmp_path: Path) -> None:
        path = tmp_path / "captions.json"
        path.write_text(json.dumps({"images": [{"id": 1}], "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}]}))
        assert errors(check(path)) == []

    def test_truncated(self, tmp_path: Path) -> None:
        path = coco(tmp_path / "a.json", [{"id": at, "category_id": 1} for at in range(500)])
        path.write_bytes(path.read_bytes()[:-40])
        finding = one(check(path))
        assert finding.hazard is None
        assert finding.where.file == str(path)

    @pytest.mark.parametrize("odd", [[1], {"a": 1}])
    @pytest.mark.parametrize(
        ("where", "message"),
        [
            ("image_id", "pictures that the file does not list"),
            ("image", "pictures that the file does not list"),
            ("category", "a category whose id is neither a number nor text"),
            ("name", "not declared|outside"),
        ],
    )
    def test_ids_that_are_no_ids(self, tmp_path: Path, odd: Any, where: str, message: str) -> None:
        annotation = {"id": 1, "category_id": 1, **({"image_id": odd} if where == "image_id" else {})}
        more = {"images": [{"id": odd}]} if where == "image" else {}
        categories = [(odd if where == "category" else 1, odd if where == "name" else "cat"), (2, "dog")]
        path = coco(tmp_path / "a.json", [annotation], categories, **more)
        found = errors(check(path, classes=["cat", "dog"]))
        assert any(re.search(message, finding.message) for finding in found)

    def test_notes(self, tmp_path: Path) -> None:
        path = coco(tmp_path / "a.json", [{"id": 1, "category_id": 1}], [(1, "cat"), (9, "dog"), (9, "cow")])
        report = check(path)
        assert errors(report) == []
        assert "declared twice" in messages(report, "warning")
        assert "with gaps" in messages(report, "info")


# -- YOLO --------------------------------------------------------------------------------------------------------------


class Yolo:
    """A YOLO data set on disk."""

    def __init__(self, folder: Path, yaml: str = "nc: 2\nnames: [cat, dog]\n", paths: bool = True) -> None:
        self.folder = folder
        self.yaml = folder / "data.yaml"
        self.yaml.write_text(("path: .\ntrain: images/train\nval: images/val\n" if paths else "") + yaml)
        self.add("train", "a", "0 0.5 0.5 0.1 0.1\n")
        self.add("val", "b", "1 0.5 0.5 0.1 0.1\n")

    def add(self, split: str, name: str, labels: str | None, picture: bool = True) -> Path:
        image = self.folder / "images" / split / f"{name}.png"
        label = self.folder / "labels" / split / f"{name}.txt"
        image.parent.mkdir(parents=True, exist_ok=True)
        label.parent.mkdir(parents=True, exist_ok=True)
        if picture:
            image.write_bytes(b"")
        if labels is not None:
            label.write_text(labels)
        return label


class TestYolo:
    def test_clean_with_background(self, tmp_path: Path) -> None:
        data = Yolo(tmp_path)
        data.add("train", "empty", "")
        data.add("train", "none", None)
        for target in (data.yaml, tmp_path):
            report = check(target)
            assert errors(report) == []
            assert report.scanned["pictures"] == 4
            assert report.scanned["background"] == 1

    @pytest.mark.parametrize(
        ("line", "value"),
        [
            ("2 .5 .5 .1 .1", 2),
            ("-1 .5 .5 .1 .1", -1),
            ("0.5 .5 .5 .1 .1", 0.5),
            ("cat .5 .5 .1 .1", "cat"),
            ("nan 0 0 0 0", None),
        ],
    )
    def test_classes(self, tmp_path: Path, line: str, value: Any) -> None:
        label = Yolo(tmp_path).add("val", "c", f"0 .5 .5 .1 .1\n\n{line}\r\n1 .5 .5 .1 .1")
        finding = one(check(tmp_path / "data.yaml"))
        assert finding.where.file == str(label)
        assert finding.where.rows == (3,)
        assert finding.values == (value,)
        assert finding.hazard == "target-out-of-range"

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_line_ends(self, tmp_path: Path, end: str) -> None:
        label = Yolo(tmp_path).add("train", "c", "")
        label.write_bytes(end.join(["0 .5 .5 .1 .1", "", "5 .5 .5 .1 .1", "1 .5 .5 .1 .1"]).encode())
        assert one(check(tmp_path / "data.yaml")).where.lines == (3,)

    def test_whole_floats_are_classes(self, tmp_path: Path) -> None:
        Yolo(tmp_path).add("val", "c", "1.0 .5 .5 .1 .1\n")
        assert errors(check(tmp_path / "data.yaml")) == []

    @pytest.mark.parametrize(
        ("line", "values"),
        [
            ("0 1.2 .5 .1 .1", (1.2,)),
            ("0 .5 -0.1 .1 .1", (-0.1,)),
            ("0 320 240 50 60", (320.0, 240.0)),
            ("0 .1 .1 .2 1.5 .3 .3", (1.5,)),
        ],
    )
    def test_coordinates(self, tmp_path: Path, line: str, values: tuple[float, ...]) -> None:
        Yolo(tmp_path).add("train", "c", f"{line}\n")
        finding = one(check(tmp_path / "data.yaml"))
        assert finding.hazard == "index-out-of-range"
        assert finding.values == values
        assert finding.count == 1

    def test_keypoints_are_not_polygons(self, tmp_path: Path) -> None:
        Yolo(tmp_path, "nc: 2\nnames: [a, b]\nkpt_shape: [1, 3]\n").add("train", "c", "0 .5 .5 .1 .1 .5 .5 2\n")
        assert errors(check(tmp_path / "data.yaml")) == []

    def test_large_box_is_a_warning(self, tmp_path: Path) -> None:
        Yolo(tmp_path).add("train", "c", "0 .5 .5 1.4 .1\n")
        report = check(tmp_path / "data.yaml")
        assert errors(report) == []
        assert "width or height" in messages(report, "warning")

    @pytest.mark.parametrize("line", ["0 .5 .5 .1", "0", "0 .5 x .1 .1"])
    def test_malformed_line(self, tmp_path: Path, line: str) -> None:
        Yolo(tmp_path).add("train", "c", f"0 .5 .5 .1 .1\n{line}\n")
        finding = one(check(tmp_path / "data.yaml"))
        assert finding.hazard is None
        assert finding.where.line == 2

    @pytest.mark.parametrize(
        ("yaml", "value"),
        [("nc: 3\nnames: [a, b]\n", 2), ("nc: 2\nnames: {0: a, 1: b, 2: c}\n", 3), ("names: {1: a, 2: b}\n", 2)],
    )
    def test_contradictions(self, tmp_path: Path, yaml: str, value: int) -> None:
        finding = one(check(Yolo(tmp_path, yaml).yaml))
        assert finding.where.file.endswith("data.yaml")
        assert finding.value == value

    def test_names_alone(self, tmp_path: Path) -> None:
        assert errors(check(Yolo(tmp_path, "names:\n  0: cat\n  1: dog\n").yaml)) == []
        assert errors(check(Yolo(tmp_path, "names: {'0': cat, '1': dog}\n").yaml)) == []
        assert one(check(Yolo(tmp_path, "names: [cat]\n").yaml)).where.file.endswith("b.txt")

    def test_a_label_file_of_two_splits_is_checked_once(self, tmp_path: Path) -> None:
        data = Yolo(tmp_path, "train: images/train\nval: images/train\nnames: [cat, dog]\n", paths=False)
        data.add("train", "c", "5 .5 .5 .1 .1\n")
        report = check(data.yaml)
        assert one(report).count == 1
        assert report.scanned["columns"]["class"]["histogram"] == [[0, 1], [5, 1]]

    def test_a_test_split_without_labels(self, tmp_path: Path) -> None:
        data = Yolo(tmp_path, "train: images/train\nval: images/train\ntest: images/test\nnames: [cat, dog]\n", paths=False)
        data.add("test", "c", None)
        assert [finding for finding in check(data.yaml).findings if finding.severity != "info"] == []

    def test_classes_given_by_the_caller(self, tmp_path: Path) -> None:
        assert one(check(Yolo(tmp_path).yaml, classes=1)).values == (1,)

    def test_splits_as_lists_files_and_roboflow_paths(self, tmp_path: Path) -> None:
        yaml = "train: [images/train, images/more]\nval: val.txt\ntest: ../images/test\nnc: 2\nnames: [a, b]\n"
        data = Yolo(tmp_path, yaml, paths=False)
        expected = {str(data.add(split, "x", "5 .5 .5 .1 .1\n")) for split in ("more", "listed", "test")}
        (tmp_path / "val.txt").write_text("./images/listed/x.png\n")
        assert {finding.where.file for finding in errors(check(data.yaml))} == expected

    def test_split_that_is_not_there(self, tmp_path: Path) -> None:
        data = Yolo(tmp_path, "train: images/train\nval: images/valid\nnc: 2\nnames: [a, b]\n", paths=False)
        assert "val: images/valid is not there" in one(check(data.yaml)).message

    def test_labels_without_pictures_are_checked_and_said(self, tmp_path: Path) -> None:
        Yolo(tmp_path).add("train", "stray", "9 .5 .5 .1 .1\n", picture=False)
        report = check(tmp_path / "data.yaml")
        assert one(report).values == (9,)
        assert "without a picture" in messages(report, "warning")

    def test_folder_of_label_files(self, tmp_path: Path) -> None:
        Yolo(tmp_path)
        (tmp_path / "labels" / "classes.txt").write_text("cat\ndog\n")
        assert one(check(tmp_path / "labels", classes=1)).values == (1,)
        with pytest.raises(UsageError, match="--classes"):
            check(tmp_path / "labels", kind="yolo")

    @pytest.mark.parametrize(
        ("label", "picture"),
        [
            ("labels/1.txt", "images/1.jpg"),
            ("train/labels/1.txt", "train/images/1.jpg"),
            ("labels/train/1.txt", "images/train/1.png"),
            ("1.txt", "1.png"),
            ("train/1.txt", "train/1.jpg"),
            ("obj/1.txt", "obj/1.jpg"),
        ],
    )
    def test_pictures_and_label_files_without_a_yaml(self, tmp_path: Path, label: str, picture: str) -> None:
        for name in (label, picture):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(tmp_path / picture)
        (tmp_path / label).write_text("1 .5 .5 .1 .1\n2 .5 .5 .1 .1\n")
        for text in ("train.txt", "obj.names", "README.txt"):
            (tmp_path / text).write_text("obj/1.jpg\n")
        finding = one(check(tmp_path, classes=2))
        assert (finding.where.file, finding.where.rows, finding.values) == (str(tmp_path / label), (2,), (2,))

    def test_not_utf8(self, tmp_path: Path) -> None:
        Yolo(tmp_path).add("train", "c", None)
        (tmp_path / "labels" / "train" / "c.txt").write_bytes(b"0 .5 .5 .1 .1\n\xff\xfe")
        assert "not UTF-8" in one(check(tmp_path / "data.yaml")).message

    @pytest.mark.parametrize("text", ["nc: [\n", "- a\n", "nc: two\nnames: [a]\n", "!!python/object/apply:os.system ['true']\n"])
    def test_broken_yaml(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "data.yaml").write_text(text)
        assert errors(check(tmp_path / "data.yaml", kind="yolo"))[0].hazard is None

    @pytest.mark.parametrize(
        ("picture", "label"),
        [
            ("images/train/a.jpg", "labels/train/a.txt"),
            ("d/images/x/images/a.b.png", "d/images/x/labels/a.b.txt"),
            ("d/a.jpg", "d/a.txt"),
        ],
    )
    def test_label_path(self, picture: str, label: str) -> None:
        assert yolo.label_path(picture) == label


# -- Pascal VOC --------------------------------------------------------------------------------------------------------


def voc(path: Path, *names: str, extra: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = "".join(f"<object>\n<name>{name}</name>\n<part><name>head</name></part>\n</object>\n" for name in names)
    path.write_text(f"<annotation>\n<owner><name>someone</name></owner>\n{objects}{extra}</annotation>\n")
    return path


class TestVoc:
    def test_names_of_parts_and_owners_do_not_count(self, tmp_path: Path) -> None:
        voc(tmp_path / "Annotations" / "a.xml", "cat", "dog")
        assert errors(check(tmp_path, classes=["cat", "dog"])) == []

    def test_unknown_names(self, tmp_path: Path) -> None:
        path = voc(tmp_path / "VOC2007" / "Annotations" / "a.xml", "cat", "Cat", "cow", "cow")
        finding = one(check(tmp_path, classes=["cat"]))
        assert finding.where.file == str(path)
        assert finding.where.rows == (8, 12, 16)
        assert finding.values == ("Cat", "cow")
        assert finding.count == 3

    def test_pictures_and_annotations_of_a_split_in_one_folder(self, tmp_path: Path) -> None:
        voc(tmp_path / "train" / "a.xml", "cat")
        path = voc(tmp_path / "valid" / "b.xml", "cow")
        Image.new("RGB", (2, 2)).save(tmp_path / "train" / "a.jpg")
        assert one(check(tmp_path, classes=["cat"])).where.file == str(path)

    def test_more_names_than_classes(self, tmp_path: Path) -> None:
        voc(tmp_path / "a.xml", "cat", "dog")
        assert one(check(tmp_path, classes=1)).count == 2
        assert errors(check(tmp_path, classes=2)) == []

    def test_object_without_a_name(self, tmp_path: Path) -> None:
        path = voc(tmp_path / "a.xml", "cat", extra="<object><pose>left</pose></object>")
        assert "1 of 2 objects have no <name>" in one(check(path, classes=["cat"])).message

    def test_not_well_formed(self, tmp_path: Path) -> None:
        path = voc(tmp_path / "Annotations" / "a.xml", "cat")
        path.write_text(path.read_text()[:60])
        voc(tmp_path / "Annotations" / "b.xml", "cow")
        broken, bad = errors(check(tmp_path, classes=["cat"]))
        assert broken.where.file == str(path)
        assert "line" in broken.message
        assert bad.values == ("cow",)

    @pytest.mark.parametrize("encoding", ["GB2312", "shift_jis", "utf-8", "UTF-16", "ISO-8859-1"])
    def test_encodings(self, tmp_path: Path, encoding: str) -> None:
        name = "caf\xe9" if encoding == "ISO-8859-1" else "\u732b"
        text = f'<?xml version="1.0" encoding="{encoding}"?>\n<annotation>\n<object>\n<name>{name}</name></object></annotation>'
        path = tmp_path / "a.xml"
        path.write_bytes(text.encode(encoding))
        assert errors(check(path, classes=[name])) == []
        finding = one(check(path, classes=["cow"]))
        assert (finding.values, finding.where.lines) == ((name,), (4,))

    def test_encodings_that_are_none(self, tmp_path: Path) -> None:
        path = tmp_path / "a.xml"
        for encoding, reason in (("klingon", "unknown"), ("GB2312", "not GB2312: byte 0xff")):
            path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?><annotation>'.encode() + b"\xff</annotation>")
            assert reason in one(check(path)).message

    def test_other_documents_are_no_annotations(self, tmp_path: Path) -> None:
        path = tmp_path / "cvat.xml"
        path.write_text("<annotations><image><box label='cat'/></image></annotations>")
        assert "its root is <annotations>" in one(check(path, classes=["cat"])).message
        (tmp_path / "a.csv").write_text("label\n5\n")
        path.write_text("<project/>")
        assert one(check(tmp_path, classes=2)).where.file.endswith("a.csv")

    def test_entities_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.xml"
        path.write_text('<!DOCTYPE a [<!ENTITY x "cat">]><annotation><object><name>&x;</name></object></annotation>')
        assert "declares entities" in one(check(path, classes=["cat"])).message

    def test_listed_without_annotation(self, tmp_path: Path) -> None:
        voc(tmp_path / "Annotations" / "a.xml", "cat")
        (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
        (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("a\nb\n")
        assert "b" in one(check(tmp_path, classes=["cat"])).message


# -- ImageFolder -------------------------------------------------------------------------------------------------------


def tree(root: Path, **splits: Sequence[str]) -> Path:
    for split, names in splits.items():
        for name in names:
            folder = root / split / name if split != "_" else root / name
            folder.mkdir(parents=True)
            (folder / "1.jpg").write_bytes(b"")
    return root


class TestImageFolder:
    def test_same(self, tmp_path: Path) -> None:
        report = check(tree(tmp_path, train=["a", "b"], val=["a", "b"], test=["a", "b"]), classes=2)
        assert errors(report) == []
        assert report.scanned["files"] == 6

    def test_hidden_folder_is_a_class(self, tmp_path: Path) -> None:
        finding = one(check(tree(tmp_path, train=[".ipynb_checkpoints", "a", "b"], val=["a", "b"])))
        assert finding.values == (".ipynb_checkpoints",)
        assert "a=0 (in train 1)" in finding.message

    def test_split_without_its_last_class_numbers_the_others_alike(self, tmp_path: Path) -> None:
        report = check(tree(tmp_path, train=["a", "b", "c"], val=["a", "b"]))
        assert errors(report) == []
        assert "val lacks 'c'" in messages(report, "warning")

    def test_more_folders_than_classes(self, tmp_path: Path) -> None:
        finding = one(check(tree(tmp_path, _=["a", "b", "c"]), classes=2))
        assert finding.values == (2,)

    def test_class_list(self, tmp_path: Path) -> None:
        assert one(check(tree(tmp_path, _=["a", "b"]), classes=["a", "c"])).values == ("b",)

    def test_splits_as_two_targets(self, tmp_path: Path) -> None:
        tree(tmp_path, train=["a", "b"], val=["b"])
        assert one(check(tmp_path / "train", tmp_path / "val")).values == ("a",)

    def test_pictures_without_labels_in_test(self, tmp_path: Path) -> None:
        tree(tmp_path, train=["a", "b"], val=["a", "b"])
        (tmp_path / "test").mkdir()
        Image.new("RGB", (2, 2)).save(tmp_path / "test" / "1.jpg")
        report = check(tmp_path, classes=2)
        assert [finding.severity for finding in report.findings] == ["info"]
        assert report.scanned["classes"] == {"train": ["a", "b"], "val": ["a", "b"]}

    def test_masks_on_faces_are_classes(self, tmp_path: Path) -> None:
        report = check(tree(tmp_path, train=["mask", "no_mask"], val=["mask", "no_mask"]), classes=2)
        assert report.findings == []
        assert report.scanned["classes"] == {"train": ["mask", "no_mask"], "val": ["mask", "no_mask"]}

    def test_pictures_in_folders_of_a_class(self, tmp_path: Path) -> None:
        tree(tmp_path, _=["a/x", "b/y", "c/z"])
        assert one(check(tmp_path, classes=2)).values == (2,)

    def test_a_table_beside_a_folder_of_pictures(self, tmp_path: Path) -> None:
        tree(tmp_path, _=["images"])
        (tmp_path / "train.csv").write_text("file,label\n1.jpg,7\n")
        assert one(check(tmp_path, classes=2)).where.file == str(tmp_path / "train.csv")
        (tmp_path / "2.jpg").write_bytes(b"")
        assert one(check(tmp_path, classes=2)).where.file == str(tmp_path / "train.csv")

    def test_empty_class_folder(self, tmp_path: Path) -> None:
        tree(tmp_path, _=["a", "b"])
        os.unlink(tmp_path / "b" / "1.jpg")
        report = check(tmp_path, classes=2)
        assert errors(report) == []
        assert "without a picture" in messages(report, "warning")


# -- masks -------------------------------------------------------------------------------------------------------------


def mask(path: Path, values: Any, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values))
    if mode == "P":
        palette = Image.new("P", image.size)
        palette.putdata(image.tobytes())
        palette.putpalette([255 - at % 256 for at in range(768)])
        image = palette
    elif mode == "1":
        image = image.convert("1")
    image.save(path)
    return path


class TestMasks:
    @pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
    def test_values(self, tmp_path: Path, suffix: str) -> None:
        values = np.zeros((4, 5), np.uint8)
        values[2, 3] = 7
        values[3] = 9
        finding = one(check(mask(tmp_path / f"a{suffix}", values), classes=7))
        assert finding.values == (7, 9)
        assert finding.count == 6
        assert "x=3, y=2" in finding.message

    def test_palette_index_counts(self, tmp_path: Path) -> None:
        path = mask(tmp_path / "a.png", np.full((3, 3), 2, np.uint8), "P")
        assert Image.open(path).mode == "P"
        assert errors(check(path, classes=3)) == []
        assert one(check(path, classes=2)).count == 9

    def test_one_bit(self, tmp_path: Path) -> None:
        path = mask(tmp_path / "a.png", np.array([[0, 255]], np.uint8), "1")
        assert Image.open(path).mode == "1"
        assert errors(check(path, classes=2)) == []
        assert one(check(path, classes=1)).values == (1,)

    def test_sixteen_bits(self, tmp_path: Path) -> None:
        path = mask(tmp_path / "a.png", np.array([[0, 300, 65535]], np.uint16))
        assert one(check(path, classes=301)).values == (65535,)
        assert errors(check(path, classes=301, ignore=(65535,))) == []

    def test_floats(self, tmp_path: Path) -> None:
        path = mask(tmp_path / "a.tif", np.array([[0.0, 1.0, 0.5, np.nan]], np.float32))
        assert set(one(check(path, classes=2)).values) == {0.5, None}

    def test_all_pages_of_a_tiff(self, tmp_path: Path) -> None:
        first, second = (Image.fromarray(np.full((2, 2), value, np.uint8)) for value in (0, 5))
        first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
        assert one(check(tmp_path / "a.tif", classes=3)).count == 4

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "CMYK"])
    def test_colour_pictures(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
        Image.new(mode, (3, 3)).save(path)
        finding = one(check(path, classes=3))
        assert finding.hazard == "target-out-of-range"
        assert mode in finding.message

    def test_broken_and_hostile_files_do_not_stop_the_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mask(tmp_path / "a.png", np.zeros((9, 9), np.uint8))
        whole = mask(tmp_path / "b.png", np.random.default_rng(0).integers(0, 3, (64, 64), np.uint8)).read_bytes()
        (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "c.png").write_bytes(b"no picture")
        (tmp_path / "d.png").write_bytes(b"")
        mask(tmp_path / "e.png", np.full((9, 9), 200, np.uint8))
        mask(tmp_path / "f.png", np.zeros((3000, 3000), np.uint8))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
        found = {Path(finding.where.file).name: finding for finding in errors(check(tmp_path, classes=3))}
        assert set(found) == {"b.png", "c.png", "d.png", "e.png", "f.png"}
        assert found["e.png"].values == (200,)
        assert "decompression bomb" in found["f.png"].message

    def test_histogram_is_the_truth_or_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from preassert.data.layouts import masks

        for name, value in (("a", 0), ("b", 1)):
            mask(tmp_path / f"{name}.png", np.full((4, 4), value, np.uint8))
        assert check(tmp_path, classes=3).scanned["columns"]["pixel"]["histogram"] == [[0, 16], [1, 16]]
        monkeypatch.setattr(masks, "HISTOGRAM_PIXELS", 0)
        report = check(tmp_path, classes=1, ignore=(7,))
        assert report.scanned["columns"]["pixel"]["histogram"] is None
        assert one(report).where.file.endswith("b.png")

    def test_photos_beside_masks_are_passed_over(self, tmp_path: Path) -> None:
        mask(tmp_path / "a.png", np.zeros((2, 2), np.uint8))
        Image.new("RGB", (2, 2)).save(tmp_path / "a.jpg")
        report = check(tmp_path, classes=3)
        assert errors(report) == []
        assert "1 pictures beside" in messages(report, "info")

    def test_number_of_classes_is_needed(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--classes"):
            check(mask(tmp_path / "a.png", np.zeros((2, 2), np.uint8)))

    @pytest.mark.parametrize(
        "files",
        [
            ["masks/a.png"],
            ["train/a.png", "val/b.png"],
            ["images/a.png", "masks/b.png"],
            ["train/images/a.png", "train/masks/a.png", "val/images/b.png", "val/masks/b.png"],
            ["images_train/a.png", "train_masks/a.png", "val_masks/b.png"],
            ["images/a_leftImg8bit.png", "gtFine/val/x/a_gtFine_labelTrainIds.png"],
        ],
    )
    def test_folders_that_hold_masks(self, tmp_path: Path, files: list[str]) -> None:
        for name in files:
            mask(tmp_path / name, np.full((2, 2), 200 if "images" in name else 9, np.uint8))
        report = check(tmp_path, classes=3)
        assert {finding.values for finding in errors(report)} == {(9,)}
        assert len(errors(report)) == len([name for name in files if "images" not in name])

    def test_masks_saved_as_photographs(self, tmp_path: Path) -> None:
        for name in ("images", "masks"):
            (tmp_path / name).mkdir()
            Image.new("RGB", (2, 2)).save(tmp_path / name / "a.jpg")
        assert one(check(tmp_path, classes=2)).where.file == str(tmp_path / "masks" / "a.jpg")

    def test_one_picture_of_a_scene_is_the_mask(self, tmp_path: Path) -> None:
        for name, value in {"labelTrainIds": 18, "labelIds": 33, "instanceIds": 200, "color": 99}.items():
            mask(tmp_path / "gtFine" / f"a_gtFine_{name}.png", np.full((2, 2), value, np.uint8))
        assert errors(check(tmp_path, classes=19)) == []

    def test_masks_in_splits_are_renumbered_by_one_map(self, tmp_path: Path) -> None:
        for name, value in (("train/masks/a.png", 7), ("val/masks/b.png", 9)):
            mask(tmp_path / name, np.full((2, 2), value, np.uint8))
        Image.new("RGB", (2, 2)).save(tmp_path / "train" / "a.png")
        report = check(tmp_path, classes=2)
        assert {(finding.fix or "").partition("preassert remap ")[2].split()[0] for finding in errors(report)} == {str(tmp_path)}

    def test_scenes_in_a_mask_folder_are_no_classes(self, tmp_path: Path) -> None:
        mask(tmp_path / "gtFine" / "train" / "aachen" / "1_labelIds.png", np.zeros((2, 2), np.uint8))
        mask(tmp_path / "gtFine" / "val" / "bonn" / "1_labelIds.png", np.full((2, 2), 40, np.uint8))
        assert one(check(tmp_path / "gtFine", classes=34)).values == (40,)

    def test_masks_of_a_voc_root(self, tmp_path: Path) -> None:
        voc(tmp_path / "Annotations" / "a.xml", "cat")
        mask(tmp_path / "SegmentationClass" / "a.png", np.full((2, 2), 22, np.uint8), "P")
        assert one(check(tmp_path, classes=21)).values == (22,)


# -- all ---------------------------------------------------------------------------------------------------------------


def test_links_back_are_not_followed(tmp_path: Path) -> None:
    mask(tmp_path / "a.png", np.zeros((2, 2), np.uint8))
    (tmp_path / "up").symlink_to(tmp_path)
    assert list(pictures.pictures_below(str(tmp_path))) == [str(tmp_path / "a.png")]


def test_several_kinds_in_one_call(tmp_path: Path) -> None:
    path = coco(tmp_path / "a.json", [{"id": 1, "category_id": 9}])
    (tmp_path / "b.csv").write_text("label\n0\n9\n")
    report = check(path, tmp_path / "b.csv", classes=3)
    assert [finding.where.file for finding in errors(report)] == [str(path), str(tmp_path / "b.csv")]


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="coco"):
        check(tmp_path, kind="coca")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_check_is_an_error(tmp_path: Path, layout: str) -> None:
    target = tmp_path / "nothing.json"
    target.write_text("{")
    answer: Any
    try:
        answer = errors(check(target if layout == "coco" else tmp_path, kind=layout, classes=2))
    except UsageError as error:
        answer = error
    assert answer


def test_limits_are_not_silly() -> None:
    assert source_module.BOMB_BYTES >= 1 << 28
    assert source_module.BOMB_RATIO >= 100
