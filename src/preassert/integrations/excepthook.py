"""``preassert.install_excepthook``: an uncaught CUDA error is explained below its traceback, with what the process knows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from preassert.integrations.explain import Explanation, explain
from preassert.logs import CLEAN, UNKNOWN
from preassert.report.diagnosis import to_text

_BLOCKING = "CUDA_LAUNCH_BLOCKING"


class _State:
    """What was true when the hook was installed, and what it replaced."""

    def __init__(self) -> None:
        self.previous = sys.excepthook
        self.previous_thread = threading.excepthook
        self.initialised_before = _cuda_is_initialised()


_state: _State | None = None


def install_excepthook() -> Callable[[], None]:
    """Explain uncaught CUDA errors and their host forms on standard error, below the usual traceback.

    Other exceptions are shown as before. Installing twice is the same as once. Call it before the first CUDA call: then it
    can tell whether ``CUDA_LAUNCH_BLOCKING`` was set in time. Threads are covered; IPython has its own way of showing
    exceptions and is not touched.

    Returns:
        a function that puts the previous hooks back.
    """
    global _state
    if _state is None:
        _state = _State()
        sys.excepthook = _hook
        threading.excepthook = _thread_hook
    return uninstall_excepthook


def uninstall_excepthook() -> None:
    """Put the hooks back that :func:`install_excepthook` replaced, unless somebody else has replaced them since."""
    global _state
    if _state is None:
        return
    if sys.excepthook is _hook:
        sys.excepthook = _state.previous
    if threading.excepthook is _thread_hook:
        threading.excepthook = _state.previous_thread
    _state = None


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    previous = _state.previous if _state is not None else sys.__excepthook__
    previous(kind, error, trace)
    _explain_to_stderr(error)


def _thread_hook(arguments: Any) -> None:
    previous = _state.previous_thread if _state is not None else threading.__excepthook__
    previous(arguments)
    if arguments.exc_value is not None:
        _explain_to_stderr(arguments.exc_value)


def _explain_to_stderr(error: BaseException) -> None:
    try:
        if not isinstance(error, Exception):
            return
        explanation = explain(error)
        if explanation.verdict in (CLEAN, UNKNOWN) and not explanation.restart_required:
            return
        print(f"\n{told(explanation)}", file=sys.stderr)
    except Exception as failure:  # a hook that raises would hide the error it was to explain
        print(f"preassert: could not explain this error ({type(failure).__name__}: {failure})", file=sys.stderr)


def told(explanation: Explanation) -> str:
    """The report with what the live process adds to it."""
    report = explanation.to_dict()
    report["sources"] = []
    report["notes"] = [*report["notes"], *facts(explanation)]
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return to_text(report).encode(encoding, "backslashreplace").decode(encoding)


def facts(explanation: Explanation) -> list[str]:
    """What this process knows about its torch, its device and its launch mode. Makes no call that needs a living context."""
    found = []
    torch = sys.modules.get("torch")
    if torch is not None:
        version = getattr(torch, "__version__", "?")
        built = getattr(getattr(torch, "version", None), "cuda", None) or getattr(getattr(torch, "version", None), "hip", None)
        words = f"this process: torch {version}" + (f", built for {built}" if built else ", a build without GPU support")
        driver = _quietly(lambda: torch._C._cuda_getDriverVersion()) if built else None
        if driver:
            words += f", driver for CUDA {driver // 1000}.{driver % 1000 // 10}"
        if built and _cuda_is_initialised():
            name = _quietly(lambda: torch.cuda.get_device_name())
            if name:
                words += f", {name}"
        found.append(words)
    if explanation.restart_required:
        found.append(_launch_mode())
        if not explanation.to_dict()["assert_lines"] and explanation.verdict == "device-assert-unlocated":
            found.append(
                "the assertion line went to the process's own stderr, above or in the log of the notebook "
                "server; no Python hook sees it"
            )
    return found


def _launch_mode() -> str:
    value = os.environ.get(_BLOCKING)
    if value != "1":
        return f"{_BLOCKING} is not set: the traceback may be later than the fault"
    if _at_start(_BLOCKING) == "1":
        return f"{_BLOCKING}=1 was set before the process started: the traceback shows the failing call"
    if _state is not None and _state.initialised_before:
        return f"{_BLOCKING}=1 was set too late: CUDA had already started, so it has no effect; set it before the process starts"
    return f"{_BLOCKING}=1 was set inside the program; it counts only if that was before the first CUDA call"


def _at_start(name: str) -> str | None:
    """The value a variable had when the process started; None where the system does not tell (only Linux does)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return None
    prefix = os.fsencode(name) + b"="
    return next((os.fsdecode(pair[len(prefix) :]) for pair in pairs if pair.startswith(prefix)), None)


def _cuda_is_initialised() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch is not None and _quietly(lambda: torch.cuda.is_initialized()))


def _quietly(call: Callable[[], Any]) -> Any:
    """None instead of an exception: in a dead context any call may fail."""
    try:
        return call()
    except Exception:
        return None
