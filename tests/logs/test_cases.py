"""The shared logs: verdict, restart, operator, argument, line, rank, count, releases and mentions."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preassert.logs import explain_files, explain_text
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


def each_line(prefix: str, suffix: str = "") -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}{suffix}\n" for line in text.split("\n"))


def hard_wrapped(width: int) -> Callable[[str], str]:
    return lambda text: "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, max(len(line), 1), width))


def word_wrapped(text: str) -> str:
    wrap = textwrap.TextWrapper(90, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap.fill(line) for line in text.split("\n"))


MANGLES: dict[str, Callable[[str], str]] = {
    "quoted": each_line("> "),
    "logged": each_line("2025-03-02 09:00:01,123 - worker - ERROR - "),
    "ranked": each_line("[rank2]:"),
    "boxed": each_line("│ ", " │"),
    "html": lambda text: html.escape(text, quote=False),
    "records": lambda text: "".join(json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in text.split("\n")),
    "repr": lambda text: repr(text) + "\n",
    "no_break_spaces": lambda text: text.replace(" ", "\xa0"),
    "numbered": lambda text: "".join(f"{number:6d}\t{line}\n" for number, line in enumerate(text.split("\n"), 1)),
    "wrapped_80": hard_wrapped(80),
    "wrapped_100": hard_wrapped(100),
    "word_wrapped": word_wrapped,
    "no_backquotes": lambda text: text.replace("`", ""),
    "folded": lambda text: " ".join(line.strip() for line in text.split("\n")),
}


@pytest.mark.parametrize("mangle", MANGLES)
def test_mangled_logs_keep_their_verdict(mangle: str) -> None:
    wrong = []
    for case in VERDICTS:
        if case["file"].endswith(".ipynb"):
            continue
        text = (LOGS / case["file"]).read_bytes().decode("utf-8", "surrogateescape")
        report = explain_text(MANGLES[mangle](text))
        if report.verdict not in case["accept"]:
            wrong.append((case["file"], report.verdict))
        if case["assert_lines"] is not None and report.extra["assert_lines"] != case["assert_lines"]:
            wrong.append((case["file"], report.extra["assert_lines"]))
    assert wrong == []


TEXTS = {
    case["file"]: (LOGS / case["file"]).read_bytes().decode("utf-8", "surrogateescape")
    for case in VERDICTS
    if not case["file"].endswith(".ipynb")
}
HEALTHY = [case["file"] for case in VERDICTS if case["accept"] == ["clean"] and case["file"] in TEXTS]
FIRST_LINES = [
    "model:",
    "  0%|          | 0/100 [00:00<?, ?it/s]",
    "INFO:root:epoch 1 operator():",
    "[INFO] trainer.py:120: epoch 3",
    "<string>:1: train:",
    "Using weights/last.pt",
]


@pytest.mark.parametrize("before", [*HEALTHY, *FIRST_LINES])
def test_what_was_printed_before_moves_only_the_line(before: str) -> None:
    wrong = []
    above = TEXTS.get(before, before).rstrip("\n")
    for case in VERDICTS:
        if case["file"] in TEXTS:
            report = explain_text(f"{above}\n{TEXTS[case['file']]}")
            line = case["first_line"] and case["first_line"] + above.count("\n") + 1
            if report.verdict not in case["accept"] or (line and report.cause is not None and report.cause.line != line):
                wrong.append((case["file"], report.verdict, report.cause and report.cause.line, line))
    assert wrong == []


@pytest.mark.parametrize("after", HEALTHY)
def test_a_healthy_run_after_a_failure_changes_nothing(after: str) -> None:
    wrong = []
    for case in VERDICTS:
        if case["file"] in TEXTS:
            report = explain_text(TEXTS[case["file"]].rstrip("\n") + "\n" + TEXTS[after])
            if report.verdict not in case["accept"]:
                wrong.append((case["file"], report.verdict))
    assert wrong == []
