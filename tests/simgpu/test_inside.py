"""The checks in ``inside/``: one process for each file, one test for each ``check_*`` function."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

INSIDE = Path(__file__).with_name("inside")
FILES = ("surface", "assertions", "training", "operators", "broken")


def checks(file: str) -> list[str]:
    tree = ast.parse((INSIDE / f"{file}.py").read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@functools.cache
def answers(file: str) -> dict[str, str | None]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answers.json")
        command = [sys.executable, str(INSIDE / "runner.py"), str(INSIDE / f"{file}.py"), path]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=400, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert os.path.exists(path), done.stderr[-4000:]
        with open(path, encoding="utf-8") as handle:
            found: dict[str, str | None] = json.load(handle)
    return found


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES if file != "broken" for name in checks(file)])
def test_inside(file: str, name: str) -> None:
    problem = answers(file)[name]
    assert problem is None, problem


def test_a_check_can_fail() -> None:
    assert answers("broken")["check_fails"] is not None
