"""Indexing, gather and scatter. Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp and cuda/Indexing.cu, IndexKernel.cu."""

from __future__ import annotations

from typing import Any

from preassert.contracts.domains import (
    UNBOUNDED,
    AdvancedIndices,
    Index,
    Interval,
    Lengths,
    SliceIndex,
    TakeAlongIndex,
    Total,
    extent,
)
from preassert.contracts.rows import Row, variants

INDEX = "index-out-of-range"
GATHER = "gather-index-out-of-range"

_ALONG = Index("index", size=extent, of=("self", "dim"))
_SLICE = SliceIndex()
_FLAT = Index("index", size=lambda self: int(self.numel()), wraps=True)


def _one_hot_classes(num_classes: int) -> int:
    # -1 asks for the largest value plus one: only negatives can be wrong then
    return num_classes if num_classes != -1 else UNBOUNDED + 1


def _ones(mask: Any, self: Any) -> Any:
    """How many elements of ``self`` the mask asks to write: it is broadcast to ``self``."""
    try:
        return mask.expand(self.shape).sum()
    except RuntimeError:  # shapes that do not fit: refused on the host
        return mask.new_zeros(()).sum()


def _first_ones(mask: Any, limit: int, self: Any) -> Any:
    """A mask of at most ``limit`` ones: the first ones where it has the shape of ``self``, else all or none."""
    if mask.shape != self.shape:
        return mask & (_ones(mask, self) <= limit)
    return mask & (mask.reshape(-1).cumsum(0).reshape(mask.shape) <= limit)


# Rows that cover: the kernel may hand its index on to another guarded operator (scatter_add_, index_fill_; index_put_ in
# deterministic mode on CUDA).
ROWS: tuple[Row, ...] = (
    *variants("index.Tensor index.Tensor_out", INDEX, AdvancedIndices(), call="tensor[index]"),
    Row("aten::_unsafe_index.Tensor", INDEX, (AdvancedIndices(),), "tensor[index]", covers=True),
    Row("aten::_index_put_impl_", INDEX, (AdvancedIndices(),), "tensor[index] = values"),
    *variants("index_select index_select.out", INDEX, _ALONG, call="torch.index_select"),
    *variants("index_add index_add_ index_add.out", INDEX, _SLICE, call="Tensor.index_add_", covers=True),
    *variants("index_copy index_copy_ index_copy.out", INDEX, _SLICE, call="Tensor.index_copy_", covers=True),
    *variants(
        "index_fill_.int_Scalar index_fill_.int_Tensor", INDEX, SliceIndex(wraps=True), call="Tensor.index_fill_", covers=True
    ),
    *variants("index_reduce index_reduce_ index_reduce.out", INDEX, _ALONG, call="Tensor.index_reduce_", covers=True),
    *variants("take take.out", INDEX, _FLAT, call="torch.take"),
    *variants("put_", INDEX, _FLAT, call="Tensor.put_"),
    *variants("gather gather.out", GATHER, _ALONG, call="torch.gather"),
    *variants("scatter.src scatter.src_out scatter_.src", GATHER, _ALONG, call="Tensor.scatter_"),
    *variants("scatter.value scatter.value_out scatter_.value", GATHER, _ALONG, call="Tensor.scatter_"),
    *variants("scatter.reduce scatter.reduce_out scatter_.reduce", GATHER, _ALONG, call="Tensor.scatter_"),
    *variants("scatter.value_reduce scatter.value_reduce_out scatter_.value_reduce", GATHER, _ALONG, call="Tensor.scatter_"),
    *variants("scatter_add scatter_add.out scatter_add_", GATHER, _ALONG, call="Tensor.scatter_add_", covers=True),
    *variants(
        "scatter_reduce.two scatter_reduce.two_out scatter_reduce_.two",
        GATHER,
        _ALONG,
        call="Tensor.scatter_reduce_",
        covers=True,
    ),
    *variants(
        "take_along_dim take_along_dim.out",
        GATHER,
        TakeAlongIndex(),
        call="torch.take_along_dim",
        level="composite",
        covers=True,
        cpu_silent="the index is taken modulo the size on every device: silently wrong",
    ),
    Row(
        "aten::one_hot",
        GATHER,
        (Index("self", size=lambda num_classes: _one_hot_classes(num_classes)),),
        "F.one_hot",
        level="composite",
        covers=True,
    ),
    *variants(
        "masked_scatter_",
        INDEX,
        Total("mask", measure=_ones, limit=lambda source: int(source.numel()), unit="ones in the mask", trim=_first_ones),
        call="Tensor.masked_scatter_",
    ),
    Row(
        "aten::repeat_interleave.Tensor",
        INDEX,
        (
            Lengths("repeats", highest=lambda: UNBOUNDED),
            Total(
                "repeats",
                measure=lambda repeats: repeats.sum(),
                # No repeats at all give an empty result, whatever size was asked for.
                limit=lambda repeats, output_size: None if output_size is None or not repeats.numel() else int(output_size),
                unit="sum of repeats",
                equal=True,
            ),
        ),
        "torch.repeat_interleave",
    ),
    *variants(
        "quantile quantile.out nanquantile nanquantile.out",
        GATHER,
        Interval("q"),
        call="torch.quantile",
        level="composite",
        covers=True,
    ),
    *variants(
        "searchsorted.Tensor searchsorted.Tensor_out searchsorted.Scalar searchsorted.Scalar_out",
        INDEX,
        Index("sorter", size=lambda sorted_sequence: int(sorted_sequence.size(-1))),
        call="torch.searchsorted",
    ),
    Row("aten::bincount", INDEX, (Lengths("self", highest=lambda: UNBOUNDED),), "torch.bincount"),
)
