"""Random calls of every operator in the contract table, for the tests that let the CPU kernel judge the contract.

``CALLS[operator](draw)`` makes one call. Shapes and dtypes are always right, so that only a value can be refused.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

FAR = (-(2**62), -(2**31) - 1, 2**31, 2**40, 255, -100)
FLOATS = (torch.float32, torch.float64)
LONG = torch.int64
INT = torch.int32


@dataclass
class Call:
    """Arguments of one call of an operator.

    Attributes:
        broken: what an independent statement of the contract says, where the kernel cannot be asked; None: ask the kernel.
        no_kernel: this build has no kernel to show that good values are accepted.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    broken: bool | None = None
    no_kernel: bool = False


class Draw:
    """Random choices, a third of them without a bad value, a third with a few, a third at or far beyond the edges."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.mood = source.choice(("good", "good", "edge", "far"))

    def int(self, lowest: int, highest: int) -> int:
        return self.random.randint(lowest, highest)

    def bool(self) -> bool:
        return self.random.random() < 0.5

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def shape(self, lowest_dim: int, highest_dim: int, *, lowest: int = 0, highest: int = 4) -> tuple[int, ...]:
        return tuple(self.int(lowest, highest) for _ in range(self.int(lowest_dim, highest_dim)))

    def scores(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = [self.random.uniform(-2, 2) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=dtype or self.pick(FLOATS)).reshape(shape)

    def values(
        self, shape: Sequence[int], lowest: int, highest: int, dtype: torch.dtype = LONG, also: Sequence[int] = ()
    ) -> torch.Tensor:
        """Integers in ``lowest..highest`` or ``also``, now and then others. No good one exists when the range is empty."""
        count = math.prod(shape)
        inside = [*range(lowest, highest + 1), *also] or [0]
        out = [self.pick(inside) for _ in range(count)]
        info = torch.iinfo(dtype)
        stray = {"edge": (lowest - 1, highest + 1), "far": FAR, "good": ()}[self.mood]
        stray = [value for value in stray if info.min <= value <= info.max]
        for _ in range(min(count, self.int(0, 2)) if stray else 0):
            out[self.int(0, count - 1)] = self.pick(stray)
        return torch.tensor([min(max(value, info.min), info.max) for value in out], dtype=dtype).reshape(tuple(shape))

    def reals(self, shape: Sequence[int], lowest: float, highest: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Numbers between the bounds, both included, now and then outside, NaN or infinite."""
        dtype = dtype or self.pick(FLOATS)
        count = math.prod(shape)
        out = [self.pick((lowest, highest, self.random.uniform(lowest, highest))) for _ in range(count)]
        span = highest - lowest
        stray = {
            "edge": (lowest - span * 1e-3, highest + span * 1e-3),
            "far": (math.nan, math.inf, -math.inf, lowest - 10 * span, highest + 10 * span),
            "good": (),
        }[self.mood]
        for _ in range(min(count, self.int(0, 2)) if stray else 0):
            out[self.int(0, count - 1)] = self.pick(stray)
        return torch.tensor(out, dtype=dtype).reshape(tuple(shape))

    def offsets(
        self, count: int, length: int, *, starts: bool = True, ends: bool = False, dtype: torch.dtype = LONG
    ) -> torch.Tensor:
        cuts = sorted(self.int(0, length) for _ in range(count))
        if starts and cuts:
            cuts[0] = 0
        if ends and cuts:
            cuts[-1] = length
        if self.mood != "good" and cuts:
            stray = (-1, length + 1, 1, length) if self.mood == "edge" else (-7, length + 9, 0)
            cuts[self.int(0, count - 1)] = self.pick(stray)
        return torch.tensor(cuts, dtype=dtype)


Maker = Callable[[Draw], Call]
CALLS: dict[str, Maker] = {}


def call_of(*operators: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        for operator in operators:
            CALLS[f"aten::{operator}"] = maker
        return maker

    return register


def with_out(base: str, out: str, *names: str, dtypes: Callable[[Call], Sequence[torch.dtype]] | None = None) -> None:
    """The ``out=`` form ``out`` of ``base``: the same call with empty outputs ``names``."""
    maker = CALLS[f"aten::{base}"]

    def make(draw: Draw) -> Call:
        call = maker(draw)
        first = next(arg for arg in call.args if isinstance(arg, torch.Tensor))
        kinds = dtypes(call) if dtypes else [first.dtype] * len(names)
        outs = {name: torch.empty(0, dtype=kind) for name, kind in zip(names, kinds, strict=True)}
        return Call(call.args, {**call.kwargs, **outs}, call.broken, call.no_kernel)

    CALLS[f"aten::{out}"] = make


def strays(tensor: torch.Tensor, lowest: int, highest: int) -> bool:
    """An element outside ``lowest..highest``, found one by one."""
    return any(not lowest <= value <= highest for value in tensor.reshape(-1).tolist())


def not_cuts(tensor: torch.Tensor, length: int, *, starts: bool = True, ends: bool = False) -> bool:
    """Not the cut points of a sequence of ``length``."""
    cuts = tensor.tolist()
    if not cuts:
        return False
    if (starts and cuts[0] != 0) or (ends and cuts[-1] != length) or cuts[0] < 0 or cuts[-1] > length:
        return True
    return any(after < before for before, after in itertools.pairwise(cuts))


# --- embedding ---------------------------------------------------------------------------------------------------------


@call_of("embedding")
def _embedding(draw: Draw) -> Call:
    rows = draw.int(1, 6)
    return Call((draw.scores(rows, draw.int(1, 3)), draw.values(draw.shape(0, 3), 0, rows - 1, draw.pick((INT, LONG)))))


@call_of("embedding_dense_backward", "embedding_sparse_backward")
def _embedding_backward(draw: Draw) -> Call:
    rows = draw.int(1, 6)
    ids = draw.values(draw.shape(1, 2), 0, rows - 1, LONG)
    grad = draw.scores(*ids.shape, 2)
    return Call((grad, ids, rows, -1, False), broken=strays(ids, 0, rows - 1))


@call_of("embedding_renorm_")
def _embedding_renorm(draw: Draw) -> Call:
    rows = draw.int(1, 6)
    return Call((draw.scores(rows, 3), draw.values((draw.int(0, 5),), -rows, rows - 1, draw.pick((INT, LONG))), 1.0, 2.0))


@call_of("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(draw: Draw) -> Call:
    rows, count = draw.int(1, 6), draw.int(0, 6)
    dtype = draw.pick((INT, LONG))
    last = draw.bool()
    ids = draw.values((count,), 0, rows - 1, dtype)
    offsets = draw.offsets(draw.int(2 if last else 1, 4), count, dtype=dtype)
    mode = draw.pick((0, 1, 2))
    # The CPU looks at the first and the last offset only.
    if last and offsets[-1] <= count:
        offsets[-1] = count  # ids in no bag are written past the output by the CPU kernel
    falls = any(after < before for before, after in itertools.pairwise(offsets.tolist()))
    return Call((draw.scores(rows, 2), ids, offsets, False, mode, False, None, last, -1), broken=True if falls else None)


@call_of("_embedding_bag_dense_backward")
def _bag_backward(draw: Draw) -> Call:
    rows, count = draw.int(1, 6), draw.int(1, 6)
    ids = draw.values((count,), 0, rows - 1)
    bags = torch.zeros(count, dtype=LONG)
    sizes = torch.tensor([count])
    return Call(
        (draw.scores(1, 2), ids, bags, sizes, torch.zeros(0, dtype=LONG), rows, False, 0, None, -1),
        broken=strays(ids, 0, rows - 1),
    )


@call_of("_embedding_bag_per_sample_weights_backward")
def _bag_weights_backward(draw: Draw) -> Call:
    rows, count = draw.int(1, 6), draw.int(1, 6)
    ids = draw.values((count,), 0, rows - 1)
    dtype = draw.pick(FLOATS)
    grad, weight = draw.scores(1, 2, dtype=dtype), draw.scores(rows, 2, dtype=dtype)
    bags = torch.zeros(count, dtype=LONG)
    return Call((grad, weight, ids, torch.zeros(1, dtype=LONG), bags, 0, -1), broken=strays(ids, 0, rows - 1))


# --- indexing ----------------------------------------------------------------------------------------------------------


def _indices(draw: Draw, shape: tuple[int, ...], *, masks: bool = True) -> list[torch.Tensor | None]:
    common = draw.shape(0, 2, lowest=0, highest=3)
    out: list[torch.Tensor | None] = []
    for size in shape[: draw.int(1, len(shape))]:
        kind = draw.int(0, 9)
        if kind == 0:
            out.append(None)
        elif kind == 1 and not common and masks:
            out.append(draw.scores(size) > 0)
            masks = False  # two masks of different counts do not go together
        else:
            tail = tuple(1 if draw.int(0, 3) == 0 else extent for extent in common)
            out.append(draw.values(tail, -size, size - 1, draw.pick((LONG, LONG, INT))))
    if all(index is None for index in out):
        out[-1] = draw.values(common, -shape[len(out) - 1], shape[len(out) - 1] - 1)
    return out


@call_of("index.Tensor")
def _index(draw: Draw) -> Call:
    shape = draw.shape(1, 3)
    return Call((draw.scores(*shape), _indices(draw, shape)))


@call_of("_unsafe_index.Tensor")
def _unsafe_index(draw: Draw) -> Call:
    shape = draw.shape(1, 3)
    return Call((draw.scores(*shape), _indices(draw, shape, masks=False)))


@call_of("_index_put_impl_")
def _index_put(draw: Draw) -> Call:
    shape = draw.shape(1, 3)
    tensor = draw.scores(*shape)
    return Call((tensor, _indices(draw, shape), torch.ones((), dtype=tensor.dtype), draw.bool(), draw.bool()))


def _along(draw: Draw) -> tuple[torch.Tensor, int, int]:
    """A tensor, one of its dimensions and the size of that."""
    tensor = draw.scores(*draw.shape(0, 3))
    if tensor.dim() == 0:
        return tensor, draw.pick((0, -1)), 1
    dim = draw.int(-tensor.dim(), tensor.dim() - 1)
    return tensor, dim, tensor.size(dim)


def _slab(tensor: torch.Tensor, dim: int, count: int) -> tuple[int, ...]:
    shape = list(tensor.shape)
    if shape:
        shape[dim] = count
    return tuple(shape)


@call_of("index_select")
def _index_select(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    shape = () if draw.int(0, 5) == 0 else (draw.int(0, 4) if tensor.dim() else 1,)
    return Call((tensor, dim, draw.values(shape, 0, size - 1, draw.pick((INT, LONG)))))


@call_of("index_add", "index_add_")
def _index_add(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    count = draw.int(0, 4) if tensor.dim() else 1
    index = draw.values((count,), 0, size - 1, draw.pick((INT, LONG)))
    source = torch.ones(_slab(tensor, dim, count), dtype=tensor.dtype)
    # The CPU does nothing for an empty self, even where the source has slices to put somewhere.
    return Call((tensor, dim, index, source), broken=True if size == 0 and source.numel() else None)


@call_of("index_copy", "index_copy_")
def _index_copy(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    count = draw.int(0, 4) if tensor.dim() else 1
    index = draw.values((count,), 0, size - 1)
    return Call((tensor, dim, index, torch.ones(_slab(tensor, dim, count), dtype=tensor.dtype)))


@call_of("index_reduce", "index_reduce_")
def _index_reduce(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    count = draw.int(0, 4) if tensor.dim() else 1
    index = draw.values((count,), 0, size - 1, draw.pick((INT, LONG)))
    source = torch.ones(_slab(tensor, dim, count), dtype=tensor.dtype)
    return Call((tensor, dim, index, source, draw.pick(("prod", "mean", "amax", "amin"))), {"include_self": draw.bool()})


@call_of("index_fill_.int_Scalar", "index_fill_.int_Tensor")
def _index_fill(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    index = draw.values(() if draw.int(0, 5) == 0 else (draw.int(0, 4),), -size, size - 1)
    return Call((tensor, dim, index, 1.0))


CALLS["aten::index_fill_.int_Tensor"] = lambda draw: (
    lambda call: Call((*call.args[:3], torch.ones((), dtype=call.args[0].dtype)), broken=call.broken)
)(_index_fill(draw))


@call_of("take")
def _take(draw: Draw) -> Call:
    tensor = draw.scores(*draw.shape(0, 3))
    return Call((tensor, draw.values(draw.shape(0, 2), -tensor.numel(), tensor.numel() - 1)))


@call_of("put_")
def _put(draw: Draw) -> Call:
    call = _take(draw)
    tensor, index = call.args
    return Call((tensor, index, torch.ones(index.shape, dtype=tensor.dtype), draw.bool()))


def _part(draw: Draw, shape: Sequence[int], dim: int, *, free: bool = True) -> tuple[int, ...]:
    """A shape not larger than ``shape`` outside ``dim``."""
    out = [draw.int(0 if draw.int(0, 5) == 0 else min(1, size), size) for size in shape]
    if out and free:
        out[dim] = draw.int(0, 5)
    return tuple(out)


@call_of("gather")
def _gather(draw: Draw) -> Call:
    tensor, dim, size = _along(draw)
    return Call((tensor, dim, draw.values(_part(draw, tensor.shape, dim), 0, size - 1)))


def _scatter(draw: Draw, *tail: Any, source: bool) -> Call:
    tensor, dim, size = _along(draw)
    index = draw.values(_part(draw, tensor.shape, dim), 0, size - 1)
    fill = torch.ones(index.shape, dtype=tensor.dtype) if source else 1.0
    return Call((tensor, dim, index, fill, *tail))


@call_of("scatter.src", "scatter_.src", "scatter_add", "scatter_add_")
def _scatter_src(draw: Draw) -> Call:
    return _scatter(draw, source=True)


@call_of("scatter.value", "scatter_.value")
def _scatter_value(draw: Draw) -> Call:
    return _scatter(draw, source=False)


@call_of("scatter.reduce", "scatter_.reduce")
def _scatter_with_reduce(draw: Draw) -> Call:
    call = _scatter(draw, source=True)
    return Call(call.args, {"reduce": draw.pick(("add", "multiply"))})


@call_of("scatter.value_reduce", "scatter_.value_reduce")
def _scatter_value_reduce(draw: Draw) -> Call:
    call = _scatter(draw, source=False)
    return Call(call.args, {"reduce": draw.pick(("add", "multiply"))})


@call_of("scatter_reduce.two", "scatter_reduce_.two")
def _scatter_reduce(draw: Draw) -> Call:
    call = _scatter(draw, draw.pick(("sum", "prod", "mean", "amax", "amin")), source=True)
    return Call(call.args, {"include_self": draw.bool()})


@call_of("take_along_dim")
def _take_along_dim(draw: Draw) -> Call:
    if draw.int(0, 3) == 0:
        tensor = draw.scores(*draw.shape(1, 2, lowest=1))
        return Call((tensor, draw.values((draw.int(0, 4),), 0, tensor.numel() - 1), None))
    tensor = draw.scores(*draw.shape(1, 3, lowest=1))
    dim = draw.int(-tensor.dim(), tensor.dim() - 1)
    shape = [draw.pick((1, size)) for size in tensor.shape]
    shape[dim] = draw.int(0, 4)
    index = draw.values(shape, -tensor.size(dim), tensor.size(dim) - 1)
    return Call((tensor, index, dim), broken=strays(index, -tensor.size(dim), tensor.size(dim) - 1))


@call_of("one_hot")
def _one_hot(draw: Draw) -> Call:
    classes = draw.int(1, 5)
    shape = draw.shape(0, 2)
    labels = draw.values(shape, 0, classes - 1)
    infer = draw.bool() and labels.numel() > 0 and int(labels.max()) < 1000
    return Call((labels, -1 if infer else classes))


@call_of("masked_scatter_")
def _masked_scatter(draw: Draw) -> Call:
    tensor = draw.scores(*draw.shape(0, 3))
    mask = draw.scores(*(draw.pick((1, size)) for size in tensor.shape)) > (-3 if draw.int(0, 3) == 0 else 0)
    ones = int(mask.expand(tensor.shape).sum())
    count = max(0, ones + {"good": draw.int(0, 3), "edge": draw.int(-1, 1), "far": -draw.int(0, 9)}[draw.mood])
    return Call((tensor, mask, torch.ones(count, dtype=tensor.dtype)))


@call_of("repeat_interleave.Tensor")
def _repeat_interleave(draw: Draw) -> Call:
    repeats = draw.values((draw.int(0, 4),), 0, 3, draw.pick((INT, LONG))).clamp(max=9)
    total = int(repeats.clamp(min=0).sum())
    size = draw.pick((None, total, total if draw.mood == "good" else total + draw.int(-1, 1)))
    return Call((repeats,), {"output_size": None if size is None else max(size, 0)})


@call_of("quantile", "nanquantile")
def _quantile(draw: Draw) -> Call:
    dtype = draw.pick(FLOATS)
    tensor = draw.scores(*draw.shape(1, 2, lowest=1), dtype=dtype)
    return Call((tensor, draw.reals(draw.shape(0, 1), 0.0, 1.0, dtype), draw.pick((None, 0, -1))))


def _sorter(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    sequence = draw.scores(*draw.shape(1, 2), dtype=torch.float32).sort(-1).values
    return sequence, draw.values(sequence.shape, 0, sequence.size(-1) - 1)


@call_of("searchsorted.Tensor")
def _searchsorted(draw: Draw) -> Call:
    sequence, sorter = _sorter(draw)
    queries = draw.scores(*sequence.shape[:-1], draw.int(0, 3), dtype=sequence.dtype)
    return Call((sequence, queries), {"sorter": sorter if draw.int(0, 9) else None})


@call_of("searchsorted.Scalar")
def _searchsorted_scalar(draw: Draw) -> Call:
    sequence = draw.scores(draw.int(0, 4), dtype=torch.float32).sort(-1).values
    return Call((sequence, 0.5), {"sorter": draw.values(sequence.shape, 0, sequence.size(-1) - 1)})


@call_of("bincount")
def _bincount(draw: Draw) -> Call:
    # no far values: the result is as long as the largest
    values = draw.values((draw.int(0, 6),), 0, 5, draw.pick((LONG, INT, torch.int8, torch.uint8)))
    return Call((values.clamp(max=100),))


for _name, _out in (
    ("index.Tensor", "index.Tensor_out"),
    ("index_select", "index_select.out"),
    ("index_add", "index_add.out"),
    ("index_copy", "index_copy.out"),
    ("index_reduce", "index_reduce.out"),
    ("take", "take.out"),
    ("gather", "gather.out"),
    ("scatter.src", "scatter.src_out"),
    ("scatter.value", "scatter.value_out"),
    ("scatter.reduce", "scatter.reduce_out"),
    ("scatter.value_reduce", "scatter.value_reduce_out"),
    ("scatter_add", "scatter_add.out"),
    ("scatter_reduce.two", "scatter_reduce.two_out"),
    ("take_along_dim", "take_along_dim.out"),
    ("quantile", "quantile.out"),
    ("nanquantile", "nanquantile.out"),
):
    with_out(_name, _out, "out")
with_out("searchsorted.Tensor", "searchsorted.Tensor_out", "out", dtypes=lambda call: [LONG])
with_out("searchsorted.Scalar", "searchsorted.Scalar_out", "out", dtypes=lambda call: [LONG])


# --- losses ------------------------------------------------------------------------------------------------------------


def _ignore(draw: Draw, classes: int) -> int:
    return draw.pick((-100, -1, 255, draw.int(0, classes - 1)))


def _nll_target(draw: Draw, shape: tuple[int, ...], classes: int, ignore: int, *, bytes_too: bool) -> torch.Tensor:
    byte = bytes_too and draw.int(0, 3) == 0
    also = (ignore,) if not byte or 0 <= ignore <= 255 else ()
    return draw.values(shape, 0, classes - 1, torch.uint8 if byte else LONG, also)


@call_of("nll_loss_forward")
def _nll(draw: Draw) -> Call:
    classes = draw.pick((1, 2, 5, 300))
    ignore = _ignore(draw, classes)
    batch = () if draw.int(0, 3) == 0 else (draw.int(0, 4),)
    dtype = draw.pick(FLOATS)
    weight = torch.ones(classes, dtype=dtype) if draw.bool() else None
    target = _nll_target(draw, batch, classes, ignore, bytes_too=True)
    return Call((torch.randn(*batch, classes, dtype=dtype), target, weight, draw.int(0, 2), ignore))


@call_of("nll_loss2d_forward")
def _nll2d(draw: Draw) -> Call:
    classes = draw.pick((1, 2, 5, 300))
    ignore = _ignore(draw, classes)
    n, h, w = draw.int(0, 2), draw.int(1, 3), draw.int(1, 3)
    dtype = draw.pick(FLOATS)
    weight = torch.ones(classes, dtype=dtype) if draw.bool() else None
    target = _nll_target(draw, (n, h, w), classes, ignore, bytes_too=False)
    return Call((torch.randn(n, classes, h, w, dtype=dtype), target, weight, draw.int(0, 2), ignore))


def _with_grad(maker: Maker, *tail: Callable[[Call], Any], none_is: int = 3) -> Maker:
    """The backward of a loss: ``grad_output`` first, of the target's shape where nothing was reduced."""

    def make(draw: Draw) -> Call:
        call = maker(draw)
        scores, target = call.args[:2]
        whole = call.args[none_is] != 0
        grad = torch.ones(() if whole else target.shape, dtype=scores.dtype)
        made = Call((grad, *call.args, *(part(call) for part in tail)))
        if not whole and none_is == 3:
            # without a reduction the CPU kernels of nll_loss write without a look
            classes, ignore = scores.size(1 if scores.dim() > 1 else 0), call.args[4]
            made.broken = any(not 0 <= value < classes and value != ignore for value in target.reshape(-1).tolist())
        return made

    return make


CALLS["aten::nll_loss_backward"] = _with_grad(_nll, lambda call: torch.ones((), dtype=call.args[0].dtype))
CALLS["aten::nll_loss2d_backward"] = _with_grad(_nll2d, lambda call: torch.ones((), dtype=call.args[0].dtype))


@call_of("multi_margin_loss")
def _multi_margin(draw: Draw) -> Call:
    classes = draw.int(1, 5)
    batch = () if draw.int(0, 3) == 0 else (draw.int(1, 4),)
    return Call((draw.scores(*batch, classes), draw.values(batch, 0, classes - 1), draw.int(1, 2), 1.0, None, draw.int(0, 2)))


CALLS["aten::multi_margin_loss_backward"] = _with_grad(_multi_margin, none_is=5)


@call_of("multilabel_margin_loss_forward")
def _multilabel_margin(draw: Draw) -> Call:
    classes = draw.int(1, 5)
    batch = () if draw.int(0, 3) == 0 else (draw.int(0, 3),)
    return Call((draw.scores(*batch, classes), draw.values((*batch, classes), -1, classes - 1), draw.int(0, 2)))


@call_of("multilabel_margin_loss_backward")
def _multilabel_margin_backward(draw: Draw) -> Call:
    scores, target, reduction = _multilabel_margin(draw).args
    grad = torch.ones(scores.shape[:-1] if reduction == 0 else (), dtype=scores.dtype)
    return Call((grad, scores, target, reduction, torch.zeros_like(scores)))


@call_of("binary_cross_entropy")
def _bce(draw: Draw) -> Call:
    shape = draw.shape(0, 2)
    dtype = draw.pick((*FLOATS, torch.float16, torch.bfloat16))
    return Call((draw.reals(shape, 0.0, 1.0, dtype), draw.reals(shape, 0.0, 1.0, dtype), None, draw.int(0, 2)))


with_out("nll_loss_forward", "nll_loss_forward.output", "output", "total_weight")
with_out("nll_loss2d_forward", "nll_loss2d_forward.output", "output", "total_weight")
with_out("nll_loss_backward", "nll_loss_backward.grad_input", "grad_input")
with_out("nll_loss2d_backward", "nll_loss2d_backward.grad_input", "grad_input")
with_out("multi_margin_loss", "multi_margin_loss.out", "out")
with_out("multi_margin_loss_backward", "multi_margin_loss_backward.grad_input", "grad_input")
with_out("multilabel_margin_loss_forward", "multilabel_margin_loss_forward.output", "output", "is_target")
with_out("multilabel_margin_loss_backward", "multilabel_margin_loss_backward.grad_input", "grad_input")
with_out("binary_cross_entropy", "binary_cross_entropy.out", "out")


def _ctc(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int], int, bool]:
    """Arguments of CTC with lengths that are right, and whether a label breaks the contract."""
    steps, batch, classes = draw.int(6, 8), draw.int(1, 3), draw.int(2, 5)
    blank = draw.pick((0, classes - 1, draw.int(0, classes - 1)))
    labels = [label for label in range(classes) if label != blank]
    longest = draw.int(1, 3)
    lengths = [draw.int(0, longest) for _ in range(batch)]
    padded = draw.bool()
    rows = []
    broken = False
    for length in lengths:
        row = [draw.pick(labels) for _ in range(length)]
        if row and draw.mood != "good" and draw.bool():
            row[draw.int(0, length - 1)] = draw.pick((blank, classes, -1) if draw.mood == "edge" else (-100, 2**20))
            broken = broken or any(label not in labels for label in row)
        # what lies behind a sequence's length is never looked at
        rows.append(row + [draw.pick((blank, -1, 99)) for _ in range(longest - length)] if padded else row)
    flat = [label for row in rows for label in row]
    targets = torch.tensor(flat, dtype=draw.pick((LONG, INT)))
    if padded:
        targets = targets.reshape(batch, longest)
    log_probs = draw.scores(steps, batch, classes).log_softmax(2)
    return log_probs, targets, [steps] * batch, lengths, blank, broken


@call_of("_ctc_loss")
def _ctc_loss(draw: Draw) -> Call:
    log_probs, targets, inputs, lengths, blank, broken = _ctc(draw)
    if draw.int(0, 4) == 0 and not broken:
        # a wrong length is refused by the kernel itself
        wrong, longest = draw.pick((inputs, lengths)), max(targets.shape[-1], 1)
        wrong[0] = draw.pick(((len(log_probs) if wrong is inputs else longest) + 1, -1))
        return Call((log_probs, targets, inputs, lengths, blank, draw.bool()))
    return Call((log_probs, targets, inputs, lengths, blank, draw.bool()), broken=broken)


@call_of("_ctc_loss.Tensor")
def _ctc_loss_tensors(draw: Draw) -> Call:
    log_probs, targets, inputs, lengths, blank, broken = _ctc(draw)
    if draw.int(0, 4) == 0 and not broken:
        # a wrong length is refused by the kernel itself
        inputs = [draw.pick((len(log_probs) + 1, -1)), *inputs[1:]]
        return Call((log_probs, targets, torch.tensor(inputs), torch.tensor(lengths), blank, draw.bool()))
    return Call((log_probs, targets, torch.tensor(inputs), torch.tensor(lengths), blank, draw.bool()), broken=broken)


@call_of("_cudnn_ctc_loss")
def _cudnn_ctc_loss(draw: Draw) -> Call:
    log_probs, targets, inputs, lengths, blank, broken = _ctc(draw)
    return Call((log_probs, targets, inputs, lengths, blank, False, True), broken=broken, no_kernel=True)


@call_of("_cudnn_ctc_loss.Tensor")
def _cudnn_ctc_loss_tensors(draw: Draw) -> Call:
    log_probs, targets, inputs, lengths, blank, broken = _ctc(draw)
    inputs[0] = draw.pick((inputs[0], inputs[0], inputs[0] + 1, -1))
    broken = broken or not 0 <= inputs[0] <= len(log_probs)
    return Call(
        (log_probs, targets, torch.tensor(inputs), torch.tensor(lengths), blank, False, True), broken=broken, no_kernel=True
    )


@call_of("_ctc_loss_backward")
def _ctc_backward(draw: Draw) -> Call:
    log_probs, targets, inputs, lengths, blank, broken = _ctc(draw)
    good = targets.masked_fill((targets < 0) | (targets >= log_probs.size(2)), 0)
    loss, alpha = torch.ops.aten._ctc_loss(log_probs, good, inputs, lengths, blank, False)
    return Call((torch.ones_like(loss), log_probs, targets, inputs, lengths, loss, alpha, blank, True), broken=broken)


@call_of("_ctc_loss_backward.Tensor")
def _ctc_backward_tensors(draw: Draw) -> Call:
    call = _ctc_backward(draw)
    grad, log_probs, targets, inputs, lengths, *rest = call.args
    return Call((grad, log_probs, targets, torch.tensor(inputs), torch.tensor(lengths), *rest), broken=call.broken)


# --- pooling -----------------------------------------------------------------------------------------------------------


@call_of("max_unpool2d")
def _max_unpool2d(draw: Draw) -> Call:
    shape = (*draw.shape(1, 2, lowest=1, highest=2), draw.int(1, 3), draw.int(1, 3))
    out = [draw.int(1, 4), draw.int(1, 4)]
    return Call((draw.scores(*shape[-4:]), draw.values(shape, 0, math.prod(out) - 1), out))


@call_of("max_unpool3d")
def _max_unpool3d(draw: Draw) -> Call:
    shape = (*draw.shape(1, 2, lowest=1, highest=2), draw.int(1, 2), draw.int(1, 3), draw.int(1, 3))
    out = [draw.int(1, 3), draw.int(1, 3), draw.int(1, 3)]
    return Call((draw.scores(*shape), draw.values(shape, 0, math.prod(out) - 1), out, [1, 1, 1], [0, 0, 0]))


def _pooled(draw: Draw, dims: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int], bool]:
    """Input, gradient of the output, indices, window, and whether an index leaves the plane. Windows do not overlap."""
    window = [draw.int(1, 2) for _ in range(dims)]
    out = [draw.int(1, 2) for _ in range(dims)]
    lead = (draw.int(1, 2), draw.int(1, 2))
    plane = [width * count for width, count in zip(window, out, strict=True)]
    tensor = draw.scores(*lead, *plane)
    indices = draw.values((*lead, *out), 0, math.prod(plane) - 1)
    return tensor, torch.ones((*lead, *out), dtype=tensor.dtype), indices, window, strays(indices, 0, math.prod(plane) - 1)


def _pool_maker(dims: int) -> Maker:
    def make(draw: Draw) -> Call:
        tensor, grad, indices, window, broken = _pooled(draw, dims)
        return Call((grad, tensor, window, window, [0] * dims, [1] * dims, False, indices), broken=broken)

    return make


def _adaptive_maker(dims: int) -> Maker:
    def make(draw: Draw) -> Call:
        tensor, grad, indices, _window, broken = _pooled(draw, dims)
        return Call((grad, tensor, indices), broken=broken)

    return make


def _fractional_maker(dims: int) -> Maker:
    def make(draw: Draw) -> Call:
        tensor, grad, indices, window, _broken = _pooled(draw, dims)
        return Call((grad, tensor, window, list(grad.shape[2:]), indices))

    return make


for _dims in (2, 3):
    CALLS[f"aten::max_pool{_dims}d_with_indices_backward"] = _pool_maker(_dims)
    CALLS[f"aten::adaptive_max_pool{_dims}d_backward"] = _adaptive_maker(_dims)
    CALLS[f"aten::fractional_max_pool{_dims}d_backward"] = _fractional_maker(_dims)
    with_out(f"max_unpool{_dims}d", f"max_unpool{_dims}d.out", "out")
    for _name in (f"max_pool{_dims}d_with_indices", f"adaptive_max_pool{_dims}d", f"fractional_max_pool{_dims}d"):
        with_out(f"{_name}_backward", f"{_name}_backward.grad_input", "grad_input")


# --- sampling ----------------------------------------------------------------------------------------------------------


@call_of("multinomial")
def _multinomial(draw: Draw) -> Call:
    shape = (*draw.shape(0, 1, lowest=0, highest=3), draw.int(1, 5))
    weights = draw.reals(shape, 0.0, 1.0, draw.pick((*FLOATS, torch.float16, torch.bfloat16)))
    replacement = draw.bool()
    return Call((weights, draw.int(1, 3 if replacement else shape[-1]), replacement))


with_out("multinomial", "multinomial.out", "out", dtypes=lambda call: [LONG])


@call_of("bernoulli")
def _bernoulli(draw: Draw) -> Call:
    return Call((draw.reals(draw.shape(0, 2), 0.0, 1.0),))


with_out("bernoulli", "bernoulli.out", "out")


@call_of("bernoulli_.Tensor", "bernoulli.Tensor")
def _bernoulli_in_place(draw: Draw) -> Call:
    shape = draw.shape(0, 2)
    return Call((torch.zeros(shape, dtype=draw.pick((*FLOATS, LONG, torch.bool))), draw.reals(shape, 0.0, 1.0)))


CALLS["aten::bernoulli.Tensor"] = lambda draw: Call((torch.zeros(2), draw.reals((2,), 0.0, 1.0)))


@call_of("poisson")
def _poisson(draw: Draw) -> Call:
    return Call((draw.reals(draw.shape(0, 2), 0.0, 3.0),))


def _outside(tensor: torch.Tensor, lowest: float, highest: float) -> bool:
    return any(not lowest <= value <= highest for value in tensor.reshape(-1).tolist())


@call_of("binomial")
def _binomial(draw: Draw) -> Call:
    shape, dtype = draw.shape(0, 2), draw.pick(FLOATS)
    count, prob = draw.reals(shape, 0.0, 9.0, dtype).floor(), draw.reals(shape, 0.0, 1.0, dtype)
    return Call((count, prob), broken=_outside(count, 0, math.inf) or _outside(prob, 0, 1))


@call_of("_standard_gamma", "_sample_dirichlet")
def _gamma(draw: Draw) -> Call:
    alpha = draw.reals((*draw.shape(0, 1), draw.int(1, 3)), 0.0, 2.0)
    return Call((alpha,), broken=_outside(alpha, 0, math.inf))


@call_of("normal.float_Tensor")
def _normal(draw: Draw) -> Call:
    return Call((0.0, draw.reals(draw.shape(0, 2), 0.0, 2.0)))


@call_of("normal.Tensor_Tensor")
def _normal_tensors(draw: Draw) -> Call:
    deviation = draw.reals(draw.shape(0, 2), 0.0, 2.0)
    return Call((torch.zeros_like(deviation), deviation))


with_out("normal.float_Tensor", "normal.float_Tensor_out", "out")
with_out("normal.Tensor_Tensor", "normal.Tensor_Tensor_out", "out")


@call_of("_assert_async")
def _assert_async(draw: Draw) -> Call:
    value = draw.pick((0, 1, -1, 0.5, math.nan))
    dtype = draw.pick((torch.float32, torch.bool)) if isinstance(value, float) else draw.pick((torch.bool, LONG, torch.float32))
    return Call((torch.tensor([value] if draw.bool() else value, dtype=dtype),))


CALLS["aten::_assert_async.msg"] = lambda draw: Call((*_assert_async(draw).args, "a message"))
CALLS["aten::_functional_assert_async.msg"] = lambda draw: Call((*_assert_async(draw).args, "a message", torch.zeros(1)))


# --- linear algebra ----------------------------------------------------------------------------------------------------


@call_of("lu_unpack")
def _lu_unpack(draw: Draw) -> Call:
    rows, columns = draw.int(1, 4), draw.int(1, 4)
    pivots = draw.values((*draw.shape(0, 1, lowest=1), min(rows, columns)), 1, rows, INT)
    unpack = draw.int(0, 4) > 0
    return Call((draw.scores(*pivots.shape[:-1], rows, columns), pivots, True, unpack))


with_out("lu_unpack", "lu_unpack.out", "P", "L", "U")


@call_of("linalg_lu_solve")
def _lu_solve(draw: Draw) -> Call:
    rows = draw.int(1, 4)
    pivots = draw.values((*draw.shape(0, 1, lowest=1), rows), 1, rows, INT)
    factor = torch.eye(rows, dtype=torch.float64).expand(*pivots.shape[:-1], rows, rows).contiguous()
    return Call((factor, pivots, torch.ones(*pivots.shape[:-1], rows, 2, dtype=torch.float64)))


with_out("linalg_lu_solve", "linalg_lu_solve.out", "out")


@call_of("linalg_ldl_solve")
def _ldl_solve(draw: Draw) -> Call:
    rows = draw.int(1, 4)
    pivots = draw.values((rows,), 1, rows, INT)
    if draw.mood == "edge":
        pivots[0] = draw.pick((0, -rows - 1, rows + 1))
    factor = torch.eye(rows, dtype=torch.float64)
    return Call((factor, pivots, torch.ones(rows, 1, dtype=torch.float64)), broken=strays(pivots, 1, rows))


with_out("linalg_ldl_solve", "linalg_ldl_solve.out", "out")


# --- sparse, jagged, packed --------------------------------------------------------------------------------------------


@call_of("segment_reduce")
def _segment_reduce(draw: Draw) -> Call:
    size = draw.int(0, 5)
    data = draw.scores(size, 2)
    reduce = draw.pick(("sum", "mean", "max", "min"))
    dtype = draw.pick((INT, LONG))
    if draw.int(0, 2) == 0:
        offsets = draw.offsets(draw.int(2, 4), size, starts=draw.bool(), dtype=dtype)
        return Call((data, reduce), {"offsets": offsets, "axis": 0, "initial": 0}, broken=not_cuts(offsets, size, starts=False))
    cuts = torch.tensor([0, *sorted(draw.int(0, size) for _ in range(draw.int(0, 3))), size])
    lengths = cuts.diff().to(dtype)
    if draw.mood != "good":
        lengths[draw.int(0, len(lengths) - 1)] += draw.pick((-1, 1) if draw.mood == "edge" else (-9, 9, 0))
    unsafe = draw.int(0, 3) == 0
    values = lengths.tolist()
    broken = min(values) < 0 or sum(values) > size if unsafe else None
    return Call((data, reduce), {"lengths": lengths, "axis": 0, "unsafe": unsafe, "initial": 0}, broken=broken)


@call_of("_segment_reduce_backward")
def _segment_reduce_backward(draw: Draw) -> Call:
    call = _segment_reduce(draw)
    data, reduce = call.args
    lengths, offsets = call.kwargs.get("lengths"), call.kwargs.get("offsets")
    count = len(lengths) if lengths is not None else len(offsets) - 1
    out = torch.ones(count, 2, dtype=data.dtype)
    if lengths is not None:
        broken = min(lengths.tolist()) < 0 or sum(lengths.tolist()) > len(data)
        return Call((out, out, data, reduce), {"lengths": lengths, "axis": 0, "initial": 0}, broken=broken)
    return Call((out, out, data, reduce), {"offsets": offsets, "axis": 0, "initial": 0}, broken=call.broken)


@call_of("_validate_compressed_sparse_indices")
def _validate(draw: Draw) -> Call:
    rows, columns, dtype = draw.int(1, 4), draw.int(1, 4), draw.pick((INT, LONG))
    taken = [sorted(draw.random.sample(range(columns), draw.int(0, columns))) for _ in range(rows)]
    cuts = torch.tensor([0, *(len(row) for row in taken)]).cumsum(0)
    plain = torch.tensor([column for row in taken for column in row])
    count = len(plain)
    for tensor, top in ((cuts, count), (plain, columns)):
        if draw.mood != "good" and len(tensor) and draw.bool():
            tensor[draw.int(0, len(tensor) - 1)] = draw.pick((-1, 0, top, top + 1) if draw.mood == "edge" else (-9, top + 9))
    return Call((draw.bool(), cuts.to(dtype), plain.to(dtype), rows, columns, count))


@call_of("_convert_indices_from_csr_to_coo")
def _csr_to_coo(draw: Draw) -> Call:
    count = draw.int(0, 5)
    cuts = draw.offsets(draw.int(2, 4), count, ends=True)
    broken = not_cuts(cuts, count, ends=True)
    return Call((cuts, torch.zeros(count, dtype=LONG)), broken=broken)


with_out("_convert_indices_from_csr_to_coo", "_convert_indices_from_csr_to_coo.out", "out")


@call_of("_sparse_coo_tensor_unsafe", "sparse_coo_tensor.indices_size")
def _coo(draw: Draw) -> Call:
    size = draw.shape(1, 3)
    sparse = draw.int(1, len(size))
    count = draw.int(0, 4) if all(size[:sparse]) else 0
    rows = [draw.values((count,), 0, extent - 1) for extent in size[:sparse]]
    broken = any(strays(row, 0, extent - 1) for row, extent in zip(rows, size, strict=False))
    return Call((torch.stack(rows), torch.ones(count, *size[sparse:]), list(size)), broken=broken)


@call_of("_jagged_to_padded_dense_forward")
def _jagged_to_padded(draw: Draw) -> Call:
    size = draw.int(1, 5)
    offsets = draw.offsets(draw.int(2, 4), size, starts=draw.bool())
    return Call((draw.scores(size, 2, dtype=torch.float32), [offsets], [size], 0.0), broken=not_cuts(offsets, size, starts=False))


@call_of("_padded_dense_to_jagged_forward")
def _padded_to_jagged(draw: Draw) -> Call:
    size = draw.int(1, 5)
    offsets = draw.offsets(draw.int(2, 4), size, ends=True)
    broken = not_cuts(offsets, size, starts=False, ends=True)
    return Call((draw.scores(len(offsets) - 1, size, 2, dtype=torch.float32), [offsets], size), broken=broken)


def _grouped(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    groups, m, k, n = draw.int(1, 3), draw.int(1, 4) * 8, 8, draw.int(1, 2) * 8
    kind = draw.int(0, 2)
    left = torch.ones((groups, m, k) if kind == 2 else (m, k), dtype=torch.bfloat16)
    right = torch.ones((groups, k, n) if kind == 0 else (k, n), dtype=torch.bfloat16)
    length = (m, k, n)[kind]
    offsets = draw.offsets(groups, length, starts=False, dtype=INT)
    return left, right, offsets, not_cuts(offsets, length, starts=False)


@call_of("_grouped_mm")
def _grouped_mm(draw: Draw) -> Call:
    left, right, offsets, broken = _grouped(draw)
    return Call((left, right, offsets), broken=broken)


@call_of("_scaled_grouped_mm")
def _scaled_grouped_mm(draw: Draw) -> Call:
    left, right, offsets, broken = _grouped(draw)
    return Call((left, right, torch.ones(1), torch.ones(1), offsets), broken=broken, no_kernel=True)


@call_of("_scaled_grouped_mm_v2")
def _scaled_grouped_mm_v2(draw: Draw) -> Call:
    left, right, offsets, broken = _grouped(draw)
    return Call((left, right, [], [], [], [], [], [], offsets), broken=broken, no_kernel=True)


def _packed(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, bool, bool]:
    queries, keys, count = draw.int(1, 6), draw.int(1, 6), draw.int(2, 4)
    q, k = draw.offsets(count, queries, dtype=INT), draw.offsets(count, keys, dtype=INT)
    return (
        torch.zeros(queries, 1, 8),
        torch.zeros(keys, 1, 8),
        q,
        k,
        not_cuts(q, queries, starts=False),
        not_cuts(k, keys, starts=False),
    )


def _ahead(cuts: torch.Tensor) -> bool:
    return not_cuts(cuts, 2**62, starts=False)


@call_of("_flash_attention_forward")
def _flash(draw: Draw) -> Call:
    query, key, q, k, broken, _ = _packed(draw)
    return Call((query, key, key, q, k, 6, 6, 0.0, False, False), broken=broken or _ahead(k), no_kernel=True)


@call_of("_flash_attention_forward.quantized")
def _flash_quantized(draw: Draw) -> Call:
    call = _flash(draw)
    return Call((*call.args, None, None, None), broken=call.broken, no_kernel=True)


@call_of("_flash_attention_forward_no_dropout_inplace")
def _flash_in_place(draw: Draw) -> Call:
    call = _flash(draw)
    return Call((torch.zeros_like(call.args[0]), *call.args), broken=call.broken, no_kernel=True)


@call_of("_flash_attention_backward")
def _flash_backward(draw: Draw) -> Call:
    query, key, q, k, q_broken, k_broken = _packed(draw)
    return Call(
        (query, query, key, key, query, query, q, k, 6, 6, 0.0, False, query, query), broken=q_broken or k_broken, no_kernel=True
    )


@call_of("_efficient_attention_forward")
def _efficient(draw: Draw) -> Call:
    query, key, q, k, q_broken, k_broken = _packed(draw)
    query, key = query.unsqueeze(0), key.unsqueeze(0)
    return Call((query, key, key, None, q, k, 6, 6, 0.0, 0), broken=q_broken or k_broken, no_kernel=True)


@call_of("_efficient_attention_backward")
def _efficient_backward(draw: Draw) -> Call:
    query, key, q, k, q_broken, k_broken = _packed(draw)
    query, key = query.unsqueeze(0), key.unsqueeze(0)
    args = (query, query, key, key, None, query, q, k, 6, 6, query, 0.0, query, query, 0, False)
    return Call(args, broken=q_broken or k_broken, no_kernel=True)
