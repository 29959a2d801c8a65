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
