"""Does a tensor keep its domain? The host-side answer, tuned; the slow, general answer is the domain's own ``bad``."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import Tensor

from preassert.contracts.domains import Distribution, Domain, Index, Interval

_SMALL = 32  # elements up to which a Python loop beats a torch reduction
# dtypes that the reductions below do not take on every backend
_WIDEN = {getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)}


def extremes(tensor: Tensor) -> tuple[Any, Any]:
    """Smallest and largest element of a non-empty tensor. NaN propagates. One synchronisation on a device.

    Raises:
        RuntimeError: the tensor is empty.
    """
    if tensor.dtype in _WIDEN:
        tensor = tensor.to(torch.int64)
    low, high = tensor.aminmax()
    if tensor.is_cpu:
        return low.item(), high.item()
    return tuple(torch.stack((low, high)).tolist())


def index_holds(tensor: Tensor, lowest: int, highest: int, legal: tuple[Any, ...]) -> bool:
    """All elements in ``lowest..highest`` or legal?"""
    size = tensor.numel()
    if size <= _SMALL and tensor.is_cpu:
        if size == 0:
            return True
        values: Any = tensor.tolist()
        dims = tensor.dim()
        if dims != 1:
            values = [values] if dims == 0 else values
            for _ in range(dims - 1):
                values = functools.reduce(operator.iadd, values, [])
        values.sort()
        if lowest <= values[0] and values[-1] <= highest:
            return True
        return bool(legal) and all(lowest <= value <= highest or value in legal for value in values)
    if size == 0:
        return True
    low, high = extremes(tensor)
    if lowest <= low and high <= highest:
        return True
    if not legal:
        return False
    # Only what lies beyond the range on a side where no legal value can explain it settles the question at once.
    if (low < lowest and not any(value <= low for value in legal)) or (
        high > highest and not any(value >= high for value in legal)
    ):
        return False
    outside = (tensor < lowest) | (tensor > highest)
    for value in legal:
        outside &= tensor != value
    return not bool(outside.any())


def interval_holds(tensor: Tensor, bounds: Any) -> bool:
    lowest, highest = bounds
    if tensor.numel() == 0 or tensor.is_complex():
        return True
    low, high = extremes(tensor)
    # written so that NaN, which compares false, fails
    return bool(low >= lowest and (highest is None or high <= highest))


def distribution_holds(tensor: Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    low, high = extremes(tensor)
    if not (low >= 0 and high < float("inf")):
        return False
    if low > 0:
        return True
    return not bool((tensor.amax(-1) <= 0).any())


def holds(domain: Domain, tensor: Tensor, bounds: Any, sentinels: tuple[Any, ...] = ()) -> bool:
    """True when every element of ``tensor`` is inside ``domain``. Synchronises a device tensor's device.

    ``sentinels`` are values that the user declared legal everywhere.
    """
    if isinstance(domain, Index):
        return index_holds(tensor, bounds[0], bounds[1], (*bounds[2], *sentinels))
    if isinstance(domain, Interval):
        ok = interval_holds(tensor, bounds)
    elif isinstance(domain, Distribution):
        ok = distribution_holds(tensor)
    else:
        ok = tensor.numel() == 0 or not bool(domain.bad(tensor, bounds).any())
    if ok or not sentinels:
        return ok
    return not bool(bad_mask(domain, tensor, bounds, sentinels).any())


def bad_mask(domain: Domain, tensor: Tensor, bounds: Any, sentinels: tuple[Any, ...] = ()) -> Tensor:
    """``domain.bad`` less the values that the user declared legal."""
    if tensor.dtype in _WIDEN:
        tensor = tensor.to(torch.int64)
    mask: Tensor = domain.bad(tensor, bounds)
    for value in sentinels:
        if mask.shape == tensor.shape:
            mask = mask & (tensor != value)
    return mask
