"""COCO, YOLO and masks: there and back, nothing else changed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from preassert import LabelMap
from preassert.cli import main
from preassert.remap.formats import coco


def remap(*arguments: Any) -> int:
    return main(["remap", *map(str, arguments)])


COCO = b"""\xef\xbb\xbf{
  "info": {"year": 2017, "categories": [{"id": 99}], "x": "]}"},
  "annotations": [
    {"id":1, "category_id": 18, "segmentation": [[1.50, 2e3]], "note": "\\"category_id\\": 5"},\r
    {"category_id":1,"id":2,"nested":{"category_id":77}} ,
    { "id": 3, "segments_info": [{"category_id": 90, "id": 5}, {"id": 6,"category_id":  1}] }
  ],
  "images": [{"id": 1, "neg_category_ids": [90, 1], "not_exhaustive_category_ids": []}],
  "licenses": [],
  "categories":[{"id": 90, "name": "b\\u00e9"},{"name":"person","id": 1}, {"id": 18, "name": "dog"}], "tail": null
}
"""


def test_coco_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(COCO)
    assert remap(tmp_path / "c.json", "-o", tmp_path / "o.json") == 0
    out = (tmp_path / "o.json").read_bytes()
    expected = COCO.replace(b'"category_id": 18', b'"category_id": 1').replace(b'{"category_id":1,', b'{"category_id":0,')
    expected = expected.replace(b'"category_id": 90', b'"category_id": 2').replace(b'"category_id":  1', b'"category_id":  0')
    expected = (
        expected.replace(b"[90, 1]", b"[2, 0]")
        .replace(b'{"id": 90', b'{"id": 2')
        .replace(b'"person","id": 1', b'"person","id": 0')
    )
    assert out == expected.replace(b'{"id": 18', b'{"id": 1')
    assert LabelMap.load(tmp_path / "o.json.labelmap.json").names == ["person", "dog", "bé"]
    assert remap(tmp_path / "o.json", "--inverse", "-o", tmp_path / "b.json") == 0
    assert (tmp_path / "b.json").read_bytes() == COCO


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_coco_is_read_in_any_blocks(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.json").write_bytes(COCO)
    monkeypatch.setattr("preassert.remap.streams.BLOCK_BYTES", block)
    elements = []
    pieces = coco.walk(tmp_path / "c.json", coco.Options(), lambda name, text, value: elements.append((name, value())))
    assert "".join(pieces).encode() == COCO
    content = json.loads(COCO[3:])
    assert [name for name, _ in elements] == ["annotations"] * 3 + ["images"] + ["categories"] * 3
    assert [value for name, value in elements if name == "annotations"] == content["annotations"]


def test_coco_used_only_drops_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {
        "categories": [{"id": i, "name": f"n{i}"} for i in (1, 2, 3, 4)],
        "annotations": [{"id": 7, "category_id": i} for i in (2, 4)],
    }
    (tmp_path / "c.json").write_text(json.dumps(content))
    assert remap(tmp_path / "c.json", "--used-only", "-o", tmp_path / "o.json") == 0
    out = json.loads((tmp_path / "o.json").read_text())
    assert out["categories"] == [{"id": 0, "name": "n2"}, {"id": 1, "name": "n4"}]
    assert [a["category_id"] for a in out["annotations"]] == [0, 1]
    content["annotations"].append({"id": 8, "category_id": 9})
    (tmp_path / "d.json").write_text(json.dumps(content))
    assert remap(tmp_path / "d.json", "-o", tmp_path / "p.json") == 1
    err = capsys.readouterr().err
    assert "9, once, at" in err
    assert "annotation id 8" in err
    assert remap(tmp_path / "d.json", "--used-only", "-o", tmp_path / "p.json") == 2
    assert "ids without a name: 9" in capsys.readouterr().err


def test_coco_in_a_given_order(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(COCO)
    (tmp_path / "classes.txt").write_text("90\n18\n1\n")
    assert remap(tmp_path / "c.json", "--classes", tmp_path / "classes.txt", "-o", tmp_path / "o.json") == 0
    assert LabelMap.load(tmp_path / "o.json.labelmap.json").names == ["bé", "dog", "person"]
    assert b'"category_id": 18, "segm' not in (tmp_path / "o.json").read_bytes()
    assert {c["id"]: c["name"] for c in json.loads((tmp_path / "o.json").read_bytes()[3:])["categories"]} == {
        0: "bé",
        1: "dog",
        2: "person",
    }


def test_coco_splits_and_results(tmp_path: Path) -> None:
    for name, ids in (("train", (3, 8)), ("val", (8,))):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"categories": [{"id": i, "name": str(i)} for i in ids], "annotations": [{"id": 1, "category_id": 8}]})
        )
    (tmp_path / "results.json").write_text('[{"image_id": 3, "category_id": 8, "score": 0.5}]\n')
    files = [tmp_path / f"{name}.json" for name in ("train", "val", "results")]
    assert remap(*files, "-o", tmp_path / "o") == 0
    assert json.loads((tmp_path / "o" / "val.json").read_text())["annotations"][0]["category_id"] == 1
    assert (tmp_path / "o" / "results.json").read_text() == '[{"image_id": 3, "category_id": 1, "score": 0.5}]\n'
    (tmp_path / "val.json").write_text(json.dumps({"categories": [{"id": 8, "name": "other"}], "annotations": []}))
    assert remap(*files[:2], "-o", tmp_path / "p") == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"annotations": [{"category_id": 1}', b'{"annotations": [{"category_id": 1},]}', b'{"a": 1}', b"7",
     b'{"annotations": []} x', b'{"categories": [{"id": "x"}], "annotations": []}', b'{"annotations": ' + b"[" * 200_000],
)  # fmt: skip
def test_coco_damaged(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.json").write_bytes(data)
    assert remap(tmp_path / "c.json", "-o", tmp_path / "o.json") == 2
    assert "c.json" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]


YAML_MAPPING = "# made by hand\r\npath: .\r\nnames:   # sparse\r\n  2: cat\r\n  7: 'do g'\r\n# after\r\nnc: 2 # two\r\n"


def yolo_folder(root: Path, yaml: str | None, labels: dict[str, bytes]) -> Path:
    for name, data in labels.items():
        (root / "labels" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "labels" / name).write_bytes(data)
    (root / "images").mkdir(parents=True)
    (root / "images" / "a.jpg").write_bytes(b"jpeg")
    (root / "labels" / "train.cache").write_bytes(b"old ids")
    (root / "classes.txt").write_text("not labels\n")
    if yaml is not None:
        (root / "data.yaml").write_bytes(yaml.encode())
    return root


LABELS = {
    "train/a.txt": b"2 0.5 0.5 0.1 0.1\r\n\r\n# note 2\r\n  7 0.1 0.2 0.3 0.4\r\n",
    "val/b.txt": b"\xef\xbb\xbf7 0.5 0.5 0.1 0.1 0.7",
    "val/empty.txt": b"",
}


@pytest.mark.parametrize(
    ("yaml", "options", "a", "names"),
    [
        (YAML_MAPPING, [], b"0 0.5", ["cat", "do g"]),
        ("names: [a, b, c, d, e, f, g, h]\nnc: 8\n", [], b"2 0.5", list("abcdefgh")),
        ("nc: 8\nnames:\n- a\n- b\n- c\n- d\n- e\n- f\n- g\n- h\n\n# end", ["--used-only"], b"0 0.5", ["c", "h"]),
        ("names:\n  - one\n  - two\n", ["--used-only"], b"0 0.5", ["one", "two"]),
        ("\ufeffnc: 3\ntrain: x\n", [], b"0 0.5", None),
        (None, [], b"0 0.5", None),
    ],
)
def test_yolo_there_and_back(yaml: str | None, options: list[str], a: bytes, names: list[str] | None, tmp_path: Path) -> None:
    import yaml as pyyaml

    root = yolo_folder(tmp_path / "d", yaml, LABELS)
    assert remap(root, *options, "-o", tmp_path / "o") == 0
    out = tmp_path / "o"
    assert (out / "labels" / "train" / "a.txt").read_bytes().startswith(a)
    assert b"\r\n\r\n# note 2\r\n  " in (out / "labels" / "train" / "a.txt").read_bytes()
    assert (out / "images" / "a.jpg").read_bytes() == b"jpeg"
    assert not (out / "labels" / "train.cache").exists()
    if yaml is not None:
        content = pyyaml.safe_load((out / "data.yaml").read_bytes())
        assert content.get("names") == names
        assert content.get("nc", len(names or "ab")) == len(names or "ab")
    assert remap(out, "--inverse", "-o", tmp_path / "b") == 0
    for file in root.rglob("*"):
        if file.is_file() and file.suffix != ".cache":
            assert (tmp_path / "b" / file.relative_to(root)).read_bytes() == file.read_bytes(), file


def test_yolo_stray_ids_name_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = yolo_folder(tmp_path / "d", "names: [a, b, c]\npath: /data/set\n", LABELS)
    assert remap(root, "-o", tmp_path / "o") == 1
    err = capsys.readouterr().err
    assert "7, 2 times" in err
    assert "train/a.txt line 4" in err
    assert remap(root, "--used-only", "-o", tmp_path / "o") == 2
    labels = root / "labels" / "val" / "b.txt"
    labels.write_bytes(b"cat 0.5 0.5 0.1 0.1\n")
    assert remap(root, "-o", tmp_path / "o") == 1
    (root / "labels" / "train" / "a.txt").write_bytes(b"1 0 0 1 1\n")
    labels.write_bytes(b"2 0 0 1 1\n")
    assert remap(root, "--link", "-o", tmp_path / "o") == 0
    assert "path: /data/set still points where it did" in capsys.readouterr().out
    assert (tmp_path / "o" / "images" / "a.jpg").samefile(root / "images" / "a.jpg")


def test_yolo_in_place_keeps_a_backup(tmp_path: Path) -> None:
    root = yolo_folder(tmp_path / "d", None, LABELS)
    assert remap(root, "--in-place") == 0
    assert (root / "labels" / "train" / "a.txt").read_bytes().startswith(b"0 ")
    assert (tmp_path / "d.bak" / "labels" / "train" / "a.txt").read_bytes() == LABELS["train/a.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "d.bak", "d.labelmap.json"]


def chunks(path: Path) -> dict[bytes, bytes]:
    data, position, found = path.read_bytes(), 8, {}
    while position < len(data):
        size, name = struct.unpack_from(">I4s", data, position)
        assert struct.unpack_from(">I", data, position + 8 + size)[0] == zlib.crc32(data[position + 4 : position + 8 + size])
        found[name] = data[position + 8 : position + 8 + size]
        position += 12 + size
    return found


def mask(mode: str, pixels: Any, bits: int | None = None) -> tuple[Image.Image, dict[str, Any]]:
    info = PngImagePlugin.PngInfo()
    info.add_text("source", "drawn by hand")
    image = Image.fromarray(np.array(pixels, np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image.putpalette([v for i in range(256 if bits is None else 1 << bits) for v in (i, 255 - i, 7)])
    if mode == "1":
        image = Image.fromarray(np.array(pixels, bool))
    extra = {"bits": bits} if bits else {}
    return image, {"pnginfo": info, "dpi": (72, 72), **extra}


MASKS = {
    "P": ("P", [[0, 15, 255], [15, 20, 0]], None, [[0, 1, 3], [1, 2, 0]]),
    "P4": ("P", [[0, 15, 9], [15, 9, 0]], 4, [[0, 2, 1], [2, 1, 0]]),
    "P1": ("P", [[0, 1, 1]], 1, [[0, 1, 1]]),
    "L": ("L", [[7, 255], [7, 128]], None, [[0, 2], [0, 1]]),
    "1": ("1", [[1, 0, 1, 1, 0, 0, 1, 0, 1]], None, [[1, 0, 1, 1, 0, 0, 1, 0, 1]]),
    "I;16": ("I;16", [[300, 7], [65535, 7]], None, [[1, 0], [2, 0]]),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_there_and_back(kind: str, tmp_path: Path) -> None:
    mode, pixels, bits, expected = MASKS[kind]
    (tmp_path / "m" / "sub").mkdir(parents=True)
    image, how = mask(mode, pixels, bits)
    image.save(tmp_path / "m" / "sub" / "a.png", transparency=0, **how)
    (tmp_path / "m" / "notes.txt").write_text("kept")
    assert remap(tmp_path / "m", "-o", tmp_path / "o") == 0
    assert (tmp_path / "o" / "notes.txt").read_text() == "kept"
    before, after = chunks(tmp_path / "m" / "sub" / "a.png"), chunks(tmp_path / "o" / "sub" / "a.png")
    assert list(after) == list(before)
    assert {name: data for name, data in after.items() if name != b"IDAT"} == {
        name: data for name, data in before.items() if name != b"IDAT"
    }
    with Image.open(tmp_path / "o" / "sub" / "a.png") as out:
        assert out.mode == image.mode
        assert np.asarray(out).astype(int).tolist() == expected
        assert out.getpalette() == (image.getpalette() if bits is None else out.getpalette())
    assert remap(tmp_path / "o", "--inverse", "-o", tmp_path / "b") == 0
    with Image.open(tmp_path / "b" / "sub" / "a.png") as back:
        assert np.asarray(back).astype(int).tolist() == pixels


def test_masks_ignore_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.array([[0, 15], [255, 15]], np.uint8)).save(tmp_path / "a.png")
    assert remap(tmp_path / "a.png", "--ignore-index", "255", "-o", tmp_path / "o.png") == 0
    assert np.asarray(Image.open(tmp_path / "o.png")).tolist() == [[0, 1], [255, 1]]
    assert "value 255 occurs" in capsys.readouterr().out
    LabelMap.from_classes([0, 255], unknown="ignore_index").save(tmp_path / "m.json")
    assert remap(tmp_path / "a.png", "--map", tmp_path / "m.json", "-o", tmp_path / "p.png") == 2
    assert "-100 does not fit a mask of 8 bits" in capsys.readouterr().err
    LabelMap.from_classes([0, 255]).save(tmp_path / "n.json")
    assert remap(tmp_path / "a.png", "--map", tmp_path / "n.json", "-o", tmp_path / "p.png") == 1
    assert "15, 2 times, first at" in capsys.readouterr().err
    Image.new("RGB", (2, 2)).save(tmp_path / "rgb.png")
    assert remap(tmp_path / "rgb.png", "-o", tmp_path / "p.png") == 2
    assert "this PNG is RGB" in capsys.readouterr().err
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[:-20])
    assert remap(tmp_path / "cut.png", "-o", tmp_path / "p.png") == 2
    huge = data[:16] + struct.pack(">II", 1 << 30, 1 << 30) + data[24:]
    (tmp_path / "huge.png").write_bytes(huge)
    assert remap(tmp_path / "huge.png", "-o", tmp_path / "p.png") == 2
    assert "are not read" in capsys.readouterr().err
    assert not (tmp_path / "p.png").exists()


def test_masks_are_told_from_other_pictures(tmp_path: Path) -> None:
    pictures = {"train/masks/a.png": 7, "val/masks/b.png": 9, "train/images/a.png": None}
    for name, value in pictures.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True)
        (Image.new("RGB", (2, 2)) if value is None else Image.new("L", (2, 2), value)).save(path)
    assert remap(tmp_path / "in", "-o", tmp_path / "out", "--map", tmp_path / "labels.json") == 0
    assert [Image.open(tmp_path / "out" / name).getextrema() for name in list(pictures)[:2]] == [(0, 0), (1, 1)]
    colour = "train/images/a.png"
    assert (tmp_path / "out" / colour).read_bytes() == (tmp_path / "in" / colour).read_bytes()


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_labels_beside_pictures(suffix: str, tmp_path: Path) -> None:
    """As darknet has them; the pictures are no masks."""
    folder = tmp_path / "obj"
    folder.mkdir()
    Image.new("RGB", (2, 2)).save(folder / f"1{suffix}")
    (folder / "1.txt").write_text("5 .5 .5 .1 .1\n9 .5 .5 .1 .1\n")
    assert remap(folder, "-o", tmp_path / "out") == 0
    assert (tmp_path / "out" / "1.txt").read_text() == "0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n"
    assert (tmp_path / "out" / f"1{suffix}").read_bytes() == (folder / f"1{suffix}").read_bytes()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_yolo_line_ends(end: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [b"5 .5 .5 .1 .1", b"", b"9 .5 .5 .1 .1", b"5 .5 .5 .1 .1"]
    folder = yolo_folder(tmp_path / "d", None, {"a.txt": end.join(lines)})
    assert remap(folder, "-o", tmp_path / "o", "--map", tmp_path / "m.json") == 0
    new = [b"0 .5 .5 .1 .1", b"", b"1 .5 .5 .1 .1", b"0 .5 .5 .1 .1"]
    assert (tmp_path / "o" / "labels" / "a.txt").read_bytes() == end.join(new)
    (tmp_path / "five.txt").write_text("5\n")
    assert remap(folder, "-o", tmp_path / "p", "--classes", tmp_path / "five.txt") == 1
    assert "a.txt line 3" in capsys.readouterr().err
    assert remap(folder, "-o", tmp_path / "q", "--classes", tmp_path / "five.txt", "--unknown", "drop") == 0
    assert (tmp_path / "q" / "labels" / "a.txt").read_bytes() == end.join([b"0 .5 .5 .1 .1", b"", b"0 .5 .5 .1 .1"])
