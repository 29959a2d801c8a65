"""Finding a hazard by what was printed."""

from __future__ import annotations

import pytest

from preassert.hazards import get, slugs
from preassert.hazards.find import find

LINE = "../aten/src/ATen/native/cuda/{file}:99: f: block: [0,0,0], thread: [0,0,0] Assertion `{expression}` failed."

FOUND = {
    "srcIndex < srcSelectDimSize": {"embedding-index-out-of-range"},
    "  srcIndex   <\tsrcSelectDimSize ": {"embedding-index-out-of-range"},
    "srcSelectDimSize": {"embedding-index-out-of-range"},
    "t >= 0 && t < n_classes": {"target-out-of-range"},
    "index out of bounds: 0 <= tmp17 < 32768": {"compiled-index-out-of-range"},
    "index out of bounds: 0 <= tmp4 < 1 + ks0": {"compiled-index-out-of-range"},
    "index >= 0": {"invalid-pooling-index", "kernel-internal-assert"},
    LINE.format(file="FractionalMaxPool3d.cu", expression="index >= 0"): {"invalid-pooling-index"},
    LINE.format(file="Loss.cu", expression="index >= 0"): {"kernel-internal-assert"},
    "/src/hip/Loss.hip:5: f: Device-side assertion `index >= 0' failed.": {"kernel-internal-assert"},
    LINE.format(file="IndexKernel.cu", expression='-sizes[i] <= index && index < sizes[i] && "index out of bounds"'): {
        "index-out-of-range"
    },
    LINE.format(file="TensorCompare.cu", expression="probability tensor contains either `inf`, `nan` or element < 0"): {
        "invalid-sampling-distribution"
    },
    "IndexError: Target 13 is out of bounds.": {"target-out-of-range"},
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`": {"blas-or-dnn-failure"},
    "RuntimeError: CUDA error: device-side assert triggered": {"device-assert-unlocated"},
    "parallel_for failed: cudaErrorAssert": {"device-assert-unlocated"},
    "masked_scatter_size_check": {"index-out-of-range"},
    "MultinomialKernel.cu": {"invalid-sampling-distribution"},
    "fell off the bus": {"hardware-fault"},
    "frobnicate": set(),
    "zz": set(),
    "": set(),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FOUND.items(), ids=range(len(FOUND)))
def test_find(text: str, expected: set[str]) -> None:
    assert {match.slug for match in find(text)} == expected


def test_every_expression_and_example_finds_its_own() -> None:
    for slug in slugs():
        for record in get(slug).printed:
            if record.expression.strip() and not record.expression.startswith("<any"):
                assert slug in {match.slug for match in find(record.expression)}, record.expression
        for message in get(slug).host:
            assert slug in {match.slug for match in find(message.example)}, message.example


def test_a_long_text_is_no_trouble() -> None:
    assert find("x" * 100_000) == ()
