"""Each operator that asserts on CUDA: what is printed, and what ``preassert explain`` makes of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

import preassert.simgpu as simgpu
from preassert.logs import explain_text

CUDA = "cuda"


@contextmanager
def _stderr() -> Iterator[list[str]]:
    """Lines that arrive at file descriptor 2."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines.extend(file.read().decode().splitlines())


def _dies(call: Callable[[], object], hazard: str, first: str, count: int) -> None:
    """``call`` launches without an error; then it prints ``count`` lines, ``first`` among them, and the context is dead."""
    with simgpu.device():
        call()  # like a real launch, the call itself returns
        with _stderr() as lines, pytest.raises(torch.AcceleratorError, match="CUDA error: device-side assert triggered"):
            torch.cuda.synchronize()
        for later in (
            lambda: torch.zeros(1, device=CUDA),
            torch.cuda.synchronize,
            lambda: torch.ones(2).cuda(),
            torch.cuda.Event().record,
        ):
            with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
                later()
    assert lines[0] == f"/__w/pytorch/pytorch/aten/src/ATen/native/cuda/{first}"
    assert len(lines) == count
    report = explain_text("\n".join(lines)).to_dict()
    assert report["verdict"] == hazard, report
    assert report["restart_required"] is True
    assert sum(d["count"] for d in report["diagnoses"]) == count


def _targets(n: int, **bad: int) -> torch.Tensor:
    target = torch.zeros(n, dtype=torch.long)
    for where, value in bad.items():
        target[int(where[1:])] = value
    return target.cuda()


def _nll_line(place: str) -> str:
    return f"{place} Assertion `t >= 0 && t < n_classes` failed."


def _index(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=CUDA)


def _long_index(n: int, position: int, value: int) -> torch.Tensor:
    index = torch.zeros(n, dtype=torch.long)
    index[position] = value
    return index.cuda()


def check_cross_entropy_names_each_row() -> None:
    logits = torch.randn(64, 5, device=CUDA)
    line = _nll_line("Loss.cu:244: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0]")
    _dies(lambda: F.cross_entropy(logits, _targets(64, _5=5, _17=-1, _20=-100)), "target-out-of-range", line, 2)


def check_cross_entropy_of_many_rows_wraps_around_the_block() -> None:
    logits = torch.randn(1000, 5, device=CUDA)  # 64 threads: 2^round(log2(1000 // 16))
    line = _nll_line("Loss.cu:244: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [36,0,0]")
    _dies(lambda: F.cross_entropy(logits, _targets(1000, _100=9)), "target-out-of-range", line, 1)


def check_cross_entropy_without_reduction() -> None:
    logits = torch.randn(2000, 5, device=CUDA)
    line = (
        "Loss.cu:179: nll_loss_forward_no_reduce_cuda_kernel: block: [1,0,0], thread: [476,0,0] "
        "Assertion `cur_target >= 0 && cur_target < n_classes` failed."
    )
    _dies(lambda: F.cross_entropy(logits, _targets(2000, _1500=5), reduction="none"), "target-out-of-range", line, 1)


def check_segmentation_loss() -> None:
    logits, target = torch.randn(2, 3, 40, 40, device=CUDA), torch.zeros(2, 40, 40, dtype=torch.long)
    target[1, 30, 2] = 255
    line = _nll_line("NLLLoss2d.cu:108: nll_loss2d_forward_kernel: block: [1,0,0], thread: [178,0,0]")
    _dies(lambda: F.cross_entropy(logits, target.cuda()), "target-out-of-range", line, 1)


def check_embedding_of_few_and_of_many() -> None:
    table = torch.randn(10, 8, device=CUDA)
    line = (
        "Indexing.cu:1524: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    )
    _dies(lambda: F.embedding(_index(1, 10), table), "embedding-index-out-of-range", line, 8)
    line = (
        "IndexKernelUtils.cu:19: vectorized_gather_kernel: block: [33,0,0], thread: [0,0,0] "
        'Assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.'
    )
    _dies(lambda: F.embedding(_long_index(40, 33, 10), table), "embedding-index-out-of-range", line, 2)
    odd = torch.randn(10, 7, device=CUDA)
    line = (
        "ScatterGatherKernel.cu:203: operator(): block: [0,0,0], thread: [103,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"` failed.'
    )
    _dies(lambda: F.embedding(_long_index(40, 33, -1), odd), "gather-index-out-of-range", line, 7)


def check_indexing() -> None:
    source = torch.randn(5, 3, device=CUDA)
    line = (
        "IndexKernel.cu:111: operator(): block: [0,0,0], thread: [3,0,0] "
        'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
    )
    _dies(lambda: source[_index(-5, 5)], "index-out-of-range", line, 3)
    _dies(lambda: source.index_put_((_index(0, -6),), torch.zeros(3, device=CUDA)), "index-out-of-range", line, 3)


def check_gather_and_scatter() -> None:
    source = torch.randn(3, 4, device=CUDA)
    index = torch.tensor([[0, 4]]).cuda()
    line = (
        "ScatterGatherKernel.cu:203: operator(): block: [0,0,0], thread: [1,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"` failed.'
    )
    _dies(lambda: source.gather(1, index), "gather-index-out-of-range", line, 1)
    _dies(lambda: source.scatter_add_(1, index, torch.ones(1, 2, device=CUDA)), "gather-index-out-of-range", line, 1)


def check_one_hot() -> None:
    line = (
        "ScatterGatherKernel.cu:449: operator(): block: [0,0,0], thread: [1,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.'
    )
    _dies(lambda: F.one_hot(_index(0, 3), 3), "gather-index-out-of-range", line, 1)


def check_probabilities() -> None:
    line = "Loss.cu:89: operator(): block: [0,0,0], thread: [1,0,0] Assertion `input_val >= zero && input_val <= one` failed."
    probabilities, target = torch.tensor([0.5, float("nan")], device=CUDA), torch.ones(2, device=CUDA)
    _dies(lambda: F.binary_cross_entropy(probabilities, target), "probability-outside-unit-interval", line, 1)


def check_sampling() -> None:
    line = (
        "TensorCompare.cu:109: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
        "Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed."
    )
    _dies(lambda: torch.multinomial(torch.tensor([0.5, -1.0], device=CUDA), 1), "invalid-sampling-distribution", line, 1)


def check_user_assert() -> None:
    line = "TensorCompare.cu:109: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `scale vanished` failed."
    _dies(lambda: torch._assert_async(torch.tensor(False, device=CUDA), "scale vanished"), "user-device-assert", line, 1)


def check_backward_of_a_bad_target() -> None:
    """A target changed between forward and backward fails in the backward kernel, on the engine's thread."""
    logits, target = torch.randn(4, 5, device=CUDA, requires_grad=True), _targets(4)
    loss = F.cross_entropy(logits, target)
    target.data.fill_(7)
    line = _nll_line("Loss.cu:476: nll_loss_backward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [0,0,0]")

    def backward() -> None:
        loss.backward()

    _dies(backward, "target-out-of-range", line, 4)


def check_kernels_that_check_nothing() -> None:
    """No assertion in the wheels: an illegal access, and no line."""
    scores = torch.randn(6, 1, 4, device=CUDA).log_softmax(-1)
    targets, illegal = torch.tensor([[1, 9]], device=CUDA), "an illegal memory access was encountered"
    with simgpu.device(), _stderr() as lines:
        with pytest.raises(torch.AcceleratorError, match=illegal):  # the operator reads its result itself
            F.ctc_loss(scores, targets, torch.tensor([6]), torch.tensor([2]))
        with pytest.raises(torch.AcceleratorError, match=illegal):
            torch.cuda.synchronize()
    assert lines == []


def check_what_cuda_allows_lives() -> None:
    logits = torch.randn(4, 5, device=CUDA)
    assert F.cross_entropy(logits, _targets(4, _1=-100, _2=4)).isfinite().item()
    assert torch.arange(5, device=CUDA)[_index(-5, -1, 4)].tolist() == [0, 4, 4]
    assert torch.take_along_dim(torch.arange(4, device=CUDA), _index(3, 0)).tolist() == [3, 0]
    assert torch.multinomial(torch.tensor([0.0, 1.0], device=CUDA), 1).item() == 1


def check_lines_are_bounded() -> None:
    logits = torch.randn(100_000, 2, device=CUDA)
    with simgpu.device(), _stderr() as lines:
        F.cross_entropy(logits, torch.full((100_000,), 7, device=CUDA), reduction="none")
        with pytest.raises(torch.AcceleratorError):
            torch.cuda.synchronize()
    assert len(lines) == 16_384
