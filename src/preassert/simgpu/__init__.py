"""A simulated CUDA device in pure Python: asynchronous, and dead for good after a device-side assertion.

``with preassert.simgpu.device():`` (or ``preassert run --simgpu script.py``) lets "cuda" tensors live on the simulation. A
script written for CUDA runs unchanged: factories, ``.to("cuda")``, ``.cuda()``, streams, events, autocast, GradScaler,
optimizers, pinned loaders, checkpoints. Kernels are queued and run when the host waits. A kernel that would assert on a
GPU prints PyTorch 2.13's assertion lines to file descriptor 2 and poisons the context; every later CUDA call raises
``torch.AcceleratorError``, at whatever line makes it. ``CUDA_LAUNCH_BLOCKING=1`` makes every launch wait.

It is for tests and demonstrations. It says nothing about the speed, the rounding or the memory of a real GPU.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from preassert.simgpu import autocast, collectives, cuda_api, kernels
from preassert.simgpu.cuda_api import active, set_sync_debug_mode
from preassert.simgpu.device import Device, write_stderr
from preassert.simgpu.kernels import holder
from preassert.simgpu.messages import LABEL

NOT_SIMULATED = (
    "speed: nothing here is faster or slower than on a GPU in any meaningful way",
    "rounding: kernels are the CPU's, so results are those of the CPU (tensor cores, TF32 and cuDNN's choices are absent)",
    "random numbers: seeded like CUDA's generator, but they are those of the CPU generator",
    "streams run in order of launch: races between streams do not show",
    "memory that is read out of range without an assertion: reported as an illegal memory access where it is known to happen, "
    "otherwise whatever the CPU kernel does",
    "several devices in one process; a rank of a distributed run has one device each",
    "CUDA graphs, torch.compile for the device, Triton, NCCL, custom CUDA extensions, sparse and quantised tensors, CUDA IPC",
    "torch.cuda memory statistics beyond allocated bytes and their peak",
    "fused scaled-dot-product attention: the math path is taken",
    "Windows; a torch older than 2.9",
)

NOTICE = f"{LABEL}: no GPU is used; kernels run on the CPU, later. Not a statement about a real GPU."


def activate(*, limit_bytes: int | None = None, device_count: int | None = None, notice: bool = True) -> Device:
    """Switch the simulation on for the rest of the process, with a new context.

    Args:
        limit_bytes: total memory of the device; an allocation beyond it raises ``torch.OutOfMemoryError``. None: no limit,
            or the number in ``PREASSERT_SIMGPU_BYTES``.
        device_count: what ``torch.cuda.device_count()`` answers. A process uses one of them. None: the number of local
            ranks (``LOCAL_WORLD_SIZE``), or 1.
        notice: print one line on file descriptor 2 that says what this is.

    Raises:
        RuntimeError: a real GPU is here, torch is too old, another backend holds PrivateUse1, or the autograd engine of
            this process has already started without the device (activate before the first backward pass).
    """
    cuda_api.register_backend()
    kernels.register()
    autocast.register()
    collectives.register()
    limit = limit_bytes if limit_bytes is not None else _environment_integer("PREASSERT_SIMGPU_BYTES")
    count = device_count if device_count is not None else _environment_integer("LOCAL_WORLD_SIZE") or 1
    holder.device.drain()
    holder.device = Device(limit_bytes=limit, blocking=os.environ.get("CUDA_LAUNCH_BLOCKING") == "1", device_count=count)
    cuda_api.switch_on()
    _check_engine()
    atexit.unregister(_finish)
    atexit.register(_finish)
    if notice:
        write_stderr([NOTICE])
    return holder.device


def deactivate() -> None:
    """Switch the simulation off. Tensors of it stay readable; a dead context stays dead."""
    cuda_api.switch_off()


@contextmanager
def device(*, limit_bytes: int | None = None, device_count: int | None = None, notice: bool = False) -> Iterator[Device]:
    """The simulation for the length of a block; see :func:`activate`. Yields the device with its counters."""
    before = holder.device if active() else None
    simulated = activate(limit_bytes=limit_bytes, device_count=device_count, notice=notice)
    try:
        yield simulated
    finally:
        simulated.drain()
        if before is None:
            deactivate()
        else:
            holder.device = before


def synchronizations() -> int:
    """How often the host has waited for the device since :func:`activate` (copies between host and device included)."""
    return holder.device.synchronizations


def launches() -> int:
    """How many kernels have been launched since :func:`activate`."""
    return holder.device.launches


def _finish() -> None:
    """At the end of the process: an assertion of a kernel that nobody waited for is still printed."""
    holder.device.drain()


def _environment_integer(name: str) -> int | None:
    value = os.environ.get(name)
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name}: {value!r} is not an integer") from None


def _check_engine() -> None:
    """The autograd engine counts devices once, at the first backward pass of the process."""
    probe = torch.ones(1, device="cuda", requires_grad=True)
    try:
        (probe * 2).sum().backward()
    except RuntimeError as error:
        deactivate()
        raise RuntimeError(
            "the simulated GPU must be activated before the first backward pass of the process: "
            "the autograd engine has started without it"
        ) from error
    holder.device.launches = 0
    holder.device.queue.clear()


__all__ = [
    "LABEL",
    "NOTICE",
    "NOT_SIMULATED",
    "Device",
    "activate",
    "active",
    "deactivate",
    "device",
    "launches",
    "set_sync_debug_mode",
    "synchronizations",
]
