"""What preassert does to one IPython shell: guard it, tell its failures, remember when its CUDA context died."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preassert.errors import PreassertError, Violation
from preassert.integrations.explain import Explanation, explain, kills_context, names_device
from preassert.notebook import rescue, restart
from preassert.notebook.snapshot import Snapshots
from preassert.notebook.stderr import Listener
from preassert.report import card
from preassert.report.diagnosis import to_text
from preassert.report.text import clean

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FILE = re.compile('File "([^"\n]+)"')
_WAIT_S = 0.3  # for assertion lines that are still on their way through the pipe
NOT_GUARDED = "torch is not installed here, so cells are not guarded; %preassert explain and %preassert check work"

WAYS_OUT = (
    ("%preassert restart", "saves your variables that live on the CPU, restarts this kernel in place and restores them"),
    ("%preassert explain", "shows again why the context died"),
)


@dataclass(frozen=True)
class Death:
    """When the CUDA context died, as far as this kernel can tell."""

    cell: int | None  # None: before the extension was loaded
    hazard: str

    def __str__(self) -> str:
        since = "before preassert was loaded" if self.cell is None else f"cell [{self.cell}]"
        return f"the CUDA context is dead since {since} ({self.hazard})"


@dataclass(frozen=True)
class Story:
    """One failure, told: HTML for a notebook, text for a terminal, and the line that stands in the place of the frames."""

    html: str
    text: str
    line: str


class Session:
    """The extension in one shell, from ``%load_ext`` to ``%unload_ext``."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.is_guarded = False
        self.death: Death | None = None
        self.last: Story | None = None
        self.snapshots = Snapshots()
        self.restarting = False
        self.quiet = False  # a cell magic shows the failure of its inner cell itself
        self.sources: list[str] = []  # of definitions that an earlier process has left
        self._rescued = os.environ.pop(restart.RESCUE, None)
        self._welcome: tuple[str, list[str]] | None = None  # shown by the first cell after a restart
        self._listener = Listener()
        self._told: tuple[int, int] | None = None  # (id of the exception, cell): a second showing is %tb's

    @property
    def has_html(self) -> bool:
        return hasattr(self.shell, "kernel")

    @property
    def cell(self) -> int:
        """Number of the cell that runs now: its source stands last in the history (``execution_count`` may be one ahead)."""
        return len(self.shell.user_ns.get("In", [""])) - 1

    # --- begin and end

    def start(self) -> None:
        from preassert.notebook.magics import make_magic

        shell = self.shell
        loop = getattr(getattr(shell, "kernel", None), "io_loop", None)
        if loop is not None:
            self._listener.start(loop.add_callback)
            loop.add_callback(self._restore)
        self._show, self._run = shell._showtraceback, shell.run_ast_nodes
        shell._showtraceback, shell.run_ast_nodes = self._show_failure, self._run_cell
        shell.register_magic_function(make_magic(self), "line_cell", "preassert")
        shell.events.register("pre_run_cell", self._before_cell)
        self._guard()
        died = getattr(sys, "last_value", None)
        if self.death is None and died is not None and kills_context(died):
            self.death = Death(None, explain(died).verdict)
            print(f"preassert: {self.death}. %preassert explain tells why, %preassert restart revives it.", file=sys.stderr)

    def stop(self) -> None:
        shell = self.shell
        # methods again, unless somebody has put something else there in the meantime
        for name, ours in (("_showtraceback", self._show_failure), ("run_ast_nodes", self._run_cell)):
            if shell.__dict__.get(name) == ours:
                del shell.__dict__[name]
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("preassert", None)
        shell.events.unregister("pre_run_cell", self._before_cell)
        self._listener.stop()
        if self.is_guarded:
            from preassert.guard import uninstall

            uninstall()

    def _guard(self) -> None:
        if importlib.util.find_spec("torch") is None:
            print(f"preassert: {NOT_GUARDED}.", file=sys.stderr)
            return
        from preassert.guard import install

        install()
        self.is_guarded = True

    def _restore(self) -> None:
        """Bring back what a restart has saved. Not while IPython starts: it hides the variables that exist then."""
        folder, self._rescued = self._rescued, None
        if folder is None:
            return
        try:
            report, self.sources = rescue.restore(Path(folder), self.shell.user_ns, self.snapshots)
        except Exception as error:  # files of another process: a kernel must start whatever they hold
            self._welcome = ("The kernel has restarted; nothing could be restored", [f"{type(error).__name__}: {error}", folder])
            return
        lines = report.lines("restored")
        if report.unloaded:
            names = ", ".join(report.unloaded)
            lines.append(f"{names}: still in {folder}; once the reason is gone, %preassert restore {folder} tries again")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        if self.snapshots.states:
            lines.append("next: run the cell that builds them, then %preassert snapshot load")
        self._welcome = ("The kernel has restarted, with a living CUDA context", lines)

    def _before_cell(self, *_: Any) -> None:
        self._restore()
        if self._welcome is not None:
            (title, lines), self._welcome = self._welcome, None
            self.display(title, lines)

    # --- cells

    async def _run_cell(self, *arguments: Any, **keywords: Any) -> bool:
        """The end of a cell is a boundary: what the deferred mode has recorded fails the cell that did it."""
        result = keywords.get("result")
        if self.restarting:
            return self._fail(result, PreassertError("the kernel is restarting; run this cell again in a few seconds"))
        failed = bool(await self._run(*arguments, **keywords))
        try:
            self._settle(failed)
        except Exception as error:
            if failed and not isinstance(error, Violation):
                return True  # the cell has shown its own failure
            return self._fail(result, error)
        return failed

    def _fail(self, result: Any, error: Exception) -> bool:
        if result is not None:
            result.error_in_exec = error
        self.shell.showtraceback((type(error), error, error.__traceback__))
        return True

    def _settle(self, failed: bool) -> None:
        if self.is_guarded:
            from preassert.guard import flush

            flush()
        if failed or self.death is not None or not self.snapshots.rolling:
            return
        try:
            self.snapshots.take(self.shell.user_ns, self.cell)
        except Exception as error:
            if kills_context(error):
                raise
            print(f"preassert: no snapshot at this cell ({type(error).__name__}: {error})", file=sys.stderr)

    # --- failures

    def _show_failure(self, kind: type[BaseException], error: BaseException, frames: list[str]) -> None:
        """In the place of ``shell._showtraceback``, which gets one line or the frames."""
        if self.quiet:
            return
        again, self._told = self._told == (id(error), self.cell) or self._is_tb(error), (id(error), self.cell)
        story = None
        if not again:
            try:
                story = self.tell(error, frames)
            except Exception as failure:  # the frames are worth more than our words
                print(f"preassert: could not explain this error ({type(failure).__name__}: {failure})", file=sys.stderr)
        if story is None:
            self._show(kind, error, frames)
            return
        self.last = story
        if self.has_html:
            self.publish(story.html, story.text)
            self._show(kind, error, [story.line])
        else:
            self._show(kind, error, [f"{story.text}\n\n(%tb shows every frame)"])

    def _is_tb(self, error: BaseException) -> bool:
        """Is an exception of an earlier cell shown again? ``%tb`` does that, in a cell of its own."""
        return self._told is not None and self._told[0] == id(error) and getattr(sys, "last_value", None) is error

    def tell(self, error: BaseException, frames: list[str]) -> Story | None:
        """None: an error that is not preassert's business."""
        text_of_frames = _ANSI.sub("", "\n".join(frames))
        for each in _chain(error):
            if isinstance(each, Violation):
                return self._tell_violation(each, text_of_frames)
        # a dead context shows through any handler
        for each in _chain(error, handled=True):
            if isinstance(each, RuntimeError) and names_device(each):
                return self._tell_device_error(each, text_of_frames)
        return None

    def _tell_violation(self, violation: Violation, frames: str) -> Story:
        place = self.place(violation)
        text = str(violation)
        if violation.site is not None and place is not None:
            text = text.replace(f"{violation.site.file}:{violation.site.line}", place)
        text = clean(f"preassert.Violation: {text}")
        line = f"Violation: {violation.hazard}" + (f" ({place})" if place else "") + "; see the card. %tb shows every frame."
        return Story(card.violation_card(violation, place=place, frames=frames), f"{text}\n  {card.ALIVE}", line)

    def place(self, violation: Violation) -> str | None:
        """``cell In[3], line 2``; None for a line that is not of a cell."""
        return None if violation.site is None else self._in_cell(violation.site.file, violation.site.line)

    def _in_cell(self, file: str, line: int) -> str | None:
        label = self._label(file)
        return None if label is None else f"cell {label}, line {line}"

    def _label(self, file: str) -> str | None:
        """``In[3]``; None for a file that is not of a cell, and with an IPython that does not tell (before 8)."""
        name = getattr(self.shell.compile, "format_code_name", None)
        found = name(file) if name is not None else None
        return None if found is None else str(found[1])

    def _name_cell(self, file: re.Match[str]) -> str:
        label = self._label(file[1])
        return file[0] if label is None else f'File "Cell {label}"'

    def _last_line_in_a_cell(self, error: BaseException) -> str | None:
        lines = [self._in_cell(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        return next((line for line in reversed(lines) if line is not None), None)

    def _tell_device_error(self, error: RuntimeError, frames: str) -> Story | None:
        if self.death is not None and kills_context(error):
            return self._tell_echo(frames)
        explanation = self._explain(error)
        if explanation.verdict in ("clean", "unknown") and not explanation.restart_required:
            return None
        lead, more, place = "", "", None
        if explanation.restart_required:
            self.death = Death(self.cell, explanation.verdict)
            lead = f"The CUDA context of this kernel is dead since this cell [{self.cell}]. Every later CUDA call will fail."
            place = self._last_line_in_a_cell(error)
            more = "<h3>What to do</h3>" + card.commands(WAYS_OUT)
        report = {**explanation.to_dict(), "reproduce": []}  # the file of a cell cannot be run
        noticed = f"Noticed at {place}; the fault may be earlier, because kernels run later." if place else ""
        text = "\n".join(part for part in (lead, noticed, to_text(report), _as_text(WAYS_OUT) if more else "") if part)
        line = f"{explanation.verdict}; see the card. %tb shows every frame."
        return Story(card.diagnosis_card(report, lead=lead, place=place, more=more, frames=frames), text, line)

    def _explain(self, error: BaseException) -> Explanation:
        """The traceback, below what the device has printed: only its lines name the kernel and the elements."""
        # Python's own form: IPython's shows lines of source that did not run
        trace = _FILE.sub(self._name_cell, "".join(traceback.format_exception(error)))
        alone = explain(trace)
        if alone.verdict != "device-assert-unlocated":
            return alone  # what stderr carried may be about something else
        printed = self._listener.text(_WAIT_S)
        return explain(f"{printed}\n{trace}") if printed else alone

    def _tell_echo(self, frames: str) -> Story:
        said = f"{str(self.death)[0].upper()}{str(self.death)[1:]}."
        why = "This cell is not at fault: no CUDA call can succeed in this process any more, and tensors on the GPU are lost."
        parts = [card.paragraph(why), card.commands(WAYS_OUT), card.folded("Full traceback", frames)]
        return Story(
            card.card(said, parts, "dead"), f"{said}\n{why}\n{_as_text(WAYS_OUT)}", f"{said} %preassert restart revives it."
        )

    # --- output

    def publish(self, html: str, text: str) -> None:
        self.shell.display_pub.publish({"text/html": html, "text/plain": text})

    def display(self, title: str, lines: list[str]) -> None:
        """A remark: a card in a notebook, lines in a terminal."""
        text = clean("\n".join([title, *(f"  {line}" for line in lines)]))
        self.publish(card.card(title, [card.listing("", lines)], "note"), text)


def _chain(error: BaseException, *, handled: bool = False) -> Iterator[BaseException]:
    """The exception and what it was raised *from*; with ``handled`` also what was being handled when it was raised."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = current.__context__ if handled and not current.__suppress_context__ else None
        current = current.__cause__ or context


def _as_text(rows: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f"  {typed}: {does}" for typed, does in rows)
