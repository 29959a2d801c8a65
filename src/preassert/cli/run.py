"""``preassert run``: run a program as ``python`` would, guarded, in this process and in every Python process below it.

The program replaces this process: one interpreter is started anew with :mod:`preassert._bootstrap` on its ``PYTHONPATH``, so
that ``__main__``, ``sys.argv``, ``sys.path``, tracebacks, signals and exit codes are the interpreter's own work.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preassert.errors import UsageError
from preassert.model import EXIT_USAGE, MODES

SUMMARY = "run a script; a bad value raises at its own line, before the kernel can assert"

USAGE = """\
usage: preassert run [options] SCRIPT [arguments of the script]
       preassert run [options] -m MODULE [arguments of the module]
       preassert run [options] -c CODE [arguments]

Runs the program as python would. A value that an operator's GPU kernel does not accept raises preassert.Violation at the
line that passed it, before the kernel runs; the process then ends with exit code 65. Every other exit code is the program's
own. Child processes (torchrun, multiprocessing, DataLoader workers, subprocess) are guarded too.

options:
  --mode MODE             auto (default): immediate for CPU tensors, deferred on accelerators;
                          immediate: check, then launch, everywhere (one synchronisation a check on a GPU);
                          deferred: no synchronisation; reported at the next boundary, before optimizer.step
  --ignore-hazard SLUG    do not check contracts of this hazard (may be repeated; `preassert hazards` lists them)
  --ignore-operator NAME  do not check this operator, for example aten::embedding (may be repeated)
  --sentinel N            this integer is legal as a value of every argument (may be repeated)
  --json FILE             write the violation that ends the program to FILE, as one JSON object
  --simgpu                run CUDA code on a simulated GPU (for tests and demonstrations)
  --supervise             watch from a second process: explain the log if the program dies in another way
  --rerun sync            with --supervise: after an unlocated assert, run once more with CUDA_LAUNCH_BLOCKING=1
  --core-dump             with --rerun sync and --report: the second run writes a CUDA core dump into DIR
  --restart N             with --supervise: restart up to N times, never after a fault of the data
  --restart-with ARGS     with --restart: arguments added to the script when it is restarted ("--resume last.ckpt")
  --timeout SECONDS       with --supervise: stop a run that takes longer (exit code 124)
  --report DIR            with --supervise: keep the full log and the diagnosis in DIR
  -h, --help              this text

torchrun: preassert run -m torch.distributed.run --nproc-per-node 2 train.py
"""

_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_bootstrap", "path")


@dataclass
class Options:
    """What stands before the program on the command line."""

    mode: str = "auto"
    skip: list[str] = field(default_factory=list)
    sentinels: list[int] = field(default_factory=list)
    json: str | None = None
    simgpu: bool = False
    supervise: bool = False
    rerun: str | None = None
    core_dump: bool = False
    restart: int = 0
    restart_with: list[str] = field(default_factory=list)
    timeout: float | None = None
    report: str | None = None


def main(argv: Sequence[str]) -> int:
    if not argv:
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    options, program = parse(argv)
    if program is None:
        print(USAGE)
        return 0
    _check_interpreter()
    if options.json is not None:
        _clear_report(options.json)
    command = [sys.executable, *_interpreter_flags(), *program]
    environment = child_environment(options, os.environ)
    if options.supervise:
        supervise = importlib.import_module("preassert.supervise")
        code: int = supervise.supervise(
            command,
            environment,
            rerun=options.rerun,
            core_dump=options.core_dump,
            restart=options.restart,
            restart_arguments=options.restart_with,
            timeout_s=options.timeout,
            report=options.report,
        )
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execve(sys.executable, command, environment)
    # On Windows exec* returns to the shell at once and detaches the new process.
    return _wait(command, environment)


def parse(argv: Sequence[str]) -> tuple[Options, list[str] | None]:
    """Split into our options and the program (as ``python`` takes it), which is None when help is asked for.

    Raises:
        UsageError: an unknown option, a missing or wrong value, or no program.
    """
    options = Options()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return options, None
        if word in ("-m", "-c"):
            if not rest:
                raise UsageError(f"{word} needs a value")
            return _checked(options), [word, *rest]
        if word == "--":
            break
        if word == "-" or not word.startswith("-"):
            rest.insert(0, word)
            break
        name, equals, value = word.partition("=")
        if name in _FLAGS:
            if equals:
                raise UsageError(f"{name} takes no value")
            setattr(options, _FLAGS[name], True)
            continue
        if name not in _TAKERS:
            raise UsageError(_unknown(name))
        if not equals:
            if not rest:
                raise UsageError(f"{name} needs a value")
            value = rest.pop(0)
        _TAKERS[name](options, value)
    if not rest:
        raise UsageError("no script; see `preassert run --help`")
    _check_script(rest[0])
    return _checked(options), rest


def _take_mode(options: Options, value: str) -> None:
    if value not in MODES:
        raise UsageError(f"--mode is {', '.join(MODES[:-1])} or {MODES[-1]}, not {value!r}")
    options.mode = value


def _take_hazard(options: Options, value: str) -> None:
    from preassert import hazards

    try:
        hazards.get(value)
    except KeyError as error:
        raise UsageError(f"--ignore-hazard: {error.args[0]}") from None
    options.skip.append(value)


def _take_operator(options: Options, value: str) -> None:
    import difflib

    from preassert.contracts.table import table

    operator = (value if "::" in value else f"aten::{value}").partition(".")[0]
    known = {row.partition(".")[0] for row in table()}
    if operator not in known:
        near = difflib.get_close_matches(operator, known, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"--ignore-operator: {value!r} is not guarded{hint}")
    options.skip.append(operator)


def _take_sentinel(options: Options, value: str) -> None:
    options.sentinels.append(_integer("--sentinel", value))


def _take_json(options: Options, value: str) -> None:
    if value == "-":
        raise UsageError("--json takes a file: the standard output belongs to the script")
    options.json = os.path.abspath(value)
    if not os.path.isdir(os.path.dirname(options.json)):
        raise UsageError(f"--json: no folder {os.path.dirname(options.json)}")


def _take_rerun(options: Options, value: str) -> None:
    if value != "sync":
        raise UsageError(f"--rerun is sync, not {value!r}")
    options.rerun = value


def _take_restart(options: Options, value: str) -> None:
    options.restart = _integer("--restart", value)
    if options.restart < 0:
        raise UsageError("--restart: the number is negative")


def _take_restart_with(options: Options, value: str) -> None:
    try:
        options.restart_with = shlex.split(value)
    except ValueError as error:
        raise UsageError(f"--restart-with: {error}") from None


def _take_timeout(options: Options, value: str) -> None:
    try:
        options.timeout = float(value)
    except ValueError:
        raise UsageError(f"--timeout: {value!r} is not a number of seconds") from None
    if not 0 < options.timeout < float("inf"):
        raise UsageError("--timeout: the number of seconds is not positive and finite")


def _take_report(options: Options, value: str) -> None:
    options.report = os.path.abspath(value)


_FLAGS = {"--simgpu": "simgpu", "--supervise": "supervise", "--core-dump": "core_dump"}
_TAKERS = {
    "--mode": _take_mode,
    "--ignore-hazard": _take_hazard,
    "--ignore-operator": _take_operator,
    "--sentinel": _take_sentinel,
    "--json": _take_json,
    "--rerun": _take_rerun,
    "--restart": _take_restart,
    "--restart-with": _take_restart_with,
    "--timeout": _take_timeout,
    "--report": _take_report,
}


def _integer(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{option}: {value!r} is not an integer") from None


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [*_FLAGS, *_TAKERS], n=1, cutoff=0.75)
    hint = f"did you mean {near[0]}?" if near else "options of the script go after it"
    return f"unknown option {name}; {hint}"


def _checked(options: Options) -> Options:
    for name in ("rerun", "core_dump", "restart", "restart_with", "timeout", "report"):
        if getattr(options, name) and not options.supervise:
            raise UsageError(f"--{name.replace('_', '-')} needs --supervise")
    if options.core_dump and not (options.rerun and options.report):
        raise UsageError("--core-dump needs --rerun sync and --report DIR")
    if options.restart_with and not options.restart:
        raise UsageError("--restart-with needs --restart N")
    return options


def _check_script(script: str) -> None:
    """Catch the one frequent slip; every other missing file is python's to complain about."""
    if script == "-" or os.path.exists(script) or os.sep in script:
        return
    found = shutil.which(script)
    if found:
        hint = "-m torch.distributed.run" if script == "torchrun" else found
        raise UsageError(f"{script} is a command, not a script here: preassert run {hint} ...")


def _check_interpreter() -> None:
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError("the guard reaches the program through PYTHONPATH and sitecustomize: run python without -E, -I and -S")
    if not sys.executable:
        raise UsageError("this Python does not know its own executable")


def _clear_report(file: str) -> None:
    """A report of an earlier run must not speak for this one."""
    try:
        os.remove(file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"--json: {error}") from error


def _interpreter_flags() -> list[str]:
    """The options that this interpreter was started with (``-O``, ``-X dev``, ``-W error``, ``-u``, ...)."""
    flags: list[str] = []
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] not in ("-", "-m", "-c", "--"):
        word = words.pop(0)
        bundle = re.fullmatch(r"(-[bBdiOPqsuvx]+)[mc]", word)  # -um module: the program follows
        if bundle:
            flags.append(bundle[1])
            break
        flags.append(word)
        if word in ("-X", "-W", "--check-hash-based-pycs") and words:
            flags.append(words.pop(0))
    return flags


def child_environment(options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with the bootstrap in front of ``PYTHONPATH`` and the options beside it."""
    child = dict(environment)
    given = environment.get("PYTHONPATH")
    # Not "".split: an empty entry would put the working directory on the path.
    entries = [entry for entry in given.split(os.pathsep) if entry != _BOOTSTRAP] if given else []
    child["PYTHONPATH"] = os.pathsep.join([_BOOTSTRAP, *entries])
    settings: dict[str, Any] = {"guard": {"mode": options.mode}}
    if options.skip:
        settings["guard"]["skip"] = options.skip
    if options.sentinels:
        settings["guard"]["sentinels"] = options.sentinels
    if options.json:
        settings["json"] = options.json
    if options.simgpu:
        settings["simgpu"] = True
    child["PREASSERT_RUN"] = json.dumps(settings)
    return child


def _wait(command: list[str], environment: dict[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the console sent it to the child as well; the child decides
