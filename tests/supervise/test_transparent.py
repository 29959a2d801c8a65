"""What is between a program and its user stays as it is: signals, stdin, terminal, streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Supervise = Callable[..., "subprocess.CompletedProcess[bytes]"]
SRC = Path(__file__).resolve().parents[2] / "src" / "preassert"


def start(folder: Path, code: str, *options: str, **how: object) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "-m", "preassert", "run", "--supervise", *options, "train.py"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PREASSERT_", "SLURM_", "RANK"))}
    return subprocess.Popen(words, cwd=folder, env=clean, **how)  # type: ignore[call-overload, no-any-return]


def wait_for(path: Path) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path.name} did not appear")


READY = "import os, pathlib; pathlib.Path('ready.part').write_text(str(os.getpid())); os.replace('ready.part', 'ready')\n"


@pytest.mark.parametrize(
    ("sent", "handler", "code"),
    [
        (signal.SIGTERM, "sys.exit(7)", 7),
        (signal.SIGUSR1, "print('saved', flush=True); sys.exit(0)", 0),
        (signal.SIGHUP, "sys.exit(8)", 8),
        (signal.SIGINT, "sys.exit(9)", 9),
        (signal.SIGTERM, None, -signal.SIGTERM),
        (signal.SIGINT, None, -signal.SIGINT),
    ],
)
def test_a_signal_from_another_process_is_handed_on(sent: signal.Signals, handler: str | None, code: int, tmp_path: Path) -> None:
    installed = "" if handler is None else f"def handle(*_):\n    {handler}\nsignal.signal({int(sent)}, handle)\n"
    script = f"import signal, sys, time\n{installed}{READY}for _ in range(600):\n    time.sleep(0.1)\n"
    child = start(tmp_path, script, "--restart", "2", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(tmp_path / "ready")
    child.send_signal(sent)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert b"restart 1" not in err  # who asks it to end does not want it back
    if sent == signal.SIGUSR1:
        assert out == b"saved\n"


def test_kill_9_of_the_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("Linux tells a child of its parent's death, other systems do not")
    child = start(tmp_path, f"import time\n{READY}time.sleep(600)", stderr=subprocess.DEVNULL, start_new_session=True)
    pid = int(wait_for(tmp_path / "ready"))
    child.kill()
    child.wait()
    end = time.monotonic() + 20
    while time.monotonic() < end and Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists() or "Z" in _state(pid)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_stdin_goes_to_the_child(supervise: Supervise) -> None:
    done = supervise("import sys; print(sys.stdin.buffer.read()[::-1].decode())", stdin=b"abc")
    assert done.stdout == b"cba\n"


def test_stdout_is_the_childs_own(supervise: Supervise) -> None:
    done = supervise("import os\nfor _ in range(200): os.write(1, bytes(range(256)) * 64)\nos._exit(3)")
    assert done.stdout == bytes(range(256)) * 64 * 200
    assert done.returncode == 3


def test_a_grandchild_that_holds_stderr_open_is_not_waited_for(supervise: Supervise) -> None:
    script = (
        "import os, subprocess, sys\n"
        "sleeper = [sys.executable, '-c', 'import time; time.sleep(30)']\n"
        "subprocess.Popen(sleeper, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "os.write(2, b'last words\\n')\nos._exit(4)"
    )
    code = (
        "import os, sys, time; from preassert.supervise import Options, Run\nstarted = time.monotonic()\n"
        f"attempt, _ = Run([sys.executable, '-c', {script!r}], dict(os.environ), Options()).go()\n"
        "assert attempt.exit_code == 4\nassert time.monotonic() - started < 15\nos._exit(0)"
    )
    done = supervise(code)
    assert done.returncode == 0, done.stderr
    assert b"last words" in done.stderr


def test_a_reader_that_goes_away_does_not_stop_the_child(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    script = (
        "import os, pathlib\nfor _ in range(100): os.write(2, b'x' * 1000 + b'\\n')\npathlib.Path('finished').write_text('yes')"
    )
    child = start(tmp_path, script, "--report", "report", stderr=write)
    os.close(write)
    assert child.wait(60) == 0
    assert (tmp_path / "finished").exists()
    assert (tmp_path / "report" / "stderr.log").stat().st_size == 100_100


def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    script = "import os\nfor i in range(300): os.write(2, b'%06d' % i + b'x' * 993 + b'\\n')\nos._exit(3)"
    child = start(tmp_path, script, stderr=subprocess.PIPE)
    assert child.stderr is not None
    time.sleep(7)  # longer than the supervisor listens to a silent pipe
    seen = child.stderr.read()
    assert child.wait(60) == 3
    assert [int(line[:6]) for line in seen.splitlines()[:300]] == list(range(300))


def test_a_full_disk_behind_stderr_does_not_stop_the_child(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        child = start(tmp_path, "import os; os.write(2, b'x\\n'); os._exit(6)", stderr=full)
        assert child.wait(60) == 6


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    script = (
        "import os, sys, time\n"
        f"{READY}"
        "size = lambda: os.get_terminal_size(2)\n"
        "os.write(2, b'%d %d %d\\n' % (os.isatty(2), size().columns, size().lines))\n"
        "end = time.monotonic() + 30\n"
        "while size().columns == 77 and time.monotonic() < end: time.sleep(0.05)\n"
        "os.write(2, b'now %d\\r\\x1b[1mbold\\x1b[0m\\n' % size().columns)\n"
    )
    child = start(tmp_path, script, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True)
    wait_for(tmp_path / "ready")
    time.sleep(0.2)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    child.send_signal(signal.SIGWINCH)
    assert child.wait(60) == 0
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:
            break
        if not block:
            break
        seen += block
    os.close(ours)
    assert seen == b"1 77 33\r\nnow 99\r\x1b[1mbold\x1b[0m\r\n"  # the real terminal makes the line ends


def test_ctrl_c_reaches_the_child_once(tmp_path: Path) -> None:
    """The key's signal goes to the whole group: the supervisor must not send a second one."""
    import pty

    script = (
        "import os, sys, time\n"
        "hits = 0\n"
        f"{READY}"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        time.sleep(0.05)\n"
        "    except KeyboardInterrupt:\n"
        "        hits += 1\n"
        "        end = time.monotonic() + 1\n"
        "open('hits', 'w').write(str(hits))\n"
        "sys.exit(11)\n"
    )
    (tmp_path / "train.py").write_text(script)
    pid, terminal = pty.fork()
    if pid == 0:  # a process with a terminal of its own, as in a shell
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "preassert", "run", "--supervise", "train.py"])
    wait_for(tmp_path / "ready")
    time.sleep(0.3)
    os.write(terminal, b"\x03")
    wait_for(tmp_path / "hits")
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:
            break
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert (tmp_path / "hits").read_text() == "1"
    assert os.waitstatus_to_exitcode(status) == 11


def test_the_supervisor_never_imports_torch(supervise: Supervise) -> None:
    code = (
        "import os, sys; from preassert.supervise import Options, Run\n"
        "Run([sys.executable, '-c', 'raise RuntimeError(\"CUDA error: device-side assert triggered\")'], dict(os.environ), "
        "Options(report='r')).go()\nassert 'torch' not in sys.modules"
    )
    done = supervise(code)
    assert done.returncode == 0, done.stderr


def test_a_command_that_cannot_start() -> None:
    from preassert.errors import UsageError
    from preassert.supervise import supervise

    with pytest.raises(UsageError, match="cannot start no-such-program"):
        supervise(["no-such-program"])
