"""Every case of ``tests/cases/data`` gives exactly the findings it states: none missing, none extra."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from preassert.cli import main

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
_spec = importlib.util.spec_from_file_location("preassert_compare", Path(__file__).with_name("compare.py"))
assert _spec is not None
assert _spec.loader is not None
compare = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare)

ALL = [json.loads(line) for line in (CASES / "cases.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", ALL, ids=[case["case"] for case in ALL])
def test_case(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(CASES / case["case"])
    code = main([*case["argv"], "--json"])
    out, err = capsys.readouterr()
    accepted = case["exit"] if isinstance(case["exit"], list) else [case["exit"]]
    assert code in accepted, out + err
    for text in case.get("mentions", []):
        assert text in out + err
    if code != 2:
        assert compare.differences(case, json.loads(out)) == [], out


def _report(**changes: Any) -> dict[str, Any]:
    where = {"file": "a.csv", "rows": [3], "lines": [4], "column": "label"}
    finding = {"hazard": "target-out-of-range", "severity": "error", "where": where, "values": [5], "count": 1}
    return {"findings": [{**finding, **changes}]}


EXPECTED = {
    "findings": [
        {
            "hazard": "target-out-of-range",
            "file": "a.csv",
            "rows": [3],
            "lines": [4],
            "values": [5],
            "count": 1,
            "column": "label",
        }
    ]
}


@pytest.mark.parametrize(
    "report",
    [
        {"findings": []},
        _report(values=[5, 6]),
        _report(count=2),
        _report(hazard="index-out-of-range"),
        _report(severity="warning"),
        _report(where={"file": "b.csv", "rows": [3], "lines": [4], "column": "label"}),
        _report(where={"file": "a.csv", "rows": [2], "lines": [4], "column": "label"}),
        {"findings": _report()["findings"] + _report(hazard="gather-index-out-of-range")["findings"]},
    ],
)
def test_the_comparison_can_fail(report: dict[str, Any]) -> None:
    assert compare.differences(EXPECTED, report)


def test_the_comparison_can_succeed() -> None:
    assert compare.differences(EXPECTED, _report()) == []
