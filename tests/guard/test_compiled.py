"""torch.compile under the guard: whole graphs, the user's line, no recompilation, caches that tell guarded from unguarded."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert
from preassert import Violation
from preassert.guard import compiled, selftest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(selftest.compiled_unavailable() is not None, reason=str(selftest.compiled_unavailable())),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.mix(x))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary: int = 17, positions: int = 8, width: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList([Block(width)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        where = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(where)  # LOOKUP
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())  # LOSS


def line_of(thing: object, mark: str) -> int:
    lines, start = inspect.getsourcelines(thing)  # type: ignore[arg-type]
    return start + next(number for number, line in enumerate(lines) if f"# {mark}" in line)


def batch(size: int = 2, length: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, 17, (size, length))
    return ids, ids.roll(-1, 1)


def test_gpt_names_line_module_and_value_in_one_whole_graph_without_recompiling() -> None:
    model = TinyGPT()
    step = torch.compile(model, fullgraph=True)
    with preassert.guard(mode="immediate"):
        ids, target = batch()
        step(ids, target).backward()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        bad = ids.clone()
        bad[1, 3] = 17
        with pytest.raises(Violation) as caught:
            step(bad, target)
        seen = caught.value
        assert (seen.hazard, seen.call, seen.module, seen.mode) == (
            "embedding-index-out-of-range",
            "F.embedding",
            "tokens",
            "compiled",
        )
        assert seen.site is not None
        assert seen.site.line == line_of(TinyGPT, "LOOKUP")
        assert (seen.elements[0].position, seen.elements[0].value, seen.lowest, seen.highest) == ((1, 3), 17, 0, 16)

        wrong = target.clone()
        wrong[0, 0] = -1
        with pytest.raises(Violation) as caught:
            step(ids, wrong)
        seen = caught.value
        assert (seen.hazard, seen.call) == ("target-out-of-range", "F.cross_entropy")
        assert seen.site is not None
        assert seen.site.line == line_of(TinyGPT, "LOSS")
        step(ids, target.masked_fill(target == 3, -100)).backward()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_dynamic_shapes_keep_one_graph_and_the_position_table_is_bounded() -> None:
    step = torch.compile(TinyGPT(), fullgraph=True, dynamic=True)
    with preassert.guard():
        for length in (3, 4, 5, 6, 7, 8):
            step(*batch(2, length)).backward()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with pytest.raises(Violation) as caught:
            step(*batch(2, 9))
    assert caught.value.module == "positions"
    assert [element.value for element in caught.value.elements] == [8]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_results_are_those_without_the_guard() -> None:
    torch.manual_seed(1)
    model = TinyGPT()
    ids, target = batch()

    def gradients() -> list[Tensor]:
        torch._dynamo.reset()
        model.zero_grad()
        loss = torch.compile(model, fullgraph=True)(ids, target)
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    plain = gradients()
    with preassert.guard():
        guarded = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, guarded, strict=True))


class Hashed(torch.autograd.Function):
    """Its hand-written backward forgets the modulo of its forward."""

    @staticmethod
    def forward(ctx: object, table: Tensor, keys: Tensor) -> Tensor:
        ctx.save_for_backward(keys)  # type: ignore[attr-defined]
        ctx.rows = table.shape[0]  # type: ignore[attr-defined]
        return table[keys % table.shape[0]]

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (keys,) = ctx.saved_tensors  # type: ignore[attr-defined]
        out = gradient.new_zeros(ctx.rows, gradient.shape[1])  # type: ignore[attr-defined]
        return out.index_add(0, keys, gradient), None  # BACKWARD


def test_a_fault_of_the_backward_pass_names_its_line() -> None:
    table = torch.ones(4, 2, requires_grad=True)
    function = torch.compile(lambda t, k: Hashed.apply(t, k).sum(), fullgraph=True)  # CALL
    with preassert.guard():
        function(table, torch.tensor([0, 3])).backward()
        # the partitioner may move the check into the forward graph: it needs nothing of the backward pass
        with pytest.raises(Violation) as caught:
            function(table, torch.tensor([0, 4])).backward()
    assert caught.value.hazard == "index-out-of-range"
    assert caught.value.site is not None
    lines = {line_of(Hashed, "BACKWARD")}
    if torch.__version__ < (2, 13):  # the tracer of 2.9 names the call for all that is inside an autograd.Function
        lines.add(line_of(test_a_fault_of_the_backward_pass_names_its_line, "CALL"))
    assert caught.value.site.line in lines


def test_deferred_runs_on_sanitised_values_and_raises_at_the_step() -> None:
    torch.manual_seed(1)
    model = TinyGPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with preassert.guard(mode="deferred"):
        step = torch.compile(model, fullgraph=True)
        ids, target = batch()
        step(ids.masked_fill(ids == int(ids[0, 0]), 99), target).backward()
        with pytest.raises(Violation) as caught:
            optimizer.step()
    assert caught.value.hazard == "embedding-index-out-of-range"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_decomposition_by_inductor_alone_does_not_see_the_fault() -> None:
    """What the guard adds: compiled BCE has no range check of its own."""

    def loss(p: Tensor) -> Tensor:
        return F.binary_cross_entropy(p, torch.ones(2))

    bad = torch.tensor([0.5, 1.5])
    torch.compile(loss, fullgraph=True)(bad)  # silent
    torch._dynamo.reset()
    with preassert.guard(), pytest.raises(Violation, match="probability-outside-unit-interval"):
        torch.compile(loss, fullgraph=True)(bad)


SCRIPT = """
import sys, torch, preassert
import torch.nn.functional as F
def look(ids, table):
    return F.embedding(ids, table)
if sys.argv[1] == "guarded":
    preassert.install()
f = torch.compile(look, fullgraph=True)
table = torch.ones(5, 2)
f(torch.tensor([0, 4]), table)
try:
    f(torch.tensor([0, 5]), table)
except preassert.Violation as violation:
    print("violation", violation.site.line)
except RuntimeError as error:
    print("plain")
print(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] > 0)
"""


def test_caches_on_disk_never_mix_guarded_and_unguarded_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def run(how: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(script), how], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        return done.stdout.split()

    assert run("plain")[0] == "plain"
    assert run("guarded") == ["violation", "5", "False"]
    assert run("guarded") == ["violation", "5", "True"]


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (None, None),
        ({"1": ("L['self'].tokens", nn.Embedding)}, "tokens"),
        ({"1": ("L['self']", TinyGPT), "2": ("L['self'].blocks.0.mix", nn.Linear)}, "blocks.0.mix"),
        ({"1": ("L['self']._modules['blocks']._modules['0']", Block)}, "blocks.0"),
        ({"1": ("L['criterion']", nn.CrossEntropyLoss)}, None),
    ],
)
def test_module_paths(stack: dict[str, object] | None, expected: str | None) -> None:
    assert compiled._module(stack) == expected
