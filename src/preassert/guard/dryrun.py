"""Runs a model without its arithmetic: whole numbers are computed, everything that depends on a weight is only shaped.

The weights of a copy of the model are put on the meta device, where an operator yields a shape and no values. Inputs,
position ids and everything else made of them stay real. So an operator that consumes indices still sees its indices, and
the contract table can be asked about them, although a model of any size costs milliseconds and hardly any memory.

A model whose control flow needs a computed value (``nonzero`` of a mask made of activations) cannot run like that
(:class:`NeedsValues`); it is then run for real, on the CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map_only

from preassert.contracts.domains import Domain
from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.errors import Violation
from preassert.guard import blame, guard, record
from preassert.guard.check import holds
from preassert.guard.fault import Fault
from preassert.guard.intercept import Bound, bind_row, overload_of
from preassert.guard.options import Options
from preassert.guard.site import current_frames
from preassert.guard.state import STATE

# How much is computed, the cheapest first. "constants": whole numbers, and what is made of constants alone. "shapes": whole
# numbers only; for programs that write computed values into what began as a constant. "all": everything, on the CPU.
Depth = Literal["constants", "shapes", "all"]
DEPTHS: tuple[Depth, ...] = ("constants", "shapes", "all")

_META = torch.device("meta")
_CPU = torch.device("cpu")
_LARGE = 1 << 22  # elements: a constant larger than this (an attention mask of a long sequence) is only shaped
_MALFORMED = (RuntimeError, IndexError, TypeError)


class NeedsValues(Exception):
    """The program asks for a value that only the arithmetic could give."""


@dataclass(slots=True)
class Look:
    """One demand of one call, as the dry run met it.

    Attributes:
        tensor: the indices (values are those of the run). bounds: of the domain, at this call.
        module: path of the module whose forward made the call; filled in when the run was asked to name modules.
        broken: whether an element lies outside.
    """

    row: Row
    domain: Domain
    tensor: Tensor
    bounds: Any
    module: str | None
    broken: bool

    @property
    def hazard(self) -> str:
        return self.domain.hazard or self.row.hazard


@dataclass(slots=True)
class Outcome:
    """What a run came to: ``looks`` in the order of the calls, and what ended it early, if anything did.

    ``violation`` is set where the values were outside a contract and the run was asked to describe that; ``broken`` is True
    then too. ``error`` is any other exception: a shape that does not fit, say.
    """

    looks: list[Look]
    broken: bool = False
    violation: Violation | None = None
    error: Exception | None = None

    @property
    def fine(self) -> bool:
        return not self.broken and self.error is None


class _Stop(Exception):
    """A contract is broken and the call cannot be gone on with."""


@lru_cache(maxsize=1)
def _rows() -> dict[Any, tuple[Row, tuple[Bound, ...]]]:
    """Overload -> its row, bound to its schema. Composites are seen by the guard itself."""
    found = {}
    for row in table().values():
        overload = overload_of(row.operator)
        if overload is not None and row.level == "kernel":
            found[overload] = (row, bind_row(row, overload._schema))
    return found


class _DryMode(TorchDispatchMode):
    def __init__(self, *, depth: Depth, name_modules: bool, describe: bool, to_the_end: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depth = depth
        self.name_modules = name_modules
        self.describe = describe
        self.to_the_end = to_the_end
        self.looks: list[Look] = []
        self.violation: Violation | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = _rows().get(func)
        broken = known is not None and self.look(func, *known, args, kwargs)
        # Without values a broken call does no harm, and what comes after it can be seen too.
        if broken and not (self.to_the_end and tree_any(_is_meta, (args, kwargs))):
            raise _Stop
        if self.depth == "all":
            return func(*args, **kwargs)
        kwargs = _placed(func, args, kwargs, constants=self.depth == "constants")
        if not tree_any(_is_meta, (args, kwargs)):
            return func(*args, **kwargs)
        if func._schema.is_mutable and any(
            argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor) and not value.is_meta
            for argument, value in zip(func._schema.arguments, args, strict=False)
        ):
            raise NeedsValues(f"{func} writes computed values into a real tensor")
        args, kwargs = tree_map_only(Tensor, _shape_of, (args, kwargs))
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            raise NeedsValues(f"{func}: {error}") from error
        except RuntimeError as error:
            if "meta tensor" in str(error).lower():
                raise NeedsValues(f"{func}: {error}") from error
            raise

    def look(self, func: Any, row: Row, bounds: tuple[Bound, ...], args: Any, kwargs: Any) -> bool:
        """Hold the call against its row; True when a demand is broken."""
        any_broken = False
        for bound in bounds:
            try:
                cases = list(bound.domain.cases(*bound.fetch(args, kwargs)))
            except _MALFORMED:
                continue
            for place, tensor, limits in cases:
                if not isinstance(tensor, Tensor) or tensor.is_meta:
                    continue
                broken = not _holds(bound.domain, tensor, limits)
                any_broken = any_broken or broken
                module = blame.module_path(current_frames()) if self.name_modules else None
                self.looks.append(Look(row, bound.domain, tensor.detach().clone(), limits, module, broken))
                if broken and self.describe and self.violation is None:
                    fault = Fault(row, func._schema, bound.domain, bound.argument_position, place, tensor, limits, args, kwargs)
                    self.violation = record.build(fault, Options(), mode="immediate")
        return any_broken


def _holds(domain: Domain, tensor: Tensor, limits: Any) -> bool:
    try:
        return holds(domain, tensor, limits)
    except _MALFORMED:
        return True


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _shape_of(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


def _placed(func: Any, args: Any, kwargs: dict[str, Any], *, constants: bool) -> dict[str, Any]:
    """Where a tensor is made: what the program makes "on the device of the weights" is made on the CPU, where its values
    are then known; large constants are only shaped."""
    source = next((value for value in args if isinstance(value, Tensor)), None)
    if kwargs.get("device") is None and (source is None or not source.is_meta):
        return kwargs
    if source is not None and source.is_meta and func.overloadpacket.__name__ not in _NEW_FROM_SHAPE:
        return kwargs
    whole = _makes_whole_numbers(func, source, args, kwargs)
    shape = args[0] if source is None and args else args[1] if len(args) > 1 else None
    if not whole and isinstance(shape, (list, tuple)) and math.prod(shape) > _LARGE:
        return {**kwargs, "device": _META}
    device = kwargs.get("device")
    shaped = torch.device(device).type == "meta" if device is not None else source is not None and source.is_meta
    if shaped and (whole or (constants and source is None)):
        return {**kwargs, "device": _CPU}
    return kwargs


def _makes_whole_numbers(func: Any, source: Tensor | None, args: Any, kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    if source is not None:
        return not (source.is_floating_point() or source.is_complex())
    if func.overloadpacket is torch.ops.aten.arange:
        return all(isinstance(value, int) for value in args)
    if func.overloadpacket is torch.ops.aten.full:
        return isinstance(args[1], (bool, int))
    return False


_NEW_FROM_SHAPE = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
)


def shapes_only_copy(model: nn.Module) -> nn.Module:
    """A copy whose floating point parameters and buffers are on the meta device; no weight is copied.

    Raises:
        NeedsValues: the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        bare = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
        memo[id(tensor)] = nn.Parameter(bare, requires_grad=False) if isinstance(tensor, nn.Parameter) else bare
    try:
        made = copy.deepcopy(model, memo)
        for name, buffer in [*made.named_buffers()]:
            if not (buffer.is_meta or buffer.device.type == "cpu"):
                parent, _, last = name.rpartition(".")
                made.get_submodule(parent)._buffers[last] = buffer.cpu()
        return made
    except Exception as error:  # a module may hold anything: locks, file handles, a trainer
        raise NeedsValues(f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error})") from error


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Buffers (running statistics) and random numbers are afterwards what they were."""
    kept = {name: buffer.detach().clone() for name, buffer in model.named_buffers() if not buffer.is_meta}
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        present = dict(model.named_buffers())
        for name, before in kept.items():
            if name in present and present[name].shape == before.shape:
                present[name].data.copy_(before)


def run(
    call: Callable[[nn.Module], Any],
    model: nn.Module,
    *,
    depth: Depth,
    name_modules: bool = False,
    describe: bool = False,
    to_the_end: bool = True,
) -> Outcome:
    """Run ``call(model)`` dry, without gradients.

    Args:
        call: runs the model (and the loss) on inputs of the CPU.
        model: as :func:`shapes_only_copy` made it, or the model itself for depth "all".
        name_modules: name the module of each call (slow on large models).
        describe: put the first broken demand into ``Outcome.violation``.
        to_the_end: go on behind a broken demand where that can be done.

    Raises:
        NeedsValues: the program asks for a value that is not computed at this depth.
    """
    mode = _DryMode(depth=depth, name_modules=name_modules, describe=describe, to_the_end=to_the_end)
    seen, last = STATE.seen, STATE.last
    outcome = Outcome(mode.looks)
    try:
        with _untouched(model), torch.no_grad(), guard(mode="immediate"), mode:
            call(model)
    except NeedsValues:
        raise
    except _Stop:
        pass
    except Violation as violation:  # a composite, which only the guard sees
        outcome.broken, outcome.violation = True, violation
    except Exception as error:
        if _asks_for_a_value(error):
            raise NeedsValues(str(error)) from error
        outcome.error = error
    finally:
        STATE.seen, STATE.last = seen, last
    outcome.broken = outcome.broken or any(look.broken for look in mode.looks)
    outcome.violation = outcome.violation or mode.violation
    return outcome


def _asks_for_a_value(error: Exception) -> bool:
    """``.item()``, ``bool()`` or ``nonzero`` of a tensor that has only a shape."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NeedsValues):
            return True
        text = str(cause).lower()
        if isinstance(cause, (RuntimeError, NotImplementedError)) and ("meta tensor" in text or "on meta" in text):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
