"""The simulated device: one queue of kernels, a context that can die, and counters.

A launch puts a kernel into the queue and returns. The kernels run when the host waits for the device (a
synchronisation), or when the queue is long, as a real device catches up meanwhile. A kernel that asserts prints its lines
to file descriptor 2 and poisons the context: the rest of the queue is dropped, and every later call fails.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from preassert.simgpu.assertions import Fault
from preassert.simgpu.memory import Ledger, extent_bytes, to_device_label
from preassert.simgpu.messages import LABEL, LAUNCH_FAILURE, CudaError, accelerator_error, out_of_memory_error

FORKED = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
MAX_QUEUED = 4096  # kernels in flight before the device is taken to have caught up


@dataclass(slots=True)
class Kernel:
    """One launch, waiting in the queue."""

    name: str  # ``aten::embedding``
    check: Callable[[], Fault | None] | None  # would it assert? Reads memory, so it runs with the kernel
    run: Callable[[], None]
    random: bool = False


@dataclass(slots=True)
class Marker:
    """A point in the queue that an event marks."""

    done: bool = False
    order: int = 0


@dataclass
class Device:
    """State of one CUDA context. ``limit_bytes``: total memory, None for no limit. ``blocking``: as CUDA_LAUNCH_BLOCKING=1."""

    limit_bytes: int | None = None
    blocking: bool = False
    device_count: int = 1
    index: int = 0  # the ordinal that this process calls its one device by
    error: CudaError | None = None  # set once, by the kernel that killed the context
    failed_kernel: str | None = None
    synchronizations: int = 0
    launches: int = 0
    sync_debug_mode: int = 0
    ledger: Ledger = field(init=False)
    queue: deque[Kernel | Marker] = field(default_factory=deque)
    lock: threading.RLock = field(default_factory=threading.RLock)
    generator_state: torch.Tensor = field(init=False)
    seed: int = 0
    process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.limit_bytes)
        self.seed_random(torch.initial_seed() & 0x7FFF_FFFF_FFFF_FFFF)

    # --- the context -------------------------------------------------------------------------------------------------

    def raise_if_dead(self) -> None:
        """Raises ``torch.AcceleratorError`` when an earlier kernel killed the context, RuntimeError in a forked child."""
        if self.process != os.getpid():
            raise RuntimeError(FORKED)
        if self.error is not None:
            raise accelerator_error(self.error)

    def poison(self, error: CudaError, kernel: str) -> None:
        self.error = self.error or error
        self.failed_kernel = self.failed_kernel or kernel
        self.queue.clear()

    # --- the queue ---------------------------------------------------------------------------------------------------

    def launch(self, kernel: Kernel) -> None:
        """Queue ``kernel``. Raises when the context is dead, or (launch blocking) when this very kernel kills it."""
        with self.lock:
            self.raise_if_dead()
            self.launches += 1
            self.queue.append(kernel)
            if self.blocking:
                self.drain()
                self.raise_if_dead()
            elif len(self.queue) > MAX_QUEUED:
                self.drain()

    def mark(self) -> Marker:
        marker = Marker()
        with self.lock:
            self.raise_if_dead()
            if self.queue:
                self.queue.append(marker)
            else:
                marker.done = True
        return marker

    def drain(self) -> None:
        """Run what is queued. Never raises for what a kernel does: the context is poisoned instead."""
        if self.process != os.getpid():
            return  # the queue is the parent's
        with self.lock:
            if not self.queue:
                return
            with below_every_mode():
                while self.queue:
                    entry = self.queue.popleft()
                    if isinstance(entry, Marker):
                        entry.done = True
                    else:
                        self._execute(entry)

    def _execute(self, kernel: Kernel) -> None:
        fault = kernel.check() if kernel.check is not None else None
        if fault is not None:
            write_stderr(fault.lines)
            self.poison(fault.error, kernel.name)
            return
        try:
            if kernel.random:
                self.with_own_random(kernel.run)
            else:
                kernel.run()
        except (RuntimeError, IndexError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else "no message"
            failure = f"{kernel.name} failed on the host ({type(error).__name__}: {reason})"
            write_stderr([f"{LABEL}: {failure}; what CUDA does here is not simulated"])
            self.poison(LAUNCH_FAILURE, kernel.name)

    def synchronize(self, caller: str) -> None:
        """Wait for the device, as ``caller`` does. Counted; raises when a kernel killed the context."""
        with self.lock:
            self.raise_if_dead()
            self.synchronizations += 1
            if self.sync_debug_mode == 1:
                warnings.warn(f"called a synchronizing CUDA operation ({caller})", stacklevel=4)
            elif self.sync_debug_mode == 2:
                raise RuntimeError(f"called a synchronizing CUDA operation ({caller})")
            self.drain()
            self.raise_if_dead()

    # --- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Uninitialised memory: (tensor of the device, its host-labelled alias).

        Raises:
            torch.OutOfMemoryError: at the limit, after what is queued has run.
        """
        wanted = extent_bytes(size, stride, dtype)
        if not self.ledger.fits(wanted):
            self.drain()  # what finished kernels held is free by now
            if not self.ledger.fits(wanted):
                raise out_of_memory_error(wanted, self.limit_bytes or 0, self.ledger.allocated_bytes)
        host = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        self.ledger.track(host)
        return to_device_label(host), host

    # --- random numbers ----------------------------------------------------------------------------------------------

    def seed_random(self, seed: int) -> None:
        """Seed the device's own generator. The numbers are those of the CPU generator with that seed, not those of a GPU."""
        generator = torch._C.Generator()
        generator.manual_seed(seed)
        self.seed, self.generator_state = seed, generator.get_state()

    def with_own_random(self, run: Callable[[], None]) -> None:
        """Run with the device's generator state in place of the host's, which is put back."""
        host_state = torch.get_rng_state()
        torch.set_rng_state(self.generator_state)
        try:
            run()
        finally:
            self.generator_state = torch.get_rng_state()
            torch.set_rng_state(host_state)


def write_stderr(lines: tuple[str, ...] | list[str]) -> None:
    """Print to file descriptor 2, past Python's ``sys.stderr``, as the driver does."""
    if not lines:
        return
    with contextlib.suppress(OSError, ValueError):  # a closed or replaced stderr does not stop the driver
        sys.stderr.flush()
    data = ("\n".join(lines) + "\n").encode()
    while data:
        data = data[os.write(2, data) :]


_MODE_KEYS = (
    "Python",
    "PythonTLSSnapshot",
    "AutocastCPU",
    "AutocastPrivateUse1",
    "AutogradCPU",
    "AutogradOther",
    "ADInplaceOrView",
)


def _mode_keys() -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    for name in _MODE_KEYS:
        keys = keys.add(getattr(torch._C.DispatchKey, name))
    return keys


class below_every_mode:
    """Kernels run below autograd, autocast and every mode, whatever is active where the host happens to wait."""

    _keys = _mode_keys()

    def __enter__(self) -> None:
        self._function_modes = torch._C.DisableTorchFunction()
        self._function_modes.__enter__()
        self._dispatch_keys = torch._C._ExcludeDispatchKeyGuard(self._keys)
        self._dispatch_keys.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._dispatch_keys.__exit__(*error)
        self._function_modes.__exit__(*error)
