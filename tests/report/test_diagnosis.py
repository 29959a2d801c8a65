# ruff: noqa: E501 - a printed line stands here as one line
"""The text report is stable: one whole example, and reports of all roles."""

from __future__ import annotations

from typing import Any

from preassert.logs import explain_text
from preassert.report.diagnosis import to_github, to_html, to_text

ECHOING = """\
[rank1]:/pytorch/aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.
[rank1]:RuntimeError: CUDA error: device-side assert triggered
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
"""


def report_of(text: str) -> dict[str, Any]:
    return explain_text(text).to_dict()


def test_ranks_and_echoes() -> None:
    report = report_of(ECHOING)
    text = to_text(report)
    assert "line 1, rank 1:" in text
    assert "echo: device-assert-unlocated, line 2, rank 1" in text
    assert "and 1 more (-v shows them)" in text
    verbose = to_text(report, verbose=True)
    assert "echo: communication-failure, line 5, rank 3" in verbose
    assert "ranks that print assertions: 1" in verbose


def test_unknown_says_what_can_be_said() -> None:
    text = to_text(report_of("epoch 1\nKilled\n"))
    assert text.startswith("unknown: something failed, but it is nothing of the catalogue")
    assert "ran out of memory" in text
    assert "preassert hazards" not in text


def test_a_cuda_error_outside_the_catalogue_is_called_so() -> None:
    assert "A CUDA error that says nothing about values" in to_text(report_of("RuntimeError: CUDA error: unknown error\n"))


def test_what_the_frames_leave_open_is_only_likely() -> None:
    line = "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [1,0,0], thread: [2,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    frames = 'Traceback (most recent call last):\n  File "/x/torch/nn/functional.py", line 2210, in embedding\n    return torch.embedding(weight, input)\n'
    assert report_of(line)["confidence"] == "likely"
    assert report_of(line + frames)["confidence"] == "determined"


def test_an_innocent_frame_is_called_so() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    torch.cuda.empty_cache()\nRuntimeError: CUDA error: device-side assert triggered\n'
    assert "cannot assert itself" in to_text(report_of(text))


def test_every_form_renders_every_verdict() -> None:
    texts = (
        ECHOING, "", "Killed\n", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
        "RuntimeError: CUDA error: device-side assert triggered\n", "IndexError: Target 5 is out of bounds.\n",
        "RuntimeError: CUDA error: device-side assert triggered\nIndexError: Target 5 is out of bounds.\n",
    )  # fmt: skip
    for text in texts:
        report = report_of(text)
        assert report["verdict"] in to_text(report)
        assert report["verdict"] in to_html(report)
        assert (report["verdict"] in to_github(report)) is bool(report["diagnoses"])


def test_the_same_fault_on_the_cpu_is_shown_as_what_told_it() -> None:
    text = to_text(report_of("RuntimeError: CUDA error: device-side assert triggered\nIndexError: Target 5 is out of bounds.\n"))
    assert "told by: IndexError: Target 5 is out of bounds." in text
    assert "Restart: required" in text


def test_lines_are_filled_to_the_width() -> None:
    for width in (60, 90, 110):
        lines = to_text(report_of(ECHOING), width=width).splitlines()
        long = [
            line
            for line in lines
            if len(line) > width and " " in line.strip() and not line.lstrip().startswith(("$", "#", "assert"))
        ]
        assert [line for line in long if len(line.split()) > 2 and len(max(line.split(), key=len)) < width // 2] == []
