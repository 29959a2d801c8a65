"""``budget=``: first calls and new shapes are checked, clean sites are sampled, by a clock that the test holds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preassert
from preassert.guard import stats
from preassert.guard.budget import FIRST, Budget
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("fresh_guard")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run_steps(budget: Budget, clock: Clock, *, steps: int, cost_s: float, step_s: float = 1.0, site: str = "a") -> int:
    """Steps with one check each, of ``cost_s`` when it is made. How many were made."""
    made = 0
    for _ in range(steps):
        if budget.is_due(site):
            made += 1
            budget.spend(cost_s)
        clock.now += step_s
        budget.end_step()
    return made


def test_the_first_checks_of_a_site_are_always_made() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    assert run_steps(budget, clock, steps=FIRST, cost_s=0.5) == FIRST
    assert budget.interval > 1


def test_the_interval_grows_while_the_cost_is_over_the_budget_and_shrinks_when_it_is_far_under() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    run_steps(budget, clock, steps=8, cost_s=0.5)
    assert budget.interval == 128  # the first step began the measuring
    run_steps(budget, clock, steps=FIRST, cost_s=0.5)
    assert budget.interval == 1024
    intervals = []
    for _ in range(400):
        run_steps(budget, clock, steps=1, cost_s=0.0)
        intervals.append(budget.interval)
    assert list(dict.fromkeys(intervals)) == [1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1]


def test_a_share_between_half_and_all_of_the_budget_is_left_alone() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    budget.interval = 8
    for _ in range(5):
        budget.spend(0.007)
        clock.now += 1.0
        budget.end_step()
    assert budget.interval == 8
    assert budget.measured == pytest.approx(0.007)


def test_most_calls_of_a_clean_site_are_not_checked_when_checks_are_dear() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    run_steps(budget, clock, steps=FIRST, cost_s=0.5)
    made = run_steps(budget, clock, steps=5000, cost_s=0.5)
    assert made >= 10
    assert made * 0.5 / 5000 < 0.01
    assert budget.stats()["checked"] == FIRST + made
    assert budget.stats()["not_checked"] == 5000 - made


def test_cheap_checks_are_all_made() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    assert run_steps(budget, clock, steps=500, cost_s=0.001) == 500


def test_a_suspect_site_is_new_again_and_so_is_another_site() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    budget.interval = 1024
    assert [budget.is_due("a") for _ in range(FIRST + 1)] == [True] * FIRST + [False]
    assert budget.is_due("b")
    budget.suspect("a")
    assert budget.is_due("a")


def test_sites_without_number_do_not_fill_the_memory() -> None:
    budget = Budget(0.01)
    budget.interval = 1024
    assert all(budget.is_due(number) for number in range(25_000))
    assert budget.stats()["sites"] <= 10_000


def hold_clock(interval: int) -> Budget:
    budget = STATE.budget
    assert budget is not None
    budget.clock = Clock()  # no time passes: nothing is adapted
    budget.interval = interval
    return budget


def look_up(ids: torch.Tensor) -> None:
    F.embedding(ids, torch.zeros(5, 2))


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_the_guard_samples_clean_sites_and_checks_new_shapes(mode: str) -> None:
    with preassert.guard(mode=mode, budget=0.01):
        hold_clock(1024)
        for _ in range(FIRST + 10):
            look_up(torch.tensor([1, 2]))
        numbers = stats()["budget"]
        assert (numbers["checked"], numbers["not_checked"], numbers["share"]) == (FIRST, 10, 0.01)
        with pytest.raises(preassert.Violation):  # noqa: PT012
            look_up(torch.tensor([1, 5, 2]))  # a new shape
            preassert.flush()
        with pytest.raises(preassert.Violation):  # noqa: PT012
            F.embedding(torch.tensor([1, 5]), torch.zeros(5, 2))  # a new line
            preassert.flush()


def test_a_site_with_a_violation_is_checked_at_every_call_again() -> None:
    with preassert.guard(budget=0.01):
        budget = hold_clock(1)
        for _ in range(FIRST + 10):
            look_up(torch.tensor([1, 2]))
        with pytest.raises(preassert.Violation):
            look_up(torch.tensor([1, 5]))
        budget.interval = 1024
        for _ in range(3):
            with pytest.raises(preassert.Violation):
                look_up(torch.tensor([1, 5]))


def test_a_call_that_is_not_checked_meets_torch_itself() -> None:
    with preassert.guard(budget=0.01):
        hold_clock(1024)
        for _ in range(FIRST):
            look_up(torch.tensor([1, 2]))
        with pytest.raises(IndexError) as caught:
            look_up(torch.tensor([1, 5]))
    assert not isinstance(caught.value, preassert.Violation)


def test_an_optimizer_step_adapts_and_the_end_reports(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with preassert.guard(budget=0.5):
        for _ in range(4):
            F.cross_entropy(model(torch.ones(2, 2)), torch.tensor([0, 2])).backward()
            optimizer.step()
        numbers = stats()["budget"]
        assert numbers["steps"] == 3
        assert 0 < numbers["measured"] < 1
    assert "preassert: budget 50.00%: " in capfd.readouterr().err
    assert stats()["budget"] is None


def test_without_a_budget_the_kernels_are_the_plain_ones() -> None:
    from preassert import guard as room

    with preassert.guard():
        assert not room._installation.budgeted
        with preassert.guard(budget=0.1):
            assert room._installation.budgeted
            outer = STATE.budget
            with preassert.guard():
                assert STATE.budget is None
                with pytest.raises(preassert.Violation):
                    look_up(torch.tensor([5]))
            assert STATE.budget is outer
    with preassert.guard():
        assert not room._installation.budgeted
