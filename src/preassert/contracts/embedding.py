"""Embedding tables. Source: aten/src/ATen/native/Embedding.cpp, cuda/Embedding.cu, EmbeddingBag.cpp, cuda/EmbeddingBag.cu."""

from __future__ import annotations

from preassert.contracts.domains import Index, Offsets
from preassert.contracts.rows import Row, variants

HAZARD = "embedding-index-out-of-range"

_LOOKUP = Index("indices", size=lambda weight: weight.shape[0])
_BAG_OFFSETS = Offsets("offsets", length=lambda indices: int(indices.numel()))

ROWS: tuple[Row, ...] = (
    Row("aten::embedding", HAZARD, (_LOOKUP,), "F.embedding", covers=True),
    *variants(
        "embedding_dense_backward",
        HAZARD,
        Index("indices", size=lambda num_weights: num_weights),
        call="backward of F.embedding",
        backward=True,
        cpu_silent="the CPU kernel skips ids outside the table; the CUDA kernel writes out of bounds",
    ),
    Row(
        "aten::embedding_sparse_backward",
        HAZARD,
        (Index("indices", size=lambda num_weights: num_weights),),
        "backward of F.embedding(sparse=True)",
        level="composite",
        backward=True,
        cpu_silent="a sparse gradient is built without a check",
    ),
    Row(
        "aten::embedding_renorm_",
        HAZARD,
        (Index("indices", size=lambda self: int(self.size(0)), wraps=True),),
        "F.embedding(max_norm=...)",
        covers=True,
    ),
    *variants(
        "_embedding_bag _embedding_bag_forward_only",
        HAZARD,
        _LOOKUP,
        _BAG_OFFSETS,
        call="F.embedding_bag",
        covers=True,
    ),
    Row(
        "aten::_embedding_bag_dense_backward",
        HAZARD,
        (Index("indices", size=lambda num_weights: num_weights),),
        "backward of F.embedding_bag",
        backward=True,
        covers=True,
        cpu_silent="the CPU kernel indexes without a check",
    ),
    Row(
        "aten::_embedding_bag_per_sample_weights_backward",
        HAZARD,
        (_LOOKUP,),
        "backward of F.embedding_bag",
        backward=True,
        covers=True,
        cpu_silent="the CPU kernel reads without a check",
    ),
)
