"""Interception by modes, for torch before ``torch.library.get_kernel`` (run on 2.2 and 2.6): same contract table, more cost.

A ``TorchDispatchMode`` sees every operator of the thread (about 1.3x on a whole small training step) and switches
torch.compile off where it is active; a ``TorchFunctionMode`` sees the compositions that hide a fault. Modes belong to a
thread: they are entered in the thread that installs the guard; autograd carries them into its backward threads, other
threads of the user are not guarded. ``preassert doctor`` says which interception is active.

A mode sees the user's own tensors, before any wrapper is taken off: what has no values here (fake, meta) is let pass, and a
tensor subclass that handles its operators is asked first, so that what it does inside is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard.compiled import FUNCTIONAL_FORMS
from preassert.guard.intercept import Aside, Bound, bind_row, is_concrete, overload_of, verify, verify_within_budget

# A mode sees the outermost operator with a kernel; these call the row's operator inside, where no mode looks.
_INPLACE_FORMS = {"aten::index_put_": "aten::_index_put_impl_"}

# What fetching and judging raise on arguments that torch itself refuses.
_MALFORMED = (RuntimeError, IndexError, TypeError)

_Target = tuple[Row, Any, tuple[Bound, ...]]


class _KernelMode(TorchDispatchMode):
    """Checks the rows of level ``kernel``."""

    def __init__(self, targets: Mapping[Any, _Target], check: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._targets = targets
        self._check = check

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The mode is off the stack in here: what is left are modes of the user that were there before.
        modes_below = torch._C._len_torch_dispatch_stack()
        handled = _handle_their_operators(types)
        if handled and not modes_below:
            return NotImplemented  # the subclass goes first, with this mode on: its inner tensors come by here
        target = self._targets.get(func)
        if target is not None:
            args, kwargs = _look(self._check, target, args, kwargs, modes_below)
        if handled:
            return func(*args, **kwargs)
        # An OpOverload called from Python would show itself to __torch_function__, which has had its turn.
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)


def _handle_their_operators(types: Any) -> bool:
    return any(kind.__torch_dispatch__ not in _NO_HANDLERS for kind in types)


_NO_HANDLERS = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


def _look(
    check: Callable[..., Any], target: _Target, args: tuple[Any, ...], kwargs: dict[str, Any], modes_below: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The check, unseen by modes and traces; arguments without values pass."""
    bounds = target[2]
    try:
        looked_at = [value for bound in bounds for value in bound.fetch(args, kwargs) if isinstance(value, torch.Tensor)]
    except _MALFORMED:
        return args, kwargs  # torch says it in its own words
    if not all(map(is_concrete, looked_at)):
        return args, kwargs
    if not modes_below and torch._C._get_tracing_state() is None and not torch.is_grad_enabled():
        return check(*target, args, kwargs)  # type: ignore[no-any-return]
    with Aside():
        return check(*target, args, kwargs)  # type: ignore[no-any-return]


class _CompositeMode(TorchFunctionMode):
    """Checks the rows of level ``composite`` where Python calls them."""

    def __init__(self, functions: Mapping[Any, str], targets: Mapping[str, _Target], check: Callable[..., Any]) -> None:
        super().__init__()
        self._check = check
        self._functions = functions
        self._targets = targets

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = self._functions.get(func)
        if name is not None:
            row, overload, bounds = self._targets[name]
            placed = _place(overload._schema, args, kwargs)
            if placed is not None:
                looked = _look(self._check, (row, overload, bounds), *placed, torch._C._len_torch_dispatch_stack())
                if looked[0] is not placed[0] or looked[1] is not placed[1]:  # deferred: values to launch with instead
                    return overload(*looked[0], **looked[1])
        return func(*args, **kwargs)


def _place(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A Python call (``input=``, ``dim=`` by name) as the boxed call it becomes; None when it is another overload."""
    aliases = {"input": "self"}
    named = {aliases.get(key, key): value for key, value in kwargs.items()}
    positional: list[Any] = []
    for number, argument in enumerate(a for a in schema.arguments if not a.kwarg_only):
        if number < len(args):
            value = args[number]
        elif argument.name in named:
            value = named.pop(argument.name)
        elif argument.has_default_value():
            value = argument.default_value
        else:
            return None
        if str(argument.type) == "Tensor" and not isinstance(value, torch.Tensor):
            return None
        positional.append(value)
    return tuple(positional), named


def _composites() -> dict[Any, str]:
    """Python function -> the composite row it calls."""
    out: dict[Any, str] = {}
    for row in table().values():
        name = row.operator.removeprefix("aten::")
        if row.level != "composite" or "." in name:
            continue
        for home in (torch, torch.nn.functional, torch.Tensor, torch._C._nn):
            function: Callable[..., Any] | None = getattr(home, name, None)
            if function is not None:
                out[function] = row.operator
    return out


_own_as_subclass: Callable[..., torch.Tensor] = torch.Tensor.as_subclass


def _as_subclass(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """``Tensor.as_subclass`` outside every mode, for torch 2.2.

    It makes an alias and ties that to a ``cls``; under any dispatch mode the alias is tied to a Tensor already, and torch
    raises. Subclasses without operators of their own (torchvision's, say) wrap every result this way.
    """
    with _disable_current_modes():
        return _own_as_subclass(tensor, cls)


class _Probe(torch.Tensor):
    pass


def _modes_break_as_subclass() -> bool:
    with _KernelMode({}, verify):
        try:
            torch.empty(0, device="cpu").as_subclass(_Probe)
        except RuntimeError:
            return True
    return False


class ModeInstallation:
    """The modes, entered in the thread that installs the guard."""

    def __init__(self, *, budgeted: bool = False) -> None:
        self.budgeted = budgeted
        self._modes: list[Any] = []
        self._thread = 0

    def install(self) -> None:
        kernels: dict[Any, _Target] = {}
        composites: dict[str, _Target] = {}
        for row in table().values():
            overload = overload_of(row.operator)
            if overload is None:
                continue
            target = (row, overload, bind_row(row, overload._schema))
            if row.level == "composite":
                composites[row.operator] = target
            else:
                kernels[overload] = target
        for form, operator in (FUNCTIONAL_FORMS | _INPLACE_FORMS).items():
            outer, row = overload_of(form), table()[operator]
            if outer is not None:
                kernels[outer] = (row, outer, bind_row(row, outer._schema))
        functions = {function: name for function, name in _composites().items() if name in composites}
        check = verify_within_budget if self.budgeted else verify
        self._modes = [_CompositeMode(functions, composites, check), _KernelMode(kernels, check)]
        self._thread = threading.get_ident()
        if _modes_break_as_subclass():
            torch.Tensor.as_subclass = _as_subclass  # type: ignore[method-assign,assignment]
        for mode in self._modes:
            mode.__enter__()

    def remove(self) -> None:
        if vars(torch.Tensor).get("as_subclass") is _as_subclass:
            del torch.Tensor.as_subclass  # uncovers the one of TensorBase
        # From another thread the modes cannot be taken off; without a guard they check nothing.
        if self._thread == threading.get_ident():
            for mode in reversed(self._modes):
                mode.__exit__(None, None, None)
        self._modes = []

    def operators(self) -> list[tuple[str, str]]:
        """(operator, mode) of everything that is checked."""
        if not self._modes:
            return []
        return sorted((row.operator, "mode") for row in table().values() if overload_of(row.operator) is not None)
