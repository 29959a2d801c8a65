"""Supervised runs of small scripts, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Supervise = Callable[..., "subprocess.CompletedProcess[bytes]"]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what a launcher or an earlier run left in it."""
    strange = ("CUDA_", "PREASSERT_", "SLURM_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "PYTHONFAULTHANDLER")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(strange)}, "OMP_NUM_THREADS": "1", **more}


def command(*options: str, script: str = "train.py") -> list[str]:
    return [sys.executable, "-m", "preassert", "run", "--supervise", *options, script]


@pytest.fixture
def supervise(tmp_path: Path) -> Supervise:
    """Run ``code`` as train.py under ``preassert run --supervise``; stdout and stderr as bytes."""

    def call(code: str, *options: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "train.py").write_text(code, encoding="utf-8")
        return subprocess.run(
            command(*options), input=stdin, capture_output=True, timeout=120, check=False, cwd=tmp_path, env=environment(**more)
        )

    return call
