"""``clamp_targets`` and ``mask_targets``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from preassert import clamp_targets, mask_targets
from preassert.labels import ChangedTargetsWarning


@pytest.mark.parametrize(
    ("change", "targets", "result", "count"),
    [
        (clamp_targets, torch.tensor([0, 7, -1, -100, 4]), [0, 4, 0, -100, 4], 2),
        (clamp_targets, np.array([[0, 9], [9, 1]], np.uint8), [[0, 4], [4, 1]], 2),
        (mask_targets, torch.tensor([0, 7, -1, -100, 4]), [0, -100, -100, -100, 4], 2),
        (mask_targets, [5, 1], [-100, 1], 1),
        (clamp_targets, torch.tensor([0, 4]), [0, 4], 0),
    ],
)
def test_changes_are_counted_and_said(change: Any, targets: Any, result: list[Any], count: int) -> None:
    before = torch.as_tensor(targets).clone()
    if count:
        with pytest.warns(ChangedTargetsWarning) as caught:
            out = change(targets, 5, return_changes=True)
        assert f"{count} of {before.numel()} targets were outside 0..4" in str(caught[0].message)
        assert caught[0].filename == __file__
        assert caught[0].message.changes is not None  # type: ignore[union-attr]
    else:
        out = change(targets, 5, return_changes=True)
    assert out.targets.tolist() == result
    assert (out.count, sum(out.values.values())) == (count, count)
    assert torch.equal(torch.as_tensor(targets), before)
    if isinstance(targets, torch.Tensor):
        assert out.targets.dtype == torch.int64


def test_the_warning_names_values_places_and_the_loss() -> None:
    with pytest.warns(
        ChangedTargetsWarning, match=r"7 \(2\), -1 \(1\), first at \[1\], \[2\], \[3\]; each now trains the model on a class"
    ):
        clamp_targets([0, 7, 7, -1], 5)
    with pytest.warns(ChangedTargetsWarning, match="left out of the loss"):
        mask_targets([9], 5)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: clamp_targets(torch.tensor([0.5]), 3), TypeError),
        (lambda: clamp_targets(torch.tensor([1.0]), 3), TypeError),
        (lambda: clamp_targets(["a"], 3), TypeError),
        (lambda: clamp_targets([1], 0), ValueError),
        (lambda: mask_targets([1], 3, ignore_index=2), ValueError),
    ],
)
def test_refusals(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
