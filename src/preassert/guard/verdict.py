"""What happens to a demand that is broken on the host, or that only the device can judge."""

from __future__ import annotations

import torch
from torch import Tensor

from preassert.guard import devicelog, record
from preassert.guard.check import holds
from preassert.guard.fault import Arguments, Fault
from preassert.guard.ledger import LEDGER, in_backward
from preassert.guard.options import Options
from preassert.guard.repair import can_repair, ignores, stand_in
from preassert.guard.state import STATE

# Tests pretend that CPU tensors are a device's, to run the device's code where there is no device.
PRETEND_DEVICE = False


def decide(fault: Fault, options: Options) -> Arguments:
    """Raise, or return the arguments to launch with; see :func:`judge`."""
    instead = judge(fault, options)
    return fault.unchanged if instead is None else fault.replaced(instead)


def judge(fault: Fault, options: Options) -> Tensor | None:
    """Raise, or say what to launch with in the place of ``fault.tensor`` (None: the tensor itself).

    Host tensors arrive here only when they are bad. Device tensors arrive unjudged; in immediate mode judging one
    synchronises its device.

    Raises:
        Violation: immediate mode.
    """
    if fault.left_out(options):
        return None
    if fault.tensor.is_cpu and not PRETEND_DEVICE:
        return _settle_bad(fault, options, deferred=options.deferred_on_cpu)
    capturing = fault.tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    if options.mode != "immediate" and can_repair(fault):
        return devicelog.check(fault, options, capturing)
    if capturing:  # a synchronisation would break the capture
        return None
    with torch._C.DisableTorchFunctionSubclass():
        if holds(fault.domain, fault.tensor, fault.bounds, options.sentinels):
            return None
    return _settle_bad(fault, options, deferred=False)


def _settle_bad(fault: Fault, options: Options, *, deferred: bool) -> Tensor:
    deferred = deferred and can_repair(fault)
    mode = "compiled" if fault.at is not None else "deferred" if deferred else "immediate"
    if not deferred:
        violation = record.build(fault, options, mode=mode)
        STATE.note(violation)
        raise violation
    ignoring = options.policy == "ignore" and ignores(fault)
    backward = fault.row.backward or in_backward()
    # The backward pass works on the indices that the forward saved: the fault is the same one.
    if not (backward and (ignoring or LEDGER.pending)):
        violation = record.build(fault, options, mode=mode)
        if ignoring:
            LEDGER.add_ignored(violation)
        else:
            LEDGER.add(violation, options)
    return stand_in(fault, options)
