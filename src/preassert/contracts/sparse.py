"""Sparse layouts and jagged tensors, and other operators that are told by integers where to read.

Source: aten/src/ATen/native/sparse/ValidateCompressedIndicesCommon.h, SparseCsrTensor.cpp, SparseTensor.cpp,
SegmentReduce.cpp and cuda/SegmentReduce.cu, nested/cuda/NestedTensorTransformerFunctions.cpp, cuda/GroupMMCommon.cuh,
native/transformers/cuda/attention.cu.
"""

from __future__ import annotations

from typing import Any

from preassert.contracts.domains import UNBOUNDED, CooIndices, JaggedOffsets, Offsets, PlainIndices, SegmentLengths, extent
from preassert.contracts.rows import Row, variants

INDEX = "index-out-of-range"

_CRASH = "the CPU kernel writes where the offsets point"
_UNCHECKED = "built without a check; later kernels read where the indices point"
_CUDA_ONLY = "CUDA only"

_SEGMENTS = Offsets("offsets", length=lambda data, axis: extent(data, axis), starts_at_zero=False)


def _grouped_size(left: Any, right: Any) -> int:
    """Size of the dimension that the groups of a grouped matrix product share."""
    if left.dim() == 3:
        return int(right.size(-1))
    return int(left.size(-1) if right.dim() == 2 else left.size(-2))


_GROUPS = Offsets("offs", length=lambda self, mat2: _grouped_size(self, mat2), starts_at_zero=False)


def _sequences(argument: str, length: Any) -> Offsets:
    """Cumulated sequence lengths of packed attention. A first one beyond 0 leaves tokens out, which is well defined."""
    return Offsets(argument, length=length, starts_at_zero=False)


def _attention(operators: str, queries: Offsets, keys: Offsets, *, backward: bool = False) -> tuple[Row, ...]:
    call = "backward of packed attention" if backward else "packed attention"
    return variants(operators, INDEX, queries, keys, call=call, backward=backward, cpu_silent=_CUDA_ONLY, optional=True)


ROWS: tuple[Row, ...] = (
    Row(
        "aten::segment_reduce",
        INDEX,
        (SegmentLengths("lengths", size=lambda data, axis: extent(data, axis), exact=lambda unsafe: not unsafe), _SEGMENTS),
        "torch.segment_reduce",
    ),
    Row(
        "aten::_segment_reduce_backward",
        INDEX,
        (SegmentLengths("lengths", size=lambda data, axis: extent(data, axis), exact=lambda: False), _SEGMENTS),
        "backward of torch.segment_reduce",
        backward=True,
        cpu_silent=_CRASH,
    ),
    Row(
        "aten::_validate_compressed_sparse_indices",
        INDEX,
        (
            Offsets("compressed_idx", length=lambda nnz: nnz, ends_at_length=True, longest=lambda dim: dim),
            PlainIndices("plain_idx", size="dim", compressed="compressed_idx"),
        ),
        "torch.sparse_compressed_tensor",
    ),
    *variants(
        "_convert_indices_from_csr_to_coo _convert_indices_from_csr_to_coo.out",
        INDEX,
        Offsets("crow_indices", length=lambda col_indices: int(col_indices.size(-1)), ends_at_length=True),
        call="conversion of a sparse CSR tensor",
        cpu_silent=_CRASH,
    ),
    *variants(
        "_sparse_coo_tensor_unsafe sparse_coo_tensor.indices_size",
        INDEX,
        CooIndices(),
        call="torch.sparse_coo_tensor",
        level="composite",
        covers=True,
        cpu_silent=_UNCHECKED,
    ),
    Row(
        "aten::_jagged_to_padded_dense_forward",
        INDEX,
        (JaggedOffsets(length=lambda values: int(values.size(0))),),
        "padding of a jagged tensor",
        cpu_silent="offsets beyond the values read past them",
        optional=True,
    ),
    Row(
        "aten::_padded_dense_to_jagged_forward",
        INDEX,
        (JaggedOffsets(length=lambda total_L: UNBOUNDED if total_L is None else int(total_L), ends_at_length=True),),
        "packing of a padded tensor",
        cpu_silent="offsets that fall are not seen",
        optional=True,
    ),
    Row(
        "aten::_grouped_mm",
        INDEX,
        (_GROUPS,),
        "F.grouped_mm",
        cpu_silent="rows outside the groups are left as they are",
        optional=True,
    ),
    *variants(
        "_scaled_grouped_mm _scaled_grouped_mm_v2",
        INDEX,
        _GROUPS,
        call="scaled grouped matrix product",
        cpu_silent=_CUDA_ONLY,
        optional=True,
    ),
    *_attention(
        "_flash_attention_forward _flash_attention_forward.quantized _flash_attention_forward_no_dropout_inplace",
        _sequences("cum_seq_q", lambda query: int(query.size(0))),
        # With a paged cache (block_table) the keys' lengths are not bounded by key.size(0).
        _sequences("cum_seq_k", lambda: UNBOUNDED),
    ),
    *_attention(
        "_flash_attention_backward",
        _sequences("cum_seq_q", lambda query: int(query.size(0))),
        _sequences("cum_seq_k", lambda key: int(key.size(0))),
        backward=True,
    ),
    *_attention(
        "_efficient_attention_forward",
        _sequences("cu_seqlens_q", lambda query: int(query.size(1))),
        _sequences("cu_seqlens_k", lambda key: int(key.size(1))),
    ),
    *_attention(
        "_efficient_attention_backward",
        _sequences("cu_seqlens_q", lambda query: int(query.size(1))),
        _sequences("cu_seqlens_k", lambda key: int(key.size(1))),
        backward=True,
    ),
)
