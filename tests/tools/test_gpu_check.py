"""The GPU script works where there is no GPU, and never passes that off as a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, env=environment, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run the real thing")
def test_without_a_gpu_nothing_is_run_and_nothing_claimed(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out.json"))
    assert done.returncode == 3
    assert "Nothing was run" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_on_the_cpu_it_shows_its_own_workings(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sections = ["families", "deferred-training", "no-synchronisation", "graph-capture", "label-map", "overhead"]
    done = run("--device", "cpu", "--small", "--out", str(out), *[word for name in sections for word in ("--only", name)])
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert "not that a claim holds" in report["environment"]["device"]
    assert list(report["sections"]) == sections
    needs_cuda = {"no-synchronisation", "graph-capture"}
    assert {name: section["ok"] for name, section in report["sections"].items()} == {
        name: None if name in needs_cuda else True for name in sections
    }
    assert report["sections"]["families"]["deferred"]["planted"] > 70
    assert report["sections"]["overhead"]["gpt2-small"]["ratio"]["deferred"] > 0


def test_a_section_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_check

    def broken(device: str, small: bool, clock: object) -> dict[str, object]:
        raise ValueError("no such kernel")

    monkeypatch.setitem(gpu_check.SECTIONS, "families", broken)
    out = tmp_path / "out.json"
    assert gpu_check.main(["--device", "cpu", "--small", "--only", "families", "--out", str(out)]) == 1
    section = json.loads(out.read_text())["sections"]["families"]
    assert section["ok"] is False
    assert section["error"] == "ValueError: no such kernel"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
