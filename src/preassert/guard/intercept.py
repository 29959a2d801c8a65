"""The only code that touches the dispatcher: backend kernels of the operators in the contract table are replaced.

Mechanism (where ``torch.library.get_kernel`` exists; not in 2.6, there in 2.13): for each row and backend key, take the
kernel that would run, register a Python kernel on top that checks and then calls it boxed. Every other operator costs
nothing; callers in C++, other threads and the backward pass are seen. Rows of level ``composite`` hide the fault from the
kernels below (``take_along_dim`` wraps the index), so the composition itself is replaced.

Measured: a replaced kernel that does nothing costs 2.5 µs in the run of docs/overhead.md (torch 2.13, CPU).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from preassert.contracts.domains import Domain, Index
from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard import verdict
from preassert.guard.bind import Fetch, Proof, fetcher, index_proof
from preassert.guard.check import holds, index_holds
from preassert.guard.fault import Fault
from preassert.guard.options import Options
from preassert.guard.site import user_line
from preassert.guard.state import COVER, STATE

Kernel = Callable[..., Any]
# guard.compiled puts ``insert`` here: how a composition is checked that is being traced for inductor
TRACED: list[Callable[..., Any]] = []
_PLAIN = torch.Tensor.__torch_dispatch__
# What the looking itself raises on arguments that are malformed (wrong number of dimensions, a dtype without an order):
# no matter of values, and torch says it in its own words.
_MALFORMED = (RuntimeError, IndexError, TypeError)
_COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True, slots=True)
class Bound:
    """A domain tied to an operator's schema."""

    domain: Domain
    fetch: Fetch
    argument_position: int | None  # None: keyword-only
    proof: Proof | None  # for an index domain: true when it certainly holds


def can_replace_kernels() -> bool:
    """True where this torch can hand out the kernel that would run (otherwise a mode is used)."""
    return hasattr(torch.library, "get_kernel")


def backend_keys() -> list[str]:
    """Dispatch keys of the backends this build of torch has."""
    keys = ["CPU"]
    if torch.backends.cuda.is_built() or torch.version.hip is not None:
        keys.append("CUDA")
    if torch.backends.mps.is_built():
        keys.append("MPS")
    if hasattr(torch, "xpu") and torch.xpu._is_compiled():
        keys.append("XPU")
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        keys.append("PrivateUse1")
    return keys


def overload_of(operator: str) -> Any | None:
    """The ``OpOverload`` of ``"aten::scatter.src"``, or None where this torch has no such operator."""
    name, _, overload = operator.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else getattr(packet, overload or "default", None)


_PROOF_NAMES = {"plain": torch.Tensor, "modes": torch._C._len_torch_function_stack, "index_holds": index_holds}
_bound: dict[tuple[str, str], tuple[Bound, ...]] = {}


def bind_row(row: Row, schema: Any) -> tuple[Bound, ...]:
    """The row's domains tied to ``schema``. Kept: compiling the expressions is most of the cost of entering a guard."""
    key = (row.operator, str(schema))
    if key not in _bound:
        positions = {argument.name: place for place, argument in enumerate(schema.arguments) if not argument.kwarg_only}
        _bound[key] = tuple(
            Bound(
                domain,
                fetcher(schema, domain.parameters),
                positions.get(domain.argument),
                index_proof(schema, domain, _PROOF_NAMES) if type(domain) is Index else None,
            )
            for domain in row.domains
        )
    return _bound[key]


# --- kernels -----------------------------------------------------------------------------------------------------------


def make_kernel(row: Row, overload: Any, call: Kernel, *, budgeted: bool = False) -> Kernel:
    """The Python kernel that checks ``row`` and then calls the replaced one (``call(keyset, *args, **kwargs)``)."""
    bounds = bind_row(row, overload._schema)
    check = verify_within_budget if budgeted else verify
    if row.level == "composite":
        return _composite_kernel(row, overload, bounds, call, check)
    if len(bounds) == 1 and type(row.domains[0]) is Index and not budgeted and not verdict.PRETEND_DEVICE:
        return _index_kernel(row, overload, bounds, call)
    return _general_kernel(row, overload, bounds, call, check)


def call_covered(call: Kernel, keyset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch a kernel whose inner guarded operators work on values that are checked already."""
    COVER.active = True
    try:
        return call(keyset, *args, **kwargs)
    finally:
        COVER.active = False


def _index_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel) -> Kernel:
    """The hot form: one index argument. A plain CPU tensor that keeps its range takes the shortest way."""
    proof = bounds[0].proof
    assert proof is not None
    covers = row.covers

    def guarded(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if COVER.active:
            return call(keyset, *args, **kwargs)
        try:
            fine = proof(args, kwargs)
        except _MALFORMED:
            fine = True  # torch says it, and without our error as its context: the call is not made in here
        if not fine:
            args, kwargs = verify(row, overload, bounds, args, kwargs)
        return call_covered(call, keyset, args, kwargs) if covers else call(keyset, *args, **kwargs)

    return guarded


def _general_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel, check: Kernel) -> Kernel:
    covers = row.covers

    def guarded(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if COVER.active:
            return call(keyset, *args, **kwargs)
        args, kwargs = check(row, overload, bounds, args, kwargs)
        return call_covered(call, keyset, args, kwargs) if covers else call(keyset, *args, **kwargs)

    return guarded


def _composite_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel, check: Kernel) -> Kernel:
    """At this level the tensors are the user's own: they may need gradients, be traced, be fake or be wrapped."""

    def guarded(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if COVER.active or STATE.options is None:
            return call(keyset, *args, **kwargs)
        tensors = [value for bound in bounds for value in bound.fetch(args, kwargs) if isinstance(value, torch.Tensor)]
        if all(map(is_concrete, tensors)):
            with Aside():
                args, kwargs = check(row, overload, bounds, args, kwargs)
        elif TRACED:
            args, kwargs = TRACED[0](row, overload, bounds, args, kwargs) or (args, kwargs)
        return call(keyset, *args, **kwargs)

    return guarded


def is_concrete(tensor: torch.Tensor) -> bool:
    """A tensor whose values can be looked at here: not fake, functional, vmapped, a DTensor or on the meta device."""
    return (
        type(tensor).__torch_dispatch__ is _PLAIN
        and not tensor.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
    )


class Aside:
    """Look at values without leaving a trace: no gradient, no dispatch mode, no jit trace."""

    def __enter__(self) -> None:
        from torch.utils._python_dispatch import _disable_current_modes

        self._tracing = torch._C._get_tracing_state()
        if self._tracing is not None:
            torch._C._set_tracing_state(None)  # type: ignore[attr-defined]  # missing in torch's stubs
        self._modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._modes is not None:
            self._modes.__enter__()
        self._grad = torch.no_grad()
        self._grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._grad.__exit__(*error)
        if self._modes is not None:
            self._modes.__exit__(*error)
        if self._tracing is not None:
            torch._C._set_tracing_state(self._tracing)  # type: ignore[attr-defined]


def verify(
    row: Row, overload: Any, bounds: tuple[Bound, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Check every demand of ``row``; returns the arguments to launch with (sanitised ones in deferred mode).

    Raises:
        Violation: immediate mode, a demand is broken.
    """
    options = STATE.options
    if options is None:
        return args, kwargs
    if torch._C._len_torch_function_stack():
        with torch._C.DisableTorchFunction():
            return _verify(row, overload, bounds, args, kwargs)
    return _verify(row, overload, bounds, args, kwargs)


def verify_within_budget(
    row: Row, overload: Any, bounds: tuple[Bound, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """:func:`verify` where the budget says that it is due; otherwise the arguments as they are."""
    budget = STATE.budget
    if budget is None:
        return verify(row, overload, bounds, args, kwargs)
    began, seen = budget.clock(), STATE.seen
    tensor = bounds[0].fetch(args, kwargs)[0]
    outline = (tensor.shape, tensor.dtype) if isinstance(tensor, torch.Tensor) else None
    site = (row.operator, outline, user_line())
    try:
        if budget.is_due(site):
            return verify(row, overload, bounds, args, kwargs)
        return args, kwargs
    finally:
        if STATE.seen != seen:
            budget.suspect(site)
        budget.spend(budget.clock() - began)


def _verify(
    row: Row, overload: Any, bounds: tuple[Bound, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    options = STATE.options
    assert options is not None
    for bound in bounds:
        domain = bound.domain
        try:
            cases = list(domain.cases(*bound.fetch(args, kwargs)))
        except _MALFORMED:
            continue
        for place, tensor, limits in cases:
            if tensor.is_cpu and not verdict.PRETEND_DEVICE:
                if _holds_here(domain, tensor, limits, options):
                    continue
            elif tensor.is_meta:
                continue
            fault = Fault(row, overload._schema, domain, bound.argument_position, place, tensor, limits, args, kwargs)
            args, kwargs = verdict.decide(fault, options)
    return args, kwargs


def _holds_here(domain: Domain, tensor: torch.Tensor, limits: Any, options: Options) -> bool:
    try:
        if type(tensor) is torch.Tensor:
            return holds(domain, tensor, limits, options.sentinels)
        with torch._C.DisableTorchFunctionSubclass():
            return holds(domain, tensor, limits, options.sentinels)
    except _MALFORMED:
        return True


# --- registration ------------------------------------------------------------------------------------------------------


class Installation:
    """The registered kernels. ``remove`` restores the dispatcher to what it was.

    Other Python overrides below ours stay in the chain. torch's own (``torch/_native``) can be re-installed at any time;
    they would then stand above ours, so their installer is watched and ours is put back on top.
    """

    def __init__(self, *, budgeted: bool = False) -> None:
        self.budgeted = budgeted
        self._libraries: dict[tuple[str, str], torch.library.Library] = {}
        self._unwatch: Callable[[], None] | None = None

    def install(self) -> None:
        for row in table().values():
            overload = overload_of(row.operator)
            if overload is None:
                continue
            for key in [_COMPOSITE] if row.level == "composite" else backend_keys():
                self._register(row, overload, key)
        self._unwatch = _watch_native(self)

    def remove(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()

    def operators(self) -> list[tuple[str, str]]:
        """(operator, dispatch key) of every registered kernel."""
        return sorted(self._libraries)

    def _register(self, row: Row, overload: Any, key: str) -> None:
        try:
            replaced = torch.library.get_kernel(row.operator, "CPU" if key == _COMPOSITE else key)
        except RuntimeError:  # no kernel for this backend
            return
        library = torch.library.Library("aten", "IMPL")
        kernel = make_kernel(row, overload, replaced.call_boxed, budgeted=self.budgeted)
        with warnings.catch_warnings():
            # torch announces an override of its own kernels; that is what was asked for
            warnings.simplefilter("ignore")
            library.impl(row.operator.removeprefix("aten::"), kernel, key, with_keyset=True)
        self._libraries[row.operator, key] = library

    def lift(self, operator: str, key: str) -> None:
        """Register anew above whatever has been installed since. Does nothing for an operator that is not ours."""
        library = self._libraries.pop((operator, key), None)
        if library is not None:
            library._destroy()
            self._register(table()[operator], overload_of(operator), key)

    def lower(self, operator: str, key: str) -> bool:
        """Take one kernel off, because the one below is about to go; True when it was there."""
        library = self._libraries.pop((operator, key), None)
        if library is not None:
            library._destroy()
        return library is not None


def _watch_native(installation: Installation) -> Callable[[], None] | None:
    """Follow torch's own Python overrides: wrap their installer and remover. Returns how to undo it."""
    try:
        from torch._native import registry
    except ImportError:
        return None
    install = getattr(registry, "_install_aten_override", None)
    destroy = getattr(registry, "_destroy_aten_override", None)
    if install is None or destroy is None:
        return None

    def names(symbol: str, key: str) -> tuple[str, str]:
        return f"aten::{symbol.removeprefix('aten::')}", key

    def watched_install(op_symbol: str, dispatch_key: str, *args: Any, **kwargs: Any) -> Any:
        out = install(op_symbol, dispatch_key, *args, **kwargs)
        installation.lift(*names(op_symbol, dispatch_key))
        return out

    def watched_destroy(op_symbol: str, dispatch_key: str, *args: Any, **kwargs: Any) -> Any:
        operator, key = names(op_symbol, dispatch_key)
        was_ours = installation.lower(operator, key)
        out = destroy(op_symbol, dispatch_key, *args, **kwargs)
        if was_ours:
            installation._register(table()[operator], overload_of(operator), key)
        return out

    registry._install_aten_override = watched_install
    registry._destroy_aten_override = watched_destroy

    def undo() -> None:
        if registry._install_aten_override is watched_install:
            registry._install_aten_override = install
        if registry._destroy_aten_override is watched_destroy:
            registry._destroy_aten_override = destroy

    return undo
