"""What only a device knows: a small record on each device, read back once a step, not waited for in between.

For each check a few tiny kernels run in the stream of the operator: the extremes of the argument go into a slot of a buffer,
and the argument is sanitised, so that the operator cannot assert. For each slot the host keeps what it needs to judge the
numbers later: the contract's bounds, the tensor, and the frames of the call as code and line numbers.

At a boundary the buffers are copied (asynchronously, into pinned memory on CUDA) and the host waits for an event recorded
right after the last check. On a GPU that is the end of the forward pass; the backward pass is still queued behind it, so
the device does not run dry. This was not run on a GPU yet: docs/gpu.md.

Under CUDA graph capture a slot is bound to the graph for good: each replay writes it again, each boundary reads it. A replay
runs no Python, hence no boundary: call :func:`preassert.flush` after it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from preassert.contracts.domains import Index, Interval, Lengths
from preassert.errors import Violation
from preassert.guard import record
from preassert.guard.fault import Fault
from preassert.guard.ledger import LEDGER, announce, in_backward
from preassert.guard.options import Options
from preassert.guard.repair import ignores, stand_in
from preassert.guard.site import Place, Trail, trail

_SLOTS = 2048  # checks between two boundaries; when they run out the log settles early


@dataclass(slots=True)
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
    """The checks of one device since the last boundary."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.entries: list[Entry] = []
        self.captured: list[Entry] = []
        self._free = 0
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._events: dict[Any, Any] = {}  # stream -> event after its last check
        for dtype in (torch.int64, torch.float32):  # before any capture, whose memory must not hold them
            self._buffer(dtype)

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._buffers:
            self._buffers[dtype] = torch.zeros((2, _SLOTS), dtype=dtype, device=self.device)
        return self._buffers[dtype]

    def check(self, fault: Fault, options: Options, capturing: bool) -> Tensor | None:
        """Enqueue one check; returns the tensor to launch with. Does not synchronise."""
        tensor = fault.tensor.detach()
        if tensor.numel() == 0:
            return None
        if self._free >= _SLOTS:
            if capturing:
                announce("this graph makes more guarded calls than there are slots; the rest of it is not guarded")
                return None
            LEDGER.collect()
        slot, self._free = self._free, self._free + 1
        dtype = self._write(slot, fault, tensor, options)
        self._mark()
        version = None if tensor.is_inference() else fault.tensor._version
        at = fault.at or trail()
        entry = Entry(fault, options, dtype, slot, version, at, fault.row.backward or in_backward())
        (self.captured if capturing else self.entries).append(entry)
        return stand_in(fault, options)

    def _write(self, slot: int, fault: Fault, tensor: Tensor, options: Options) -> torch.dtype:
        """Kernels that leave the answer in ``slot``: extremes for ranges, a flag for everything else."""
        domain, bounds = fault.domain, fault.bounds
        if isinstance(domain, (Index, Interval, Lengths)) and not tensor.is_complex():
            for value in (*domain.legal(bounds), *options.sentinels):
                inside = bounds[0] if bounds[0] is not None else bounds[1]
                tensor = tensor.masked_fill(tensor == value, inside)
            if tensor.dtype not in (torch.int64, torch.float32):
                tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
            buffer = self._buffer(tensor.dtype)
            torch.aminmax(tensor, out=(buffer[0, slot], buffer[1, slot]))
            return tensor.dtype
        flag = domain.bad(tensor, bounds).any()
        self._buffer(torch.int64)[1, slot].copy_(flag, non_blocking=True)
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
        if not (self.entries or self.captured):
            return []
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return []
        answers = self._read()
        entries, self.entries = self.entries, []
        self._free = 1 + max((entry.slot for entry in self.captured), default=-1)
        bad = [entry for entry in (*self.captured, *entries) if not self._fine(entry, answers)]
        forward = [entry for entry in bad if not entry.backward]
        for entry in self.captured:
            if entry in bad:
                self._buffers[entry.dtype][:, entry.slot].zero_()
        # what the backward pass saw are the indices that the forward has reported already
        return [
            (self._violation(entry), entry.options, entry.options.policy == "ignore" and ignores(entry.fault))
            for entry in (forward or bad)
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
        if not isinstance(domain, (Index, Interval, Lengths)):
            return bool(high == 0)
        lowest, highest = bounds[0], bounds[1]
        # written so that NaN, which compares false, is bad
        if highest is not None and not high <= highest:
            return False
        if lowest is None:
            return bool(low == low)
        return bool(low > lowest) if isinstance(domain, Interval) and bounds[2] else bool(low >= lowest)

    def _violation(self, entry: Entry) -> Violation:
        tensor = entry.fault.tensor
        changed = entry.version is not None and not tensor.is_inference() and tensor._version != entry.version
        at = entry.at.place() if isinstance(entry.at, Trail) else entry.at
        violation = record.build(entry.fault, entry.options, mode="deferred", at=at)
        if changed and entry not in self.captured:
            violation.detail = "the tensor was written to after the call: values and positions are those of now"
            violation.args = (violation.to_text(),)
        return violation


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
    """Forget the logs (tests, and the child side of a fork)."""
    _logs.clear()
    _side_streams.clear()
