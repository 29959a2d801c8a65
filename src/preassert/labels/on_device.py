"""``LabelMap.transform`` for tensors that are not on the CPU: the table goes to the device, the tensor stays there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from preassert.labels import lookup
from preassert.labels.lookup import MISSING, UNKNOWN

if TYPE_CHECKING:
    from preassert.labels.labelmap import LabelMap


def transform(labels: LabelMap, tensor: Any) -> Any | None:
    """Indices on the device of ``tensor``; None where only the path over the host can answer (errors, drops, fractions).

    Synchronises the device once, to learn whether every element has a code.
    """
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.is_floating_point():
        whole = tensor.to(torch.int64)
        if not bool((whole == tensor).all()):  # fractions, NaN, infinities
            return None
        tensor = whole
    elif tensor.dtype == torch.bool or tensor.is_complex():
        return None
    ids = tensor.to(torch.int64)
    out = _look_up(torch, labels, ids)
    if not out.numel() or int(out.min()) > MISSING:
        return out
    code = labels.policy_code(UNKNOWN)
    return None if code is None else out.masked_fill_(out == UNKNOWN, code)


def _look_up(torch: Any, labels: LabelMap, ids: Any) -> Any:
    device = ids.device

    def make() -> tuple[Any, ...]:
        codes = labels.int_codes()
        table = lookup.build(codes)
        if isinstance(table, lookup.Dense):
            return (table.low, torch.from_numpy(table.table).to(device))
        table = lookup.Sorted(codes)
        return (torch.from_numpy(table.ids).to(device), torch.from_numpy(table.codes).to(device))

    first, codes = labels._cached(("device", str(device)), make)
    if isinstance(first, int):
        slots = (ids - first).clamp_(0, len(codes) - 1)
        return codes[slots]
    if not len(first):
        return torch.full_like(ids, UNKNOWN)
    slots = torch.searchsorted(first, ids).clamp_(max=len(first) - 1)
    return torch.where(first[slots] == ids, codes[slots], UNKNOWN)
