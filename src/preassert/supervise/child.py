"""One child process: its stderr captured at the file descriptor, everything else its own.

The child shares the parent's process group, terminal, stdin and stdout. Its stderr is a pipe, or a pseudo-terminal when the
parent's is a terminal, so that progress bars go on. Signals that a person's key sends reach the child by themselves; those
that another process sends to the parent are handed on.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from preassert.supervise.capture import Capture

GRACE_S = 10.0  # between asking a child that ran out of time to end, and killing it
_DRAIN_S = 5.0  # how long a grandchild may keep the stderr of a dead child open before we stop listening
_SILENCE_S = 0.3
_BLOCK_BYTES = 1 << 16
_SI_USER_CODES = (0, -1, -6)  # SI_USER, SI_QUEUE, SI_TKILL: another process sent it, not the terminal

_HANDED_ON = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
]
_WATCHED = [*_HANDED_ON, signal.SIGCHLD, signal.SIGWINCH]


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one run of the child ended."""

    exit_code: int | None  # None: ended by a signal
    signal: int | None
    timed_out: bool
    interrupted: bool  # a person or a process asked the supervisor to end it
    duration_s: float
    capture: Capture
    pass_through_error: str | None = None  # stderr of the parent could not be written


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep: Callable[[bytes], None],
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
) -> Attempt:
    """Run ``command`` to its end. ``keep`` gets every block of its stderr, after it was passed on.

    Raises:
        OSError: the command cannot be started.
    """
    listener = _Listener(keep)
    started_s = time.monotonic()
    waiter = _Signals()
    with waiter:
        child = subprocess.Popen(
            list(command), env=dict(environment), stderr=listener.child_end, close_fds=True, preexec_fn=_prepare(waiter.before)
        )
        listener.start()
        timed_out, interrupted = _wait(child, waiter, listener, started_s, timeout_s, grace_s)
    listener.finish()
    code = child.returncode
    return Attempt(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        interrupted=interrupted,
        duration_s=time.monotonic() - started_s,
        capture=listener.capture,
        pass_through_error=listener.error,
    )


def _wait(
    child: subprocess.Popen[bytes],
    waiter: _Signals,
    listener: _Listener,
    started_s: float,
    timeout_s: float | None,
    grace_s: float,
) -> tuple[bool, bool]:
    """(ran out of time, was asked to end)"""
    timed_out = interrupted = False
    below: set[tuple[int, str]] = set()
    deadline_s = None if timeout_s is None else started_s + timeout_s
    while child.poll() is None:
        left_s = 60.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        received = waiter.wait(left_s)
        if received is not None:
            number, from_process = received
            if number == signal.SIGWINCH:
                listener.resize()
            elif number in _HANDED_ON:
                interrupted = interrupted or number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
                if from_process:
                    _send(child, number)
        elif deadline_s is not None and time.monotonic() >= deadline_s and child.poll() is None:
            below.update(_descendants(child.pid))
            _send(child, signal.SIGKILL if timed_out else signal.SIGTERM)
            timed_out = True
            deadline_s = time.monotonic() + grace_s
    if timed_out:
        _kill_left(below)
    return timed_out, interrupted


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _descendants(pid: int) -> set[tuple[int, str]]:
    """(pid, start time) of every process below ``pid``. Linux; empty elsewhere."""
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                parents[int(name)] = int(fields[1]), fields[19]
    found: set[tuple[int, str]] = set()
    wanted = {pid}
    while wanted:
        wanted = {child for child, (parent, _) in parents.items() if parent in wanted}
        found |= {(child, parents[child][1]) for child in wanted}
    return found


def _kill_left(processes: set[tuple[int, str]]) -> None:
    """Kill what a stopped program left behind (workers, ranks), unless the number belongs to another process by now."""
    for pid, started in processes:
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[19] == started and fields[0] != "Z":
                os.kill(pid, signal.SIGKILL)


def _prepare(mask: set[int]) -> Callable[[], None]:
    """What the child does before it becomes the command: unblock signals, and die with its parent (Linux)."""
    prctl = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if prctl is not None:
            prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG: kill -9 of the supervisor leaves no orphan

    return prepare


class _Signals:
    """Signals are taken one by one instead of interrupting: blocked while the child runs, then waited for."""

    def __init__(self) -> None:
        self.before: set[int] = set()

    def __enter__(self) -> _Signals:
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        return self

    def __exit__(self, *_error: object) -> None:
        # A signal that came after the child ended has nobody to go to; the attempt is over anyway.
        if hasattr(signal, "sigtimedwait"):
            while signal.sigtimedwait(_WATCHED, 0) is not None:
                pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def wait(self, timeout_s: float) -> tuple[int, bool] | None:
        """(signal, was it sent by a process rather than by the terminal), or None after ``timeout_s``."""
        if hasattr(signal, "sigtimedwait"):
            info = signal.sigtimedwait(_WATCHED, timeout_s)
            return None if info is None else (info.si_signo, info.si_code in _SI_USER_CODES)
        end_s = time.monotonic() + timeout_s  # macOS: no sigtimedwait, no si_code
        while time.monotonic() < end_s:
            waiting = signal.sigpending() & set(_WATCHED)
            if waiting:
                number, _ = signal.sigwait(waiting), None
                return number, not (number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin is not None and sys.stdin.isatty())
            time.sleep(0.05)
        return None


class _Listener:
    """Reads the child's stderr in a thread: hands it on unchanged, captures it, keeps it."""

    def __init__(self, keep: Callable[[bytes], None]) -> None:
        self.capture = Capture()
        self.error: str | None = None
        self._keep = keep
        self._terminal = os.isatty(2)
        self._heard_s = time.monotonic()
        self._busy = False  # a block has been read and not yet been handed on
        self._thread = threading.Thread(target=self._listen, name="preassert-stderr", daemon=True)
        if self._terminal:
            self._end, self.child_end = _open_terminal()
        else:
            self._end, self.child_end = os.pipe()
            os.set_inheritable(self.child_end, False)
        self.resize()

    def start(self) -> None:
        os.close(self.child_end)
        self._thread.start()

    def finish(self) -> None:
        """Hear out what is still in the pipe. A grandchild that holds it open is not waited for; a slow reader of ours is."""
        end_s = time.monotonic() + _DRAIN_S
        while self._thread.is_alive():
            self._thread.join(0.05)
            now_s = time.monotonic()
            if not self._busy and (now_s - self._heard_s > _SILENCE_S or now_s > end_s):
                return

    def resize(self) -> None:
        """Give the child's pseudo-terminal the size of the real one."""
        if self._terminal:
            import fcntl
            import termios

            with contextlib.suppress(OSError):
                size = fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self._end, termios.TIOCSWINSZ, size)

    def _listen(self) -> None:
        while True:
            try:
                block = os.read(self._end, _BLOCK_BYTES)
            except OSError as error:  # EIO: the last holder of a pseudo-terminal has closed it
                if error.errno == errno.EINTR:
                    continue
                return
            if not block:
                return
            self._busy = True
            self._pass_on(block)
            self.capture.add(block)
            self._keep(block)
            self._heard_s = time.monotonic()
            self._busy = False

    def _pass_on(self, block: bytes) -> None:
        if self.error is not None:
            return
        try:
            while block:
                block = block[os.write(2, block) :]
        except BlockingIOError:
            os.set_blocking(2, True)
            self._pass_on(block)
        except OSError as error:  # the reader of our stderr is gone, or its disk is full: the child goes on
            self.error = error.strerror or str(error)


def _open_terminal() -> tuple[int, int]:
    """A pseudo-terminal that hands bytes through unchanged: the real terminal does the line ends."""
    import pty
    import termios

    ours, childs = pty.openpty()
    attributes = termios.tcgetattr(childs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(childs, termios.TCSANOW, attributes)
    return ours, childs
