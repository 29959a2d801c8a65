"""Every public way to an operator passes exactly one check; forms that torch composes need no row of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preassert
from preassert.guard import intercept
from preassert.guard.state import COVER

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="counts replaced kernels")

I3 = torch.tensor([0, 2, 1])
X = torch.arange(12.0).reshape(4, 3) / 12
ROW = torch.tensor([[0, 2, 1]])
LOGP = torch.randn(6, 2, 5).log_softmax(2)
CTC = torch.tensor([[1, 2, 3], [4, 1, 0]])


def leaf(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


def deterministic(function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        torch.use_deterministic_algorithms(True)
        try:
            out = function()
            if isinstance(out, torch.Tensor) and out.requires_grad:
                out.sum().backward()
            return None
        finally:
            torch.use_deterministic_algorithms(False)

    return call


def autocast(function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function()

    return call


def pooled(pool: Callable[..., Any], *shape: int) -> Callable[[], Any]:
    return lambda: pool(leaf(*shape))


def unpooled() -> Any:
    out, where = F.max_pool2d(torch.rand(1, 1, 4, 4), 2, return_indices=True)
    return F.max_unpool2d(out.requires_grad_(), where, 2)


def lu() -> Any:
    return torch.linalg.lu_factor(torch.rand(3, 3) + torch.eye(3))


# What is called (a result that needs gradients is taken through backward), and the rows that check it, in order.
ROUTES: dict[str, tuple[Callable[[], Any], str]] = {
    "F.embedding": (lambda: F.embedding(I3, leaf(4, 2)), "embedding embedding_dense_backward"),
    "nn.Embedding": (lambda: nn.Embedding(4, 2)(I3), "embedding embedding_dense_backward"),
    "nn.Embedding(max_norm)": (
        lambda: nn.Embedding(4, 2, max_norm=1.0)(I3),
        "embedding_renorm_ embedding embedding_dense_backward",
    ),
    "embedding autocast": (autocast(lambda: F.embedding(I3, leaf(4, 2))), "embedding embedding_dense_backward"),
    "embedding out": (lambda: torch.ops.aten.embedding.out(X, I3, out=torch.empty(0)), "embedding"),
    "embedding_renorm": (lambda: torch.ops.aten.embedding_renorm(X, I3, 1.0, 2.0), "embedding_renorm_"),
    "F.embedding_bag": (
        lambda: F.embedding_bag(I3, leaf(4, 2), torch.tensor([0, 1])),
        "_embedding_bag _embedding_bag_dense_backward",
    ),
    "F.embedding_bag max": (
        lambda: F.embedding_bag(I3, leaf(4, 2), torch.tensor([0, 1]), mode="max"),
        "_embedding_bag _embedding_bag_dense_backward",
    ),
    "F.embedding_bag 2-d": (lambda: F.embedding_bag(ROW, leaf(4, 2)), "_embedding_bag _embedding_bag_dense_backward"),
    "F.embedding_bag weights": (
        lambda: F.embedding_bag(I3, torch.rand(4, 2), torch.tensor([0]), mode="sum", per_sample_weights=leaf(3)),
        "_embedding_bag _embedding_bag_per_sample_weights_backward",
    ),
    "F.embedding_bag no grad": (lambda: F.embedding_bag(I3, torch.rand(4, 2), torch.tensor([0])), "_embedding_bag_forward_only"),
    "x[i]": (lambda: leaf(4, 3)[I3], "index.Tensor _index_put_impl_"),
    "x[i] deterministic": (deterministic(lambda: leaf(4, 3)[I3]), "index.Tensor _index_put_impl_"),
    "x[i] autocast": (autocast(lambda: leaf(4, 3)[I3]), "index.Tensor _index_put_impl_"),
    "x[list]": (lambda: X[[0, 2]], "index.Tensor"),
    "x[mask]": (lambda: X[X > 0.5], "index.Tensor"),
    "x[i] = tensor": (lambda: X.clone().__setitem__(I3, torch.zeros(3)), "_index_put_impl_"),
    "x[i] = number": (
        lambda: X.clone().__setitem__(I3, 0.0),
        "index_fill_.int_Scalar" if torch.__version__ >= (2, 15) else "_index_put_impl_",
    ),
    "index_put_": (lambda: X.clone().index_put_((I3,), torch.ones(3)), "_index_put_impl_"),
    "index_put": (lambda: X.index_put((I3,), torch.ones(3), accumulate=True), "_index_put_impl_"),
    "_unsafe_index_put": (lambda: torch.ops.aten._unsafe_index_put(X, [I3], torch.ones(3)), "_index_put_impl_"),
    "_unsafe_index": (lambda: torch.ops.aten._unsafe_index(X, [I3]), "_unsafe_index.Tensor"),
    "index out": (lambda: torch.ops.aten.index.Tensor_out(X, [I3], out=torch.empty(0)), "index.Tensor_out"),
    "index_select": (lambda: leaf(4, 3).index_select(0, I3), "index_select index_add_"),
    "index_select out": (lambda: torch.index_select(X, 0, I3, out=torch.empty(0)), "index_select.out"),
    "index_add": (lambda: leaf(4, 3).index_add(0, I3, leaf(3, 3)), "index_add index_select"),
    "index_add_": (lambda: X.clone().index_add_(1, I3, torch.ones(4, 3)), "index_add_"),
    "index_add_ deterministic": (deterministic(lambda: X.clone().index_add_(0, I3, torch.ones(3, 3))), "index_add_"),
    "index_copy": (lambda: X.index_copy(0, I3, torch.ones(3, 3)), "index_copy"),
    "index_fill": (lambda: X.index_fill(0, I3, 1.0), "index_fill_.int_Scalar"),
    "index_fill_ tensor": (lambda: X.clone().index_fill_(0, I3, torch.tensor(1.0)), "index_fill_.int_Tensor"),
    "index_reduce_": (lambda: X.clone().index_reduce_(0, I3, torch.ones(3, 3), "amax", include_self=False), "index_reduce_"),
    "take": (lambda: leaf(4, 3).take(I3), "take put_"),
    "put": (lambda: X.put(I3, torch.ones(3)), "put_"),
    "gather": (lambda: leaf(4, 3).gather(0, ROW), "gather scatter_add_"),
    "gather out": (lambda: torch.gather(X, 0, ROW, out=torch.empty(0)), "gather.out"),
    "gather deterministic": (deterministic(lambda: leaf(4, 3).gather(0, ROW)), "gather scatter_add_"),
    "scatter": (lambda: X.scatter(0, ROW, 1.0), "scatter.value"),
    "scatter_ src": (lambda: X.clone().scatter_(0, ROW, torch.ones(1, 3)), "scatter_.src"),
    "scatter reduce": (lambda: X.clone().scatter_(0, ROW, torch.ones(1, 3), reduce="add"), "scatter_.reduce"),
    "scatter_add": (lambda: X.scatter_add(0, ROW, leaf(1, 3)), "scatter_add gather"),
    "scatter_add_ deterministic": (deterministic(lambda: X.clone().scatter_add_(0, ROW, torch.ones(1, 3))), "scatter_add_"),
    "scatter_reduce": (lambda: X.scatter_reduce(0, ROW, torch.ones(1, 3), "amax"), "scatter_reduce.two"),
    "masked_scatter": (lambda: X.masked_scatter(X > 0.5, torch.ones(12)), "masked_scatter_"),
    "repeat_interleave": (lambda: torch.repeat_interleave(X[:3], I3, dim=0), "repeat_interleave.Tensor index_select"),
    "max(dim).backward": (lambda: leaf(4, 3).max(1).values, "scatter_.src"),
    "bincount": (lambda: torch.bincount(I3), "bincount"),
    "searchsorted": (lambda: torch.searchsorted(X[0], X[0], sorter=torch.arange(3)), "searchsorted.Tensor"),
    "F.nll_loss": (lambda: F.nll_loss(leaf(3, 4), I3), "nll_loss_forward nll_loss_backward"),
    "F.cross_entropy": (lambda: F.cross_entropy(leaf(3, 4), I3), "nll_loss_forward nll_loss_backward"),
    "F.cross_entropy 1-d": (lambda: F.cross_entropy(leaf(4), I3[1]), "nll_loss_forward nll_loss_backward"),
    "F.cross_entropy images": (lambda: F.cross_entropy(leaf(1, 4, 1, 3), ROW[None]), "nll_loss2d_forward nll_loss2d_backward"),
    "F.cross_entropy k-d": (
        lambda: F.cross_entropy(leaf(1, 4, 1, 1, 3), ROW[None, None]),
        "nll_loss2d_forward nll_loss2d_backward",
    ),
    "F.cross_entropy smoothing": (
        lambda: F.cross_entropy(leaf(3, 4), I3, label_smoothing=0.1),
        "nll_loss_forward nll_loss_backward",
    ),
    "F.cross_entropy autocast": (autocast(lambda: F.cross_entropy(leaf(3, 4), I3)), "nll_loss_forward nll_loss_backward"),
    "F.cross_entropy probabilities": (lambda: F.cross_entropy(leaf(3, 4), torch.rand(3, 4)), ""),
    "F.multi_margin_loss": (lambda: F.multi_margin_loss(leaf(3, 4), I3), "multi_margin_loss multi_margin_loss_backward"),
    "F.multilabel_margin_loss": (
        lambda: F.multilabel_margin_loss(leaf(1, 3), ROW),
        "multilabel_margin_loss_forward multilabel_margin_loss_backward",
    ),
    "F.binary_cross_entropy": (lambda: F.binary_cross_entropy(leaf(3), torch.ones(3)), "binary_cross_entropy"),
    "F.ctc_loss": (lambda: F.ctc_loss(LOGP.clone().requires_grad_(), CTC, [6, 6], [3, 2]), "_ctc_loss _ctc_loss_backward"),
    "F.ctc_loss tensors": (
        lambda: F.ctc_loss(LOGP.clone().requires_grad_(), CTC, torch.tensor([6, 6]), torch.tensor([3, 2])),
        "_ctc_loss _ctc_loss_backward",
    ),
    "F.max_pool1d": (pooled(lambda x: F.max_pool1d(x, 2), 1, 1, 4), "max_pool2d_with_indices_backward"),
    "F.max_pool2d": (pooled(lambda x: F.max_pool2d(x, 2), 1, 1, 4, 4), "max_pool2d_with_indices_backward"),
    "F.max_pool3d": (pooled(lambda x: F.max_pool3d(x, 2), 1, 1, 4, 4, 4), "max_pool3d_with_indices_backward"),
    "F.adaptive_max_pool1d": (pooled(lambda x: F.adaptive_max_pool1d(x, 2), 1, 1, 4), "adaptive_max_pool2d_backward"),
    "F.adaptive_max_pool3d": (pooled(lambda x: F.adaptive_max_pool3d(x, 2), 1, 1, 4, 4, 4), "adaptive_max_pool3d_backward"),
    "F.fractional_max_pool2d": (
        pooled(lambda x: F.fractional_max_pool2d(x, 2, output_size=2), 1, 1, 4, 4),
        "fractional_max_pool2d_backward",
    ),
    "F.max_unpool2d": (unpooled, "max_unpool2d gather"),
    "multinomial": (lambda: torch.multinomial(X, 1), "multinomial"),
    "multinomial out": (lambda: torch.multinomial(X, 5, True, out=torch.empty(0, dtype=torch.int64)), "multinomial.out"),
    "Categorical.sample": (lambda: torch.distributions.Categorical(X[0] + 0.1).sample(), "multinomial"),
    "bernoulli": (lambda: torch.bernoulli(X), "bernoulli"),
    "bernoulli_": (lambda: torch.empty(4, 3).bernoulli_(X), "bernoulli_.Tensor"),
    "bernoulli out": (lambda: torch.bernoulli(X, out=torch.empty(0)), "bernoulli.out"),
    "poisson": (lambda: torch.poisson(X), "poisson"),
    "normal": (lambda: torch.normal(X, X), "normal.Tensor_Tensor"),
    "normal float": (lambda: torch.normal(0.0, X), "normal.float_Tensor"),
    "_assert_async": (lambda: torch._assert_async(torch.ones(1)), "_assert_async"),
    "segment_reduce": (
        lambda: torch.segment_reduce(leaf(4, 2), "sum", lengths=torch.tensor([1, 3]), axis=0),
        "segment_reduce _segment_reduce_backward",
    ),
    "lu_unpack": (lambda: torch.lu_unpack(*lu())[0], "lu_unpack"),
    "lu_solve": (lambda: torch.linalg.lu_solve(*lu(), torch.ones(3, 1)), "linalg_lu_solve"),
    "sparse_csr_tensor checked": (
        lambda: torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 2), check_invariants=True),
        "_validate_compressed_sparse_indices",
    ),
    "sparse_coo_tensor": (lambda: torch.sparse_coo_tensor(ROW, torch.ones(3), (3,)), "sparse_coo_tensor.indices_size"),
}

# Composed of guarded parts, and checked twice: what the composition hides must be seen first.
TWICE: dict[str, tuple[Callable[[], Any], str]] = {
    "take_along_dim": (lambda: torch.take_along_dim(X, ROW, 0), "take_along_dim gather"),
    "F.one_hot": (lambda: F.one_hot(I3, 4), "one_hot scatter_.value"),
    "F.embedding sparse": (
        lambda: F.embedding(I3, leaf(4, 2), sparse=True),
        "embedding embedding_sparse_backward _sparse_coo_tensor_unsafe",
    ),
}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the rows that check, as they do. A kernel inside one that covers it does not check."""
    seen: list[str] = []
    make = intercept.make_kernel

    def recording(row: Any, overload: Any, call: Any, **settings: Any) -> Any:
        kernel = make(row, overload, call, **settings)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not COVER.active:
                seen.append(row.operator.removeprefix("aten::"))
            return kernel(*args, **kwargs)

        return recorded

    monkeypatch.setattr(intercept, "make_kernel", recording)
    with preassert.guard(mode="immediate"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield seen


def take(function: Callable[[], Any]) -> None:
    out = function()
    if isinstance(out, torch.Tensor) and out.requires_grad:
        (out.sum() if out.layout is torch.strided else torch.sparse.sum(out)).backward()


@pytest.mark.parametrize("name", [*ROUTES, *TWICE])
def test_route_is_checked_once(name: str, checks: list[str]) -> None:
    function, expected = {**ROUTES, **TWICE}[name]
    take(function)
    assert checks == expected.split()
