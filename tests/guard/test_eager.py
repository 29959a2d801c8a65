"""Immediate mode: every family raises with the right fields; guards nest, decorate, end in any order, and cost no exactness."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import preassert
from preassert.guard import intercept, interception
from preassert.guard.state import STATE

pytestmark = pytest.mark.usefixtures("fresh_guard")

BAD = torch.tensor([0, 7])


def faulty_call() -> Tensor:
    return F.embedding(BAD, torch.zeros(3, 2))


def fine_call() -> Tensor:
    return F.embedding(torch.tensor([0, 2]), torch.zeros(3, 2))


def shown(value: float) -> Any:
    return "NaN" if value != value else value


# --- families


def test_a_faulty_call_raises_with_its_fields(faulty: Any) -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        faulty.call()
    violation = caught.value
    assert (violation.hazard, violation.argument) == (faulty.hazard, faulty.argument)
    assert violation.operator in faulty.operators
    assert tuple(shown(element.value) for element in violation.elements) == faulty.values
    assert tuple(element.position for element in violation.elements) == faulty.positions
    assert (violation.lowest, violation.highest) == (faulty.lowest, faulty.highest)
    assert violation.count >= max(1, len(faulty.values))
    assert violation.mode == "immediate"
    assert violation.site is not None
    assert violation.site.file.endswith("conftest.py")
    assert violation.site.source is not None
    assert STATE.last is not None
    assert STATE.last.to_dict() == violation.to_dict()
    assert str(violation).startswith(faulty.hazard + "\n")


def test_the_guard_raises_before_the_kernel_runs() -> None:
    """``index_put_`` on the CPU writes what comes before the bad index; under the guard nothing is written."""
    values = torch.zeros(5)
    with pytest.raises(preassert.Violation), preassert.guard():
        values[torch.tensor([0, 1, 9])] = 1.0
    assert values.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, -100, 3])), 3),
        (lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 255, 3]), ignore_index=255), 3),
        (lambda: F.nll_loss(torch.randn(3, 4), torch.tensor([0, 250, 3], dtype=torch.uint8)[[0, 2, 2]]), 3),
        (lambda: torch.randn(5)[torch.tensor([-5, 4])], 2),
        (lambda: torch.randn(5)[torch.tensor([True, False, True, True, False])], 3),
        (lambda: F.multilabel_margin_loss(torch.randn(1, 3), torch.tensor([[0, -1, -1]])), 3),
        (lambda: F.binary_cross_entropy(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])), 2),
        (lambda: torch.randn(3).index_select(0, torch.tensor(2)), 1),
        (lambda: torch.tensor(1.0).gather(0, torch.tensor(0)), 1),
        (lambda: F.embedding(torch.empty(0, dtype=torch.int64), torch.empty(0, 4)), 0),
        (lambda: torch.empty(0)[torch.empty(0, dtype=torch.int64)], 0),
        (lambda: torch.empty(0, 4).scatter_add_(0, torch.empty(0, 4, dtype=torch.int64), torch.empty(0, 4)), 0),
        (lambda: F.cross_entropy(torch.randn(0, 4), torch.empty(0, dtype=torch.int64), reduction="sum"), 0),
        (lambda: F.embedding_bag(torch.tensor([1, 2]), torch.randn(3, 2), torch.tensor([0, 2])), 2),
        (lambda: torch.bernoulli(torch.tensor([0, 1], dtype=torch.float64)), 2),
        (lambda: torch.repeat_interleave(torch.tensor([0, 3])), 2),
    ],
)
def test_a_legal_call_passes(call: Callable[[], Any], values: int) -> None:
    with preassert.guard():
        call()
    assert STATE.seen == 0


def test_byte_targets_are_checked() -> None:
    target = torch.tensor([0, 255], dtype=torch.uint8)
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        F.nll_loss(torch.randn(2, 4), target)
    assert [element.value for element in caught.value.elements] == [255]
    with preassert.guard():
        F.nll_loss(torch.randn(2, 4), torch.tensor([0, 3], dtype=torch.uint8))


def test_zero_dimensional_and_last_rows() -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        torch.randn(3).index_select(0, torch.tensor(3))
    assert caught.value.elements[0].position == ()
    with pytest.raises(preassert.Violation), preassert.guard():
        torch.empty(0)[torch.tensor([0])]


@pytest.mark.parametrize("size", [31, 32, 33, 1000, 100_000])
def test_a_bad_element_is_found_at_every_size(size: int) -> None:
    for place in (0, size // 2, size - 1):
        for value in (-1, 10):
            indices = torch.zeros(size, dtype=torch.int64)
            indices[place] = value
            with pytest.raises(preassert.Violation) as caught, preassert.guard():
                F.embedding(indices, torch.zeros(10, 1))
            assert (caught.value.elements[0].position, caught.value.elements[0].value) == ((place,), value)
            assert caught.value.count == 1


def test_large_magnitudes_do_not_wrap() -> None:
    for value in (2**31, 2**62, -(2**63), 2**63 - 1):
        with pytest.raises(preassert.Violation) as caught, preassert.guard():
            F.embedding(torch.tensor([value]), torch.zeros(10, 1))
        assert caught.value.elements[0].value == value


def test_non_contiguous_and_expanded_indices() -> None:
    table = torch.arange(40).reshape(8, 5).t()  # bad value of 39 at [4, 7]
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        F.embedding(table, torch.zeros(39, 1))
    assert caught.value.elements[0].position == (4, 7)
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        F.embedding(torch.tensor([[5]]).expand(2, 3), torch.zeros(5, 1))
    assert (caught.value.count, caught.value.elements[-1].position) == (6, (1, 1))


# --- options


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_skip_leaves_out_an_operator_or_a_hazard() -> None:
    broken = torch.tensor([[3]])
    with preassert.guard(skip="aten::take_along_dim"):
        torch.take_along_dim(torch.zeros(2, 3), broken, 1)
    with preassert.guard(skip=["gather-index-out-of-range"]):
        torch.take_along_dim(torch.zeros(2, 3), broken, 1)
    with pytest.raises(preassert.Violation), preassert.guard(skip=["gather"]):
        torch.take_along_dim(torch.zeros(2, 3), broken, 1)


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_devices_restricts_the_guard() -> None:
    with preassert.guard(devices=["cuda"]):
        torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)
    with pytest.raises(preassert.Violation), preassert.guard(devices=["cpu:0"]):
        torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_a_sentinel_is_legal_everywhere() -> None:
    index = torch.tensor([[7], [0]])
    with preassert.guard(sentinels=[7]):
        torch.take_along_dim(torch.zeros(2, 3), index, 1)
        with pytest.raises(preassert.Violation) as caught:
            torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[7], [8]]), 1)
    assert [element.value for element in caught.value.elements] == [8]


def test_a_sentinel_that_the_dtype_cannot_hold_is_no_trouble() -> None:
    with preassert.guard(sentinels=[-100, 300]), pytest.raises(preassert.Violation) as caught:
        F.nll_loss(torch.randn(2, 4), torch.tensor([0, 9], dtype=torch.uint8))
    assert [element.value for element in caught.value.elements] == [9]


def test_max_elements_bounds_the_report() -> None:
    with pytest.raises(preassert.Violation) as caught, preassert.guard(max_elements=2):
        F.embedding(torch.full((100,), 9), torch.zeros(3, 1))
    assert (len(caught.value.elements), caught.value.count) == (2, 100)
    assert "(98 more)" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mode": "eager"}, "mode"),
        ({"policy": "drop"}, "policy"),
        ({"mode": "immediate", "policy": "skip"}, "policy 'skip'"),
        ({"skip": ["gatherer"]}, "gatherer"),
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.5}, "budget"),
        ({"max_elements": 0}, "max_elements"),
        ({"max_violations": -1}, "max_violations"),
        ({"quarantine": "bad.jsonl"}, "quarantine"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(preassert.UsageError, match=named):
        preassert.guard(**settings)
    assert interception() == "none"


@pytest.mark.parametrize("made", [preassert.guard, preassert.guard.guard, preassert.install], ids=["room", "guard", "install"])
def test_the_options_can_be_asked_for(made: Any) -> None:
    parameters = inspect.signature(made).parameters
    assert {"mode", "policy", "skip", "devices", "sentinels", "budget"} <= set(parameters)
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["mode"].default == "auto"
    with pytest.raises(TypeError, match="moed"):
        made(moed="deferred")


# --- the manners of a context manager


@pytest.mark.usefixtures("wrapping_take_along_dim")
def test_guards_nest_and_the_innermost_decides() -> None:
    with preassert.guard():
        with preassert.guard(skip=["take_along_dim"]):
            torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)
        with pytest.raises(preassert.Violation):
            torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)
        with preassert.guard(), pytest.raises(preassert.Violation):
            faulty_call()
        assert interception() != "none"
    assert interception() == "none"


def test_one_guard_object_may_be_entered_again_inside_itself() -> None:
    guard = preassert.guard()
    with guard, guard:
        with guard:
            pass
        with pytest.raises(preassert.Violation):
            faulty_call()
    assert STATE.stack == []
    with guard, pytest.raises(preassert.Violation):
        faulty_call()
    assert interception() == "none"


@pytest.mark.parametrize("error", [KeyError("user"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_exception_of_the_user_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, preassert.guard():
        raise error
    assert caught.value is error
    assert interception() == "none"


def test_the_guard_works_again_after_a_violation() -> None:
    with preassert.guard():
        for _ in range(3):
            with pytest.raises(preassert.Violation):
                faulty_call()
            assert fine_call().shape == (2, 2)


@pytest.mark.parametrize("as_given", [list, torch.tensor])
@pytest.mark.parametrize(
    ("inputs", "targets", "argument", "value", "valid"),
    [
        ([6, 7], [2, 2], "input_lengths", 7, "0..6"),
        ([6, 6], [2, 3], "target_lengths", 3, "0..2"),
        ([6, 6], [-1, 2], "target_lengths", -1, "0..2"),
    ],
)
def test_lengths_of_ctc(as_given: Any, inputs: list[int], targets: list[int], argument: str, value: int, valid: str) -> None:
    scores, labels = torch.randn(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 4]])
    with pytest.raises(preassert.Violation, match=argument) as caught, preassert.guard(mode="deferred"):
        F.ctc_loss(scores, labels, as_given(inputs), as_given(targets))
    assert (caught.value.hazard, caught.value.argument, caught.value.valid) == ("ctc-target-invalid", argument, valid)
    assert [element.value for element in caught.value.elements] == [value]


def test_a_decorated_function() -> None:
    @preassert.guard()
    def step(rows: int, *, shift: int = 0) -> int:
        """Doc."""
        faulty_call()
        return rows + shift

    assert (step.__name__, step.__doc__) == ("step", "Doc.")
    with pytest.raises(preassert.Violation) as caught:
        step(1)
    assert caught.value.site is not None
    assert caught.value.site.function == "faulty_call"
    assert interception() == "none"


@pytest.mark.usefixtures("replaced_kernels")
def test_between_the_calls_of_a_decorated_function_the_kernels_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch._C._dispatch_dump("aten::gather")
    installed: list[Any] = []
    install = intercept.Installation.install
    monkeypatch.setattr(intercept.Installation, "install", lambda self: installed.append(self) or install(self))

    @preassert.guard()
    def step(bad: bool) -> Any:
        return faulty_call() if bad else fine_call()

    step(False)
    with pytest.raises(preassert.Violation):
        step(True)
    with preassert.guard():
        step(False)
    assert len(installed) == 1
    with pytest.raises((IndexError, RuntimeError)) as caught:
        faulty_call()
    assert not isinstance(caught.value, preassert.Violation)
    preassert.uninstall()
    assert torch._C._dispatch_dump("aten::gather") == before
    step(False)
    assert len(installed) == 2


@pytest.mark.usefixtures("replaced_kernels")
def test_a_decorated_step_knows_the_sample_of_a_loader_outside() -> None:
    labels = torch.arange(40) % 5
    labels[13] = 5

    @preassert.guard()
    def step(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target)

    def epoch() -> None:
        for logits, target in DataLoader(TensorDataset(torch.randn(40, 5), labels), batch_size=4):
            step(logits, target)

    with pytest.raises(preassert.Violation) as caught:
        epoch()
    assert caught.value.sample is not None
    assert caught.value.sample.indices == (13,)


def test_a_decorated_coroutine_function() -> None:
    @preassert.guard()
    async def step(bad: bool) -> str:
        await asyncio.sleep(0)
        if bad:
            faulty_call()
        return "done"

    assert asyncio.iscoroutinefunction(step)
    assert asyncio.run(step(False)) == "done"
    with pytest.raises(preassert.Violation):
        asyncio.run(step(True))
    assert interception() == "none"


def test_a_decorated_generator_function_is_guarded_only_while_it_lives() -> None:
    @preassert.guard()
    def batches() -> Iterator[int]:
        received = yield 1
        if received == "bad":
            faulty_call()
        yield 2

    generator = batches()
    assert interception() == "none"
    assert next(generator) == 1
    with pytest.raises(preassert.Violation):
        generator.send("bad")  # type: ignore[attr-defined]
    assert interception() == "none"
    generator = batches()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert interception() == "none"


def test_a_decorated_async_generator_function() -> None:
    @preassert.guard()
    async def batches() -> Any:
        yield 1
        faulty_call()
        yield 2

    async def run() -> list[int]:
        return [batch async for batch in batches()]

    with pytest.raises(preassert.Violation):
        asyncio.run(run())
    assert interception() == "none"


@pytest.mark.usefixtures("replaced_kernels")
def test_guards_of_two_threads_end_in_any_order() -> None:
    entered, leave = threading.Event(), threading.Event()
    found: list[type[BaseException]] = []

    def other() -> None:
        with preassert.guard():
            entered.set()
            leave.wait(10)
            try:
                faulty_call()
            except preassert.Violation as violation:
                found.append(type(violation))

    thread = threading.Thread(target=other)
    with preassert.guard(skip=["take_along_dim"]):
        thread.start()
        entered.wait(10)
    assert interception() != "none"
    leave.set()
    thread.join(10)
    assert found == [preassert.Violation]
    assert interception() == "none"


def test_install_and_uninstall() -> None:
    preassert.install()
    try:
        with pytest.raises(preassert.Violation):
            faulty_call()
        preassert.install(skip=["embedding"])  # replaces the settings
        assert len(STATE.stack) == 1
        with preassert.guard(), pytest.raises(preassert.Violation):
            faulty_call()
        with pytest.raises(IndexError):  # torch's own
            faulty_call()
    finally:
        preassert.uninstall()
    preassert.uninstall()  # nothing to do
    assert interception() == "none"


def test_uninstall_inside_a_block_leaves_the_block_guarded() -> None:
    preassert.install()
    with preassert.guard():
        preassert.uninstall()
        with pytest.raises(preassert.Violation):
            faulty_call()
    assert interception() == "none"


# --- the dispatcher


def dumps() -> dict[str, str]:
    from preassert.contracts.table import table
    from preassert.guard.intercept import overload_of

    return {name: torch._C._dispatch_dump(name) for name in table() if overload_of(name) is not None}


@pytest.mark.usefixtures("replaced_kernels")
def test_the_dispatcher_is_restored_exactly() -> None:
    before = dumps()
    assert len(before) > 100
    with preassert.guard():
        during = dumps()
        with preassert.guard():
            assert dumps() == during
    assert dumps() == before
    changed = [name for name in before if before[name] != during[name]]
    assert len(changed) > 0.8 * len(before)  # the check above can fail
    preassert.install()
    preassert.uninstall()
    assert dumps() == before


@pytest.mark.usefixtures("replaced_kernels")
def test_the_computed_tables_are_restored_exactly() -> None:
    names = list(dumps())
    before = [torch._C._dispatch_dump_table(name) for name in names]
    with preassert.guard():
        assert [torch._C._dispatch_dump_table(name) for name in names] != before
    assert [torch._C._dispatch_dump_table(name) for name in names] == before


def test_every_row_that_this_torch_knows_is_intercepted() -> None:
    from preassert import guard as room
    from preassert.contracts.table import table
    from preassert.guard.intercept import overload_of

    with preassert.guard():
        covered = {operator for operator, _key in room._installation.operators()}
    missing = {
        name
        for name, row in table().items()
        if name not in covered
        and overload_of(name) is not None
        and (row.level == "composite" or torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))
    }
    assert missing == set()


# --- neutrality


def small_step(seed: int) -> list[Tensor]:
    """Forward and backward through most families: the results, the gradients and what the random generator gives next."""
    torch.manual_seed(seed)
    table = torch.randn(11, 6, requires_grad=True)
    ids = torch.randint(0, 11, (4, 3))
    hidden = F.dropout(F.embedding(ids, table), 0.5)
    logits = hidden.sum(1) + F.embedding_bag(ids, table.detach(), mode="sum")
    target = torch.tensor([0, 5, -100, 2])
    loss = F.cross_entropy(logits, target, label_smoothing=0.1) + F.multi_margin_loss(logits.detach(), ids[:, 0] % 6)
    picked = logits.gather(1, ids[:, :1] % 6) + torch.take_along_dim(logits, ids[:, 1:2] % 6, 1)
    loss = loss + picked.sum() + logits[ids[:, 0] % 4].mean() + logits.index_select(1, ids[:, 2] % 6).sum()
    loss = loss + F.binary_cross_entropy(logits.sigmoid(), torch.rand(4, 6))
    grad = torch.autograd.grad(loss, table, create_graph=True)[0]
    second = torch.autograd.grad(grad.square().sum(), table)[0]
    drawn = torch.multinomial(logits.softmax(-1), 5, replacement=True)
    return [loss, grad, second, drawn, torch.bernoulli(logits.sigmoid()), torch.rand(3), torch.get_rng_state()]


def test_results_gradients_and_random_numbers_are_bit_identical() -> None:
    plain = small_step(3)
    with preassert.guard():
        guarded = small_step(3)
    for one, other in zip(plain, guarded, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "call",
    [
        lambda table, ids: F.embedding(ids.t(), table),
        lambda table, ids: table.t().gather(1, ids),
        lambda table, ids: table.t()[:, ids],
        lambda table, ids: torch.take_along_dim(table.t(), ids, 1),
        lambda table, ids: table.to(memory_format=torch.contiguous_format).index_select(1, ids[0]),
    ],
)
def test_strides_are_those_of_the_plain_call(call: Callable[[Tensor, Tensor], Tensor]) -> None:
    table, ids = torch.randn(5, 6), torch.randint(0, 5, (6, 4))
    plain = call(table, ids)
    with preassert.guard():
        guarded = call(table, ids)
    assert (plain.stride(), plain.storage_offset()) == (guarded.stride(), guarded.storage_offset())
    assert torch.equal(plain, guarded)


def test_out_and_in_place_forms_write_where_they_are_told() -> None:
    source, index = torch.arange(6.0).reshape(2, 3), torch.tensor([[2], [0]])
    with preassert.guard():
        out = torch.empty(2, 1)
        assert torch.gather(source, 1, index, out=out) is out
        assert out.tolist() == [[2.0], [3.0]]
        target = torch.zeros(2, 3)
        version = target._version
        assert target.scatter_(1, index, 5.0) is target
        assert target._version == version + 1
        assert target.tolist() == [[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]]
        with pytest.raises(preassert.Violation):
            torch.gather(source, 1, torch.tensor([[3]]), out=out)


def test_the_index_is_not_written_to() -> None:
    index = torch.tensor([0, 9])
    with preassert.guard(mode="deferred", policy="ignore"):
        F.cross_entropy(torch.randn(2, 3), index)
    assert index.tolist() == [0, 9]
    assert index._version == 0


def test_errors_of_torch_are_not_changed() -> None:
    """Wrong dtypes and shapes are not ours; torch's own words come through."""
    calls: list[Callable[[], Any]] = [
        lambda: F.embedding(torch.tensor([0.5]), torch.zeros(3, 2)),
        lambda: torch.zeros(3).gather(0, torch.tensor([0.5])),
        lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1])),
        lambda: torch.zeros(3, 2).index_select(5, torch.tensor([0])),
        lambda: torch.multinomial(torch.ones(2), 5),
        lambda: F.one_hot(torch.tensor([0.5]), 3),
        lambda: torch.take_along_dim(torch.zeros(3), torch.tensor([[0]]), 4),
        lambda: torch.zeros(3)[torch.tensor([0.5])],
        lambda: torch.zeros(3).index_add_(0, torch.tensor([[0]]), torch.zeros(1)),
        lambda: F.binary_cross_entropy(torch.tensor([1, 0]), torch.ones(2)),
        lambda: torch.zeros(2, 2).scatter_(3, torch.tensor([[0]]), 1.0),
        lambda: F.embedding(torch.tensor([1j]), torch.zeros(3, 2)),
        lambda: F.max_unpool2d(torch.zeros(2), torch.tensor([0]), 2),
        lambda: F.nll_loss(torch.tensor(1.0), torch.tensor(0)),
        lambda: torch.multinomial(torch.tensor(1.0), 1),
    ]
    for call in calls:
        with pytest.raises(Exception) as plain:  # whatever torch says
            call()
        with pytest.raises(type(plain.value)) as guarded, preassert.guard():
            call()
        assert not isinstance(guarded.value, preassert.Violation)
        assert str(guarded.value) == str(plain.value)


def test_nothing_is_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with preassert.guard():
                small_step(1)
        with preassert.guard(mode="deferred"):
            small_step(1)


def test_warnings_of_torch_come_through_once() -> None:
    def plain() -> None:
        values = torch.arange(6.0).reshape(2, 3)
        torch.gather(values, 1, torch.tensor([[0]]), out=torch.empty(5))  # resizes: warned about

    def caught(run: Callable[[], None]) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run()
        return [str(entry.message)[:60] for entry in seen]

    expected = caught(plain)

    def guarded() -> None:
        with preassert.guard():
            plain()

    assert caught(guarded) == expected


def test_the_site_is_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\ndef step(ids):\n    return torch.zeros(3)[ids]\n", encoding="utf-8")
    scope: dict[str, Any] = {}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), scope)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(preassert.Violation) as caught, preassert.guard():
        scope["step"](torch.tensor([3]))
    site = caught.value.site
    assert site is not None
    assert (site.file, site.line, site.function, site.source) == ("train.py", 4, "step", "return torch.zeros(3)[ids]")
