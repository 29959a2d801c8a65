"""Guards one process from its start: installs the guard when torch is imported, and ends the process with 65 on a violation.

Loaded by ``path/sitecustomize.py`` before the script. Imports nothing but builtins until torch is imported or the process fails,
so a process that never imports torch pays nothing. The options of ``preassert run`` come as JSON in ``PREASSERT_RUN``.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from types import FrameType, ModuleType, TracebackType
from typing import Any

ENVIRONMENT = "PREASSERT_RUN"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXIT_DATAERR = 65  # as preassert.model, which must not be imported here: it costs start-up time

_OWN_FILES = PACKAGE + os.sep
_PRINTED = "preassert.Violation: "
# An error of these types raised in a file of preassert is a fault of preassert: its frames are wanted.
_FAULTS_OF_OURS = (AttributeError, NameError, KeyError, AssertionError)

_unsettled = False  # did a violation reach no boundary before the end?
_survived: BaseException | None = None  # the last violation that was printed and needs nothing more


def start() -> None:
    """Arm this process. Called once, at start-up."""
    # Registered before anything else can, hence called after everything else.
    atexit.register(_at_exit)
    _wrap_excepthook()
    if "torch" in sys.modules:
        _torch_is_here()
    else:
        sys.meta_path.insert(0, _TorchFinder())


def options() -> dict[str, Any]:
    """The options of ``preassert run`` for this process."""
    import json

    found: dict[str, Any] = json.loads(os.environ.get(ENVIRONMENT, "{}"))
    return found


class _TorchFinder:
    """First on ``sys.meta_path`` until torch has been imported, then gone."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _TorchLoader(spec.loader, self)
                return spec
        return None


class _TorchLoader:
    """The real loader of torch, followed by ours; the module keeps the real one."""

    def __init__(self, loader: Any, finder: _TorchFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _torch_is_here()


def _torch_is_here() -> None:
    _wrap_excepthook()  # the script may have set its own before it imported torch
    _wrap_thread_excepthook()
    try:
        _make_importable()
        chosen = options()
        import importlib

        if chosen.get("simgpu"):
            importlib.import_module("preassert.simgpu").activate()
        _report_what_spawn_catches()
        if chosen.get("guard", True) is not None:  # `preassert demo` shows what happens without
            importlib.import_module("preassert.guard").install(**chosen.get("guard", {}))
            _take_over_the_end()
    except Exception as error:
        # The script is the user's work: it goes on, but nobody shall believe that it is guarded.
        print(f"preassert: this process is not guarded: {type(error).__name__}: {error}", file=sys.stderr)


def _make_importable() -> None:
    """Let ``import preassert`` find this copy even in an interpreter that does not have it installed."""
    import importlib.util

    if "preassert" in sys.modules or importlib.util.find_spec("preassert") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "preassert", os.path.join(PACKAGE, "__init__.py"), submodule_search_locations=[PACKAGE]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no preassert at {PACKAGE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["preassert"] = module
    spec.loader.exec_module(module)


# -- when the process fails


def _wrap_excepthook() -> None:
    previous = sys.excepthook
    if getattr(previous, "_preassert", False):
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        given_back = _given_back(error)
        if given_back is not None:
            kind, error = type(given_back), given_back
        global _survived
        violated = is_violation(error)
        _strip_chain(error)
        caller = sys._getframe().f_back
        if violated and not _ends_the_program(caller):
            _survived, violated = error, False
        if violated:
            _report(error)
        previous(kind, error, error.__traceback__)
        if violated and caller is None and not _interactive():
            _survived = error  # no more to do at exit
            raise SystemExit(EXIT_DATAERR)  # honoured by the interpreter, which then ends in its usual order

    excepthook._preassert = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def _ends_the_program(frame: FrameType | None) -> bool:
    """Is the excepthook called because the program ends, by the interpreter or by another hook that it called?

    Consoles (``code.interact``), event loops and handlers of the script's own call it as well, and go on.
    """
    if frame is None:
        return True
    threading = sys.modules.get("threading")
    if threading is not None and threading.current_thread() is not threading.main_thread():
        return False
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _given_back(error: BaseException) -> BaseException | None:
    """The violation that scripted code (torch.jit) has turned into a plain RuntimeError, raised from it; else None."""
    guard = sys.modules.get("preassert.guard")
    if guard is None or type(error) is not RuntimeError:
        return None
    lost: BaseException | None = guard.scripted_form_of(error)
    if lost is not None:
        lost.__cause__ = error
    return lost


def _wrap_thread_excepthook() -> None:
    import threading

    previous = threading.excepthook
    if getattr(previous, "_preassert", False):
        return

    def excepthook(arguments: Any) -> None:
        if arguments.exc_value is not None:
            _strip_chain(arguments.exc_value)
            trace = arguments.exc_value.__traceback__
            arguments = type(arguments)((arguments.exc_type, arguments.exc_value, trace, arguments.thread))
        previous(arguments)

    excepthook._preassert = True  # type: ignore[attr-defined]
    threading.excepthook = excepthook


def _report_what_spawn_catches() -> None:
    """``torch.multiprocessing.spawn`` hands the text of an exception to its parent and no more, so the child reports."""
    spawn = sys.modules.get("torch.multiprocessing.spawn")
    usual = getattr(spawn, "_wrap", None)
    if usual is None:
        return
    import functools

    @functools.wraps(usual)  # processes find it by this name
    def wrap(*arguments: Any) -> None:
        try:
            usual(*arguments)
        except SystemExit as end:
            caught = end.__context__
            if caught is not None:
                caught = _given_back(caught) or caught
                if is_violation(caught):
                    _report(caught)
            raise

    spawn._wrap = wrap  # type: ignore[union-attr]


def _take_over_the_end() -> None:
    """What is still pending at the end of the process sets the exit code, so it is settled here and not by the ledger."""
    import multiprocessing.util

    from preassert.guard import ledger

    atexit.unregister(ledger.finish)  # it would only print
    atexit.register(_settle)  # before the handlers that were here first: some take the kernels of a device away
    # Processes of multiprocessing end without exit handlers. Each clears its finalizers when it begins, then calls this.
    multiprocessing.util.register_after_fork(ledger, _finalize_child)
    if multiprocessing.parent_process() is not None:
        _finalize_child(ledger)


def _finalize_child(_: Any) -> None:
    import multiprocessing.util

    def end() -> None:
        _settle()
        if _unsettled and not _interactive():
            raise SystemExit(EXIT_DATAERR)

    multiprocessing.util.Finalize(None, end, exitpriority=1000)


def _settle() -> None:
    """Print and report a violation that was recorded and never reached a boundary, and what the guard has counted."""
    global _unsettled
    from preassert.guard import flush, ledger

    try:
        flush()
    except Exception as error:
        if is_violation(error):  # anything else comes from a device that is already lost
            _unsettled = True
            with suppress(SystemExit):
                sys.excepthook(type(error), error.with_traceback(None), None)  # the frames are all ours
            if not _interactive():
                _report(error)
    ledger.finish()


def _at_exit() -> None:
    if _unsettled and not _interactive():
        _end_now()
    # The script put its own excepthook over ours: the report is printed, the exit code is still to be set.
    last = getattr(sys, "last_value", None)
    if last is not None and last is not _survived and not _interactive():
        last = _given_back(last) or last
        if is_violation(last) and last is not _survived:
            _report(last)
            _end_now()


def _end_now() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed or gone
            stream.flush()
    os._exit(EXIT_DATAERR)  # exit handlers have run, and the exit code cannot be changed in any other way by now


def _interactive() -> bool:
    return bool(sys.flags.inspect or sys.flags.interactive or os.environ.get("PYTHONINSPECT"))


def is_violation(error: BaseException) -> bool:
    """Is this a violation, or does it bring one from another process (DataLoader worker, spawned or launched rank)?"""
    errors = sys.modules.get("preassert.errors")
    if errors is not None and isinstance(error, errors.Violation):
        return True
    if type(error).__name__ == "ChildFailedError":  # torch.distributed.elastic
        return any(getattr(failure, "exitcode", None) == EXIT_DATAERR for failure in getattr(error, "failures", {}).values())
    if type(error).__name__ == "ProcessExitedException":  # torch.multiprocessing.spawn
        return getattr(error, "exit_code", None) == EXIT_DATAERR
    if type(error).__module__.partition(".")[0] not in ("builtins", "torch"):
        return False
    try:
        return any(line.startswith(_PRINTED) for line in str(error).splitlines())
    except Exception:
        return False


def _report(error: BaseException) -> None:
    """Write the files that others wait for; each is written by the first violation only."""
    file = options().get("json")
    try:
        if file and hasattr(error, "to_dict"):
            _write_once(file, error.to_dict())
        if os.environ.get("TORCHELASTIC_ERROR_FILE"):
            _write_once(os.environ["TORCHELASTIC_ERROR_FILE"], _elastic_form(error))
    except OSError as failure:
        print(f"preassert: no report written: {failure}", file=sys.stderr)


def _elastic_form(error: BaseException) -> dict[str, Any]:
    """As torch.distributed.elastic.multiprocessing.errors.ErrorHandler.record_exception writes it (torch 2.2 to 2.13)."""
    import time
    import traceback

    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": trace, "timestamp": str(int(time.time()))},
        }
    }


def _write_once(file: str, content: dict[str, Any]) -> None:
    """Write JSON to ``file`` unless it exists; nobody ever sees half of it."""
    import json

    part = f"{file}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as handle:
        json.dump(content, handle, indent=2)
        handle.write("\n")
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not os.path.exists(file):
            os.replace(part, file)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _strip_chain(error: BaseException) -> None:
    """Take our frames out of the traceback of ``error`` and of everything it was raised from."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if current.__context__ is not None and _is_echo_of_ours(current.__context__, current):
            current.__context__ = None
        current.__traceback__ = _strip(current, current.__traceback__)
        pending += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def _strip(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    ours = [_is_ours(entry) for entry in frames]
    if not any(ours) or all(ours) or (ours[-1] and isinstance(error, _FAULTS_OF_OURS)):
        return frames[0] if frames else None
    stripped: TracebackType | None = None
    for entry, own in zip(reversed(frames), reversed(ours), strict=True):
        if not own:
            stripped = TracebackType(stripped, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return stripped


def _is_echo_of_ours(context: BaseException, error: BaseException) -> bool:
    """torch raises anew what it met inside a kernel of ours; the first of the two says nothing more."""
    trace, ours = context.__traceback__, False
    while trace is not None:
        ours = _is_ours(trace)
        if not ours:
            return False
        trace = trace.tb_next
    return ours and type(context) is type(error) and str(context) == str(error)


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OWN_FILES)
