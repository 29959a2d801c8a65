"""The contract table: every row of every family, once."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from preassert.contracts import embedding, indexing, linalg, losses, pooling, sampling, sparse
from preassert.contracts.rows import Row

FAMILIES = {
    "embedding": embedding.ROWS,
    "indexing": indexing.ROWS,
    "linalg": linalg.ROWS,
    "losses": losses.ROWS,
    "pooling": pooling.ROWS,
    "sampling": sampling.ROWS,
    "sparse": sparse.ROWS,
}


@lru_cache(maxsize=1)
def table() -> MappingProxyType[str, Row]:
    """Operator name -> row.

    Raises:
        ValueError: two families claim one operator.
    """
    rows: dict[str, Row] = {}
    for family, members in FAMILIES.items():
        for row in members:
            if row.operator in rows:
                raise ValueError(f"{row.operator} stands twice in the contract table (second time in {family})")
            rows[row.operator] = row
    return MappingProxyType(rows)
