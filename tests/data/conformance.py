"""What every table format must do. A format's test inherits :class:`Conformance` and says how to write a file."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preassert.data.scan import Options, Report, Rule, check_paths
from preassert.errors import PreassertError
from preassert.model import Finding

Label = Any


def is_legal(label: Label, lowest: int | None, highest: int | None, ignore: tuple[int, ...]) -> bool:
    """The rule as README of the cases states it, written down a second time and one value at a time."""
    if label is None or label != label or int(label) != label:
        return False
    return label in ignore or ((lowest is None or label >= lowest) and (highest is None or label <= highest))


class Conformance:
    """Override ``suffix`` and ``write``; switch off what a format cannot express."""

    suffix = ""
    column: str | None = "label"
    nulls = True  # can hold missing labels
    floats = True  # can hold fractions
    negatives = True
    lines = False  # reports lines
    many = 100_000  # rows for the test of the last batch
    row_offset = 0  # line of row 1, minus 1
    byte_damage = True  # a flipped byte may be noticed; headerless formats cannot know

    def write(self, path: Path, labels: Sequence[Label]) -> None:
        raise NotImplementedError

    # -- helpers -------------------------------------------------------------------------------------------------

    def check(self, path: Path | str, *, highest: int = 9, options: Options | None = None, **rule: Any) -> Report:
        return check_paths([str(path)], [Rule(**{"column": self.column, "lowest": 0, "highest": highest, **rule})], options)

    def errors(self, report: Report) -> list[Finding]:
        return [finding for finding in report.findings if finding.severity == "error"]

    def answer(self, path: Path) -> Report | PreassertError:
        """The report, or the error raised in its place."""
        try:
            return self.check(path)
        except PreassertError as error:
            return error

    def one(self, report: Report) -> Finding:
        errors = self.errors(report)
        assert len(errors) == 1, errors
        return errors[0]

    def file(self, tmp_path: Path, labels: Sequence[Label], name: str = "data") -> Path:
        path = tmp_path / f"{name}{self.suffix}"
        self.write(path, labels)
        return path

    # -- what holds for every format -----------------------------------------------------------------------------

    def test_clean(self, tmp_path: Path) -> None:
        report = self.check(self.file(tmp_path, [0, 9, 3, 3]))
        assert self.errors(report) == []
        assert report.scanned["rows"] == 4
        assert next(iter(report.scanned["columns"].values()))["histogram"] == [[0, 1], [3, 2], [9, 1]]

    def test_bad_values(self, tmp_path: Path) -> None:
        finding = self.one(self.check(self.file(tmp_path, [0, 10, 3, 12, 10])))
        assert finding.hazard in ("target-out-of-range", "embedding-index-out-of-range")
        assert finding.where.rows == (2, 4, 5)
        assert sorted(finding.values) == [10, 12]
        assert finding.count == 3
        if self.lines:
            assert finding.where.lines == tuple(row + self.row_offset for row in (2, 4, 5))

    def test_no_rows(self, tmp_path: Path) -> None:
        report = self.check(self.file(tmp_path, []))
        assert self.errors(report) == []
        assert any("no rows" in finding.message for finding in report.findings)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / f"pipe{self.suffix}"
        os.mkfifo(path)
        assert "not a regular file" in self.one(self.check(path)).message

    def test_one_row(self, tmp_path: Path) -> None:
        assert self.errors(self.check(self.file(tmp_path, [7]))) == []
        assert self.one(self.check(self.file(tmp_path, [11]))).where.rows == (1,)

    def test_bad_in_the_last_row_of_many(self, tmp_path: Path) -> None:
        labels = [row % 10 for row in range(self.many)]
        labels[-1] = 10
        path = self.file(tmp_path, labels)
        for options in (Options(), Options(histogram=False)):
            finding = self.one(self.check(path, options=options))
            assert finding.where.rows == (self.many,)
            assert finding.values == (10,)
            assert finding.count == 1

    def test_ignored_value(self, tmp_path: Path) -> None:
        path = self.file(tmp_path, [0, 100, 3])
        assert self.errors(self.check(path, ignore=(100,))) == []
        assert self.one(self.check(path, ignore=(101,))).values == (100,)

    def test_other_range(self, tmp_path: Path) -> None:
        path = self.file(tmp_path, [1, 5, 3])
        assert self.errors(self.check(path, lowest=1, highest=5)) == []
        assert self.one(self.check(path, lowest=2, highest=4)).where.rows == (1, 2)

    def test_negative(self, tmp_path: Path) -> None:
        if not self.negatives:
            pytest.skip("the format has no negative numbers")
        path = self.file(tmp_path, [0, -1, -100, 3])
        assert self.one(self.check(path)).values == (-1,)

    def test_missing(self, tmp_path: Path) -> None:
        if not self.nulls:
            pytest.skip("the format has no missing values")
        finding = self.one(self.check(self.file(tmp_path, [0, None, 3])))
        assert finding.values == (None,)
        assert finding.where.rows == (2,)
        assert finding.count == 1

    def test_fraction(self, tmp_path: Path) -> None:
        if not self.floats:
            pytest.skip("the format has no fractions")
        finding = self.one(self.check(self.file(tmp_path, [0.0, 1.0, 0.5, float("nan"), 9.0])))
        assert set(finding.values) == {0.5, None}
        assert finding.where.rows == (3, 4)
        assert finding.count == 2

    def test_random_labels_against_an_oracle(self, tmp_path: Path) -> None:
        rng = random.Random(7)
        pool = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 200, 65535]
        pool += [-1, -100, -2] if self.negatives else []
        for turn in range(12):
            extra = ([None] if self.nulls else []) + ([0.5, 2.5, 3.0, float("nan")] if self.floats and turn % 2 else [])
            labels = [rng.choice(pool + extra) for _ in range(rng.randrange(1, 40))]
            lowest, highest = rng.choice([(0, 9), (1, 5), (None, 7), (3, None), (0, 70_000)])
            ignore = rng.choice([(-100,), (-1, 10), ()])
            illegal = [at for at, label in enumerate(labels) if not is_legal(label, lowest, highest, ignore)]
            path = self.file(tmp_path, labels, f"data{turn}")
            found = self.errors(check_paths([str(path)], [Rule(self.column, lowest, highest, ignore)]))
            if not illegal:
                assert found == []
                continue
            (finding,) = found
            assert finding.count == len(illegal)
            assert finding.where.rows == tuple(at + 1 for at in illegal)[: len(finding.where.rows)]
            assert len(finding.where.rows) == min(len(illegal), 10)
            assert set(finding.values) == {None if labels[at] != labels[at] else labels[at] for at in illegal}

    def test_garbage(self, tmp_path: Path) -> None:
        path = tmp_path / f"data{self.suffix}"
        path.write_bytes(random.Random(0).randbytes(4099))
        self.assert_unreadable(path)

    def assert_unreadable(self, path: Path) -> None:
        """Either a finding without a hazard that names the file, or (text formats) an error about its columns."""
        answer = self.answer(path)
        if isinstance(answer, PreassertError):
            assert path.name in str(answer)
        else:
            assert self.errors(answer)[0].where.file == str(path)

    def test_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / f"data{self.suffix}"
        path.write_bytes(b"")
        report = self.check(path)
        assert [finding.where.file for finding in report.findings if finding.severity != "info"] == [str(path)]

    def test_truncated_and_the_other_shards(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        folder.mkdir()
        self.file(folder, [0, 1, 2], "a")
        middle = self.file(folder, [row % 10 for row in range(4000)], "b")
        self.file(folder, [0, 1, 22], "c")
        data = middle.read_bytes()
        middle.write_bytes(data[: len(data) // 2 - 5])
        errors = self.errors(self.check(folder))
        assert errors[-1].where.file.endswith(f"c{self.suffix}")
        assert errors[-1].values == (22,)
        assert {os.path.basename(finding.where.file) for finding in errors[:-1]} == self.truncation_shows(middle.name)

    def truncation_shows(self, name: str) -> set[str]:
        """Names of the files that a truncation must be reported for."""
        return {name}

    def test_missing_file_of_a_glob(self, tmp_path: Path) -> None:
        with pytest.raises(PreassertError, match="no file matches"):
            self.check(tmp_path / f"*{self.suffix}")

    def test_dangling_and_looping_links(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        folder.mkdir()
        self.file(folder, [0, 1, 22], "a")
        (folder / f"self{self.suffix}").symlink_to(folder / f"self{self.suffix}")
        (folder / "up").symlink_to(folder)
        report = self.check(folder)
        assert {os.path.basename(finding.where.file) for finding in self.errors(report)} == {
            f"a{self.suffix}",
            f"self{self.suffix}",
        }
        assert any("leads back" in finding.message for finding in report.findings)

    def test_damaged_bytes_never_crash(self, tmp_path: Path) -> None:
        good = self.file(tmp_path, [row % 10 for row in range(300)]).read_bytes()
        path = tmp_path / f"damaged{self.suffix}"
        rng = random.Random(1)
        for _ in range(60):
            damaged = bytearray(good)
            for _ in range(rng.choice((1, 1, 4))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged)
            answer = self.answer(path)
            if isinstance(answer, Report):
                assert {finding.where.file for finding in answer.findings} <= {str(path)}
