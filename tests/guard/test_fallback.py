"""The same contracts by modes, as on torch without ``get_kernel``: what they see, what they miss, and no trace left."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert
from preassert import guard as room
from preassert.guard import intercepted, interception, selftest
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("old_torch")


@pytest.fixture
def old_torch(fresh_guard: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that cannot hand out kernels."""
    monkeypatch.setattr(room, "can_replace_kernels", lambda: False)


def test_the_mode_says_what_it_is() -> None:
    before = torch._C._dispatch_dump("aten::embedding")
    with preassert.guard():
        assert interception() == "mode"
        assert {kind for _operator, kind in intercepted()} == {"mode"}
        assert torch._C._dispatch_dump("aten::embedding") == before
    assert (interception(), torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == ("none", 0, 0)


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_a_faulty_call_raises_with_its_fields(faulty: Any, mode: str) -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode=mode):
        faulty.call()
    violation = caught.value
    assert (violation.hazard, violation.argument) == (faulty.hazard, faulty.argument)
    assert tuple("NaN" if e.value != e.value else e.value for e in violation.elements) == faulty.values
    assert tuple(element.position for element in violation.elements) == faulty.positions
    assert violation.site is not None
    assert violation.site.file.endswith("conftest.py")


def small_step() -> list[Tensor]:
    torch.manual_seed(0)
    table = torch.randn(7, 5, requires_grad=True)
    ids = torch.randint(0, 7, (4, 3))
    hidden = F.dropout(F.embedding(ids, table), 0.5).sum(1)
    loss = F.cross_entropy(hidden, ids[:, 0] % 5) + torch.take_along_dim(hidden, ids[:, 1:2] % 5, 1).sum()
    loss = loss + hidden[ids[:, 2] % 4].pow(2).sum()
    (grad,) = torch.autograd.grad(loss, table, create_graph=True)
    return [loss, grad, torch.autograd.grad(grad.pow(2).sum(), table)[0], torch.rand(2)]


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_nothing_differs_without_a_violation(mode: str) -> None:
    plain = small_step()
    with preassert.guard(mode=mode):
        guarded = small_step()
    for one, other in zip(plain, guarded, strict=True):
        assert torch.equal(one, other)
    assert STATE.seen == 0


def test_the_backward_pass_is_seen() -> None:
    table = torch.zeros(4, 3, requires_grad=True)
    ids = torch.tensor([0, 3])
    with pytest.raises(preassert.Violation) as caught, preassert.guard():  # noqa: PT012
        out = F.embedding(ids, table).sum()
        ids.data[0] = 4
        out.backward()
    assert caught.value.operator == "aten::embedding_dense_backward"


def test_optimizers_are_boundaries_and_the_weights_are_untouched() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation):  # noqa: PT012
        F.cross_entropy(model(torch.ones(1, 3)), torch.tensor([4])).backward()
        optimizer.step()
    assert torch.equal(before, model.weight)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, bad: x.index_put((bad,), torch.ones(())),
        lambda x, bad: x.index_put_((bad,), torch.ones(()), accumulate=True),
        lambda x, bad: torch.ops.aten._unsafe_index_put(x, [bad], torch.ones(())),
        lambda x, bad: x.put(bad, torch.ones(1)),
        lambda x, bad: x.index_fill(0, bad, 1.0),
        lambda x, bad: x.index_fill(0, bad, torch.ones(())),
        lambda x, bad: x.masked_scatter(torch.ones(3, dtype=torch.bool), torch.ones(2)),
    ],
)
def test_operators_that_call_the_guarded_one_inside(call: Any) -> None:
    with pytest.raises(preassert.Violation), preassert.guard():
        call(torch.zeros(3), torch.tensor([3]))


def test_composites_are_seen_in_every_spelling() -> None:
    source, index = torch.zeros(2, 3), torch.tensor([[3]])
    calls = [
        lambda: torch.take_along_dim(source, index, 1),
        lambda: torch.take_along_dim(source, index, dim=1),
        lambda: torch.take_along_dim(input=source, indices=index, dim=1),
        lambda: source.take_along_dim(index, 1),
        lambda: source.take_along_dim(indices=index, dim=1),
    ]
    for call in calls:
        with pytest.raises(preassert.Violation), preassert.guard():
            call()
    with preassert.guard():
        assert torch.quantile(torch.arange(3.0), 0.5) == 1.0  # a number is another overload


def test_a_mode_belongs_to_its_thread() -> None:
    """Stated, not wished for: threads of the user are not guarded by modes."""
    errors: list[BaseException] = []

    def other() -> None:
        try:
            F.embedding(torch.tensor([3]), torch.zeros(3, 2))
        except BaseException as error:
            errors.append(error)

    with preassert.guard():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert [type(error) for error in errors] == [IndexError]


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_guards_nest() -> None:
    with preassert.guard():
        with preassert.guard(skip=["take_along_dim"]):
            torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)
        with pytest.raises(preassert.Violation):
            torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)


def test_a_budget_works_with_modes_too() -> None:
    with preassert.guard(budget=0.5):
        F.embedding(torch.tensor([1]), torch.zeros(3, 2))
        assert room.stats()["budget"]["checked"] == 1


def test_the_self_test_does_not_speak_for_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "can_replace_kernels", lambda: False)
    assert selftest.compiled_unavailable() == "where the guard is a mode, compiled code is not guarded"
