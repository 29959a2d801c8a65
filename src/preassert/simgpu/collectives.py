"""Collectives of the simulated device: gloo on the host memory that the tensors lie in. ``"nccl"`` means gloo here.

A collective runs what is queued before it, as the stream order of NCCL does; it is finished when ``wait`` of its work returns.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from preassert.simgpu.device import below_every_mode
from preassert.simgpu.kernels import holder
from preassert.simgpu.memory import host_tensors, to_device_label


def _collective(overload: Any, *args: Any, **kwargs: Any) -> Any:
    device = holder.device
    with device.lock:
        device.raise_if_dead()
        device.drain()
        device.raise_if_dead()
        device.launches += 1
    with below_every_mode():
        result = overload(*host_tensors(args), **{name: host_tensors(value) for name, value in kwargs.items()})
    return _device_tensors(result)


def _device_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_device_label(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_device_tensors, value))
    return value


@functools.lru_cache(maxsize=1)
def register() -> torch.library.Library | None:
    """Register the collectives, once for the process."""
    if not torch.distributed.is_available():
        return None
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has kernels there that ask the process group for a backend of its own
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
                packet = getattr(torch.ops.c10d, name.removeprefix("c10d::").partition(".")[0])
                library.impl(name.removeprefix("c10d::"), functools.partial(_collective, packet.default), "PrivateUse1")
    return library


def _gloo(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """``init_process_group`` and ``new_group`` with gloo in place of NCCL; without a device to bind to."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        if len(args) > position:
            args = (*args[:position], _without_nccl(args[position]), *args[position + 1 :])
        else:
            kwargs["backend"] = _without_nccl(kwargs.get("backend"))
        return function(*args, **kwargs)

    return call


def _without_nccl(backend: Any) -> str:
    return "gloo" if backend is None or "nccl" in str(backend).lower() else str(backend)


def replacements() -> dict[str, Callable[..., Any]]:
    """Names of ``torch.distributed`` and what stands for them during the simulation."""
    distributed = torch.distributed
    return {
        "init_process_group": _gloo(distributed.init_process_group, 0),
        "new_group": _gloo(distributed.new_group, 2),
        "is_nccl_available": lambda: True,
    }
