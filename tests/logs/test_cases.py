"""The shared logs: verdict, restart, operator, argument, line, rank, count, releases and mentions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preassert.logs import explain_files
from preassert.report.diagnosis import to_text

LOGS = Path(__file__).parents[1] / "cases" / "logs"
VERDICTS = [json.loads(line) for line in (LOGS / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()]


def bare(operator: str | None) -> str | None:
    """Without overload name and underscores at the ends, as the cases compare."""
    if operator is None:
        return None
    namespace, _, name = operator.partition("::")
    return f"{namespace}::{name.split('.')[0].strip('_')}"


def minor(releases: list[str]) -> set[str]:
    return {release.rsplit(".", 1)[0] for release in releases}


@pytest.mark.parametrize("case", VERDICTS, ids=[case["file"] for case in VERDICTS])
def test_log(case: dict[str, Any]) -> None:
    report = explain_files([str(LOGS / case["file"])]).to_dict()
    causes = [diagnosis for diagnosis in report["diagnoses"] if diagnosis["role"] == "cause"]
    assert report["verdict"] in case["accept"]
    assert len(causes) == (0 if report["verdict"] == "clean" else 1)
    if case["restart_required"] is not None:
        assert report["restart_required"] is case["restart_required"]
    if case["operator"] is not None:
        assert bare(causes[0]["operator"]) == bare(case["operator"])
    if case["argument"] is not None:
        assert causes[0]["argument"] == case["argument"]
    if case["first_line"] is not None:
        assert causes[0]["line"] == case["first_line"]
    if case["rank"] is not None:
        assert causes[0]["rank"] == case["rank"]
    if case["assert_lines"] is not None:
        assert sum(each["count"] for each in report["diagnoses"] if each["kind"] == "assertion") == case["assert_lines"]
        assert report["assert_lines"] == case["assert_lines"]
    if case["torch_versions"] is not None:
        assert minor(report["torch_versions"]) & minor(case["torch_versions"])
    text = to_text(report).lower()
    for choices in case["must_mention"]:
        assert any(choice in text for choice in choices), choices
    if report["restart_required"]:
        assert "restart: required" in text


def test_there_are_cases() -> None:
    assert len(VERDICTS) > 100
