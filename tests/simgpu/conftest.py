"""The simulated GPU must be there before the first backward pass of a process, so its tests run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python code (or, with ``command``, anything) in a new process; stdout and stderr as text."""

    def call(code: str = "", *, command: list[str] | None = None, name: str = "script.py", **environment: str) -> object:
        script = tmp_path / name
        script.write_text(code, encoding="utf-8")
        words = [sys.executable, str(script)] if command is None else [word.replace("SCRIPT", str(script)) for word in command]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "PREASSERT_"))}
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=tmp_path,
            env={**clean, "OMP_NUM_THREADS": "1", **environment},
        )

    return call  # type: ignore[return-value]
