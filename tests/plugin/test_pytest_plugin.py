"""The pytest plugin, on sessions of its own; a simulated GPU stands in for a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import preassert.simgpu
preassert.simgpu.activate(notice=False)
"""

KILLS = """
import torch
import torch.nn.functional as F

def test_first():
    assert F.embedding(torch.tensor([1], device="cuda"), torch.ones(4, 2, device="cuda")).sum().item() == 2

def test_kills():
    loss = F.cross_entropy(torch.ones(2, 3, device="cuda"), torch.tensor([0, 3], device="cuda"))
    loss.item()

def test_gpu_after():
    assert torch.ones(3, device="cuda").sum().item() == 3

def test_cpu_after():
    assert torch.ones(3).sum() == 3

def test_gpu_after_that_is_wrong():
    assert torch.ones(3, device="cuda").sum().item() == 4
"""


def session(tmp_path: Path, files: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PREASSERT_RUN"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsfE", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)


def outcomes(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stdout.splitlines() if " in " in line and ("passed" in line or "failed" in line)]
    assert lines, done.stdout + done.stderr
    return lines[-1].strip("= ").rpartition(" in ")[0]


def test_without_the_option_nothing_is_touched(tmp_path: Path) -> None:
    done = session(tmp_path, {"test_it.py": "import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n"})
    assert outcomes(done) == "1 passed"


def test_a_bad_value_fails_its_own_test_only(tmp_path: Path) -> None:
    done = session(tmp_path, {"conftest.py": CONFTEST, "test_it.py": KILLS}, "--preassert")
    assert outcomes(done) == "2 failed, 3 passed"
    assert "preassert.Violation: target-out-of-range" in done.stdout
    assert "test_gpu_after_that_is_wrong" in done.stdout


def test_deferred_violations_belong_to_their_test(tmp_path: Path) -> None:
    text = """
import torch
import torch.nn.functional as F

def test_bad():
    F.embedding(torch.tensor([9]), torch.ones(4, 2))

def test_good():
    F.embedding(torch.tensor([3]), torch.ones(4, 2))
"""
    done = session(tmp_path, {"test_it.py": text}, "--preassert", "--preassert-mode=deferred")
    assert outcomes(done) == "1 failed, 1 passed"
    assert "FAILED test_it.py::test_bad" in done.stdout


def test_after_a_dead_context_gpu_tests_are_skipped_with_one_reason(tmp_path: Path) -> None:
    """The guard is told to leave the loss alone, so the kernel really asserts."""
    files = {"conftest.py": CONFTEST + "import preassert.guard as g\ng_install = g.install\n" + SKIPS_LOSSES, "test_it.py": KILLS}
    done = session(tmp_path, files, "--preassert")
    assert outcomes(done) == "1 failed, 2 passed, 2 skipped"
    reasons = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("dead since test_it.py::test_kills" in line for line in reasons)
    assert "This test killed the CUDA context" in done.stdout


SKIPS_LOSSES = """
def install(**settings):
    g_install(**{**settings, "skip": ["target-out-of-range"]})
g.install = install
"""


def test_isolate_goes_on_in_a_fresh_process(tmp_path: Path) -> None:
    done = session(tmp_path, {"conftest.py": CONFTEST, "test_it.py": KILLS}, "--preassert-isolate", "-k", "test")
    assert outcomes(done) == "2 failed, 3 passed"
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["FAILED test_it.py::test_kills", "FAILED test_it.py::test_gpu_after_that_is_wrong"]


def test_isolate_survives_a_second_killer(tmp_path: Path) -> None:
    again = KILLS + "\n\ntest_kills_again = test_kills\n\ndef test_last():\n    assert torch.ones(1, device='cuda').item() == 1\n"
    done = session(tmp_path, {"conftest.py": CONFTEST, "test_it.py": again}, "--preassert-isolate")
    assert outcomes(done) == "3 failed, 4 passed"


@pytest.mark.parametrize(
    "text", ["raise RuntimeError('no such file')", "raise ValueError('CUDA error: device-side assert triggered')"]
)
def test_other_errors_kill_nothing(tmp_path: Path, text: str) -> None:
    done = session(tmp_path, {"test_it.py": f"def test_a():\n    {text}\n\ndef test_b():\n    {text}\n"}, "--preassert")
    assert outcomes(done) == "2 failed"
