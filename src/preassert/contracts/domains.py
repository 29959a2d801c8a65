"""What an operator demands of the values of one argument.

A domain is written over the names of the operator's schema: ``Index("index", size=lambda self, dim: extent(self, dim))``.
The guard binds those names to positions once, at installation. Only tensor *methods* are used here, so that the table
imports without torch; ``Tensor`` below stands for ``torch.Tensor``.

Every domain answers four questions about a *case* (a tensor and its bounds):

- ``bad(tensor, bounds)``: a bool tensor of the tensor's shape, True where the value is outside;
- ``repair(tensor, bounds)``: a tensor of the same shape, dtype and device whose values are all inside (for the deferred
  guard); elements that were inside keep their value;
- ``valid(bounds)``: the range in words; ``limits(bounds)``: (lowest, highest) where it is a range, both inclusive;
- ``legal(bounds)``: further values that are fine (``ignore_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

Tensor = Any
Bounds = Any
Case = tuple["int | None", Tensor, Bounds]  # place in a list argument (or None), tensor, bounds


def extent(tensor: Tensor, dim: int) -> int:
    """Size of dimension ``dim``; a 0-d tensor counts as one element."""
    return 1 if tensor.dim() == 0 else int(tensor.size(dim))


def is_integral(tensor: Tensor) -> bool:
    """True for integer index tensors; bool and uint8 masks are checked by shape on the host."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and str(tensor.dtype) not in ("torch.bool", "torch.uint8")


class Domain:
    """Base: one argument, the hazard of leaving its domain, and which schema arguments the bounds are made of."""

    argument: str
    hazard: str | None  # None: the row's
    parameters: tuple[str, ...]  # schema names handed to ``cases``, in this order
    kind: ClassVar[str] = "other"

    def cases(self, *values: Any) -> Iterator[Case]:
        """The tensors to look at and their bounds, given the schema arguments named by ``parameters``."""
        raise NotImplementedError

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError

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

    Bounds are ``(lowest, highest, legal)``, both inclusive.
    """

    kind = "index"

    def __init__(
        self,
        argument: str,
        *,
        size: Callable[..., int],
        wraps: bool = False,
        lowest: int = 0,
        legal: Callable[..., int] | None = None,
        name_of_legal: str = "ignore_index",
        hazard: str | None = None,
    ) -> None:
        self.argument = argument
        self.hazard = hazard
        self.size = size
        self.wraps = wraps
        self.lowest = lowest
        self.legal_value = legal
        self.name_of_legal = name_of_legal
        self.size_names = names_of(size)
        self._legal_names = names_of(legal) if legal is not None else ()
        self.parameters = (argument, *self.size_names, *self._legal_names)

    def cases(self, *values: Any) -> Iterator[Case]:
        tensor = values[0]
        if tensor is None:
            return
        cut = 1 + len(self.size_names)
        size = self.size(*values[1:cut])
        legal = () if self.legal_value is None else (self.legal_value(*values[cut:]),)
        yield None, tensor, (-size if self.wraps else self.lowest, size - 1, legal)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, legal = bounds
        outside = (tensor < lowest) | (tensor > highest)
        for value in legal:
            outside = outside & (tensor != value)
        return outside

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, legal = bounds
        safe = tensor.clamp(max(lowest, 0), max(highest, 0)) if not self.wraps else tensor.clamp(lowest, max(highest, 0))
        for value in legal:
            safe = tensor.where(tensor == value, safe)
        return safe

    def valid(self, bounds: Bounds) -> str:
        lowest, highest, legal = bounds
        if highest < lowest or (self.wraps and highest < 0):
            return "none (the indexed dimension is empty)"
        text = f"{lowest}..{highest}"
        for value in legal:
            text += f" or {self.name_of_legal}={value}"
        return text

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return bounds[0], bounds[1]

    def legal(self, bounds: Bounds) -> tuple[int, ...]:
        return tuple(bounds[2])


class AdvancedIndices(Index):
    """The ``Tensor?[] indices`` of ``self[...]``: each integer tensor within ``-size(d)..size(d)-1`` of its dimension.

    A bool or uint8 mask takes as many dimensions as it has and is checked by shape on the host.
    """

    def __init__(self, argument: str = "indices", *, of: str = "self", hazard: str | None = None) -> None:
        super().__init__(argument, size=lambda: 0, wraps=True, hazard=hazard)
        self.parameters = (argument, of)

    def cases(self, *values: Any) -> Iterator[Case]:
        indices, tensor = values
        dim = 0
        for place, index in enumerate(indices):
            if index is None:
                dim += 1
            elif is_integral(index):
                if dim < tensor.dim():
                    size = int(tensor.size(dim))
                    yield place, index, (-size, size - 1, ())
                dim += 1
            else:
                dim += max(int(index.dim()), 1)


class Interval(Domain):
    """Real numbers between two bounds, NaN not allowed. Bounds are ``(lowest, highest, lowest_is_open)``."""

    kind = "interval"

    def __init__(
        self,
        argument: str,
        *,
        lowest: float | None = 0.0,
        highest: float | None = 1.0,
        open_lowest: bool = False,
        hazard: str | None = None,
    ) -> None:
        self.argument = argument
        self.hazard = hazard
        self.parameters = (argument,)
        self._bounds = (lowest, highest, open_lowest)

    def cases(self, *values: Any) -> Iterator[Case]:
        if values[0] is not None:
            yield None, values[0], self._bounds

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, open_lowest = bounds
        outside = tensor != tensor  # NaN
        if lowest is not None:
            outside = outside | (tensor <= lowest if open_lowest else tensor < lowest)
        if highest is not None:
            outside = outside | (tensor > highest)
        return outside

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        lowest, highest, open_lowest = bounds
        inside = 1.0 if open_lowest or highest is None else (lowest + highest) / 2
        return tensor.masked_fill(self.bad(tensor, bounds), int(inside) if is_integral(tensor) else inside)

    def valid(self, bounds: Bounds) -> str:
        lowest, highest, open_lowest = bounds
        if highest is None:
            return f"{'>' if open_lowest else '>='} {lowest:g}, no NaN"
        return f"{lowest:g}..{highest:g}, no NaN"

    def limits(self, bounds: Bounds) -> tuple[float | None, float | None]:
        return bounds[0], bounds[1]


class Distribution(Domain):
    """Rows of non-negative finite weights with a positive sum. Bounds are ``None``."""

    kind = "distribution"

    def __init__(self, argument: str, *, hazard: str | None = None) -> None:
        self.argument = argument
        self.hazard = hazard
        self.parameters = (argument,)

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
    """``offsets[0] == 0``, non-decreasing, the last one at most ``length``. Bounds are ``(length, starts_at_zero)``."""

    kind = "offsets"

    def __init__(
        self,
        argument: str,
        *,
        length: Callable[..., int],
        starts_at_zero: bool = True,
        ends_at_length: bool = False,
        hazard: str | None = None,
    ) -> None:
        self.argument = argument
        self.hazard = hazard
        self.length = length
        self.parameters = (argument, *names_of(length))
        self.starts_at_zero = starts_at_zero
        self.ends_at_length = ends_at_length

    def cases(self, *values: Any) -> Iterator[Case]:
        tensor = values[0]
        if tensor is not None and tensor.dim() >= 1 and tensor.size(-1) > 0:
            yield None, tensor, int(self.length(*values[1:]))

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        outside = (tensor < 0) | (tensor > bounds)
        if self.starts_at_zero:
            outside.select(-1, 0).logical_or_(tensor.select(-1, 0) != 0)
        if self.ends_at_length:
            outside.select(-1, -1).logical_or_(tensor.select(-1, -1) != bounds)
        if tensor.size(-1) > 1:
            falls = tensor.narrow(-1, 1, tensor.size(-1) - 1) < tensor.narrow(-1, 0, tensor.size(-1) - 1)
            outside.narrow(-1, 1, tensor.size(-1) - 1).logical_or_(falls)
        return outside

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        safe = tensor.clamp(0, bounds).cummax(-1).values
        if self.starts_at_zero:
            safe.select(-1, 0).zero_()
        if self.ends_at_length:
            safe.select(-1, -1).fill_(bounds)
        return safe

    def valid(self, bounds: Bounds) -> str:
        start = "first 0, " if self.starts_at_zero else ""
        end = f"last exactly {bounds}" if self.ends_at_length else f"last at most {bounds}"
        return f"0..{bounds} ({start}non-decreasing, {end})"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return 0, bounds


class CtcTargets(Domain):
    """CTC labels in ``0..C-1``, not ``blank``, within the length of each sequence (padding behind it is not looked at).

    Bounds are ``(num_classes, blank, lengths)`` with lengths a list or a 1-d integer tensor.
    """

    kind = "ctc"

    def __init__(self, argument: str = "targets", *, hazard: str | None = None) -> None:
        self.argument = argument
        self.hazard = hazard
        self.parameters = (argument, "log_probs", "target_lengths", "blank")

    def cases(self, *values: Any) -> Iterator[Case]:
        targets, log_probs, lengths, blank = values
        yield None, targets, (int(log_probs.size(-1)), int(blank), lengths)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        classes, blank, lengths = bounds
        outside = (tensor < 0) | (tensor >= classes) | (tensor == blank)
        return outside & self._used(tensor, lengths)

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        classes, blank, _lengths = bounds
        fallback = 0 if blank != 0 else min(1, classes - 1)
        return tensor.masked_fill((tensor < 0) | (tensor >= classes) | self.bad(tensor, bounds), fallback)

    def _used(self, tensor: Tensor, lengths: Any) -> Tensor:
        if not hasattr(lengths, "dim"):
            lengths = tensor.new_tensor(list(lengths))
        lengths = lengths.to(tensor.device).clamp(min=0)
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
        classes, blank, lengths = bounds
        used = self._used(tensor, lengths)
        blanks = int(((tensor == blank) & used).sum())
        return f"blank={blank} stands {blanks} times among the targets" if blanks else None


class Lengths(Domain):
    """Lengths of sequences: integers in ``lowest..highest``. Not looked at when given as a list (checked on the host)."""

    kind = "lengths"

    def __init__(self, argument: str, *, highest: Callable[..., int | None], lowest: int = 0, hazard: str | None = None) -> None:
        self.argument = argument
        self.hazard = hazard
        self.highest = highest
        self.lowest = lowest
        self.parameters = (argument, *names_of(highest))

    def cases(self, *values: Any) -> Iterator[Case]:
        highest = self.highest(*values[1:])
        if hasattr(values[0], "dim") and highest is not None:
            yield None, values[0], (self.lowest, int(highest))

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return (tensor < bounds[0]) | (tensor > bounds[1])

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor.clamp(bounds[0], bounds[1])

    def valid(self, bounds: Bounds) -> str:
        return f"{bounds[0]}..{bounds[1]}"

    def limits(self, bounds: Bounds) -> tuple[int, int]:
        return int(bounds[0]), int(bounds[1])


class Total(Domain):
    """A condition on the whole tensor: ``measure(tensor) <= limit`` (or ``==``). Bounds are the limit.

    ``unit`` names what is measured, for the report: "ones in the mask", "sum of repeats".
    """

    kind = "total"

    def __init__(
        self,
        argument: str,
        *,
        measure: Callable[[Tensor], Tensor],
        limit: Callable[..., int | None],
        unit: str,
        equal: bool = False,
        hazard: str | None = None,
    ) -> None:
        self.argument = argument
        self.hazard = hazard
        self.measure = measure
        self.limit = limit
        self.unit = unit
        self.equal = equal
        self.parameters = (argument, *names_of(limit))

    def cases(self, *values: Any) -> Iterator[Case]:
        limit = self.limit(*values[1:])
        if values[0] is not None and limit is not None:
            yield None, values[0], int(limit)

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        total = self.measure(tensor)
        return total != bounds if self.equal else total > bounds

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        raise NotImplementedError(f"{self.unit}: no tensor of the same shape can stand in")

    def valid(self, bounds: Bounds) -> str:
        return f"{self.unit} {'==' if self.equal else '<='} {bounds}"

    def explain(self, tensor: Tensor, bounds: Bounds) -> str | None:
        return f"{self.unit}: {int(self.measure(tensor))}"


class Truth(Domain):
    """A one-element tensor that must be non-zero (``_assert_async``)."""

    kind = "truth"

    def __init__(self, argument: str = "self", *, hazard: str | None = None) -> None:
        self.argument = argument
        self.hazard = hazard
        self.parameters = (argument,)

    def cases(self, *values: Any) -> Iterator[Case]:
        if values[0].numel() == 1:
            yield None, values[0], None

    def bad(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor == 0

    def repair(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        return tensor.new_ones(tensor.shape)

    def valid(self, bounds: Bounds) -> str:
        return "non-zero"
