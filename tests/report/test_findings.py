"""Findings as text, JSON, SARIF and HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from preassert.model import Finding, Where
from preassert.report.findings import place, summary, to_html, to_json, to_sarif, to_text

BAD = Finding(
    hazard="target-out-of-range",
    severity="error",
    where=Where(file="a.csv", row=2, rows=(2,), line=3, lines=(3,), column="label"),
    message="label: 1 of 3 rows is outside 0..4: 5",
    value=5,
    values=(5, None, float("inf")),
    valid="0..4",
    count=1,
    fix="preassert remap a.csv",
)
BROKEN = Finding(hazard=None, severity="error", where=Where(file="b.parquet"), message="cannot be read: truncated")
NOTE = Finding(hazard=None, severity="info", where=Where(file="a.csv"), message="1 class never occurs: 2")
HOSTILE = Finding(
    hazard=None, severity="warning", where=Where(file="\x1b[2J<img src=x>"), message="\u202eevil\x07 <script>alert(1)</script>"
)
SCANNED: dict[str, Any] = {
    "files": 2,
    "rows": 3,
    "columns": {
        "label": {
            "rows": 3,
            "min": 0,
            "max": 5,
            "missing": 0,
            "offending": 1,
            "valid": "0..4",
            "histogram": [[0, 1], [1, 1], [5, 1]],
        },
        "<x>": {"histogram": [[f"class {at}", at + 1] for at in range(500)]},
        "wide": {"rows": 3, "min": 0, "max": 5, "missing": 0, "offending": 0, "histogram": None},
    },
}
ALL = [BAD, BROKEN, NOTE, HOSTILE]


def test_json() -> None:
    document = json.loads(to_json(ALL, SCANNED))
    assert document["schema"] == "preassert.check/1"
    first = document["findings"][0]
    assert first["where"] == {"file": "a.csv", "row": 2, "rows": [2], "line": 3, "lines": [3], "column": "label"}
    assert first["values"] == [5, None, "inf"]
    assert {"hazard", "severity", "where", "value", "values", "valid", "count", "message", "fix"} <= set(first)
    assert document["findings"][1]["hazard"] is None
    assert document["scanned"]["rows"] == 3


def test_text() -> None:
    text = to_text(ALL, SCANNED)
    assert text.index("target-out-of-range") < text.index("bad input") < text.index("note ")
    assert "fix: preassert remap a.csv" in text
    assert "label      3    0    5        0        1        3" in text
    assert text.endswith("2 files, 3 rows checked: 2 errors, 1 warning")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_many_findings_are_cut() -> None:
    text = to_text([BAD] * 200, {})
    assert text.count("target-out-of-range") == 50
    assert "150 more findings" in text


@pytest.mark.parametrize(
    ("findings", "expected"),
    [([], "clean"), ([NOTE], "clean"), ([HOSTILE], "clean, 1 warning"), ([BAD], "1 error"), ([BAD, BROKEN], "2 errors")],
)
def test_summary(findings: list[Finding], expected: str) -> None:
    assert summary(findings, {"files": 1}) == f"1 file checked: {expected}"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Where(file="a"), "a"),
        (Where(file="a", row=3), "a (row 3)"),
        (Where(file="a", row=3, line=3), "a:3"),
        (Where(file="a", row=3, line=5, column="x"), "a:5 (row 3, column x)"),
    ],
)
def test_place(where: Where, expected: str) -> None:
    assert place(Finding(hazard=None, severity="error", where=where, message="")) == expected


def test_sarif() -> None:
    run = json.loads(to_sarif(ALL, "1.2.3", {"target-out-of-range": "a class target out of range"}))["runs"][0]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "a class target out of range"
    assert {result["ruleId"] for result in run["results"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert [result["level"] for result in run["results"]] == ["error", "error", "note", "warning"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    odd = Finding(hazard=None, severity="error", where=Where(file="my data/50%.csv"), message="")
    location = json.loads(to_sarif([odd], "1", {}))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "my%20data/50%25.csv"
    assert "region" not in run["results"][1]["locations"][0]["physicalLocation"]


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html() -> None:
    text = to_html(ALL, SCANNED)
    page = _Page(text)
    assert page.open == []
    assert page.tags.count("svg") == 2
    assert page.tags.count("rect") <= 3 + 60
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "\x1b" not in text
    assert "class=outside" in text
    assert "http" not in text  # nothing is loaded from elsewhere


def test_html_without_findings() -> None:
    assert "No findings" in to_html([], {})
