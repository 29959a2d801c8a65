"""``preassert demo`` tells its story to the end, and every step says what the story needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preassert.cli import demo
from preassert.cli import main as command_line

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the simulated GPU is POSIX only")


@pytest.mark.slow
def test_the_story(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "preassert", "demo", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    parts = [done.stdout.split(step.title)[1].partition("\n\n  $ ")[2] for step in demo.STEPS]
    parts = [part.partition("\n\n")[0] for part in parts[:3]] + parts[3:]
    plain, explained, guarded, checked, fixed, again = parts
    assert "CUDA error: device-side assert triggered" in plain
    assert "in train_step\n      return loss.item()" in plain  # the wrong line, as on a GPU
    assert "target-out-of-range" in explained
    assert "train.py:21 in train_step: loss = criterion(model(x), y)" in guarded
    assert "dataset indices" in guarded
    assert "labels start at 1" in guarded
    assert "180 of 1,797 rows" in checked
    assert "1,797 labels" in fixed
    assert "epoch 4: loss 0." in again
    assert {"digits.csv", "fixed.csv", "labels.json", "train.py", "train.log"} <= {path.name for path in folder.iterdir()}


def test_a_step_that_goes_wrong_ends_the_story(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "STEPS", (demo.Step("1. Fails", ("python", "-c", "raise SystemExit(9)"), (0,)),))
    assert demo.main([]) == 1
    assert "ended with 9, not 0" in capsys.readouterr().err


def test_long_output_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    step = demo.Step("1. Talks", ("python", "-c", r"print('\x1b[31m'); print('a\n' * 9)"), (0,), shown=3)
    monkeypatch.setattr(demo, "STEPS", (step,))
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    assert "... and 7 lines" in out
    assert "\x1b" not in out


def test_the_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["demo", "--folder", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert command_line(["demo"]) == 3
    assert "scikit-learn's digits" in capsys.readouterr().err
