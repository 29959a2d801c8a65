"""What an operator demands of the values of one argument.

A domain is written over the names of the operator's schema: ``Index("index", size=lambda self: self.numel())``.
The guard binds those names to positions once, at installation. Only tensor *methods* are used here, so that the table
imports without torch; ``Tensor`` below stands for ``torch.Tensor``.

Every domain answers four questions about a *case* (a tensor and its bounds):

- ``bad(tensor, bounds)``: a bool tensor of the tensor's shape, True where the value is outside;
- ``repair(tensor, bounds)``: a tensor of the same shape, dtype and device whose values are all inside (for the deferred
  guard); elements that were inside keep their value, unless the demand ties elements together (offsets, rows of weights);
  ``NotImplementedError`` where ``can_repair(bounds)`` is False (an empty dimension, a wrong sum);
- ``valid(bounds)``: the range in words; ``limits(bounds)``: (lowest, highest) where it is a range, both inclusive;
- ``legal(bounds)``: further values that are fine (``ignore_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

Tensor = Any
Bounds = Any
Case = tuple["int | None", Tensor, Bounds]  # place in a list argument (or None), tensor, bounds


def extent(tensor: Tensor, dim: int) -> int:
    """Size of dimension ``dim``; a 0-d tensor counts as one element."""
    shape = tensor.shape
    size: int = shape[dim] if shape else 1
    return size


def is_integral(tensor: Tensor) -> bool:
    """True for integer index tensors; bool and uint8 masks are checked by shape on the host."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and str(tensor.dtype) not in ("torch.bool", "torch.uint8")


UNBOUNDED = 2**62  # stands for "no upper bound" where a demand is on integers
_NARROW = {
    "torch.uint8": (0, 2**8 - 1),
    "torch.int8": (-(2**7), 2**7 - 1),
    "torch.int16": (-(2**15), 2**15 - 1),
    "torch.int32": (-(2**31), 2**31 - 1),
}


def representable(tensor: Tensor) -> tuple[int, int]:
    """Lowest and highest value of an integer dtype. torch refuses to clamp to, or compare with, a number beyond them."""
    return _NARROW.get(str(tensor.dtype), (-(2**63), 2**63 - 1))


def outside(tensor: Tensor, lowest: int, highest: int) -> Tensor:
    """True where an integer is not in ``lowest..highest``; bounds may lie beyond what the dtype can hold."""
    floor, ceiling = representable(tensor)
    if lowest > highest or lowest > ceiling or highest < floor:
        return tensor == tensor
    if lowest <= floor:
        return tensor != tensor if highest >= ceiling else tensor > highest
    if highest >= ceiling:
        return tensor < lowest
    return (tensor < lowest) | (tensor > highest)


def clamped(tensor: Tensor, lowest: int, highest: int) -> Tensor:
    """``tensor`` brought into ``lowest..highest``.

    Raises:
        NotImplementedError: there are elements and the range holds no value of this dtype.
    """
    floor, ceiling = representable(tensor)
    lowest, highest = max(lowest, floor), min(highest, ceiling)
    if lowest > highest:
        if tensor.numel() == 0:
            return tensor
        raise NotImplementedError("no value is inside: nothing can stand in")
    return tensor.clamp(lowest, highest)


def integers_like(tensor: Tensor, numbers: Sequence[int]) -> Tensor:
    """A 1-d tensor on the host, of the dtype of ``tensor``."""
    return tensor.new_empty(0, device="cpu").new_tensor(list(numbers))


class Domain:
    """Base: one argument, the hazard of leaving its domain, and which schema arguments the bounds are made of."""

    argument: str
    hazard: str | None  # None: the row's
    parameters: tuple[str, ...]  # schema names handed to ``cases``, in this order
    kind: ClassVar[str] = "other"

    def __init__(self, argument: str, *further: str, hazard: str | None = None) -> None:
        self.argument = argument
        self.hazard = hazard
        self.parameters = (argument, *further)

    def cases(self, *values: Any) -> Iterator[Case]:
        """The tensors to look at and their bounds, given the schema arguments named by ``parameters``."""
        raise NotImplementedError

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError

    def can_repair(self, bounds: Bounds) -> bool:
        """Is there a stand-in of the same shape? Known from the bounds alone, so without a look at the device."""
        return True

    def valid(self, bounds: Bounds) -> str:
        raise NotImplementedError

    def limits(self, bounds: Bounds) -> tuple[int | float | None, int | float | None]:
        return (None, None)

    def legal(self, bounds: Bounds) -> tuple[int | float, ...]:
        return ()

    def explain(self, tensor: Tensor, bounds: Bounds) -> str | None:
        """A further sentence for the report, where the range alone does not say why."""
        return None


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


class Index(Domain):
    """Integers in ``0..size-1`` (or ``-size..size-1`` where negatives count from the end), or a legal value.

    ``of`` names the arguments of ``size``, where they are not its own parameters' names.
    Bounds are ``(lowest, highest, legal)``, both inclusive. ``lowest`` is 1 for pivots, -1 where -1 ends a list.
    """

    kind = "index"

    def __init__(
        self,
        argument: str,
        *,
        size: Callable[..., int],
        of: tuple[str, ...] | None = None,
        wraps: bool = False,
        lowest: int = 0,
        legal: Callable[..., int] | None = None,
        name_of_legal: str = "ignore_index",
        hazard: str | None = None,
    ) -> None:
        self.size = size
        self.wraps = wraps
        self.lowest = lowest
        self.legal_value = legal
        self.name_of_legal = name_of_legal
        self.size_names = of or names_of(size)
        self._legal_names = names_of(legal) if legal is not None else ()
        super().__init__(argument, *self.size_names, *self._legal_names, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        tensor = values[0]
        if tensor is None or tensor.is_floating_point():  # numbers that are not integers are refused on the host
            return
        cut = 1 + len(self.size_names)
        size = self.size(*values[1:cut])
        legal = () if self.legal_value is None else (self.legal_value(*values[cut:]),)
        yield None, tensor, (-size if self.wraps else self.lowest, size - 1, legal)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, legal = bounds
        wrong = outside(tensor, lowest, highest)
        for value in self._held(tensor, legal):
            wrong = wrong & (tensor != value)
        return wrong

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, legal = bounds
        legal = self._held(tensor, legal)
        if highest < lowest and legal:
            return tensor.masked_fill(tensor != legal[0], legal[0])
        safe = clamped(tensor, lowest, highest)
        for value in legal:
            safe = tensor.where(tensor == value, safe)
        return safe

    def can_repair(self, bounds: Bounds) -> bool:
        lowest, highest, legal = bounds
        return bool(lowest <= highest or legal)

    @staticmethod
    def _held(tensor: Tensor, values: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``values`` that the dtype can hold: no element can be one of the others."""
        floor, ceiling = representable(tensor)
        return tuple(value for value in values if floor <= value <= ceiling)

    def valid(self, bounds: Bounds) -> str:
        lowest, highest, legal = bounds
        if highest < lowest:
            return "none (the indexed dimension is empty)"
        text = f"{lowest}..{highest}" if highest < UNBOUNDED else f">= {lowest}"
        for value in legal:
            text += f" or {self.name_of_legal}={value}"
        return text

    def limits(self, bounds: Bounds) -> tuple[int, int | None]:
        return bounds[0], bounds[1] if bounds[1] < UNBOUNDED else None

    def legal(self, bounds: Bounds) -> tuple[int, ...]:
        return tuple(bounds[2])


class SliceIndex(Index):
    """Numbers of the slices of ``self`` along ``dim``. Slices without elements are never touched, whatever their number."""

    def __init__(self, argument: str = "index", *, wraps: bool = False, hazard: str | None = None) -> None:
        super().__init__(argument, size=extent, of=("self", "dim"), wraps=wraps, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        _index, tensor, dim = values
        if tensor.numel() or 0 not in (*tensor.shape[:dim], *(tensor.shape[dim + 1 :] if dim != -1 else ())):
            yield from super().cases(*values)


class TakeAlongIndex(Index):
    """The index of ``take_along_dim``: from the end too along a dimension, but not into the flattened tensor."""

    def __init__(self, argument: str = "indices", *, hazard: str | None = None) -> None:
        super().__init__(argument, size=extent, of=("self", "dim"), wraps=True, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        index, tensor, dim = values
        if dim is None:
            yield None, index, (0, int(tensor.numel()) - 1, ())
        else:
            yield from super().cases(*values)


class AdvancedIndices(Index):
    """The ``Tensor?[] indices`` of ``self[...]``: each integer tensor within ``-size(d)..size(d)-1`` of its dimension.

    A bool or uint8 mask takes as many dimensions as it has and is checked by shape on the host. Where nothing is selected,
    no index is looked at.
    """

    def __init__(self, argument: str = "indices", *, of: str = "self", hazard: str | None = None) -> None:
        super().__init__(argument, size=lambda: 0, wraps=True, hazard=hazard)
        self.parameters = (argument, of)

    def cases(self, *values: Any) -> Iterator[Case]:
        indices, tensor = values
        dim = 0
        found: list[Case] = []
        nothing = False  # no place is selected
        hollow = tensor.numel() == 0 and 0 in tensor.shape[len(indices) :]  # what is selected has no elements
        for place, index in enumerate(indices):
            if index is None:
                hollow = hollow or (dim < tensor.dim() and tensor.size(dim) == 0)
                dim += 1
            elif is_integral(index):
                if dim < tensor.dim():
                    size = int(tensor.size(dim))
                    found.append((place, index, (-size, size - 1, ())))
                    nothing = nothing or index.numel() == 0
                dim += 1
            else:
                dim += max(int(index.dim()), 1)
                # A mask without a true element selects nothing. Known without waiting only on the host.
                nothing = nothing or index.numel() == 0 or (len(indices) > 1 and index.is_cpu and not index.any())
        # An index into a dimension of size 0 is refused even where what it selects has no elements.
        if not nothing and not (hollow and all(limits[1] >= 0 for _place, _index, limits in found)):
            yield from found


class Interval(Domain):
    """Real numbers from 0 to ``highest`` (None: without end), no NaN. Bounds are ``(lowest, highest)``, both inclusive."""

    kind = "interval"

    def __init__(self, argument: str, *, highest: float | None = 1.0, hazard: str | None = None) -> None:
        super().__init__(argument, hazard=hazard)
        self._bounds = (0.0, highest)

    def cases(self, *values: Any) -> Iterator[Case]:
        if values[0] is not None:
            yield None, values[0], self._bounds

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest = bounds
        wrong = (tensor != tensor) | (tensor < lowest)  # the first is NaN
        return wrong if highest is None else wrong | (tensor > highest)

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest = bounds
        inside = 1.0 if highest is None else (lowest + highest) / 2
        return tensor.masked_fill(self.bad(tensor, bounds), int(inside) if is_integral(tensor) else inside)

    def valid(self, bounds: Bounds) -> str:
        lowest, highest = bounds
        return f">= {lowest:g}, no NaN" if highest is None else f"{lowest:g}..{highest:g}, no NaN"

    def limits(self, bounds: Bounds) -> tuple[float, float | None]:
        return bounds[0], bounds[1]


class Distribution(Domain):
    """Rows of non-negative finite weights with a positive sum. Bounds are ``None``."""

    kind = "distribution"

    def cases(self, *values: Any) -> Iterator[Case]:
        yield None, values[0], None

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        wrong = ~((tensor >= 0) & (tensor < float("inf")))
        if tensor.dim() == 0 or tensor.size(-1) == 0:
            return wrong
        # A row of zeros has no wrong element of its own: all of its elements are reported.
        empty = (tensor.masked_fill(wrong, 1.0).sum(-1, keepdim=True) <= 0).expand(tensor.shape)
        return wrong | empty

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        bad_row = self.bad(tensor, bounds).any(-1, keepdim=True)
        return tensor.masked_fill(bad_row, 1.0)

    def valid(self, bounds: Bounds) -> str:
        return "finite, >= 0, and a positive sum in each row"

    def explain(self, tensor: Tensor, bounds: Bounds) -> str | None:
        nans = int((tensor != tensor).sum())
        infinite = int((tensor.abs() == float("inf")).sum())
        negative = int((tensor < 0).sum())
        parts = [f"{count} {word}" for count, word in ((nans, "NaN"), (infinite, "infinite"), (negative, "negative")) if count]
        return f"{', '.join(parts)}" if parts else "every weight of a row is 0"


class Offsets(Domain):
    """Where each segment begins (or ends): non-decreasing integers in ``0..length``. Bounds are ``(length, longest)``.

    Args:
        length: size of what is cut into segments; ``UNBOUNDED`` where the arguments do not say.
        starts_at_zero: the first one must be 0.
        ends_at_length: the last one must be ``length``.
        longest: largest size of one segment, where that is limited.
    """

    kind = "offsets"

    def __init__(
        self,
        argument: str,
        *,
        length: Callable[..., int],
        starts_at_zero: bool = True,
        ends_at_length: bool = False,
        longest: Callable[..., int] | None = None,
        hazard: str | None = None,
    ) -> None:
        self.length = length
        self.longest = longest
        self._length_names = names_of(length)
        super().__init__(argument, *self._length_names, *(names_of(longest) if longest is not None else ()), hazard=hazard)
        self.starts_at_zero = starts_at_zero
        self.ends_at_length = ends_at_length

    def cases(self, *values: Any) -> Iterator[Case]:
        tensor = values[0]
        if tensor is not None and tensor.dim() >= 1 and tensor.size(-1) > 0:
            cut = 1 + len(self._length_names)
            longest = None if self.longest is None else int(self.longest(*values[cut:]))
            yield None, tensor, (int(self.length(*values[1:cut])), longest)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        length, longest = bounds
        wrong = outside(tensor, 0, length)
        if self.starts_at_zero:
            wrong.select(-1, 0).logical_or_(tensor.select(-1, 0) != 0)
        if self.ends_at_length and length < UNBOUNDED:
            last = tensor.select(-1, -1)
            wrong.select(-1, -1).logical_or_(outside(last, length, length))
        rest = tensor.size(-1) - 1
        if rest:
            before, after = tensor.narrow(-1, 0, rest), tensor.narrow(-1, 1, rest)
            wrong.narrow(-1, 1, rest).logical_or_(after < before)
            if longest is not None:
                wrong.narrow(-1, 1, rest).logical_or_(outside(after - before, representable(tensor)[0], longest))
        return wrong

    def can_repair(self, bounds: Bounds) -> bool:
        return bounds[1] is None

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        length, longest = bounds
        if longest is not None:
            raise NotImplementedError("segments of a limited size: nothing can stand in")
        safe = clamped(tensor, 0, length).cummax(-1).values
        if self.starts_at_zero:
            safe.select(-1, 0).zero_()
        if self.ends_at_length and length < UNBOUNDED:
            safe.select(-1, -1).fill_(length)
        return safe

    def valid(self, bounds: Bounds) -> str:
        length, longest = bounds
        parts = ["first 0"] if self.starts_at_zero else []
        parts.append("non-decreasing")
        if length < UNBOUNDED:
            parts.append(f"last exactly {length}" if self.ends_at_length else f"last at most {length}")
        if longest is not None:
            parts.append(f"steps of at most {longest}")
        return f"{f'0..{length}' if length < UNBOUNDED else '>= 0'} ({', '.join(parts)})"

    def limits(self, bounds: Bounds) -> tuple[int, int | None]:
        return 0, bounds[0] if bounds[0] < UNBOUNDED else None


class JaggedOffsets(Offsets):
    """The ``Tensor[] offsets`` of a jagged tensor, outermost first: each level cuts the one below it, the last the values."""

    def __init__(
        self, argument: str = "offsets", *, length: Callable[..., int], ends_at_length: bool = False, hazard: str | None = None
    ) -> None:
        super().__init__(argument, length=length, starts_at_zero=False, ends_at_length=ends_at_length, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        levels = values[0]
        for place, tensor in enumerate(levels):
            below = levels[place + 1].size(0) - 1 if place + 1 < len(levels) else int(self.length(*values[1:]))
            if tensor.dim() == 1 and tensor.size(0) > 0:
                yield place, tensor, (below, None)


class SegmentLengths(Domain):
    """Lengths of the segments of one dimension, ``[..., segments]``: none negative, each row's sum the size of the dimension.

    Where ``unsafe`` (in the backward pass always) a smaller sum is fine. Bounds are ``(size, exact)``.
    """

    kind = "segments"

    def __init__(self, argument: str, *, size: Callable[..., int], exact: Callable[..., bool], hazard: str | None = None) -> None:
        self.size = size
        self.exact = exact
        self._size_names = names_of(size)
        super().__init__(argument, *self._size_names, *names_of(exact), hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        tensor = values[0]
        if tensor is not None and tensor.dim() >= 1 and tensor.size(-1) > 0:
            cut = 1 + len(self._size_names)
            yield None, tensor, (int(self.size(*values[1:cut])), bool(self.exact(*values[cut:])))

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        size, exact = bounds
        negative = tensor < 0
        # A wrong sum has no wrong element of its own: the whole row is reported.
        total = tensor.masked_fill(negative, 0).sum(-1, keepdim=True)
        wrong_row = ((total != size) if exact else (total > size)) & ~negative.any(-1, keepdim=True)
        return negative | wrong_row.expand(tensor.shape)

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        size, exact = bounds
        ends = tensor.clamp(min=0).cumsum(-1).clamp(max=size)
        safe = ends.clone()
        safe.narrow(-1, 1, tensor.size(-1) - 1).sub_(ends.narrow(-1, 0, tensor.size(-1) - 1))
        if exact:
            safe.select(-1, -1).add_(size - ends.select(-1, -1))
        return tensor.where(~self.bad(tensor, bounds).any(-1, keepdim=True), safe.to(tensor.dtype))

    def valid(self, bounds: Bounds) -> str:
        size, exact = bounds
        return f">= 0, sum of a row {'exactly' if exact else 'at most'} {size}"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return 0, bounds[0]


class CooIndices(Domain):
    """Indices of a sparse COO tensor, ``[sparse_dim, nnz]``: row ``d`` in ``0..size[d]-1``. Bounds are the sizes."""

    kind = "coo"

    def __init__(self, argument: str = "indices", *, hazard: str | None = None) -> None:
        super().__init__(argument, "size", hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        indices, size = values
        if indices.dim() == 2 and indices.numel() and indices.size(0) <= len(size):
            yield None, indices, tuple(int(rows) for rows in size[: indices.size(0)])

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        wrong = tensor < 0
        for row, size in enumerate(bounds):
            wrong.select(0, row).logical_or_(outside(tensor.select(0, row), 0, size - 1))
        return wrong

    def can_repair(self, bounds: Bounds) -> bool:
        return all(bounds)

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        safe = tensor.clone()
        for row, size in enumerate(bounds):
            safe.select(0, row).copy_(clamped(tensor.select(0, row), 0, size - 1))
        return safe

    def valid(self, bounds: Bounds) -> str:
        return ", ".join(f"0..{size - 1} in row {row}" if size else f"none in row {row}" for row, size in enumerate(bounds))


class PlainIndices(Domain):
    """Column (or row) numbers of a compressed sparse tensor, ``[..., nnz]``: in ``0..size-1``, ascending within each slice.

    Bounds are ``(size, compressed indices)``.
    """

    kind = "plain"

    def __init__(self, argument: str, *, size: str, compressed: str, hazard: str | None = None) -> None:
        super().__init__(argument, size, compressed, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        plain, size, compressed = values
        if plain.dim() >= 1 and plain.size(-1) > 0:
            yield None, plain, (int(size), compressed)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        size, compressed = bounds
        wrong = outside(tensor, 0, size - 1)
        rest = tensor.size(-1) - 1
        if rest:
            begins = tensor.new_zeros((*tensor.shape[:-1], rest + 2))
            begins.scatter_(-1, compressed.long().clamp(0, rest + 1), 1)
            falls = tensor.narrow(-1, 1, rest) <= tensor.narrow(-1, 0, rest)
            wrong.narrow(-1, 1, rest).logical_or_(falls & (begins.narrow(-1, 1, rest) == 0))
        return wrong

    def can_repair(self, bounds: Bounds) -> bool:
        return False

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError("sorted distinct indices: nothing can stand in")

    def valid(self, bounds: Bounds) -> str:
        return f"0..{bounds[0] - 1}, ascending and distinct within each slice"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return 0, bounds[0] - 1


class UnpackPivots(Index):
    """Row exchanges of an LU factorisation, 1-based: ``1..rows``. Not looked at when they are not unpacked."""

    def __init__(self, argument: str, *, rows: Callable[..., int], wanted: str, hazard: str | None = None) -> None:
        super().__init__(argument, size=rows, lowest=1, hazard=hazard)
        self.parameters = (*self.parameters, wanted)

    def cases(self, *values: Any) -> Iterator[Case]:
        if values[-1]:
            yield None, values[0], (1, int(self.size(*values[1:-1])), ())


class BlockPivots(Domain):
    """Pivots of an LDL factorisation: ``1..n``, or ``-n..-1`` for one of a 2x2 block. Bounds are n."""

    kind = "block pivots"

    def __init__(self, argument: str, *, rows: Callable[..., int], hazard: str | None = None) -> None:
        self.rows = rows
        super().__init__(argument, *names_of(rows), hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        yield None, values[0], int(self.rows(*values[1:]))

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return outside(tensor, -bounds, bounds) | (tensor == 0)

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor.masked_fill(self.bad(tensor, bounds), 1)

    def valid(self, bounds: Bounds) -> str:
        return f"1..{bounds} or -{bounds}..-1"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return -bounds, bounds


class CtcTargets(Domain):
    """CTC labels in ``0..C-1``, not ``blank``, within the length of each sequence (padding behind it is not looked at).

    ``blank`` among the labels is documented as forbidden; no kernel of torch reads out of bounds for it, all give a wrong loss.

    Bounds are ``(num_classes, blank, lengths)`` with lengths a list or a 1-d integer tensor.
    """

    kind = "ctc"

    def __init__(self, argument: str = "targets", *, hazard: str | None = None) -> None:
        super().__init__(argument, "log_probs", "target_lengths", "blank", hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        targets, log_probs, lengths, blank = values
        yield None, targets, (int(log_probs.size(-1)), int(blank), lengths)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        classes, blank, lengths = bounds
        outside = (tensor < 0) | (tensor >= classes) | (tensor == blank)
        return outside & self._used(tensor, lengths)

    def can_repair(self, bounds: Bounds) -> bool:
        return bool(bounds[0] > 1)  # a lone class is the blank

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor.masked_fill(self.bad(tensor, bounds), 0 if bounds[1] != 0 else 1)

    def _used(self, tensor: Tensor, lengths: Any) -> Tensor:
        if not hasattr(lengths, "dim"):
            lengths = integers_like(tensor, lengths)
        # non_blocking: a plain copy from the host would synchronise the device, which a deferred check must not
        lengths = lengths.to(tensor.device, non_blocking=True).clamp(min=0)
        if tensor.dim() == 1:
            position = tensor.new_ones(tensor.shape).cumsum(0) - 1
            return position < lengths.sum()
        position = tensor.new_ones(tensor.shape).cumsum(1) - 1
        return position < lengths.reshape(-1, 1)

    def valid(self, bounds: Bounds) -> str:
        classes, blank, _lengths = bounds
        lowest, highest = self.limits(bounds)
        text = f"{lowest}..{highest}"
        return text if blank in (0, classes - 1) else f"{text} except blank={blank}"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        classes, blank, _lengths = bounds
        return (1 if blank == 0 else 0), (classes - 2 if blank == classes - 1 and classes > 1 else classes - 1)

    def explain(self, tensor: Tensor, bounds: Bounds) -> str | None:
        _classes, blank, lengths = bounds
        used = self._used(tensor, lengths)
        blanks = int(((tensor == blank) & used).sum())
        return f"blank={blank} stands {blanks} times among the targets" if blanks else None


class Lengths(Domain):
    """Lengths of sequences: integers in ``lowest..highest``. Bounds are ``(lowest, highest, whether they came as a list)``.

    A list (``int[]``) is on the host: it is looked at as a tensor of the integers of the argument that ``like`` names, and
    nothing stands in for it. Without ``like`` it is passed over.
    """

    kind = "lengths"

    def __init__(
        self,
        argument: str,
        *,
        highest: Callable[..., int],
        lowest: int = 0,
        like: str | None = None,
        hazard: str | None = None,
    ) -> None:
        self.highest = highest
        self.lowest = lowest
        self.like = like
        super().__init__(argument, *names_of(highest), *((like,) if like else ()), hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        lengths, highest = values[0], int(self.highest(*values[1 : len(values) - bool(self.like)]))
        if hasattr(lengths, "dim"):
            yield None, lengths, (self.lowest, highest, False)
        elif self.like and lengths:
            yield None, integers_like(values[-1], lengths), (self.lowest, highest, True)

    def can_repair(self, bounds: Bounds) -> bool:
        return not bounds[2]

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return outside(tensor, bounds[0], bounds[1])

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return clamped(tensor, bounds[0], bounds[1])

    def valid(self, bounds: Bounds) -> str:
        return f"{bounds[0]}..{bounds[1]}" if bounds[1] < UNBOUNDED else f">= {bounds[0]}"

    def limits(self, bounds: Bounds) -> tuple[int, int | None]:
        return int(bounds[0]), int(bounds[1]) if bounds[1] < UNBOUNDED else None


class Total(Domain):
    """A condition on the whole tensor: ``measure(tensor, ...) <= limit`` (or ``==``). Bounds are ``(limit, further arguments)``.

    ``unit`` names what is measured, for the report: "ones in the mask", "sum of repeats". ``trim(tensor, limit, ...)`` makes
    a stand-in, where there is one.
    """

    kind = "total"

    def __init__(
        self,
        argument: str,
        *,
        measure: Callable[..., Tensor],
        limit: Callable[..., int | None],
        unit: str,
        equal: bool = False,
        trim: Callable[..., Tensor] | None = None,
        hazard: str | None = None,
    ) -> None:
        self.trim = trim
        self.measure = measure
        self.limit = limit
        self.unit = unit
        self.equal = equal
        self._limit_names = names_of(limit)
        super().__init__(argument, *self._limit_names, *names_of(measure)[1:], hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        cut = 1 + len(self._limit_names)
        limit = self.limit(*values[1:cut])
        if limit is not None:
            yield None, values[0], (int(limit), values[cut:])

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        limit, others = bounds
        total = self.measure(tensor, *others)
        return total != limit if self.equal else total > limit

    def can_repair(self, bounds: Bounds) -> bool:
        return self.trim is not None

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        if self.trim is None:
            raise NotImplementedError(f"{self.unit}: nothing can stand in")
        return self.trim(tensor, bounds[0], *bounds[1])

    def valid(self, bounds: Bounds) -> str:
        return f"{self.unit} {'==' if self.equal else '<='} {bounds[0]}"

    def explain(self, tensor: Tensor, bounds: Bounds) -> str | None:
        return f"{self.unit}: {int(self.measure(tensor, *bounds[1]))}"


class Truth(Domain):
    """A one-element tensor that must be non-zero (``_assert_async``)."""

    kind = "truth"

    def __init__(self, argument: str = "self", *, hazard: str | None = None) -> None:
        super().__init__(argument, hazard=hazard)

    def cases(self, *values: Any) -> Iterator[Case]:
        if values[0].numel() == 1:
            yield None, values[0], None

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor == 0

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor.masked_fill(tensor == 0, 1)

    def valid(self, bounds: Bounds) -> str:
        return "non-zero"
