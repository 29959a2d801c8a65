"""``preassert doctor``: says what is active, and fails when any interception is sabotaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from preassert.cli import main
from preassert.guard import compiled, intercept, ledger, selftest, verdict


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", "--device", "cpu", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_guard_fires_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = doctor(capsys, "--no-compile")
    assert code == 0, report["problems"]
    assert report["problems"] == []
    modes = {entry["mode"]: entry for entry in report["self_test"]}
    assert modes["immediate"]["planted"] == modes["deferred"]["planted"] > 70
    assert modes["compiled"]["skipped"] == "left out by --no-compile"
    environment = report["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["interception"] == ("kernels" if intercept.can_replace_kernels() else "mode")
    assert environment["operators"] > 50


def test_text_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-compile", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "interception:" in out
    assert out.rstrip().endswith("The guard fires.")


@pytest.mark.slow
@pytest.mark.skipif(selftest.compiled_unavailable() is not None, reason="no compiler")
def test_compiled_mode(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = doctor(capsys)
    assert code == 0, report["problems"]
    assert {entry["mode"]: entry["planted"] for entry in report["self_test"]}["compiled"] > 60


def _no_kernel_for(operator: str) -> Any:
    register = intercept.Installation._register

    def sabotaged(self: Any, row: Any, overload: Any, key: str) -> None:
        if row.operator != operator:
            register(self, row, overload, key)

    return sabotaged


def _always_fine(*arguments: Any) -> bool:
    return True


SABOTAGE = {
    "one kernel is not replaced": (intercept.Installation, "_register", _no_kernel_for("aten::take_along_dim"), "take_along_dim"),
    "index kernels check nothing": (intercept, "_index_kernel", lambda *arguments: arguments[3], "F.cross_entropy"),
    "no other value is ever bad": (intercept, "holds", _always_fine, "multinomial"),
    "the violation is swallowed": (verdict, "judge", lambda fault, options: None, "tensor[index]"),
    "sanitised and silent": (ledger.Ledger, "add", lambda self, violation, options: None, "cpu deferred"),
    "nothing is settled": (ledger.Ledger, "settle", lambda self, options: None, "cpu deferred"),
}


@pytest.mark.skipif(not intercept.can_replace_kernels(), reason="sabotages kernels")
@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_found(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    home, attribute, replacement, evidence = SABOTAGE[name]
    monkeypatch.setattr(home, attribute, replacement)
    code, report = doctor(capsys, "--no-compile")
    assert code == 1
    assert any(evidence in problem for problem in report["problems"]), report["problems"]


@pytest.mark.slow
@pytest.mark.skipif(selftest.compiled_unavailable() is not None, reason="no compiler")
def test_sabotage_of_compiled_code_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compiled, "insert", lambda *arguments: None)
    code, report = doctor(capsys)
    assert code == 1
    assert any("compiled" in problem for problem in report["problems"])


MODEL = """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, ids, mask, labels):
        return nn.functional.cross_entropy(self.out(self.words(ids)) * mask[:, None], labels)

def tagger():
    return Tagger(), {"ids": torch.tensor([1, 19]), "mask": torch.tensor([1, 0]), "labels": torch.tensor([0, 2])}

def broken():
    return Tagger(), {"ids": torch.tensor([1, 20]), "mask": torch.tensor([1, 0]), "labels": torch.tensor([0, 2])}

number = 3
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "doctored_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "doctored_model"


def test_a_model_of_the_users(model_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = doctor(capsys, "--no-compile", "--model", f"{model_file}:tagger")
    assert code == 0, report["problems"]
    entry = report["self_test"][-1]
    assert (entry["device"], entry["planted"]) == ("model", 4)  # -1 and a huge one in ids and in labels; a mask indexes nothing


def test_a_model_that_is_already_violated(model_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = doctor(capsys, "--no-compile", "--model", f"{model_file}:broken")
    assert code == 1
    assert any("nothing planted" in problem for problem in report["problems"])


@pytest.mark.parametrize("target", ["doctored_model", "doctored_model:absent", "no_such_module_here:f", "doctored_model:number"])
def test_bad_targets_are_usage_errors(model_file: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-compile", "--device", "cpu", "--model", target]) == 2
    assert target.partition(":")[0] in capsys.readouterr().err
