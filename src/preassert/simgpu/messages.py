"""The texts that PyTorch 2.13 prints for the failures that are simulated, as its wheels hold them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from preassert.simgpu.memory import size_words

LABEL = "preassert simulated GPU"


@dataclass(frozen=True, slots=True)
class CudaError:
    """One error code of the CUDA runtime."""

    code: int
    name: str
    text: str


ASSERT = CudaError(710, "cudaErrorAssert", "device-side assert triggered")
ILLEGAL_ADDRESS = CudaError(700, "cudaErrorIllegalAddress", "an illegal memory access was encountered")
LAUNCH_FAILURE = CudaError(719, "cudaErrorLaunchFailure", "unspecified launch failure")
INVALID_DEVICE = CudaError(101, "cudaErrorInvalidDevice", "invalid device ordinal")

_DOCUMENTATION = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


def accelerator_error(error: CudaError) -> RuntimeError:
    """The exception PyTorch raises for ``error``: ``torch.AcceleratorError`` where it exists (2.8), RuntimeError before."""
    hint = "GPU device may be out of range, do you have enough GPUs?\n" if error is INVALID_DEVICE else ""
    text = (
        f"CUDA error: {error.text}\n"
        f"{hint}"
        f"Search for `{error.name}' in {_DOCUMENTATION} for more information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, "
        "so the stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    exception: RuntimeError = kind(text)
    exception.error_code = error.code  # type: ignore[attr-defined]
    return exception


def out_of_memory_error(wanted_bytes: int, limit_bytes: int, allocated_bytes: int) -> RuntimeError:
    """``torch.OutOfMemoryError`` in the words of the caching allocator."""
    total, wanted, used = size_words(limit_bytes), size_words(wanted_bytes), size_words(allocated_bytes)
    free = size_words(max(0, limit_bytes - allocated_bytes))
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of {total} of which {free} is free. "
        f"Including non-PyTorch memory, this process has {used} memory in use. Of the allocated memory {used} is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def different_devices_error(argument: str, index: int) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"cuda:{index} and cpu! (when checking argument for argument {argument})"
    )
