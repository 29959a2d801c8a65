"""What a violation says: the call as the user made it, values where the user has them, the range, the line, the module."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert

pytestmark = pytest.mark.usefixtures("fresh_guard")

MODES = pytest.mark.parametrize("mode", ["immediate", "deferred"])


def violation_of(call: Callable[[], Any], **settings: Any) -> preassert.Violation:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(**settings):
        call()
    return caught.value


# --- the call as the user made it


@MODES
@pytest.mark.parametrize(
    ("call", "name", "argument", "position"),
    [
        (lambda: F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 3])), "F.cross_entropy", "target", (1,)),
        (lambda: nn.CrossEntropyLoss()(torch.randn(2, 3), torch.tensor([0, 3])), "F.cross_entropy", "target", (1,)),
        (lambda: nn.NLLLoss()(torch.randn(2, 3), torch.tensor([3, 0])), "F.nll_loss", "target", (0,)),
        (lambda: F.cross_entropy(torch.randn(2, 3, 4), torch.full((2, 4), 3)), "F.cross_entropy", "target", (0, 0)),
        (lambda: F.cross_entropy(torch.randn(1, 3, 2, 2, 2), torch.full((1, 2, 2, 2), 9)), "F.cross_entropy", "target", (0,) * 4),
        (lambda: F.cross_entropy(torch.randn(3), torch.tensor(3)), "F.cross_entropy", "target", ()),
        (lambda: nn.Embedding(3, 2)(torch.tensor([[0], [3]])), "F.embedding", "input", (1, 0)),
        (lambda: nn.EmbeddingBag(3, 2)(torch.tensor([0, 3]), torch.tensor([0])), "F.embedding_bag", "input", (1,)),
        (lambda: nn.BCELoss()(torch.tensor([[0.5], [2.0]]), torch.ones(2, 1)), "F.binary_cross_entropy", "input", (1, 0)),
        (lambda: torch.zeros(2, 3)[:, torch.tensor([3])], "tensor[index]", "indices[1]", (0,)),
        (lambda: torch.zeros(2, 3)[torch.tensor([0]), torch.tensor([3])], "tensor[index]", "indices[1]", (0,)),
        (lambda: torch.zeros(2, 3).gather(1, torch.tensor([[3]])), "torch.gather", "index", (0, 0)),
        (lambda: torch.multinomial(torch.tensor([1.0, float("nan")]), 1), "torch.multinomial", "self", (1,)),
        (lambda: torch.zeros(3).scatter_(0, torch.tensor([3]), 1.0), "Tensor.scatter_", "index", (0,)),
    ],
)
def test_the_call_its_argument_and_the_place(
    mode: str, call: Callable[[], Any], name: str, argument: str, position: tuple[int, ...]
) -> None:
    violation = violation_of(call, mode=mode)
    assert (violation.call, violation.named_argument, violation.elements[0].position) == (name, argument, position)
    assert violation.argument == argument.partition("[")[0]  # by name; ``place`` says which tensor of a list
    assert f"{argument}[" in str(violation) or not position


def test_arguments_are_those_of_the_call() -> None:
    violation = violation_of(lambda: F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 3]), torch.ones(3)))
    assert [str(entry) for entry in violation.arguments] == ["input: float32[2, 3]", "target: int64[2]", "weight: float32[3]"]
    assert str(violation).split("\n")[1] == (
        "  F.cross_entropy(input: float32[2, 3], target: int64[2], weight: float32[3]): "
        "target[1] = 3, valid 0..2 or ignore_index=-100"
    )


# --- numbers


def test_counts_and_extremes() -> None:
    ids = torch.tensor([[0, 50, 2], [-7, 60, 2]])
    violation = violation_of(lambda: F.embedding(ids, torch.zeros(50, 1)), max_elements=2)
    assert (violation.count, violation.total, violation.minimum, violation.maximum) == (3, 6, -7, 60)
    assert [(e.position, e.value) for e in violation.elements] == [((0, 1), 50), ((1, 0), -7)]
    assert (violation.lowest, violation.highest, violation.valid) == (0, 49, "0..49")
    assert "  3 of 6 values are outside (min -7, max 60)" in str(violation)


def test_nan_is_named_and_left_out_of_the_extremes() -> None:
    violation = violation_of(lambda: torch.bernoulli(torch.tensor([0.25, float("nan"), 0.75])))
    assert (violation.count, violation.minimum, violation.maximum) == (1, 0.25, 0.75)
    assert "self[1] = NaN" in str(violation)
    assert json.loads(json.dumps(violation.to_dict(), allow_nan=False))["elements"] == [{"position": [1], "value": "NaN"}]


def test_infinities_travel_as_words() -> None:
    violation = violation_of(lambda: torch.multinomial(torch.tensor([1.0, float("inf")]), 1))
    data = violation.to_dict()
    assert data["elements"][0]["value"] == "inf"
    assert data["maximum"] == "inf"
    assert "1 infinite" in str(violation)


def test_ignore_index_and_sentinels_are_legal() -> None:
    violation = violation_of(
        lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([255, 4, 9]), ignore_index=255), sentinels=[9]
    )
    assert violation.legal == (255, 9)
    assert [element.value for element in violation.elements] == [4]


def test_what_is_said_of_a_whole_tensor() -> None:
    violation = violation_of(lambda: torch.zeros(4).masked_scatter_(torch.ones(4, dtype=torch.bool), torch.ones(3)))
    assert (violation.elements, violation.valid) == ((), "ones in the mask <= 3")
    assert "ones in the mask: 4" in str(violation)
    message = violation_of(lambda: torch._assert_async(torch.tensor(False), "no token left"))
    assert "no token left" in str(message)


# --- the likely cause


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.cross_entropy(torch.randn(5, 5), torch.tensor([1, 2, 3, 4, 5])), "start at 1"),
        (lambda: F.cross_entropy(torch.randn(1, 3, 1, 2), torch.tensor([[[0, 255]]])), "255"),
        (lambda: F.cross_entropy(torch.randn(2, 3), torch.tensor([-1, 0])), "-1"),
        (lambda: F.embedding(torch.tensor([10]), torch.zeros(10, 1)), "10"),
        (lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1), "NaN"),
    ],
)
def test_a_likely_cause_is_drawn_from_the_numbers(call: Callable[[], Any], words: str) -> None:
    violation = violation_of(call)
    assert violation.likely is not None
    assert words in violation.likely or words in str(violation)
    assert str(violation).split("\n")[-1].endswith(f"Next: preassert hazards {violation.hazard}")


# --- where


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({"token": nn.Embedding(5, 2)})

    def forward(self, ids: Tensor) -> Tensor:
        return self.embeddings["token"](ids)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(ids)


@MODES
def test_the_module_path(mode: str) -> None:
    violation = violation_of(lambda: Model()(torch.tensor([5])), mode=mode)
    assert violation.module == "encoder.embeddings.token"
    assert violation.site is not None
    assert violation.site.function.endswith("Encoder.forward") or violation.site.function == "forward"
    assert "self.embeddings" in str(violation.site.source)
    assert violation_of(lambda: F.embedding(torch.tensor([5]), torch.zeros(5, 1)), mode=mode).module is None


@MODES
def test_a_loss_is_no_module_of_the_model(mode: str) -> None:
    assert violation_of(lambda: nn.CrossEntropyLoss()(torch.randn(1, 3), torch.tensor([3])), mode=mode).module is None


@MODES
def test_the_rank_is_that_of_the_launcher(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    violation = violation_of(lambda: F.embedding(torch.tensor([5]), torch.zeros(5, 1)), mode=mode)
    assert violation.rank == 3
    assert "rank: 3" in str(violation)


def test_control_characters_of_file_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    name = str(tmp_path / "tr\x1b[31main.py")
    scope: dict[str, Any] = {}
    exec(compile("import torch\ndef step(): return torch.zeros(3)[torch.tensor([3])]\n", name, "exec"), scope)
    text = str(violation_of(scope["step"]))
    assert "tr\\x1b[31main.py:2 in step" in text
    assert "\x1b" not in text + str(violation_of(lambda: torch._assert_async(torch.tensor(0), "\x1b[2J")))


def test_a_real_violation_travels_through_pickle() -> None:
    violation = violation_of(lambda: Model()(torch.tensor([5])))
    again = pickle.loads(pickle.dumps(violation))
    assert (type(again), str(again), again.to_dict()) == (preassert.Violation, str(violation), violation.to_dict())


def test_it_holds_no_tensor_and_no_frame() -> None:
    """Kept in a list of failures for the length of a run, it must not keep the batch alive."""
    violation = violation_of(lambda: F.embedding(torch.tensor([5]), torch.zeros(5, 1)))
    seen: list[Any] = list(vars(violation).values())
    for value in seen:
        assert not isinstance(value, Tensor)
        if isinstance(value, (list, tuple)):
            seen.extend(value)


@MODES
def test_what_the_guard_keeps_of_it_does_not_keep_the_batch_alive(mode: str) -> None:
    """A raised exception holds its frames by the traceback, and they hold the batch."""

    def step() -> None:
        held.append(weakref.ref(batch := torch.tensor([5])))
        F.embedding(batch, torch.zeros(5, 1))
        preassert.flush()

    held: list[weakref.ref[Tensor]] = []
    with preassert.guard(mode=mode):
        try:
            step()
        except preassert.Violation as violation:
            assert violation.elements[0].value == 5  # noqa: PT017
        gc.collect()
        assert held[0]() is None


def test_deferred_and_immediate_say_the_same() -> None:
    def call() -> None:
        F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))

    immediate, deferred = (violation_of(call, mode=mode).to_dict() for mode in ("immediate", "deferred"))
    assert (immediate.pop("mode"), deferred.pop("mode")) == ("immediate", "deferred")
    assert immediate == deferred
