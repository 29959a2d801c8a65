"""What becomes of a bad batch: ``skip`` leaves no trace of it, ``ignore`` keeps the loss right, ``warn`` says it; all count."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import preassert
from preassert.guard.ledger import LEDGER

pytestmark = pytest.mark.usefixtures("fresh_guard")


class Digits(Dataset[tuple[Tensor, int]]):
    """``count`` samples with labels 0..4; those in ``bad`` have the label 7."""

    def __init__(self, count: int, bad: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = torch.randint(0, 5, (count,), generator=generator)
        self.y[list(bad)] = 7

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


def make_model(dropout: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 5))


def train(
    data: Dataset[Any], model: nn.Module, *, batch_size: int = 2, leave_out: Sequence[int] = (), workers: int = 0
) -> list[Tensor]:
    """One pass; the batches in ``leave_out`` are drawn and not used. The weights at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(5)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers)
    for number, (x, y) in enumerate(loader):
        if number in leave_out:
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [value.clone() for value in model.state_dict().values()]


def batches_of(data: Dataset[Any], samples: Sequence[int], batch_size: int = 2) -> list[int]:
    """Numbers of the batches that hold ``samples``, in the order of :func:`train`."""
    torch.manual_seed(5)
    order = [index for batch in DataLoader(range(len(data)), batch_size=batch_size, shuffle=True) for index in batch.tolist()]  # type: ignore[arg-type]
    return sorted({order.index(sample) // batch_size for sample in samples})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- skip


def test_skip_one_bad_batch_in_a_thousand_leaves_no_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = 1234
    data = Digits(2000, [bad])
    (number,) = batches_of(data, [bad])
    expected = train(data, make_model(), leave_out=[number])
    random_state = torch.get_rng_state()

    quarantine = tmp_path / "bad.jsonl"
    with preassert.guard(policy="skip", quarantine=quarantine):
        weights = train(data, make_model())
        assert LEDGER.skipped_steps == 1
    for one, other in zip(weights, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), random_state)  # dropout goes on as if the batch had never been

    (entry,) = lines_of(quarantine)
    assert entry["schema"] == "preassert.quarantine/1"
    assert entry["dataset_indices"] == [bad]
    assert [element["value"] for element in entry["values"]] == [7]
    assert (entry["hazard"], entry["count"]) == ("target-out-of-range", 1)
    assert entry["site"]["file"].endswith("test_policies.py")
    summary = capfd.readouterr().err
    assert "bad values: 1 x target-out-of-range at " in summary
    assert "; 1 optimizer step skipped\n" in summary


def test_without_the_guards_care_the_weights_would_differ() -> None:
    """The comparison above can fail: with the bad batch's target clamped, the weights are others."""
    data = Digits(200, [20])
    expected = train(data, make_model(), leave_out=batches_of(data, [20]))
    data.y[20] = 4
    assert not all(torch.equal(a, b) for a, b in zip(train(data, make_model()), expected, strict=True))


def test_skip_names_every_bad_sample_with_workers(tmp_path: Path) -> None:
    bad = [3, 40, 41, 77]
    data = Digits(80, bad)
    expected = train(data, make_model(), batch_size=8, leave_out=batches_of(data, bad, 8))
    quarantine = tmp_path / "bad.jsonl"
    with preassert.guard(policy="skip", quarantine=quarantine):
        weights = train(data, make_model(), batch_size=8, workers=1)
    assert sorted(index for entry in lines_of(quarantine) for index in entry["dataset_indices"]) == bad
    for one, other in zip(weights, expected, strict=True):
        assert torch.equal(one, other)


def test_skip_appends_to_the_quarantine_file(tmp_path: Path) -> None:
    quarantine = tmp_path / "bad.jsonl"
    for _ in range(2):
        with preassert.guard(policy="skip", quarantine=str(quarantine)):
            F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 3]))
    entries = lines_of(quarantine)
    assert len(entries) == 2
    assert entries[0]["dataset_indices"] == []
    assert entries[0]["unknown_because"]


def test_what_skip_does_not_undo() -> None:
    """Buffers that the forward pass writes (BatchNorm) and schedulers that the loop steps are not put back."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = [value.clone() for value in model.state_dict().values()]
    with preassert.guard(policy="skip"):
        F.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 5, 0, 0])).backward()
        optimizer.step()
        scheduler.step()
    changed = [name for (name, now), old in zip(model.state_dict().items(), before, strict=True) if not torch.equal(now, old)]
    assert changed == ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_every_optimizer_leaves_out_one_step() -> None:
    """As in a GAN: the batch is one, the optimizers are two; both lose the step, one that comes later loses none."""
    first, second = nn.Linear(3, 4), nn.Linear(3, 4)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (first, second)]

    def step(target: int) -> tuple[bool, bool]:
        before = [module.weight.detach().clone() for module in (first, second)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        (F.cross_entropy(first(torch.ones(1, 3)), torch.tensor([target])) + second(torch.ones(1, 3)).sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
        moved = [not torch.equal(old, module.weight) for old, module in zip(before, (first, second), strict=True)]
        return moved[0], moved[1]

    with preassert.guard(policy="skip"):
        assert step(0) == (True, True)
        assert step(4) == (False, False)
        assert step(0) == (True, True)
        later = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(later.parameters(), lr=0.1)
        before = later.weight.detach().clone()
        later(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert not torch.equal(before, later.weight)
        assert LEDGER.skipped_steps == 2


def test_an_optimizer_that_steps_rarely_does_not_apply_the_bad_share() -> None:
    """It accumulates over many batches; the other one has stepped in between."""
    often, rare = nn.Linear(3, 4), nn.Linear(3, 4)
    fast, slow = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (often, rare))
    before = rare.weight.detach().clone()
    with preassert.guard(policy="skip"):
        for target in (0, 4, 0, 0):
            fast.zero_grad()
            F.cross_entropy(often(torch.ones(1, 3)) + rare(torch.ones(1, 3)), torch.tensor([target])).backward()
            fast.step()
        slow.step()
        assert torch.equal(before, rare.weight)
        rare(torch.ones(1, 3)).sum().backward()
        slow.step()
        assert not torch.equal(before, rare.weight)


# --- max_violations


@pytest.mark.parametrize("policy", ["skip", "warn"])
def test_max_violations_stops_a_run_that_is_mostly_bad(policy: str) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(preassert.Violation) as caught, preassert.guard(policy=policy, max_violations=5):  # noqa: PT012
            for _ in range(10):
                F.cross_entropy(model(torch.randn(2, 6)), torch.tensor([5, 6])).backward()
                optimizer.step()
                steps += 1
    assert steps == 2
    assert "6 bad values in this run, more than max_violations=5" in caught.value.__notes__[0]


# --- warn


def test_warn_names_the_users_line_each_time() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with preassert.guard(policy="warn"):
            for _ in range(2):
                F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 3]))
                preassert.flush()
    ours = [entry for entry in seen if issubclass(entry.category, preassert.guard.PreassertWarning)]
    assert len(ours) == 2
    assert ours[0].filename.endswith("test_policies.py")
    assert "target[1] = 3" in str(ours[0].message)


def test_warn_as_an_error_stops_before_the_step() -> None:
    model = make_model(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(preassert.guard.PreassertWarning), preassert.guard(policy="warn"):  # noqa: PT012
            F.cross_entropy(model(torch.randn(2, 6)), torch.tensor([5, 0])).backward()
            optimizer.step()
    assert torch.equal(before, model[0].weight)


# --- ignore


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ignore_index", [-100, 255, 0])
def test_ignore_is_the_loss_without_the_bad_targets(reduction: str, weighted: bool, ignore_index: int) -> None:
    target = torch.tensor([0, 9, 2, -1, 3, 1])
    cleaned = torch.where((target < 0) | (target > 3), ignore_index, target)
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4]) if weighted else None
    torch.manual_seed(0)
    logits = torch.randn(6, 4)

    def run(labels: Tensor) -> tuple[Tensor, Tensor]:
        x = logits.clone().requires_grad_()
        loss = F.cross_entropy(x, labels, weight, ignore_index=ignore_index, reduction=reduction)
        loss.sum().backward()
        assert x.grad is not None
        return loss.detach(), x.grad

    expected = run(cleaned)
    with preassert.guard(policy="ignore"):
        loss, grad = run(target)
        assert LEDGER.ignored == 2
        assert sum(LEDGER.counts.values()) == 2  # the backward pass counts nothing again
    assert torch.equal(loss, expected[0])
    assert torch.equal(grad, expected[1])


def test_ignore_in_masks(capfd: pytest.CaptureFixture[str]) -> None:
    target = torch.tensor([[[0, 1], [255, 2]]])
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 2, 2)
    expected = F.cross_entropy(logits, torch.tensor([[[0, 1], [-100, 2]]]))
    with preassert.guard(policy="ignore"):
        for _ in range(3):
            assert torch.equal(F.cross_entropy(logits, target), expected)
    printed = capfd.readouterr().err
    assert printed.count("ignoring target-out-of-range at ") == 1  # announced once for a line
    assert "3 targets ignored" in printed


def test_ignore_raises_where_there_is_no_ignore_index() -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(policy="ignore"):
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))
    assert caught.value.mode == "deferred"


def test_nothing_is_said_when_nothing_was_met(capfd: pytest.CaptureFixture[str]) -> None:
    for policy in ("skip", "ignore", "warn"):
        with preassert.guard(policy=policy):
            F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 2]))
    assert capfd.readouterr().err == ""
