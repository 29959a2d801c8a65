"""Turn a broken demand into the Violation that people read. Runs once a fault has been found, never before."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from preassert.errors import Violation
from preassert.guard import blame
from preassert.guard.check import bad_mask
from preassert.guard.fault import Fault
from preassert.guard.options import Options
from preassert.guard.site import Call, Outline, Place, current_frames, functional_call, outline, site_of, user_frame
from preassert.hazards.likely import likely
from preassert.model import ArgumentInfo, BadElement, Site, unravel
from preassert.report.text import clean, clean_line

_MAX_BLAMED = 10_000  # bad positions looked up in the batch


def build(fault: Fault, options: Options, *, mode: str, at: Place | None = None) -> Violation:
    """The violation that ``fault`` is.

    Args:
        at: where the call was made, when that is past; otherwise ``fault.at``, otherwise the current frames tell.

    Synchronises the tensor's device: the operator was not launched on these values, so the context is alive.
    """
    at = at or fault.at
    frames = current_frames() if at is None else []
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        if at is None:
            where = user_frame(frames)
            site, module, call = (site_of(where) if where else None), blame.module_path(frames), functional_call(frames)
        else:
            site, module, call = at.site, at.module, at.call
        return _build(fault, options, mode, site, module, call)


def _build(fault: Fault, options: Options, mode: str, site: Site | None, module: str | None, call: Call | None) -> Violation:
    domain, bounds, place, row = fault.domain, fault.bounds, fault.place, fault.row
    tensor = fault.tensor.detach()
    named = fault.named
    argument, shape = domain.argument, tuple(tensor.shape)
    name = call.name if call else row.call
    if name.startswith("F.") and argument == "self":
        argument = "input"  # as torch.nn.functional calls it
    if call is not None and call.tensors:
        argument, shape = _as_passed(tensor, call.tensors, argument)
        infos = tuple(describe(key, value) for key, value in call.tensors.items())
    else:
        infos = tuple(describe(key, value) for key, value in named.items() if isinstance(value, (Tensor, Outline)))
        siblings = named.get(domain.argument)
        if isinstance(siblings, (list, tuple)):
            place = place if len(siblings) > 1 else None
            infos += (describe(argument if place is None else f"{argument}[{place}]", tensor),)

    count, positions, values = _bad_elements(tensor, bad_mask(domain, tensor, bounds, options.sentinels))
    elements = tuple(
        BadElement(unravel(position, shape), value)
        for position, value in zip(positions[: options.max_elements], values, strict=False)
    )
    detail = domain.explain(tensor, bounds)
    if domain.kind == "truth":  # the value is always 0; what was asserted is the message
        elements, detail = (), clean(named.get("assert_msg") or "") or detail
    minimum, maximum = _extremes(tensor)
    lowest, highest = domain.limits(bounds)
    numbers: dict[str, Any] = {
        "argument": argument,
        "count": count,
        "total": int(tensor.numel()),
        "minimum": minimum,
        "maximum": maximum,
        "lowest": lowest,
        "highest": highest,
        "legal": (*domain.legal(bounds), *options.sentinels),
        "call": name,
    }
    return Violation(
        fault.hazard,
        **numbers,
        operator=row.operator,
        valid=domain.valid(bounds),
        arguments=infos,
        elements=elements,
        site=site,
        module=clean_line(module) if module else None,
        sample=blame.sample(tensor, positions, values) if positions else None,
        likely=likely(
            fault.hazard,
            **numbers,
            distinct=tuple(_distinct(values)),
            num_classes=None if highest is None else int(highest) + 1,
            parameter=module.rpartition(".")[2] if module else None,
        ),
        detail=detail,
        mode=mode,
        rank=rank(),
        place=None if call is not None and call.tensors else place,
    )


def _bad_elements(tensor: Tensor, mask: Tensor) -> tuple[int, list[int], list[Any]]:
    """How many elements are bad, and the flat positions and values of the first of them; no elements for a fault of the whole."""
    if not (mask.shape == tensor.shape and tensor.dim() > 0) and tensor.numel() != 1:
        return 1, [], []
    found = mask.reshape(-1).nonzero().reshape(-1)
    first = found[:_MAX_BLAMED]
    return int(found.numel()), first.tolist(), tensor.reshape(-1)[first].tolist()


def rank() -> int | None:
    """Rank of this process under a launcher, else None."""
    text = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or os.environ.get("OMPI_COMM_WORLD_RANK")
    return int(text) if text and text.isdigit() else None


def describe(name: str, tensor: Tensor | Outline) -> ArgumentInfo:
    seen = outline(tensor)
    return ArgumentInfo(name, str(seen.dtype).removeprefix("torch."), seen.shape)


def _as_passed(tensor: Tensor, candidates: Mapping[str, Tensor | Outline], fallback: str) -> tuple[str, tuple[int, ...]]:
    """Name and shape under which the user passed this tensor: itself, or a tensor that it is a reshape of."""
    own = outline(tensor)
    outlines = {name: outline(value) for name, value in candidates.items()}
    passed = {name: seen for name, seen in outlines.items() if seen.count == own.count}
    for name, seen in passed.items():
        if seen.dtype == own.dtype and seen.start == own.start:
            return name, seen.shape  # type: ignore[return-value]  # there is a count, so all sizes are numbers
    if fallback in passed:
        return fallback, passed[fallback].shape  # type: ignore[return-value]
    return fallback, tuple(tensor.shape)


def _extremes(tensor: Tensor) -> tuple[Any, Any]:
    if tensor.is_floating_point():
        tensor = tensor[~torch.isnan(tensor)]
    elif tensor.dtype == torch.bool or tensor.is_complex():
        return None, None
    if tensor.numel() == 0:
        return None, None
    if str(tensor.dtype) in ("torch.uint16", "torch.uint32", "torch.uint64"):
        tensor = tensor.to(torch.int64)
    low, high = tensor.aminmax()
    return low.item(), high.item()


def _distinct(values: list[Any]) -> list[Any]:
    seen = {("nan" if isinstance(value, float) and math.isnan(value) else value): value for value in values}
    return list(seen.values())
