"""Interception by modes, for torch before ``torch.library.get_kernel`` (2.2 to about 2.8): same contract table, more cost.

A ``TorchDispatchMode`` sees every operator of the thread (about 1.3x on a whole small training step) and switches
torch.compile off where it is active; a ``TorchFunctionMode`` sees the compositions that hide a fault. Modes belong to a
thread: they are entered in the thread that installs the guard; autograd carries them into its backward threads, other
threads of the user are not guarded. ``preassert doctor`` says which interception is active.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard.compiled import FUNCTIONAL_FORMS
from preassert.guard.intercept import Bound, bind_row, overload_of, verify, verify_within_budget

# A mode sees the outermost operator with a kernel; these call the row's operator inside, where no mode looks.
_INPLACE_FORMS = {"aten::index_put_": "aten::_index_put_impl_"}

_Target = tuple[Row, Any, tuple[Bound, ...]]


class _KernelMode(TorchDispatchMode):
    """Checks the rows of level ``kernel``."""

    def __init__(self, targets: Mapping[Any, _Target], check: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._targets = targets
        self._check = check

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = self._targets.get(func)
        if target is not None:
            args, kwargs = self._check(*target, args, kwargs)
        return func(*args, **kwargs)


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
                self._check(row, overload, bounds, *placed)
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


class ModeInstallation:
    """The modes, entered in the thread that installs the guard."""

    def __init__(self, *, budgeted: bool = False) -> None:
        self.budgeted = budgeted
        self._modes: list[Any] = []

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
        for mode in self._modes:
            mode.__enter__()

    def remove(self) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)
        self._modes = []

    def operators(self) -> list[tuple[str, str]]:
        """(operator, mode) of everything that is checked."""
        if not self._modes:
            return []
        return sorted((row.operator, "mode") for row in table().values() if overload_of(row.operator) is not None)
