"""What only a device knows: a small record on each device, read back once a step, not waited for in between.

For each check a few tiny kernels run in the stream of the operator: the extremes of the argument go into a slot of a buffer,
and the argument is sanitised, so that the operator cannot assert. For each slot the host keeps what it needs to judge the
numbers later: the contract's bounds, the tensor (not the other tensors of the call), and the frames of the call as code and
line numbers. A slot that nothing was written to holds 1 as smallest and 0 as largest value.

At a boundary the buffers are copied (asynchronously, into pinned memory on CUDA) and the host waits for an event recorded
right after the last check. On a GPU that is the end of the forward pass; the backward pass is still queued behind it, so
the device does not run dry. This was not run on a GPU yet: docs/gpu.md.

Under CUDA graph capture a slot is bound to the graph for good: each replay writes it again, each boundary reads it. A replay
runs no Python, hence no boundary: call :func:`preassert.flush` after it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from preassert.contracts.domains import Index, Interval, Lengths
from preassert.errors import Violation, number_text
from preassert.guard import record
from preassert.guard.check import bad_mask
from preassert.guard.fault import Fault
from preassert.guard.ledger import LEDGER, announce, in_backward
from preassert.guard.options import Options
from preassert.guard.repair import ignores, stand_in
from preassert.guard.site import Place, Trail, trail

_RANGES = (Index, Interval, Lengths)  # domains that the extremes of a tensor settle
_SLOTS = 2048  # checks between two boundaries; when they run out the log settles early


@dataclass(slots=True, eq=False)
class Entry:
    """One check that a device has been asked for."""

    fault: Fault
    options: Options
    dtype: torch.dtype  # of the buffer that holds the answer
    slot: int
    version: int | None  # of the tensor at the check
    at: Trail | Place
    backward: bool


class DeviceLog:
    """The checks of one device since the last boundary. Threads may share it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.RLock()
        self.entries: list[Entry] = []
        self.captured: list[Entry] = []
        self._free = 0
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._events: dict[Any, Any] = {}  # stream -> event after its last check
        for dtype in (torch.int64, torch.float32):  # before any capture, whose memory must not hold them
            self._buffer(dtype)

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._buffers:
            # made on the device: a copy from the host would synchronise
            self._buffers[dtype] = torch.zeros((2, _SLOTS), dtype=dtype, device=self.device)
            self._buffers[dtype][0].fill_(1)
        return self._buffers[dtype]

    def check(self, fault: Fault, options: Options, capturing: bool) -> Tensor | None:
        """Enqueue one check; returns the tensor to launch with. Does not synchronise, unless the slots have run out."""
        tensor = fault.tensor.detach()
        if tensor.numel() == 0:
            return None
        while True:
            with self._lock:
                if self._free < _SLOTS:
                    self._enter(fault, tensor, options, capturing)
                    break
            if capturing:
                announce("this graph makes more guarded calls than there are slots; the rest of it is not guarded")
                return None
            LEDGER.collect()  # not under the lock: it asks the logs of other devices too
        return stand_in(fault, options)

    def _enter(self, fault: Fault, tensor: Tensor, options: Options, capturing: bool) -> None:
        slot, self._free = self._free, self._free + 1
        dtype = self._write(slot, fault, tensor, options)
        self._mark()
        version = None if tensor.is_inference() else fault.tensor._version
        at = fault.at or trail()
        entry = Entry(fault.outlined(), options, dtype, slot, version, at, fault.row.backward or in_backward())
        (self.captured if capturing else self.entries).append(entry)

    def _write(self, slot: int, fault: Fault, tensor: Tensor, options: Options) -> torch.dtype:
        """Kernels that leave the answer in ``slot``: extremes for ranges, a flag for everything else."""
        domain, bounds = fault.domain, fault.bounds
        if isinstance(domain, _RANGES) and not tensor.is_complex():
            for value in (*domain.legal(bounds), *options.sentinels):
                tensor = tensor.masked_fill(tensor == value, bounds[0])
            if tensor.dtype not in (torch.int64, torch.float32, torch.float64):
                tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
            buffer = self._buffer(tensor.dtype)
            torch.aminmax(tensor, out=(buffer[0, slot], buffer[1, slot]))
            return tensor.dtype
        flag = bad_mask(domain, tensor, bounds, options.sentinels).any()
        buffer = self._buffer(torch.int64)
        buffer[0, slot].zero_()
        buffer[1, slot].copy_(flag, non_blocking=True)
        return torch.int64

    def _mark(self) -> None:
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            event = self._events.get(stream)
            if event is None:
                event = self._events[stream] = torch.cuda.Event()
            event.record(stream)

    # --- boundary

    def collect(self) -> list[tuple[Violation, Options, bool]]:
        """Judge what has been asked. Waits for the last check, not for what is queued behind it."""
        with self._lock:
            return self._collect()

    def _collect(self) -> list[tuple[Violation, Options, bool]]:
        if not (self.entries or self.captured):
            return []
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return []
        answers = self._read()
        entries, self.entries = self.entries, []
        self._free = 1 + max((entry.slot for entry in self.captured), default=-1)
        bad = [entry for entry in (*self.captured, *entries) if not self._fine(entry, answers)]
        for entry in bad:
            if entry in self.captured:  # told once, until a replay writes it again
                self._buffers[entry.dtype][:, entry.slot] = self._buffers[entry.dtype].new_tensor([1, 0])
        forward = [entry for entry in bad if not entry.backward]
        # what the backward pass saw are the indices that the forward has reported already, or that are ignored
        told = forward or LEDGER.pending
        return [
            (self._violation(entry, answers), entry.options, _ignored(entry))
            for entry in bad
            if not entry.backward or not (told or _ignored(entry))
        ]

    def _read(self) -> dict[torch.dtype, list[list[Any]]]:
        used = {entry.dtype for entry in (*self.captured, *self.entries)}
        last = 1 + max(entry.slot for entry in (*self.captured, *self.entries))
        if self.device.type != "cuda":
            return {dtype: self._buffers[dtype][:, :last].tolist() for dtype in used}
        side = _side_stream(self.device)
        for event in self._events.values():
            side.wait_event(event)
        hosts = {}
        with torch.cuda.stream(side):
            for dtype in used:
                hosts[dtype] = torch.empty((2, last), dtype=dtype, pin_memory=True)
                hosts[dtype].copy_(self._buffers[dtype][:, :last], non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(side)
        arrived.synchronize()
        return {dtype: host.tolist() for dtype, host in hosts.items()}

    @staticmethod
    def _fine(entry: Entry, answers: dict[torch.dtype, list[list[Any]]]) -> bool:
        low, high = (side[entry.slot] for side in answers[entry.dtype])
        domain, bounds = entry.fault.domain, entry.fault.bounds
        if low > high:  # a graph that has not been replayed
            return True
        if not isinstance(domain, _RANGES):
            return bool(high == 0)
        lowest, highest = bounds[0], bounds[1]
        # written so that NaN, which compares false, is bad
        return bool(low >= lowest and (highest is None or high <= highest))

    def _violation(self, entry: Entry, answers: dict[torch.dtype, list[list[Any]]]) -> Violation:
        tensor = entry.fault.tensor
        changed = entry.version is not None and not tensor.is_inference() and tensor._version != entry.version
        at = entry.at.place() if isinstance(entry.at, Trail) else entry.at
        violation = record.build(entry.fault, entry.options, mode="deferred", at=at)
        if changed and entry not in self.captured:
            violation.detail = "the tensor was written to after the call: values and positions are those of now"
            if isinstance(entry.fault.domain, _RANGES):
                low, high = (side[entry.slot] for side in answers[entry.dtype])
                violation.detail += f"; at the call its smallest value was {number_text(low)}, its largest {number_text(high)}"
            violation.count = max(violation.count, 1)
            violation.args = (violation.to_text(),)
        return violation


def _ignored(entry: Entry) -> bool:
    return entry.options.policy == "ignore" and ignores(entry.fault)


_logs: dict[torch.device, DeviceLog] = {}
_lock = threading.Lock()
_side_streams: dict[torch.device, Any] = {}


def check(fault: Fault, options: Options, capturing: bool) -> Tensor | None:
    """Have the device of ``fault.tensor`` judge it later; returns the tensor to launch with. Does not synchronise."""
    device = fault.tensor.device
    log = _logs.get(device)
    if log is None:
        with _lock:
            log = _logs.setdefault(device, DeviceLog(device))
        LEDGER.attach(log)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return log.check(fault, options, capturing)


def _side_stream(device: torch.device) -> Any:
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device)
    return _side_streams[device]


def reset() -> None:
    """Forget the logs (tests, and the child side of a fork, which cannot read the parent's device)."""
    for log in _logs.values():
        LEDGER.detach(log)
    _logs.clear()
    _side_streams.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=reset)
