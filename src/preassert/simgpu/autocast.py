"""Autocast on the simulated device: the operator lists of CUDA's autocast (PyTorch 2.13, docs of ``torch.amp``).

PyTorch registers its lists for the CUDA key; tensors of the simulated device arrive at another one, so the same lists are
registered there. Casts of leaf tensors are not cached, which changes no number.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from preassert.simgpu.memory import BACKEND

_KEY = "AutocastPrivateUse1"

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linalg_multi_dot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod",
    "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm",
    "sum", "sum.dim_IntList",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add", "cat", "stack",
)  # fmt: skip

_REFUSED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.dtype is not torch.float64 and not value.is_cpu
        return value.to(dtype) if eligible and value.dtype is not dtype else value
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value]
    return value


def _widest(values: Any, dtype: torch.dtype) -> torch.dtype:
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(value, (list, tuple)):
            dtype = _widest(value, dtype)
        elif isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            dtype = torch.float32
    return dtype


def _kernel(overload: Any, choose: Callable[[Any], torch.dtype], *args: Any, **kwargs: Any) -> Any:
    dtype = choose(args)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
        return overload(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})


def _low(_args: Any) -> torch.dtype:
    return torch.get_autocast_dtype(BACKEND)


def _refuse(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError(_REFUSED)


@functools.lru_cache(maxsize=1)
def register() -> tuple[torch.library.Library, ...]:
    """Register the lists, once for the process. Operators on no list pass through."""
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, _KEY)
    library = torch.library.Library("aten", "IMPL")
    for names, choose in (
        (LOWER_PRECISION, _low),
        (FLOAT32, lambda _args: torch.float32),
        (WIDEST, lambda args: _widest(args, _low(args))),
    ):
        for name in names:
            base, _, overload = name.partition(".")
            with contextlib.suppress(AttributeError):  # an operator that this torch does not have
                operator = getattr(getattr(torch.ops.aten, base), overload or "default")
                library.impl(name, functools.partial(_kernel, operator, choose), _KEY)
    library.impl("binary_cross_entropy", _refuse, _KEY)
    return library, rest
