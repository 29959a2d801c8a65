"""Which kernels assert, on which elements, and what the driver then prints.

One function per operator says which threads of its kernel would fail. Files, lines, kernels and expressions are those of
the PyTorch 2.13.0 Linux wheels; block and thread are computed as the real kernel does where that is known, and named as
approximate in the function's docstring where it is not. A thread that failed an assertion has stopped, so it prints once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from preassert.simgpu.messages import ASSERT, ILLEGAL_ADDRESS, CudaError

Arguments = Mapping[str, Any]  # argument name of the operator's schema -> value, every tensor host-labelled
Dim3 = tuple[int, int, int]
Thread = tuple[Dim3, Dim3]  # block, thread

MAX_LINES = 16_384  # the driver's buffer for assertion records is finite too

_PREFIX = "/__w/pytorch/pytorch/aten/src/ATen/native/cuda/"


@dataclass(frozen=True, slots=True)
class Assertion:
    """One place in the device code of PyTorch 2.13.0 that asserts."""

    file: str
    line: int
    kernel: str
    expression: str

    def printed(self, block: Dim3, thread: Dim3) -> str:
        b, t = ",".join(map(str, block)), ",".join(map(str, thread))
        return (
            f"{_PREFIX}{self.file}:{self.line}: {self.kernel}: block: [{b}], thread: [{t}] Assertion `{self.expression}` failed."
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens instead of the kernel's result: the lines the driver prints, and the error that stays."""

    error: CudaError
    lines: tuple[str, ...] = ()


def _fault(assertion: Assertion, threads: Iterable[Thread]) -> Fault | None:
    lines: dict[Thread, str] = {}
    for thread in threads:
        lines.setdefault(thread, assertion.printed(*thread))
        if len(lines) == MAX_LINES:
            break
    return Fault(ASSERT, tuple(lines.values())) if lines else None


def _bad_positions(values: torch.Tensor, low: float, high: float, legal: int | None = None) -> list[int]:
    """Positions (row-major) of the values outside [low, high] (NaN is outside); ``legal`` is allowed whatever it is."""
    if not values.numel():
        return []
    bad = ~((values >= low) & (values <= high))
    if legal is not None:
        bad &= values != legal
    if not bool(bad.any()):
        return []
    positions: list[int] = bad.reshape(-1).nonzero().reshape(-1).tolist()
    return positions


def _grid(positions: Iterable[int], threads: int) -> Iterator[Thread]:
    """One element per thread: element = blockIdx.x * blockDim.x + threadIdx.x."""
    return (((p // threads, 0, 0), (p % threads, 0, 0)) for p in positions)


def _strided(positions: Iterable[int], threads: int, items: int) -> Iterator[Thread]:
    """element = blockIdx.x * threads * items + threadIdx.x + threads * k, k < items (TensorIterator's index kernels)."""
    return (((p // (threads * items), 0, 0), (p % threads, 0, 0)) for p in positions)


def _rows(positions: Iterable[int], row: int) -> Iterator[int]:
    """Elements of an index that was expanded over rows of ``row`` elements."""
    return (element for p in positions for element in range(p * row, p * row + row))


# --- classification losses -------------------------------------------------------------------------------------------


def _class_expression(name: str, target: torch.Tensor) -> str:
    upper = f"{name} < n_classes"
    return upper if target.dtype == torch.uint8 else f"{name} >= 0 && {upper}"


def _legal_target(target: torch.Tensor, ignore_index: int) -> int | None:
    # the kernel compares the target widened to int64, so a byte target never equals -100
    return ignore_index if target.dtype != torch.uint8 or 0 <= ignore_index <= 255 else None


def _nll_threads(rows: int) -> int:
    """blockDim.x of the reducing kernel since 2.8: clamp(2^round(log2(N // 16)), 32, 1024)."""
    sixteenth = rows // 16
    return 32 if sixteenth < 1 else max(32, min(1024, 2 ** round(math.log2(sixteenth))))


def _nll(call: Arguments, direction: str, one: int, many: int, none: int) -> Fault | None:
    logits, target = call["self"], call["target"]
    bad = _bad_positions(target, 0, logits.shape[-1] - 1, _legal_target(target, call["ignore_index"]))
    if not bad:
        return None
    kernel = f"nll_loss_{direction}_reduce_cuda_kernel_"
    if logits.dim() == 1:
        return _fault(Assertion("Loss.cu", one, kernel + "1d", _class_expression("t", target)), [((0, 0, 0), (0, 0, 0))])
    if call["reduction"] == 0:
        expression = _class_expression("cur_target", target)
        return _fault(Assertion("Loss.cu", none, f"nll_loss_{direction}_no_reduce_cuda_kernel", expression), _grid(bad, 1024))
    threads = _nll_threads(target.numel())
    return _fault(
        Assertion("Loss.cu", many, kernel + "2d", _class_expression("t", target)), (((0, 0, 0), (i % threads, 0, 0)) for i in bad)
    )


def _nll2d(call: Arguments, direction: str, reduced: int, none: int) -> Fault | None:
    logits, target = call["self"], call["target"]
    bad = _bad_positions(target, 0, logits.shape[1] - 1, _legal_target(target, call["ignore_index"]))
    if not bad:
        return None
    batch, height, width = target.shape
    if call["reduction"] == 0:
        expression = "cur_target >= 0 && cur_target < n_classes"
        # this kernel counts the batch fastest: index = b + N * (h + H * w)
        linear = (p // (height * width) + batch * (p % (height * width) // width + height * (p % width)) for p in bad)
        kernel = f"nll_loss2d_{direction}_no_reduce_kernel"
        return _fault(Assertion("NLLLoss2d.cu", none, kernel, expression), _grid(linear, 1024))
    pixels = height * width
    blocks = max(1, -(-pixels // 1024) // 128)
    threads = (((p // pixels * blocks + p % pixels // 1024 % blocks, 0, 0), (p % pixels % 1024, 0, 0)) for p in bad)
    return _fault(Assertion("NLLLoss2d.cu", reduced, f"nll_loss2d_{direction}_kernel", "t >= 0 && t < n_classes"), threads)


def _classes(logits: torch.Tensor) -> int:
    return logits.shape[-1] if logits.dim() else 1


def _multi_margin(call: Arguments) -> Fault | None:
    bad = _bad_positions(call["target"], 0, _classes(call["self"]) - 1)
    assertion = Assertion(
        "MultiMarginLoss.cu",
        34,
        "MultiMarginLoss_forward_kernel",
        'target_k >= 0 && target_k < dim && "target index is out of bounds"',
    )
    return _fault(assertion, (((row, 0, 0), (t, 0, 0)) for row in bad for t in range(128)))


def _binary_cross_entropy(call: Arguments) -> Fault | None:
    """Block and thread are approximate: the real kernel is a vectorised elementwise one."""
    for line, name in ((89, "self"), (90, "target")):
        bad = _bad_positions(call[name], 0, 1)
        if bad:
            variable = "input_val" if name == "self" else "target_val"
            expression = f"{variable} >= zero && {variable} <= one"
            return _fault(Assertion("Loss.cu", line, "operator()", expression), _strided(bad, 128, 4))
    return None


# --- lookups ---------------------------------------------------------------------------------------------------------

_SMALL_SELECT = Assertion("Indexing.cu", 1524, "indexSelectSmallIndex", "srcIndex < srcSelectDimSize")
_GATHER_ROWS = Assertion(
    "IndexKernelUtils.cu", 19, "vectorized_gather_kernel",
    'ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"',
)  # fmt: skip
_GATHER = Assertion(
    "ScatterGatherKernel.cu",
    203,
    "operator()",
    'idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"',
)
_FILL = Assertion("ScatterGatherKernel.cu", 449, "operator()", 'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"')
_SCATTER_ROWS = Assertion(
    "IndexKernelUtils.cu", 122, "vectorized_scatter_add_kernel",
    'ind >= 0 && ind < self_dim_size && "vectorized scatter add kernel index out of bounds"',
)  # fmt: skip
_INDEX = Assertion("IndexKernel.cu", 111, "operator()", '-sizes[i] <= index && index < sizes[i] && "index out of bounds"')
_INDEX_FILL = Assertion(
    "IndexKernel.cu", 154, "operator()", 'idx >= -self_dim_size && idx < self_dim_size && "index out of bounds"'
)
_INDEX_COPY = Assertion(
    "IndexKernel.cu", 193, "operator()", 'idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"'
)
_TAKE_PUT = Assertion(
    "IndexKernel.cu", 339, "operator()", 'idx < numel && idx >= -numel && "cuda_take_put_kernel() index out of bounds"'
)
_ADD_SMALL = Assertion("Indexing.cu", 1030, "indexFuncSmallIndex", "dstIndex < dstAddDimSize")
_ADD_LARGE = Assertion("Indexing.cu", 1089, "indexFuncLargeIndex", "dstIndex < dstAddDimSize")


def _row_threads(row_bytes: int) -> tuple[int, int]:
    """(threads of a block, blocks in y) of the vectorised row kernels: 16 bytes a thread, whole warps, 256 at most."""
    pieces = row_bytes // 16
    threads = min(256, -(-pieces // 32) * 32)
    return threads, -(-pieces // threads)


def _gathered_rows(bad: list[int], row_bytes: int) -> Iterator[Thread]:
    threads, blocks = _row_threads(row_bytes)
    return (((p, y, 0), (t, 0, 0)) for p in bad for y in range(blocks) for t in range(min(threads, row_bytes // 16)))


def _select_rows(source: torch.Tensor, dim: int, index: torch.Tensor) -> Fault | None:
    """index_select and embedding: up to 16 indices the small kernel, then the row kernel or gather."""
    size = source.shape[dim] if source.dim() else 1
    bad = _bad_positions(index, 0, size - 1)
    if not bad:
        return None
    row = source.numel() // size if size else 1
    row_bytes = row * source.element_size()
    if index.numel() <= 16:  # every thread walks all indices, so all of them fail
        block, blocks = min(row, 128), -(-row // 128)
        return _fault(_SMALL_SELECT, (((b, 0, 0), (t, 0, 0)) for b in range(blocks) for t in range(block)))
    if dim == 0 and row_bytes % 16 == 0 and source.is_contiguous():
        return _fault(_GATHER_ROWS, _gathered_rows(bad, row_bytes))
    return _fault(_GATHER, _strided(_rows(bad, row), 128, 8))


def _embedding(call: Arguments) -> Fault | None:
    return _select_rows(call["weight"], 0, call["indices"])


def _index_select(call: Arguments) -> Fault | None:
    source: torch.Tensor = call["self"]
    return _select_rows(source, call["dim"] % max(source.dim(), 1), call["index"])


def _embedding_renorm(call: Arguments) -> Fault | None:
    rows = call["self"].shape[0]
    assertion = Assertion(
        "Embedding.cu", 252, "embedding_renorm_wrap_indices_kernel",
        'index >= -num_weights && index < num_weights && "embedding_renorm_: index out of bounds"',
    )  # fmt: skip
    return _fault(assertion, _grid(_bad_positions(call["indices"], -rows, rows - 1), 256))


def _embedding_bag(call: Arguments) -> Fault | None:
    weight, indices, offsets = call["weight"], call["indices"], call["offsets"]
    rows, features = weight.shape
    maximum = call["mode"] == 2
    kernel = "EmbeddingBag_updateOutputKernel_" + ("max" if maximum else "sum_mean")
    starts: list[int] = offsets.tolist()
    ends = [*starts[1:], indices.numel()]
    if call["include_last_offset"] and starts:
        starts, ends = starts[:-1], ends[:-1]
    backwards = [bag for bag, (begin, end) in enumerate(zip(starts, ends, strict=True)) if end < begin]
    if backwards:
        assertion = Assertion("EmbeddingBag.cu", 76 if maximum else 137, kernel, "end >= begin")
        return _fault(assertion, _bag_threads(backwards, features))
    bad = _bad_positions(indices, 0, rows - 1)
    bags = sorted({bag for p in bad for bag, (begin, end) in enumerate(zip(starts, ends, strict=True)) if begin <= p < end})
    expression = '!has_invalid_index && "Invalid input index in EmbeddingBag: index out of range [0, numRows)"'
    return _fault(Assertion("EmbeddingBag.cu", 88 if maximum else 148, kernel, expression), _bag_threads(bags, features))


def _bag_threads(bags: Iterable[int], features: int) -> Iterator[Thread]:
    """blockDim is (32, 8): a chunk of 32 features of one bag for each thread.y."""
    chunks_per_bag = -(-features // 32)
    for bag in bags:
        for part in range(chunks_per_bag):
            chunk = bag * chunks_per_bag + part
            for x in range(min(32, features - part * 32)):
                yield (chunk // 8 % 1024, 0, 0), (x, chunk % 8, 0)


def _advanced(call: Arguments) -> Fault | None:
    """x[i], x[i, j] = v: negative indices count from the end. Layouts other than rows of a contiguous tensor are approximate."""
    source: torch.Tensor = call["self"]
    tensors = [(dim, index) for dim, index in enumerate(call["indices"]) if index is not None]
    if not tensors or any(index.dtype in (torch.bool, torch.uint8) for _, index in tensors):
        return None  # masks are checked by their shape, on the host
    shape = torch.broadcast_shapes(*(index.shape for _, index in tensors))
    bad: set[int] = set()
    for dim, index in tensors:
        size = source.shape[dim]
        bad.update(_bad_positions(index.expand(shape), -size, size - 1))
    if not bad:
        return None
    if call.get("accumulate"):
        return _message("")
    indexed = math.prod(source.shape[dim] for dim, _ in tensors)
    row = source.numel() // indexed if indexed else 1
    row_bytes = row * source.element_size()
    reads = "values" not in call
    if reads and len(tensors) == 1 and tensors[0][0] == 0 and source.is_contiguous() and row_bytes % 16 == 0:
        return _fault(_GATHER_ROWS, _gathered_rows(sorted(bad), row_bytes))
    return _fault(_INDEX, _strided(_rows(sorted(bad), row), 128, 4))


def _along_dim(call: Arguments, assertion: Assertion) -> Fault | None:
    """gather and scatter: the index has as many dimensions as the tensor."""
    source: torch.Tensor = call["self"]
    dim = call["dim"] % max(source.dim(), 1)
    bad = _bad_positions(call["index"], 0, (source.shape[dim] if source.dim() else 1) - 1)
    return _fault(assertion, _strided(bad, 128, 8))


def _scatter(call: Arguments) -> Fault | None:
    return _along_dim(call, _FILL if "value" in call else _GATHER)


def _scatter_add(call: Arguments) -> Fault | None:
    """An index expanded along rows of 16-byte multiples takes the row kernel."""
    source, index = call["self"], call["index"]
    if call["dim"] == 0 and index.dim() == 2 and index.stride(1) == 0 and source.is_contiguous():
        row_bytes = index.shape[1] * source.element_size()
        bad = _bad_positions(index[:, 0], 0, source.shape[0] - 1)
        if bad and row_bytes % 16 == 0:
            per_row, _ = _row_threads(row_bytes)
            rows = 256 // per_row
            threads = (
                ((p // rows, 0, 0), (p % rows * per_row + t, 0, 0)) for p in bad for t in range(min(per_row, row_bytes // 16))
            )
            return _fault(_SCATTER_ROWS, threads)
    return _along_dim(call, _GATHER)


def _index_add(call: Arguments) -> Fault | None:
    source, index = call["self"], call["index"]
    size = source.shape[call["dim"]] if source.dim() else 1
    bad = _bad_positions(index, 0, size - 1)
    if not bad:
        return None
    row = source.numel() // size if size else 1
    if index.numel() <= 16:
        block, blocks = min(row, 128), -(-row // 128)
        return _fault(_ADD_SMALL, (((b, 0, 0), (t, 0, 0)) for b in range(blocks) for t in range(block)))
    return _fault(_ADD_LARGE, _grid(_rows(bad, row), 128))


def _index_fill(call: Arguments) -> Fault | None:
    return _whole_rows(call, _INDEX_FILL, wraps=True)


def _index_copy(call: Arguments) -> Fault | None:
    return _whole_rows(call, _INDEX_COPY, wraps=False)


def _whole_rows(call: Arguments, assertion: Assertion, wraps: bool) -> Fault | None:
    source: torch.Tensor = call["self"]
    size = source.shape[call["dim"]] if source.dim() else 1
    bad = _bad_positions(call["index"], -size if wraps else 0, size - 1)
    return _fault(assertion, _strided(_rows(bad, source.numel() // size if size else 1), 128, 4))


def _take_put(call: Arguments) -> Fault | None:
    count = call["self"].numel()
    return _fault(_TAKE_PUT, _strided(_bad_positions(call["index"], -count, count - 1), 128, 4))


def _masked_scatter(call: Arguments) -> Fault | None:
    wanted = int(call["mask"].expand_as(call["self"]).sum())
    if wanted <= call["source"].numel():
        return None
    return _fault(
        Assertion("IndexKernel.cu", 400, "masked_scatter_size_check", "totalElements <= srcSize"), [((0, 0, 0), (0, 0, 0))]
    )


def _repeat_interleave(call: Arguments) -> Fault | None:
    bad = _bad_positions(call["repeats"], 0, math.inf)
    warps = (32 * p + lane for p in bad for lane in range(32))  # one warp for each entry
    return _fault(Assertion("Repeat.cu", 33, "compute_cuda_kernel", "repeat >= 0"), _grid(warps, 512))


def _max_unpool(call: Arguments, line: int, kernel: str, name: str) -> Fault | None:
    plane = math.prod(call["output_size"])
    bad = _bad_positions(call["indices"], 0, plane - 1)
    return _fault(Assertion("MaxUnpooling.cu", line, kernel, f"{name} >= 0 && {name} < outputImageSize"), _grid(bad, 512))


# --- sampling --------------------------------------------------------------------------------------------------------


def _message(text: str) -> Fault | None:
    """``_assert_async``: a single thread prints the message it was given."""
    return _fault(Assertion("TensorCompare.cu", 109, "_assert_async_cuda_kernel", text), [((0, 0, 0), (0, 0, 0))])


def _assert_async(call: Arguments) -> Fault | None:
    return None if bool(call["self"]) else _message(call.get("assert_msg", ""))


def _multinomial(call: Arguments) -> Fault | None:
    probabilities: torch.Tensor = call["self"]
    rows = probabilities.reshape(-1, probabilities.shape[-1]).float()
    invalid = ~torch.isfinite(rows) | (rows < 0)
    empty = rows.sum(-1) <= 0
    if not call["replacement"] or call["num_samples"] == 1:
        if bool(invalid.any()):
            return _message("probability tensor contains either `inf`, `nan` or element < 0")
        return _message("invalid multinomial distribution (sum of probabilities <= 0)") if bool(empty.any()) else None
    negative = _bad_positions(torch.where(rows < 0, 0.0, 1.0), 1, 1)
    if negative:
        columns = rows.shape[-1]
        threads = (((p // columns, 0, 0), (p % columns % 1024, 0, 0)) for p in negative)
        return _fault(Assertion("MultinomialKernel.cu", 60, "renormRowsL1", "!(val < zero)"), threads)
    hopeless = _bad_positions((empty | invalid.any(-1)).float(), 0, 0)
    assertion = Assertion(
        "MultinomialKernel.cu", 112, "binarySearchForMultinomial", "cumdist[size - 1] > static_cast<scalar_t>(0)"
    )
    samples = call["num_samples"]
    return _fault(assertion, (((s // 128, row, 0), (s % 128, 0, 0)) for row in hopeless for s in range(samples)))


def _bernoulli(call: Arguments) -> Fault | None:
    """The group of four (p1..p4) and the block are approximate."""
    probabilities: torch.Tensor = call["p"] if isinstance(call.get("p"), torch.Tensor) else call["self"]
    bad = _bad_positions(probabilities, 0, 1)
    if not bad:
        return None
    slot = bad[0] % 4 + 1
    assertion = Assertion(
        "DistributionTemplates.h", {1: 639, 2: 634, 3: 629, 4: 624}[slot], "operator()", f"0 <= p{slot} && p{slot} <= 1"
    )
    return _fault(assertion, _grid((p // 4 for p in bad if p % 4 + 1 == slot), 512))


def _poisson(call: Arguments) -> Fault | None:
    """Block and thread are approximate."""
    expression = 'lambda >= 0 && "invalid Poisson rate, expected rate to be non-negative"'
    bad = _bad_positions(call["self"], 0, math.inf)
    return _fault(Assertion("Distributions.cu", 49, "operator()", expression), _grid(bad, 512))


# --- kernels that check nothing: the access itself is illegal ---------------------------------------------------------


def _illegal(bad: list[int]) -> Fault | None:
    return Fault(ILLEGAL_ADDRESS) if bad else None


def _ctc(call: Arguments) -> Fault | None:
    return _illegal(_bad_positions(call["targets"], 0, call["log_probs"].shape[-1] - 1))


def _multilabel_margin(call: Arguments) -> Fault | None:
    return _illegal(_bad_positions(call["target"], -1, _classes(call["self"]) - 1))


def _pool_backward(call: Arguments) -> Fault | None:
    spatial = 3 if "3d" in call["operator"] else 2
    return _illegal(_bad_positions(call["indices"], 0, math.prod(call["self"].shape[-spatial:]) - 1))


Check = Callable[[Arguments], "Fault | None"]

# operator (without overload name and trailing underscore) -> which threads fail
CHECKS: dict[str, Check] = {
    "nll_loss_forward": lambda call: _nll(call, "forward", 200, 244, 179),
    "nll_loss_backward": lambda call: _nll(call, "backward", 447, 476, 428),
    "nll_loss2d_forward": lambda call: _nll2d(call, "forward", 108, 75),
    "nll_loss2d_backward": lambda call: _nll2d(call, "backward", 199, 162),
    "multi_margin_loss": _multi_margin,
    "binary_cross_entropy": _binary_cross_entropy,
    "embedding": _embedding,
    "embedding_renorm": _embedding_renorm,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "index_select": _index_select,
    "index": _advanced,
    "_unsafe_index": _advanced,
    "index_put": _advanced,
    "_unsafe_index_put": _advanced,
    "_index_put_impl": _advanced,
    "gather": lambda call: _along_dim(call, _GATHER),
    "scatter": _scatter,
    "scatter_reduce": _scatter,
    "scatter_add": _scatter_add,
    "index_add": _index_add,
    "index_reduce": _index_add,
    "index_fill": _index_fill,
    "index_copy": _index_copy,
    "take": _take_put,
    "put": _take_put,
    "masked_scatter": _masked_scatter,
    "repeat_interleave": _repeat_interleave,
    "max_unpool2d": lambda call: _max_unpool(call, 47, "max_unpooling2d_forward_kernel", "maxind"),
    "max_unpool3d": lambda call: _max_unpool(call, 69, "max_unpooling3d_forward_kernel", "index"),
    "_assert_async": _assert_async,
    "_functional_assert_async": _assert_async,
    "multinomial": _multinomial,
    "bernoulli": _bernoulli,
    "poisson": _poisson,
    "_ctc_loss": _ctc,
    "multilabel_margin_loss_forward": _multilabel_margin,
    "max_pool2d_with_indices_backward": _pool_backward,
    "max_pool3d_with_indices_backward": _pool_backward,
    "adaptive_max_pool2d_backward": _pool_backward,
    "adaptive_max_pool3d_backward": _pool_backward,
}


def fault_of(check: Check, operator: str, names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> Fault | None:
    """What the kernel of this call would do to the device; None: it runs normally. Arguments are host-labelled.

    ``named``: keyword arguments and the schema's defaults; positional arguments go before them.
    """
    return check({"operator": operator, **named, **dict(zip(names, args, strict=False))})
