"""Plain IPython in a terminal: text, no HTML; and a Python without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def ipython(folder: Path, *cells: str) -> str:
    """What a terminal shows for these cells, standard error included, without colours."""
    script = "\n".join(f"get_ipython().run_cell({cell!r}, store_history=True);" for cell in cells)
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", "--colors=NoColor"]
    environment = {**os.environ, "IPYTHONDIR": str(folder), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    environment.pop("PREASSERT_RUN", None)
    done = subprocess.run(
        command, input=f"{script}\n", env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    return ipython(
        tmp_path_factory.mktemp("ipython"),
        "%load_ext preassert",
        "import torch, torch.nn.functional as F",
        "F.cross_entropy(torch.zeros(4, 5), torch.tensor([0, 1, 2, 5]))",
        "print('MARK')",
        "%tb",
        "print('MARK')",
        "raise RuntimeError('CUDA error: device-side assert triggered')",
        "print('MARK')",
        "raise RuntimeError('CUDA error: device-side assert triggered')",
        "print('MARK')",
        "%preassert restart",
        "print('MARK')",
        "%preassert status",
    )


@pytest.mark.parametrize(
    ("part", "present", "absent"),
    [
        (0, ["target[3] = 5", "are unharmed", "(%tb shows every frame)"], ["<div", "---->"]),
        (1, ["---->", "F.cross_entropy(torch.zeros(4, 5)"], ["(%tb shows"]),
        (2, ["device-assert-unlocated", "is dead since this cell", "%preassert restart"], ["<div", "---->"]),
        (3, ["The CUDA context is dead since cell [", "This cell is not at fault"], ["Most likely causes"]),
        (4, ["this is not a kernel of ipykernel", "%preassert save"], ["---->"]),
        (5, ["guard: on, mode auto", "dead since cell ["], ["<ul>"]),
    ],
)
def test_a_terminal_gets_text(shown: str, part: int, present: list[str], absent: list[str]) -> None:
    parts = shown.split("MARK\n")
    assert len(parts) == 6, shown
    assert [words for words in present if words not in parts[part]] == [], parts[part]
    assert [words for words in absent if words in parts[part]] == [], parts[part]


def test_without_torch_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "it.log").write_text("RuntimeError: CUDA error: device-side assert triggered\n")
    shown = ipython(
        tmp_path,
        "import sys; sys.modules['torch'] = None",  # what an absent module looks like
        "%load_ext preassert",
        "%preassert explain it.log",
        "1 / 0",
        "%preassert status",
        "%%preassert\n1",
    )
    assert shown.count("torch is not installed here, so cells are not guarded") >= 2
    assert "device-assert-unlocated" in shown
    assert "ZeroDivisionError" in shown
    assert "could not explain" not in shown


def test_a_context_that_died_before_is_noticed(tmp_path: Path) -> None:
    shown = ipython(tmp_path, "raise RuntimeError('CUDA error: device-side assert triggered')", "%load_ext preassert")
    assert "the CUDA context is dead since before preassert was loaded (device-assert-unlocated)" in shown
