"""Supervised runs: watch a program from outside, explain its death, repeat what a repetition can help.

The supervisor never imports torch: it must own no CUDA context. The child's stderr is captured at the file descriptor,
because the driver prints assertion lines there, past Python; it is passed on unchanged, and so are stdin, stdout, signals, the
terminal's size, and the way the child ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from preassert.errors import UsageError
from preassert.model import EXIT_DATAERR
from preassert.report.text import clean_line
from preassert.supervise import child, policy
from preassert.supervise.child import GRACE_S, Attempt
from preassert.supervise.folder import Folder
from preassert.supervise.policy import Ending

EXIT_TIMEOUT = 124  # as timeout(1)
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to do about failures."""

    rerun: str | None = None  # "sync": once more with CUDA_LAUNCH_BLOCKING=1
    restart: int = 0  # how often at most
    restart_arguments: tuple[str, ...] = ()  # appended to the command of a restart: --resume last.ckpt
    report: str | None = None  # folder
    timeout_s: float | None = None
    grace_s: float = GRACE_S
    core_dump: bool = False  # the rerun writes a CUDA core dump
    first_backoff_s: float = FIRST_BACKOFF_S


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    rerun: str | None = None,
    restart: int = 0,
    restart_arguments: Sequence[str] = (),
    report: str | None = None,
    timeout_s: float | None = None,
    core_dump: bool = False,
) -> int:
    """Run ``command`` and return the exit code that this process shall end with.

    A child that a signal ended takes this process with it: by the same signal, so that whoever waits for it sees what
    happened. Data faults with ``restart``: 65, never a restart. Out of time: 124.

    Args:
        command: the program and its arguments.
        environment: of the child; None: this process's own.
        rerun: ``"sync"``: after a failure that is noticed late, run once more with ``CUDA_LAUNCH_BLOCKING=1``.
        restart: how often to start again after a failure that can pass.
        restart_arguments: appended to the command of a restart.
        report: folder for log, diagnosis, page and environment.
        timeout_s: end a run that takes longer, first by SIGTERM, then by SIGKILL.
        core_dump: let the rerun write a CUDA core dump into ``report``.

    Raises:
        UsageError: the system has no pseudo-terminals and signals of the kind that this needs (Windows), or an argument is wrong.
    """
    if os.name != "posix":
        raise UsageError("--supervise runs on Linux and macOS")
    if rerun not in (None, "sync"):
        raise UsageError(f"--rerun is sync, not {rerun!r}")
    if core_dump and not (rerun and report):
        raise UsageError("a CUDA core dump needs --rerun sync and --report DIR")
    options = Options(rerun, restart, tuple(restart_arguments), report, timeout_s, core_dump=core_dump)
    first, ending = Run(list(command), dict(os.environ if environment is None else environment), options).go()
    return _end_as(first, ending, options)


class Run:
    """Attempts of one command, until one succeeds or none can."""

    def __init__(self, command: list[str], environment: dict[str, str], options: Options) -> None:
        self._command = command
        self._environment = environment
        self._options = options
        self._folder = Folder(options.report, say)
        self._attempts = 0
        environment.setdefault("PYTHONFAULTHANDLER", "1")  # a segmentation fault shows the Python stack

    def go(self) -> tuple[Attempt, Ending]:
        """The attempt whose end is the end of it all."""
        restarts = 0
        pinned = False
        while True:
            extra = self._options.restart_arguments if restarts else ()
            attempt, ending = self._attempt([*self._command, *extra], self._environment)
            if attempt.exit_code == 0:
                return attempt, ending
            self._explain(ending)
            if self._options.rerun and not pinned and policy.worth_pinning(ending, self._environment):
                pinned = True
                self._pin([*self._command, *extra])
            if not self._options.restart:
                return attempt, ending
            why = policy.hopeless_because(ending, attempt)
            if why is None and restarts >= self._options.restart:
                why = f"{restarts} of {self._options.restart} restarts are used"
            if why is not None:
                say(f"not restarted: {why}")
                return attempt, ending
            restarts += 1
            if not self._back_off(restarts, ending):
                return attempt, ending

    def _attempt(self, command: list[str], environment: dict[str, str]) -> tuple[Attempt, Ending]:
        self._attempts += 1
        self._folder.open_log(self._attempts)
        since = time.time() - 1  # file systems round times
        try:
            attempt = child.run(
                command,
                environment,
                keep=self._folder.keep,
                timeout_s=self._options.timeout_s,
                grace_s=self._options.grace_s,
            )
        except OSError as error:
            raise UsageError(f"cannot start {clean_line(command[0])}: {error.strerror or error}") from error
        finally:
            self._folder.close_log()
        if attempt.pass_through_error is not None:
            say(f"stderr could not be passed on: {attempt.pass_through_error}")
        ending = policy.judge(attempt, self._options.timeout_s, policy.rank_logs(command, since))
        self._folder.write(self._attempts, self._told(attempt, ending), command, environment)
        return attempt, ending

    def _told(self, attempt: Attempt, ending: Ending) -> dict[str, object]:
        return {
            **ending.report,
            "supervised": {
                "class": ending.kind,
                "reason": ending.reason,
                "attempt": self._attempts,
                "exit_code": attempt.exit_code,
                "signal": None if attempt.signal is None else signal.Signals(attempt.signal).name,
                "rank": ending.rank,
                "duration_s": round(attempt.duration_s, 3),
                "stderr_bytes": attempt.capture.size_bytes,
            },
        }

    def _explain(self, ending: Ending) -> None:
        if ending.kind == policy.INTERRUPTED:
            return
        rank = _own_rank(self._environment)
        who = "the program failed" if rank is None else f"rank {rank} failed"
        say(f"{who} ({ending.kind}): {ending.reason}")
        if ending.rank is not None and str(ending.rank) != rank:
            say(f"rank {ending.rank} failed first; what other ranks print after it are echoes")
        elif rank is not None and "SLURM_PROCID" in self._environment:
            say("srun --kill-on-bad-exit=1 ends the other ranks at once")
        if ending.violation or ending.kind == policy.HANG:
            return
        if ending.report["verdict"] not in (policy.UNKNOWN, policy.CLEAN):
            from preassert.report.diagnosis import to_text

            _write(to_text(ending.report))
        elif ending.kind == policy.UNKNOWN:
            say("no failure of the catalogue is in its output")

    def _pin(self, command: list[str]) -> None:
        """Once more, every launch waiting: the traceback then ends at the call that failed."""
        say("once more with CUDA_LAUNCH_BLOCKING=1, to find the line")
        environment = {**self._environment, "CUDA_LAUNCH_BLOCKING": "1"}
        if self._options.core_dump and self._options.report is not None:
            environment["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] = "1"
            environment["CUDA_COREDUMP_FILE"] = os.path.join(self._options.report, "core.%h.%p.cuda")
        attempt, ending = self._attempt(command, environment)
        frame = ending.report.get("frame")
        if attempt.exit_code == 0:
            say("it succeeded this time: the fault depends on timing, on random numbers or on the order of the data")
        elif frame:
            source = f": {frame['source']}" if frame.get("source") else ""
            say(clean_line(f"with launches waiting it fails at {frame['file']}:{frame['line']} in {frame['function']}{source}"))
        else:
            say(f"it failed again ({ending.kind}); no line of Python is in its output")

    def _back_off(self, restarts: int, ending: Ending) -> bool:
        """Wait before restart number ``restarts``; False when a signal ends the wait."""
        wait_s = min(LONGEST_BACKOFF_S, self._options.first_backoff_s * 2 ** (restarts - 1))
        extra = f" with {shlex.join(self._options.restart_arguments)}" if self._options.restart_arguments else ""
        say(f"restart {restarts} of {self._options.restart}{extra} in {wait_s:g} s: {ending.kind} can pass")
        self._environment["PREASSERT_RESTART"] = str(restarts)
        try:
            time.sleep(wait_s)
        except KeyboardInterrupt:
            say("interrupted; not restarted")
            return False
        return True


def _own_rank(environment: Mapping[str, str]) -> str | None:
    """The rank that a launcher gave to this whole process (srun, or torchrun around the supervisor)."""
    for name in ("RANK", "SLURM_PROCID"):
        if environment.get(name, "").isdigit() and not (name == "SLURM_PROCID" and environment.get("SLURM_NTASKS") == "1"):
            return environment[name]
    return None


def _end_as(attempt: Attempt, ending: Ending, options: Options) -> int:
    if attempt.timed_out:
        return EXIT_TIMEOUT
    if options.restart and ending.is_data_fault:
        return EXIT_DATAERR
    if attempt.signal is not None:
        _die_by(attempt.signal)
    assert attempt.exit_code is not None
    return attempt.exit_code


def _die_by(number: int) -> NoReturn:
    """End this process by the signal that ended the child, without a core file of our own."""
    import resource

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        time.sleep(1)  # until it arrives
    except (OSError, ValueError):
        pass
    os._exit(128 + number)


def say(text: str) -> None:
    """One line of ours on stderr."""
    _write(f"preassert: {text}")


def _write(text: str) -> None:
    data = (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass  # nobody reads it; the exit code still tells


__all__ = ["EXIT_TIMEOUT", "Options", "Run", "supervise"]
