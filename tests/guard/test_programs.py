"""Every program of ``tests/cases/programs`` under ``preassert run`` ends as its line in ``programs.jsonl`` says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "cases" / "programs"
PROGRAMS: list[dict[str, Any]] = [
    json.loads(line) for line in (FOLDER / "programs.jsonl").read_text(encoding="utf-8").splitlines()
]
FAULTY = [program for program in PROGRAMS if not program["clean"]]
CLEAN = [program for program in PROGRAMS if program["clean"]]


def name(program: dict[str, Any]) -> str:
    return str(program["program"]).removesuffix(".py")


def marked(program: dict[str, Any]) -> Any:
    marks = []
    if "a C++ compiler" in program["needs"]:
        no_compiler = not any(shutil.which(compiler) for compiler in ("g++", "c++", "clang++"))
        marks += [pytest.mark.slow, pytest.mark.skipif(no_compiler, reason="no C++ compiler")]
    return pytest.param(program, id=name(program), marks=marks)


def start(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("program", [marked(program) for program in FAULTY])
def test_a_faulty_program_stops_at_its_line(program: dict[str, Any], tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    done = start("-m", "preassert", "run", "--json", str(report), program["program"], *program["args"])
    assert done.returncode == 65, done.stderr
    text = done.stderr[done.stderr.index("preassert.Violation: ") :]
    violation = json.loads(report.read_text(encoding="utf-8"))

    assert violation["hazard"] in program["hazard"]
    assert text.startswith(f"preassert.Violation: {violation['hazard']}\n")
    lines = program.get("line_any") or [program["line"]]
    assert (Path(violation["site"]["file"]).name, violation["site"]["line"]) in [(program["file"], line) for line in lines]
    assert f"{program['file']}:{violation['site']['line']} in " in text
    if violation["site"]["line"] == program["line"]:
        assert violation["site"]["source"] == program["source"]
    assert violation["argument"] in program["argument"]
    assert_values([element["value"] for element in violation["elements"]], program["values"])
    assert_range(violation, program["valid"])
    if program["module"] is not None:
        allowed = program["module"] if isinstance(program["module"], list) else [program["module"]]
        assert violation["module"] in allowed
        assert f"module: {violation['module']}" in text
    if program["dataset_index"] is not None:
        assert violation["sample"]["indices"] == program["dataset_index"]
        shown = re.search(r"dataset ind(?:ex|ices) ([\d, ]+)", text)
        assert shown is not None
        assert [int(number) for number in shown[1].split(",")] == program["dataset_index"]

    assert "preassert/guard" not in done.stderr, "a frame of ours is in the traceback"


def assert_values(found: list[Any], expected: list[Any]) -> None:
    """Some of the expected ones, and no others."""
    assert found
    for value in found:
        if isinstance(value, str) or value in expected:
            assert value in expected
        else:
            assert any(not isinstance(other, str) and abs(value - other) <= 1e-3 for other in expected), (value, expected)


def assert_range(violation: dict[str, Any], expected: list[Any] | None) -> None:
    if expected is not None:
        pairs = expected if isinstance(expected[0], list) else [expected]
        assert [violation["lowest"], violation["highest"]] in pairs


@pytest.mark.parametrize("program", [marked(program) for program in CLEAN])
def test_a_clean_program_is_left_alone(program: dict[str, Any]) -> None:
    plain = start(program["program"], *program["args"])
    guarded = start("-m", "preassert", "run", program["program"], *program["args"])
    assert guarded.returncode == plain.returncode == 0, guarded.stderr
    assert guarded.stdout == plain.stdout
    assert guarded.stderr == plain.stderr


def test_there_are_programs_of_both_kinds() -> None:
    assert len(FAULTY) >= 20
    assert len(CLEAN) >= 5
