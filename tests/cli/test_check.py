"""``preassert check`` as a command: options, exit codes, reports, configuration."""

from __future__ import annotations

import gzip
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from preassert.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label,other\na,0,0\nb,5,9\nc,1,1\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert code in (0, 1), err
    return json.loads(out)


class TestExitCodes:
    @pytest.mark.parametrize(
        ("argv", "code"),
        [
            (["a.csv", "--column", "label", "--classes", "6"], 0),
            (["a.csv", "--column", "label", "--classes", "5"], 1),
            (["a.csv", "--column", "label", "--classes", "5", "--fail-on", "never"], 0),
            (["a.csv", "--column", "label", "--classes", "9"], 0),
            (["a.csv", "--column", "label", "--classes", "9", "--fail-on", "info"], 1),
            (["a.csv", "--column", "lable", "--classes", "5"], 2),
            (["nothing.csv", "--classes", "5"], 2),
            (["*.jsonl", "--classes", "5"], 2),
            ([], 2),
            (["a.csv", "--classes", "0"], 2),
            (["a.csv", "--classes", "missing.txt"], 2),
            (["a.csv", "--classes", "5", "--min", "1"], 2),
            (["a.csv", "--min", "5", "--max", "1"], 2),
            (["a.csv", "--unknown"], 2),
            (["a.csv", "--as", "tables"], 2),
            (["a.csv", "--classes", "5", "--contract", "c.json"], 2),
            (["a.csv", "--classes", "5", "--data", "b.csv"], 2),
            (["--help"], 0),
        ],
    )
    def test_code(self, capsys: pytest.CaptureFixture[str], argv: list[str], code: int) -> None:
        found, out, err = run(capsys, *argv)
        assert found == code, out + err
        if code == 2:
            assert err.strip()

    def test_a_number_is_a_number_though_a_file_has_that_name(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "6").mkdir()
        (tmp_path / "5").write_text("cat\n")
        assert run(capsys, "a.csv", "--column", "label", "--classes", "6")[0] == 0
        (finding,) = report(capsys, "a.csv", "--column", "label", "--classes", "5")["findings"][:1]
        assert finding["values"] == [5]
        (finding,) = report(capsys, "a.csv", "--column", "text", "--classes", "./5")["findings"][:1]
        assert finding["values"] == ["a", "b", "c"]

    def test_missing_extra(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        code, _, err = run(capsys, "a.csv", "--column", "label", "--classes", "6")
        assert code == 3
        assert "pip install 'preassert[data]'" in err

    def test_unreadable_file_is_an_error(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.parquet").write_bytes(b"PAR1")
        code, out, _ = run(capsys, "b.parquet", "--column", "label", "--classes", "5")
        assert code == 1
        assert "b.parquet" in out


class TestOptions:
    def test_several_columns(self, capsys: pytest.CaptureFixture[str]) -> None:
        findings = report(capsys, "a.csv", "--column", "label", "--column", "other", "--classes", "5")["findings"]
        assert [(finding["where"]["column"], finding["values"]) for finding in findings if finding["severity"] == "error"] == [
            ("label", [5]),
            ("other", [9]),
        ]

    def test_ignore_index_replaces_the_default(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_text("label\n0\n-100\n255\n254\n")
        argv = ["b.csv", "--classes", "1", "--ignore-index", "255", "--ignore-index", "254"]
        (finding,) = [finding for finding in report(capsys, *argv)["findings"] if finding["severity"] == "error"]
        assert finding["values"] == [-100]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("c.json", '["a", "b"]'),
            ("c.json", '{"a": 0, "b": 1}'),
            ("c.json", '{"0": "a", "1": "b"}'),
            ("c.json", '{"id2label": {"1": "b", "0": "a"}}'),
            ("c.yaml", "names:\n  0: a\n  1: b\n"),
            ("c.txt", "\ufeffa\r\n\r\nb\r\n"),
        ],
    )
    def test_class_lists(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str) -> None:
        (tmp_path / name).write_text(text, encoding="utf-8")
        findings = report(capsys, "a.csv", "--column", "text", "--classes", name)["findings"]
        assert [finding["values"] for finding in findings if finding["severity"] == "error"] == [["c"]]

    @pytest.mark.parametrize("text", ["", "a\na\n"])
    def test_class_lists_that_are_none(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
        (tmp_path / "c.txt").write_text(text)
        code, _, err = run(capsys, "a.csv", "--column", "text", "--classes", "c.txt")
        assert code == 2
        assert "c.txt" in err

    def test_alphabet(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "<pad>": 2, "|": 3}')
        for alphabet in ("ab", "vocab.json"):
            (finding,) = [
                f
                for f in report(capsys, "a.csv", "--column", "text", "--alphabet", alphabet)["findings"]
                if f["severity"] == "error"
            ]
            assert finding["hazard"] == "ctc-target-invalid"
            assert finding["values"] == ["c"]

    def test_unit_interval(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_text("p\n0.5\n1\n1.01\n")
        (finding,) = [f for f in report(capsys, "b.csv", "--unit-interval")["findings"] if f["severity"] == "error"]
        assert finding["hazard"] == "probability-outside-unit-interval"
        assert finding["values"] == [1.01]

    def test_max_length(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [1, 2, 3]}\n')
        (finding,) = [
            f for f in report(capsys, "b.jsonl", "--max-length", "2", "--classes", "9")["findings"] if f["severity"] == "error"
        ]
        assert finding["values"] == [3]
        assert finding["where"]["lines"] == [2]

    def test_lists_in_a_csv(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_text('labels\n"[0, 3]"\n[]\n"[1, 7]"\n')
        (finding,) = [f for f in report(capsys, "b.csv", "--classes", "4")["findings"] if f["severity"] == "error"]
        assert finding["values"] == [7]
        assert finding["where"]["lines"] == [4]

    def test_label_column_is_found(self, capsys: pytest.CaptureFixture[str]) -> None:
        findings = report(capsys, "a.csv", "--classes", "5")["findings"]
        assert findings[0]["where"]["column"] == "label"

    def test_no_label_column(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_text("p,q\n1,2\n")
        code, _, err = run(capsys, "b.csv", "--classes", "5")
        assert code == 2
        assert "p, q" in err

    def test_without_a_range_the_column_is_described(self, capsys: pytest.CaptureFixture[str]) -> None:
        document = report(capsys, "a.csv", "--column", "label")
        assert document["scanned"]["columns"]["label"]["max"] == 5
        assert not [finding for finding in document["findings"] if finding["severity"] == "error"]


class TestReports:
    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, err = run(capsys, "a.csv", "--column", "label", "--classes", "5")
        assert "error    target-out-of-range  a.csv:3 (row 2, column label)" in out
        assert "1 file, 3 rows checked: 1 error" in out
        assert err == ""  # no progress bar when nobody watches

    def test_sarif_and_html_beside_text(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code, out, _ = run(capsys, "a.csv", "--column", "label", "--classes", "5", "--sarif", "r.sarif", "--html", "r.html")
        assert code == 1
        assert "target-out-of-range" in out
        result = json.loads((tmp_path / "r.sarif").read_text())["runs"][0]["results"][0]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 3
        assert "<svg" in (tmp_path / "r.html").read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "classes.txt", "r.html", "r.sarif"]

    def test_report_that_cannot_be_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "a.csv", "--column", "label", "--classes", "5", "--html", "no/such/folder.html")
        assert code == 2
        assert "cannot write" in err

    def test_progress_bar(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        from preassert.cli import check

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        times = iter(range(1000))
        monkeypatch.setattr(check.time, "monotonic", lambda: float(next(times)))
        assert main(["check", "a.csv", "--column", "label", "--classes", "6"]) == 0
        assert "a.csv" in stream.getvalue()
        quiet = Terminal()
        monkeypatch.setattr(sys, "stderr", quiet)
        assert main(["check", "a.csv", "--column", "label", "--classes", "6", "--quiet"]) == 0
        assert quiet.getvalue() == ""
        capsys.readouterr()

    def test_hostile_names(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        name = "a\x1b[31m<b>.csv"
        (tmp_path / name).write_text("label\n\x1b]0;owned\x07<script>\n")
        _, out, _ = run(capsys, name, "--classes", "5", "--html", "r.html")
        page = (tmp_path / "r.html").read_text()
        assert "\x1b" not in out + page
        assert "<script>" not in page
        assert "<b>" not in page


class TestFixes:
    """The command that a finding names does what it says."""

    @pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npy"])
    def test_remap_makes_it_clean(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet

        labels = [1, 2, 3, 255, 3]
        path = tmp_path / f"b{suffix}"
        if suffix == ".csv":
            path.write_text("label\n" + "".join(f"{label}\n" for label in labels))
        elif suffix == ".jsonl":
            path.write_text("".join(json.dumps({"label": label}) + "\n" for label in labels))
        elif suffix == ".parquet":
            pyarrow.parquet.write_table(pa.table({"label": labels}), path)
        else:
            np.save(path, np.array(labels))
        argv = [path.name, "--classes", "3", "--ignore-index", "255"]
        (finding,) = [f for f in report(capsys, *argv)["findings"] if f["severity"] == "error"]
        words = shlex.split(finding["fix"])
        assert words[:2] == ["preassert", "remap"]
        assert main(words[1:]) == 0
        assert main(["check", words[words.index("-o") + 1], *argv[1:]]) == 0

    def test_remap_of_coco(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        document = {
            "images": [{"id": 1}],
            "annotations": [{"id": at, "image_id": 1, "category_id": key} for at, key in enumerate((3, 90))],
            "categories": [{"id": 3, "name": "a"}, {"id": 90, "name": "b"}],
        }
        (tmp_path / "c.json").write_text(json.dumps(document))
        (finding,) = [f for f in report(capsys, "c.json", "--min", "1", "--max", "80")["findings"] if f["severity"] == "error"]
        assert "remap" not in finding["fix"]
        (finding,) = [f for f in report(capsys, "c.json", "--classes", "2")["findings"] if f["severity"] == "error"]
        assert main(shlex.split(finding["fix"])[1:]) == 0
        assert main(["check", "c.remapped.json", "--classes", "2"]) == 0

    def test_remap_of_a_table_without_a_header(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_text("a,1\n%c,9\nb,2\n")
        argv = ["--no-header", "--column", "1", "--classes", "2", "--comment", "%"]
        (finding,) = [f for f in report(capsys, "b.csv", *argv)["findings"] if f["severity"] == "error"]
        assert main(shlex.split(finding["fix"])[1:]) == 0
        assert (tmp_path / "b.remapped.csv").read_text() == "a,0\n%c,9\nb,1\n"
        assert main(["check", "b.remapped.csv", *argv]) == 0

    @pytest.mark.parametrize(
        "targets",
        [
            ["train.csv", "val.csv"],
            ["[tv]*.csv"],
            ["data"],
            ["data/"],
            ["data/a.csv", "val.csv"],
            ["deep"],
            ["saved"],
            ["val.csv", "data"],
            ["packed.csv.gz"],
        ],
        ids=" ".join,
    )
    def test_remap_of_several_files_is_one_command(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, targets: list[str]
    ) -> None:
        """Labels 1 and 2 in some files, 2 and 3 in others: only one map over all of them keeps a label what it is."""
        import datasets

        for name, labels in {"train.csv": (1, 2), "val.csv": (2, 3), "data/a.csv": (1, 2), "data/b.csv": (2, 3)}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("text,label\n" + "".join(f"x,{label}\n" for label in labels))
        for split, labels in {"train": (1, 2), "test": (2, 3)}.items():
            (tmp_path / "deep" / split).mkdir(parents=True)
            (tmp_path / "deep" / split / "a.jsonl").write_text("".join(json.dumps({"label": label}) + "\n" for label in labels))
        datasets.disable_progress_bars()
        splits = {"train": datasets.Dataset.from_dict({"label": [1, 2]}), "test": datasets.Dataset.from_dict({"label": [2, 3]})}
        datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
        with gzip.open(tmp_path / "packed.csv.gz", "wb") as stream:
            stream.write(b"label\n1\n2\n3\n")
        argv = ["--column", "label", "--classes", "3"]
        findings = [f for f in report(capsys, *targets, *argv)["findings"] if f["severity"] == "error"]
        (command,) = {finding["fix"] for finding in findings}
        words = shlex.split(command)
        assert main(words[1:]) == 0
        assert main(["check", words[words.index("-o") + 1], *argv]) == 0
        capsys.readouterr()
        assert len(json.loads((tmp_path / words[words.index("--map") + 1]).read_text())["classes"]) == 3

    def test_remap_is_not_named_where_it_does_not_help(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        import datasets
        import numpy as np

        (tmp_path / "b.csv").write_text("label\n1\n2\n")
        (tmp_path / "c.csv").write_text("label\n3\n4\n")
        np.save(tmp_path / "d.npy", np.array([(3,)], [("label", "i4")]))
        datasets.disable_progress_bars()
        features = datasets.Features({"label": datasets.ClassLabel(names=["a", "b", "c"])})
        datasets.Dataset.from_dict({"label": [0, 2]}, features).save_to_disk(tmp_path / "saved")
        argv = ["--column", "label", "--classes", "2"]
        for targets, advice in {
            ("b.csv", "c.csv"): "num_classes",
            ("d.npy",): "num_classes=4",
            ("saved",): "num_classes=3: the file declares 'a', 'b', 'c'",
        }.items():
            for finding in report(capsys, *targets, *argv)["findings"]:
                if finding["severity"] == "error":
                    assert "remap" not in finding["fix"]
                    assert advice in finding["fix"]

    @pytest.mark.parametrize("argv", [["--classes", "3"], ["--min", "1", "--max", "3"]])
    def test_masks_that_remap_does_not_help(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str]) -> None:
        import numpy as np
        from PIL import Image

        Image.fromarray(np.array([[0, 1], [2, 9]], np.uint8)).save(tmp_path / "a.png")
        (finding,) = [f for f in report(capsys, "a.png", *argv)["findings"] if f["severity"] == "error"]
        assert "remap" not in finding["fix"]

    @pytest.mark.parametrize("target", ["masks", "masks/", ".", "masks/a.png"])
    def test_remap_of_masks(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
    ) -> None:
        import numpy as np
        from PIL import Image

        (tmp_path / "masks").mkdir()
        for name in ("a.png", "b.png"):
            Image.fromarray(np.array([[0, 7], [9, 255]], np.uint8)).save(tmp_path / "masks" / name)
        if target == ".":
            monkeypatch.chdir(tmp_path / "masks")
        argv = ["--classes", "3", "--ignore-index", "255"]
        findings = [f for f in report(capsys, target, *argv)["findings"] if f["severity"] == "error"]
        (command,) = {finding["fix"].partition(": ")[2] for finding in findings}
        words = shlex.split(command)
        assert main(words[1:]) == 0
        assert main(["check", words[words.index("-o") + 1], *argv]) == 0

    def test_a_labels_json_that_is_no_map_is_left_alone(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "labels.json").write_text("[]")
        (tmp_path / "b.csv").write_text("label\n1\n2\n")
        (finding,) = [f for f in report(capsys, "b.csv", "--classes", "2")["findings"] if f["severity"] == "error"]
        assert main(shlex.split(finding["fix"])[1:]) == 0
        assert (tmp_path / "labels.json").read_text() == "[]"


class TestConfiguration:
    def test_pyproject_fills_what_is_not_given(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pyproject.toml").write_text(
            '[tool.preassert]\npaths = ["a.csv"]\ncolumn = "label"\nclasses = 5\nignore-index = [5]\nfail-on = "never"\n'
        )
        assert run(capsys)[0] == 0
        assert run(capsys, "--ignore-index", "7", "--fail-on", "error")[0] == 1
        assert run(capsys, "--max", "5", "--fail-on", "error")[0] == 0
        assert run(capsys, "--column", "other", "--fail-on", "error")[0] == 1
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        assert run(capsys, "../a.csv", "--ignore-index", "7", "--fail-on", "error")[0] == 1

    @pytest.mark.parametrize(
        "line", ["paths = 5", 'fail-on = "always"', 'min = "a"', "= 1", 'ignore-index = "x"', 'ignore-index = ["5"]']
    )
    def test_wrong_values_are_said(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str) -> None:
        (tmp_path / "pyproject.toml").write_text(f"[tool.preassert]\n{line}\n")
        code, _, err = run(capsys, *([] if line.startswith("paths") else ["a.csv"]))
        assert code == 2
        assert "pyproject.toml" in err

    def test_pre_commit_hooks(self) -> None:
        hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
        assert {hook["entry"] for hook in hooks} == {"preassert check"}


def test_as_a_process(tmp_path: Path) -> None:
    """Without torch, and with a closed standard output."""
    code = (
        "import sys; from preassert.cli import main; code = main(sys.argv[1:]); sys.exit(9 if 'torch' in sys.modules else code)"
    )
    argv = [sys.executable, "-c", code, "check", "a.csv", "--column", "label", "--classes", "5"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
