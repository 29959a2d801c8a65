"""Memory of the simulated GPU: host memory under another device label.

A tensor of the simulated device is a plain ``torch.Tensor`` (not a subclass) whose device is torch's PrivateUse1 backend
and whose bytes lie in host memory. DLPack moves the label between the two without a copy: the capsule of one device is
stamped with the other device before torch reads it back.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

BACKEND = "simgpu"  # what the PrivateUse1 device type is called in this process

_DL_CPU, _DL_EXT_DEV = 1, 12  # DLDeviceType of dlpack.h; torch maps kDLExtDev to PrivateUse1
_DEVICE_TYPE_OFFSET = ctypes.sizeof(ctypes.c_void_p)  # DLTensor starts with {void* data; int32 device_type; int32 device_id;
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


def _relabel(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    capsule = torch._C._to_dlpack(tensor)
    address = _capsule_pointer(capsule, b"dltensor")
    label = (ctypes.c_int32 * 2).from_address(address + _DEVICE_TYPE_OFFSET)
    label[0], label[1] = device_type, 0
    relabelled: torch.Tensor = torch._C._from_dlpack(capsule)
    return relabelled


def to_device_label(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes (no copy) as a tensor of the simulated device. ``tensor`` is a dense CPU tensor."""
    return _relabel(tensor.resolve_conj().resolve_neg(), _DL_EXT_DEV)


def to_host_label(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes (no copy) as a CPU tensor, storage offset 0. ``tensor`` is a tensor of the simulated device."""
    host = _relabel(tensor, _DL_CPU)
    if tensor.is_conj():  # the capsule does not carry the lazy conjugate and negative bits
        host = host.conj()
    return torch._neg_view(host) if tensor.is_neg() else host


def on_device(tensor: torch.Tensor) -> bool:
    """Is this a tensor of the simulated device?"""
    return not (tensor.is_cpu or tensor.is_meta)


class Ledger:
    """Bytes in use on the simulated device, and the limit at which an allocation fails."""

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.allocations = 0

    def fits(self, size_bytes: int) -> bool:
        return self.limit_bytes is None or self.allocated_bytes + size_bytes <= self.limit_bytes

    def track(self, host: torch.Tensor) -> None:
        """Count the storage of ``host`` until it is freed."""
        storage = host.untyped_storage()
        size_bytes = storage.nbytes()
        if not size_bytes:
            return
        self.allocated_bytes += size_bytes
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        weakref.finalize(storage, self._free, size_bytes).atexit = False

    def _free(self, size_bytes: int) -> None:
        self.allocated_bytes -= size_bytes


def extent_bytes(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that a tensor of this geometry spans."""
    if 0 in size:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * dtype.itemsize


def size_words(size_bytes: int) -> str:
    """A size the way the caching allocator prints it: ``512 bytes``, ``20.00 MiB``."""
    if size_bytes <= 1024:
        return f"{size_bytes} bytes"
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if size_bytes < factor << 10:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes / (1 << 30):.2f} GiB"


def host_tensors(value: Any) -> Any:
    """``value`` (nested lists and tuples) with every tensor of the device replaced by its host-labelled alias."""
    if isinstance(value, torch.Tensor):
        return to_host_label(value) if on_device(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(host_tensors, value)) if not hasattr(value, "_fields") else value
    return value
