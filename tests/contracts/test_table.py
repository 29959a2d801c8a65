"""The contract table as a whole: hazards, arguments, and the operators on record."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from preassert import hazards
from preassert.contracts.rows import Row
from preassert.contracts.table import FAMILIES, table
from preassert.contracts.unguarded import UNGUARDED
from preassert.guard.intercept import bind_row, overload_of

ROWS = list(table().values())

# Every operator whose demands on values have been looked at (each once), by schema name with overload, or by Python name
# where it is no operator of its own.
ON_RECORD = """
aten::nll_loss_forward aten::nll_loss aten::nll_loss_nd aten::nll_loss2d aten::nll_loss2d_forward aten::nll_loss_backward
aten::nll_loss2d_backward aten::cross_entropy_loss F.linear_cross_entropy aten::embedding aten::embedding.out
aten::embedding_dense_backward aten::embedding_sparse_backward aten::embedding_renorm_ aten::embedding_renorm aten::embedding_bag
aten::_embedding_bag aten::_embedding_bag_forward_only aten::_embedding_bag.out aten::gather aten::gather.out aten::take_along_dim
aten::take_along_dim.out aten::scatter.src aten::scatter.value aten::scatter.reduce aten::scatter.value_reduce aten::scatter_add
aten::scatter_add_ aten::scatter_add.out aten::scatter_reduce.two aten::scatter_reduce_.two aten::scatter_reduce.two_out
aten::index_select aten::index_select.out aten::index.Tensor aten::index.Tensor_out aten::_unsafe_index.Tensor
aten::_unsafe_masked_index aten::_unsafe_masked_index_put_accumulate aten::index_put aten::index_put_ aten::_unsafe_index_put
aten::_index_put_impl_ aten::index_add aten::index_add_ aten::index_add.out aten::index_copy aten::index_copy_ aten::index_copy.out
aten::index_fill.int_Scalar aten::index_fill.int_Tensor aten::index_fill_.int_Scalar aten::index_fill_.int_Tensor
aten::index_reduce aten::index_reduce_ aten::index_reduce.out aten::take aten::take.out aten::put_ aten::put aten::one_hot
aten::masked_scatter_ aten::masked_scatter aten::repeat_interleave.Tensor aten::repeat_interleave.self_Tensor aten::bincount
aten::multinomial aten::multinomial.out aten::bernoulli aten::bernoulli.out aten::bernoulli.Tensor aten::bernoulli_.Tensor
aten::bernoulli.p aten::bernoulli_.float aten::poisson aten::binomial aten::_standard_gamma aten::_sample_dirichlet
aten::normal.float_Tensor aten::normal.Tensor_Tensor aten::exponential_ aten::geometric_ aten::cauchy_ aten::log_normal_
aten::random_ aten::native_dropout aten::binary_cross_entropy aten::binary_cross_entropy.out aten::binary_cross_entropy_backward
aten::binary_cross_entropy_with_logits aten::multi_margin_loss aten::multi_margin_loss_backward aten::multilabel_margin_loss
aten::multilabel_margin_loss_forward aten::multilabel_margin_loss_backward aten::ctc_loss aten::_ctc_loss aten::_ctc_loss.Tensor
aten::_cudnn_ctc_loss aten::_cudnn_ctc_loss.Tensor aten::max_unpool2d aten::max_unpool2d.out aten::max_unpool3d
aten::max_unpool3d.out aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward
aten::adaptive_max_pool2d_backward aten::adaptive_max_pool3d_backward aten::adaptive_max_pool1d
aten::fractional_max_pool2d_backward aten::fractional_max_pool3d_backward aten::fractional_max_pool2d aten::fractional_max_pool3d
aten::value_selecting_reduction_backward aten::segment_reduce aten::_segment_reduce_backward aten::searchsorted.Tensor
aten::searchsorted.Scalar aten::histc aten::quantile aten::nanquantile aten::quantile.scalar aten::nanquantile.scalar
aten::_assert_async aten::_assert_async.msg aten::_functional_assert_async.msg nn.AdaptiveLogSoftmaxWithLoss aten::grid_sampler_2d
aten::grid_sampler_3d aten::_sparse_coo_tensor_unsafe aten::sparse_coo_tensor.indices_size aten::_sparse_mm aten::sparse_csr_tensor
aten::_validate_compressed_sparse_indices aten::_convert_indices_from_csr_to_coo torch.nested.nested_tensor_from_jagged
aten::_jagged_to_padded_dense_forward aten::_padded_dense_to_jagged_forward aten::lu_unpack aten::linalg_lu_solve
aten::linalg_ldl_solve aten::_grouped_mm aten::_scaled_grouped_mm aten::_scaled_grouped_mm_v2 aten::_pack_padded_sequence
aten::_efficient_attention_forward aten::_efficient_attention_backward aten::_flash_attention_forward
aten::_flash_attention_backward aten::_cudnn_rnn aten::fake_quantize_per_channel_affine aten::floor_divide aten::remainder aten::fmod
aten::pow.Tensor_Scalar aten::native_group_norm aten::native_layer_norm aten::native_batch_norm aten::scaled_dot_product_attention
aten::linalg_inv aten::linalg_cholesky aten::linalg_svd
""".split()


def test_every_operator_on_record_is_guarded_or_named() -> None:
    assert len(ON_RECORD) == len(set(ON_RECORD))
    assert not [name for name in ON_RECORD if name not in table() and name not in UNGUARDED]
    assert not [name for name in UNGUARDED if name in table()]


def test_every_reason_is_a_reason() -> None:
    on_record = set(ON_RECORD)
    spare = {name for name in UNGUARDED if name not in on_record}
    # four entries are about one demand of an operator, not about an operator
    assert spare == {
        "cross_entropy_loss with probability targets",
        "multinomial num_samples",
        "grouped_mm alignment",
        "c10d collectives",
    }
    assert all(len(reason) > 8 for reason in UNGUARDED.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operator)
def test_row_is_sound(row: Row) -> None:
    assert re.fullmatch(r"aten::\w+(\.\w+)?", row.operator)
    assert row.domains
    for domain in row.domains:
        assert (domain.hazard or row.hazard) in hazards.slugs()
        assert domain.parameters[0] == domain.argument
    overload = overload_of(row.operator)
    if overload is None:
        assert row.optional, f"{row.operator} is absent from torch {torch.__version__}"
    else:
        bind_row(row, overload._schema)  # every name in the bounds is an argument of the operator


def test_operators_of_torch_are_all_there() -> None:
    """On the torch that the table was written against, no row is about nothing."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 13):
        pytest.skip("older torch lacks some of the operators")
    assert not [row.operator for row in ROWS if overload_of(row.operator) is None]


def test_every_hazard_of_a_value_has_a_row() -> None:
    """Joined the other way: hazards that the guard can raise are all raised by some row."""
    raised = {domain.hazard or row.hazard for row in ROWS for domain in row.domains}
    assert raised == {
        "ctc-target-invalid",
        "embedding-index-out-of-range",
        "gather-index-out-of-range",
        "index-out-of-range",
        "invalid-pooling-index",
        "invalid-sampling-distribution",
        "probability-outside-unit-interval",
        "target-out-of-range",
        "user-device-assert",
    }


def test_forms_with_out_come_with_their_function() -> None:
    """An ``out=`` or in-place row demands what its functional form demands."""
    for row in ROWS:
        base = re.sub(r"(_out|\.out|\.grad_input|\.output)$", "", row.operator)
        if base != row.operator and base in table():
            assert table()[base].domains == row.domains, row.operator
            assert table()[base].hazard == row.hazard, row.operator


def test_one_operator_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "again", FAMILIES["pooling"])
    table.cache_clear()
    try:
        with pytest.raises(ValueError, match="stands twice in the contract table"):
            table()
    finally:
        monkeypatch.undo()
        table.cache_clear()


def test_table_needs_no_torch() -> None:
    code = "import sys; from preassert.contracts.table import table; table(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
