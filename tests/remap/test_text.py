"""CSV and JSON Lines: only the label field changes, and ``--inverse`` gives back every byte."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from preassert.cli import main
from preassert.remap.formats import csv as csv_format
from preassert.remap.formats import jsonl as jsonl_format


def remap(*arguments: Any) -> int:
    return main(["remap", *map(str, arguments)])


def there_and_back(tmp_path: Path, name: str, data: bytes, *options: str) -> bytes:
    """Remap ``data``, undo it, demand the same bytes; returns the remapped file."""
    source, out, back = tmp_path / name, tmp_path / f"out-{name}", tmp_path / f"back-{name}"
    source.write_bytes(data)
    assert remap(source, *options, "-o", out, "--map", tmp_path / "map.json") == 0
    assert remap(out, *options, "--inverse", "-o", back, "--map", tmp_path / "map.json") == 0
    assert back.read_bytes() == data
    assert source.read_bytes() == data
    return out.read_bytes()


CSV = {
    "plain": (b"a,label\n1,cat\n2,dog\n", b"a,label\n1,0\n2,1\n"),
    "no end": (b"label,a\ncat,1\ndog,2", b"label,a\n0,1\n1,2"),
    "crlf": (b"a,label\r\n1,cat\r\n2,dog\r\n", b"a,label\r\n1,0\r\n2,1\r\n"),
    "old mac": (b"a,label\r1,cat\r2,dog\r", b"a,label\r1,0\r2,1\r"),
    "bom": (b"\xef\xbb\xbfa,label\n1,cat\n", b"\xef\xbb\xbfa,label\n1,0\n"),
    "bom first": (b"\xef\xbb\xbflabel,a\ncat,1\n", b"\xef\xbb\xbflabel,a\n0,1\n"),
    "quoted": (b'a,label,b\n"x,1","cat","y"\n"x\n2",dog,z\n', b'a,label,b\n"x,1","0","y"\n"x\n2",1,z\n'),
    "quoted header": (b'"a","label"\n1,"cat"\n', b'"a","label"\n1,"0"\n'),
    "quotes in quotes": (b'a,label\n1,"the ""cat"""\n"a ""b"", c",x\n', b'a,label\n1,"0"\n"a ""b"", c",1\n'),
    "newline in label": (b'label,a\n"ca\r\nt",1\n', b'label,a\n"0",1\n'),
    "quote inside a field": (b'a,label\n5" disk,ca"t\n', b'a,label\n5" disk,0\n'),
    "empty lines": (b"a,label\n\n1,cat\n\r\n\n2,dog\n\n", b"a,label\n\n1,0\n\r\n\n2,1\n\n"),
    "empty lines, first column": (b"label,a\n\ncat,1\n\r\n\ndog,2\n\n", b"label,a\n\n0,1\n\r\n\n1,2\n\n"),
    "comments": (b"# by hand\na,label\n# x\n1,cat\n# a, b, c\n2,dog\n", b"# by hand\na,label\n# x\n1,0\n# a, b, c\n2,1\n"),
    "hashes that are data": (b"a,label\n#1,cat\n2,#dog\n", b"a,label\n#1,1\n2,0\n"),
    "hash in the header": (b"#a,label\n1,cat\n", b"#a,label\n1,0\n"),
    "one column": (b"label\ncat\n\ndog\n# note\n", b"label\n0\n\n1\n# note\n"),
    "numbers": (b"a,label\n1,10\n2,-3\n3,10\n", b"a,label\n1,1\n2,0\n3,1\n"),
    "numbers with blanks": (b"a,label,b\n1, 10 ,x\n2,\t3,x\n", b"a,label,b\n1, 1 ,x\n2,\t0,x\n"),
    "whole floats": (b"a,label\n1,1.0\n2,5.0\n", b"a,label\n1,0\n2,1\n"),
    "leading zeros": (b"a,label\n1,007\n2,7\n", b"a,label\n1,0\n2,1\n"),
    "ignored": (b"a,label\n1,-100\n2,7\n", b"a,label\n1,-100\n2,0\n"),
    "ragged after": (b"a,label\n1,cat,x,y\n2,dog\n", b"a,label\n1,0,x,y\n2,1\n"),
    "semicolons": (b"a;label;b\n1,5;cat;x\n", b"a;label;b\n1,5;0;x\n"),
    "bytes elsewhere": (b"a,label\n\xff\xfe\x00,cat\n", b"a,label\n\xff\xfe\x00,0\n"),
    "unicode": ("a,label\n1,né\n2,Ω\n".encode(), b"a,label\n1,0\n2,1\n"),
    "very long numbers": (b"a,label\n1," + b"9" * 5000 + b"\n2,x10\n3,x9\n", b"a,label\n1,0\n2,2\n3,1\n"),
    "one row": (b"a,label\n1,x\n", b"a,label\n1,0\n"),
}


TSV = {
    "a quote is not closed": (b'text\tlabel\n"tis late\tcat\nx\tdog\n', b'text\tlabel\n"tis late\t0\nx\t1\n'),
    "two lines have one": (b'text\tlabel\n"a\tcat\nb" c\tdog\nd\tcat\n', b'text\tlabel\n"a\t0\nb" c\t1\nd\t0\n'),
    "in the label": (b'text\tlabel\r\nx\t"cat\r\n\r\ny\t"dog"\r\n', b'text\tlabel\r\nx\t0\r\n\r\ny\t"1"\r\n'),
    "a field with a line break": (b'text\tlabel\n"a\nb"\tcat\nx\tdog\n', b'text\tlabel\n"a\nb"\t0\nx\t1\n'),
    "a field with a tab": (b'text\tlabel\n"a\tb"\tcat\nx\t"dog"\n', b'text\tlabel\n"a\tb"\t0\nx\t"1"\n'),
}


@pytest.mark.parametrize(("data", "expected"), TSV.values(), ids=TSV.keys())
def test_quotes_in_tab_separated_files(data: bytes, expected: bytes, tmp_path: Path) -> None:
    assert there_and_back(tmp_path, "data.tsv", data, "--column", "label") == expected


@pytest.mark.parametrize(("data", "expected"), CSV.values(), ids=CSV.keys())
def test_csv(data: bytes, expected: bytes, tmp_path: Path) -> None:
    assert there_and_back(tmp_path, "data.csv", data, "--column", "label") == expected


def test_csv_options(tmp_path: Path) -> None:
    assert there_and_back(tmp_path, "d.tsv", b"a\tlabel\n1,2\tcat\n", "--column", "label") == b"a\tlabel\n1,2\t0\n"
    (tmp_path / "map.json").unlink()
    data = b"1|cat\n2|dog\n"
    for name in ("d.tsv", "out-d.tsv", "back-d.tsv"):
        (tmp_path / name).unlink()
    out = there_and_back(tmp_path, "d.csv", data, "--column", "2", "--no-header", "--delimiter", "|")
    assert out == b"1|0\n2|1\n"
    (tmp_path / "map.json").unlink()
    out = there_and_back(
        tmp_path, "e.csv", "a,label\n1,né\n%x,y\n".encode("cp1252"), "--column", "label", "--encoding", "cp1252", "--comment", "%"
    )
    assert out == b"a,label\n1,0\n%x,y\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_wide_encodings(encoding: str, tmp_path: Path) -> None:
    text = 'a,label\r\n"é\n\U0001f600",cat\r\nx,Ω\r\n'
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    out = there_and_back(tmp_path, "d.csv", (mark + text).encode(encoding), "--column", "label")
    assert out == (mark + text.replace("cat", "0").replace("Ω", "1")).encode(encoding)


PACKERS = {".gz": gzip, ".bz2": bz2, ".xz": lzma, ".zst": zstandard}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_compression_is_kept(suffix: str, name: str, tmp_path: Path) -> None:
    lines = b"a,label\n" + b"1,cat\n" * 50_000 if name == "d.csv" else b'{"label": "cat"}\n' * 50_000
    packer: Any = PACKERS[suffix]
    with packer.open(tmp_path / (name + suffix), "wb") as file:
        file.write(lines)
    out = tmp_path / f"out-{name}{suffix}"
    assert remap(tmp_path / (name + suffix), "--column", "label", "-o", out) == 0
    assert out.stat().st_size < 20_000
    with packer.open(out, "rb") as file:
        assert file.read() == lines.replace(b"cat" if name == "d.csv" else b'"cat"', b"0")


FIELD = st.text(st.sampled_from('ab,;"\n\r #\té0'), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(FIELD, min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 2),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 40),
)
def test_any_csv_that_python_writes_is_read_back_the_same(
    rows: list[list[str]], position: int, quoting: Any, end: str, block: int
) -> None:
    """Whatever the blocks it arrives in; the oracle is the csv module."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=quoting, lineterminator=end)
    writer.writerow(["x", "y", "z"])
    # The csv module leaves a lone \r unquoted, and reads it as a line end, as everybody does.
    rows = [row for row in rows if quoting == csv.QUOTE_ALL or "\r" not in "".join(row)]
    # Without quotes a row of "#..." could be a comment, and a row of empty fields is not empty: it has commas.
    rows = [row for row in rows if quoting == csv.QUOTE_ALL or not row[0].startswith("#")]
    writer.writerows(rows)
    data = text.getvalue().encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("preassert.remap.streams.BLOCK_BYTES", block)
        source = io.BytesIO(data)
        patch.setattr(csv_format, "wide_encoding", lambda path, encoding: (None, b""))
        patch.setattr(csv_format, "blocks", lambda path, wide, advance: iter(lambda: source.read(block), b""))
        options = csv_format.Options(column="xyz"[position], delimiter=",")
        found_parts = list(csv_format.parts(Path("x.csv"), options))
    layout, parts = found_parts[0][0], [part for _, part in found_parts]
    assert b"".join(part.data for part in parts) == data
    found = [csv_format.unquote(raw).decode() for part in parts for raw in part.raws]
    assert found == [row[position] for row in rows]
    again = b"".join(csv_format._splice(part, {raw: raw for raw in part.raws}, layout) for part in parts)  # type: ignore[misc]
    assert again == data


JSONL = {
    "plain": (b'{"label": "cat", "a": 1}\n{"a": 2, "label": "dog"}\n', b'{"label": 0, "a": 1}\n{"a": 2, "label": 1}\n'),
    "spacing": (b' { "a":[1,{"label":"x"}] ,"label"\t:  7  }\r\n\r\n', b' { "a":[1,{"label":"x"}] ,"label"\t:  0  }\r\n\r\n'),
    "bom, no end": (b'\xef\xbb\xbf{"label":"cat"}', b'\xef\xbb\xbf{"label":0}'),
    "comments": (b'# c\n{"label":"cat"}\n// d\n\n', b'# c\n{"label":0}\n// d\n\n'),
    "escapes": (b'{"label":"caf\\u00e9","label2":"label\\""}\n', b'{"label":0,"label2":"label\\""}\n'),
    "unicode": ('{"é":"\U0001f600","label":"né"}\n'.encode(), '{"é":"\U0001f600","label":0}\n'.encode()),
    "floats": (b'{"label":1.0}\n{"label":3.0}\n', b'{"label":0}\n{"label":1}\n'),
    "bools": (b'{"label":true}\n{"label":false}\n', b'{"label":1}\n{"label":0}\n'),
    "lists": (b'{"label":["b", "a" ,[]]}\n{"label":[]}\n', b'{"label":[1, 0 ,[]]}\n{"label":[]}\n'),
    "ignored": (b'{"label":[-100,4]}\n', b'{"label":[-100,0]}\n'),
    "key inside": (
        b'{"a":{"label":"x"},"label":"cat"}\n{"a":[{"label":3}],"label":"cat"}\n',
        b'{"a":{"label":"x"},"label":0}\n{"a":[{"label":3}],"label":0}\n',
    ),
    "objects before": (
        b'{"m":{"x":{"y":"}"}},"label":"dog"}\n{"m":"{","label":"cat"}\n{"m":{"a":"}"},"label":"cat"}\n',
        b'{"m":{"x":{"y":"}"}},"label":1}\n{"m":"{","label":0}\n{"m":{"a":"}"},"label":0}\n',
    ),
    "key after": (b'{"label":"cat","a":{"label":"x"}}\n', b'{"label":0,"a":{"label":"x"}}\n'),
    "key in text": (
        b'{"a":"\\"label\\":1,","label":"cat"}\n{"label":"cat","a":"{\\"label\\": 5}"}\n',
        b'{"a":"\\"label\\":1,","label":0}\n{"label":0,"a":"{\\"label\\": 5}"}\n',
    ),
    "escaped key": (b'{"l\\u0061bel":"cat","b":{"label":1}}\n', b'{"l\\u0061bel":0,"b":{"label":1}}\n'),
    "key as value": (b'{"a":"label","label":"cat"}\n', b'{"a":"label","label":0}\n'),
    "twice": (b'{"label":"dog","label":"cat"}\n', b'{"label":"dog","label":0}\n'),
    "not UTF-8 elsewhere": (b'{"a":"\xff\xfe","label":"cat"}\n', b'{"a":"\xff\xfe","label":0}\n'),
    "form feed, NEL": ('{"a":"\u0085\u2028","label":"cat"}\n'.encode(), '{"a":"\u0085\u2028","label":0}\n'.encode()),
}


@pytest.mark.parametrize(("data", "expected"), JSONL.values(), ids=JSONL.keys())
def test_jsonl(data: bytes, expected: bytes, tmp_path: Path) -> None:
    assert there_and_back(tmp_path, "data.jsonl", data, "--column", "label") == expected


def test_a_key_of_an_inner_object_is_not_that_of_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.jsonl").write_text('{"m": {"a": "}", "label": "cat"}}\n')
    assert remap(tmp_path / "d.jsonl", "--column", "label", "-o", tmp_path / "o.jsonl") == 2
    assert "no key 'label'" in capsys.readouterr().err


def test_jsonl_dotted_paths(tmp_path: Path) -> None:
    data = b'{"o": [{"c": "b", "x": 1}, {"c": "a"}], "o.d": 9}\n'
    assert there_and_back(tmp_path, "data.jsonl", data, "--column", "o.c") == b'{"o": [{"c": 1, "x": 1}, {"c": 0}], "o.d": 9}\n'
    (tmp_path / "map.json").unlink()
    assert there_and_back(tmp_path, "d2.jsonl", data, "--column", "o.d").endswith(b'"o.d": 0}\n')


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4), st.text(max_size=4), st.booleans(), st.sampled_from([None, 1])
)
def test_any_json_line_is_split_where_it_should(others: dict[str, Any], label: str, ascii_only: bool, indent: Any) -> None:
    record = {**others, "label": label, "z": others}
    text = json.dumps(record, ensure_ascii=ascii_only).replace("\n", " ")
    spans = list(jsonl_format._spans(text, 0, "label", ["label"]))
    assert [value for _, _, value in spans] == [label]
    short = jsonl_format.Shortcut("label").span(text, 0)
    assert short in (None, spans[0])
    if not others and not ascii_only:
        assert short is not None or "\\" in text
    (start, end, _), *_ = spans
    assert json.loads(text[:start] + "0" + text[end:]) == {**record, "label": 0}


@pytest.mark.parametrize(
    ("name", "data", "options", "says"),
    [
        ("d.csv", b"a,label\n1\n", ["--column", "label"], "line 2: fewer than 2 fields"),
        ("d.csv", b'a,label\n1,x\n"2,x\n', ["--column", "label"], "line 3: a quote that is not closed"),
        ("d.csv", b"a,label\n1,x\n", ["--column", "lable"], "no column 'lable'; columns are 'a', 'label'"),
        ("d.csv", b"a,label\n1,x\n", [], "--column is needed; columns are 'a', 'label'"),
        ("d.csv", b"a,a\n1,x\n", ["--column", "a"], "more than one column"),
        ("d.csv", b"", ["--column", "a"], "empty file"),
        ("d.csv", b"a,label\n1,\xff\n", ["--column", "label"], "--encoding"),
        ("d.csv", b"a,label\n1,x\n", ["--column", "3", "--no-header"], "number from 1 to 2"),
        ("d.csv", b"a,label\n1,x\n", ["--column", "label", "--encoding", "klingon"], "no such encoding"),
        ("d.csv", b"a,label\n1,x\n", ["--column", "label", "--delimiter", "ab"], "one ASCII character"),
        ("d.csv.gz", b"not gzip", ["--column", "label"], "d.csv.gz"),
        ("d.csv.gz", gzip.compress(b"a,label\n1,x\n" * 999, mtime=0)[:40], ["--column", "label"], "d.csv.gz"),
        ("d.jsonl", b'{"label": 1}\n{"label": \n', ["--column", "label"], "line 2"),
        ("d.jsonl", b'{"label": 1}\n{"lable": 2}\n', ["--column", "label"], "line 2: no key 'label'"),
        ("d.jsonl", b'{"label": {"a": 1}}\n', ["--column", "label"], "an object, not a label"),
        ("d.jsonl", b'{"label": 1}\n', [], "keys are 'label'"),
        ("d.jsonl", b'{"label": ' + b"9" * 5000 + b"}\n", ["--column", "label"], "line 1"),
        ("d.jsonl", b"[1]\n", ["--column", "label"], "not an object"),
        ("d.jsonl", b'{"label":' + b"[" * 100_000 + b"\n", ["--column", "label"], "line 1"),
    ],
)
def test_broken_files_name_the_line(
    name: str, data: bytes, options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    assert remap(tmp_path / name, *options, "-o", tmp_path / f"out-{name}") == 2
    assert says in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_several_ways_to_write_a_class_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_bytes(b"label\n1\n1.0\n2\n")
    assert remap(tmp_path / "d.csv", "--column", "label", "--dry-run") == 0
    assert "class 1 is written in several ways ('1.0', '1')" in capsys.readouterr().out
    (tmp_path / "d.jsonl").write_bytes(b'{"label": "\\u00e9"}\n{"label": "\xc3\xa9"}\n')
    assert remap(tmp_path / "d.jsonl", "--column", "label", "--dry-run") == 0
    assert "is written in several ways" in capsys.readouterr().out


def test_missing_comes_back_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--column", "label", "--missing", "ignore_index")
    for number, data in enumerate([b"a,label\n1,4\n2,\n", b"a,label\n1,4\n2,NaN\n", b"a,label\n1,4\n2,-100\n"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "d.csv").write_bytes(data)
        assert remap(folder / "d.csv", *options, "-o", folder / "o.csv") == 0
        assert (folder / "o.csv").read_bytes() == b"a,label\n1,0\n2,-100\n"
        assert remap(folder / "o.csv", "--column", "label", "--inverse", "-o", folder / "b.csv") == 0
        assert (folder / "b.csv").read_bytes() == data
    capsys.readouterr()
    (tmp_path / "d.csv").write_bytes(b"a,label\n1,4\n2,NaN\n3,\n4,-100\n")
    assert remap(tmp_path / "d.csv", *options, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "missing values are written in several ways ('NaN', '')" in out
    assert "-100 and missing values both occur" in out


def test_missing_and_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_bytes(b"a,label\n1,4\n2,\n3,nan\n4,9\n")
    assert remap(tmp_path / "d.csv", "--column", "label", "-o", tmp_path / "o.csv") == 1
    err = capsys.readouterr().err
    assert "2 of 4 elements are missing" in err
    assert "row 2 (line 3)" in err
    assert remap(tmp_path / "d.csv", "--column", "label", "-o", tmp_path / "o.csv", "--missing", "ignore_index") == 0
    assert (tmp_path / "o.csv").read_bytes() == b"a,label\n1,0\n2,-100\n3,-100\n4,1\n"
    (tmp_path / "classes.txt").write_text("9\n")
    options = ["--column", "label", "--classes", tmp_path / "classes.txt", "--missing", "class"]
    assert remap(tmp_path / "d.csv", "-o", tmp_path / "p.csv", *options, "--unknown", "drop") == 0
    assert (tmp_path / "p.csv").read_bytes() == b"a,label\n2,1\n3,1\n4,0\n"
    assert remap(tmp_path / "d.csv", "-o", tmp_path / "q.csv", *options, "--unknown", "other") == 0
    assert (tmp_path / "q.csv").read_bytes() == b"a,label\n1,2\n2,1\n3,1\n4,0\n"
    (tmp_path / "d.jsonl").write_bytes(b'{"label": null}\n\n{"label": "x"}\n{"label": "y"}\n')
    (tmp_path / "classes.txt").write_text("y\n")
    assert remap(tmp_path / "d.jsonl", "-o", tmp_path / "o.jsonl", *options, "--unknown", "drop") == 0
    assert (tmp_path / "o.jsonl").read_bytes() == b'{"label": 1}\n\n{"label": 0}\n'


def test_too_many_labels_to_be_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("preassert.remap.recode.LABELS_LIMIT", 10)
    (tmp_path / "d.csv").write_text("id\n" + "".join(f"text {i}\n" for i in range(11)))
    assert remap(tmp_path / "d.csv", "--column", "id", "--dry-run") == 2
    assert "is this the column of the labels?" in capsys.readouterr().err
