"""Deferred mode: sanitised now, recorded, raised at the boundary, before anything bad reaches a weight, and never lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import preassert
from preassert.guard import devicelog
from preassert.guard.intercept import can_replace_kernels
from preassert.guard.ledger import LEDGER
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("fresh_guard")

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
FUSED_ON_THE_CPU = pytest.mark.skipif(TORCH < (2, 4), reason="fused optimizers on the CPU came with torch 2.4")
# The check of compressed indices is called by an operator that has a kernel, where no mode looks.
INSIDE_A_KERNEL = pytest.mark.skipif(not can_replace_kernels(), reason="this torch has no torch.library.get_kernel")

GOOD, BAD = torch.tensor([0, 4, 2]), torch.tensor([0, 5, 2])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.token(ids))


def weights_of(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- every family


def test_a_faulty_call_is_recorded_and_raised_at_the_end(faulty: Any) -> None:
    reached = False
    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="deferred"):  # noqa: PT012
        faulty.call()
        reached = True
    violation = caught.value
    assert (violation.hazard, violation.argument) == (faulty.hazard, faulty.argument)
    assert violation.operator in faulty.operators
    assert tuple("NaN" if e.value != e.value else e.value for e in violation.elements) == faulty.values
    assert tuple(element.position for element in violation.elements) == faulty.positions
    assert (reached, violation.mode) == (True, "deferred")
    assert violation.site is not None
    assert violation.site.file.endswith("conftest.py")
    assert (LEDGER.pending, LEDGER.counts) == ([], {})


def compressed() -> Tensor:
    crow, columns = torch.tensor([0, 1, 2]), torch.tensor([0, 9])
    return torch.sparse_csr_tensor(crow, columns, torch.ones(2), size=(2, 2), check_invariants=True)


@pytest.mark.parametrize(
    "call", [pytest.param(compressed, marks=INSIDE_A_KERNEL), lambda: F.embedding(torch.tensor([9]), torch.zeros(0, 2))]
)
def test_where_nothing_can_stand_in_it_is_raised_on_the_spot(call: Callable[[], Tensor]) -> None:
    reached = False
    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="deferred"):  # noqa: PT012
        call()
        reached = True
    assert (reached, caught.value.mode) == (False, "immediate")
    assert caught.value.elements[0].value == 9


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.cross_entropy(x, BAD),
        lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([-1, 0, 9])),
        lambda x: F.multi_margin_loss(x, BAD),
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[0, 5, -1, 0, 0]] * 3)),
        lambda x: F.embedding(torch.tensor([0, 3]), x).sum(),
        lambda x: F.embedding_bag(torch.tensor([0, 3]), x, torch.tensor([0, 9]), mode="sum").sum(),
        lambda x: x[torch.tensor([0, 3])].sum(),
        lambda x: x.index_select(1, torch.tensor([5])).sum(),
        lambda x: x.index_add(0, torch.tensor([3]), x[:1]).sum(),
        lambda x: x.index_copy(0, torch.tensor([3]), x[:1]).sum(),
        lambda x: x.index_fill(0, torch.tensor([3]), 0.0).sum(),
        lambda x: x.take(torch.tensor([15])).sum(),
        lambda x: x.gather(1, torch.tensor([[5]])).sum(),
        lambda x: x.scatter(1, torch.tensor([[5]]), 0.0).sum(),
        lambda x: x.scatter_add(1, torch.tensor([[5]]), x).sum(),
        lambda x: x.scatter_reduce(1, torch.tensor([[5]]), x, "amax").sum(),
        lambda x: torch.take_along_dim(x, torch.tensor([[5]]), 1).sum(),
        lambda x: F.binary_cross_entropy(x + 3, torch.ones_like(x)),
        lambda x: F.ctc_loss(x[:, None].log_softmax(-1), torch.tensor([[1, 7]]), torch.tensor([3]), torch.tensor([2])),
        lambda x: F.max_unpool2d(x[None, None], torch.full((1, 1, 3, 5), 99), 2).sum(),
    ],
)
def test_the_backward_pass_runs_on_sanitised_values_too(call: Callable[[Tensor], Tensor]) -> None:
    """Autograd saved the user's own indices: the contracts of the backward operators keep their kernels from them."""
    x = torch.randn(3, 5, requires_grad=True)
    with pytest.raises(preassert.Violation), preassert.guard(mode="deferred"):  # noqa: PT012
        call(x).backward()
        assert x.grad is not None
        assert len(LEDGER.pending) == 1  # the backward pass is not a fault of its own
        assert LEDGER.pending[0].mode == "deferred"


def test_sanitised_forward_and_backward_agree() -> None:
    """Both see the same stand-in: the gradient is that of the sanitised forward."""
    x = torch.randn(4, 3, requires_grad=True)
    ids = torch.tensor([0, 9, -5])
    weight = torch.randn(3, 3)
    with pytest.raises(preassert.Violation), preassert.guard(mode="deferred"):  # noqa: PT012
        out = F.embedding(ids, x)
        (out * weight).sum().backward()
        stand_in = ids.clamp(0, 3)
        assert torch.equal(out, x[stand_in])
        expected = torch.zeros(4, 3).index_add(0, stand_in, weight)
        assert x.grad is not None
        assert torch.equal(x.grad, expected)


def test_without_a_violation_nothing_differs() -> None:
    def run() -> list[Tensor]:
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(GOOD), GOOD).backward()
            optimizer.step()
        return [*weights_of(model), torch.get_rng_state()]

    plain = run()
    with preassert.guard(mode="deferred"):
        assert same(run(), plain)
    assert STATE.seen == 0


# --- boundaries


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, fused=True), marks=FUSED_ON_THE_CPU),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True), marks=FUSED_ON_THE_CPU),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
        lambda p: torch.optim.Rprop(p, lr=0.1),
        lambda p: torch.optim.NAdam(p, lr=0.1),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_the_weights_are_untouched_by_a_bad_batch(make: Callable[[Any], torch.optim.Optimizer], policy: str) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, targets: list[Tensor]) -> None:
        for target in targets:
            optimizer.zero_grad()
            F.cross_entropy(model(GOOD), target).backward()
            optimizer.step()

    reference = Classifier()
    train(reference, make(reference.parameters()), [GOOD, GOOD] if policy == "skip" else [GOOD])
    model = Classifier()
    optimizer = make(model.parameters())
    if policy == "skip":
        with preassert.guard(policy="skip"):
            train(model, optimizer, [GOOD, BAD, GOOD])
    else:
        with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation) as caught:
            train(model, optimizer, [GOOD, BAD])
        assert caught.value.elements[0].value == 5
    assert same(weights_of(model), weights_of(reference))


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_has_a_boundary_behind_it(make: Any, by_name: bool) -> None:
    model = Classifier()
    optimizer = make(model.parameters(), lr=0.1)
    before = weights_of(model)

    def closure() -> Tensor:
        """Forward and backward."""
        optimizer.zero_grad()
        loss = F.cross_entropy(model(GOOD), BAD)
        loss.backward()
        return loss

    with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation):
        optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert same(weights_of(model), before)
    with preassert.guard(policy="skip"):
        optimizer.step(closure)
    assert same(weights_of(model), before)


def test_an_optimizer_of_the_users_own() -> None:
    class Plain(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= parameter.grad

    model = Classifier()
    before = weights_of(model)
    with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation):  # noqa: PT012
        F.cross_entropy(model(GOOD), BAD).backward()
        Plain(model.parameters()).step()
    assert same(weights_of(model), before)


def test_flush_is_a_boundary() -> None:
    with preassert.guard(mode="deferred"):
        preassert.flush()
        F.embedding(torch.tensor([7]), torch.zeros(7, 1))
        with pytest.raises(preassert.Violation):
            preassert.flush()
        preassert.flush()  # told once


def test_the_end_of_an_inner_guard_is_a_boundary() -> None:
    with preassert.guard(mode="deferred"):
        with pytest.raises(preassert.Violation), preassert.guard(mode="deferred"):
            F.embedding(torch.tensor([7]), torch.zeros(7, 1))
        assert LEDGER.pending == []


def test_gradient_accumulation() -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights_of(model)
    with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation) as caught:  # noqa: PT012
        for target in (GOOD, BAD, GOOD, torch.tensor([9, 9, 9])):
            F.cross_entropy(model(GOOD), target).backward()
        optimizer.step()
    assert caught.value.elements[0].value == 5
    assert "1 more violation followed" in caught.value.__notes__[0]
    assert same(weights_of(model), before)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="came with torch 2.3")
def test_a_grad_scaler() -> None:
    def train(targets: list[Tensor], **settings: Any) -> list[Tensor]:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
        with preassert.guard(**settings):
            for target in targets:
                optimizer.zero_grad()
                with torch.autocast("cpu"):
                    loss = F.cross_entropy(model(GOOD), target)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return weights_of(model)

    with pytest.raises(preassert.Violation):
        train([GOOD, BAD], mode="deferred")
    assert same(train([GOOD, BAD, GOOD], policy="skip"), train([GOOD, GOOD]))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    """The forward is repeated inside backward: the same fault is not counted twice."""
    model = Classifier()
    before = weights_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones((), requires_grad=True)
    with preassert.guard(mode="deferred"), pytest.raises(preassert.Violation) as caught:  # noqa: PT012
        out = checkpoint(lambda s: model(torch.tensor([0, 9, 1])) * s, scale, use_reentrant=reentrant)
        F.cross_entropy(out, GOOD).backward()
        optimizer.step()
    assert caught.value.elements[0].value == 9
    assert not hasattr(caught.value, "__notes__")
    assert same(weights_of(model), before)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        with pytest.raises(preassert.Violation), preassert.guard(mode="deferred"):
            out = F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        assert out.is_inference()


# --- nothing is lost


def test_an_exception_of_the_user_does_not_hide_the_violation() -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="deferred"):  # noqa: PT012
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        raise KeyError("lost")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exit_goes_on_and_the_violation_is_printed(error: type[BaseException], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(error), preassert.guard(mode="deferred"):  # noqa: PT012
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        raise error
    assert "preassert.Violation: embedding-index-out-of-range\n" in capfd.readouterr().err


def test_a_generator_that_is_dropped() -> None:
    @preassert.guard(mode="deferred")
    def steps() -> Any:
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        yield 1

    generator = steps()
    next(generator)
    del generator
    gc.collect()
    assert STATE.last is not None
    assert STATE.last.elements[0].value == 9
    assert STATE.stack == []


ENDINGS = """
import os, signal, sys, torch, torch.nn.functional as F, preassert
preassert.install(mode="deferred")
F.embedding(torch.tensor([0, 9]), torch.zeros(3, 2))
print("after")
sys.stdout.flush()
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code", "full"),
    [
        ("", 0, True),
        ("raise KeyError('mine')", 1, True),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, False),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
    ],
)
def test_however_the_process_ends_the_report_is_on_stderr(ending: str, code: int, full: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ENDINGS.format(ending=ending), encoding="utf-8")
    done = run([str(script)])
    assert (done.returncode, done.stdout) == (code, "after\n")
    assert f"preassert: recorded embedding-index-out-of-range at {script}:4 (input[1] = 9, valid 0..2)" in done.stderr
    assert ("preassert.Violation: embedding-index-out-of-range\n" in done.stderr) is full


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F, preassert
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(3, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with preassert.guard(mode="deferred"):
    for step in range(6):
        target = torch.tensor([4 if rank == 1 and step == 2 else 0])
        optimizer.zero_grad()
        F.cross_entropy(model(torch.ones(1, 3)), target).backward()
        optimizer.step()
print("finished")
"""


def test_one_bad_rank_exits_at_once_and_the_others_do_not_hang(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS, encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "store")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in ranks]
    assert "preassert.Violation: target-out-of-range\n" in outputs[1][1]
    assert "rank: 1" in outputs[1][1]
    assert ranks[1].returncode == 1
    assert ranks[0].returncode != 0  # the broken connection, not a watchdog
    assert "finished" not in outputs[0][0]


# --- what is kept


def test_no_tensor_is_held_after_a_boundary() -> None:
    ids = torch.tensor([0, 9])
    table = torch.zeros(3, 2)
    held = [weakref.ref(ids), weakref.ref(table)]
    with preassert.guard(mode="deferred"):
        F.embedding(ids, table)
        with pytest.raises(preassert.Violation):
            preassert.flush()
        del ids, table
        gc.collect()
        assert [refer() for refer in held] == [None, None]


def test_later_violations_are_counted_and_not_all_kept() -> None:
    with preassert.guard(mode="deferred"):
        for _ in range(150):
            F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        assert (len(LEDGER.pending), LEDGER.pending_count) == (100, 150)
        with pytest.raises(preassert.Violation) as caught:
            preassert.flush()
    assert "149 more violations followed" in caught.value.__notes__[0]
    assert devicelog._logs == {}


def test_each_outermost_guard_begins_anew() -> None:
    for _ in range(2):
        with pytest.raises(preassert.Violation) as caught, preassert.guard(mode="deferred"):
            F.embedding(torch.tensor([9]), torch.zeros(3, 2))
        assert not hasattr(caught.value, "__notes__")
        assert sum(LEDGER.counts.values()) == 0


DYNAMO_FIRST = """
import torch, preassert, torch.nn.functional as F
from torch._dynamo import optimize
before = "before" in __import__("sys").argv
model = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if before:
    optimize("eager")
weights = model.weight.detach().clone()
try:
    with preassert.guard(mode="deferred"):
        if not before:
            optimize("eager")
        F.cross_entropy(model(torch.ones(1, 3)), torch.tensor([4])).backward()
        optimizer.step()
        print("stepped")
except preassert.Violation:
    print(torch.equal(weights, model.weight))
"""


@pytest.mark.parametrize("when", ["before", "inside"])
def test_dynamo_takes_no_boundary_away(when: str, tmp_path: Path) -> None:
    """In a process of its own: torch 2.2 takes the hooks off the steps once, at the first compilation."""
    script = tmp_path / "script.py"
    script.write_text(DYNAMO_FIRST, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), when], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True"], done.stderr
