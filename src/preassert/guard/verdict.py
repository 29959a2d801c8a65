"""What happens to a demand that is broken on the host, or that only the device can judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from preassert.contracts.domains import Domain
from preassert.contracts.rows import Row
from preassert.guard import record
from preassert.guard.bind import name_arguments
from preassert.guard.check import holds
from preassert.guard.options import Options
from preassert.guard.state import STATE

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One demand of one call, broken (host tensors) or not yet judged (device tensors)."""

    row: Row
    overload: Any
    domain: Domain
    position: int | None
    place: int | None
    tensor: torch.Tensor
    bounds: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        return name_arguments(self.overload._schema, self.args, self.kwargs)

    def replaced(self, tensor: torch.Tensor) -> Arguments:
        """The arguments with ``tensor`` in the place of the offending one."""
        name = self.domain.argument
        old = self.args[self.position] if self.position is not None else self.kwargs[name]
        new: Any = tensor
        if self.place is not None:
            new = list(old)
            new[self.place] = tensor
        if self.position is None:
            return self.args, {**self.kwargs, name: new}
        return (*self.args[: self.position], new, *self.args[self.position + 1 :]), self.kwargs


def left_out(fault: Fault, options: Options) -> bool:
    """Did the user leave this operator, hazard or device out?"""
    if options.devices is not None and fault.tensor.device.type not in options.devices:
        return True
    skip = options.skip
    return bool(skip) and ((fault.domain.hazard or fault.row.hazard) in skip or fault.row.operator.partition(".")[0] in skip)


def decide(fault: Fault, options: Options) -> Arguments:
    """Raise, or return the arguments to launch with.

    Host tensors arrive here only when they are bad. Device tensors arrive unjudged: judging one synchronises its device.
    """
    if left_out(fault, options):
        return fault.args, fault.kwargs
    if not fault.tensor.is_cpu:
        if capturing(fault.tensor):
            return fault.args, fault.kwargs
        with torch._C.DisableTorchFunctionSubclass():
            if holds(fault.domain, fault.tensor, fault.bounds, options.sentinels):
                return fault.args, fault.kwargs
    violation = record.build(fault.row, fault.domain, fault.place, fault.tensor, fault.bounds, fault.named, options)
    STATE.seen += 1
    STATE.last = violation
    raise violation


def capturing(tensor: torch.Tensor) -> bool:
    """Is a CUDA graph being captured? A synchronisation there would break the capture."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
