"""Stand-ins for bad values, so that a kernel can run and the context lives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preassert.contracts.domains import Index
from preassert.guard.check import bad_mask
from preassert.guard.fault import Fault
from preassert.guard.options import Options


def can_repair(fault: Fault) -> bool:
    """Is there a stand-in of the same shape? (There is none for a wrong ``output_size``.)"""
    return fault.domain.can_repair(fault.bounds)


def ignores(fault: Fault) -> bool:
    """Can bad values become ``ignore_index``?"""
    return isinstance(fault.domain, Index) and fault.domain.legal_value is not None


def stand_in(fault: Fault, options: Options) -> Tensor:
    """A tensor that the kernel accepts: bad elements replaced, the others as they were."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        tensor = fault.tensor.detach()
        if options.policy == "ignore" and ignores(fault):
            value: Any = fault.domain.legal(fault.bounds)[0]
            return tensor.masked_fill(bad_mask(fault.domain, tensor, fault.bounds, options.sentinels), value)
        safe: Tensor = fault.domain.repair(tensor, fault.bounds)
        for value in options.sentinels:
            safe = torch.where(tensor == value, tensor, safe)
        return safe
