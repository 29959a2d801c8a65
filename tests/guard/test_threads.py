"""Several threads: one interception for all of them, no check missed or invented, whoever comes and goes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import preassert
from preassert.guard import interception
from preassert.guard.ledger import LEDGER
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("fresh_guard")


@pytest.mark.usefixtures("replaced_kernels")
def test_every_thread_is_guarded() -> None:
    """The interception belongs to the process: a thread that opened no guard is guarded too."""
    table = torch.zeros(5, 2)

    def run(number: int) -> int:
        found = 0
        for value in range(50):
            ids = torch.full((40,), 5 if value % 10 == number else 1)
            try:
                F.embedding(ids, table)
            except preassert.Violation as violation:
                found += violation.count == 40
        return found

    with preassert.guard(), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [5] * 4


@pytest.mark.usefixtures("replaced_kernels")
def test_the_cover_of_one_thread_does_not_hide_a_fault_of_another() -> None:
    """While ``embedding`` runs, the operators inside it are not checked again; that holds for its own thread only."""
    from preassert.guard.state import COVER

    inside, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    def other() -> None:
        inside.wait(10)
        try:
            torch.zeros(3).index_select(0, torch.tensor([3]))
        except preassert.Violation:
            seen.append(True)
        go_on.set()

    thread = threading.Thread(target=other)
    thread.start()
    with preassert.guard():
        COVER.active = True
        try:
            inside.set()
            go_on.wait(10)
        finally:
            COVER.active = False
        thread.join()
    assert seen == [True]


def test_backward_threads() -> None:
    """Backward passes of several threads at once, each with its own model."""

    def run(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(6, 4, generator=generator).requires_grad_()
        ids = torch.randint(0, 6, (16,), generator=generator)
        for _ in range(5):
            F.cross_entropy(F.embedding(ids, table), ids % 4).backward()
        assert table.grad is not None
        return table.grad

    plain = [run(seed) for seed in range(4)]
    with preassert.guard(), ThreadPoolExecutor(4) as pool:
        guarded = list(pool.map(run, range(4)))
    assert all(torch.equal(one, other) for one, other in zip(plain, guarded, strict=True))


@pytest.mark.usefixtures("replaced_kernels")
def test_guards_opened_and_closed_by_many_threads() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(4):
                with preassert.guard():
                    F.embedding(torch.tensor([1]), torch.zeros(3, 2))
                    try:
                        F.embedding(torch.tensor([3]), torch.zeros(3, 2))
                    except preassert.Violation:
                        continue
                    failures.append(AssertionError("not raised"))
        except BaseException as error:
            failures.append(error)

    before = torch._C._dispatch_dump("aten::embedding")
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (interception(), STATE.stack) == ("none", [])
    assert torch._C._dispatch_dump("aten::embedding") == before


@pytest.mark.usefixtures("replaced_kernels")
def test_deferred_violations_of_several_threads() -> None:
    def run(value: int) -> None:
        F.embedding(torch.tensor([0, value]), torch.zeros(5, 2))

    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="deferred"):  # noqa: PT012
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, [1, 7, 2, 8, 9]))
        assert LEDGER.pending_count == 3
    assert caught.value.elements[0].value in (7, 8, 9)
    assert "2 more violations" in caught.value.__notes__[0]
