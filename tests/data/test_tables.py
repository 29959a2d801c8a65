"""Each table format against the conformance suite, and what is particular to it."""

from __future__ import annotations

import decimal
import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import safetensors.numpy
import torch
import zstandard
from conformance import Conformance

from preassert.data import source as source_module
from preassert.data import tally as tally_module
from preassert.data.formats import quotes, torchfile
from preassert.data.rules import hazard_of_column
from preassert.data.scan import Options, Rule, check_paths
from preassert.errors import UsageError


def _text(label: Any) -> str:
    return "" if label is None else str(label)


def _csv(labels: Sequence[Any], delimiter: str = ",", end: str = "\n") -> bytes:
    rows = [f"text{delimiter}label", *(f"row {at}{delimiter}{_text(label)}" for at, label in enumerate(labels))]
    return "".join(row + end for row in rows).encode()


def _array(labels: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.array(labels, dtype=np.float64 if any(isinstance(label, float) for label in labels) else np.int64)


class TestCsv(Conformance):
    suffix = ".csv"
    lines = True
    row_offset = 1

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(_csv(labels))

    def test_lines_of_quoted_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(
            b'\xef\xbb\xbfid,label,text\r\n1,0,"a\r\nb"\r\n\r\n2,99,"c ""quoted"", d"\r\n3,1,e\r\n4,"98","\nx"\r\n5,97,y'
        )
        finding = self.one(self.check(path))
        assert finding.where.rows == (2, 4, 5)
        assert finding.where.lines == (5, 7, 9)
        assert set(finding.values) == {99, 98, 97}

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("odd", ["", '"quoted\ntext"', "\n"])
    def test_lines_with_every_line_end(self, tmp_path: Path, end: str, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from preassert.data.formats import csv

        monkeypatch.setattr(csv, "_BLOCK_BYTES", 64)
        lines = ["text,label", *(f"row {at},{12 if at in (3, 40) else 1}" for at in range(50))]
        if odd == "\n":
            lines.insert(20, "")
        elif odd:
            lines[20] = f"{odd},1"
        path = tmp_path / "a.csv"
        path.write_text(end.join(lines) + end, newline="")
        finding = self.one(self.check(path))
        assert finding.where.rows == (4, 41)
        assert finding.where.lines == (5, 42 + bool(odd))

    def test_ragged_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"text,label\na,1\nb\nc,d,2\ne,3\n")
        report = self.check(path)
        finding = self.one(report)
        assert finding.where.rows == (2, 3)
        assert finding.values == (None, "d")
        assert any("line 3: 1 fields where the first line has 2" in finding.message for finding in report.findings)

    def test_lists_in_a_ragged_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text('text,label\na\nb,"[0, 12]"\nc,"[1]"\n')
        finding = self.one(self.check(path))
        assert (set(finding.values), finding.where.rows) == ({None, 12}, (1, 2))

    def test_ragged_row_far_down(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        rows = [f"{'x' * 90},{at % 10}" for at in range(200_000)]
        rows[150_000] = "short"
        rows[190_000] = "y,77"
        path.write_text("\n".join(["text,label", *rows]) + "\n")
        finding = self.one(self.check(path))
        assert finding.where.rows == (150_001, 190_001)
        assert finding.where.lines == (150_002, 190_002)

    def test_comments_are_passed_over_at_full_speed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from preassert.data.formats import csv

        monkeypatch.setattr(csv, "_BLOCK_BYTES", 64)
        monkeypatch.setattr(csv.CsvReader, "_plain_chunks", lambda *_: pytest.fail("read by the standard library"))
        comments = ["# a note", "#", "#,,", '# 5" of it', '#"a","b","c"', f"# {'long ' * 10}"]
        lines = ["text,label"]
        for at, comment in enumerate(comments):
            lines += [f"row {at},1", comment, "#3,12" if at == 4 else "x,2"]
        path = tmp_path / "a.csv"
        path.write_text("\n".join([*lines, "# the last line has no end"]))
        report = self.check(path)
        finding = self.one(report)
        assert (finding.where.rows, finding.where.lines) == ((10,), (16,))
        assert report.scanned["rows"] == 12

    @pytest.mark.parametrize(
        ("odd", "row"), [('# a,"b\nc",d', 4), ("x", 4), ("# caf\xe9", 3)], ids=["quoted", "short", "latin-1"]
    )
    def test_one_comment_and_what_the_standard_library_must_read(self, tmp_path: Path, odd: str, row: int) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(f"text,label\na,1\n# note\nb,2\n{odd}\nc,12\n".encode("latin-1"))
        assert self.one(self.check(path)).where.rows[-1] == row

    @pytest.mark.parametrize("delimiter", [";", "\t", "|"])
    def test_delimiters(self, tmp_path: Path, delimiter: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv([0, 10], delimiter))
        assert self.one(self.check(path)).where.rows == (2,)

    @pytest.mark.parametrize("header", ['"a, b";label', "a, b;label", "label;a, b, c"])
    def test_commas_in_the_names_of_a_file_with_semicolons(self, tmp_path: Path, header: str) -> None:
        path = tmp_path / "a.csv"
        path.write_text(f"{header}\n0;0\n12;12\n")
        assert self.one(self.check(path)).where.rows == (2,)

    def test_whole_floats_and_spaces_are_labels(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["1.0", " 3", "1e0", "+4"]))
        assert self.errors(self.check(path)) == []

    @pytest.mark.parametrize("text", ["", " ", "NaN", "nan", "null", "NULL", "None", "NA", " NA", "N/A", "<NA>"])
    def test_missing_texts(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["1", text]))
        assert self.one(self.check(path)).values == (None,)

    @pytest.mark.parametrize("text", ["cat", "1_0", "0x1", "0X1", "-", "1,0", "１"])
    def test_texts_that_are_no_numbers(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["1", f'"{text}"']))
        assert self.one(self.check(path)).values == (text,)

    def test_booleans_in_words(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["True", "false", "", "TRUE"]))
        report = self.check(path, highest=1)
        assert self.one(report).values == (None,)
        assert report.scanned["columns"]["label"]["histogram"] == [[0, 1], [1, 2]]
        path.write_bytes(_csv(["True", "1", "0"]))
        assert self.one(self.check(path, highest=1)).values == ("True",)

    @pytest.mark.parametrize("odd", ["", " NA", "0x5", "1e400", str(2**60), "cat", "7.5", " 7", "True", "-0"])
    def test_many_numbers_are_read_as_few_are(self, tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A column of ids, of which hardly one is there twice, takes another way than a column of classes."""
        path = tmp_path / "a.csv"
        path.write_bytes(_csv([*range(9_999), odd, *range(20_000, 30_001)]))
        many = self.check(path, highest=30_000, ignore=(30_001,))
        monkeypatch.setattr(tally_module, "_FEW", 1 << 60)
        few = self.check(path, highest=30_000, ignore=(30_001,))
        assert many == few

    @pytest.mark.parametrize("text", ["0,3", "0 3 7", "1|2", "2; 27"])
    def test_several_labels_in_one_field(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["1", f'"{text}"']))
        finding = self.one(self.check(path))
        assert "several labels in one field" in finding.message
        assert "as a list" in (finding.fix or "")

    def test_huge_numbers(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["1", "9" * 30, "1e400"]))
        assert self.one(self.check(path)).values == (int("9" * 30), "inf")

    def test_not_utf8_in_the_label(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes("text,label\na,caf\xe9\n".encode("latin-1"))
        finding = self.one(self.check(path, names=("café",), lowest=None, highest=None))
        assert finding.hazard is None
        assert "line 2: not UTF-8" in finding.message

    def test_not_utf8_elsewhere(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes("text,label\ncaf\xe9,1\nx,11\n".encode("latin-1"))
        assert self.one(self.check(path)).where.rows == (2,)

    def test_utf16(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes("text,label\ncafé,1\nx,11\n".encode("utf-16"))
        assert self.one(self.check(path)).where.lines == (3,)

    def test_no_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"a,1\nb,22\n")
        finding = self.one(self.check(path, column="1", options=Options(header=False)))
        assert finding.where.rows == (2,)
        assert finding.where.lines == (2,)

    def test_names(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["cat", "Dog", "dog", "", "None"]))
        finding = self.one(self.check(path, names=("cat", "dog"), lowest=None, highest=None))
        assert finding.values == ("Dog", None)
        assert finding.count == 3
        assert "'Dog' is 'dog' in another spelling" in finding.message

    def test_ids_against_a_class_list(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv([0, 1, 2]))
        assert self.one(self.check(path, names=("cat", "dog"), lowest=None, highest=None)).values == (2,)

    def test_digits_as_names(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv([7, 8, 2]))
        assert self.one(self.check(path, names=("7", "8"), lowest=None, highest=None)).values == ("2",)

    def test_row_larger_than_a_block(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"text,label\nshort,1\n" + b"x" * (9 << 20) + b",12\nlast,13\n")
        finding = self.one(self.check(path))
        assert finding.where.rows == (2, 3)
        assert finding.where.lines == (3, 4)

    def test_transcripts(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["abc", "abz", "ca b", "zé"]))
        for rule in (
            Rule("label", alphabet=frozenset("abc "), hazard="ctc-target-invalid"),
            Rule("label", names=("a", "b", "c", " ")),
        ):
            finding = self.one(check_paths([str(path)], [rule]))
            assert finding.hazard == "ctc-target-invalid"
            assert finding.values == ("z", "é")
            assert finding.count == 3
            assert finding.where.rows == (2, 4)

    def test_letters_as_classes_are_no_alphabet(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv(["a", "b", "space"]))
        finding = self.one(self.check(path, names=("a", "b"), lowest=None, highest=None))
        assert finding.hazard == "target-out-of-range"
        assert finding.values == ("space",)

    def test_truncated_within_a_row(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"text,label\na,1\nb,12\nc")
        broken, bad = self.errors(self.check(path))
        assert broken.hazard is None
        assert broken.where.line == 4
        assert bad.where.rows == (2,)
        assert bad.count == 1

    def test_probabilities(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(_csv([0, 0.25, 1, 1.5, "nan"]))
        rule = Rule("label", 0, 1, ignore=(), real=True, hazard="probability-outside-unit-interval")
        finding = self.one(check_paths([str(path)], [rule]))
        assert set(finding.values) == {1.5, None}


class TestTsv(TestCsv):
    suffix = ".tsv"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(_csv(labels, "\t"))

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("block_bytes", [8, 1 << 20])
    def test_quotes_that_are_characters(
        self, tmp_path: Path, end: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in GLUE and Common Voice: read with csv.QUOTE_NONE."""
        monkeypatch.setattr(quotes, "_BLOCK_BYTES", block_bytes)
        path = tmp_path / "a.tsv"
        rows = ['"tis late\t1', "plain\t12", "", 'so" she said\t2', '"all"\t"13"', 'x\t"1']
        path.write_bytes(end.join(["text\tlabel", *rows]).encode())
        report = self.check(path)
        finding = self.one(report)
        assert finding.values == (12, 13, '"1')
        assert finding.where.rows == (2, 4, 5)
        assert finding.where.lines == (3, 6, 7)
        assert report.scanned["columns"]["label"]["rows"] == 5

    @pytest.mark.parametrize("text", ["two\nlines", "a\ttab", 'a\n"",\tb'])
    def test_quotes_that_enclose_fields(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "a.tsv"
        path.write_text(f'text\tlabel\n"{text}"\t1\nx\t12\n')
        finding = self.one(self.check(path))
        assert (finding.values, finding.where.rows) == ((12,), (2,))

    def test_transcripts_with_quotes(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tsv"
        path.write_text('path\tlabel\n1\t"no", he said\n2\t"yes"\n')
        finding = self.one(self.check(path, alphabet=frozenset("noyeshaid ,"), lowest=None, highest=None))
        assert (finding.values, finding.count, finding.where.rows) == (('"',), 2, (1,))


class TestCsvGz(Conformance):
    suffix = ".csv.gz"
    lines = True
    row_offset = 1

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(gzip.compress(_csv(labels)))

    def test_bomb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source_module, "BOMB_BYTES", 1 << 20)
        path = tmp_path / "bomb.csv.gz"
        path.write_bytes(gzip.compress(b"label\n" + b"1\n" * (20 << 20)))
        finding = self.one(self.check(path))
        assert finding.hazard is None
        assert "decompression bomb" in finding.message


class TestCsvZst(Conformance):
    suffix = ".csv.zst"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(zstandard.compress(_csv(labels)))


def _jsonl(labels: Sequence[Any]) -> bytes:
    return "".join(json.dumps({"text": "x", "label": label}) + "\n" for label in labels).encode()


class TestJsonLines(Conformance):
    suffix = ".jsonl"
    lines = True

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(_jsonl(labels))

    def test_blank_lines_shift_lines_not_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'\xef\xbb\xbf{"label": 1}\n\n   \r\n{"label": 10}\r\n{"label": 11}')
        finding = self.one(self.check(path))
        assert finding.where.rows == (2, 3)
        assert finding.where.lines == (4, 5)

    def test_mixed_types(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"label": 1}\n{"label": "1"}\n{"label": true}\n{"label": 0.5}\n{"label": null}\n{}\n{"label": 2.0}\n')
        finding = self.one(self.check(path))
        assert finding.values == ("1", 0.5, None)
        assert finding.where.rows == (2, 4, 5, 6)
        assert finding.count == 4

    def test_broken_line_does_not_stop_the_check(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"label": 1}\n{"label": \n{"label": 12}\n')
        broken, bad = self.errors(self.check(path))
        assert broken.hazard is None
        assert broken.where.line == 2
        assert bad.where.lines == (3,)

    def test_nested_lists_and_objects(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"a": {"ids": [[1, 2], [3]]}}\n{"a": {"ids": [[], [40, 50]]}}\n{"a": {"ids": null}}\n')
        finding = self.one(self.check(path, column="a.ids"))
        assert finding.values == (40, 50, None)
        assert finding.where.rows == (2, 3)
        assert finding.count == 3

    def test_lengths(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"ids": [0] * n}) + "\n" for n in (3, 5, 0, 4, 9)))
        finding = self.one(check_paths([str(path)], [Rule("ids", max_length=4)]))
        assert finding.values == (5, 9)
        assert finding.where.rows == (2, 5)
        assert finding.count == 2

    def test_a_line_without_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from preassert.data.formats import jsonl

        monkeypatch.setattr(jsonl, "_LINE_LIMIT", 1 << 20)
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"label": "' + b"x" * (6 << 20))
        assert "longer than" in self.one(self.check(path)).message

    @pytest.mark.parametrize("block_bytes", [1, 7, 40, 1 << 20])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_blocks_do_not_matter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, end: str) -> None:
        from preassert.data.formats import jsonl

        monkeypatch.setattr(jsonl, "_BLOCK_BYTES", block_bytes)
        good, bad, broken = '{"label": 1}', '{"label": 12}', '{"label": 1}{"label": 2}'
        lines = [good, bad, "", good, "# why", broken, '{"label":', "12}", " ", bad, good, '{"text": ""}', '{"label": NaN}', bad]
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
        report = self.check(path)
        found = [finding for finding in self.errors(report) if finding.hazard]
        assert [finding.where.rows for finding in found] == [(2, 7, 9, 10, 11)]
        assert [finding.where.lines for finding in found] == [(2, 10, 12, 13, 14)]
        assert found[0].values == (12, None)
        assert [finding.where.line for finding in self.errors(report) if not finding.hazard] == [6, 7, 8]
        assert report.scanned["columns"]["label"]["rows"] == 8

    @pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb", "größe", "a.b", ""])
    def test_odd_keys(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({key: label}) + "\n" for label in (1, 12)))
        assert self.one(self.check(path, column=key)).where.lines == (2,)

    def test_deep_nesting(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"label": 1}\n{"label": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n")
        assert self.one(self.check(path)).hazard is None

    def test_optional_column(self, tmp_path: Path) -> None:
        path = self.file(tmp_path, [1, 2])
        report = check_paths([str(path)], [Rule("label", 0, 9), Rule("labels", 0, 1, optional=True)])
        assert self.errors(report) == []

    def test_column_that_one_shard_lacks(self, tmp_path: Path) -> None:
        self.file(tmp_path, [1, 2], "a")
        (tmp_path / "b.jsonl").write_text('{"other": 1}\n')
        finding = self.one(self.check(tmp_path))
        assert finding.hazard is None
        assert "no column 'label'" in finding.message

    def test_column_that_no_shard_has(self, tmp_path: Path) -> None:
        (tmp_path / "b.jsonl").write_text('{"lable": 1}\n')
        with pytest.raises(UsageError, match="did you mean 'lable'"):
            self.check(tmp_path)


class TestJsonLinesGz(Conformance):
    suffix = ".jsonl.gz"
    lines = True

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(gzip.compress(_jsonl(labels)))


class TestJsonArray(Conformance):
    suffix = ".json"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_text(json.dumps([{"label": label} for label in labels]))

    def test_jsonl_under_another_name(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_bytes(_jsonl([0, 10]))
        assert self.one(self.check(path)).where.lines == (2,)

    def test_records_in_an_object(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"version": "1", "data": [{"label": 0}, {"label": 10}]}))
        assert self.one(self.check(path)).where.rows == (2,)

    def test_path_through_the_array(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"data": [{"tag": {"id": 0}}, {"tag": {"id": 10}}]}))
        for column in ("tag.id", "data.tag.id"):
            assert self.one(self.check(path, column=column)).where.rows == (2,)
        path.write_text(json.dumps({"data": [{"data": {"id": 10}, "id": 0}]}))
        assert self.one(self.check(path, column="data.id")).values == (10,)

    def test_one_record(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"label": 10, "size": {"x": 3}, "points": [1, 2]}))
        assert self.one(self.check(path)).where.rows == (1,)

    def test_records_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"1.jpg": {"label": 0, "size": 3}, "2.jpg": {"label": 10, "size": 4}}))
        assert self.one(self.check(path)).where.rows == (2,)

    def test_several_arrays_of_records(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"train": [{"label": 0}], "test": [{"label": 1}, {"label": 10}], "names": [{"id": 12}]}))
        assert self.one(self.check(path, column="test.label")).where.rows == (2,)
        assert self.errors(self.check(path, column="train.label")) == []
        assert self.one(self.check(path, column="id")).values == (12,)
        with pytest.raises(UsageError, match=r"train\.label"):
            self.check(path, column="label")


class TestJsonColumns(Conformance):
    suffix = ".json"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_text(json.dumps({"id": list(range(len(labels))), "label": list(labels)}))

    def test_as_pandas_writes_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 10}}))
        assert self.one(self.check(path)).where.rows == (2,)
        path.write_text(json.dumps({"columns": ["text", "label"], "index": [0, 1], "data": [["a", 1], ["b", 10]]}))
        assert self.one(self.check(path)).where.rows == (2,)
        path.write_text(json.dumps({"columns": ["text", "label"], "index": [], "data": []}))
        assert self.errors(self.check(path)) == []


class TestParquet(Conformance):
    suffix = ".parquet"
    statistics = True

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        kind = None if any(isinstance(label, float) for label in labels) else pa.int64()
        table = pa.table({"label": pa.array(labels, kind, from_pandas=False), "x": pa.array([0] * len(labels))})
        pyarrow.parquet.write_table(table, path, row_group_size=30_000, write_statistics=self.statistics)

    def test_proven_by_statistics(self, tmp_path: Path) -> None:
        path = self.file(tmp_path, [row % 10 for row in range(90_000)])
        data = bytearray(path.read_bytes())
        data[4:2000] = bytes(1996)  # the pages of the first row group; the statistics are at the end
        path.write_bytes(data)
        proven = self.check(path, options=Options(histogram=False))
        assert self.errors(proven) == [] if self.statistics else True
        assert self.one(self.check(path, options=Options(histogram=True))).hazard is None

    def test_large_row_groups_are_streamed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from preassert.data.formats import parquet

        monkeypatch.setattr(parquet, "_AHEAD_VALUES", 1000)
        monkeypatch.setattr(parquet, "_BATCH_VALUES", 500)
        path = tmp_path / "a.parquet"
        rows = [[1, 2, 3]] * 2000
        rows[777] = [1, 10, 3]
        pyarrow.parquet.write_table(pa.table({"label": rows}), path, row_group_size=700, write_statistics=self.statistics)
        assert self.one(self.check(path)).where.rows == (778,)

    def test_integer_types(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
            pyarrow.parquet.write_table(pa.table({"label": pa.array([0, 9, 100], kind)}), path)
            assert self.one(self.check(path)).values == (100,), kind

    def test_unsigned_wrap(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"label": pa.array([0, (1 << 64) - 1], pa.uint64())}), path)
        finding = self.one(self.check(path))
        assert finding.values == ((1 << 64) - 1,)
        assert "-1 stored as uint64" in finding.message

    @pytest.mark.parametrize("kind", [pa.bool_(), pa.decimal128(5, 0), pa.decimal128(5, 2), pa.float32(), pa.float16()])
    def test_other_numbers(self, tmp_path: Path, kind: pa.DataType) -> None:
        path = tmp_path / "a.parquet"
        values = pa.array([True, False]) if kind == pa.bool_() else pa.array([1.0, 0.0], pa.float32()).cast(kind)
        pyarrow.parquet.write_table(pa.table({"label": values}), path)
        assert self.errors(self.check(path)) == []

    @pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal256(50, 0)])
    def test_decimals_beyond_64_bits(self, tmp_path: Path, kind: pa.DataType) -> None:
        path = tmp_path / "a.parquet"
        values = pa.array([decimal.Decimal("1E+2"), None, decimal.Decimal("1E+30")], kind)
        pyarrow.parquet.write_table(pa.table({"label": values}), path)
        finding = self.one(self.check(path, highest=100))
        assert finding.values == (None, 10**30)
        assert finding.where.rows == (2, 3)

    def test_timestamps_are_no_labels(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"label": pa.array([1, 2], pa.timestamp("s"))}), path)
        assert "cannot be a label" in self.one(self.check(path)).message

    @pytest.mark.parametrize(
        "kind",
        [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.list_(pa.int64()))],
        ids=str,
    )
    def test_lists(self, tmp_path: Path, kind: pa.DataType) -> None:
        path = tmp_path / "a.parquet"
        rows: list[Any] = [[1, 2], [3, 10], None, [4, None]]
        if pa.types.is_nested(kind.value_type):
            rows = [None if row is None else [row] for row in rows]
        pyarrow.parquet.write_table(pa.table({"label": pa.array(rows, kind)}), path, row_group_size=2)
        finding = self.one(self.check(path))
        assert set(finding.values) == {10, None}
        assert finding.where.rows == (2, 3, 4)
        assert finding.count == 3

    def test_dictionary_of_names(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"label": pa.array(["cat", "wolf", None]).dictionary_encode()}), path)
        finding = self.one(self.check(path, names=("cat", "dog"), lowest=None, highest=None))
        assert finding.values == ("wolf", None)

    def test_structs(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"meta": pa.array([{"label": 1}, {"label": 10}, None])}), path)
        assert self.one(self.check(path, column="meta.label")).where.rows == (2, 3)

    @pytest.mark.parametrize("boxes", [[{"category": 1}, {"category": 10}], {"category": [1, 10]}])
    def test_objects_of_a_detection_set(self, tmp_path: Path, boxes: Any) -> None:
        path = tmp_path / "a.parquet"
        rows: list[Any] = [[] if isinstance(boxes, list) else {"category": []}, boxes, None]
        pyarrow.parquet.write_table(pa.table({"id": [1, 2, 3], "objects": rows}), path, write_statistics=self.statistics)
        (tmp_path / "b.jsonl").write_text("".join(json.dumps({"objects": row}) + "\n" for row in rows[:2]))
        for file in (path, tmp_path / "b.jsonl"):
            report = self.check(file, column="objects.category", ignore=())
            finding = next(finding for finding in self.errors(report) if 10 in finding.values)
            assert finding.where.rows[0] == 2

    def test_several_declared_columns(self, tmp_path: Path) -> None:
        names = {"_type": "ClassLabel", "names": ["a", "b"]}
        features = {
            "coarse": names,
            "fine": {**names, "names": ["a", "b", "c"]},
            "objects": {"feature": {"kind": names}, "_type": "Sequence"},
        }
        table = pa.table({"coarse": [0, 2], "fine": [2, 3], "objects": [{"kind": [0]}, {"kind": [0, 5]}]})
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(
            table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), path
        )
        found = {finding.where.column: finding.values for finding in self.errors(check_paths([str(path)], [Rule()]))}
        assert found == {"coarse": (2,), "fine": (3,), "objects.kind": (5,)}

    def test_class_names_in_the_metadata(self, tmp_path: Path) -> None:
        features = {"info": {"features": {"y": {"_type": "ClassLabel", "names": ["a", "b"]}}}}
        table = pa.table({"x": [0, 0], "y": [1, 2]}).replace_schema_metadata({"huggingface": json.dumps(features)})
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(table, path)
        finding = self.one(check_paths([str(path)], [Rule()]))
        assert finding.values == (2,)
        assert finding.where.column == "y"


class TestParquetWithoutStatistics(TestParquet):
    statistics = False


class TestArrowFile(Conformance):
    suffix = ".arrow"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        kind = None if any(isinstance(label, float) for label in labels) else pa.int64()
        table = pa.table({"label": pa.array(labels, kind, from_pandas=False)})
        with self.writer(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4096)

    def writer(self, path: Path, schema: pa.Schema) -> Any:
        return pa.ipc.new_file(str(path), schema)

    def test_dictionary_of_string_views(self, tmp_path: Path) -> None:
        """What polars writes for a categorical."""
        names = pa.array(["cat", "cow"]).cast(pa.string_view())
        batch = pa.record_batch({"label": pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), names)})
        with self.writer(tmp_path / "a.arrow", batch.schema) as writer:
            writer.write_batch(batch)
        finding = self.one(self.check(tmp_path / "a.arrow", names=("cat",), lowest=None, highest=None))
        assert (set(finding.values), finding.where.rows) == ({None, "cow"}, (2, 3))

    @pytest.mark.parametrize(
        "values",
        [
            pa.array([[0], None, [1, 12]], pa.list_view(pa.int64())),
            pa.array([[0], None, [1, 12]], pa.large_list_view(pa.int64())),
            pa.array([0, None, 12]).cast(pa.int64()).dictionary_encode(),
            pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), pa.array([0, None, 12])),
        ],
        ids=["list_view", "large_list_view", "dictionary", "run_end_encoded"],
    )
    def test_layouts_of_arrow(self, tmp_path: Path, values: pa.Array) -> None:
        batch = pa.record_batch({"label": values})
        with self.writer(tmp_path / "a.arrow", batch.schema) as writer:
            writer.write_batch(batch)
        finding = self.one(self.check(tmp_path / "a.arrow"))
        assert (set(finding.values), finding.where.rows) == ({None, 12}, (2, 3))


class TestArrowStream(TestArrowFile):
    def writer(self, path: Path, schema: pa.Schema) -> Any:
        return pa.ipc.new_stream(str(path), schema)


class TestFeather(Conformance):
    suffix = ".feather"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        kind = None if any(isinstance(label, float) for label in labels) else pa.int64()
        pyarrow.feather.write_feather(pa.table({"label": pa.array(labels, kind, from_pandas=False)}), str(path), chunksize=5000)


class TestNpy(Conformance):
    suffix = ".npy"
    column = None
    nulls = False

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        np.save(path, _array(labels))

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_two_dimensions(self, tmp_path: Path, order: Any) -> None:
        path = tmp_path / "a.npy"
        values = np.zeros((5, 3), np.int32, order=order)
        values[3, 1] = 10
        np.save(path, values)
        finding = self.one(self.check(path))
        assert finding.where.rows == (4,)

    def test_false_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904,), }"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64))
        assert "truncated, or a false header" in self.one(self.check(path)).message

    def test_huge_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + bytes(64))
        assert "a header of 4,294,967,295 bytes" in self.one(self.check(path)).message

    def test_pickled_objects_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        np.save(path, np.array([1, None], dtype=object), allow_pickle=True)
        assert "could run code" in self.one(self.check(path)).message

    def test_fixed_width_text_and_booleans(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        np.save(path, np.array(["cat", "wolf"]))
        assert self.one(self.check(path, names=("cat",), lowest=None, highest=None)).values == ("wolf",)
        np.save(path, np.array([True, False]))
        assert self.errors(self.check(path, highest=1)) == []

    def test_structured(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        np.save(path, np.array([(1, 0.5), (10, 0.5)], dtype=[("y", "i4"), ("w", "f4")]))
        assert self.one(self.check(path, column="y")).where.rows == (2,)


class TestNpz(Conformance):
    suffix = ".npz"
    nulls = False
    compressed = False

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        (np.savez_compressed if self.compressed else np.savez)(path, label=_array(labels), image=np.zeros((2, 2)))

    def test_clean(self, tmp_path: Path) -> None:
        assert self.errors(self.check(self.file(tmp_path, [0, 9]))) == []


class TestNpzCompressed(TestNpz):
    compressed = True

    def test_bomb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source_module, "BOMB_BYTES", 1 << 20)
        path = tmp_path / "bomb.npz"
        np.savez_compressed(path, label=np.zeros(4 << 20, np.int64))
        assert "decompression bomb" in self.one(self.check(path)).message

    def test_member_that_lies(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        body = io.BytesIO()
        np.save(body, np.zeros(4, np.int64))
        data = body.getvalue().replace(b"(4,)", b"(9999999999,)"[:4])
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("label.npy", data.replace(b"'shape': (999", b"'shape': (9,)"))
        assert self.errors(self.check(path))


class TestSafetensors(Conformance):
    suffix = ".safetensors"
    nulls = False

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        path.write_bytes(safetensors.numpy.save({"label": _array(labels), "other": np.zeros(2)}))

    def test_clean(self, tmp_path: Path) -> None:
        assert self.errors(self.check(self.file(tmp_path, [0, 9]))) == []

    def test_huge_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
        assert "the header should hold" in self.one(self.check(path)).message

    def test_offsets_outside(self, tmp_path: Path) -> None:
        header = json.dumps({"label": {"dtype": "I64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}).encode()
        path = tmp_path / "a.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        assert "tensor 'label' should hold" in self.one(self.check(path)).message

    def test_bfloat16(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        path = tmp_path / "a.safetensors"
        save_file({"label": torch.tensor([1.0, 2.5, 9.0], dtype=torch.bfloat16)}, path)
        assert self.one(self.check(path)).values == (2.5,)


class TestTorchFile(Conformance):
    suffix = ".pt"
    nulls = False

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        torch.save({"label": torch.from_numpy(_array(labels)), "x": torch.zeros(2)}, path)

    @pytest.mark.parametrize(
        "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.float32, torch.float16, torch.bfloat16]
    )
    def test_dtypes(self, tmp_path: Path, dtype: torch.dtype) -> None:
        path = tmp_path / "a.pt"
        torch.save(torch.tensor([1, 9, 10]).to(dtype), path)
        assert self.one(self.check(path, column=None)).values == (10,)

    def test_views(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pt"
        table = torch.arange(30).reshape(10, 3)
        torch.save({"column": table[:, 1], "tail": table[8:], "t": table.t()}, path)
        assert self.one(self.check(path, column="column")).where.rows == (4, 5, 6, 7, 8, 9, 10)
        assert self.one(self.check(path, column="tail")).count == 6
        assert self.one(self.check(path, column="t", highest=28)).where.rows == (3,)

    def test_nested_and_lists(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pt"
        torch.save({"train": {"y": [1, 2, 10]}, "pair": (torch.zeros(2), torch.tensor([3, 11]))}, path)
        assert self.one(self.check(path, column="train.y")).where.rows == (3,)
        assert self.one(self.check(path, column="pair.1")).values == (11,)

    def test_samples(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torchfile, "_SAMPLES", 2)
        path = tmp_path / "a.pt"
        ids = [[1, 2], [3], [10, 11], []]
        samples = [{"ids": torch.tensor(row), "y": torch.tensor(3 * at), "n": 4 * at} for at, row in enumerate(ids)]
        torch.save(samples, path)
        found = self.one(self.check(path, column="ids"))
        assert (found.values, found.where.rows) == ((10, 11), (3,))
        assert self.one(self.check(path, column="y", highest=8)).where.rows == (4,)
        assert self.one(self.check(path, column="n", highest=7)).where.rows == (3, 4)
        torch.save({"train": [(torch.zeros(2), 3), (torch.zeros(2), 12)]}, path)
        assert self.one(self.check(path, column="train.1")).where.rows == (2,)

    def test_a_tensor_that_is_not_in_the_archive(self, tmp_path: Path) -> None:
        torch.save({"label": torch.tensor([1])}, tmp_path / "whole.pt")
        with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "a.pt", "w") as part:
            for name in whole.namelist():
                if not name.endswith("data/0"):
                    part.writestr(name, whole.read(name))
        assert "the archive has no" in self.one(self.check(tmp_path / "a.pt")).message

    def test_a_view_that_repeats_its_storage_without_end(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pt"
        torch.save({"label": torch.tensor([1]).expand(1 << 40)}, path)
        assert "decompression bomb" in self.one(self.check(path)).message

    def test_code_is_not_run(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"

        class Evil:
            def __reduce__(self) -> Any:
                return (open, (str(marker), "w"))

        path = tmp_path / "a.pt"
        torch.save({"label": Evil()}, path)
        assert "could run code" in self.one(self.check(path)).message
        assert not marker.exists()

    def test_old_format(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pt"
        torch.save({"label": torch.tensor([1])}, path, _use_new_zipfile_serialization=False)
        assert "torch 1.6" in self.one(self.check(path)).message


class TestTokens(Conformance):
    suffix = ".bin"
    column = None
    nulls = False
    floats = False
    negatives = False

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        np.array(labels, "<u2").tofile(path)

    def test_empty_file(self, tmp_path: Path) -> None:
        report = self.check(self.file(tmp_path, []))
        assert [finding.severity for finding in report.findings] == ["warning"]

    def test_uint32(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        np.array([1, 70_000], "<u4").tofile(path)
        assert self.one(self.check(path, highest=50_000, options=Options(dtype="uint32"))).values == (70_000,)

    def test_wrong_dtype_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="uint16"):
            self.check(self.file(tmp_path, [1]), options=Options(dtype="uint17"))

    def test_llmc_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, 3
        path.write_bytes(header.tobytes() + np.array([1, 2, 50257], "<u2").tobytes())
        finding = self.one(self.check(path, highest=50256))
        assert finding.where.rows == (3,)
        header[2] = 4
        path.write_bytes(header.tobytes() + np.array([1, 2, 50257], "<u2").tobytes())
        assert "truncated" in self.one(self.check(path, highest=50256)).message

    def test_megatron(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        np.array([1, 2, 3, 4, 99], "<i4").tofile(path)
        index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3) + np.array([3, 2], "<i4").tobytes() + bytes(16 + 24)
        (tmp_path / "a.idx").write_bytes(index)
        finding = self.one(self.check(path, highest=50))
        assert finding.values == (99,)
        assert finding.where.rows == (2,)
        assert "document 2" in finding.message


class TestWebDataset(Conformance):
    suffix = ".tar"
    column = "cls"
    many = 5_000

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        with tarfile.open(path, "w") as archive:
            for at, label in enumerate(labels):
                for suffix, data in (("jpg", b"x" * 10), ("cls", _text(label).encode())):
                    member = tarfile.TarInfo(f"{at:06d}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))

    def test_json_members(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as archive:
            for at, label in enumerate([1, 10]):
                data = json.dumps({"label": label}).encode()
                member = tarfile.TarInfo(f"s/{at}.json")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        for column in ("label", "json.label"):
            assert self.one(self.check(path, column=column)).where.rows == (2,)


class TestWebDatasetGz(TestWebDataset):
    suffix = ".tar.gz"

    def write(self, path: Path, labels: Sequence[Any]) -> None:
        super().write(path, labels)
        path.write_bytes(gzip.compress(path.read_bytes()))


def test_object_store(tmp_path: Path) -> None:
    """Addresses go through pyarrow's file systems; a local one stands for the others."""
    for name, data in (("a.csv", _csv([0, 10])), ("b.jsonl", _jsonl([0, 11]))):
        (tmp_path / name).write_bytes(data)
    pyarrow.parquet.write_table(pa.table({"label": [1, 12]}), tmp_path / "c.parquet")
    for address, values in ((f"file://{tmp_path}", [(10,), (11,), (12,)]), (f"file://{tmp_path}/*.csv", [(10,)])):
        report = check_paths([address], [Rule("label", 0, 9)])
        assert [finding.values for finding in report.findings if finding.severity == "error"] == values
    with pytest.raises(UsageError, match="no such file"):
        check_paths([f"file://{tmp_path}/nothing.csv"], [Rule("label", 0, 9)])


def test_what_a_folder_walk_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    for name in ("part-0.csv", "_part-1.csv", ".part-0.csv.crc", ".hidden.csv", "_SUCCESS", "_delta_log/0.json", "readme.md"):
        (tmp_path / name).write_bytes(_csv([0, 10]))
    report = check_paths([str(tmp_path)], [Rule("label", 0, 9)])
    assert sorted(Path(finding.where.file).name for finding in report.findings if finding.severity == "error") == [
        "_part-1.csv",
        "part-0.csv",
    ]
    assert report.scanned["files_passed_over"] == 2


def test_a_file_that_is_named_twice_is_checked_once(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("label\n12\n")
    report = check_paths(
        [str(tmp_path / "a.csv"), f"{tmp_path}/*.csv", f"{tmp_path}/../{tmp_path.name}/b.csv"], [Rule("label", 0, 9)]
    )
    assert [Path(finding.where.file).name for finding in report.findings if finding.hazard] == ["a.csv", "b.csv"]
    assert report.scanned["rows"] == 2


def test_two_rules_on_one_column(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ids": [1, 2]}\n{"ids": [1, 2, 99]}\n')
    found = check_paths([str(path)], [Rule("ids", 0, 9), Rule("ids", max_length=2)]).findings
    assert [finding.values for finding in found if finding.severity == "error"] == [(99,), (3,)]


@pytest.mark.parametrize(("column", "notes"), [("label", 1), ("input_ids", 0)])
def test_labels_that_begin_at_one_are_noted_and_token_ids_are_not(tmp_path: Path, column: str, notes: int) -> None:
    (tmp_path / "a.csv").write_text(f"{column}\n1\n3\n")
    rule = Rule(column, 0, 3, hazard=hazard_of_column(column))
    report = check_paths([str(tmp_path / "a.csv")], [rule])
    assert sum("do they start at 1?" in finding.message for finding in report.findings) == notes


def test_progress_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(_csv([0, 1, 2]))
    told: list[tuple[str, int, int | None]] = []
    check_paths([str(path)], [Rule("label", 0, 9)], Options(progress=lambda *now: told.append(now)))
    assert told[-1] == (str(path), 3, None)


def test_a_column_of_documents_stays_small(tmp_path: Path) -> None:
    """The wrong column: every row offends, with a long text of its own."""
    path = tmp_path / "a.csv"
    path.write_text("label\n" + "".join(f"{at}{'x' * 5000}\n" for at in range(2000)))
    (finding,) = [finding for finding in check_paths([str(path)], [Rule("label", 0, 9)]).findings if finding.severity == "error"]
    assert finding.count == 2000
    assert len(finding.values) == 1000
    assert finding.extra["values_truncated"] is True
    assert max(len(value) for value in finding.values) == 200
    assert len(finding.message) < 1000
