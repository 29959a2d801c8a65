# ruff: noqa: E501 - a printed line stands here as one line
"""``preassert.explain`` and the hook for uncaught exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import preassert

LOGS = Path(__file__).parents[1] / "cases" / "logs"


def test_text_bytes_path_and_exception() -> None:
    log = LOGS / "078-masks-first-image.log"
    for given in (log.read_text(encoding="utf-8"), log.read_bytes(), log):
        found = preassert.explain(given)
        assert (found.verdict, found.restart_required) == ("target-out-of-range", True)
    try:
        raise IndexError("Target 5 is out of bounds.")
    except IndexError as error:
        found = preassert.explain(error)
    assert (found.verdict, found.restart_required) == ("target-out-of-range", False)
    assert str(found).startswith("target-out-of-range:")
    assert repr(found) == "<preassert.Explanation target-out-of-range>"
    assert 'class="preassert-card' in found._repr_html_()
    assert found.to_dict()["schema"] == "preassert.explain/1"
    assert found.cause is not None
    assert found.diagnoses[0] is found.cause


def test_causes_of_an_exception_are_read() -> None:
    error = ValueError("step failed")
    error.__cause__ = RuntimeError("CUDA error: device-side assert triggered")
    assert preassert.explain(error).verdict == "device-assert-unlocated"


def test_a_violation_is_its_hazard() -> None:
    error = preassert.Violation(
        "embedding-index-out-of-range", operator="aten::embedding", call="F.embedding", argument="indices", valid="0..9"
    )
    found = preassert.explain(error)
    assert (found.verdict, found.restart_required) == ("embedding-index-out-of-range", False)


def test_a_string_is_never_a_file_name() -> None:
    assert preassert.explain(str(LOGS / "078-masks-first-image.log")).verdict == "clean"


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        preassert.explain(3)  # type: ignore[arg-type]


def crash(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", "import preassert\n" + code],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip


CUDA = "raise RuntimeError('CUDA error: device-side assert triggered')"


def test_hook_explains_below_the_traceback() -> None:
    done = crash(f"preassert.install_excepthook()\n{CUDA}")
    assert done.returncode == 1
    assert done.stdout == ""
    traceback, _, told = done.stderr.partition("\ndevice-assert-unlocated:")
    assert "Traceback (most recent call last)" in traceback
    assert "Restart: required" in told
    assert "CUDA_LAUNCH_BLOCKING is not set" in told


def test_hook_knows_when_blocking_was_set() -> None:
    code = f"preassert.install_excepthook()\n{CUDA}"
    assert "was set before the process started" in crash(code, CUDA_LAUNCH_BLOCKING="1").stderr
    late = f"import os\npreassert.install_excepthook()\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n{CUDA}"
    assert "was set inside the program" in crash(late).stderr
    fake = "import sys, types\ntorch = types.ModuleType('torch')\ntorch.cuda = types.SimpleNamespace(is_initialized=lambda: True)\nsys.modules['torch'] = torch\n"
    assert "was set too late" in crash(fake + late).stderr


def test_hook_leaves_other_exceptions_alone() -> None:
    plain = crash("raise KeyError('label')").stderr
    hooked = crash("preassert.install_excepthook(); preassert.install_excepthook()\nraise KeyError('label')").stderr
    assert hooked.splitlines()[-1] == plain.splitlines()[-1] == "KeyError: 'label'"
    assert "unknown" not in hooked


def test_hook_covers_threads_and_can_be_taken_out() -> None:
    thread = f"import threading\ndef work():\n    {CUDA}\nt = threading.Thread(target=work)\nt.start()\nt.join()\n"
    assert "device-assert-unlocated:" in crash(f"preassert.install_excepthook()\n{thread}").stderr
    assert "device-assert-unlocated:" not in crash(f"preassert.install_excepthook()()\n{thread}").stderr


def test_hook_names_torch_and_chains_to_a_hook_before_it() -> None:
    code = (
        "import sys\nsys.excepthook = lambda *a: print('mine', file=sys.stderr)\nimport torch\npreassert.install_excepthook()\n"
        + CUDA
    )
    told = crash(code).stderr
    assert told.startswith("mine\n")
    assert "this process: torch " in told
