"""From block and thread ids to positions in the tensor, never further than the layout of the kernel allows.

The layouts were read off the device code of the wheels; where a layout depends on a size that no log tells, the answer
says what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preassert.logs.assertion import Assertion, kernel_name

SHOWN = 6


class Elements(NamedTuple):
    """``lines`` for people; ``at_least`` bad elements are certain (None: nothing follows)."""

    lines: tuple[str, ...] = ()
    at_least: int | None = None


def describe(
    assertions: Sequence[Assertion],
    kernels: Sequence[str],
    releases: Sequence[str],
    shape: tuple[int, ...] | None = None,
    whole: bool = True,
) -> Elements:
    """What the ids of ``assertions`` (all of one kind) say about the elements.

    Args:
        kernels: the kernels that may have printed it.
        releases: releases of torch that may have printed it; empty when not known.
        shape: shape of the offending argument, as the person gives it, to turn positions into coordinates.
        whole: False if more lines were printed than ``assertions`` holds.
    """
    placed = [
        each
        for each in assertions
        if each.block is not None and each.thread is not None and each.form in ("cuda", "verbose", "dsa")
    ]
    if not placed:
        return Elements()
    name = kernels[0] if kernels else ""
    if placed[0].kernel:
        name = kernel_name(placed[0].kernel)
    file = placed[0].file or ""
    blocks = [(each.block or (0, 0, 0), each.thread or (0, 0, 0)) for each in placed]
    more = () if whole else ("only the lines that were kept are told here",)
    found = _layout(name, file, blocks, releases, shape)
    return Elements((*found.lines, *more), found.at_least) if found.lines else found


def _layout(
    name: str,
    file: str,
    ids: list[tuple[tuple[int, int, int], tuple[int, int, int]]],
    releases: Sequence[str],
    shape: tuple[int, ...] | None,
) -> Elements:
    if name == "vectorized_gather_kernel":
        positions = sorted({block[0] for block, _ in ids})
        return Elements((f"position in the flattened index tensor: {_listed(positions, shape)}",), len(positions))
    if name == "MultiMarginLoss_forward_kernel":
        rows = sorted({block[0] for block, _ in ids})
        return Elements((f"row of target: {_listed(rows, None)}",), len(rows))
    if name in ("sampleMultinomialOnce", "renormRowsL1"):
        rows = sorted({block[0] for block, _ in ids})
        return Elements(
            (f"row of the probabilities: {_listed(rows, None)} (plus a multiple of the grid, for very many rows)",), len(rows)
        )
    if name == "binarySearchForMultinomial":
        rows = sorted({block[1] for block, _ in ids})
        return Elements((f"row of the probabilities: {_listed(rows, None)}; every sample of the row prints",), len(rows))
    if "nll_loss2d" in name or "SpatialClassNLL" in name:
        return _spatial(name, ids, shape)
    if "no_reduce" in name and ("nll_loss" in name or "ClassNLL" in name):
        if file == "Loss.cu":
            rows = sorted({block[0] * 1024 + thread[0] for block, thread in ids})
            return Elements(
                (f"row of target: {_listed(rows, shape)} (plus a multiple of the grid, for very many rows)",), len(rows)
            )
        return Elements()
    if name.endswith(("_kernel_1d", "_kernel1")) and ("nll_loss" in name or "ClassNLL" in name):
        return Elements(("the only element of target",), 1)
    if "nll_loss" in name or "ClassNLL" in name:
        return _one_block(ids, releases, shape)
    if file == "IndexKernel.cu" and name != "masked_scatter_size_check":
        return _iterated(ids, 128, 4, shape)
    if file == "ScatterGatherKernel.cu":
        width = _scatter_width(releases)
        return _iterated(ids, *width, shape) if width else Elements()
    if name.startswith("indexSelectLargeIndex"):
        return Elements(
            (
                "block and thread give a position in the output; divide it by the row size (embedding_dim) "
                "to get the position of the id",
            )
        )
    if name.startswith("indexSelectSmallIndex"):
        return Elements(("at most 16 indices were looked up; which of them was bad cannot be told from the ids",), 1)
    return Elements()


def _spatial(name: str, ids: list[tuple[tuple[int, int, int], tuple[int, int, int]]], shape: tuple[int, ...] | None) -> Elements:
    if "no_reduce" in name:
        return Elements()
    if shape is not None and len(shape) == 3:
        _, height, width = shape
        pixels = height * width
        per_sample = max(1, -(-pixels // 1024) // 128)
        stride = 1024 * per_sample
        told = set()
        for block, thread in ids:
            first = (block[0] % per_sample) * 1024 + thread[0]
            told.add((block[0] // per_sample, first))
        lines = []
        for sample, first in sorted(told)[:SHOWN]:
            count = len(range(first, pixels, stride))
            place = (
                f"target[{sample}, {first // width}, {first % width}]"
                if count == 1
                else f"sample {sample}, one of the {count} pixels {first} + k*{stride}"
            )
            lines.append(place)
        rest = len(told) - SHOWN
        return Elements((*lines, f"and {rest} more") if rest > 0 else tuple(lines), len(told))
    samples = sorted({block[0] for block, _ in ids})
    return Elements(
        (f"sample of target: {_listed(samples, None)} (if a mask has at most 261,120 pixels; otherwise give --shape N,H,W)",),
        len({(block[0], thread[0]) for block, thread in ids}),
    )


def _one_block(
    ids: list[tuple[tuple[int, int, int], tuple[int, int, int]]], releases: Sequence[str], shape: tuple[int, ...] | None
) -> Elements:
    """One block works through the batch: row i is handled by thread i modulo the block size (32; from 2.8 a power of two)."""
    threads = sorted({thread[0] for _, thread in ids})
    old = [release for release in releases if _key(release) < (2, 8)]
    size = 32
    exact = bool(releases) and len(old) == len(releases)
    rows = shape[0] if shape else None
    if releases and not old and rows:
        size = min(max(1 << round(_log2(max(rows // 16, 1))), 32), 1024)
        exact = True
    elif not exact:
        while size <= threads[-1]:
            size *= 2
    if rows is not None and rows <= size:
        return Elements((f"row of target: {_listed(threads, None)}",), len(threads))
    if rows is not None and exact:
        told = [f"row {thread} or a row {size} further on" for thread in threads[:SHOWN]]
        return Elements((f"of {rows} rows of target: {'; '.join(told)}",), len(threads))
    return Elements(
        (f"row of target modulo {size}: {_listed(threads, None)} (exactly these rows if the batch has at most {size})",),
        len(threads),
    )


def _log2(number: int) -> float:
    import math

    return math.log2(number)


def _key(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def _scatter_width(releases: Sequence[str]) -> tuple[int, int] | None:
    """(threads, items a thread) of the scatter/gather kernel; None if the releases disagree."""
    widths = {(64, 4) if _key(release) < (1, 11) else (128, 4) if _key(release) < (2, 7) else (128, 8) for release in releases}
    return widths.pop() if len(widths) == 1 else None


def _iterated(
    ids: list[tuple[tuple[int, int, int], tuple[int, int, int]]], threads: int, items: int, shape: tuple[int, ...] | None
) -> Elements:
    """A thread handles ``items`` elements, ``threads`` apart, in iteration order; which of them was bad is not printed."""
    firsts = sorted({block[0] * threads * items + thread[0] for block, thread in ids})
    if shape is not None:
        total = _product(shape)
        single = [first for first in firsts if first + threads >= total]
        if len(single) == len(firsts):
            return Elements((f"element of the index, in iteration order: {_listed(firsts, shape)}",), len(firsts))
    steps = ", ".join(f"+{threads * k}" for k in range(1, items)) if items <= 4 else f"+{threads} ... +{threads * (items - 1)}"
    return Elements((f"element of the index, in iteration order: {_listed(firsts, None)}, each itself or {steps}",), len(firsts))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _listed(positions: Sequence[int], shape: tuple[int, ...] | None) -> str:
    shown = [_coordinates(position, shape) for position in positions[:SHOWN]]
    rest = len(positions) - SHOWN
    return ", ".join(shown) + (f" and {rest:,} more" if rest > 0 else "")


def _coordinates(position: int, shape: tuple[int, ...] | None) -> str:
    if not shape or len(shape) == 1:
        return str(position)
    if position >= _product(shape):
        return f"{position} (outside the shape given)"
    parts = []
    rest = position
    for size in reversed(shape):
        parts.append(rest % size)
        rest //= size
    return f"[{', '.join(map(str, reversed(parts)))}]"
