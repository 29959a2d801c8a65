"""The plain functions: lists, NumPy and torch, each against what ``F.cross_entropy`` does with the same targets."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from preassert import Violation, safe_compute_loss_inputs, validate_classification_targets

NAN = float("nan")

LEGAL: list[tuple[Any, Any]] = [
    ((4, 5), [0, 1, 4, -100]),
    ((4, 5), (0, 1, 4, 2)),
    ((3, 5), range(3)),
    ((3, 5), [0.0, 4.0, -100.0]),
    ((5,), 4),
    ((5,), torch.tensor(4)),
    ((5,), np.int64(4)),
    ((2, 5, 3), [[0, 1, 2], [3, 4, -100]]),
    ((2, 5, 2, 2), np.array([[[0, 1], [2, 3]], [[4, 4], [-100, 0]]])),
    ((0, 5), []),
    ((0, 5), np.zeros(0, dtype=np.int64)),
    ((2, 5), np.array([0, 4], dtype=np.uint8)),
    ((2, 5), np.array([0, 4], dtype=np.float32)),
    ((2, 5), np.array([0, 4], dtype=object)),
    ((2, 5), torch.tensor([0, 4], dtype=torch.uint8)),
    ((2, 5), torch.tensor([0.0, 4.0])),
    (torch.Size((2, 5)), [0, 4]),
    (torch.zeros(2, 5), [0, 4]),
    ((2, 5), [torch.tensor(0), np.int32(4)]),
]

BAD: list[tuple[Any, Any, tuple[int, ...], Any, int]] = [
    # logits, targets, first bad position, value, count
    ((4, 5), [0, 5, 1, 7], (1,), 5, 2),
    ((4, 5), [0, 1, 2, -1], (3,), -1, 1),
    ((5,), 5, (), 5, 1),
    ((3, 5), [0, NAN, 1], (1,), NAN, 1),
    ((3, 5), [0, 1.5, 1], (1,), 1.5, 1),
    ((3, 5), [0, math.inf, 1], (1,), math.inf, 1),
    ((2, 5, 3), [[0, 1, 2], [3, 255, 255]], (1, 1), 255, 2),
    ((3, 5), np.array([0, 5, 255], dtype=np.uint8), (1,), 5, 2),
    ((1, 5), np.array([156], dtype=np.uint8), (0,), 156, 1),  # -100 as a byte: not the ignore_index
    ((3, 5), np.array([0, NAN, 0.5]), (1,), NAN, 2),
    ((3, 5), np.array([0, -np.inf, 1]), (1,), -math.inf, 1),
    ((1, 5), np.array([2**64 - 1], dtype=np.uint64), (0,), 2**64 - 1, 1),
    ((1, 5), torch.tensor([156], dtype=torch.uint8), (0,), 156, 1),
    ((3, 5), torch.tensor([0, NAN, 2.5]), (1,), NAN, 2),
    ((2, 5, 2), torch.tensor([[0, 4], [5, -1]]), (1, 0), 5, 2),
    ((2, 5), [torch.tensor(0), torch.tensor(5)], (1,), 5, 1),
]


@pytest.mark.parametrize(("logits", "targets"), LEGAL)
def test_legal_targets_pass(logits: Any, targets: Any) -> None:
    validate_classification_targets(logits, targets)
    assert safe_compute_loss_inputs(5, targets) is True


@pytest.mark.parametrize(("logits", "targets", "position", "value", "count"), BAD)
def test_a_bad_target_is_named(logits: Any, targets: Any, position: tuple[int, ...], value: Any, count: int) -> None:
    for check in (lambda: validate_classification_targets(logits, targets), lambda: safe_compute_loss_inputs(5, targets)):
        with pytest.raises(Violation) as caught:
            check()
        violation = caught.value
        assert violation.hazard == "target-out-of-range"
        assert violation.elements[0].position == position
        found = violation.elements[0].value
        assert found == value or (found != found and value != value)
        assert (violation.count, violation.lowest, violation.highest) == (count, 0, 4)
        assert violation.valid == "0..4 or ignore_index=-100"
        assert "num_classes = 5" in str(violation)
        assert violation.site is not None
        assert violation.site.file == __file__


@pytest.mark.parametrize(
    ("logits", "targets", "error", "words"),
    [
        ((4, 5), [0, 1, 2], ValueError, r"\(4,\) is needed"),
        ((4, 5), [[0], [1], [2], [3]], ValueError, r"reshape the targets to \(4,\)"),
        ((2, 3), [[1, 0, 0], [0, 0, 1]], ValueError, "one-hot"),
        ((2, 3, 4), [[0, 1], [1, 2]], ValueError, r"\(2, 4\) is needed"),
        ((2, 3), [[0, 1], [2]], ValueError, "ragged"),
        ((2, 0), [0, 1], ValueError, "no class"),
        ((), 0, ValueError, "class dimension"),
        (5, [0], TypeError, "is a shape"),
        ((2, "3"), [0, 1], TypeError, "is a shape"),
        ((2, 3), ["cat", "dog"], TypeError, r"targets\[0\] is 'cat'"),
        ((2, 3), [0, None], TypeError, r"targets\[1\] is None"),
        ((2, 3), [True, False], TypeError, "True"),
        ((2, 3), torch.tensor([True, False]), TypeError, "bool"),
        ((2, 3), np.array([True, False]), TypeError, "bool"),
        ((2, 3), np.array(["a", "b"]), TypeError, "class numbers are integers"),
        ((2, 3), torch.tensor([0j, 1]), TypeError, "complex"),
    ],
)
def test_what_is_no_class_target_is_refused(logits: Any, targets: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        validate_classification_targets(logits, targets)
    assert not isinstance(caught.value, Violation)


def test_ignore_index() -> None:
    validate_classification_targets((2, 5), [255, 0], ignore_index=255)
    validate_classification_targets((2, 5), np.array([255, 0], dtype=np.uint8), ignore_index=255)
    for none_or_other in (None, 255):
        with pytest.raises(Violation):
            validate_classification_targets((2, 5), [-100, 0], ignore_index=none_or_other)


def test_num_classes_is_checked() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        safe_compute_loss_inputs(0, [0])
    with pytest.raises(TypeError, match="integers"):
        safe_compute_loss_inputs(2.5, [0])  # type: ignore[arg-type]


@given(st.lists(st.integers(-3, 8), min_size=1, max_size=6), st.integers(1, 6), st.sampled_from([-100, -1, 0, 7]))
def test_agrees_with_cross_entropy(targets: list[int], num_classes: int, ignore_index: int) -> None:
    logits = torch.zeros(len(targets), num_classes)
    try:
        F.cross_entropy(logits, torch.tensor(targets), ignore_index=ignore_index)
        accepted = True
    except IndexError:
        accepted = False
    for form in (targets, np.array(targets), torch.tensor(targets)):
        if accepted:
            validate_classification_targets(logits.shape, form, ignore_index=ignore_index)
            continue
        with pytest.raises(Violation) as caught:
            validate_classification_targets(logits.shape, form, ignore_index=ignore_index)
        first = caught.value.elements[0]
        assert first.value == targets[first.position[0]]


def test_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import preassert\n"
        "assert preassert.safe_compute_loss_inputs(3, [0, 1, 2])\n"
        "try: preassert.validate_classification_targets((2, 3), [1, 3])\n"
        "except preassert.Violation as v: print(v.elements[0].value, v.elements[0].position)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "3 (1,)\n"
