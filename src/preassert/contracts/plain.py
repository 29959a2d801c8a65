"""Plain checks of class targets for people who want a check and nothing else. Neither torch nor NumPy is needed."""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preassert.errors import Violation
from preassert.hazards.likely import likely
from preassert.model import ArgumentInfo, BadElement, Site, unravel

_HAZARD = "target-out-of-range"
_OPERATOR = "aten::nll_loss_forward"
_MAX_ELEMENTS = 5  # bad elements named in the report
_MAX_DISTINCT = 64
_OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def validate_classification_targets(logits_shape: Any, targets: Any, *, ignore_index: int | None = -100) -> None:
    """Check class targets against logits, as ``F.cross_entropy(logits, targets)`` needs them.

    Args:
        logits_shape: ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``; a tensor or an array of that shape will do.
        targets: class numbers of shape ``()``, ``(N,)`` or ``(N, d1, ...)``: a number, (nested) lists, a NumPy array, a torch
            tensor or anything that turns into an array. Whole floats count as integers. A tensor on a device is copied to
            the host, which synchronises the device.
        ignore_index: this value is legal everywhere; None: no value is.

    Raises:
        Violation: a target is not a whole number in ``0..C-1``; names value, position, ``num_classes`` and valid range.
        ValueError: the shapes do not belong together.
        TypeError: the targets are no class numbers (bool, complex, text), or the shape is no shape.
    """
    shape = _logits_shape(logits_shape)
    num_classes = shape[0] if len(shape) == 1 else shape[1]
    expected = () if len(shape) == 1 else (shape[0], *shape[2:])
    array = _array_of(targets)
    if array.shape != expected:
        hint = ""
        if array.shape == shape:
            hint = "; these look like class probabilities or one-hot rows, not class numbers"
        elif math.prod(array.shape) == math.prod(expected):
            hint = f"; reshape the targets to {expected}"
        raise ValueError(f"targets of shape {array.shape} do not fit logits of shape {shape}: {expected} is needed{hint}")
    detail = f"num_classes = {num_classes}, from logits of shape {shape}"
    _check(num_classes, array, ignore_index, "validate_classification_targets", detail)


def safe_compute_loss_inputs(num_classes: int, targets: Any) -> bool:
    """True when all ``targets`` are class numbers in ``0..num_classes-1`` or -100, the default ``ignore_index``.

    Args:
        num_classes: size of the logits' class dimension, at least 1.
        targets: as for :func:`validate_classification_targets`, of any shape.

    Raises:
        Violation: a target is outside; names value, position, ``num_classes`` and valid range.
        TypeError: the targets are no class numbers, or ``num_classes`` is no integer.
        ValueError: ``num_classes`` is below 1.
    """
    count = _integer(num_classes, "num_classes")
    if count < 1:
        raise ValueError(f"num_classes is {count}; at least 1 is needed")
    _check(count, _array_of(targets), -100, "safe_compute_loss_inputs", f"num_classes = {count}")
    return True


def _logits_shape(given: Any) -> tuple[int, ...]:
    sizes = getattr(given, "shape", given)
    try:
        shape = tuple(_integer(size, "logits_shape") for size in sizes)
    except TypeError as error:
        raise TypeError(f"logits_shape is a shape such as (N, C), not {given!r}") from error
    if not shape:
        raise ValueError("logits need a class dimension; the shape is ()")
    if min(shape) < 0 or (shape[0] if len(shape) == 1 else shape[1]) < 1:
        raise ValueError(f"logits of shape {shape} have no class")
    return shape


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} takes integers, not {value!r}")
    return int(value.__index__())


@dataclass(frozen=True)
class _Array:
    """Targets in a form that can be searched.

    ``find(num_classes, ignore_index)`` gives the flat positions of the bad elements in order, ``value(position)`` one element,
    ``extremes()`` smallest and largest, NaN left out.
    """

    shape: tuple[int, ...]
    dtype: str
    find: Callable[[int, int | None], Sequence[int]]
    value: Callable[[int], Any]
    extremes: Callable[[], tuple[Any, Any]]


def _array_of(targets: Any) -> _Array:
    kind = type(targets).__module__.partition(".")[0]
    if hasattr(targets, "detach") and hasattr(targets, "is_floating_point"):
        return _from_torch(targets.detach().cpu())
    if kind == "numpy" or hasattr(targets, "__array__"):
        array = targets.to_numpy() if hasattr(targets, "to_numpy") else targets.__array__()
        return _from_list(array.tolist()) if array.dtype.kind == "O" else _from_numpy(array)
    return _from_list(targets)


def _from_torch(tensor: Any) -> _Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    _refuse(dtype, dtype == "bool", tensor.is_complex())
    flat = tensor.reshape(-1)
    whole = not tensor.is_floating_point()
    # uint8 would compare with -100 as with 156
    numbers = flat.long() if whole else flat.double()

    def find(num_classes: int, ignore_index: int | None) -> Sequence[int]:
        bad = ~((numbers >= 0) & (numbers < num_classes))
        if not whole:
            bad |= numbers != numbers.floor()
        if ignore_index is not None:
            bad &= numbers != ignore_index
        positions: list[int] = bad.nonzero().reshape(-1).tolist()
        return positions

    def extremes() -> tuple[Any, Any]:
        known = numbers if whole else numbers[numbers == numbers]
        return (known.min().item(), known.max().item()) if known.numel() else (None, None)

    return _Array(tuple(tensor.shape), dtype, find, lambda position: flat[position].item(), extremes)


def _from_numpy(array: Any) -> _Array:
    import numpy

    kind = array.dtype.kind
    _refuse(str(array.dtype), kind == "b", kind not in "iuf")
    flat = array.reshape(-1)
    whole = kind != "f"

    def find(num_classes: int, ignore_index: int | None) -> Sequence[int]:
        bad = ~((flat >= 0) & (flat < num_classes))
        if not whole:
            bad |= flat != numpy.floor(flat)
        if ignore_index is not None and _representable(ignore_index, array.dtype, numpy):
            bad &= flat != ignore_index
        positions: list[int] = bad.nonzero()[0].tolist()
        return positions

    def extremes() -> tuple[Any, Any]:
        known = flat if whole else flat[flat == flat]
        return (known.min().item(), known.max().item()) if known.size else (None, None)

    return _Array(tuple(array.shape), str(array.dtype), find, lambda position: flat[position].item(), extremes)


def _representable(value: int, dtype: Any, numpy: Any) -> bool:
    if dtype.kind == "f":
        return True
    limits = numpy.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def _from_list(targets: Any) -> _Array:
    shape = _shape_of_list(targets)
    flat = list(_flatten(targets, ()))

    def outside(value: Any, num_classes: int, ignore_index: int | None) -> bool:
        return value != ignore_index and not (0 <= value < num_classes and value == math.floor(value))

    def find(num_classes: int, ignore_index: int | None) -> Sequence[int]:
        return [position for position, value in enumerate(flat) if outside(value, num_classes, ignore_index)]

    def extremes() -> tuple[Any, Any]:
        known = [value for value in flat if value == value]
        return (min(known), max(known)) if known else (None, None)

    dtype = "float" if any(isinstance(value, float) for value in flat) else "int"
    return _Array(shape, dtype, find, flat.__getitem__, extremes)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _shape_of_list(targets: Any) -> tuple[int, ...]:
    shape: list[int] = []
    level = targets
    while _is_list(level):
        shape.append(len(level))
        if not len(level):
            break
        level = level[0]
    return tuple(shape) + (tuple(getattr(level, "shape", ())) if not _is_list(level) else ())


def _flatten(value: Any, where: tuple[int, ...]) -> Iterator[int | float]:
    """Numbers of nested lists in order; checks that every list on one level is as long as the first one."""
    if not _is_list(value):
        yield from _numbers(value, where)
        return
    if all(type(entry) is int or type(entry) is float for entry in value):  # the usual list, thirty times faster
        yield from value
        return
    first = _shape_of_list(value[0]) if len(value) else ()
    for position, entry in enumerate(value):
        if _shape_of_list(entry) != first:
            place = "".join(f"[{number}]" for number in (*where, position))
            raise ValueError(f"targets are ragged: targets{place} has shape {_shape_of_list(entry)}, the first one {first}")
        yield from _flatten(entry, (*where, position))


def _numbers(value: Any, where: tuple[int, ...]) -> Iterator[int | float]:
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars within lists
        array = _array_of(value)
        yield from (array.value(position) for position in range(math.prod(array.shape)))
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        place = "".join(f"[{number}]" for number in where)
        raise TypeError(f"targets{place} is {value!r}; class numbers are integers")
    yield value


def _refuse(dtype: str, is_bool: bool, is_other: bool) -> None:
    if is_bool:
        raise TypeError("targets are bool; class numbers are integers (convert them: targets.long() or targets.astype('int64'))")
    if is_other:
        raise TypeError(f"targets are {dtype}; class numbers are integers")


def _check(num_classes: int, array: _Array, ignore_index: int | None, call: str, detail: str) -> None:
    positions = array.find(num_classes, ignore_index)
    if not positions:
        return
    minimum, maximum = array.extremes()
    values = [array.value(position) for position in positions[: 16 * _MAX_DISTINCT]]
    numbers: dict[str, Any] = {
        "argument": "target",
        "count": len(positions),
        "total": math.prod(array.shape),
        "minimum": minimum,
        "maximum": maximum,
        "lowest": 0,
        "highest": num_classes - 1,
        "legal": () if ignore_index is None else (ignore_index,),
    }
    raise Violation(
        _HAZARD,
        operator=_OPERATOR if len(array.shape) < 2 else "aten::nll_loss2d_forward",
        **numbers,
        call=call,
        valid=f"0..{num_classes - 1}" + ("" if ignore_index is None else f" or ignore_index={ignore_index}"),
        arguments=(ArgumentInfo("target", array.dtype, array.shape),),
        elements=tuple(
            BadElement(unravel(position, array.shape), array.value(position)) for position in positions[:_MAX_ELEMENTS]
        ),
        site=_caller(),
        likely=likely(
            _HAZARD,
            **numbers,
            distinct=list(dict.fromkeys(values))[:_MAX_DISTINCT],
            num_classes=num_classes,
            call="F.cross_entropy",
        ),
        detail=detail,
    )


def _caller() -> Site | None:
    """The line that called the check: the innermost frame that is not ours."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    code = frame.f_code
    source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return Site(code.co_filename, frame.f_lineno, code.co_name, source or None)
