"""Pivots of matrix factorisations. Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, cuda/BatchLinearAlgebraKernel.cu."""

from __future__ import annotations

from preassert.contracts.domains import BlockPivots, Index, UnpackPivots
from preassert.contracts.rows import Row, variants

INDEX = "index-out-of-range"

ROWS: tuple[Row, ...] = (
    *variants(
        "lu_unpack lu_unpack.out",
        INDEX,
        UnpackPivots("LU_pivots", rows=lambda LU_data: int(LU_data.size(-2)), wanted="unpack_pivots"),
        call="torch.lu_unpack",
        covers=True,
    ),
    *variants(
        "linalg_lu_solve linalg_lu_solve.out",
        INDEX,
        Index("pivots", size=lambda LU: int(LU.size(-2)) + 1, lowest=1),
        call="torch.linalg.lu_solve",
    ),
    *variants(
        "linalg_ldl_solve linalg_ldl_solve.out",
        INDEX,
        BlockPivots("pivots", rows=lambda LD: int(LD.size(-2))),
        call="torch.linalg.ldl_solve",
        cpu_silent="LAPACK exchanges the rows that it is told to",
    ),
)
