"""One faulty call of each family, for every test that takes ``faulty``; and the guard's state put back between tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Faulty:
    """A call whose argument breaks its contract, and what must be said about it."""

    name: str
    call: Callable[[], Any]
    hazard: str
    operator: str
    argument: str
    values: tuple[Any, ...]  # the first bad elements; "NaN" for a NaN
    positions: tuple[tuple[int, ...], ...]
    lowest: float | None = None
    highest: float | None = None

    @property
    def operators(self) -> tuple[str, ...]:
        """A mode sees the overload that was called: _ctc_loss.Tensor, which makes lists of the lengths and calls _ctc_loss."""
        a_mode = not hasattr(torch.library, "get_kernel")
        return (self.operator, "aten::_ctc_loss.Tensor") if a_mode and self.name == "ctc_loss" else (self.operator,)


TARGET = "target-out-of-range"
EMBEDDING = "embedding-index-out-of-range"
INDEX = "index-out-of-range"
GATHER = "gather-index-out-of-range"
PROBABILITY = "probability-outside-unit-interval"
SAMPLING = "invalid-sampling-distribution"
CTC = "ctc-target-invalid"
POOLING = "invalid-pooling-index"
NAN = float("nan")
# Since 2.15 a number given to a single index tensor is filled in; before, it was put like a tensor.
_FILLED_BY = ("aten::index_fill_.int_Scalar", "index") if torch.__version__ >= (2, 15) else ("aten::_index_put_impl_", "indices")


def _ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _log_probs() -> Tensor:
    return torch.randn(6, 2, 5).log_softmax(-1)


def _unpool() -> Any:
    out, where = F.max_pool2d(torch.randn(1, 1, 4, 4), 2, return_indices=True)
    where[0, 0, 1, 1] = 16
    return F.max_unpool2d(out, where, 2)


FAULTS = (
    Faulty(
        "cross_entropy", lambda: F.cross_entropy(torch.randn(4, 5), _ints(0, 1, 2, 5)),
        TARGET, "aten::nll_loss_forward", "target", (5,), ((3,),), 0, 4,
    ),
    Faulty(
        "nll_loss", lambda: F.nll_loss(torch.randn(4, 5), _ints(0, -1, 2, 3)),
        TARGET, "aten::nll_loss_forward", "target", (-1,), ((1,),), 0, 4,
    ),
    Faulty(
        "cross_entropy of masks", lambda: F.cross_entropy(torch.randn(1, 3, 2, 2), torch.tensor([[[0, 1], [255, 2]]])),
        TARGET, "aten::nll_loss2d_forward", "target", (255,), ((0, 1, 0),), 0, 2,
    ),
    Faulty(
        "multi_margin_loss", lambda: F.multi_margin_loss(torch.randn(3, 4), _ints(0, 4, 1)),
        TARGET, "aten::multi_margin_loss", "target", (4,), ((1,),), 0, 3,
    ),
    Faulty(
        "multilabel_margin_loss", lambda: F.multilabel_margin_loss(torch.randn(1, 3), torch.tensor([[0, 3, -1]])),
        TARGET, "aten::multilabel_margin_loss_forward", "target", (3,), ((0, 1),), -1, 2,
    ),
    Faulty(
        "embedding", lambda: F.embedding(torch.tensor([[1, 2], [10, 3]]), torch.randn(10, 4)),
        EMBEDDING, "aten::embedding", "input", (10,), ((1, 0),), 0, 9,
    ),
    Faulty(
        "embedding max_norm", lambda: F.embedding(_ints(1, 10), torch.randn(10, 4), max_norm=1.0),
        EMBEDDING, "aten::embedding_renorm_", "input", (10,), ((1,),), -10, 9,
    ),
    Faulty(
        "embedding_bag", lambda: F.embedding_bag(_ints(1, 2, 9), torch.randn(9, 4), _ints(0, 2)),
        EMBEDDING, "aten::_embedding_bag_forward_only", "input", (9,), ((2,),), 0, 8,
    ),
    Faulty(
        "embedding_bag offsets", lambda: F.embedding_bag(_ints(1, 2, 3), torch.randn(9, 4), _ints(0, 5)),
        EMBEDDING, "aten::_embedding_bag_forward_only", "offsets", (5,), ((1,),), 0, 3,
    ),
    Faulty(
        "tensor[index]", lambda: torch.randn(5)[_ints(0, 5)],
        INDEX, "aten::index.Tensor", "indices", (5,), ((1,),), -5, 4,
    ),
    Faulty(
        "tensor[index] = value", lambda: torch.randn(5).__setitem__(_ints(0, -6), torch.ones(2)),
        INDEX, "aten::_index_put_impl_", "indices", (-6,), ((1,),), -5, 4,
    ),
    Faulty(
        "tensor[index] = number", lambda: torch.randn(5).__setitem__(_ints(0, -6), 1.0),
        INDEX, *_FILLED_BY, (-6,), ((1,),), -5, 4,
    ),
    Faulty(
        "index_select", lambda: torch.randn(5, 2).index_select(0, _ints(5, dtype=torch.int32)),
        INDEX, "aten::index_select", "index", (5,), ((0,),), 0, 4,
    ),
    Faulty(
        "index_add_", lambda: torch.zeros(3, 2).index_add_(0, _ints(0, 3), torch.ones(2, 2)),
        INDEX, "aten::index_add_", "index", (3,), ((1,),), 0, 2,
    ),
    Faulty(
        "index_copy", lambda: torch.zeros(3, 2).index_copy(0, _ints(-1, 0), torch.ones(2, 2)),
        INDEX, "aten::index_copy", "index", (-1,), ((0,),), 0, 2,
    ),
    Faulty(
        "index_fill_", lambda: torch.zeros(3).index_fill_(0, _ints(-4), 1.0),
        INDEX, "aten::index_fill_.int_Scalar", "index", (-4,), ((0,),), -3, 2,
    ),
    Faulty(
        "index_reduce_", lambda: torch.ones(3).index_reduce_(0, _ints(0, 3), torch.ones(2), "prod"),
        INDEX, "aten::index_reduce_", "index", (3,), ((1,),), 0, 2,
    ),
    Faulty(
        "take", lambda: torch.randn(2, 3).take(_ints(6)),
        INDEX, "aten::take", "index", (6,), ((0,),), -6, 5,
    ),
    Faulty(
        "put_", lambda: torch.zeros(2, 3).put_(_ints(-7), torch.ones(1)),
        INDEX, "aten::put_", "index", (-7,), ((0,),), -6, 5,
    ),
    Faulty(
        "masked_scatter_", lambda: torch.zeros(4).masked_scatter_(torch.tensor([True, True, False, True]), torch.ones(2)),
        INDEX, "aten::masked_scatter_", "mask", (), (),
    ),
    Faulty(
        "repeat_interleave", lambda: torch.repeat_interleave(_ints(1, -2)),
        INDEX, "aten::repeat_interleave.Tensor", "repeats", (-2,), ((1,),), 0, None,
    ),
    Faulty(
        "quantile", lambda: torch.quantile(torch.randn(5), torch.tensor([0.5, 1.5])),
        GATHER, "aten::quantile", "q", (1.5,), ((1,),), 0, 1,
    ),
    Faulty(
        "gather", lambda: torch.randn(2, 3).gather(1, torch.tensor([[0], [3]])),
        GATHER, "aten::gather", "index", (3,), ((1, 0),), 0, 2,
    ),
    Faulty(
        "scatter", lambda: torch.zeros(2, 3).scatter(1, torch.tensor([[-1]]), 1.0),
        GATHER, "aten::scatter.value", "index", (-1,), ((0, 0),), 0, 2,
    ),
    Faulty(
        "scatter_ src", lambda: torch.zeros(2, 3).scatter_(0, torch.tensor([[2]]), torch.ones(1, 1)),
        GATHER, "aten::scatter_.src", "index", (2,), ((0, 0),), 0, 1,
    ),
    Faulty(
        "scatter_add_", lambda: torch.zeros(3).scatter_add_(0, _ints(0, 3), torch.ones(2)),
        GATHER, "aten::scatter_add_", "index", (3,), ((1,),), 0, 2,
    ),
    Faulty(
        "scatter_reduce", lambda: torch.zeros(3).scatter_reduce(0, _ints(0, 3), torch.ones(2), "amax"),
        GATHER, "aten::scatter_reduce.two", "index", (3,), ((1,),), 0, 2,
    ),
    Faulty(
        "take_along_dim", lambda: torch.take_along_dim(torch.randn(2, 3), torch.tensor([[3], [0]]), 1),
        GATHER, "aten::take_along_dim", "indices", (3,), ((0, 0),), -3, 2,
    ),
    Faulty(
        "one_hot", lambda: F.one_hot(_ints(0, 3), 3),
        GATHER, "aten::one_hot", "input", (3,), ((1,),), 0, 2,
    ),
    Faulty(
        "binary_cross_entropy", lambda: F.binary_cross_entropy(torch.tensor([0.5, 1.5]), torch.ones(2)),
        PROBABILITY, "aten::binary_cross_entropy", "input", (1.5,), ((1,),), 0, 1,
    ),
    Faulty(
        "binary_cross_entropy target", lambda: F.binary_cross_entropy(torch.tensor([0.5, 0.5]), torch.tensor([2.0, 1.0])),
        PROBABILITY, "aten::binary_cross_entropy", "target", (2.0,), ((0,),), 0, 1,
    ),
    Faulty(
        "bernoulli", lambda: torch.bernoulli(torch.tensor([0.5, NAN])),
        PROBABILITY, "aten::bernoulli", "self", ("NaN",), ((1,),), 0, 1,
    ),
    Faulty(
        "multinomial", lambda: torch.multinomial(torch.tensor([[0.5, 0.5], [1.0, -1.0]]), 1),
        SAMPLING, "aten::multinomial", "self", (-1.0,), ((1, 1),),
    ),
    Faulty(
        "multinomial of zeros", lambda: torch.multinomial(torch.zeros(1, 2), 1),
        SAMPLING, "aten::multinomial", "self", (0.0, 0.0), ((0, 0), (0, 1)),
    ),
    Faulty(
        "poisson", lambda: torch.poisson(torch.tensor([1.0, -1.0])),
        SAMPLING, "aten::poisson", "self", (-1.0,), ((1,),), 0, None,
    ),
    Faulty(
        "binomial", lambda: torch.binomial(torch.tensor([3.0, 3.0]), torch.tensor([0.5, NAN])),
        PROBABILITY, "aten::binomial", "prob", ("NaN",), ((1,),), 0, 1,
    ),
    Faulty(
        "_assert_async", lambda: torch._assert_async(torch.tensor(0), "the mask is empty"),
        "user-device-assert", "aten::_assert_async.msg", "self", (), (),
    ),
    Faulty(
        "ctc_loss", lambda: F.ctc_loss(_log_probs(), torch.tensor([[1, 2], [3, 5]]), _ints(6, 6), _ints(2, 2)),
        CTC, "aten::_ctc_loss", "targets", (5,), ((1, 1),), 1, 4,
    ),
    Faulty(
        "max_unpool2d", _unpool,
        POOLING, "aten::max_unpool2d", "indices", (16,), ((0, 0, 1, 1),), 0, 15,
    ),
)  # fmt: skip


@pytest.fixture
def take_along_dim_wraps() -> bool:
    """Whether a negative or too large index is taken modulo the size (2.9 and before: handed to gather, which judges it)."""
    try:
        torch.take_along_dim(torch.zeros(2, 3), torch.tensor([[3]]), 1)
    except (RuntimeError, IndexError):
        return False
    return True


@pytest.fixture
def wrapping_take_along_dim(take_along_dim_wraps: bool) -> None:
    """For tests that need an operator that accepts a bad value in silence."""
    if not take_along_dim_wraps:
        pytest.skip("take_along_dim of this torch hands the index to gather, which judges it")


@pytest.fixture
def replaced_kernels() -> None:
    """For tests of what only replaced kernels can do: guard every thread, stand in the dispatcher's tables."""
    from preassert.guard.intercept import can_replace_kernels

    if not can_replace_kernels():
        pytest.skip("this torch has no torch.library.get_kernel: the guard is a mode")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "faulty" in metafunc.fixturenames:
        metafunc.parametrize("faulty", FAULTS, ids=[entry.name for entry in FAULTS])


@pytest.fixture
def fresh_guard() -> Iterator[None]:
    """The guard's state before and after is that of a process that has never used it."""
    import preassert
    from preassert.guard import devicelog, verdict
    from preassert.guard.ledger import LEDGER
    from preassert.guard.state import STATE

    def forget() -> None:
        assert STATE.stack == [], "a test left a guard open"
        preassert.uninstall()  # what rests between the calls of decorated functions
        verdict.PRETEND_DEVICE = False
        LEDGER.reset()
        devicelog.reset()
        STATE.seen, STATE.last = 0, None

    forget()
    yield
    forget()


@pytest.fixture
def pretend_device(fresh_guard: None) -> Iterator[None]:
    """The device's code, run on CPU tensors."""
    from preassert.guard import verdict

    verdict.PRETEND_DEVICE = True
    yield
    verdict.PRETEND_DEVICE = False
