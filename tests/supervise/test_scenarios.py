"""Failures of all kinds: the right class, the right exit code, and nothing of the child's output lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

Supervise = Callable[..., "subprocess.CompletedProcess[bytes]"]

LOSS = (
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: "
    "block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed."
)
LOOKUP = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: "
    "block: [3,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
)
NAN = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
    "Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed."
)


def says(text: str, then: str) -> str:
    """A script that prints ``text`` to stderr and then does ``then``."""
    return f"import os, signal, sys, time\nos.write(2, {(text + chr(10)).encode()!r})\n{then}\n"


def raises(message: str, kind: str = "RuntimeError", before: str = "") -> str:
    return says(before, f"raise {kind}({message!r})") if before else f"raise {kind}({message!r})\n"


DIES = "os.kill(os.getpid(), signal.{})"
FAILS = "sys.exit(1)"


class Scenario(NamedTuple):
    script: str
    kind: str  # the class that the report names
    code: int  # exit code; negative: the signal
    options: tuple[str, ...] = ()
    mentions: str = ""  # in what the supervisor says


SCENARIOS = {
    "assert in the loss": Scenario(
        raises("CUDA error: device-side assert triggered", before=LOSS), "target-out-of-range", 1, mentions="Restart: required"
    ),
    "assert in the embedding": Scenario(
        says(LOOKUP, "def f():\n    torch = 1\n    return torch.embedding\nf()"), "embedding-index-out-of-range", 1
    ),
    "assert, then the process aborts": Scenario(says(LOSS, DIES.format("SIGABRT")), "target-out-of-range", -signal.SIGABRT),
    "probabilities with NaN": Scenario(
        raises("CUDA error: device-side assert triggered", before=NAN), "invalid-sampling-distribution", 1
    ),
    "probabilities with NaN on the host": Scenario(
        raises("probability tensor contains either `inf`, `nan` or element < 0"), "invalid-sampling-distribution", 1
    ),
    "label on the host": Scenario(raises("Target 5 is out of bounds.", "IndexError"), "target-out-of-range", 1),
    "assert without its line": Scenario(
        raises("CUDA error: device-side assert triggered"), "device-assert-unlocated", 1, mentions="CUDA_LAUNCH_BLOCKING"
    ),
    "out of memory": Scenario(
        raises(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 7.00 MiB is free."
        ),
        "out-of-memory",
        1,
    ),
    "illegal access": Scenario(raises("CUDA error: an illegal memory access was encountered"), "illegal-memory-access", 1),
    "cuBLAS": Scenario(
        raises("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`"), "blas-or-dnn-failure", 1
    ),
    "ECC": Scenario(raises("CUDA error: uncorrectable ECC error encountered"), "hardware-fault", 1),
    "no code for this card": Scenario(
        raises("CUDA error: no kernel image is available for execution on the device"),
        "unsupported-device-code",
        1,
        ("--restart", "3"),
        "not restarted: unsupported-device-code",
    ),
    "NCCL time-out": Scenario(
        says(
            "[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) "
            "ran for 600001 milliseconds before timing out.",
            DIES.format("SIGABRT"),
        ),
        "communication-failure",
        -signal.SIGABRT,
    ),
    "segmentation fault": Scenario(
        "import ctypes; ctypes.string_at(0)", "segmentation-fault", -signal.SIGSEGV, mentions="SIGSEGV"
    ),
    "kill -9": Scenario(says("step 1", DIES.format("SIGKILL")), "killed", -signal.SIGKILL, mentions="when memory ran out"),
    "abort": Scenario("import os; os.abort()", "aborted", -signal.SIGABRT),
    "bus error": Scenario(says("", DIES.format("SIGBUS")), "bus-error", -signal.SIGBUS, mentions="/dev/shm"),
    "division in native code": Scenario(says("", DIES.format("SIGFPE")), "arithmetic-fault", -signal.SIGFPE),
    "illegal instruction": Scenario(says("", DIES.format("SIGILL")), "illegal-instruction", -signal.SIGILL),
    "an error of the program": Scenario(raises("label", "KeyError"), "unknown", 1, mentions="no failure of the catalogue"),
    "an exit code of its own": Scenario("import sys; sys.exit(17)", "unknown", 17, mentions="exit code 17"),
    "a wrong command line": Scenario("import sys; sys.exit(2)", "unknown", 2, ("--restart", "3"), "not restarted: exit code 2"),
    "a syntax error": Scenario("def f(:\n", "unknown", 1),
    "hang": Scenario(says("waiting", "time.sleep(60)"), "hang", 124, ("--timeout", "1"), "within 1 s"),
    "a violation": Scenario(
        "from preassert.errors import Violation\n"
        "raise Violation('target-out-of-range', operator='aten::nll_loss', call='F.x', argument='target', valid='0', rank=2)",
        "target-out-of-range",
        65,
        ("--restart", "3"),
        "rank 2 failed first",
    ),
    "a violation is not restarted": Scenario(
        "from preassert.errors import Violation\n"
        "raise Violation('index-out-of-range', operator='aten::index', call='x[i]', argument='index', valid='0..4')",
        "index-out-of-range",
        65,
        ("--restart", "3"),
        "not restarted: index-out-of-range is a fault of the data",
    ),
    "an assert is not restarted": Scenario(
        raises("CUDA error: device-side assert triggered", before=LOSS),
        "target-out-of-range",
        65,
        ("--restart", "3"),
        "not restarted: target-out-of-range is a fault of the data",
    ),
    "binary output": Scenario("import os, sys; os.write(2, bytes(range(256)) * 100); sys.exit(4)", "unknown", 4),
    "no newline at the end": Scenario("import os, sys; os.write(2, b'half a line'); sys.exit(5)", "unknown", 5),
    "a progress bar": Scenario(
        "import os, sys\nfor i in range(50): os.write(2, b'\\r%d%%|####  |' % i)\nsys.exit(6)", "unknown", 6
    ),
    "no output at all": Scenario("import os; os._exit(8)", "unknown", 8),
    "stderr closed by the child": Scenario("import os\nos.write(2, b'bye\\n')\nos.close(2)\nos._exit(9)", "unknown", 9),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(scenario: Scenario, supervise: Supervise, tmp_path: Path) -> None:
    done = supervise(scenario.script, "--report", "report", *scenario.options)
    assert done.returncode == scenario.code, done.stderr.decode(errors="replace")
    report = json.loads((tmp_path / "report" / "explain.json").read_text())
    assert report["supervised"]["class"] == scenario.kind
    assert (report["supervised"]["exit_code"] is None) == (report["supervised"]["signal"] is not None)
    log = (tmp_path / "report" / "stderr.log").read_bytes()
    assert report["supervised"]["stderr_bytes"] == len(log)
    assert done.stderr.startswith(log)  # unchanged, and before anything of ours
    said = done.stderr[len(log) :].decode()
    assert said.startswith(f"preassert: the program failed ({scenario.kind}): ")
    assert scenario.mentions in re.sub(r"\s+", " ", said)
    assert "<html" in (tmp_path / "report" / "explain.html").read_text()
    assert json.loads((tmp_path / "report" / "environment.json").read_text())["command"][-1] == "train.py"
    assert not list((tmp_path / "report").glob("*.part"))


def test_a_run_that_succeeds_says_nothing(supervise: Supervise) -> None:
    done = supervise("import sys; print('out'); print('err', file=sys.stderr)", "--restart", "2", "--rerun", "sync")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")


def test_huge_stderr_keeps_the_first_evidence_and_every_byte(supervise: Supervise, tmp_path: Path) -> None:
    script = (
        f"import os, sys\nos.write(2, {LOSS.encode()!r} + b'\\n')\nline = b'x' * 999 + b'\\n'\n"
        "for _ in range(60):\n    sys.stderr.buffer.write(line * 1000)\nsys.exit(1)"
    )
    done = supervise(script, "--report", "report")
    assert done.returncode == 1
    log = tmp_path / "report" / "stderr.log"
    assert log.stat().st_size == len(LOSS) + 1 + 60_000_000
    assert done.stderr.startswith(log.read_bytes())
    assert json.loads((tmp_path / "report" / "explain.json").read_text())["verdict"] == "target-out-of-range"


def test_a_child_that_ignores_sigterm_is_killed(supervise: Supervise) -> None:
    from preassert import supervise as room

    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    code = (
        f"import sys; from preassert.supervise import Options, Run\n"
        f"attempt, ending = Run([sys.executable, '-c', {script!r}], dict(__import__('os').environ), "
        f"Options(timeout_s=1.0, grace_s=0.5)).go()\nassert (attempt.signal, ending.kind) == (9, 'hang'), ending"
    )
    done = supervise(code)
    assert done.returncode == 0, done.stderr
    assert room.EXIT_TIMEOUT == 124


def test_a_run_out_of_time_leaves_no_process_behind(supervise: Supervise, tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "open('pid', 'w').write(str(worker.pid))\ntime.sleep(100)"
    )
    assert supervise(script, "--timeout", "2").returncode == 124
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    end = time.monotonic() + 10
    while stat.exists() and " Z " not in stat.read_text() and time.monotonic() < end:
        time.sleep(0.05)
    assert not stat.exists() or " Z " in stat.read_text()


def test_logs_of_ranks_are_read(tmp_path: Path, supervise: Supervise) -> None:
    """torchrun --redirects writes the ranks' stderr into files; the launcher's own says only that something failed."""
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    for package in ("torch", "torch/distributed"):
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed" / "run.py").write_text(
        "import os, sys\nfor rank, text in enumerate(['', sys.argv[3], 'RuntimeError: Connection closed by peer']):\n"
        "    os.makedirs(f'logs/run/attempt_0/{rank}')\n"
        "    open(f'logs/run/attempt_0/{rank}/stderr.log', 'w').write(text + '\\n')\n"
        "print('ChildFailedError', file=sys.stderr)\nsys.exit(1)"
    )
    old = tmp_path / "logs" / "old" / "attempt_0" / "2" / "stderr.log"
    old.parent.mkdir(parents=True)
    old.write_text("CUDA out of memory. Tried to allocate 1 GiB\n")
    os.utime(old, (1, 1))
    done = supervise(
        "import os, sys; from preassert.supervise import Options, Run\n"
        f"attempt, ending = Run([sys.executable, '-m', 'torch.distributed.run', '--log-dir', 'logs', {LOSS!r}], "
        "dict(os.environ), Options()).go()\n"
        "assert (ending.kind, ending.rank) == ('target-out-of-range', 1), ending\n",
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert b"rank 1 failed first" in done.stderr


COUNTING = """\
import os, sys
with open("attempts", "a") as file:
    file.write(os.environ.get("PREASSERT_RESTART", "0") + " " + " ".join(sys.argv[1:]) + "\\n")
with open("attempts") as file:
    attempt = len(file.readlines())
"""


def test_a_failure_that_passes_is_restarted_from_the_checkpoint(supervise: Supervise, tmp_path: Path) -> None:
    failing = "if attempt < 2:\n    raise RuntimeError('NCCL error: unhandled system error, ncclSystemError')\nprint('done')"
    done = supervise(COUNTING + failing, "--restart", "3", "--restart-with", "--resume 'last one.ckpt'", "--report", "report")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"done\n"
    assert (tmp_path / "attempts").read_text().splitlines() == ["0 ", "1 --resume last one.ckpt"]
    assert b"restart 1 of 3 with --resume 'last one.ckpt' in 1 s" in done.stderr
    assert {file.name for file in (tmp_path / "report").iterdir()} >= {"stderr.log", "stderr.2.log", "explain.2.json"}


def test_restarts_are_bounded_and_back_off(tmp_path: Path, supervise: Supervise) -> None:
    code = (
        "import os, sys, time; from preassert.supervise import Options, Run\n"
        "started = time.monotonic()\n"
        "attempt, ending = Run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'], dict(os.environ), "
        "Options(restart=2, first_backoff_s=0.2)).go()\n"
        "assert (attempt.signal, ending.kind) == (9, 'killed')\nassert time.monotonic() - started > 0.2 + 0.4"
    )
    done = supervise(code)
    assert done.returncode == 0, done.stderr
    assert b"restart 2 of 2 in 0.4 s" in done.stderr
    assert b"not restarted: 2 of 2 restarts are used" in done.stderr


def test_rerun_sync_pins_the_line(supervise: Supervise, tmp_path: Path) -> None:
    script = (
        "import os\ndef loss():\n    raise RuntimeError('CUDA error: device-side assert triggered')\n"
        "def later():\n    raise RuntimeError('CUDA error: device-side assert triggered')\n"
        "loss() if os.environ.get('CUDA_LAUNCH_BLOCKING') == '1' else later()\n"
    )
    done = supervise(script, "--rerun", "sync", "--report", "report", "--core-dump")
    assert done.returncode == 1
    assert b"once more with CUDA_LAUNCH_BLOCKING=1" in done.stderr
    assert b"train.py:3 in loss" in done.stderr.split(b"with launches waiting it fails at")[1]
    settings = json.loads((tmp_path / "report" / "environment.2.json").read_text())["environment"]
    assert settings["CUDA_LAUNCH_BLOCKING"] == "1"
    assert settings["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
    assert settings["CUDA_COREDUMP_FILE"].startswith(str(tmp_path / "report"))


def test_rerun_that_succeeds_says_so_and_keeps_the_first_exit_code(supervise: Supervise) -> None:
    failing = "raise RuntimeError('CUDA error: device-side assert triggered')"
    script = f"import os\nif 'CUDA_LAUNCH_BLOCKING' not in os.environ:\n    {failing}"
    done = supervise(script, "--rerun", "sync")
    assert done.returncode == 1
    assert b"it succeeded this time" in done.stderr


def test_what_the_guard_or_the_host_named_is_not_run_again(supervise: Supervise, tmp_path: Path) -> None:
    done = supervise(COUNTING + "raise IndexError('Target 5 is out of bounds.')", "--rerun", "sync")
    assert done.returncode == 1
    assert len((tmp_path / "attempts").read_text().splitlines()) == 1


def test_report_on_a_full_disk_changes_nothing_else(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "stderr.log.part").symlink_to("/dev/full")
    done = supervise(raises("CUDA error: device-side assert triggered", before=LOSS), "--report", "report")
    assert done.returncode == 1
    assert LOSS.encode() in done.stderr
    assert b"No space left on device; the run goes on" in done.stderr
    assert b"target-out-of-range" in done.stderr


def test_report_where_a_file_is(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    done = supervise("print('fine')", "--report", "report")
    assert (done.returncode, done.stdout) == (0, b"fine\n")
    assert b"no report in" in done.stderr
    assert (tmp_path / "report").read_text() == "mine"


def test_the_environment_is_kept_without_secrets(supervise: Supervise, tmp_path: Path) -> None:
    supervise("pass", "--report", "report", NCCL_DEBUG="INFO", PREASSERT_API_TOKEN="hunter2", AWS_SECRET_ACCESS_KEY="hunter3")
    text = (tmp_path / "report" / "environment.json").read_text()
    assert json.loads(text)["environment"]["NCCL_DEBUG"] == "INFO"
    assert "hunter" not in text


def test_hostile_output_reaches_the_page_escaped(supervise: Supervise, tmp_path: Path) -> None:
    supervise(raises("<script>alert(1)</script> CUDA error: device-side assert triggered"), "--report", "report")
    page = (tmp_path / "report" / "explain.html").read_text()
    assert "<script>alert" not in page


def test_the_rank_of_a_job_step_is_named(supervise: Supervise) -> None:
    done = supervise(raises("CUDA error: device-side assert triggered", before=LOSS), SLURM_PROCID="3", SLURM_NTASKS="8")
    assert b"preassert: rank 3 failed (target-out-of-range)" in done.stderr
    assert b"srun --kill-on-bad-exit=1" in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--timeout", "soon"), "is not a number of seconds"),
        (("--timeout", "-1"), "not positive"),
        (("--core-dump",), "--core-dump needs --rerun sync and --report DIR"),
        (("--restart-with", "--resume"), "--restart-with needs --restart N"),
        (("--restart", "1", "--restart-with", "'"), "--restart-with"),
    ],
)
def test_wrong_options(options: tuple[str, ...], complaint: str, supervise: Supervise) -> None:
    done = supervise("pass", *options)
    assert done.returncode == 2
    assert complaint in done.stderr.decode()
