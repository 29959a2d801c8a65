"""``preassert hazards``: the list, one explanation, finding by text, JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from preassert import hazards
from preassert.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_list(capsys: Capture) -> None:
    assert main(["hazards"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.match(r"[a-z-]+  +\S", line)]
    assert [row.split()[0] for row in rows] == list(hazards.slugs())
    starts = {len(row) - len(re.sub(r"^\S+ +", "", row)) for row in rows}
    assert len(starts) == 1  # aligned
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("columns", ["10", "50", "80", "500"])
def test_no_line_is_wider_than_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    widest = max(40, min(100, int(columns)))
    assert main(["hazards"]) == 0
    assert all(len(line) <= widest for line in capsys.readouterr().out.splitlines())
    assert main(["hazards", "target-out-of-range"]) == 0
    prose = capsys.readouterr().out.partition("How to make sure")[0]
    assert all(len(line) <= widest for line in prose.splitlines())


@pytest.mark.parametrize("slug", hazards.slugs())
def test_one(capsys: Capture, slug: str) -> None:
    assert main(["hazards", slug]) == 0
    out = capsys.readouterr().out
    hazard = hazards.get(slug)
    flat = " ".join(out.split())
    assert flat.startswith(f"{slug}: {hazard.title} What happened")
    for text in (*hazard.meaning.split("\n\n"), *hazard.causes, *hazard.fixes, hazard.not_this or ""):
        assert " ".join(text.split()) in flat
    for block in hazard.confirm:
        assert all(f"  {line}" in out for line in block.splitlines() if line)
    assert all(source in out for source in hazard.sources)
    assert "\x1b" not in out
    out.encode("ascii")  # a console that knows nothing else can print it


FOUND = {
    "srcIndex < srcSelectDimSize": "embedding-index-out-of-range",
    "IndexError: Target 13 is out of bounds.": "target-out-of-range",
    "RuntimeError: CUDA error: device-side assert triggered": "device-assert-unlocated",
}


@pytest.mark.parametrize(("text", "slug"), FOUND.items(), ids=FOUND.values())
def test_found_by_text(capsys: Capture, text: str, slug: str) -> None:
    assert main(["hazards", text]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{slug}: ")
    assert "Found because" in out


def test_found_by_unquoted_words(capsys: Capture) -> None:
    assert main(["hazards", "index", "out", "of", "range", "in", "self"]) == 0
    assert capsys.readouterr().out.startswith("embedding-index-out-of-range: ")


def test_several_found(capsys: Capture) -> None:
    assert main(["hazards", "index >= 0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 hazards fit 'index >= 0':")
    assert "invalid-pooling-index   FractionalMaxPool2d.cu prints `index >= 0`" in out
    assert "kernel-internal-assert  Loss.cu prints `index >= 0`" in out


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("target-out-of-rnge", "did you mean target-out-of-range"),
        ("frobnicate", "`preassert hazards` lists all"),
        ("bad \x1b[31m text\nhere", "\\x1b[31m text"),
    ],
)
def test_unknown(capsys: Capture, what: str, says: str) -> None:
    assert main(["hazards", what]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "\x1b" not in captured.err


def test_unknown_option(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["hazards", "--jsn"])
    assert caught.value.code == 2
    assert "--jsn" in capsys.readouterr().err


def test_json_list(capsys: Capture) -> None:
    assert main(["hazards", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "preassert.hazards/1"
    assert [entry["slug"] for entry in content["hazards"]] == list(hazards.slugs())
    assert set(content["hazards"][0]) == {"slug", "title", "restart"}


def test_json_one(capsys: Capture) -> None:
    assert main(["hazards", "ctc-target-invalid", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "preassert.hazards/1"
    (entry,) = content["hazards"]
    assert entry.pop("because") == "its slug"
    assert entry == hazards.raw()["ctc-target-invalid"]


def test_json_several(capsys: Capture) -> None:
    assert main(["hazards", "--json", "index >= 0"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [entry["slug"] for entry in content["hazards"]] == ["invalid-pooling-index", "kernel-internal-assert"]


@pytest.mark.parametrize(("no_color", "term", "bold"), [(None, "xterm", True), ("1", "xterm", False), (None, "dumb", False)])
def test_bold_only_on_a_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, no_color: str | None, term: str, bold: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert main(["hazards"]) == 0
    assert ("\x1b[1m" in capsys.readouterr().out) is bold


def test_help_of_the_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["hazards", "--help"])
    assert caught.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_the_catalogue_ships_with_the_package() -> None:
    assert (Path(hazards.__file__).parent / "catalogue.json").is_file()
