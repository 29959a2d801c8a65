"""Operators looked at for a value contract and left without a row, each with the reason.

A test holds this list and the table together: every operator on record stands in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_HOST = "checked on the host on every device; a broken value raises there and no kernel sees it"
_NUMBER = "the parameter is a Python number, checked on the host"
_TOTAL = "defined for every value, NaN included"
_BELOW = "a composition: the guarded operators below it see the same values"

UNGUARDED: Mapping[str, str] = MappingProxyType(
    {
        # compositions; tests/contracts/test_routes.py shows that each reaches a guarded operator
        "aten::nll_loss": _BELOW,
        "aten::nll_loss2d": _BELOW,
        "aten::nll_loss_nd": _BELOW,
        "aten::cross_entropy_loss": _BELOW,
        "F.linear_cross_entropy": f"{_BELOW}; not where torch 2.15 runs it as one fused kernel on CUDA (docs/compatibility.md)",
        "aten::embedding.out": _BELOW,
        "aten::embedding_renorm": _BELOW,
        "aten::embedding_bag": _BELOW,
        "aten::_embedding_bag.out": _BELOW,
        "aten::index_put": _BELOW,
        "aten::index_put_": _BELOW,
        "aten::_unsafe_index_put": _BELOW,
        "aten::index_fill.int_Scalar": _BELOW,
        "aten::index_fill.int_Tensor": _BELOW,
        "aten::put": _BELOW,
        "aten::masked_scatter": _BELOW,
        "aten::repeat_interleave.self_Tensor": _BELOW,
        "aten::multilabel_margin_loss": _BELOW,
        "aten::ctc_loss": _BELOW,
        "aten::adaptive_max_pool1d": _BELOW,
        "aten::value_selecting_reduction_backward": _BELOW,
        "aten::sparse_csr_tensor": "its check, _validate_compressed_sparse_indices, is guarded; without it, nothing is looked at",
        "aten::_sparse_mm": "reads the indices that _sparse_coo_tensor_unsafe was built with, and those are guarded",
        "torch.nested.nested_tensor_from_jagged": "a view; the kernels that read through the offsets are guarded",
        # no demand on values
        "aten::_unsafe_masked_index": "clamps the index",
        "aten::_unsafe_masked_index_put_accumulate": "clamps the index",
        "aten::grid_sampler_2d": _TOTAL,
        "aten::grid_sampler_3d": _TOTAL,
        "aten::binary_cross_entropy_backward": "clamps the divisor; defined for every value",
        "aten::binary_cross_entropy_with_logits": _TOTAL,
        "aten::native_group_norm": _TOTAL,
        "aten::native_layer_norm": _TOTAL,
        "aten::native_batch_norm": _TOTAL,
        "aten::scaled_dot_product_attention": "a row that is masked throughout gives 0 or NaN; no kernel asserts",
        "aten::fractional_max_pool2d": "random_samples outside [0, 1) move the windows but cannot move them out of the input",
        "aten::fractional_max_pool3d": "random_samples outside [0, 1) move the windows but cannot move them out of the input",
        "cross_entropy_loss with probability targets": "any weights are accepted everywhere",
        # checked on the host
        "aten::exponential_": _NUMBER,
        "aten::geometric_": _NUMBER,
        "aten::cauchy_": _NUMBER,
        "aten::log_normal_": _NUMBER,
        "aten::random_": _NUMBER,
        "aten::native_dropout": _NUMBER,
        "aten::bernoulli.p": _NUMBER,
        "aten::bernoulli_.float": _NUMBER,
        "aten::quantile.scalar": _NUMBER,
        "aten::nanquantile.scalar": _NUMBER,
        "aten::pow.Tensor_Scalar": _NUMBER,
        "aten::histc": _HOST,
        "aten::fake_quantize_per_channel_affine": _HOST,
        "aten::_pack_padded_sequence": "the lengths live on the CPU and are checked there",
        "aten::_cudnn_rnn": "batch_sizes are Python numbers, made and checked by pack_padded_sequence",
        "nn.AdaptiveLogSoftmaxWithLoss": "checks its target in Python, before any kernel",
        "aten::linalg_inv": "reports through an info tensor, raised on the host as LinAlgError",
        "aten::linalg_cholesky": "reports through an info tensor, raised on the host as LinAlgError",
        "aten::linalg_svd": "reports through an info tensor, raised on the host as LinAlgError",
        "c10d collectives": "TORCH_NCCL_NAN_CHECK is a check that the user switches on; any value may be sent",
        # silent, and left to be
        "aten::floor_divide": "an integer divided by 0 gives garbage on CUDA, but no assertion and no stray access",
        "aten::remainder": "as floor_divide",
        "aten::fmod": "as floor_divide",
        "multinomial num_samples": "more samples than non-zero weights: categories without weight are returned on every device",
        "grouped_mm alignment": "whether a group's size must be a multiple of 16 bytes depends on the kernel that CUDA picks",
    }
)
