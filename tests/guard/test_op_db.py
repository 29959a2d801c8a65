"""torch's own operator database: the guard changes no result and catches every error input that is about a value.

A bounded part (a few samples of each operator); ``tools/conformance.py`` runs all of it and keeps the counts in
docs/conformance.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import preassert
from preassert.guard import intercept

TOOL = Path(__file__).resolve().parents[2] / "tools" / "conformance.py"
SAMPLES = 2

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="the tool counts replaced kernels")


@pytest.fixture(scope="module")
def tool() -> Any:
    specification = importlib.util.spec_from_file_location("conformance", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["conformance"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def entry(tool: Any, name: str) -> Any:
    return next(op for op in tool.op_db if op.full_name == name)


@pytest.mark.filterwarnings("ignore")
def test_guard_changes_nothing_and_catches_bad_values(tool: Any) -> None:
    names: Counter[str] = Counter()
    wrong: list[str] = []
    operators = samples = caught = 0
    for one in tool.reaching(tool.op_db, SAMPLES):
        op = one.op
        tally = tool.compare(one)
        tool.try_errors(op, tally)
        names.update(one.rows)
        operators += 1
        samples += tally.samples
        caught += len(tally.caught)
        wrong += [f"{op.full_name}: {line}" for line in (*tally.differences, *tally.missed)]
    assert not wrong
    # so that a database that is empty or out of reach cannot pass
    assert operators >= 60, operators
    assert samples >= 250, samples
    assert caught >= 20, caught
    assert len(names) >= 45, sorted(names)


@pytest.mark.filterwarnings("ignore")
def test_a_changed_result_is_found(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = intercept.make_kernel

    def nudged(row: Any, overload: Any, call: Any, **settings: Any) -> Any:
        kernel = make(row, overload, call, **settings)
        return lambda *args, **kwargs: kernel(*args, **kwargs) + 1 if row.operator == "aten::gather" else kernel(*args, **kwargs)

    (one,) = tool.reaching([entry(tool, "gather")], SAMPLES)
    monkeypatch.setattr(intercept, "make_kernel", nudged)
    tally = tool.compare(one)
    assert any("outputs" in line for line in tally.differences)


@pytest.mark.filterwarnings("ignore")
def test_a_missed_value_is_found(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "is_value_error", lambda op, call: True)
    op, tally = entry(tool, "gather"), tool.Tally()
    tool.try_errors(op, tally)
    assert tally.missed


def test_nothing_stays_behind() -> None:
    before = torch._C._dispatch_dump("aten::gather")
    with preassert.guard(mode="immediate"):
        pass
    assert torch._C._dispatch_dump("aten::gather") == before
