"""Whose value was it? The module whose forward made the call, and the samples of the DataLoader that brought the value.

:func:`watch` observes :class:`torch.utils.data.DataLoader` from outside: which indices its sampler gave for which batch, and what
the batch holds. Order, random numbers and results of the iteration stay what they are. :func:`sample` is asked once, after a
violation; it names a sample only on evidence, and says why it cannot otherwise.
"""

from __future__ import annotations

import math
import random
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module_file
from torch.utils.data import Subset
from torch.utils.data import dataloader as _loader_file
from torch.utils.data._utils import collate as _collate_file

from preassert.guard import randomness
from preassert.model import Sample

# -- the module

_CALLING = frozenset({"_wrapped_call_impl", "_call_impl", "inner"})
# Wrappers put themselves around the user's model; a path starts inside them.
_WRAPPERS = frozenset({"OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"})


def module_path(frames: Sequence[FrameType]) -> str | None:
    """Path of the innermost module whose forward is running, inside the outermost one, as ``named_modules()`` gives it.

    Args:
        frames: innermost first.

    Returns:
        ``"encoder.embeddings.token"``; the class name when the call stands in the forward of the outermost module itself;
        None when no module is running, or only a loss of torch.
    """
    try:
        return _path(_running(frames))
    except Exception:  # attributes of user modules may raise; a report without a path is still a report
        return None


def _running(frames: Iterable[FrameType]) -> list[nn.Module]:
    """Modules whose forward is on the stack, innermost first."""
    found: list[nn.Module] = []
    for frame in frames:
        code = frame.f_code
        if code.co_name != "forward" and not (code.co_name in _CALLING and code.co_filename == _module_file.__file__):
            continue
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and not (found and found[-1] is module) and type(module).__name__ not in _WRAPPERS:
            found.append(module)
    return found


def _path(modules: list[nn.Module]) -> str | None:
    while modules:
        inner, *outer = modules
        names = []
        for parent in outer:
            name = _name_inside(parent, inner)
            if name is None:
                continue  # not part of this one: it was called from there, or a further one holds both
            names.append(name)
            inner = parent
        if names:
            return ".".join(reversed(names))
        if not outer:
            return None if isinstance(inner, nn.modules.loss._Loss) else type(inner).__name__
        # Part of nothing that is running (a loss made inside forward): the module that called it is the answer.
        modules = outer
    return None


def _name_inside(parent: nn.Module, child: nn.Module) -> str | None:
    names = [name for name, module in parent.named_modules(remove_duplicate=False) if module is child and name]
    if not names:
        return None
    # A module in several places: the modules between would be on the stack too, so it is the nearest place.
    nearest = min(names, key=lambda name: name.count("."))
    return ".".join(part for part in nearest.split(".") if part != "_orig_mod")


# -- what the loader gave

_REMEMBERED = 8  # batches: some wrappers (accelerate, prefetchers) run a batch or more ahead of the step
_HELD_BYTES = 8 << 20  # a tensor on a storage up to this size is kept alive until the batch is forgotten; others weakly
_MAX_LEAVES = 256
_MAX_DEPTH = 6


@dataclass
class _Batch:
    """One batch as the loader gave it."""

    number: int  # from 0, in this pass
    indices: list[Any] | None  # as the sampler gave them, one for each row; None: not known
    unknown_because: str | None
    arrays: list[Callable[[], Any]] = field(default_factory=list)  # tensors of the batch, held or weakly referred to
    lists: list[Sequence[Any]] = field(default_factory=list)  # one entry for each row
    items: list[list[Any]] | None = None  # numbers, lists and tensors of each sample before a custom collate_fn
    order_kept: bool = True  # collated by torch
    iterator: Callable[[], Any] = lambda: None
    subset: Callable[[], Any] = lambda: None
    ended: bool = False

    @property
    def live(self) -> bool:
        return not self.ended and self.iterator() is not None

    def tensors(self) -> Iterator[Tensor]:
        for refer in self.arrays:
            array = refer()
            if array is not None:
                yield array if isinstance(array, Tensor) else torch.as_tensor(array)


_recent: deque[_Batch] = deque(maxlen=_REMEMBERED)
_requested: weakref.WeakKeyDictionary[Any, dict[int | None, Any]] = weakref.WeakKeyDictionary()
_uncollated: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()
_observed: weakref.WeakSet[Any] = weakref.WeakSet()
_watchers = 0
_originals: tuple[Any, Any] | None = None


def watch() -> None:
    """Start to observe DataLoaders. Nestable; every call wants its :func:`unwatch`."""
    global _watchers, _originals
    _watchers += 1
    if _watchers > 1:
        return
    base: Any = _loader_file._BaseDataLoaderIter
    advance, next_index = base.__next__, base._next_index
    _originals = (advance, next_index)

    def _next_index(self: Any) -> Any:
        index = next_index(self)
        _quietly(_note_request, self, index)
        return index

    def __next__(self: Any) -> Any:
        _quietly(_observe_collate, self)
        try:
            data = advance(self)
        except StopIteration:
            _end(self)
            raise
        _quietly(_remember, self, data)
        _quietly(randomness.keep)
        return data

    base._next_index, base.__next__ = _next_index, __next__


def unwatch() -> None:
    """Stop to observe DataLoaders and forget the batches, once as many times called as :func:`watch`."""
    global _watchers, _originals
    if _watchers == 0:
        return
    _watchers -= 1
    if _watchers == 0 and _originals is not None:
        base: Any = _loader_file._BaseDataLoaderIter
        base.__next__, base._next_index = _originals
        _originals = None
        _recent.clear()


def _quietly(function: Callable[..., None], *arguments: Any) -> None:
    with suppress(Exception):  # observing must never break the loop that it observes
        function(*arguments)


def _note_request(iterator: Any, index: Any) -> None:
    # With workers the batch comes back later, under the number it is sent with.
    key = getattr(iterator, "_send_idx", None)
    requested = _requested.setdefault(iterator, {})
    if key == 0:
        requested.clear()  # persistent workers start a new pass
    requested[key] = index


def _observe_collate(iterator: Any) -> None:
    """Keep the samples that a custom ``collate_fn`` is given: it may sort, drop or repeat them."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is None or fetcher in _observed:
        return
    _observed.add(fetcher)
    collate = fetcher.collate_fn
    if _keeps_order(collate) or not fetcher.auto_collation:
        return
    refer = weakref.ref(iterator)

    def observed_collate(data: Any) -> Any:
        owner = refer()
        if owner is not None and _watchers:
            # Taken before the call: collate functions pop keys and sort in place.
            _quietly(_note_items, owner, data)
        return collate(data)

    fetcher.collate_fn = observed_collate


def _note_items(iterator: Any, data: Any) -> None:
    _uncollated[iterator] = [_held(list(_leaves(item, 0))) for item in data]


def _held(leaves: list[Any]) -> list[Any]:
    return [leaf if not _is_array(leaf) or _is_small(leaf) else weakref.ref(leaf) for leaf in leaves]


def _keeps_order(collate: Any) -> bool:
    return collate in (_collate_file.default_collate, _collate_file.default_convert)


def _end(iterator: Any) -> None:
    for batch in list(_recent):
        if batch.iterator() is iterator:
            batch.ended = True


def _remember(iterator: Any, data: Any) -> None:
    indices, reason = _indices_of(iterator)
    batch = _Batch(
        number=max(iterator._num_yielded - 1, 0),
        indices=indices,
        unknown_because=reason,
        order_kept=_keeps_order(getattr(iterator, "_collate_fn", None)) or not getattr(iterator, "_auto_collation", True),
        items=_uncollated.pop(iterator, None),
        iterator=weakref.ref(iterator),
    )
    dataset = getattr(iterator, "_dataset", None)
    if isinstance(dataset, Subset):
        batch.subset = weakref.ref(dataset)
    if indices is not None:
        _collect(data, batch, len(indices), 0)
    _recent.append(batch)


def _indices_of(iterator: Any) -> tuple[list[Any] | None, str | None]:
    requested = _requested.get(iterator, {})
    if iterator._dataset_kind != _loader_file._DatasetKind.Map:
        requested.clear()
        return None, "the data set is iterable and has no indices"
    outstanding = getattr(iterator, "_task_info", {})
    delivered = [key for key in requested if key not in outstanding]
    indices = [requested.pop(key) for key in delivered]
    if len(indices) != 1:
        return None, "the loader did not tell which indices it delivered"
    given = indices[0]
    if not getattr(iterator, "_auto_collation", True):
        return [given], None  # batch_size=None: one sample is the batch
    if isinstance(given, Tensor):
        given = given.tolist()
    try:
        return list(given), None
    except TypeError:
        return [given], None


def _collect(data: Any, batch: _Batch, rows: int, depth: int) -> None:
    """File the tensors of a batch, and its lists with one entry for each row."""
    if len(batch.arrays) + len(batch.lists) >= _MAX_LEAVES or depth > _MAX_DEPTH:
        return
    if _is_array(data):
        batch.arrays.append(_holder(data))
    elif isinstance(data, (list, tuple)):
        # [x, y] of a batch of two looks like two rows: tensors of that length are columns; else the values decide.
        per_row = len(data) == rows
        columns = [_is_array(entry) and entry.ndim > 0 and entry.shape[0] == rows for entry in data[:_MAX_LEAVES]]
        if per_row and not all(columns):
            batch.lists.append(data)
        if not per_row or any(columns):
            for entry in data[:_MAX_LEAVES]:
                _collect(entry, batch, rows, depth + 1)
    elif isinstance(data, Mapping):
        for entry in data.values():
            _collect(entry, batch, rows, depth + 1)
    elif hasattr(data, "__dict__") and not isinstance(data, (type, nn.Module)):
        for entry in vars(data).values():
            _collect(entry, batch, rows, depth + 1)


def _leaves(data: Any, depth: int) -> Iterator[Any]:
    """Numbers, lists of numbers, bytes and tensors of one sample."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(data, (int, float, bytes, bytearray)) or _is_array(data):
        yield data
    elif isinstance(data, (list, tuple)):
        if data and all(isinstance(entry, (int, float)) for entry in data):
            yield data
            return
        for entry in data[:_MAX_LEAVES]:
            yield from _leaves(entry, depth + 1)
    elif isinstance(data, Mapping):
        for entry in data.values():
            yield from _leaves(entry, depth + 1)
    elif hasattr(data, "__dict__") and not isinstance(data, (type, nn.Module)):
        yield from _leaves(vars(data), depth + 1)


def _is_array(data: Any) -> bool:
    if isinstance(data, Tensor):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(data, numpy.ndarray) and data.dtype.kind in "iufb"


def _is_small(array: Any) -> bool:
    if not isinstance(array, Tensor):
        return bool(array.nbytes <= _HELD_BYTES)
    if array.layout != torch.strided or array.grad_fn is not None:
        return False
    # The storage counts: a small view may keep a large data set alive.
    return array.untyped_storage().nbytes() <= _HELD_BYTES


def _holder(array: Any) -> Callable[[], Any]:
    if _is_small(array):
        return lambda: array
    return weakref.ref(array)


# -- which rows hold the bad values

_SAME = 4  # the tensor is a tensor of the batch, reshaped at most
_VALUE = 3  # row by row it holds what the rows of the batch hold, the bad values among it
_LIKE = 2  # the tensor is a tensor of the batch but for some elements, or a few elements of one
_PLACE = 1  # the first dimension counts the rows; the values were computed from them
_NEAR = 2  # newest batches of a pass; the evidence for an older one must be _SAME (loaders may run one batch ahead)
_MAX_VALUES = 64  # distinct bad values that are looked up
_MAX_PART = 4_000_000  # elements of a tensor that is searched for another one in it
_MAX_ROWS = 16  # bad rows that are compared with those of the batch
_OTHER_ROWS = 8  # good rows that are compared as well


_RowOf = Callable[[Tensor], Tensor]  # flat positions -> rows of the batch


@dataclass
class _Evidence:
    grade: int
    batch: _Batch
    rows: dict[Any, set[int]]  # bad value -> rows


class _Bad:
    """The offending tensor, its bad elements, and ways to read a row number out of a position."""

    def __init__(self, tensor: Tensor, positions: Sequence[int], values: Sequence[Any]) -> None:
        self.tensor = tensor.detach()
        self.shape = tuple(tensor.shape)
        # NaN is not equal to itself: one key for all of them
        self.elements = list({(p, "NaN" if _is_nan(v) else v) for p, v in zip(positions, values, strict=False)})
        self.values = list(dict.fromkeys(value for _, value in self.elements))[:_MAX_VALUES]

    def rows(self, row_of: _RowOf) -> dict[Any, set[int]]:
        found: dict[Any, set[int]] = {}
        rows = row_of(torch.tensor([position for position, _ in self.elements])).tolist()
        for (_, value), row in zip(self.elements, rows, strict=True):
            found.setdefault(value, set()).add(row)
        return found

    def along(self, axis: int) -> _RowOf:
        inner = math.prod(self.shape[axis + 1 :])
        size = self.shape[axis]
        return lambda position: position // inner % size


def sample(tensor: Tensor, positions: list[int], values: list[Any]) -> Sample | None:
    """The samples of the DataLoader that the bad elements came from.

    Args:
        tensor: the offending argument.
        positions: flat (row-major) positions of its bad elements.
        values: their values.

    Returns:
        None when no DataLoader is being iterated over and no recent batch holds the values; a Sample without indices and
        with the reason when the samples cannot be told. Never raises. Synchronises the tensor's device.
    """
    if not _recent or not positions:
        return None
    try:
        with torch.no_grad():
            return _sample(_Bad(tensor.cpu(), positions, values))
    except Exception as error:
        return Sample(unknown_because=f"the batch could not be compared: {type(error).__name__}")


def _sample(bad: _Bad) -> Sample | None:
    best: _Evidence | None = None
    passes: list[Any] = []  # iterators of the batches seen so far, the newest first
    for batch in reversed(list(_recent)):
        iterator = batch.iterator()
        current = batch.live and not passes
        # Without an iterator it was `next(iter(loader))`: the newest batch may still be the one in use.
        near = not batch.ended and (passes.count(iterator) < _NEAR if batch.live else not passes)
        passes.append(iterator)
        evidence = _match(batch, bad, current) if batch.indices is not None else None
        if evidence is not None and evidence.grade < _SAME and not near:
            evidence = None
        if evidence is not None and (best is None or evidence.grade > best.grade):
            best = evidence
        if best is not None and best.grade == _SAME:
            break
    if best is not None:
        return _name(best, bad)
    running = next((batch for batch in reversed(_recent) if batch.live), None)
    if running is None:
        return None
    reason = running.unknown_because or "the bad values are not in the batch as the DataLoader gave it"
    return Sample(unknown_because=f"{reason}; batch {running.number}")


def _match(batch: _Batch, bad: _Bad, current: bool) -> _Evidence | None:
    rows = len(batch.indices or ())
    if rows == 0:
        return None
    tensors = [tensor.detach().cpu() for tensor in batch.tensors() if tensor.layout == torch.strided]
    same = _as_batch_tensor(batch, bad, tensors, rows)
    if same is not None and same.grade == _SAME:
        return same
    for row_of in _ways(batch, bad, tensors, rows):
        by_value = bad.rows(row_of)
        if _agrees(batch, tensors, row_of, by_value, bad, rows):
            return _Evidence(_VALUE, batch, by_value)
    part = _rearranged(batch, bad, tensors, rows) or same or _as_part_of_batch(batch, bad, tensors, rows)
    if part is not None:
        return part
    if not batch.order_kept:
        among_items = _by_items(batch, bad, tensors)
        if among_items is not None:
            return among_items
    if not current:
        return None
    if rows == 1:
        return _Evidence(_PLACE, batch, {value: {0} for value in bad.values})
    if len(bad.shape) > 1 and bad.shape[0] == rows:
        way = bad.rows(bad.along(0))
        if len(set().union(*way.values())) < rows:  # all rows bad says nothing about a sample
            return _Evidence(_PLACE, batch, way)
    return None


def _by_items(batch: _Batch, bad: _Bad, tensors: list[Tensor]) -> _Evidence | None:
    """A ``collate_fn`` dropped or repeated samples, so that rows cannot be counted: which samples hold the values?"""
    flat = bad.tensor.reshape(-1)
    if not any(own.numel() == flat.numel() and bool((own.reshape(-1) == flat).all()) for own in tensors):
        return None
    items = batch.items if batch.items is not None else _refetch(batch)
    if items is None:
        return None
    places = {value: {place for place, leaves in enumerate(items) if _holds(leaves, value)} for value in bad.values}
    if not all(places.values()) or len(set().union(*places.values())) > len(bad.elements):
        return None
    return _Evidence(_LIKE, batch, places)


def _as_batch_tensor(batch: _Batch, bad: _Bad, tensors: list[Tensor], rows: int) -> _Evidence | None:
    """Is the offending tensor one of the batch, reshaped, or with some elements changed, or shifted by a constant?"""
    flat = bad.tensor.reshape(-1)
    like = None
    for own in tensors:
        if own.numel() != flat.numel() or own.numel() == 0 or own.dtype.is_complex:
            continue
        row_of = _row_of(own, tensors, batch, rows)
        if row_of is None:
            continue
        content = own.reshape(-1)
        if torch.equal(content, flat) if own.dtype == flat.dtype else bool((content == flat).all()):
            return _Evidence(_SAME, batch, bad.rows(row_of))
        if like is None and tuple(own.shape) == tuple(size for size in bad.shape if size != 1 or own.ndim == len(bad.shape)):
            difference = flat - content if own.dtype != torch.bool else flat - content.to(flat.dtype)
            steady = difference == difference.mode().values
            alike = int(steady.sum())
            kept = {bool(steady[position]) for position, _ in bad.elements}  # both: a part of it, and something else
            if alike >= 4 and alike >= 0.6 * own.numel() and _varies(content) and len(kept) == 1:
                like = _Evidence(_LIKE, batch, bad.rows(row_of))
    return like


def _as_part_of_batch(batch: _Batch, bad: _Bad, tensors: list[Tensor], rows: int) -> _Evidence | None:
    """Does the offending tensor hold some elements of a tensor of the batch, in order (a chunk, ``y[y != -100]``)?"""
    if bad.tensor.is_floating_point() or bad.tensor.numel() > _MAX_PART:
        return None
    wanted = bad.tensor.reshape(-1).tolist()
    for own in tensors:
        row_of = None
        if len(wanted) < own.numel() <= _MAX_PART and not own.is_floating_point() and not own.is_complex():
            row_of = _row_of(own, tensors, batch, rows)
        if row_of is None or len(wanted) < (3 if own.ndim == 1 else 6):
            continue  # a few numbers are found in any table of ids
        content = own.reshape(-1).tolist()
        if _is_run(own.reshape(-1)):
            continue  # row numbers hold any rising numbers
        # As often there as here: then it does not matter which of several equal elements was taken.
        if any(content.count(value) != wanted.count(value) for value in bad.values) or not _is_subsequence(wanted, content):
            continue
        return _Evidence(_VALUE if len(wanted) > 3 else _LIKE, batch, _holders(content, row_of, bad))
    return None


def _holders(content: Sequence[Any], row_of: _RowOf, bad: _Bad) -> dict[Any, set[int]]:
    """The rows that hold each bad value in a tensor of the batch."""
    places: dict[Any, set[int]] = {value: set() for value in bad.values}
    for row, value in zip(row_of(torch.arange(len(content))).tolist(), content, strict=True):
        if value in places:
            places[value].add(row)
    return places


def _rearranged(batch: _Batch, bad: _Bad, tensors: list[Tensor], rows: int) -> _Evidence | None:
    """Does the tensor hold a whole tensor of the batch, in another order (mixup) or among others (``cat([y1, y2])``)?"""
    flat = bad.tensor.reshape(-1)
    if flat.is_floating_point() or flat.dtype in (torch.bool, torch.complex64) or flat.numel() > _MAX_PART:
        return None
    for own in tensors:
        row_of = None
        if 4 <= own.numel() <= flat.numel() and not own.is_floating_point() and not own.is_complex() and own.dtype != torch.bool:
            row_of = _row_of(own, tensors, batch, rows)
        if row_of is None:
            continue
        content = own.reshape(-1).to(torch.int64)
        ordered = content.sort().values
        if _is_run(ordered) or not _varies(content):
            continue  # a run of numbers, or one number, may be anything
        wanted = flat.to(torch.int64)
        if own.numel() == flat.numel():
            if torch.equal(ordered, wanted.sort().values):
                return _Evidence(_VALUE, batch, _holders(content.tolist(), row_of, bad))
            continue
        windows = wanted.unfold(0, content.numel(), 1)
        # One column after the other: the table of all windows would be as large as both together
        at = torch.ones(windows.shape[0], dtype=torch.bool)
        for place in range(content.numel()):
            at &= windows[:, place] == content[place]
            if not bool(at.any()):
                break
        start = int(at.nonzero()[0]) if int(at.sum()) == 1 else None
        if start is not None and all(start <= position < start + content.numel() for position, _ in bad.elements):
            return _Evidence(_VALUE, batch, _holders(content.tolist(), row_of, bad))
    return None


def _is_subsequence(wanted: list[Any], content: list[Any]) -> bool:
    remaining = iter(content)
    return all(value in remaining for value in wanted)


def _is_run(content: Tensor) -> bool:
    """0, 1, 2, ... from any start."""
    return bool((content.diff() == 1).all())


def _varies(content: Tensor) -> bool:
    """A constant tensor differs by a constant from any other constant one."""
    return bool((content != content[0]).any())


def _row_of(own: Tensor, tensors: list[Tensor], batch: _Batch, rows: int) -> _RowOf | None:
    """How a position in a tensor of the batch gives the row."""
    axis = _row_axis(own, rows)
    if axis is not None:
        inner = math.prod(own.shape[axis + 1 :])
        return lambda position: position // inner % rows
    if own.ndim == 0:
        return None
    return _row_in_concatenation(int(own.shape[0]), own.numel(), tensors, batch, rows)


def _row_axis(tensor: Tensor, rows: int) -> int | None:
    """Batch dimension of a tensor of the batch: the first, or the second (time first)."""
    for axis in range(min(tensor.ndim, 2)):
        if tensor.shape[axis] == rows:
            return axis
    return None


def _row_in_concatenation(length: int, count: int, tensors: list[Tensor], batch: _Batch, rows: int) -> _RowOf | None:
    """Rows laid end to end: found by a tensor of lengths, of row numbers, or by the lengths of a list of tensors."""
    if length == 0:
        return None
    width = count // length
    for other in tensors:
        if other.ndim != 1 or other.is_floating_point() or other.is_complex() or other.dtype == torch.bool:
            continue
        if other.shape[0] == rows and int(other.sum()) == length and int(other.min()) >= 0:
            return _by_ends(other.cumsum(0), width)
        rising = other.shape[0] == length > rows and bool((other[1:] >= other[:-1]).all())
        if rising and int(other[0]) >= 0 and int(other[-1]) < rows:
            numbers = other.long()
            return lambda position: numbers[position // width]
    for entries in batch.lists:
        for lengths in _ragged_lengths(entries):
            if sum(lengths) == length:
                return _by_ends(torch.tensor(lengths).cumsum(0), width)
    return None


def _by_ends(ends: Tensor, width: int) -> _RowOf:
    return lambda position: torch.searchsorted(ends, position // width, right=True)


def _ragged_lengths(entries: Sequence[Any]) -> Iterator[list[int]]:
    rows = [[leaf for leaf in _leaves(entry, 0) if not isinstance(leaf, (int, float))] for entry in entries]
    for number in range(min(map(len, rows), default=0)):
        yield [len(row[number]) if not (_is_array(row[number]) and row[number].ndim == 0) else 1 for row in rows]


def _ways(batch: _Batch, bad: _Bad, tensors: list[Tensor], rows: int) -> Iterator[_RowOf]:
    """Ways in which a position of the offending tensor can give a row, the likeliest first."""
    shape = bad.shape
    for axis, size in enumerate(shape):
        if size == rows:
            yield bad.along(axis)
    if not shape:
        return
    length, inner = shape[0], math.prod(shape[1:])
    if length > rows and length % rows == 0:
        repeat = length // rows
        yield lambda position: position // inner // repeat  # [rows, time] made one dimension
        yield lambda position: position // inner % rows  # [time, rows] made one dimension
    ragged = _row_in_concatenation(length, math.prod(shape), tensors, batch, rows)
    if ragged is not None:
        yield ragged


def _agrees(batch: _Batch, tensors: list[Tensor], row_of: _RowOf, by_value: dict[Any, set[int]], bad: _Bad, rows: int) -> bool:
    """Does some tensor or list of the batch hold, row by row, what the offending tensor holds?"""
    bad_rows: set[int] = set().union(*by_value.values())
    if bad.values == ["NaN"]:
        # NaN spreads from a feature to everything computed from it: the rows alone must be the same.
        return any(holding == bad_rows for holding in _rows_with_nan(batch, tensors, rows))
    asked = sorted(bad_rows)[:_MAX_ROWS] + [row for row in range(rows) if row not in bad_rows][:_OTHER_ROWS]
    flat, places = bad.tensor.reshape(-1), row_of(torch.arange(bad.tensor.numel()))
    here = {row: flat[places == row].tolist() for row in asked}
    for there in _contents(batch, tensors, asked, rows):
        holds_bad = all(value in there[row] for value, found in by_value.items() for row in found if row in there)
        if holds_bad and _in_step([here[row] for row in asked], [there[row] for row in asked]):
            return True
    return False


def _rows_with_nan(batch: _Batch, tensors: list[Tensor], rows: int) -> Iterator[set[int]]:
    for tensor in tensors:
        axis = _row_axis(tensor, rows)
        if axis is not None and tensor.is_floating_point() and tensor.numel():
            table = tensor.movedim(axis, 0).reshape(rows, -1)
            yield set((table != table).any(1).nonzero().reshape(-1).tolist())
    for entries in batch.lists:
        yield {row for row, entry in enumerate(entries) if _holds(list(_leaves(entry, 0)), "NaN")}


def _contents(batch: _Batch, tensors: list[Tensor], asked: list[int], rows: int) -> Iterator[dict[int, list[Any]]]:
    """For each tensor or list of the batch: row -> its numbers in order."""
    for tensor in tensors:
        axis = _row_axis(tensor, rows)
        if axis is not None and 0 < tensor.numel() // rows <= _MAX_PART:
            yield {row: tensor.select(axis, row).reshape(-1).tolist() for row in asked}
    for entries in batch.lists:
        yield {row: [number for leaf in _leaves(entries[row], 0) for number in _numbers(leaf)] for row in asked}


def _numbers(leaf: Any) -> list[Any]:
    if isinstance(leaf, (int, float)):
        return [leaf]
    return leaf.reshape(-1).tolist() if _is_array(leaf) else list(leaf)


def _in_step(here: list[list[Any]], there: list[list[Any]]) -> bool:
    """Is each row a part of the other, in order? A row of one or two numbers must be found at the same place in all rows."""
    short = min(map(len, here), default=0)
    if short == 0 or not all(there):
        return False
    if short < 3 and all(len(row) == short for row in here):
        width = min(map(len, there))
        if width > short:
            return len(here) > 1 and any(
                all(own[at : at + short] == row for row, own in zip(here, there, strict=True)) for at in range(width - short + 1)
            )
    return all(
        _is_subsequence(row, own) if len(row) <= len(own) else _is_padded(row, own) for row, own in zip(here, there, strict=True)
    )


def _is_padded(row: list[Any], own: list[Any]) -> bool:
    return row[: len(own)] == own or (len(own) > 1 and row[-len(own) :] == own)


def _equal(tensor: Tensor, value: Any) -> Tensor:
    return tensor != tensor if value == "NaN" else tensor == value


def _holds(leaves: list[Any], value: Any) -> bool:
    return any(_leaf_holds(leaf() if isinstance(leaf, weakref.ref) else leaf, value) for leaf in leaves)


def _leaf_holds(leaf: Any, value: Any) -> bool:
    if leaf is None:
        return False
    if _is_array(leaf):
        return bool(_equal(torch.as_tensor(leaf), value).any())
    if isinstance(leaf, (int, float)):
        return _is_nan(leaf) if value == "NaN" else leaf == value
    if value == "NaN":
        return any(_is_nan(entry) for entry in leaf)
    return value in leaf if not isinstance(leaf, (bytes, bytearray)) else _is_byte(value) and int(value) in leaf


def _is_byte(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 255 and value == int(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


# -- which samples the rows are

_REFETCH_S = 5.0
_MAX_REFETCHED = 512


def _name(evidence: _Evidence, bad: _Bad) -> Sample:
    batch = evidence.batch
    rows, note = _before_collate(batch, evidence, bad)
    if rows is None:
        return Sample(unknown_because=f"{note}; batch {batch.number}")
    chosen = [(batch.indices or [])[row] for row in sorted(rows)]
    plain = [_as_int(index) for index in chosen]
    if any(index is None for index in plain):
        keys = ", ".join(map(repr, chosen[:5]))
        return Sample(unknown_because=f"the sampler gives keys, not numbers: {keys}; batch {batch.number}")
    numbers = sorted({index for index in plain if index is not None})
    parts = [f"batch {batch.number}, {'row' if len(rows) == 1 else 'rows'} {_some(sorted(rows))}"]
    subset = batch.subset()
    if subset is not None:
        parts.append(f"{_some([subset.indices[index] for index in numbers])} in the data set behind the Subset")
    if note:
        parts.append(note)
    elif evidence.grade == _PLACE and len(batch.indices or ()) > 1:
        parts.append("by the place in the batch; the value was computed")
    return Sample(indices=tuple(numbers), detail="; ".join(parts))


def _some(numbers: Sequence[Any]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return f"{shown}, ..." if len(numbers) > 10 else shown


def _as_int(index: Any) -> int | None:
    try:
        return index.__index__() if not isinstance(index, bool) else None
    except (AttributeError, TypeError):
        return None


def _before_collate(batch: _Batch, evidence: _Evidence, bad: _Bad) -> tuple[set[int] | None, str | None]:
    """Rows of the batch -> places among the indices. A custom ``collate_fn`` may have sorted or dropped samples."""
    rows: set[int] = set().union(*evidence.rows.values())
    if batch.order_kept or len(batch.indices or ()) == 1:
        return rows, None
    items = batch.items if batch.items is not None else _refetch(batch)
    if items is None or len(items) != len(batch.indices or ()):
        return rows, "if collate_fn keeps the order of the samples"
    places: set[int] = set()
    order: dict[int, int] | None = None
    for value, bad_rows in evidence.rows.items():
        holders = {place for place, leaves in enumerate(items) if _holds(leaves, value)}
        if bad_rows <= holders:
            places |= bad_rows
        elif len(holders) == len(bad_rows):
            places |= holders
        elif holders:
            return None, "collate_fn changes the rows"
        else:
            # The value was put in after the samples were drawn (padding, masking): recognise the samples by the rest.
            order = order if order is not None else _order_by_content(batch, items)
            if any(row not in order for row in bad_rows):
                if _is_rising(bad.tensor):
                    return None, "the values were made by collate_fn from several samples"
                return rows, "if collate_fn keeps the order of the samples"
            places |= {order[row] for row in bad_rows}
    return places, None


def _is_rising(tensor: Tensor) -> bool:
    """Offsets, running lengths, row numbers: one element says nothing about one sample."""
    return tensor.ndim == 1 and tensor.numel() > 1 and bool((tensor[1:] >= tensor[:-1]).all())


def _order_by_content(batch: _Batch, items: list[list[Any]]) -> dict[int, int]:
    """Row of the batch -> place of the one sample whose numbers the row begins or ends with; rows without one are left out."""
    total = len(items)
    order: dict[int, int] = {}
    for tensor in batch.tensors():
        if tensor.ndim != 2 or tensor.shape[0] != total or tensor.is_complex():
            continue
        for row, content in enumerate(tensor.tolist()):
            fits = [place for place, leaves in enumerate(items) if any(_fits(content, _sequence(leaf)) for leaf in leaves)]
            if row in fits:
                order.setdefault(row, row)
            elif len(fits) == 1:
                order.setdefault(row, fits[0])
    return order


def _sequence(leaf: Any) -> list[Any] | None:
    leaf = leaf() if isinstance(leaf, weakref.ref) else leaf
    if isinstance(leaf, (list, tuple)):
        return list(leaf)
    if leaf is not None and _is_array(leaf) and leaf.ndim == 1:
        numbers: list[Any] = leaf.tolist()
        return numbers
    return None


def _fits(content: list[Any], sequence: list[Any] | None) -> bool:
    if not sequence or len(sequence) < 2 or len(sequence) > len(content):
        return False
    return content[: len(sequence)] == sequence or content[-len(sequence) :] == sequence


def _refetch(batch: _Batch) -> list[list[Any]] | None:
    """The samples once more, from the data set of this process: the workers drew them from copies of it.

    Random number generators are put back. None when it takes too long, fails, or would disturb a data set in use here.
    """
    iterator = batch.iterator()
    if iterator is None or getattr(iterator, "_num_workers", 0) == 0 or len(batch.indices or ()) > _MAX_REFETCHED:
        return None
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    saved = (random.getstate(), torch.get_rng_state(), numpy_random.get_state() if numpy_random else None)
    deadline = time.monotonic() + _REFETCH_S
    items = []
    try:
        for index in batch.indices or ():
            items.append(list(_leaves(iterator._dataset[index], 0)))
            if time.monotonic() > deadline:
                return None
    except Exception:
        return None
    finally:
        random.setstate(saved[0])
        torch.set_rng_state(saved[1])
        if numpy_random:
            numpy_random.set_state(saved[2])
    return items
