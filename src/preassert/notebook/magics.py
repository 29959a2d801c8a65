"""``%preassert`` and ``%%preassert``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preassert import logs
from preassert.errors import PreassertError, UsageError
from preassert.integrations.explain import Explanation, explain
from preassert.model import MODES, POLICIES
from preassert.notebook import rescue, restart
from preassert.notebook.session import NOT_GUARDED, Session

HELP = """\
%preassert explain [FILE ...]           the last error of this kernel, or a log; options as in `preassert explain`
%preassert check TARGET ...             `preassert check`, here
%preassert status                       guard, CUDA context, snapshot
%preassert snapshot KEY=NAME ...        keep a copy of these models and optimizers in host memory, renewed after each cell
%preassert snapshot [now|load|off]      copy now; load the copy into the variables; stop renewing
%preassert restart                      save variables, restart this kernel in place, restore them
%preassert save [FOLDER]                the first half of it, for front ends with a restart of their own
%preassert restore FOLDER               the second half
%%preassert [--mode MODE] [--policy P]  guard one cell with other settings"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message)


def make_magic(session: Session) -> Callable[..., None]:
    """The function behind both magics."""
    commands: dict[str, Callable[[Session, list[str]], None]] = {
        "explain": _explain,
        "check": _check,
        "status": _status,
        "snapshot": _snapshot,
        "restart": _restart,
        "save": _save,
        "restore": _restore,
    }

    def preassert(line: str, cell: str | None = None) -> None:
        from IPython.core.error import UsageError as ShownWithoutFrames

        try:
            words = shlex.split(line, posix=os.name != "nt")
            if cell is not None:
                _guard_cell(session, words, cell)
            elif not words or words[0] in ("help", "-h", "--help"):
                print(HELP)
            elif words[0] not in commands:
                raise UsageError(f"no such command: {words[0]!r}\n{HELP}")
            else:
                commands[words[0]](session, words[1:])
        except (PreassertError, ValueError) as error:
            if isinstance(error, RuntimeError):  # a violation is one of the cell
                raise
            raise ShownWithoutFrames(f"%preassert: {error}") from None

    preassert.__doc__ = HELP
    return preassert


def _explain(session: Session, words: list[str]) -> None:
    if any(word.startswith("-") for word in words):
        if all(word.startswith("-") for word in words) and not {"-h", "--help"} & set(words):
            raise UsageError("explain: options go with a FILE; without them the last error is explained")
        _command("explain", words)
    elif words:
        _show(session, Explanation(logs.explain_files(logs.expand(words))))
    elif session.last is not None:
        session.publish(session.last.html, session.last.text)
    else:
        error = getattr(sys, "last_value", None)
        if error is None:
            print("No cell has failed in this kernel.")
        else:
            _show(session, explain(error))


def _show(session: Session, explanation: Explanation) -> None:
    session.publish(explanation._repr_html_(), str(explanation))


def _check(session: Session, words: list[str]) -> None:
    _command("check", [*words, "--quiet"])


def _command(name: str, words: list[str]) -> None:
    """A command of the command line; its output is the cell's."""
    from preassert.cli import main

    try:
        main([name, *words])
    except SystemExit:  # argparse has said why
        return


def _status(session: Session, words: list[str]) -> None:
    lines = []
    if not session.is_guarded:
        lines.append(f"guard: {NOT_GUARDED}")
    else:
        from preassert.guard import interception, stats
        from preassert.guard.state import STATE

        options = STATE.options
        if options is None:
            lines.append("guard: off; preassert.install() switches it on")
        else:
            lines.append(f"guard: on, mode {options.mode}, policy {options.policy}, operators intercepted by: {interception()}")
        counted = stats()["violations"]
        lines.extend(f"violation: {what}, {count} times" for what, count in counted.items())
    lines.append(f"CUDA: {session.death}" if session.death is not None else "CUDA: no cell has met a dead context")
    lines.append(f"snapshot: {session.snapshots.describe()}")
    session.display("preassert", lines)


def _snapshot(session: Session, words: list[str]) -> None:
    snapshots, variables = session.snapshots, session.shell.user_ns
    if words == ["off"]:
        snapshots.rolling = False
    elif words == ["load"]:
        print(f"loaded the snapshot of cell [{snapshots.cell}] into {', '.join(snapshots.load(variables))}")
        return
    elif words and words != ["now"]:
        pairs = [word.partition("=") for word in words]
        if not all(name for _, _, name in pairs):
            raise UsageError("snapshot: say which variables, for example model=net optimizer=opt; or now, load, off")
        snapshots.watch({key: name for key, _, name in pairs}, variables)
    if words and words != ["off"]:
        if not snapshots.names:
            raise UsageError("snapshot: say which variables, for example model=net optimizer=opt")
        snapshots.take(variables, session.cell)
    print(f"snapshot: {snapshots.describe()}")


def _write(session: Session, folder: Path) -> rescue.Report:
    shell = session.shell
    cells = [*session.sources, *map(shell.transform_cell, shell.user_ns.get("In", []))]
    return rescue.save(
        folder,
        rescue.user_variables(shell),
        cells,
        context_is_dead=session.death is not None,
        snapshots=session.snapshots,
    )


def _restart(session: Session, words: list[str]) -> None:
    if words:
        raise UsageError("restart takes no arguments")
    restart.check_possible(session.shell)
    folder = rescue.make_folder()
    report = _write(session, folder)
    session.restarting = True
    session.display("Saved; the kernel restarts in place now", report.lines("saved"))
    restart.schedule(session.shell, folder)


def _save(session: Session, words: list[str]) -> None:
    if len(words) > 1:
        raise UsageError("save takes one folder at most")
    folder = Path(words[0]).expanduser() if words else rescue.make_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}") from error
    report = _write(session, folder)
    again = f"after the restart: %load_ext preassert, then %preassert restore {folder}"
    session.display(f"Saved in {folder}", [*report.lines("saved"), again])


def _restore(session: Session, words: list[str]) -> None:
    if len(words) != 1:
        raise UsageError("restore takes the folder that %preassert save has named")
    report, session.sources = rescue.restore(Path(words[0]).expanduser(), session.shell.user_ns, session.snapshots)
    session.display(f"Restored from {words[0]}", report.lines("restored"))


def _guard_cell(session: Session, words: list[str], cell: str) -> None:
    parser = _Parser(prog="%%preassert", add_help=False)
    parser.add_argument("--mode", choices=MODES, default="auto")
    parser.add_argument("--policy", choices=POLICIES, default="raise")
    chosen = parser.parse_args(words)
    from preassert.guard import guard

    shell = session.shell
    with guard(mode=chosen.mode, policy=chosen.policy):
        session.quiet = True
        try:
            result = shell.run_cell(cell, store_history=False)
        finally:
            session.quiet = False
        result.raise_error()
