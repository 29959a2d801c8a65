# ruff: noqa: E501 - a printed line stands here as one line
"""Block and thread ids as positions: exactly what the layout of the kernel says, and no more."""

from __future__ import annotations

import pytest

from preassert.logs import explain_text
from preassert.model import Diagnosis

NLL = "Loss.cu:{}: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed."
NLL2D = (
    "NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [{},0,0], thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed."
)
GATHER = 'IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [{},0,0], thread: [{},0,0] Assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.'
INDEX = 'IndexKernel.cu:92: operator(): block: [{},0,0], thread: [{},0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
SMALL = (
    "Indexing.cu:1141: indexSelectSmallIndex: block: [{},0,0], thread: [{},0,0] Assertion `srcIndex < srcSelectDimSize` failed."
)
MARGIN = 'MultiMarginLoss.cu:30: MultiMarginLoss_forward_kernel: block: [{},0,0], thread: [{},0,0] Assertion `target_k >= 0 && target_k < dim && "target index is out of bounds"` failed.'
SAMPLES = "MultinomialKernel.cu:112: binarySearchForMultinomial: block: [{},{},0], thread: [3,0,0] Assertion `cumdist[size - 1] > static_cast<scalar_t>(0)` failed."
ONE = "Loss.cu:{}: nll_loss_forward_reduce_cuda_kernel_1d: block: [0,0,0], thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed."


def line_of(release: str, kernel: str) -> int:
    from preassert.logs import versions

    table = versions._table()
    bit = 1 << table["releases"].index(release)
    return next(
        row[0] for row in table["files"]["Loss.cu"] if row[2] & bit and kernel in [table["kernels"][name] for name in row[3]]
    )


def cause(*lines: str, shape: tuple[int, ...] | None = None) -> Diagnosis:
    found = explain_text("".join(f"../aten/src/ATen/native/cuda/{line}\n" for line in lines), shape=shape).cause
    assert found is not None
    return found


def told(*lines: str, shape: tuple[int, ...] | None = None) -> str:
    return " ".join(cause(*lines, shape=shape).elements)


OLD = line_of("2.4.1", "nll_loss_forward_reduce_cuda_kernel_2d")
NEW = line_of("2.10.0", "nll_loss_forward_reduce_cuda_kernel_2d")


@pytest.mark.parametrize(
    ("lines", "shape", "words", "at_least"),
    [
        (
            [NLL.format(OLD, 5), NLL.format(OLD, 7)],
            None,
            "row of target modulo 32: 5, 7 (exactly these rows if the batch has at most 32)",
            2,
        ),
        ([NLL.format(OLD, 5)], (20,), "row of target: 5", 1),
        ([NLL.format(OLD, 5)], (64,), "row 5 or a row 32 further on", 1),
        ([NLL.format(NEW, 5)], (2048,), "row 5 or a row 128 further on", 1),
        ([NLL.format(NEW, 40)], None, "row of target modulo 64: 40", 1),
        ([ONE.format(OLD, 0)], None, "the only element of target", 1),
        ([NLL2D.format(3, 929), NLL2D.format(3, 930), NLL2D.format(2, 64)], None, "sample of target: 2, 3", 3),
        ([NLL2D.format(3, 70)], (8, 32, 32), "target[3, 2, 6]", 1),
        ([NLL2D.format(3, 70)], (8, 64, 64), "sample 3, one of the 4 pixels 70 + k*1024", 1),
        ([NLL2D.format(5, 1)], (8, 1024, 1024), "sample 0, one of the 128 pixels 5121 + k*8192", 1),
        (
            [GATHER.format(12, 0), GATHER.format(12, 1), GATHER.format(4099, 0)],
            None,
            "position in the flattened index tensor: 12, 4099",
            2,
        ),
        ([GATHER.format(1030, 0)], (8, 512), "position in the flattened index tensor: [2, 6]", 1),
        ([INDEX.format(1, 5)], None, "517, each itself or +128, +256, +384", 1),
        ([INDEX.format(0, 3)], (4,), "element of the index, in iteration order: 3", 1),
        ([SMALL.format(0, 3), SMALL.format(1, 4)], None, "cannot be told from the ids", 1),
        ([MARGIN.format(7, 0), MARGIN.format(7, 1)], None, "row of target: 7", 1),
        ([SAMPLES.format(158, 0), SAMPLES.format(2, 3)], None, "row of the probabilities: 0, 3", 2),
    ],
)
def test_positions(lines: list[str], shape: tuple[int, ...] | None, words: str, at_least: int) -> None:
    assert words in told(*lines, shape=shape)
    assert cause(*lines, shape=shape).extra["bad_elements_at_least"] == at_least


def test_many_positions_are_not_all_listed() -> None:
    assert "and 94 more" in told(*(GATHER.format(number, 0) for number in range(100)))


def test_huge_ids_are_no_crash() -> None:
    told(NLL2D.format(4_000_000_000, 99_999_999_999), GATHER.format(10**30, 0), shape=(1, 1, 1))


def test_nothing_is_said_where_nothing_follows() -> None:
    compiled = "/tmp/torchinductor_u/cx/c.py:9: unknown: block: [3,0,0], thread: [4,0,0] Assertion `index out of bounds: 0 <= tmp4 < 24` failed.\n"
    found = explain_text(compiled).cause
    assert found is not None
    assert found.elements == ()
    assert found.extra["bad_elements_at_least"] is None
