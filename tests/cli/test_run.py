"""``preassert run`` behaves as ``python``: every program here is run both ways. None of them imports torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from preassert.cli import run
from preassert.errors import UsageError

PYTHON = [sys.executable]
GUARDED = [sys.executable, "-m", "preassert", "run"]


def start(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **options)


def both(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run both ways, check that nobody can tell, and return the result."""
    plain, guarded = (start([*prefix, *words], folder, **options) for prefix in (PYTHON, GUARDED))
    assert (guarded.returncode, guarded.stdout, guarded.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return guarded


PROGRAMS: dict[str, str] = {
    "names": """
        import sys, __main__
        print(sys.argv, sys.path, __name__, __file__, __spec__, __package__, sorted(vars(__main__)))
        print(sys.orig_argv[-3:], sys.flags)
    """,
    "exit 3": "import sys; print('out'); sys.exit(3)",
    "exit with words": "raise SystemExit('bad luck')",
    "exit 0": "raise SystemExit",
    "error": """
        def inner(): return 1 / 0
        def outer():
            try: inner()
            except ZeroDivisionError as error: raise ValueError('no') from error
        outer()
    """,
    "error of unknown type": """
        class Odd(Exception):
            def __str__(self): raise RuntimeError
        raise Odd
    """,
    "group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])" if sys.version_info >= (3, 11) else "raise ValueError",
    "syntax error": "def f(:",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "thread": """
        import threading
        def work(): raise ValueError('in a thread')
        t = threading.Thread(target=work, name='w'); t.start(); t.join()
    """,
    "handlers at exit": """
        import atexit, sys
        atexit.register(print, 'last'); atexit.register(print, 'first')
        class Late:
            def __del__(self): print('deleted')
        late = Late()
        raise ValueError
    """,
    "own excepthook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print('mine', kind.__name__)
        raise ValueError
    """,
    "standard input": "print(input()[::-1])",
    "main guard and pickle": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        if __name__ == '__main__':
            print(pickle.dumps(Point(3), 0), pickle.loads(pickle.dumps(Point(3))).x)
    """,
    "multiprocessing": """
        import multiprocessing, sys
        class Box:
            def __init__(self, x): self.x = x
        def work(box): return Box(box.x * 2)
        if __name__ == '__main__':
            for method in ('fork', 'spawn', 'forkserver'):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, [box.x for box in pool.map(work, [Box(1), Box(2)])])
    """,
    "child process": """
        import subprocess, sys
        code = 'import sys; print(sys.path[0:2]); sys.exit(9)'
        child = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
        print(child.returncode, child.stdout, child.stderr)
    """,
    "frames": "import inspect; print(len(inspect.stack()))",
    "modules": "import sys; print([name for name in sys.modules if name.partition('.')[0] in ('preassert', 'torch', 'json')])",
    "no module": "import torchh",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_script_behaves_as_under_python(source: str, tmp_path: Path) -> None:
    import textwrap

    (tmp_path / "script.py").write_text(textwrap.dedent(source), encoding="utf-8")
    both(tmp_path, "script.py", "one", "--two", "-m", input="abc\n")


def test_ways_to_name_a_program(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv, sys.path[0], __name__, __spec__ and __spec__.name)\n"
    package = tmp_path / "package"
    package.mkdir()
    for name in ("__init__", "__main__", "part"):
        (package / f"{name}.py").write_text(show, encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", show)
    assert both(tmp_path, "-m", "package", "a").returncode == 0
    assert both(tmp_path, "-m", "package.part", "--help").returncode == 0
    assert both(tmp_path, "package", "a").returncode == 0
    assert both(tmp_path, "archive.pyz", "a").returncode == 0
    assert both(tmp_path, "-c", show, "-c", "x").returncode == 0
    assert both(tmp_path, "-", "a", input=show).returncode == 0
    assert both(tmp_path, "-m", "package.missing").returncode == 1
    assert both(tmp_path, "missing.py").returncode == 2
    assert start([*GUARDED, "--", "package", "a"], tmp_path).returncode == 0


def test_interpreter_options_are_kept(tmp_path: Path) -> None:
    show = "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, __debug__)"
    for options in (["-O"], ["-X", "dev"], ["-Xutf8", "-W", "error::UserWarning"], ["-ub"]):
        plain = start([sys.executable, *options, "-c", show], tmp_path)
        guarded = start([sys.executable, *options, "-m", "preassert", "run", "-c", show], tmp_path)
        assert guarded.stdout == plain.stdout
    bundled = start([sys.executable, "-um", "preassert", "run", "-c", show], tmp_path)
    assert bundled.returncode == 0


@pytest.mark.parametrize("option", ["-E", "-I"])
def test_options_that_would_shut_out_the_guard_are_refused(option: str, tmp_path: Path) -> None:
    code = "from preassert.cli import main; raise SystemExit(main(['run', '-c', 'print(1)']))"
    done = start([sys.executable, option, "-c", code], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "without -E" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_from_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    codes = []
    for prefix in (PYTHON, GUARDED):
        process = subprocess.Popen([*prefix, "slow.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        codes.append((process.returncode, errors))
    assert codes[0] == codes[1]
    assert codes[0][0] == -signal.SIGINT


SITECUSTOMIZE = {
    "prints": ("print('customized')", "customized\n"),
    "imports": ("import json, sys; print(sys.path[0] != '', __name__, 'sitecustomize' in sys.modules)", "sitecustomize True"),
    "broken": ("1 / 0", ""),
}


@pytest.mark.parametrize(("source", "shown"), SITECUSTOMIZE.values(), ids=SITECUSTOMIZE.keys())
def test_the_users_sitecustomize_still_runs(source: str, shown: str, tmp_path: Path) -> None:
    """Started as ``preassert run`` starts it; the launcher, being python, runs the file once more for itself."""
    (tmp_path / "sitecustomize.py").write_text(source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*PYTHON, "-c", "import sys; print(sys.path[:2], sys.modules.get('sitecustomize'))"]
    plain = start(command, tmp_path, env=environment)
    guarded = start(command, tmp_path, env=run.child_environment(run.Options(), environment))
    assert shown in plain.stdout
    assert guarded.stderr == plain.stderr
    if source != "1 / 0":  # after a failure python forgets the module, and here finds ours
        assert guarded.stdout == plain.stdout


@pytest.mark.parametrize("given", [None, "", "a", "a::b", ":"])
def test_pythonpath_keeps_its_meaning(given: str | None, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if given is not None:
        environment["PYTHONPATH"] = given.replace(":", os.pathsep)
    both(tmp_path, "-c", "import sys; print(sys.path)", env=environment)


def test_a_run_within_a_run(tmp_path: Path) -> None:
    show = "import os; print(os.environ['PYTHONPATH'])"
    inner = f"import subprocess, sys; sys.exit(subprocess.call({[*GUARDED, '-c', show]!r}))"
    done = start([*GUARDED, "-c", inner], tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("_bootstrap") == 1


def test_without_the_guard_the_script_runs_and_it_is_said(tmp_path: Path) -> None:
    """A module named torch that is not torch: nobody shall believe that the process is guarded."""
    (tmp_path / "torch.py").write_text("print('not the real one')\n", encoding="utf-8")
    done = start([*GUARDED, "-c", "import torch; print(torch.__spec__.loader.__class__.__name__)"], tmp_path)
    assert done.returncode == 0
    assert done.stdout == "not the real one\nSourceFileLoader\n"
    assert "preassert: this process is not guarded" in done.stderr


def test_an_interpreter_without_preassert_is_told_apart(tmp_path: Path) -> None:
    """A child of another environment: the hook finds the package by its place."""
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    code = "import torch, sys; print('preassert' in sys.modules)"
    bare = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-s', '-c', {code!r}], cwd={str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONNOUSERSITE": "1"}
    interpreter = getattr(sys, "_base_executable", sys.executable)
    plain = start([interpreter, "-c", "import preassert"], tmp_path)
    if plain.returncode == 0:
        pytest.skip("the base interpreter has preassert itself")
    done = start([*GUARDED, "-c", bare.replace("sys.executable", repr(interpreter))], tmp_path, env=environment)
    assert done.stdout == "True\n", done.stderr


USAGE: dict[str, tuple[list[str], str]] = {
    "unknown option": (["--mod", "auto", "x.py"], "unknown option --mod; did you mean --mode?"),
    "option of the script": (["--epochs", "3"], "options of the script go after it"),
    "no script": (["--mode", "auto"], "no script"),
    "no module": (["-m"], "-m needs a value"),
    "no mode": (["--mode"], "--mode needs a value"),
    "wrong mode": (["--mode", "eager", "x.py"], "auto, immediate or deferred"),
    "no such hazard": (["--ignore-hazard", "target-out-of-rang", "x.py"], "target-out-of-range"),
    "no such operator": (["--ignore-operator", "aten::embeding", "x.py"], "aten::embedding"),
    "no number": (["--sentinel", "x", "x.py"], "'x' is not an integer"),
    "json to the script's output": (["--json", "-", "x.py"], "belongs to the script"),
    "json nowhere": (["--json", "no/such/folder/x.json", "x.py"], "no folder"),
    "flag with a value": (["--simgpu=1", "x.py"], "takes no value"),
    "restart alone": (["--restart", "2", "x.py"], "--restart needs --supervise"),
    "rerun how": (["--supervise", "--rerun", "fast", "x.py"], "--rerun is sync"),
}


@pytest.mark.parametrize(("words", "message"), USAGE.values(), ids=USAGE.keys())
def test_bad_usage(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        run.parse(words)
    assert message in str(caught.value)


def test_bad_usage_ends_with_2(tmp_path: Path) -> None:
    done = start([*GUARDED, "--mod", "x.py"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("preassert run: unknown option --mod")
    assert start(GUARDED, tmp_path).returncode == 2


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: preassert run")


def test_a_command_is_not_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "torchrun"
    command.write_text("#!/bin/sh\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UsageError, match=r"preassert run -m torch\.distributed\.run"):
        run.parse(["torchrun", "--nproc-per-node", "2", "x.py"])


def test_options_end_where_the_program_begins() -> None:
    options, program = run.parse(["--mode=immediate", "--sentinel", "255", "--sentinel=-1", "x.py", "--mode", "fast", "-h"])
    assert program == ["x.py", "--mode", "fast", "-h"]
    assert (options.mode, options.sentinels) == ("immediate", [255, -1])


def test_options_reach_the_child() -> None:
    options, _ = run.parse(
        ["--ignore-hazard", "target-out-of-range", "--ignore-operator", "embedding", "--sentinel", "7", "--simgpu", "-c", "0"]
    )
    import json

    child = json.loads(run.child_environment(options, {})["PREASSERT_RUN"])
    assert child == {
        "guard": {"mode": "auto", "skip": ["target-out-of-range", "aten::embedding"], "sentinels": [7]},
        "simgpu": True,
    }


def test_a_report_of_an_earlier_run_is_taken_away(tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    report.write_text("{}", encoding="utf-8")
    assert start([*GUARDED, "--json", str(report), "-c", "0"], tmp_path).returncode == 0
    assert not report.exists()
