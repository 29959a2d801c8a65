"""Other overrides of the same operators: the guard stands on top of them, they go on working, and all goes back in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import preassert

pytestmark = pytest.mark.usefixtures("fresh_guard")

registry = pytest.importorskip("torch._native.registry")
OPERATOR, KEY, DSL = "embedding", "CPU", "preassert_test"
# since 2.15 an override may be of another namespace than aten
INSTALLER, REMOVER = (
    ("_install_override", "_destroy_override")
    if hasattr(registry, "_install_override")
    else ("_install_aten_override", "_destroy_aten_override")
)
TABLE = torch.arange(6.0).reshape(3, 2)
GOOD, BAD = torch.tensor([0, 2]), torch.tensor([0, 3])


class Native:
    """A kernel of a fake kernel language, as torch's own packages register them."""

    def __init__(self) -> None:
        self.calls = 0

    def wanted(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def run(self, weight: Tensor, indices: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.calls += 1
        return weight.index_select(0, indices.reshape(-1).clamp(0, 2)).reshape(*indices.shape, -1) + 100.0


@pytest.fixture
def native() -> Iterator[Native]:
    made = Native()
    registry.register_op_override(DSL, "aten", OPERATOR, KEY, made.wanted, made.run)
    registry.reenable_op_overrides(enable_dsl_names=DSL)
    yield made
    registry.deregister_op_overrides(disable_dsl_names=DSL)
    for nodes in registry._graphs.values():
        nodes[:] = [node for node in nodes if node.dsl_name != DSL]


def look_up(ids: Tensor = GOOD) -> Tensor:
    return F.embedding(ids, TABLE)


def assert_guarded() -> None:
    with pytest.raises(preassert.Violation):
        look_up(BAD)


def test_the_guard_chains_to_an_override_below_it(native: Native) -> None:
    plain = look_up()
    assert plain[0, 0] == 100.0
    before = torch._C._dispatch_dump("aten::embedding")
    with preassert.guard():
        calls = native.calls
        assert torch.equal(look_up(), plain)
        assert native.calls == calls + 1
        assert_guarded()
        assert native.calls == calls + 1  # stopped above it
    assert torch._C._dispatch_dump("aten::embedding") == before
    assert torch.equal(look_up(), plain)


def test_an_override_that_is_installed_later_goes_below(native: Native) -> None:
    registry.deregister_op_overrides(disable_dsl_names=DSL)
    before = torch._C._dispatch_dump("aten::embedding")
    with preassert.guard():
        assert look_up()[0, 0] == 0.0
        registry.reenable_op_overrides(enable_dsl_names=DSL)
        assert look_up()[0, 0] == 100.0
        assert_guarded()
        registry.deregister_op_overrides(disable_dsl_names=DSL)
        assert look_up()[0, 0] == 0.0
        assert_guarded()
        registry.reenable_op_overrides(enable_dsl_names=DSL)
        registry.reenable_op_overrides(enable_dsl_names=DSL)  # installed over itself
        assert look_up()[0, 0] == 100.0
        assert_guarded()
    assert look_up()[0, 0] == 100.0
    registry.deregister_op_overrides(disable_dsl_names=DSL)
    assert torch._C._dispatch_dump("aten::embedding") == before


def test_the_registry_is_left_as_it_was(native: Native) -> None:
    functions = [getattr(registry, name) for name in (INSTALLER, REMOVER)]
    with preassert.guard():
        assert getattr(registry, INSTALLER) is not functions[0]
        with preassert.guard():
            pass
        assert getattr(registry, INSTALLER) is not functions[0]
    assert [getattr(registry, name) for name in (INSTALLER, REMOVER)] == functions


def test_an_override_removed_after_the_guard_has_gone(native: Native) -> None:
    with preassert.guard():
        assert look_up()[0, 0] == 100.0
    registry.deregister_op_overrides(disable_dsl_names=DSL)
    assert look_up()[0, 0] == 0.0


def test_a_library_of_the_users_own_below() -> None:
    library = torch.library.Library("aten", "IMPL")
    below = torch.library.get_kernel("aten::take", "CPU")

    def take(keyset: Any, *args: Any) -> Tensor:
        return below.call_boxed(keyset, *args) + 1.0  # type: ignore[no-any-return]

    library.impl("take", take, "CPU", with_keyset=True, allow_override=True)
    try:
        with preassert.guard():
            assert TABLE.take(torch.tensor([1])).tolist() == [2.0]
            with pytest.raises(preassert.Violation):
                TABLE.take(torch.tensor([6]))
        assert TABLE.take(torch.tensor([1])).tolist() == [2.0]
    finally:
        library._destroy()
    assert TABLE.take(torch.tensor([1])).tolist() == [1.0]


@pytest.mark.parametrize(
    "ids",
    [
        GOOD,
        GOOD.int(),
        GOOD.reshape(1, 2, 1),
        GOOD[0],
        GOOD[:0],
        torch.arange(60).reshape(6, 10) % 3,
        GOOD.reshape(2, 1)[:, :0],
        torch.arange(6).reshape(2, 3).T % 3,
    ],
)
def test_embedding_is_still_made_of_index_select(ids: Tensor) -> None:
    """The guard goes around its own index_select there, not around anybody else's."""
    plain = look_up(ids)
    library = torch.library.Library("aten", "IMPL")
    below = torch.library.get_kernel("aten::index_select", "CPU")

    def index_select(keyset: Any, *args: Any) -> Tensor:
        return below.call_boxed(keyset, *args) + 1.0  # type: ignore[no-any-return]

    with preassert.guard():
        same = look_up(ids)
    assert (same.shape, same.stride(), same.tolist()) == (plain.shape, plain.stride(), plain.tolist())
    library.impl("index_select", index_select, "CPU", with_keyset=True, allow_override=True)
    try:
        with preassert.guard():
            assert torch.equal(look_up(ids), plain + 1.0)
            assert_guarded()
    finally:
        library._destroy()


@pytest.mark.parametrize("call", [lambda: torch.embedding(TABLE[0], GOOD // 2), lambda: torch.embedding(TABLE, GOOD.short())])
def test_what_embedding_refuses_is_said_in_its_own_words(call: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)) as plain:
        call()
    with preassert.guard(), pytest.raises(type(plain.value)) as guarded:
        call()
    assert str(guarded.value) == str(plain.value)


def test_a_library_of_the_users_own_above_while_the_guard_is_open() -> None:
    """Chained to ours, it has to go first: torch makes a kernel that is gone unusable for whoever holds it."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with preassert.guard():
            ours = torch.library.get_kernel("aten::take", "CPU")
            library.impl(
                "take", lambda keyset, *args: ours.call_boxed(keyset, *args) * 2.0, "CPU", with_keyset=True, allow_override=True
            )
            assert TABLE.take(torch.tensor([1])).tolist() == [2.0]
            with pytest.raises(preassert.Violation):
                TABLE.take(torch.tensor([6]))
            library._destroy()
            assert TABLE.take(torch.tensor([1])).tolist() == [1.0]
            with pytest.raises(preassert.Violation):
                TABLE.take(torch.tensor([6]))
    finally:
        library._destroy()
    assert TABLE.take(torch.tensor([1])).tolist() == [1.0]


def test_operators_of_custom_libraries_are_not_touched() -> None:
    @torch.library.custom_op("preassert_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    with preassert.guard():
        assert double(torch.tensor([2.0])).tolist() == [4.0]

    @torch.library.custom_op("preassert_test::pick", mutates_args=())
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    with preassert.guard(), pytest.raises(preassert.Violation):  # what it calls is guarded
        pick(torch.zeros(3), torch.tensor([3]))
