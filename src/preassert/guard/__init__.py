"""The guard: a bad value raises at the user's own line, before the kernel can assert.

The overrides act on the whole process: every thread, C++ callers and the backward pass are guarded while any guard is
active. Options are those of the innermost active guard.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from preassert.errors import Violation
from preassert.guard import blame, compiled
from preassert.guard.intercept import Installation, can_replace_kernels
from preassert.guard.ledger import LEDGER, PreassertWarning, announce, hook_optimizers, summarise, unhook_optimizers
from preassert.guard.options import Options, make_options
from preassert.guard.state import STATE

__all__ = ["PreassertWarning", "Violation", "flush", "guard", "install", "interception", "stats", "uninstall"]

F = TypeVar("F", bound=Callable[..., Any])

_installation: Any = None  # what holds the interception, while at least one guard is active
_permanent: Options | None = None  # options of ``install()``


class guard:
    """Guard a block or a function.

    ``with preassert.guard(): ...`` or ``@preassert.guard()`` (also on async functions, on generators and on async
    generators). Guards nest; they may be active in several threads. The interception itself is global to the process.

    Args:
        mode: ``"immediate"``: check, then launch; on an accelerator that is one synchronisation a check.
            ``"deferred"``: no synchronisation; the operator runs on sanitised values and the violation is raised at the
            next boundary. ``"auto"``: immediate for CPU tensors, deferred on accelerators.
        policy: what to do with a violation: ``"raise"``; deferred mode also ``"warn"``, ``"skip"``, ``"ignore"``.
        skip: operators (``"aten::gather"``) or hazards (``"user-device-assert"``) to leave out.
        devices: device types to guard (``["cuda"]``); None guards all.
        sentinels: values that are legal everywhere, whatever the range says. Only for values that the kernels of your
            devices accept.
        max_elements: how many bad elements a report names.
        max_violations: deferred mode: stop the run after this many.
        quarantine: policy ``"skip"``: JSON Lines file that names the samples left out.
        budget: largest share of the step time that the guard may cost; clean sites are then checked by sampling.

    Raises:
        Violation: inside the block, at the call that breaks a contract.
        UsageError: bad settings.
    """

    def __init__(
        self,
        *,
        mode: str = "auto",
        policy: str = "raise",
        skip: Iterable[str] = (),
        devices: Iterable[str] | None = None,
        sentinels: Iterable[int | float] = (),
        max_elements: int = 5,
        max_violations: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        budget: float | None = None,
    ) -> None:
        self._options = make_options(
            mode=mode,
            policy=policy,
            skip=skip,
            devices=devices,
            sentinels=sentinels,
            max_elements=max_elements,
            max_violations=max_violations,
            quarantine=quarantine,
            budget=budget,
        )
        self._entered: list[Options] = []

    def __enter__(self) -> guard:
        # A fresh copy each time, so that one guard object may be entered again inside itself.
        options = _copy(self._options)
        _activate(options)
        self._entered.append(options)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        options = self._entered.pop()
        try:
            _close(options, error)
        finally:
            _deactivate(options)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                with guard_with(self._options):
                    return await function(*args, **kwargs)

            return guarded_async  # type: ignore[return-value]  # same signature as ``function``
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def guarded_async_generator(*args: Any, **kwargs: Any) -> Any:
                with guard_with(self._options):
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
                with guard_with(self._options):
                    return (yield from function(*args, **kwargs))

            return guarded_generator  # type: ignore[return-value]

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with guard_with(self._options):
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]


def guard_with(options: Options) -> guard:
    """A guard of options that are already checked."""
    made = guard.__new__(guard)
    made._options = options
    made._entered = []
    return made


def install(**settings: Any) -> None:
    """Guard the whole process from here on. Takes the arguments of :class:`guard`; calling it again replaces them."""
    global _permanent
    options = make_options(**settings)
    _activate(options)
    if _permanent is not None:
        _deactivate(_permanent)
    _permanent = options


def uninstall() -> None:
    """End what :func:`install` began. The dispatcher is then as it was, unless a ``guard()`` block is still open."""
    global _permanent
    if _permanent is None:
        return
    options, _permanent = _permanent, None
    try:
        _close(options, None)
    finally:
        _deactivate(options)


def interception() -> str:
    """How operators are intercepted now: ``"kernels"``, ``"mode"`` or ``"none"``."""
    if _installation is None:
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
    lost = STATE.last
    if type(error) is RuntimeError and lost is not None and _is_scripted_form_of(lost, str(error)):
        raise lost from error
    summarise(options)


def _is_scripted_form_of(violation: Violation, text: str) -> bool:
    """The interpreter of scripted code turns every exception into a RuntimeError; under modes without its words."""
    return "TorchScript" in text and (str(violation) in text or text.rstrip().endswith("RuntimeError:"))


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
            if compiled.unguarded_graphs():
                _announce_once("functions that torch.compile has compiled before this guard began are not guarded")
            blame.watch()
        STATE.push(options)


@functools.cache
def _announce_once(text: str) -> None:
    announce(text)


def _deactivate(options: Options) -> None:
    global _installation
    with STATE.lock:
        STATE.remove(options)
        if not STATE.stack and _installation is not None:
            _installation.remove()
            _installation = None
            unhook_optimizers()
            compiled.unhook()
            blame.unwatch()
            LEDGER.reset()


def _make_installation(*, budgeted: bool) -> Any:
    if can_replace_kernels():
        return Installation(budgeted=budgeted)
    from preassert.guard.fallback import ModeInstallation

    return ModeInstallation(budgeted=budgeted)


def _copy(options: Options) -> Options:
    from dataclasses import replace

    return replace(options)


class _CallableModule(ModuleType):
    """``preassert.guard`` is this room and the guard in one: ``preassert.guard(...)`` works whichever was loaded first."""

    def __call__(self, **settings: Any) -> guard:
        return guard(**settings)


sys.modules[__name__].__class__ = _CallableModule
