"""What an ended run was, and whether running it again can succeed."""

from __future__ import annotations

import glob
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preassert import logs
from preassert.model import EXIT_DATAERR, EXIT_USAGE
from preassert.supervise.child import Attempt

# The data (or the model's numbers) are wrong: the same run ends in the same way.
DATA_FAULTS = frozenset(
    {
        "compiled-index-out-of-range",
        "ctc-target-invalid",
        "device-assert-unlocated",
        "embedding-index-out-of-range",
        "gather-index-out-of-range",
        "index-out-of-range",
        "invalid-pooling-index",
        "invalid-sampling-distribution",
        "probability-outside-unit-interval",
        "target-out-of-range",
        "user-device-assert",
    }
)
# Nothing about the machine changes between two runs.
HOPELESS = frozenset({"unsupported-device-code"})
# Noticed later than they happened, unless every launch waits.
ASYNCHRONOUS = DATA_FAULTS | {"illegal-memory-access", "kernel-internal-assert", "poisoned-context", "blas-or-dnn-failure"}

_MAX_RANK_LOGS = 1024

HANG, INTERRUPTED, UNKNOWN, CLEAN = "hang", "interrupted", "unknown", "clean"

_SIGNAL_CLASSES = {
    "SIGKILL": ("killed", "someone's kill -9, or the kernel when memory ran out (`dmesg` tells)"),
    "SIGSEGV": ("segmentation-fault", "native code read memory that is not its own; the Python stack, if any, is above"),
    "SIGBUS": ("bus-error", "memory behind a mapping is gone: often /dev/shm is full (DataLoader workers), or a file was cut"),
    "SIGABRT": ("aborted", "native code gave up; its reason is in the last lines"),
    "SIGILL": ("illegal-instruction", "native code for another CPU, or damaged"),
    "SIGFPE": ("arithmetic-fault", "an integer division by zero in native code"),
    "SIGTERM": ("terminated", "another process asked it to end"),
    "SIGHUP": ("terminated", "its terminal or its session went away"),
    "SIGINT": ("interrupted", ""),
    "SIGXCPU": ("limit-exceeded", "the CPU time limit of the process"),
    "SIGXFSZ": ("limit-exceeded", "the file size limit of the process"),
}
_VIOLATION = re.compile(r"preassert\.Violation: ([a-z][a-z0-9-]+)")
_RANK_OF_VIOLATION = re.compile(r"^\W*(?:\[\w+\]:)?\s*module: .*\brank: (\d+)", re.MULTILINE)
_FIRST_RANK = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*:\s*(\d+)\s*\(local_rank", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ending:
    """What one attempt was."""

    kind: str  # slug of a hazard, or hang, interrupted, killed, segmentation-fault, ..., unknown, clean
    reason: str  # one sentence about how it ended
    report: dict[str, Any]  # preassert.explain/1
    rank: int | None  # the rank that failed first, where the output says so
    violation: bool  # the guard caught it: the report is in the output already

    @property
    def is_data_fault(self) -> bool:
        return self.violation or self.kind in DATA_FAULTS


def judge(attempt: Attempt, timeout_s: float | None, rank_logs: Sequence[str] = ()) -> Ending:
    """Say what ``attempt`` was, from its exit and from what it (and its ranks, into ``rank_logs``) printed."""
    text = attempt.capture.text()
    report = _explain(text, rank_logs).to_dict()
    violation = _VIOLATION.search(text) if attempt.exit_code not in (0, None) else None
    return Ending(
        kind=_kind(attempt, report, violation),
        reason=_reason(attempt, timeout_s),
        report=report,
        rank=_rank(text, report),
        violation=violation is not None and attempt.exit_code == EXIT_DATAERR,
    )


def _explain(text: str, rank_logs: Sequence[str]) -> logs.Report:
    if not rank_logs:
        return logs.explain_text(text, name="stderr")
    with tempfile.TemporaryDirectory() as folder:  # one story: the launcher's words and the files of the ranks
        launcher = os.path.join(folder, "stderr.log")
        with open(launcher, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return logs.explain_files([*rank_logs, launcher])


def rank_logs(command: Sequence[str], since: float) -> list[str]:
    """Files that torchrun's ``--log-dir`` holds for the ranks' stderr, written after ``since`` (seconds of the epoch)."""
    words = list(command)
    launchers = [i for i, word in enumerate(words) if word == "torch.distributed.run" or os.path.basename(word) == "torchrun"]
    folder = None
    for i, word in enumerate(words[launchers[0] :] if launchers else []):
        name, equals, value = word.partition("=")
        if name in ("--log-dir", "--log_dir"):
            folder = value if equals else next(iter(words[launchers[0] + i + 1 :]), None)
    if not folder:
        return []
    found = glob.glob(os.path.join(glob.escape(folder), "**", "stderr.log"), recursive=True)
    return sorted(path for path in found if os.path.getsize(path) and os.path.getmtime(path) >= since)[:_MAX_RANK_LOGS]


def _kind(attempt: Attempt, report: dict[str, Any], violation: re.Match[str] | None) -> str:
    if attempt.exit_code == 0:
        return CLEAN
    if attempt.timed_out:
        return HANG
    if attempt.interrupted:
        return INTERRUPTED
    if violation is not None:
        return violation[1]
    verdict: str = report["verdict"]
    if verdict not in (UNKNOWN, CLEAN):
        return verdict
    if attempt.signal is not None:
        return _SIGNAL_CLASSES.get(_signal_name(attempt.signal), (f"signal-{attempt.signal}", ""))[0]
    return UNKNOWN


def _reason(attempt: Attempt, timeout_s: float | None) -> str:
    if attempt.timed_out:
        return f"it did not end within {timeout_s:g} s and was stopped"
    if attempt.signal is not None:
        name = _signal_name(attempt.signal)
        meaning = _SIGNAL_CLASSES.get(name, ("", ""))[1]
        return f"it was ended by {name}" + (f": {meaning}" if meaning else "")
    return f"it ended with exit code {attempt.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _rank(text: str, report: dict[str, Any]) -> int | None:
    """The rank whose failure it is: as the violation says, as the assertion's line says, as the launcher says."""
    violation = _RANK_OF_VIOLATION.search(text)
    if violation is not None:
        return int(violation[1])
    for diagnosis in report["diagnoses"]:
        if diagnosis["role"] == "cause" and diagnosis["rank"] is not None:
            rank: int = diagnosis["rank"]
            return rank
    launcher = _FIRST_RANK.search(text)
    return int(launcher[1]) if launcher else None


def hopeless_because(ending: Ending, attempt: Attempt) -> str | None:
    """Why running again cannot succeed, in words that follow "not restarted: "; None: it can."""
    if ending.is_data_fault:
        fault = f"{ending.kind} is a fault of the data or of the numbers"
        return f"{fault}; the same run would end in the same way (exit {EXIT_DATAERR})"
    if ending.kind in HOPELESS:
        return f"{ending.kind}: the same machine with the same build would refuse again"
    if ending.kind == INTERRUPTED:
        return "it was asked to end"
    if attempt.exit_code == EXIT_USAGE:
        return "exit code 2 says that the command line is wrong"
    return None


def worth_pinning(ending: Ending, environment: dict[str, str]) -> bool:
    """Would CUDA_LAUNCH_BLOCKING=1 tell the line? Not for what the guard or a host check has named already."""
    asynchronous = ending.kind in ASYNCHRONOUS and ending.report["restart_required"] is not False
    return asynchronous and not ending.violation and environment.get("CUDA_LAUNCH_BLOCKING") != "1"
