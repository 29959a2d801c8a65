"""Parquet, Arrow, npy and Hugging Face folders: there and back, with types, layout and metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preassert import LabelMap
from preassert.cli import main
from preassert.labels.mapfile import loads


def remap(*arguments: Any) -> int:
    return main(["remap", *map(str, arguments)])


def labels_column(kind: Any) -> pa.Array:
    values: dict[str, list[Any]] = {
        "text": ["b", "a10", None, "a2", "b", "é"],
        "int": [5, 300, None, 5, 7, 5],
        "list": [["b"], [], None, ["a2", "b"], ["b"], ["a2"]],
        "struct": [{"k": "b", "x": 1}, None, {"k": None, "x": 2}, {"k": "a", "x": 3}, {"k": "b", "x": 4}, {"k": "b", "x": None}],
        "fixed": [["b", "a"], None, ["b", "c"], ["a", "a"], ["b", "b"], ["c", "c"]],
        "structs": [[{"k": "b"}, {"k": "a"}], [], None, [{"k": "c"}], [], [{"k": "b"}]],
    }
    if pa.types.is_dictionary(kind[1]) and kind[1].value_type == pa.string_view():  # pyarrow has no converter for it
        encoded = pa.array(values["text"]).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind[1].index_type), encoded.dictionary.cast(pa.string_view()))
    return pa.array(values[kind[0]], kind[1])


KINDS: dict[str, tuple[str, Any]] = {
    "string": ("text", pa.string()),
    "large_string": ("text", pa.large_string()),
    "dictionary": ("text", pa.dictionary(pa.int8(), pa.string())),
    "ordered dictionary": ("text", pa.dictionary(pa.int16(), pa.string(), ordered=True)),
    "string view": ("text", pa.string_view()),
    "dictionary of views": ("text", pa.dictionary(pa.uint8(), pa.string_view())),
    "struct of views": ("struct", pa.struct([pa.field("k", pa.string_view()), pa.field("x", pa.int8())])),
    "int16": ("int", pa.int16()),
    "uint64": ("int", pa.uint64()),
    "double": ("int", pa.float64()),
    "list": ("list", pa.list_(pa.field("element", pa.string(), nullable=False))),
    "large_list": ("list", pa.large_list(pa.string())),
    "fixed list": ("fixed", pa.list_(pa.string(), 2)),
    "struct": ("struct", pa.struct([pa.field("k", pa.string()), pa.field("x", pa.int8())])),
    "list of structs": ("structs", pa.list_(pa.struct([pa.field("k", pa.string(), metadata={"m": "1"})]))),
}


def table_of(kind: str) -> pa.Table:
    column = labels_column(KINDS[kind])
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False, metadata={"unit": "none"}),
            pa.field("label", column.type, metadata={"why": "kept"}),
            pa.field("t", pa.timestamp("us", "Europe/Berlin")),
            pa.field("d", pa.decimal128(7, 2)),
        ],
        metadata={"who": "me"},
    )
    times = pa.array(range(6), pa.timestamp("us", "Europe/Berlin"))
    return pa.Table.from_arrays(
        [pa.array(range(6), pa.int32()), column, times, pa.array([1, 2, None, 4, 5, 6], pa.decimal128(7, 2))], schema=schema
    )


def column_option(kind: str) -> str:
    return "label.k" if "struct" in kind else "label"


def write_stream(table: pa.Table, path: Path, compression: str | None = None, rows: int = 4) -> None:
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_file(table: pa.Table, path: Path, compression: str | None = None, rows: int = 4) -> None:
    with pa.ipc.new_file(
        path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    ) as writer:
        writer.write_table(table, max_chunksize=rows)


def read_arrow(path: Path) -> pa.Table:
    with open(path, "rb") as file:
        return (pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream)(pa.memory_map(str(path))).read_all()


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read() if path.suffix == ".parquet" else read_arrow(path)


WRITERS: dict[str, Any] = {
    "d.parquet": lambda table, path: pq.write_table(
        table, path, row_group_size=4, compression={"id": "zstd", "t": "none", "d": "gzip"}
    ),
    "d.arrow": write_file,
    "d.feather": lambda table, path: write_file(table, path, "lz4"),
    "d.ipc": write_stream,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRITERS)
def test_there_and_back(name: str, kind: str, tmp_path: Path) -> None:
    source, out, back = tmp_path / name, tmp_path / f"out-{name}", tmp_path / f"back-{name}"
    table = table_of(kind)
    if "views" in kind and name == "d.parquet":
        pytest.skip("pyarrow cannot write it")
    WRITERS[name](table, source)
    before = read(source)
    assert remap(source, "--column", column_option(kind), "--missing", "ignore_index", "-o", out) == 0
    after = read(out)
    assert after.schema.names == before.schema.names
    for name_ in ("id", "t", "d"):
        assert after.column(name_).equals(before.column(name_))
        assert after.schema.field(name_).equals(before.schema.field(name_), check_metadata=True)
    assert after.schema.metadata[b"who"] == b"me"
    labels = loads(after.schema.metadata[b"preassert.labelmap"], "x")
    expected = labels.transform(pa.array(flat_labels(before.column("label"))))
    assert [x if x is not None else -100 for x in flat_labels(after.column("label"))] == expected.to_pylist()
    assert "int64" in str(after.schema.field("label").type)
    assert remap(out, "--inverse", "-o", back) == 0
    restored = read(back)
    assert restored.schema.equals(before.schema, check_metadata=True)
    assert restored.to_pylist() == before.to_pylist()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([source.name, out.name, back.name])


def flat_labels(column: Any) -> list[Any]:
    def leaves(value: Any) -> list[Any]:
        if isinstance(value, list):
            return [leaf for item in value for leaf in leaves(item)]
        return [value["k"]] if isinstance(value, dict) else [] if value is None and pa.types.is_struct(column.type) else [value]

    nested = pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    return [leaf for value in column.to_pylist() if not (nested and value is None) for leaf in leaves(value)]


def test_parquet_layout_is_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "d.parquet", tmp_path / "o.parquet"
    table = pa.table({"label": [5, 3, 9] * 100, "x": [0.5] * 300, "name": ["n"] * 300})
    pq.write_table(
        table,
        source,
        row_group_size=70,
        compression={"label": "snappy", "x": "zstd", "name": "none"},
        use_dictionary=["name"],
        column_encoding={"x": "BYTE_STREAM_SPLIT"},
        write_statistics=["label", "x"],
        version="2.4",
        store_schema=False,
    )
    assert pq.ParquetFile(source).metadata.metadata is None
    assert remap(source, "--column", "label", "-o", out) == 0
    before, after = pq.ParquetFile(source).metadata, pq.ParquetFile(out).metadata
    assert after.format_version == before.format_version
    assert after.num_row_groups == before.num_row_groups == 5
    for group in range(5):
        assert after.row_group(group).num_rows == before.row_group(group).num_rows
        for column in range(3):
            old, new = before.row_group(group).column(column), after.row_group(group).column(column)
            assert (new.compression, new.is_stats_set) == (old.compression, old.is_stats_set)
            assert set(new.encodings) == set(old.encodings)
    statistics = after.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (0, 2)
    assert b"ARROW:schema" not in after.metadata
    assert remap(out, "--inverse", "-o", tmp_path / "b.parquet") == 0
    assert pq.ParquetFile(tmp_path / "b.parquet").metadata.metadata is None
    assert pq.read_table(tmp_path / "b.parquet").equals(table)


def test_pandas_reads_the_output(tmp_path: Path) -> None:
    sizes = pd.Categorical(["mid", "low", "mid"], categories=["low", "mid", "unused", "high"], ordered=True)
    frame = pd.DataFrame({"label": sizes, "x": [1, 2, 3]}, index=pd.Index([7, 8, 9], name="i"))
    frame.to_parquet(tmp_path / "d.parquet")
    assert remap(tmp_path / "d.parquet", "--column", "label", "-o", tmp_path / "o.parquet") == 0
    out = pd.read_parquet(tmp_path / "o.parquet")
    assert out["label"].tolist() == [1, 0, 1]
    assert out.index.tolist() == [7, 8, 9]
    assert remap(tmp_path / "o.parquet", "--inverse", "-o", tmp_path / "b.parquet") == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "b.parquet"), frame)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("writer", [write_file, write_stream])
def test_arrow_compression_is_kept(writer: Any, compression: str | None, tmp_path: Path) -> None:
    from preassert.remap.formats.arrow import _compression

    table = pa.table({"label": ["cat", "dog"] * 50_000, "x": [0] * 100_000})
    writer(table, tmp_path / "d.arrow", compression, rows=30_000)
    assert _compression(tmp_path / "d.arrow") == compression
    assert remap(tmp_path / "d.arrow", "--column", "label", "-o", tmp_path / "o.arrow") == 0
    assert _compression(tmp_path / "o.arrow") == compression
    assert read_arrow(tmp_path / "o.arrow").column("label").to_pylist() == [0, 1] * 50_000


def test_splits_share_one_map(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label\nb\na\n")
    pq.write_table(pa.table({"label": ["c", "b"]}), tmp_path / "val.parquet")
    (tmp_path / "test.jsonl").write_text('{"label": "d"}\n')
    files = [tmp_path / name for name in ("train.csv", "val.parquet", "test.jsonl")]
    assert remap(*files, "--column", "label", "-o", tmp_path / "out") == 0
    assert (tmp_path / "out" / "train.csv").read_text() == "label\n1\n0\n"
    assert pq.read_table(tmp_path / "out" / "val.parquet").column("label").to_pylist() == [2, 1]
    assert (tmp_path / "out" / "test.jsonl").read_text() == '{"label": 3}\n'
    assert LabelMap.load(tmp_path / "out" / "labelmap.json").labels == ["a", "b", "c", "d"]
    outs = [tmp_path / "out" / file.name for file in files]
    assert remap(*outs, "--column", "label", "--inverse", "-o", tmp_path / "back") == 0
    assert [(tmp_path / "back" / file.name).read_bytes() for file in files[::2]] == [file.read_bytes() for file in files[::2]]


def test_unknown_labels_name_rows_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LabelMap().fit(["a"]).save(tmp_path / "m.json")
    pq.write_table(pa.table({"label": ["a"] * 5 + ["x", "y", "x"]}), tmp_path / "d.parquet", row_group_size=3)
    pq.write_table(pa.table({"label": [["a"], [], ["a", "z"]]}), tmp_path / "e.parquet")
    assert (
        remap(
            tmp_path / "d.parquet",
            tmp_path / "e.parquet",
            "--column",
            "label",
            "--map",
            tmp_path / "m.json",
            "-o",
            tmp_path / "o",
        )
        == 1
    )
    err = capsys.readouterr().err
    assert f"'x', 2 times, first at {tmp_path}/d.parquet row 6, {tmp_path}/d.parquet row 8" in err
    assert "'y', once" in err
    assert "e.parquet row 3" in err
    assert "4 of 11 elements" in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([7, 3, 7], np.int8), "<i8"),
        (np.array([[300, -5], [7, 7]], ">i4"), "<i8"),
        (np.asfortranarray(np.arange(6).reshape(2, 3) * 10), "<i8"),
        (np.array(["b", "a"]), "<i8"),
        (np.array([2.0, 1.0]), "<i8"),
        (np.array([True, False]), "<i8"),
        (np.array([2**64 - 1, 5], np.uint64), "<i8"),
        (np.array([3.0, 5.0], np.float16), "<i8"),
        (np.zeros((0,), int) + 1, None),
    ],
    ids=str,
)
def test_npy(array: Any, dtype: str | None, tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", array)
    code = remap(tmp_path / "d.npy", "-o", tmp_path / "o.npy")
    if dtype is None:
        assert code == 2
        return
    assert code == 0
    out = np.load(tmp_path / "o.npy")
    assert (out.dtype, out.shape) == (np.dtype(dtype), array.shape)
    assert np.array_equal(np.unique(array)[out], array)
    assert remap(tmp_path / "o.npy", "--inverse", "-o", tmp_path / "b.npy") == 0
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "d.npy").read_bytes()


def test_npy_drop_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "classes.txt").write_text("3\n1\n")
    np.save(tmp_path / "d.npy", np.array([1, 2, 3, 2]))
    arguments = ["--classes", tmp_path / "classes.txt", "--unknown", "drop"]
    assert remap(tmp_path / "d.npy", "-o", tmp_path / "o.npy", *arguments) == 0
    assert np.load(tmp_path / "o.npy").tolist() == [1, 0]
    np.save(tmp_path / "m.npy", np.array([[1, 2]]))
    assert remap(tmp_path / "m.npy", "-o", tmp_path / "p.npy", *arguments) == 2
    assert remap(tmp_path / "m.npy", "-o", tmp_path / "p.npy", "--classes", tmp_path / "classes.txt") == 1
    assert "m.npy [0, 1]" in capsys.readouterr().err
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object))
    assert remap(tmp_path / "objects.npy", "-o", tmp_path / "p.npy") == 2
    np.save(tmp_path / "dates.npy", np.array(["2020-01-01"], "M8[D]"))
    assert remap(tmp_path / "dates.npy", "-o", tmp_path / "p.npy") == 2
    assert "datetime64" in capsys.readouterr().err


def dataset(kind: str) -> datasets.Dataset:
    if kind == "text":
        return datasets.Dataset.from_dict({"label": ["b", "a", "b"], "x": [1, 2, 3]})
    if kind == "ids":
        return datasets.Dataset.from_dict({"label": [7, 3, 7], "x": [1, 2, 3]})
    if kind == "class labels":
        features = datasets.Features({"label": datasets.ClassLabel(names=["neg", "unused", "pos"]), "x": datasets.Value("int64")})
        return datasets.Dataset.from_dict({"label": [2, 0, 2], "x": [1, 2, 3]}, features=features)
    features = datasets.Features(
        {"label": datasets.List(datasets.ClassLabel(names=["O", "B", "I"])), "x": datasets.Value("int64")}
    )
    return datasets.Dataset.from_dict({"label": [[2, 0], [], [1]], "x": [1, 2, 3]}, features=features)


@pytest.mark.parametrize(
    ("kind", "options", "names", "codes"),
    [
        ("text", ["--column", "label"], ["a", "b"], [1, 0, 1]),
        ("ids", ["--column", "label"], ["3", "7"], [1, 0, 1]),
        ("class labels", [], ["neg", "unused", "pos"], [2, 0, 2]),
        ("class labels", ["--used-only"], ["neg", "pos"], [1, 0, 1]),
        ("tags", ["--column", "label"], ["O", "B", "I"], [[2, 0], [], [1]]),
    ],
)
def test_hugging_face_folders(kind: str, options: list[str], names: list[str], codes: list[Any], tmp_path: Path) -> None:
    original = datasets.DatasetDict({"train": dataset(kind), "test": dataset(kind)})
    original.save_to_disk(tmp_path / "d")
    assert remap(tmp_path / "d", *options, "-o", tmp_path / "o") == 0
    out = datasets.load_from_disk(str(tmp_path / "o"))
    for split in ("train", "test"):
        assert out[split]["label"][:] == codes
        feature = out[split].features["label"]
        assert (feature.feature if kind == "tags" else feature).names == names
        assert out[split]._fingerprint != original[split]._fingerprint
    assert remap(tmp_path / "o", *(["--column", "label"] if kind == "tags" else []), "--inverse", "-o", tmp_path / "b") == 0
    back = datasets.load_from_disk(str(tmp_path / "b"))
    for split in ("train", "test"):
        assert back[split].features == original[split].features
        assert back[split].to_dict() == original[split].to_dict()
        assert json.loads((tmp_path / "b" / split / "dataset_info.json").read_text()) == json.loads(
            (tmp_path / "d" / split / "dataset_info.json").read_text()
        )


def test_hugging_face_in_place_and_stray_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = datasets.Features({"label": datasets.ClassLabel(names=["a", "b"])})
    broken = datasets.Dataset.from_dict({"label": [1, 0]}, features=features)
    table = broken.data.table.set_column(0, broken.data.table.schema.field(0), pa.array([1, 2]))
    datasets.Dataset(datasets.table.InMemoryTable(table), info=broken.info).save_to_disk(tmp_path / "d")
    assert remap(tmp_path / "d", "-o", tmp_path / "o") == 1
    err = capsys.readouterr().err
    assert "2, once, at" in err
    assert "--used-only" in err
    assert remap(tmp_path / "d", "--used-only", "--in-place") == 0
    assert datasets.load_from_disk(str(tmp_path / "d"))["label"][:] == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "d.bak"]


def test_the_map_is_found_in_the_output(tmp_path: Path) -> None:
    from preassert.remap import map_in

    pq.write_table(pa.table({"label": ["b", "a"]}), tmp_path / "d.parquet")
    assert map_in(tmp_path / "d.parquet") is None
    assert remap(tmp_path / "d.parquet", "--column", "label", "-o", tmp_path / "o.parquet") == 0
    assert map_in(tmp_path / "o.parquet") == LabelMap().fit(["a", "b"])


def test_two_columns_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{number}.parquet" for number in range(6)]
    table = pa.table({"a": ["y", "x"], "b": pa.array([9, 4], pa.int8())})
    pq.write_table(table, files[0])
    assert remap(files[0], "--column", "a", "-o", files[1]) == 0
    assert remap(files[1], "--column", "a", "-o", files[5]) == 2
    assert "was remapped already" in capsys.readouterr().err
    assert remap(files[1], "--column", "b", "-o", files[2]) == 0
    assert pq.read_table(files[2]).to_pydict() == {"a": [1, 0], "b": [1, 0]}
    assert remap(files[2], "--column", "a", "--inverse", "-o", files[5]) == 2
    assert "column 'b' was remapped last" in capsys.readouterr().err
    assert remap(files[2], "--inverse", "-o", files[3]) == 0
    assert remap(files[3], "--inverse", "-o", files[4]) == 0
    assert pq.read_table(files[4]).equals(table, check_metadata=True)


def test_labels_that_do_not_fit_the_old_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"label": pa.array([5, 6], pa.int8())}), tmp_path / "d.parquet")
    (tmp_path / "classes.txt").write_text("5\n")
    options = ["--column", "label", "--classes", tmp_path / "classes.txt", "--unknown", "other"]
    assert remap(tmp_path / "d.parquet", *options, "-o", tmp_path / "o.parquet") == 0
    assert remap(tmp_path / "o.parquet", "--inverse", "-o", tmp_path / "b.parquet") == 2
    assert "do not fit the type int8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("d.parquet", b"PAR1garbage"),
        ("d.parquet", b""),
        ("d.arrow", b"ARROW1\0\0garbage"),
        ("d.arrow", b"FEA1 feather one"),
        ("d.arrow", b""),
        ("d.npy", b"\x93NUMPY\x01\x00\xff\xffgarbage"),
        ("d.npy", b""),
    ],
)
def test_damaged_files_are_refused(name: str, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(data)
    assert remap(tmp_path / name, "--column", "label", "-o", tmp_path / f"o-{name}") == 2
    assert name in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("values", "column", "reason"),
    [
        (pa.array([0], pa.timestamp("s")), "label", "holds timestamp"),
        (pa.array([b"a"]), "label", "holds binary"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "label", "holds map"),
        (pa.array([{"a": 1}]), "label", "a path goes on in 'label'"),
        (pa.array([[{"a": b"x"}]]), "label.a", "holds binary"),
        (pa.RunEndEncodedArray.from_arrays([1], [3]), "label", "holds run_end_encoded"),
    ],
)
def test_types_that_labels_do_not_have(
    values: pa.Array, column: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = pa.record_batch({"label": values})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    assert remap(tmp_path / "a.arrow", "--column", column, "-o", tmp_path / "b.arrow") == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "b.arrow").exists()
