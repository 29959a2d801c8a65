"""``remap``, then ``check``: what one room writes the other understands, without being told again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from preassert.cli import main
from preassert.data import carried
from preassert.labels import mapfile
from preassert.remap import columns


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def remap(*arguments: str) -> None:
    assert main(["remap", *arguments, "--quiet"]) == 0


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["check", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    return code, json.loads(out)


def errors(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["severity"] == "error"]


def told(report: dict[str, Any], severity: str = "info") -> str:
    return "\n".join(finding["message"] for finding in report["findings"] if finding["severity"] == severity)


LABELS = ["dog", "cat", "owl", "cat", None]


def write(path: str, table: pa.Table) -> None:
    if path.endswith(".parquet"):
        pa.parquet.write_table(table, path, row_group_size=2)
    elif path.endswith(".feather"):
        pa.feather.write_feather(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)


def read(path: str) -> pa.Table:
    if path.endswith(".parquet"):
        return pa.parquet.read_table(path)
    if path.endswith(".feather"):
        return pa.feather.read_table(path)
    with pa.ipc.open_stream(path) as reader:
        return reader.read_all()


def changed(path: str, column: str, row: int, value: int) -> None:
    """Another value in one row, as a program does that keeps the metadata."""
    table = read(path)
    values = table.column(column).to_pylist()
    values[row] = value
    at = table.schema.names.index(column)
    write(path, table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type)))


class TestMapInMetadata:
    @pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
    def test_found_without_options(self, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
        """``label_id`` is the usual name of a label column; the map says that ``kind`` is it."""
        write(f"a{suffix}", pa.table({"label_id": [7] * 5, "kind": LABELS}))
        remap(f"a{suffix}", "--column", "kind", "-o", f"b{suffix}", "--missing", "ignore_index", "--ignore-index", "255")
        code, report = check(capsys, f"b{suffix}")
        assert (code, errors(report)) == (0, [])
        assert "kind: carries a label map of preassert remap: 3 classes (0 'cat', 1 'dog', 2 'owl'), sha256:" in told(report)
        assert report["scanned"]["label_maps"]["kind"]["num_classes"] == 3
        assert report["scanned"]["columns"]["kind"]["valid"] == "0..2 or ignore_index 255"

        changed(f"b{suffix}", "kind", 3, 3)
        code, report = check(capsys, f"b{suffix}")
        (finding,) = errors(report)
        assert (code, finding["where"]["rows"], finding["values"]) == (1, [4], [3])
        assert "outside 0..2 or ignore_index 255 (set by the label map in its metadata)" in finding["message"]
        assert finding["fix"] == "correct the rows: they were changed after preassert remap"

    def test_a_class_for_what_is_missing_counts(self, capsys: pytest.CaptureFixture[str]) -> None:
        write("a.parquet", pa.table({"kind": LABELS}))
        remap("a.parquet", "--column", "kind", "-o", "b.parquet", "--missing", "class")
        _, report = check(capsys, "b.parquet")
        assert report["scanned"]["columns"]["kind"] | {"valid": ""} == {
            "rows": 5, "elements": 5, "missing": 0, "offending": 0, "min": 0, "max": 3, "valid": "",
            "histogram": [[0, 2], [1, 1], [2, 1], [3, 1]], "empty_classes": [],
        }  # fmt: skip
        assert report["scanned"]["columns"]["kind"]["valid"].startswith("0..3")

    def test_every_remapped_column(self, capsys: pytest.CaptureFixture[str]) -> None:
        write("a.parquet", pa.table({"x": ["a", "b"], "y": [[{"kind": "p"}], [{"kind": "q"}, {"kind": "r"}]], "z": [9, 9]}))
        remap("a.parquet", "--column", "x", "-o", "b.parquet")
        remap("b.parquet", "--column", "y.kind", "-o", "c.parquet")
        code, report = check(capsys, "c.parquet")
        assert (code, set(report["scanned"]["columns"])) == (0, {"x", "y.kind"})
        changed("c.parquet", "x", 1, 2)
        (finding,) = errors(check(capsys, "c.parquet")[1])
        assert (finding["where"]["column"], finding["values"]) == ("x", [2])

    @pytest.mark.parametrize("classes", ["3", "names.txt"])
    def test_classes_that_agree(self, capsys: pytest.CaptureFixture[str], classes: str) -> None:
        Path("names.txt").write_text("cat\ndog\nowl\n")
        write("a.parquet", pa.table({"label": LABELS[:4]}))
        remap("a.parquet", "--column", "label", "-o", "b.parquet")
        code, report = check(capsys, "b.parquet", "--classes", classes)
        assert (code, told(report, "warning")) == (0, "")
        assert "carries a label map" in told(report)

    @pytest.mark.parametrize("options", [["--classes", "4"], ["--classes", "names.txt"], ["--min", "1", "--max", "2"]])
    def test_classes_that_disagree(self, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
        Path("names.txt").write_text("dog\ncat\nowl\n")
        write("a.parquet", pa.table({"label": LABELS[:4]}))
        remap("a.parquet", "--column", "label", "-o", "b.parquet")
        _, report = check(capsys, "b.parquet", *options)
        assert "which is not what the map says" in told(report, "warning")

    def test_too_few_classes(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Remapping again would not help: the map has three classes."""
        write("a.parquet", pa.table({"label": ["owl", "dog"]}))
        write("b.parquet", pa.table({"label": ["cat"]}))
        remap("a.parquet", "b.parquet", "--column", "label", "-o", "out/")
        (finding,) = errors(check(capsys, "out/a.parquet", "--classes", "2")[1])
        assert finding["fix"] == "build the model with num_classes=3, as the label map says"

    def test_splits_with_different_maps(self, capsys: pytest.CaptureFixture[str]) -> None:
        for split, labels in (("train", ["cat", "dog"]), ("val", ["dog", "owl"])):
            write(f"{split}.parquet", pa.table({"label": labels}))
            remap(f"{split}.parquet", "--column", "label", "-o", f"{split}2.parquet")
        (finding,) = errors(check(capsys, "train2.parquet", "val2.parquet")[1])
        assert (finding["where"]["file"], finding["values"]) == ("val2.parquet", [0, 1])
        assert "class 0 is 'dog' here and 'cat' in train2.parquet" in finding["message"]
        remap("train.parquet", "val.parquet", "--column", "label", "-o", "both/")
        code, report = check(capsys, "both")
        assert (code, errors(report)) == (0, [])

    def test_saved_data_set(self, capsys: pytest.CaptureFixture[str]) -> None:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.DatasetDict(
            {
                "train": datasets.Dataset.from_dict({"text": ["a", "b", "c"], "kind": ["cat", "dog", None]}),
                "test": datasets.Dataset.from_dict({"text": ["d"], "kind": ["owl"]}),
            }
        ).save_to_disk("data")
        remap("data", "--column", "kind", "-o", "data2", "--missing", "ignore_index", "--ignore-index", "255")
        code, report = check(capsys, "data2")
        assert (code, errors(report)) == (0, [])
        assert report["scanned"]["label_maps"]["kind"]["num_classes"] == 3
        (shard,) = Path("data2/test").glob("*.arrow")
        changed(str(shard), "kind", 0, 3)
        (finding,) = errors(check(capsys, "data2")[1])
        assert (finding["values"], finding["where"]["rows"]) == ([3], [1])

    def test_inverse_takes_it_away(self, capsys: pytest.CaptureFixture[str]) -> None:
        write("a.parquet", pa.table({"label": LABELS[:4]}))
        remap("a.parquet", "--column", "label", "-o", "b.parquet")
        remap("b.parquet", "--inverse", "-o", "c.parquet")
        assert "label_maps" not in check(capsys, "c.parquet")[1]["scanned"]

    def test_the_rooms_agree_on_the_keys(self) -> None:
        assert carried.SCHEMA == mapfile.SCHEMA
        assert (carried.MAP_KEY, carried.COLUMN_KEY, carried.EARLIER_KEY) == (
            columns.MAP_KEY,
            columns.COLUMN_KEY,
            columns.SCHEMA_KEY,
        )


GOOD = {"schema": mapfile.SCHEMA, "classes": ["a"], "num_classes": 1, "policy": {"ignore_index": -100}, "fingerprint": "sha256:0"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"schema": "preassert.labelmap/2"},
                {"classes": None},
                {"num_classes": 0, "classes": []},
                {"num_classes": True},
                {"num_classes": 10**9},
                {"policy": []},
                {"policy": {"ignore_index": "x"}},
            )
        ),
    ],
)
def test_a_damaged_map_is_a_warning(capsys: pytest.CaptureFixture[str], text: bytes) -> None:
    schema = pa.schema({"label": pa.int64()}, {columns.MAP_KEY: text, columns.COLUMN_KEY: b"label"})
    write("a.parquet", pa.table({"label": [0, 1]}, schema=schema))
    code, report = check(capsys, "a.parquet", "--classes", "2")
    assert (code, errors(report)) == (0, [])
    assert "label: the label map in its metadata cannot be read" in told(report, "warning")


@pytest.mark.parametrize("stored", [b"?", base64.b64encode(b"no schema")])
def test_a_damaged_history_leaves_the_last_map(capsys: pytest.CaptureFixture[str], stored: bytes) -> None:
    metadata = {columns.MAP_KEY: json.dumps(GOOD).encode(), columns.COLUMN_KEY: b"label", columns.SCHEMA_KEY: stored}
    write("a.parquet", pa.table({"label": [0, 1]}, schema=pa.schema({"label": pa.int64()}, metadata)))
    code, report = check(capsys, "a.parquet")
    assert (code, [finding["values"] for finding in errors(report)]) == (1, [[1]])


# story -> (file, content, options, line of each row)
COMMENTED: dict[str, tuple[str, bytes, list[str], list[int]]] = {
    "above and between": (
        "a.csv",
        b"# by hand\na,label\n# x\n1,cat\n# a, b, c\n2,dog\n",
        ["--column", "label"],
        [4, 6],
    ),
    "above, with commas": ("a.csv", b"# by hand, twice\n\n#, ,\na,label\n1,cat\n", ["--column", "label"], [5]),
    "above, with the word": ("a.csv", b"# label: by hand\na,label\n1,cat\n", ["--column", "label"], [3]),
    "above, with a quote": ("a.csv", b'# 5" disks, see "x"\na,label\n1,cat\n', ["--column", "label"], [3]),
    "between, with a quote": ("a.csv", b'a,label,b\n1,cat,x\n# 5" disks\n2,dog,y\n', ["--column", "label"], [2, 4]),
    "at the end, no line end": ("a.csv", b"a,label\n1,cat\n# end", ["--column", "label"], [2]),
    "at the end of short rows": ("a.csv", b"label,a\ncat\ndog,1\n# a, b, c", ["--column", "label"], [2, 3]),
    "data that begins so": ("a.csv", b'a,label\n#1,cat\n#2,"dog"\n#,"a, b"\n', ["--column", "label"], [2, 3, 4]),
    "data that ends in a quote": ("a.csv", b'a,label,b\n#1,cat,"x\ny"\n#2,dog,z\n', ["--column", "label"], [2, 4]),
    "header that begins so": ("a.csv", b"#a,label\n1,cat\n# c\n", ["--column", "label"], [2]),
    "label that begins so": ("a.csv", b"#label,b\ncat,1\n# c\n", ["--column", "#label"], [2]),
    "one column": ("a.csv", b"# by hand\nlabel\ncat\n# note\n#tag\n#\ndog\n", ["--column", "label"], [3, 5, 7]),
    "one column, not named": ("a.csv", b"# by hand\nlabel\ncat\n# note\n#tag\n", [], [3, 5]),
    "one column, quoted": ("a.csv", b'label\n"# cat"\n# cat\n', ["--column", "label"], [2]),
    "one column, an open quote": ("a.csv", b'label\n"4\n4"\n# "#,"\n"5\n5"\n', ["--column", "label"], [2, 4]),
    "above, with an open quote": ("a.csv", b'# x,"label\na,label\n1,cat\n"2",dog\n', ["--column", "label"], [3, 4]),
    "header with an inch sign": ("a.csv", b'# x\n5" disk,label\n1,cat\n', ["--column", "label"], [3]),
    "crlf and bom": ("a.csv", b"\xef\xbb\xbf# x\r\na;label\r\n# y;z;w\r\n1;cat\r\n", ["--column", "label"], [4]),
    "old mac": ("a.csv", b"# x\ra,label\r# y\r1,cat\r", ["--column", "label"], [4]),
    "tabs": ("a.tsv", b"# x, y\na\tlabel\n# y\n1\tcat\n", ["--column", "label"], [4]),
    "not UTF-8": ("a.csv", b"# \xff\na,label\n1,cat\n# \xfe\xff\n2,dog\n", ["--column", "label"], [3, 5]),
    "UTF-16": ("a.csv", "# x\na,label\n# é\n1,cat\n".encode("utf-16"), ["--column", "label"], [4]),
    "another sign": ("a.csv", b"% x,y\na,label\n%1,cat\n#2,dog\n", ["--column", "label", "--comment", "%"], [4]),
    "sign given": ("a.csv", b"# x,y\na,label\n#1,cat\n2,dog\n", ["--column", "label", "--comment", "#"], [4]),
    "JSON Lines": ("a.jsonl", b'# c\n{"label": "cat"}\n  // d\n\n\t#\n{"label": "dog"}\n# e', ["--column", "label"], [2, 6]),
}


@pytest.mark.parametrize(("name", "data", "options", "lines"), COMMENTED.values(), ids=COMMENTED.keys())
def test_comment_lines_of_tables(
    capsys: pytest.CaptureFixture[str], name: str, data: bytes, options: list[str], lines: list[int]
) -> None:
    """What ``remap`` writes is clean, and with one class too few every label is found on its line."""
    Path(name).write_bytes(data)
    remap(name, *options, "-o", f"b-{name}", "--map", "map.json")
    classes = json.loads(Path("map.json").read_text())["num_classes"]
    code, report = check(capsys, f"b-{name}", *options, "--classes", str(classes))
    assert (code, errors(report), report["scanned"]["rows"]) == (0, [], len(lines))
    (finding,) = errors(check(capsys, f"b-{name}", *options, "--min", "100", "--max", "100")[1])
    assert finding["where"]["rows"] == list(range(1, len(lines) + 1))
    assert finding["where"]["lines"] == lines
    remap(f"b-{name}", *options, "--inverse", "-o", f"c-{name}", "--map", "map.json")
    assert Path(f"c-{name}").read_bytes() == data


@pytest.mark.parametrize("data", [b"#1,cat\n2,dog\n", b"# two\n#, a, b\n1,cat\n# c\n"])
def test_comment_lines_without_a_header(capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    Path("a.csv").write_bytes(data)
    remap("a.csv", "--no-header", "--column", "2", "-o", "b.csv", "--map", "map.json")
    rows = json.loads(Path("map.json").read_text())["num_classes"]
    code, report = check(capsys, "b.csv", "--no-header", "--column", "1", "--classes", str(rows))
    assert (code, report["scanned"]["rows"]) == (0, rows)


def test_comment_lines_far_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond the first block of the fast reader, which counts rows before it meets a comment."""
    lines = ["# top", "text,label", *(f"{'x' * 90},{at % 10}" for at in range(40_000))]
    lines[30_002] = "# a comment"
    lines[35_002] = "y,77"
    Path("a.csv").write_text("\n".join(lines) + "\n")
    (finding,) = errors(check(capsys, "a.csv", "--column", "label", "--classes", "10")[1])
    assert (finding["where"]["rows"], finding["where"]["lines"], finding["values"]) == ([35_000], [35_003], [77])


def test_comment_lines_of_yolo(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("labels", "images"):
        Path("data", folder, "train").mkdir(parents=True)
    Path("data/data.yaml").write_text("path: .\ntrain: images/train\nnc: 9\n")
    Path("data/images/train/a.jpg").write_bytes(b"")
    Path("data/labels/train/a.txt").write_text("# by hand\n7 0.5 0.5 0.1 0.1\n\n # 9 9 9 9 9\n3 0.5 0.5 0.1 0.1\n")
    remap("data", "-o", "fixed", "--map", "map.json", "--used-only")
    assert Path("fixed/labels/train/a.txt").read_text().split("\n")[0::3] == ["# by hand", " # 9 9 9 9 9"]
    for target in ("fixed", "fixed/labels"):
        code, report = check(capsys, target, "--classes", "2")
        assert (code, errors(report), report["scanned"]["boxes"]) == (0, [], 2)
        assert "line 1: 2 lines are comments" in told(report, "warning")
        (finding,) = errors(check(capsys, target, "--classes", "1")[1])
        assert (finding["where"]["lines"], finding["values"]) == ([2], [1])
