"""The kernels of the simulated device: every dense ATen operator, run by its CPU kernel, later.

``register`` puts one Python kernel per operator on the PrivateUse1 dispatch key. A kernel works out the shape of its
result from a trial run on harmless values of the same shapes (remembered, so it costs once per shape), hands back
uninitialised memory, and queues the real computation. Operators whose result's *shape* depends on values, and copies to
the host, wait for the device, as they do on CUDA.

The ``CUDA`` dispatch key gets factories only: memory asked for on "cuda" is memory of the simulated device. So a script's
``device="cuda"`` works from Python, from C++ and from every thread.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from preassert.simgpu.assertions import CHECKS, Check, fault_of
from preassert.simgpu.cells import HOST_KERNELS
from preassert.simgpu.device import Device, Kernel, below_every_mode, write_stderr
from preassert.simgpu.memory import extent_bytes, host_tensors, on_device, to_device_label, to_host_label
from preassert.simgpu.messages import INVALID_DEVICE, accelerator_error, different_devices_error

aten = torch.ops.aten
_KEY = "PrivateUse1"
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# Arguments that CUDA accepts on the host as well: their values are copied when the operator is called.
_HOST_ARGUMENTS = {"indices", "lengths", "input_lengths", "target_lengths", "batch_sizes", "state_steps", "lr"}
_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {"index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"}
_KNOWN_SHAPE = {"_ctc_loss"}  # tagged as data-dependent for its tensor form; here the lengths are host numbers
_MAX_REMEMBERED = 20_000



class _Holder:
    """The device of the moment; kernels stay registered for the life of the process."""

    device: Device = Device()
    active = False  # does "cuda" mean the simulated device at the moment?


holder = _Holder()


@dataclass
class Operator:
    """What the schema of one operator says about running it."""

    overload: Any
    name: str  # aten::embedding
    base: str  # embedding: no overload name, no trailing underscore
    names: tuple[str, ...]
    defaults: dict[str, Any]
    written: tuple[int | str, ...]  # arguments that it writes: positions, or names of keyword-only ones
    returned: tuple[int | str | None, ...]  # for each result: the argument it is, or None for new memory
    waits: bool
    random: bool
    check: Check | None
    cpu: Callable[..., Any]  # the CPU kernel; taken before a guard can stand above it
    geometries: dict[Any, Any] = field(default_factory=dict)


def base_name(name: str) -> str:
    """``aten::index_put_`` and ``aten::index_put.out``: ``index_put``."""
    base = name.removeprefix("aten::").partition(".")[0]
    return base if base.startswith("__") else base.rstrip("_")


def describe(overload: Any) -> Operator:
    schema = overload._schema
    base = base_name(schema.name)
    written: list[int | str] = []
    alias_of: dict[frozenset[str], int | str] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            where = argument.name if argument.kwarg_only else position
            written.append(where)
            alias_of[frozenset(argument.alias_info.before_set)] = where
    returned = tuple(
        None if result.alias_info is None else alias_of.get(frozenset(result.alias_info.before_set)) for result in schema.returns
    )
    return Operator(
        overload,
        schema.name,
        base,
        tuple(argument.name for argument in schema.arguments),
        {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()},
        tuple(written),
        returned,
        _waits(overload) and base not in _KNOWN_SHAPE,
        torch.Tag.nondeterministic_seeded in overload.tags,
        CHECKS.get(base),
        _cpu_kernel(overload) if base in CHECKS or schema.name in HOST_KERNELS else overload,
    )


@functools.cache
def _cpu_kernel(overload: Any) -> Callable[..., Any]:
    if overload._schema.name in HOST_KERNELS and not overload._overloadname.startswith("out"):
        return HOST_KERNELS[overload._schema.name]
    if hasattr(torch.library, "get_kernel"):  # torch >= 2.9
        with contextlib.suppress(RuntimeError):
            return functools.partial(torch.library.get_kernel(overload, "CPU").call_boxed, _CPU)
    return overload  # type: ignore[no-any-return]


# --- launching -------------------------------------------------------------------------------------------------------


def _waits_for(operator: Operator, args: Sequence[Any]) -> bool:
    """Does the shape of the result depend on values? Indexing by a mask counts the mask's elements first."""
    if operator.base in _INDEXING:
        return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return operator.waits


def _argument(where: int | str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return args[where] if isinstance(where, int) else kwargs[where]


def _results(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], fresh: Sequence[Any]) -> Any:
    """The values the caller gets: written arguments as they are, new memory in the order of the schema."""
    news = iter(fresh)
    values = [next(news) if where is None else _argument(where, args, kwargs) for where in operator.returned]
    return values[0] if len(values) == 1 else tuple(values) if values else None


def _freeze_host(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Copy the values of host tensors among the arguments: the kernel runs later. Raises for tensors CUDA would refuse."""

    def freeze(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor) and not on_device(value):
            if value.dim() and name not in _HOST_ARGUMENTS and not operator.base.startswith(("_foreach", "_fused", "_amp")):
                raise different_devices_error(name, holder.device.index)
            return value.detach().clone()
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [freeze(item, name) for item in value]
        return value

    names = operator.names
    return [freeze(value, names[i]) for i, value in enumerate(args)], {key: freeze(value, key) for key, value in kwargs.items()}


class _Launcher:
    """The kernel of most operators; the schema is read at the first call."""

    __slots__ = ("_operator", "overload")

    def __init__(self, overload: Any) -> None:
        self.overload = overload
        self._operator: Operator | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._operator is None:
            self._operator = describe(self.overload)
        return _launch(self._operator, args, kwargs)


def _launch(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = holder.device
    device.raise_if_dead()
    with device.lock:
        args_list, kwargs = _freeze_host(operator, args, kwargs)
        with below_every_mode():
            if _waits_for(operator, args_list):
                device.synchronize(operator.name)
                return _run_now(operator, args_list, kwargs)
            key = _signature(operator, args_list, kwargs)
            geometry = operator.geometries.get(key)
            if geometry is None:
                geometry = _trial(operator, args_list, kwargs)
                if geometry is None:  # an error, or values decide: no later than now
                    device.drain()
                    device.raise_if_dead()
                    return _run_now(operator, args_list, kwargs)
                if len(operator.geometries) > _MAX_REMEMBERED:
                    operator.geometries.clear()
                operator.geometries[key] = geometry
            return _enqueue(operator, args_list, kwargs, geometry)


def _enqueue(operator: Operator, args: list[Any], kwargs: dict[str, Any], geometry: tuple[Any, ...]) -> Any:
    device = holder.device
    outputs, resized = geometry
    for where, shape in resized:
        _resize(_argument(where, args, kwargs), *shape[:2])
    fresh: list[Any] = []
    hosts: list[torch.Tensor] = []
    for output in outputs:
        if output is None:
            fresh.append(None)
        elif isinstance(output, list):
            pairs = [device.allocate(*item) for item in output]
            fresh.append([pair[0] for pair in pairs])
            hosts.extend(pair[1] for pair in pairs)
        else:
            tensor, host = device.allocate(*output)
            fresh.append(tensor)
            hosts.append(host)
    host_args = host_tensors(args)
    host_kwargs = {name: host_tensors(value) for name, value in kwargs.items()}

    def run() -> None:
        result = operator.cpu(*host_args, **host_kwargs)
        if hosts:
            for host, value in zip(hosts, _flat(result, operator), strict=True):
                if host.shape != value.shape:
                    raise RuntimeError(f"result has shape {list(value.shape)}, the launch promised {list(host.shape)}")
                host.copy_(value)

    device.launch(Kernel(operator.name, _checker(operator, host_args, host_kwargs), run, operator.random))
    return _results(operator, args, kwargs, fresh)


def _checker(operator: Operator, host_args: list[Any], host_kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    check = operator.check
    if check is None:
        return None
    bound = {**operator.defaults, **host_kwargs}
    return lambda: fault_of(check, operator.base, operator.names, host_args, bound)


def _flat(result: Any, operator: Operator) -> Iterator[torch.Tensor]:
    """The new tensors among the results of the CPU kernel."""
    values = result if isinstance(result, tuple) and len(operator.returned) > 1 else (result,)
    for where, value in zip(operator.returned, values, strict=True):
        if where is not None or value is None:
            continue
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _run_now(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run at once, the queue being empty; errors of the CPU kernel reach the caller."""
    device = holder.device
    host_args, host_kwargs = host_tensors(args), {name: host_tensors(value) for name, value in kwargs.items()}
    checker = _checker(operator, host_args, host_kwargs)
    fault = checker() if checker is not None else None
    device.launches += 1
    if fault is not None:
        write_stderr(fault.lines)
        device.poison(fault.error, operator.name)
        device.raise_if_dead()
    result: Any = None

    def run() -> None:
        nonlocal result
        result = operator.cpu(*host_args, **host_kwargs)

    if operator.random:
        device.with_own_random(run)
    else:
        run()
    values = result if isinstance(result, tuple) and len(operator.returned) > 1 else (result,)
    fresh = [_adopt(value) for where, value in zip(operator.returned, values, strict=True) if where is None]
    return _results(operator, args, kwargs, fresh) if operator.returned else None


def _adopt(value: Any) -> Any:
    """A result of a CPU kernel as a value of the device."""
    if isinstance(value, torch.Tensor):
        holder.device.ledger.track(value)
        return to_device_label(value.detach())
    if isinstance(value, (list, tuple)):
        return [_adopt(item) for item in value]
    return value


# --- the shape of a result -------------------------------------------------------------------------------------------


def _signature(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What the shape of the result can depend on. Floating-point scalars cannot change it."""

    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.shape, value.stride(), value.dtype
        if isinstance(value, float):
            return float
        if isinstance(value, (list, tuple)):
            return tuple(map(of, value))
        return value if value.__hash__ is not None else repr(value)

    return tuple(map(of, args)), tuple((name, of(value)) for name, value in kwargs.items())


def _harmless(value: Any, integers: int, keep_host: bool) -> Any:
    """A tensor of the same geometry whose values no kernel refuses. ``keep_host``: the host knows its own values."""
    if isinstance(value, torch.Tensor):
        if keep_host and not on_device(value):
            return value
        trial = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return trial.fill_(1 if value.dtype.is_floating_point or value.dtype.is_complex else integers)
    if isinstance(value, torch._C.Generator):
        return type(value)()
    if isinstance(value, (list, tuple)):
        return [_harmless(item, integers, keep_host) for item in value]
    return value


def _geometry(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return [_geometry(item) for item in value] if isinstance(value, (list, tuple)) else None


def _trial(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """(geometry of each new result, arguments that get another geometry); None when a trial run cannot tell."""
    if operator.written and operator.base.startswith(("_foreach", "_fused", "_amp")):
        return (), ()  # in-place on lists: nothing to find out
    state = torch.get_rng_state() if operator.random else None
    try:
        for integers, keep_host in ((0, False), (1, False), (0, True)):  # 0 is a valid index, 1 a valid divisor
            trial_args = _harmless(args, integers, keep_host)
            trial_kwargs = {name: _harmless(value, integers, keep_host) for name, value in kwargs.items()}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = operator.cpu(*trial_args, **trial_kwargs)
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                continue
            return _observe(operator, args, kwargs, trial_args, trial_kwargs, result)
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return None


def _observe(
    operator: Operator, args: list[Any], kwargs: dict[str, Any], trial_args: list[Any], trial_kwargs: dict[str, Any], result: Any
) -> tuple[Any, ...] | None:
    values = result if isinstance(result, tuple) and len(operator.returned) > 1 else (result,)
    outputs = []
    for where, value in zip(operator.returned, values, strict=False):
        if where is not None:
            continue
        if value is not None and not isinstance(value, (torch.Tensor, list, tuple)):
            return None
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            return None
        outputs.append(_geometry(value))
    resized = []
    for where in operator.written:
        before, after = _argument(where, args, kwargs), _argument(where, trial_args, trial_kwargs)
        if isinstance(before, torch.Tensor) and before.shape != after.shape:
            resized.append((where, _geometry(after)))
    return tuple(outputs), tuple(resized)


# --- memory, copies and what the host reads --------------------------------------------------------------------------


def check_ordinal(index: int | None) -> None:
    """``cuda:index`` names the one device of this process. Raises as CUDA does for an ordinal that does not exist."""
    device = holder.device
    if index is None or index == device.index:
        return
    if not 0 <= index < device.device_count:
        raise accelerator_error(INVALID_DEVICE)
    raise NotImplementedError(
        f"the simulation has one device for each process: this one uses cuda:{device.index}, not cuda:{index} "
        "(torch.cuda.set_device chooses which)"
    )


def _empty_memory(
    size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype | None, memory_format: Any = None
) -> torch.Tensor:
    device = holder.device
    device.raise_if_dead()
    kind = dtype or torch.get_default_dtype()
    if stride is None:
        if memory_format in (None, torch.contiguous_format, torch.preserve_format):
            stride = _contiguous(size)
        else:
            stride = torch.empty(tuple(size), device="meta", dtype=kind, memory_format=memory_format).stride()
    return device.allocate(tuple(size), tuple(stride), kind)[0]


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> torch.Tensor:
    _accept(layout, device)
    return _empty_memory(size, None, dtype, memory_format)


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    _accept(layout, device)
    return _empty_memory(size, stride, dtype)


def _accept(layout: Any, device: Any) -> None:
    """Raises for memory that is not to be had here."""
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the simulated GPU has dense tensors only, not {layout}")
    if device is not None and device.type == "cuda":
        if not holder.active:
            torch.cuda._lazy_init()  # torch's own complaint, which its C++ side makes only the first time
            raise RuntimeError("the simulated GPU is switched off")
        check_ordinal(device.index)


def _resize(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Give ``tensor`` this geometry in place, in new memory when its own is too small."""
    storage = tensor.untyped_storage()
    if extent_bytes(size, stride, tensor.dtype) > storage.nbytes():
        grown = holder.device.allocate(tuple(size), tuple(stride), tensor.dtype)[0].untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        if count:
            _copy(_flat_view(grown, tensor.dtype, count), _flat_view(storage, tensor.dtype, count))
        storage = grown
    aten.set_.source_Storage_storage_offset.redispatch(_CPU, tensor, storage, 0, tuple(size), tuple(stride))


def _flat_view(storage: torch.UntypedStorage, dtype: torch.dtype, count: int) -> torch.Tensor:
    blank = to_device_label(torch.empty(0, dtype=dtype, device="cpu"))
    return aten.set_.source_Storage_storage_offset.redispatch(_CPU, blank, storage, 0, (count,), (1,))  # type: ignore[no-any-return]


def _resize_(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    if tuple(size) != tuple(self.shape):
        _resize(self, size, _contiguous(size))
    return self


def _set_storage(self: torch.Tensor, source: Any, offset: int, size: Any, stride: Any = ()) -> torch.Tensor:
    if source.device.type == "cpu":
        raise RuntimeError("the storage is on the CPU, the tensor on the simulated GPU")
    steps = tuple(stride) or _contiguous(size)
    return aten.set_.source_Storage_storage_offset.redispatch(_CPU, self, source, offset, tuple(size), steps)  # type: ignore[no-any-return]


def _set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return _set_storage(self, source.untyped_storage(), int(source.storage_offset()), source.shape, source.stride())


def _set_whole(self: torch.Tensor, source: Any) -> torch.Tensor:
    count = source.nbytes() // self.element_size()
    return _set_storage(self, source, 0, (count,), (1,))


def _set_nothing(self: torch.Tensor) -> torch.Tensor:
    return _set_tensor(self, to_device_label(torch.empty(0, dtype=self.dtype, device="cpu")))


def _copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``copy_``: a blocking copy between host and device is a synchronisation (so PyTorch's CUDA backend does it)."""
    device = holder.device
    with device.lock:
        device.raise_if_dead()
        to_device, from_device = on_device(self), on_device(source)
        pinned = is_pinned(self if from_device else source)
        target = to_host_label(self) if to_device else self.detach()
        if to_device and not from_device and non_blocking and not pinned:
            origin = source.detach().clone()  # pageable memory is staged: the caller may overwrite it at once
        else:
            origin = to_host_label(source) if from_device else source.detach()
        with below_every_mode():
            if target.shape != origin.shape:
                origin = origin.expand(target.shape)
            device.launch(Kernel("aten::copy_", None, functools.partial(_write, target, origin)))
            crosses = to_device != from_device
            if crosses and not (non_blocking and (to_device or pinned)):
                device.synchronize("copy between host and device")
    return self


def _write(target: torch.Tensor, origin: torch.Tensor) -> None:
    target.copy_(origin)


def _to_copy(
    self: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    non_blocking: bool = False, memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    target = "cpu" if device is not None and device.type == "cpu" else device
    if device is not None and device.type == "meta":
        return torch.empty_strided(self.shape, self.stride(), dtype=dtype or self.dtype, device="meta")
    format_ = torch.preserve_format if memory_format is None else memory_format
    out = aten.empty_like(self, dtype=dtype, device=target, memory_format=format_)
    return aten.copy_.default(out, self, non_blocking)  # type: ignore[no-any-return]


def _local_scalar_dense(self: torch.Tensor) -> Any:
    """``.item()``"""
    holder.device.synchronize("aten::_local_scalar_dense")
    return aten._local_scalar_dense.default(to_host_label(self))


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _pack_padded_sequence(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch sizes depend on the lengths alone and stay on the host; only the data is packed later."""
    device = holder.device
    with device.lock:
        device.raise_if_dead()
        source, sizes = to_host_label(input), lengths.detach().clone()
        with below_every_mode():
            shape, batch_sizes = aten._pack_padded_sequence.default(torch.empty_like(source), sizes, batch_first)
            packed, host = device.allocate(*_geometry(shape))

            def run() -> None:
                host.copy_(aten._pack_padded_sequence.default(source, sizes, batch_first)[0])

            device.launch(Kernel("aten::_pack_padded_sequence", None, run))
    return packed, batch_sizes


def _math_attention(*_args: Any, **_kwargs: Any) -> int:
    return int(torch.nn.attention.SDPBackend.MATH.value)


# --- pinned memory ---------------------------------------------------------------------------------------------------

_pinned_storages: set[int] = set()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in memory that counts as page-locked. A real copy, like CUDA's; nothing is locked."""
    holder.device.raise_if_dead()
    if is_pinned(tensor):
        return tensor
    copy = tensor.detach().clone()
    address = copy.untyped_storage().data_ptr()
    _pinned_storages.add(address)
    weakref.finalize(copy.untyped_storage(), _pinned_storages.discard, address).atexit = False
    return copy


def is_pinned(tensor: torch.Tensor) -> bool:
    return not on_device(tensor) and tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() in _pinned_storages


# --- registration ----------------------------------------------------------------------------------------------------

_SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::empty.memory_format": _empty,
    "aten::empty_strided": _empty_strided,
    "aten::copy_": _copy,
    "aten::_to_copy": _to_copy,
    "aten::_local_scalar_dense": _local_scalar_dense,
    "aten::resize_": _resize_,
    "aten::set_.source_Storage_storage_offset": _set_storage,
    "aten::set_.source_Tensor": _set_tensor,
    "aten::set_.source_Storage": _set_whole,
    "aten::set_": _set_nothing,
    "aten::record_stream": _nothing,
    "aten::_fused_sdp_choice": _math_attention,
    "aten::_pack_padded_sequence": _pack_padded_sequence,
}
_FACTORIES = ("aten::empty.memory_format", "aten::empty_strided")


def _has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _overload(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, base), overload or "default")


def _kernel_for(name: str) -> Callable[..., Any] | None:
    """The kernel to register for one operator, or None where torch's own composite kernel serves."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name in HOST_KERNELS:
        return _Launcher(_overload(name))
    backend = _has_kernel(name, "CPU")
    explicit = _has_kernel(name, "CompositeExplicitAutograd") or _has_kernel(name, "CompositeExplicitAutogradNonFunctional")
    if not backend and not explicit:
        return None
    overload = _overload(name)
    schema = overload._schema
    aliases = [a for a in schema.arguments if a.alias_info is not None and not a.alias_info.is_write]
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    if views or torch.Tag.inplace_view in overload.tags:
        return functools.partial(overload.redispatch, _CPU) if backend and aliases else None
    if any(argument.name == "device" for argument in schema.arguments):
        return None  # funnels into empty.memory_format or empty_strided
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    computes = any("Tensor" in str(result.type) for result in schema.returns)
    if not (mutates or computes or _waits(overload) or base_name(name) in CHECKS):
        return None
    return _Launcher(overload)


def _waits(overload: Any) -> bool:
    return bool(_WAITING_TAGS & set(overload.tags))


@functools.lru_cache(maxsize=1)
def register() -> tuple[torch.library.Library, ...]:
    """Register every kernel, once for the process. The libraries live as long as it does."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build has factories of its own on the CUDA key
        for name in torch._C._dispatch_get_all_op_names():
            if not name.startswith("aten::"):
                continue
            with contextlib.suppress(AttributeError):  # operators of TorchScript only
                kernel = _kernel_for(name)
                if isinstance(kernel, _Launcher) and base_name(name) in CHECKS:
                    _cpu_kernel(kernel.overload)  # now, before a guard can stand above it
                if kernel is not None:
                    library.impl(name.removeprefix("aten::"), kernel, _KEY)
        for name in _FACTORIES:
            library.impl(name.removeprefix("aten::"), _SPECIAL[name], "CUDA")
    return (library,)
