"""The device's code, run on CPU tensors that pretend to be a device's: nothing is judged before the boundary."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert
from preassert.guard import devicelog
from preassert.guard.ledger import LEDGER
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("pretend_device")


def the_log() -> Any:
    (log,) = devicelog._logs.values()
    return log


def test_a_faulty_call_is_told_at_the_boundary(faulty: Any) -> None:
    reached = False
    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        faulty.call()
        reached = True
        assert STATE.seen == 0  # nobody has looked yet
    violation = caught.value
    assert (reached, violation.mode) == (True, "deferred")
    assert (violation.hazard, violation.argument) == (faulty.hazard, faulty.argument)
    assert violation.operator in faulty.operators
    assert tuple("NaN" if e.value != e.value else e.value for e in violation.elements) == faulty.values
    assert tuple(element.position for element in violation.elements) == faulty.positions
    assert (violation.lowest, violation.highest) == (faulty.lowest, faulty.highest)
    assert violation.site is not None
    assert violation.site.file.endswith("conftest.py")
    assert violation.site.source is not None


def test_immediate_mode_waits_and_raises_on_the_spot(faulty: Any) -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="immediate"):
        faulty.call()
    assert caught.value.mode == "immediate"
    assert devicelog._logs == {}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.token(ids))


def test_results_are_bit_identical_without_a_violation() -> None:
    from preassert.guard import verdict

    def run() -> list[Tensor]:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids, target = torch.tensor([0, 6, 3]), torch.tensor([0, -100, 4])
        drawn = []
        for _ in range(2):
            optimizer.zero_grad()
            out = model(ids)
            picked = out.gather(1, ids[:, None] % 5).sum() + torch.take_along_dim(out, ids[:, None] % 5, 1).sum()
            (F.cross_entropy(out, target) + picked + out[ids[:2] % 3].sum()).backward()
            drawn.append(torch.multinomial(out.detach().softmax(1), 3))
            optimizer.step()
        return [*model.state_dict().values(), *drawn, torch.get_rng_state()]

    with preassert.guard():
        guarded = run()
        assert the_log().entries == [] or all(entry.slot < 2048 for entry in the_log().entries)
    verdict.PRETEND_DEVICE = False
    for one, other in zip(guarded, run(), strict=True):
        assert torch.equal(one, other)
    assert STATE.seen == 0


def test_the_module_and_the_call_are_named() -> None:
    model = Model()
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        model(torch.tensor([[0, 7]]))
    violation = caught.value
    assert (violation.module, violation.call, violation.argument) == ("token", "F.embedding", "input")
    assert [str(argument) for argument in violation.arguments] == ["input: int64[1, 2]", "weight: float32[7, 6]"]


def test_shapes_are_those_that_the_user_passed() -> None:
    """[N, C, d] logits reach the kernel as [N, C, 1, d]."""
    target = torch.tensor([[0, 1, 3, 2]])
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        F.cross_entropy(torch.randn(1, 3, 4), target)
    assert caught.value.elements[0].position == (0, 2)


def test_the_backward_pass_says_nothing_again() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.token.weight.detach().clone()
    with preassert.guard(), pytest.raises(preassert.Violation) as caught:  # noqa: PT012
        F.cross_entropy(model(torch.tensor([0, 7])), torch.tensor([1, 2])).backward()
        optimizer.step()
    assert caught.value.operator == "aten::embedding"
    assert not hasattr(caught.value, "__notes__")
    assert torch.equal(before, model.token.weight)


def test_a_flush_between_forward_and_backward_tells_one_fault_once() -> None:
    table = torch.zeros(3, 2, requires_grad=True)
    with preassert.guard(policy="skip"):
        out = F.embedding(torch.tensor([0, 3]), table)
        LEDGER.collect()
        out.sum().backward()
        LEDGER.collect()
        assert LEDGER.pending_count == 1


def test_a_fault_of_the_backward_pass_alone_is_told() -> None:
    table = torch.zeros(3, 2, requires_grad=True)
    ids = torch.tensor([0, 1])
    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        out = F.embedding(ids, table)
        preassert.flush()
        ids.data[0] = 9
        out.sum().backward()
    assert caught.value.operator == "aten::embedding_dense_backward"


@pytest.mark.parametrize("policy", ["warn", "skip", "ignore"])
def test_policies(policy: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    expected = F.cross_entropy(x, torch.tensor([0, -100, 2])).detach()
    expecting = pytest.warns(preassert.guard.PreassertWarning) if policy == "warn" else contextlib.nullcontext()
    with expecting, preassert.guard(policy=policy):
        loss = F.cross_entropy(x, torch.tensor([0, 9, 2]))
        loss.backward()
        preassert.flush()
        assert sum(LEDGER.counts.values()) == 1
        if policy == "ignore":
            assert torch.equal(loss.detach(), expected)
            assert LEDGER.ignored == 1


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_legal_values_are_not_told() -> None:
    with preassert.guard():
        F.cross_entropy(torch.randn(2, 3), torch.tensor([-100, 2]))
        F.cross_entropy(torch.randn(2, 3), torch.tensor([255, 2]), ignore_index=255)
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        F.cross_entropy(torch.randn(3, 3), torch.tensor([-100, 2, 3]))
    assert (caught.value.count, caught.value.elements[0].position) == (1, (2,))
    with preassert.guard(sentinels=[7]):
        torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[7], [0]]), 1)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_dtypes(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        for value in (1.5, -0.5, float("nan"), float("inf")):
            with pytest.raises(preassert.Violation), preassert.guard():
                torch.bernoulli(torch.tensor([0.5, value], dtype=dtype))
        with preassert.guard():
            torch.bernoulli(torch.tensor([0.0, 1.0], dtype=dtype))
    elif dtype == torch.uint8:
        with pytest.raises(preassert.Violation), preassert.guard():
            F.nll_loss(torch.randn(2, 3), torch.tensor([0, 200], dtype=dtype))
    else:
        with pytest.raises(preassert.Violation), preassert.guard():
            F.embedding(torch.tensor([0, -1], dtype=dtype), torch.zeros(3, 1))
        with preassert.guard():
            F.embedding(torch.tensor([0, 2], dtype=dtype), torch.zeros(3, 1))


def test_doubles_are_judged_as_doubles() -> None:
    """As a float32 this value is 1.0."""
    with pytest.raises(preassert.Violation), preassert.guard():
        torch.bernoulli(torch.tensor([1.0 + 1e-12], dtype=torch.float64))


def test_more_checks_than_slots() -> None:
    table = torch.zeros(3, 1)
    good, bad = torch.tensor([1]), torch.tensor([3])
    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        for number in range(2 * devicelog._SLOTS + 10):
            F.embedding(bad if number == devicelog._SLOTS + 5 else good, table)
        assert len(the_log().entries) < devicelog._SLOTS
    assert caught.value.elements[0].value == 3
    assert not hasattr(caught.value, "__notes__")


def test_an_empty_tensor_needs_no_slot() -> None:
    with preassert.guard():
        F.embedding(torch.empty(0, dtype=torch.int64), torch.zeros(3, 1))
    assert devicelog._logs == {} or the_log().entries == []


def test_no_tensor_is_held_after_a_boundary_and_only_the_indices_before() -> None:
    ids, table = torch.tensor([0, 2]), torch.zeros(3, 2)
    held = [weakref.ref(ids), weakref.ref(table)]
    with preassert.guard():
        F.embedding(ids, table)
        del ids, table
        gc.collect()
        assert held[1]() is None
        assert held[0]() is not None
        preassert.flush()
        gc.collect()
        assert held[0]() is None


def test_an_index_that_is_written_to_before_the_boundary_is_still_told() -> None:
    ids = torch.tensor([0, 9])
    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        F.embedding(ids, torch.zeros(3, 2))
        ids.zero_()
    assert "was written to after the call" in str(caught.value)
    assert "its smallest value was 0, its largest 9" in str(caught.value)
    assert caught.value.count >= 1


@pytest.mark.usefixtures("replaced_kernels")
def test_two_threads_share_a_log() -> None:
    table = torch.zeros(3, 1)
    errors: list[BaseException] = []

    def look_up(value: int) -> None:
        try:
            for _ in range(300):
                F.embedding(torch.tensor([value]), table)
        except BaseException as error:
            errors.append(error)

    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        threads = [threading.Thread(target=look_up, args=(value,)) for value in (1, 2, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({entry.slot for entry in the_log().entries}) == len(the_log().entries) == 900
    assert errors == []
    assert caught.value.elements[0].value == 8
    assert "299 more violations" in caught.value.__notes__[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_with_an_empty_log() -> None:
    with pytest.raises(preassert.Violation), preassert.guard():  # noqa: PT012
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        child = os.fork()
        if child == 0:
            os._exit(0 if not devicelog._logs and not LEDGER._collectors and not LEDGER.pending else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_graph_slot_is_read_at_each_boundary_and_told_once_for_each_replay() -> None:
    """A captured entry: its slot is written by replays only, which run no Python."""
    with preassert.guard():
        F.embedding(torch.tensor([1]), torch.zeros(3, 2))
        log = the_log()
        log.captured, log.entries = log.entries, []
        slot, buffer = log.captured[0].slot, log._buffers[torch.int64]
        buffer[:, slot] = torch.tensor([1, 0])  # captured, not replayed yet
        preassert.flush()
        buffer[:, slot] = torch.tensor([3, 3])
        log.captured[0].fault.tensor.fill_(3)
        with pytest.raises(preassert.Violation) as caught:
            preassert.flush()
        assert caught.value.elements[0].value == 3
        preassert.flush()
        assert log._free == 1  # the slot is not given to another check
        buffer[:, slot] = torch.tensor([2, 2])
        preassert.flush()
        log.captured.clear()


def test_a_check_adds_few_operators() -> None:
    """Not a time: what one check asks of the device."""
    from torch.profiler import ProfilerActivity, profile

    def operators() -> int:
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            F.embedding(ids, table)
        return sum(event.name.startswith("aten::") for event in recorded.events())

    ids, table = torch.tensor([0, 1]), torch.zeros(3, 2)
    plain = operators()
    with preassert.guard():
        F.embedding(ids, table)
        entries = len(the_log().entries)
        added = operators() - plain
        assert len(the_log().entries) == entries + 1
    assert 2 <= added <= 20  # the extremes, their two slots, the stand-in, and views
