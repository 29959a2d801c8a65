"""The only code that touches the dispatcher: backend kernels of the operators in the contract table are replaced.

Mechanism (where ``torch.library.get_kernel`` exists, from 2.9 on): for each row and backend key, take the
kernel that would run, register a Python kernel on top that checks and then calls it boxed. Every other operator costs
nothing; callers in C++, other threads and the backward pass are seen. Rows of level ``composite`` hide the fault from the
kernels below (``take_along_dim`` wraps the index), so the composition itself is replaced.

Measured: a replaced kernel that does nothing costs 2.5 µs in the run of docs/overhead.md (torch 2.13, CPU).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from preassert.contracts.domains import AdvancedIndices, Domain, Index
from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard import verdict
from preassert.guard.bind import Fetch, Kernel, fetcher, index_kernel
from preassert.guard.check import holds, index_holds
from preassert.guard.fault import Fault
from preassert.guard.options import Options
from preassert.guard.site import user_line
from preassert.guard.state import COVER, STATE

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


def kernel_below(operator: str, key: str) -> Kernel:
    """The kernel that would run, to be called with the operator's arguments.

    Raises:
        RuntimeError: there is none for this key.
    """
    backend = "CPU" if key == _COMPOSITE else key
    kernel = torch.library.get_kernel(operator, backend)
    # What runs at a backend's key asks for no other keys: one set for all calls, where torch would make one for each.
    return functools.partial(kernel.call_boxed, torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[backend]))


def has_own_kernel(operator: str, key: str) -> bool:
    """Whether a kernel was registered for this very key: torch's own or an override, not one made for all backends."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def overload_of(operator: str) -> Any | None:
    """The ``OpOverload`` of ``"aten::scatter.src"``, or None where this torch has no such operator."""
    name, _, overload = operator.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else getattr(packet, overload or "default", None)


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
            )
            for domain in row.domains
        )
    return _bound[key]


# --- kernels -----------------------------------------------------------------------------------------------------------


def make_kernel(
    row: Row, overload: Any, call: Kernel, *, key: str, launch: Kernel | None = None, budgeted: bool = False
) -> Kernel:
    """The Python kernel that checks ``row`` and then calls the replaced one.

    Args:
        call: the replaced kernel.
        key: the dispatch key that it is for.
        launch: a shorter way to what ``call`` gives for values that were found legal on the CPU; None: ``call``.
    """
    bounds = bind_row(row, overload._schema)
    check = verify_within_budget if budgeted else verify
    if row.level == "composite":
        return _composite_kernel(row, overload, bounds, call, check)
    on_cpu = key == "CPU" and not verdict.PRETEND_DEVICE
    if on_cpu and not budgeted and len(bounds) == 1 and type(row.domains[0]) in (Index, AdvancedIndices):
        return _index_kernel(row, overload, bounds, call, launch)
    return _general_kernel(row, overload, bounds, call, check)


def covered(call: Kernel) -> Kernel:
    """``call``, whose inner guarded operators then work on values that are checked already."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        COVER.active = True
        try:
            return call(*args, **kwargs)
        finally:
            COVER.active = False

    return launch


def _index_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel, launch: Kernel | None) -> Kernel:
    """The hot form: one index argument, on the CPU. A plain tensor that keeps its range takes the shortest way."""
    checked = covered(call) if row.covers else call

    def verified(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = verify(row, overload, bounds, args, kwargs)
        return checked(*args, **kwargs)

    domain = row.domains[0]
    assert isinstance(domain, Index)
    scope = {
        "cover": COVER,
        "plain": torch.Tensor,
        "int64": torch.int64,
        "modes": torch._C._len_torch_function_stack,
        "index_holds": index_holds,
        "malformed": _MALFORMED,
        "call": call,
        "launch": launch or checked,
        "verify": verified,
    }
    return index_kernel(overload._schema, domain, scope)


def _general_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel, check: Kernel) -> Kernel:
    launch = covered(call) if row.covers else call

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if COVER.active:
            return call(*args, **kwargs)
        args, kwargs = check(row, overload, bounds, args, kwargs)
        return launch(*args, **kwargs)

    return guarded


def _composite_kernel(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Kernel, check: Kernel) -> Kernel:
    """At this level the tensors are the user's own: they may need gradients, be traced, be fake or be wrapped."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if COVER.active or STATE.options is None:
            return call(*args, **kwargs)
        tensors = [value for bound in bounds for value in bound.fetch(args, kwargs) if isinstance(value, torch.Tensor)]
        if all(map(is_concrete, tensors)):
            with Aside():
                args, kwargs = check(row, overload, bounds, args, kwargs)
        elif TRACED:
            args, kwargs = TRACED[0](row, overload, bounds, args, kwargs) or (args, kwargs)
        return call(*args, **kwargs)

    return guarded


def _shorter_embedding(embedding: Kernel, replaced: Mapping[tuple[str, str], Kernel]) -> Kernel:
    """``aten::embedding`` on the CPU, for ids that are legal. Not where somebody's override is what would run.

    The kernel that torch has for all backends is made of ``index_select`` (ATen/native/Embedding.cpp), which is replaced
    too: a guarded embedding would pay for two Python kernels. To call what is below ours, out of ``replaced``, spares that.
    """
    launch, select = covered(embedding), ("aten::index_select", "CPU")

    def look_up(weight: Any, indices: Any, *rest: Any) -> Any:
        if weight.dim() != 2 or indices.dtype is not torch.int64:
            return launch(weight, indices, *rest)
        if indices.dim() == 1:
            return replaced[select](weight, 0, indices)
        return replaced[select](weight, 0, indices.reshape(-1)).view(*indices.shape, weight.size(1))

    return look_up


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
        self._replaced: dict[tuple[str, str], Kernel] = {}
        self._unwatch: Callable[[], None] | None = None

    def install(self) -> None:
        keys = backend_keys()
        for row in table().values():
            overload = overload_of(row.operator)
            if overload is None:
                continue
            for key in [_COMPOSITE] if row.level == "composite" else keys:
                self._register(row, overload, key)
        self._unwatch = _watch_native(self)

    def remove(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()
        self._replaced.clear()

    def operators(self) -> list[tuple[str, str]]:
        """(operator, dispatch key) of every registered kernel."""
        return sorted(self._libraries)

    def _register(self, row: Row, overload: Any, key: str) -> None:
        try:
            replaced = kernel_below(row.operator, key)
        except RuntimeError:  # no kernel for this backend
            return
        self._replaced[row.operator, key] = replaced
        launch = None
        if (row.operator, key) == ("aten::embedding", "CPU") and not has_own_kernel(row.operator, key):
            launch = _shorter_embedding(replaced, self._replaced)
        kernel = make_kernel(row, overload, replaced, key=key, launch=launch, budgeted=self.budgeted)
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # torch announces an override of its own kernels; that is what was asked for
            warnings.simplefilter("ignore")
            library.impl(row.operator.removeprefix("aten::"), kernel, key)
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
    # 2.15 renamed both and put the namespace of the operator first.
    namespaced = hasattr(registry, "_install_override")
    installer, remover = (
        ("_install_override", "_destroy_override") if namespaced else ("_install_aten_override", "_destroy_aten_override")
    )
    install, destroy = getattr(registry, installer, None), getattr(registry, remover, None)
    if install is None or destroy is None:
        return None

    def names(*place: str) -> tuple[str, str]:
        namespace, symbol, key = place if namespaced else ("aten", *place)
        return f"{namespace}::{symbol.removeprefix('aten::')}", key

    def watched_install(*args: Any) -> Any:
        out = install(*args)
        *place, _kernel = args
        installation.lift(*names(*place))
        return out

    def watched_destroy(*place: str) -> Any:
        operator, key = names(*place)
        was_ours = installation.lower(operator, key)
        out = destroy(*place)
        if was_ours:
            installation._register(table()[operator], overload_of(operator), key)
        return out

    setattr(registry, installer, watched_install)
    setattr(registry, remover, watched_destroy)

    def undo() -> None:
        if getattr(registry, installer) is watched_install:
            setattr(registry, installer, install)
        if getattr(registry, remover) is watched_destroy:
            setattr(registry, remover, destroy)

    return undo
