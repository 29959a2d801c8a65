"""The command line of ``preassert remap``: exit codes, refusals, backups, tables."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preassert import LabelMap
from preassert.cli import main

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"


def remap(*arguments: Any) -> int:
    return main(["remap", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "d.csv"
    path.write_text("x,label\n1,dog\n2,cat\n3,dog\n")
    return path


def test_the_command_of_the_readme(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = data.parent
    assert remap(data, "--column", "label", "-o", folder / "out.csv", "--map", folder / "labels.json") == 0
    out = capsys.readouterr().out
    assert "3 labels" in out
    assert "map of 2 classes fitted, saved as" in out
    assert (folder / "out.csv").read_text() == "x,label\n1,1\n2,0\n3,1\n"
    assert LabelMap.load(folder / "labels.json").labels == ["cat", "dog"]
    assert remap(data, "--column", "label", "-o", folder / "again.csv", "--map", folder / "labels.json") == 0
    assert "map of 2 classes used" in capsys.readouterr().out


def test_dry_run_prints_old_new_count_and_writes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert remap(data, "--column", "label", "--dry-run") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["old", "->", "new", "count"], ["'cat'", "->", "0", "1"], ["'dog'", "->", "1", "2"]]
    assert [path.name for path in data.parent.iterdir()] == ["d.csv"]
    assert remap(data, "--column", "label", "--dry-run", "--json", "--order", "frequency") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "preassert.remap/1"
    assert answer["table"] == [{"old": "dog", "new": 0, "count": 2}, {"old": "cat", "new": 1, "count": 1}]
    assert answer["map"]["classes"] == ["dog", "cat"]


def test_in_place_keeps_a_backup(data: Path) -> None:
    os.chmod(data, 0o640)
    before = data.read_bytes()
    assert remap(data, "--column", "label", "--in-place") == 0
    assert data.read_text() == "x,label\n1,1\n2,0\n3,1\n"
    assert data.stat().st_mode & 0o777 == 0o640
    assert (data.parent / "d.csv.bak").read_bytes() == before
    assert remap(data, "--column", "label", "--inverse", "--in-place") == 0
    assert data.read_bytes() == before
    assert sorted(path.name for path in data.parent.iterdir()) == ["d.csv", "d.csv.bak", "d.csv.bak2", "d.csv.labelmap.json"]


def test_in_place_follows_a_symbolic_link(data: Path) -> None:
    link = data.parent / "link.csv"
    link.symlink_to(data)
    assert remap(link, "--column", "label", "--in-place") == 0
    assert link.is_symlink()
    assert data.read_text() == "x,label\n1,1\n2,0\n3,1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["d.csv", "--column", "label"], "say where to write"),
        (["d.csv", "--column", "label", "-o", "d.csv"], "exists already"),
        (["d.csv", "--column", "label", "-o", "o.parquet"], "remap keeps the format"),
        (["d.csv", "--column", "label", "-o", "o.csv", "--in-place"], "exclude each other"),
        (["d.csv", "d.csv", "--column", "label", "-o", "o"], "the same input is given twice"),
        (["d.csv", "--column", "label", "--inverse", "-o", "o.csv"], "no label map for --inverse"),
        (["d.csv", "--column", "label", "--inverse", "--map", "no.json", "-o", "o.csv"], "no.json: no such file"),
        (["none.csv", "--column", "label", "-o", "o.csv"], "no such file"),
        (["*.nothing", "--column", "label", "-o", "o"], "nothing matches"),
        (["d.csv", "--column", "label", "-o", "o.csv", "--classes", "empty.txt"], "no classes in it"),
        (["d.csv", "--column", "label", "-o", "o.csv", "--map", "d.csv"], "not JSON"),
        (["strange.xyz", "--column", "label", "-o", "o.xyz"], "cannot be rewritten"),
        (["d.csv", "--column", "label", "-o", "o.csv", "--ignore-index", "1"], "also the index of a class"),
        (["folder", "-o", "folder/inside"], "folder"),
        (["d.csv", "--column", "label", "-o", "new/deep/o.csv", "--ignore-index", "0"], "also the index of a class"),
        (
            ["d.csv", "--column", "label", "-o", "new/deep/o.csv", "--map", "cats.json", "--order", "frequency"],
            "only be given for a new",
        ),
        (["d.csv", "--column", "label", "-o", "o.csv", "--classes", "empty.txt", "--order", "frequency"], "leave --order out"),
        (["d.csv", "--column", "label", "-o", "d.csv/o.csv"], "d.csv"),
    ],
)
def test_refusals_write_nothing(
    arguments: list[str], says: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(data.parent)
    for name in ("empty.txt", "strange.xyz"):
        Path(name).touch()
    LabelMap().fit(["cat", "dog"]).save("cats.json")
    Path("folder/labels").mkdir(parents=True)
    Path("folder/labels/a.txt").write_text("3 0 0 1 1\n")
    before = sorted(str(path) for path in Path().rglob("*"))
    assert remap(*arguments) == 2
    assert says in capsys.readouterr().err
    assert sorted(str(path) for path in Path().rglob("*")) == before
    assert data.read_text() == "x,label\n1,dog\n2,cat\n3,dog\n"


def test_unseen_labels_are_exit_code_1(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LabelMap().fit(["cat"]).save(data.parent / "m.json")
    arguments = [data, "--column", "label", "--map", data.parent / "m.json"]
    assert remap(*arguments, "-o", data.parent / "o.csv") == 1
    captured = capsys.readouterr()
    assert "'dog', 2 times, first at" in captured.err
    assert "row 1 (line 2)" in captured.err
    assert "--unknown and --missing say what to do" in captured.err
    assert remap(*arguments, "--dry-run", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["unseen"][0]["label"], answer["unseen"][0]["count"], answer["unseen_labels"]) == ("dog", 2, 1)
    assert sorted(path.name for path in data.parent.iterdir()) == ["d.csv", "m.json"]


def test_policies_on_the_command_line_go_before_those_of_the_map(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LabelMap().fit(["cat"]).save(data.parent / "m.json")
    before = (data.parent / "m.json").read_bytes()
    arguments = [data, "--column", "label", "--map", data.parent / "m.json", "--unknown"]
    assert remap(*arguments, "ignore_index", "-o", data.parent / "o.csv") == 0
    assert (data.parent / "o.csv").read_text() == "x,label\n1,-100\n2,0\n3,-100\n"
    assert "policies other than those of the map file: unknown=ignore_index" in capsys.readouterr().out
    assert remap(*arguments, "drop", "-o", data.parent / "p.csv") == 0
    assert (data.parent / "p.csv").read_text() == "x,label\n2,0\n"
    assert "2 left out" in capsys.readouterr().out
    assert (data.parent / "m.json").read_bytes() == before


def test_folders_for_outputs_and_maps_are_made(data: Path) -> None:
    folder = data.parent / "new"
    assert remap(data, "--column", "label", "-o", folder / "deep" / "o.csv", "--map", folder / "maps" / "m.json") == 0
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["deep", "deep/o.csv", "maps", "maps/m.json"]


def test_hostile_names_do_not_reach_the_terminal(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_text("x,label\n1,\x1b[31mred\x1b]0;title\x07\n2,\u202ecod\n")
    assert remap(data, "--column", "label", "--dry-run") == 0
    LabelMap().fit(["cat"]).save(data.parent / "m.json")
    assert remap(data, "--column", "label", "--map", data.parent / "m.json", "-o", data.parent / "o.csv") == 1
    captured = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e"} & set(captured.out + captured.err)


def test_patterns_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "val"):
        Path(name).mkdir()
        Path(name, "labels.csv").write_text(f"label\n{name}\n")
    assert remap("*/labels.csv", "--column", "label", "-o", "out") == 0
    assert Path("out/train/labels.csv").read_text() == "label\n0\n"
    assert Path("out/val/labels.csv").read_text() == "label\n1\n"
    assert Path("out/labelmap.json").exists()
    assert remap("out/train/labels.csv", "--column", "label", "--inverse", "--map", "out/labelmap.json", "-o", "back/") == 0
    assert Path("back/labels.csv").read_text() == "label\ntrain\n"


def test_a_fault_that_check_finds_is_gone_after_remap(tmp_path: Path) -> None:
    """The fix of the shown cases: one-based stars, COCO with gaps. Then ``check`` has nothing left to say."""
    pytest.importorskip("preassert.cli.check")
    ratings = CASES / "001-csv-stars-one-to-five" / "ratings.csv"
    assert main(["check", str(ratings), "--column", "stars", "--classes", "5"]) == 1
    assert remap(ratings, "--column", "stars", "-o", tmp_path / "r.csv") == 0
    assert main(["check", str(tmp_path / "r.csv"), "--column", "stars", "--classes", "5"]) == 0
    assert remap(tmp_path / "r.csv", "--column", "stars", "--inverse", "-o", tmp_path / "b.csv") == 0
    assert (tmp_path / "b.csv").read_bytes() == ratings.read_bytes()
    (coco,) = (CASES / "027-coco-sparse-ids").glob("**/*.json")
    assert remap(coco, "-o", tmp_path / "c.json") == 0
    classes = LabelMap.load(tmp_path / "c.json.labelmap.json").num_classes
    assert main(["check", str(tmp_path / "c.json"), "--classes", str(classes)]) == 0


def test_a_folder_of_tables(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "part-0.csv").write_text("label\nb\n")
    assert remap(shards, "--column", "label", "-o", tmp_path / "one") == 0
    (shards / "part-1.jsonl").write_text('{"label": "a"}\n')
    assert remap(shards, "--column", "label", "-o", tmp_path / "two") == 0
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("part-*") if shards not in path.parents}
    assert files.pop("one/part-0.csv.labelmap.json")
    assert files == {"one/part-0.csv": "label\n0\n", "two/part-0.csv": "label\n1\n", "two/part-1.jsonl": '{"label": 0}\n'}


SHOWN = [json.loads(line) for line in (CASES / "cases.jsonl").read_text().splitlines()]
# Formats that remap does not rewrite, and files that are damaged on purpose.
NOT_REWRITTEN = (".npz", ".safetensors", ".pt", ".bin", ".txt", "config.json")


@pytest.mark.parametrize("case", SHOWN, ids=[case["case"] for case in SHOWN])
def test_shown_cases_there_and_back(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every labelled file of the shown cases of ``check``, remapped and back: the same bytes, or the same table."""
    folder, target = CASES / case["case"], case["argv"][1]
    source = folder / target
    column = [case["argv"][i + 1] for i, word in enumerate(case["argv"]) if word == "--column"]
    options = ["--column", column[0]] if column else []
    kind = _kind_of(source)
    if kind is None or case["case"] == "022-no-such-column" or "imagefolder" in case["case"]:
        pytest.skip("not a format or a file that remap rewrites")
    classes = [*options, "--missing", "ignore_index", "--map", tmp_path / "map.json"]
    loose = ["--used-only"] if kind in ("yolo", "hf") and case["exit"] == 1 else []
    out, back = tmp_path / "o" / source.name, tmp_path / "b" / source.name
    code = remap(source, *classes, *loose, "-o", out)
    if code != 0:  # names that are not declared, a mask in colours: refused, not guessed
        assert code in (1, 2)
        assert case["exit"] != 0
        assert not out.exists()
        return
    assert remap(out, *options, "--inverse", "--map", tmp_path / "map.json", "-o", back) == 0
    if "several ways" in capsys.readouterr().out:
        assert case["case"] == "006-csv-missing-labels"
    elif source.suffix == ".gz":
        assert gzip.decompress(back.read_bytes()) == gzip.decompress(source.read_bytes())
    elif kind in ("csv", "jsonl", "coco", "npy"):
        assert back.read_bytes() == source.read_bytes()
    elif kind == "yolo" and not loose:
        for file in (path for path in source.rglob("*") if path.is_file()):
            assert (back / file.relative_to(source)).read_bytes() == file.read_bytes()
    elif kind == "parquet" and source.is_file():
        import pyarrow.parquet as pq

        assert pq.read_table(back).equals(pq.read_table(source), check_metadata=True)


def _kind_of(source: Path) -> str | None:
    from preassert import InputError
    from preassert.remap.formats import format_of, shards

    if source.suffix in NOT_REWRITTEN or not source.exists() or (source / "config.json").exists():
        return None
    try:
        return format_of((shards(source) or [source])[0])
    except InputError:
        return None


def test_heavy_libraries_stay_out_of_a_csv_run(data: Path) -> None:
    report = "print([m for m in ('torch', 'pyarrow', 'pandas') if m in sys.modules])"
    code = f"import sys; from preassert.cli import main; main(sys.argv[1:]); {report}"
    arguments = ["remap", str(data), "--column", "label", "-o", str(data.parent / "o.csv")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
