"""Pooling indices.

Source: aten/src/ATen/native/MaxUnpooling.cpp, DilatedMaxPool2d.cpp, AdaptiveMaxPooling2d.cpp, FractionalMaxPool2d.cpp.
"""

from __future__ import annotations

from math import prod
from typing import Any

from preassert.contracts.domains import Index
from preassert.contracts.rows import Row, variants

HAZARD = "invalid-pooling-index"


def _plane(tensor: Any, dims: int) -> int:
    """Number of positions in the last ``dims`` dimensions."""
    return prod(int(size) for size in tensor.shape[-dims:])


_CRASH = "the CPU kernel writes without a check: silent when near, SIGSEGV when far"
_PLANE_2D = Index("indices", size=lambda self: _plane(self, 2))
_PLANE_3D = Index("indices", size=lambda self: _plane(self, 3))

ROWS: tuple[Row, ...] = (
    *variants(
        "max_unpool2d max_unpool2d.out max_unpool3d max_unpool3d.out",
        HAZARD,
        Index("indices", size=lambda output_size: prod(output_size)),
        call="F.max_unpool2d",
    ),
    *variants(
        "max_pool2d_with_indices_backward max_pool2d_with_indices_backward.grad_input "
        "adaptive_max_pool2d_backward adaptive_max_pool2d_backward.grad_input",
        HAZARD,
        _PLANE_2D,
        call="backward of max_pool2d",
        backward=True,
        cpu_silent=_CRASH,
    ),
    *variants(
        "max_pool3d_with_indices_backward max_pool3d_with_indices_backward.grad_input "
        "adaptive_max_pool3d_backward adaptive_max_pool3d_backward.grad_input",
        HAZARD,
        _PLANE_3D,
        call="backward of max_pool3d",
        backward=True,
        cpu_silent=_CRASH,
    ),
    *variants(
        "fractional_max_pool2d_backward fractional_max_pool2d_backward.grad_input",
        HAZARD,
        _PLANE_2D,
        call="backward of F.fractional_max_pool2d",
        backward=True,
    ),
    *variants(
        "fractional_max_pool3d_backward fractional_max_pool3d_backward.grad_input",
        HAZARD,
        _PLANE_3D,
        call="backward of F.fractional_max_pool3d",
        backward=True,
    ),
)
