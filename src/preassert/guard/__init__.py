"""The guard: a bad value raises at the user's own line, before the kernel can assert.

The overrides act on the whole process: every thread, C++ callers and the backward pass are guarded while any guard is
active. Options are those of the innermost active guard.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

from preassert.errors import Violation
from preassert.guard import blame, compiled, relay
from preassert.guard.intercept import Installation, can_replace_kernels
from preassert.guard.ledger import LEDGER, PreassertWarning, announce, hook_optimizers, summarise, unhook_optimizers
from preassert.guard.options import Options
from preassert.guard.state import STATE

__all__ = ["PreassertWarning", "Violation", "flush", "guard", "install", "interception", "stats", "uninstall"]

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")

_installation: Any = None  # what holds the interception, while at least one guard is active
_permanent: Options | None = None  # options of ``install()``
_resting = False  # the kernels stay between the calls of decorated functions: to register them takes milliseconds


class guard(Options):
    """Guard a block or a function.

    ``with preassert.guard(): ...`` or ``@preassert.guard()`` (also on async functions, on generators and on async
    generators). Guards nest; they may be active in several threads. The interception itself is global to the process.

    To begin the outermost block takes some 10 ms: put it around a loop, not inside. A decorated function pays that in its first
    call only: from then on the interception rests between the calls, checking nothing, until :func:`uninstall`.

    The arguments are those of :class:`preassert.guard.options.Options`.

    Raises:
        Violation: inside the block, at the call that breaks a contract.
        UsageError: bad settings.
    """

    @functools.cached_property  # made on first use: the constructor stays that of the options
    def _entered(self) -> list[_Entry]:
        return []

    def __enter__(self) -> guard:
        entry = _Entry(self)
        entry.__enter__()
        self._entered.append(entry)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                with _Entry(self, then_rest=True):
                    return await function(*args, **kwargs)

            return guarded_async  # type: ignore[return-value]  # same signature as ``function``
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def guarded_async_generator(*args: Any, **kwargs: Any) -> Any:
                with _Entry(self, then_rest=True):
                    inner = function(*args, **kwargs)
                    resume, value = inner.asend, None
                    # what ``yield from`` would do, which asynchronous generators do not have
                    while True:
                        try:
                            item = await resume(value)
                        except StopAsyncIteration:
                            return
                        try:
                            resume, value = inner.asend, (yield item)
                        except GeneratorExit:
                            await inner.aclose()
                            raise
                        except BaseException as error:
                            resume, value = inner.athrow, error

            return guarded_async_generator  # type: ignore[return-value]
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def guarded_generator(*args: Any, **kwargs: Any) -> Any:
                with _Entry(self, then_rest=True):
                    return (yield from function(*args, **kwargs))

            return guarded_generator  # type: ignore[return-value]

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with _Entry(self, then_rest=True):
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


class _Entry:
    """One entry into a guard, with options of its own: one guard may be entered inside itself, and in several threads."""

    def __init__(self, options: Options, *, then_rest: bool = False) -> None:
        self._options = copy.copy(options)
        self._then_rest = then_rest

    def __enter__(self) -> None:
        _activate(self._options)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            _close(self._options, error)
        finally:
            _deactivate(self._options, then_rest=self._then_rest)


def _takes(options: Callable[P, Options]) -> Callable[[Callable[[Options], None]], Callable[P, None]]:
    """The function is called with the arguments of ``options`` and gets what they make."""

    def decorate(function: Callable[[Options], None]) -> Callable[P, None]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            function(options(*args, **kwargs))

        call.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
        return call

    return decorate


@_takes(Options)
def install(options: Options) -> None:
    """Guard the whole process from here on. Takes the arguments of :class:`guard`; calling it again replaces them."""
    global _permanent
    _activate(options)
    if _permanent is not None:
        _deactivate(_permanent)
    _permanent = options


def uninstall() -> None:
    """End what :func:`install` began, and the rest between the calls of decorated functions.

    The dispatcher is then as it was, unless a ``guard()`` block is still open.
    """
    global _permanent, _resting
    options, _permanent, _resting = _permanent, None, False
    try:
        if options is not None:
            _close(options, None)
    finally:
        _deactivate(options)


def interception() -> str:
    """How operators are intercepted now: ``"kernels"``, ``"mode"`` or ``"none"`` (no guard is active)."""
    if not STATE.stack:
        return "none"
    return "kernels" if isinstance(_installation, Installation) else "mode"


def intercepted() -> list[tuple[str, str]]:
    """(operator, dispatch key) of everything that is intercepted now."""
    return _installation.operators() if _installation is not None else []


def stats() -> dict[str, Any]:
    """What the guard has met since the outermost one began, and what its budget came to (None without ``budget=``)."""
    return {
        "interception": interception(),
        "violations": {f"{hazard} at {place}": count for (hazard, place), count in LEDGER.counts.items()},
        "skipped_steps": LEDGER.skipped_steps,
        "ignored": LEDGER.ignored,
        "budget": None if STATE.budget is None else STATE.budget.stats(),
    }


def flush() -> None:
    """A boundary by hand: settle what the deferred mode has recorded. Waits for the last check on each device.

    Raises:
        Violation: policy ``"raise"`` (and ``"skip"``/``"warn"`` beyond ``max_violations``).
    """
    violation = LEDGER.settle(STATE.options)
    if violation is not None:
        raise violation


def _close(options: Options, error: BaseException | None) -> None:
    """The end of a guard is a boundary. An exception of the user's own does not hide a violation that came before it."""
    violation = LEDGER.settle(options)
    if violation is not None:
        if error is None:
            raise violation
        if isinstance(error, Exception) and not isinstance(error, Violation):
            raise violation from error
        announce(f"recorded before this {type(error).__name__}:\npreassert.Violation: {violation}")
    lost = scripted_form_of(error)
    if lost is not None:
        raise lost from error
    summarise(options)


def scripted_form_of(error: BaseException | None) -> Violation | None:
    """The violation behind an exception of scripted code, whose interpreter turns every one into a RuntimeError.

    Its text holds that of the violation; under modes it has no words at all.
    """
    last = STATE.last
    if type(error) is not RuntimeError or last is None:
        return None
    text = str(error)
    return last if "TorchScript" in text and (str(last) in text or text.rstrip().endswith("RuntimeError:")) else None


def _activate(options: Options) -> None:
    global _installation
    with STATE.lock:
        if _installation is not None and options.budget is not None and not _installation.budgeted:
            _installation.remove()  # its kernels check every call
            _installation = _make_installation(budgeted=True)
            _installation.install()
        if _installation is None:
            _installation = _make_installation(budgeted=options.budget is not None)
            _installation.install()
            hook_optimizers()
            compiled.hook()
            relay.hook()
            blame.watch()
        if not STATE.stack and compiled.unguarded_graphs():
            _announce_once("functions that torch.compile has compiled before this guard began are not guarded")
        STATE.push(options)


@functools.cache
def _announce_once(text: str) -> None:
    announce(text)


def _deactivate(options: Options | None, *, then_rest: bool = False) -> None:
    global _installation, _resting
    with STATE.lock:
        if options is not None:
            STATE.remove(options)
        if STATE.stack or _installation is None:
            return
        LEDGER.reset()
        # Modes are never left on: they are in the way of whatever comes next.
        _resting = (_resting or then_rest) and isinstance(_installation, Installation)
        if not _resting:
            _installation.remove()
            _installation = None
            unhook_optimizers()
            compiled.unhook()
            relay.unhook()
            blame.unwatch()


def _make_installation(*, budgeted: bool) -> Any:
    if can_replace_kernels():
        return Installation(budgeted=budgeted)
    from preassert.guard.fallback import ModeInstallation

    return ModeInstallation(budgeted=budgeted)


class _CallableModule(ModuleType):
    """``preassert.guard`` is this room and the guard in one: ``preassert.guard(...)`` works whichever was loaded first."""

    def __call__(self, **settings: Any) -> guard:
        return guard(**settings)


__signature__ = inspect.signature(guard)  # of the module, for whoever asks how to call it
sys.modules[__name__].__class__ = _CallableModule
