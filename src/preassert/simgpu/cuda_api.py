"""What a script written for CUDA calls: ``torch.cuda``, ``tensor.cuda()``, ``tensor.device`` and their like.

Everything here is Python-level and undone when the simulation ends. Numbers that only a real device has are zero or
refused, never invented.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from preassert.simgpu import collectives
from preassert.simgpu.device import Device, Marker
from preassert.simgpu.kernels import check_ordinal, holder, is_pinned, pin
from preassert.simgpu.memory import BACKEND, on_device, to_device_label
from preassert.simgpu.messages import INVALID_DEVICE, LABEL, accelerator_error

CAPABILITY = (9, 0)  # what get_device_capability answers, so that scripts which ask for bfloat16 support go on

_native_device = torch.Tensor.device
_native_to = torch.Tensor.to


def _device() -> Device:
    return holder.device


# --- devices ---------------------------------------------------------------------------------------------------------


def _ordinal(device: Any = None) -> int:
    """The ordinal that ``device`` (int, string, torch.device or None) names. Raises for one that does not exist."""
    if device is None:
        return _device().index
    if isinstance(device, int):
        index: int | None = device if device >= 0 else None
    else:
        index = torch.device(device).index
    if index is None:
        return _device().index
    if not 0 <= index < _device().device_count:
        raise accelerator_error(INVALID_DEVICE)
    return index


def _set_device(device: Any) -> None:
    _device().index = _ordinal(device)


def _exchange_device(index: int) -> int:
    before = _device().index
    if index >= 0:
        _set_device(index)
    return before


class _DeviceContext:
    """``with torch.cuda.device(i)``"""

    def __init__(self, device: Any) -> None:
        self._index = _ordinal(device)

    def __enter__(self) -> None:
        self._before = _exchange_device(self._index)

    def __exit__(self, *_error: Any) -> None:
        _exchange_device(self._before)


def _properties(device: Any = None) -> SimpleNamespace:
    _ordinal(device)
    return SimpleNamespace(
        name=LABEL, major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=_total_bytes(), multi_processor_count=1,
        is_integrated=0, is_multi_gpu_board=0, warp_size=32, gcnArchName="",
    )  # fmt: skip


def _total_bytes() -> int:
    limit = _device().limit_bytes
    return (1 << 34) if limit is None else limit


def _synchronize(device: Any = None) -> None:
    _ordinal(device)
    _device().synchronize("torch.cuda.synchronize")


# --- streams and events ----------------------------------------------------------------------------------------------


class Stream:
    """A stream. The simulation runs every stream in order of launch, so waiting for another stream costs nothing."""

    def __init__(self, device: Any = None, priority: int = 0, **_kwargs: Any) -> None:
        self.device = torch.device("cuda", _ordinal(device))
        self.priority = priority
        self.cuda_stream = id(self)

    @property
    def device_index(self) -> int:
        return self.device.index

    def synchronize(self) -> None:
        _device().synchronize("torch.cuda.Stream.synchronize")

    def query(self) -> bool:
        _device().raise_if_dead()
        return not _device().queue

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Any) -> None:
        _device().raise_if_dead()

    def wait_event(self, event: Any) -> None:
        _device().raise_if_dead()

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before = _streams.current
        _streams.current = self
        return self

    def __exit__(self, *_error: Any) -> None:
        _streams.current = self._before

    def __repr__(self) -> str:
        return f"<{LABEL} stream device={self.device}>"


class Event:
    """An event: a mark in the queue."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_kwargs: Any) -> None:
        self._timing = enable_timing
        self._marker: Marker | None = None
        self._recorded_s = 0.0

    def record(self, stream: Any = None) -> None:
        self._marker = _device().mark()
        self._recorded_s = time.perf_counter()

    def query(self) -> bool:
        _device().raise_if_dead()
        return self._marker is None or self._marker.done

    def wait(self, stream: Any = None) -> None:
        _device().raise_if_dead()

    def synchronize(self) -> None:
        if not self.query():
            _device().synchronize("torch.cuda.Event.synchronize")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of *host* time between the two records: a simulation has no device time."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return (end._recorded_s - self._recorded_s) * 1e3


class _Streams:
    current: Stream | None = None
    default: Stream | None = None


_streams = _Streams()


def _default_stream(device: Any = None) -> Stream:
    if _streams.default is None:
        _streams.default = Stream(device)
    return _streams.default


def _current_stream(device: Any = None) -> Stream:
    return _streams.current or _default_stream(device)


def _set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _streams.current = stream


@contextmanager
def _stream_context(stream: Stream | None) -> Iterator[None]:
    before = _streams.current
    _set_stream(stream)
    try:
        yield
    finally:
        _streams.current = before


# --- random numbers --------------------------------------------------------------------------------------------------


def _manual_seed(seed: int) -> None:
    _device().drain()
    _device().seed_random(int(seed) & 0xFFFF_FFFF_FFFF_FFFF if int(seed) < 0 else int(seed))


def _seed() -> None:
    _manual_seed(int.from_bytes(os.urandom(7), "little"))


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    _device().drain()
    return _device().generator_state.clone()


def _set_rng_state(state: torch.Tensor, device: Any = "cuda") -> None:
    _device().drain()
    _device().generator_state = state.clone()


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: Any) -> bool:
        return issubclass(type(value), torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_GeneratorType):
    """``torch.Generator`` which also takes ``device="cuda"``; its numbers are those of the CPU generator."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        host = "cpu" if torch.device(device).type in ("cuda", BACKEND) else device
        return super().__new__(cls, device=host)  # type: ignore[call-arg]

    def __init__(self, device: Any = "cpu") -> None:
        self._label = torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        if self._label.type in ("cuda", BACKEND):
            return torch.device("cuda", _device().index)
        return self._label


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory_allocated(device: Any = None) -> int:
    _device().drain()
    return _device().ledger.allocated_bytes


def _max_memory_allocated(device: Any = None) -> int:
    return _device().ledger.peak_bytes


def _reset_peak(device: Any = None) -> None:
    _device().ledger.peak_bytes = _memory_allocated()


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    return max(0, _total_bytes() - _memory_allocated()), _total_bytes()


def _memory_stats(device: Any = None) -> dict[str, Any]:
    now, peak = _memory_allocated(), _max_memory_allocated()
    return {
        "allocated_bytes.all.current": now,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": now,
        "reserved_bytes.all.peak": peak,
        "allocation.all.allocated": _device().ledger.allocations,
        "num_ooms": 0,
    }


def _memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    now, peak = _memory_allocated(), _max_memory_allocated()
    return f"{LABEL}: {now} bytes allocated, {peak} bytes at the peak"


# --- tensors ---------------------------------------------------------------------------------------------------------


def _tensor_device(tensor: torch.Tensor) -> torch.device:
    device: torch.device = _native_device.__get__(tensor)
    return torch.device("cuda", holder.device.index) if device.type == BACKEND else device


def _here(device: Any) -> Any:
    """``device`` as torch's C++ code knows the simulated device; other devices pass through."""
    if isinstance(device, (str, torch.device)):
        parsed = torch.device(device)
        if parsed.type == "cuda":
            check_ordinal(parsed.index)
            return torch.device(BACKEND, 0)
    elif isinstance(device, int) and not isinstance(device, bool):
        check_ordinal(device)
        return torch.device(BACKEND, 0)
    return device


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.to``; a device argument "cuda" means the simulated device, so that a tensor already there is not copied."""
    if args and isinstance(args[0], (str, torch.device, int)):
        args = (_here(args[0]), *args[1:])
    elif "device" in kwargs:
        kwargs["device"] = _here(kwargs["device"])
    result: torch.Tensor = _native_to(tensor, *args, **kwargs)
    return result


def _cuda(
    tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    return _to(tensor, _device().index if device is None else device, non_blocking=non_blocking, memory_format=memory_format)


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
    if on_device(tensor) and not force:
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return _native_numpy(tensor.detach().cpu() if on_device(tensor) else tensor, force=force)


_native_numpy = torch.Tensor.numpy


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    if on_device(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return pin(tensor)


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return is_pinned(tensor)


def _type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``tensor.type()`` names the device "cuda"; a conversion goes to torch."""
    answer = _native_type(tensor, *args, **kwargs)
    return answer.replace(f"torch.{BACKEND}.", "torch.cuda.") if isinstance(answer, str) else answer


_native_type: Callable[..., Any] = torch.Tensor.type


def _get_device(tensor: torch.Tensor) -> int:
    return _device().index if on_device(tensor) else -1


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``factory`` with ``pin_memory=True`` served by the simulation: torch would ask the backend for an allocator."""

    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        wanted = kwargs.pop("pin_memory", False)
        tensor = factory(*args, **kwargs)
        return pin(tensor) if wanted else tensor

    return made


_FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "ones", "ones_like", "rand",
    "rand_like", "randint", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip


def _apply(module: torch.nn.Module, function: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
    """``Module._apply``: a parameter that moves to "cuda" stays the same object, so an optimizer made before goes on with it."""
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        return _native_apply(module, function, recurse)
    except RuntimeError as error:
        if "swap" not in str(error):
            raise
        future.set_swap_module_params_on_conversion(False)  # a live graph holds the parameter: it gets a successor
        return _native_apply(module, function, recurse)
    finally:
        future.set_swap_module_params_on_conversion(before)


_native_apply: Callable[..., torch.nn.Module] = torch.nn.Module._apply


def _scatter(
    model: torch.nn.DataParallel[Any], inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Any
) -> tuple[Any, Any]:
    """``DataParallel.scatter`` over the one device that there is: the whole batch goes there."""
    from torch.utils._pytree import tree_map

    moved = tree_map(lambda value: value.cuda() if isinstance(value, torch.Tensor) else value, (inputs, kwargs or {}))
    return [moved[0]], [moved[1]]


def _profile(profiler: Any, *, activities: Any = None, **kwargs: Any) -> None:
    """A profiler of the host only: there is no device whose events could be recorded."""
    from torch.profiler import ProfilerActivity

    host = None if activities is None else [a for a in activities if a is not ProfilerActivity.CUDA] or [ProfilerActivity.CPU]
    _native_profile(profiler, activities=host, **kwargs)


_native_profile: Callable[..., None] = torch.profiler.profiler._KinetoProfile.__init__


# --- storages and checkpoints ----------------------------------------------------------------------------------------


def _location_tag(storage: Any) -> str | None:
    return f"cuda:{_device().index}" if storage.device.type == BACKEND else None


def _restore_location(storage: Any, location: str) -> Any:
    if not location.startswith("cuda") or not active():
        return None
    _device().raise_if_dead()
    untyped = storage.untyped() if hasattr(storage, "untyped") else storage
    host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped)
    tensor, target = _device().allocate((host.numel(),), (1,), torch.uint8)
    target.copy_(host)
    return tensor.untyped_storage()


def _clone_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if storage.device.type != BACKEND:
        return _native_clone(storage)
    whole = to_device_label(torch.empty(0, dtype=torch.uint8, device="cpu")).set_(storage)
    return whole.clone().untyped_storage()


_native_clone: Callable[..., torch.UntypedStorage] = torch.UntypedStorage.clone


# --- torch's C++ side ------------------------------------------------------------------------------------------------


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return active()

    def has_primary_context(self, device_id: int) -> bool:
        return active()

    def is_built(self) -> bool:
        return True


class _BackendModule:
    """``torch.simgpu``, as torch wants one of every backend."""

    Stream, Event = Stream, Event
    is_initialized = staticmethod(lambda: active())
    is_available = staticmethod(lambda: active())
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    current_stream = staticmethod(_current_stream)
    synchronize = staticmethod(_synchronize)
    manual_seed_all = staticmethod(lambda seed: _manual_seed(seed) if active() else None)
    get_rng_state = staticmethod(_get_rng_state)
    set_rng_state = staticmethod(_set_rng_state)
    _is_in_bad_fork = staticmethod(lambda: _device().process != os.getpid())
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16, torch.float32])


_kept: list[Any] = []  # objects that torch's C++ side refers to


@functools.lru_cache(maxsize=1)
def register_backend() -> None:
    """Tell torch's C++ side about the device, once for the process.

    Raises:
        RuntimeError: another PrivateUse1 backend is registered, a real GPU is here, or this torch is too old.
    """
    if not hasattr(torch._C, "_acc"):
        raise RuntimeError(
            f"the simulated GPU needs a torch with Python-made backends (2.9 or newer); this is {torch.__version__}"
        )
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        raise RuntimeError(f"another PrivateUse1 backend is registered: {torch._C._get_privateuse1_backend_name()}")
    if torch.cuda.is_available():
        raise RuntimeError("a real GPU is here; hide it for the simulation: CUDA_VISIBLE_DEVICES=''")
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _kept.extend([_BackendModule(), _Hooks(), _Guard()])
    _setup_privateuseone_for_python_backend(BACKEND, *_kept)
    _name_cuda()
    torch.serialization.register_package(5, _location_tag, _restore_location)


def _name_cuda() -> None:
    """Let torch's C++ code resolve "cuda" to "cuda:0" in a build without CUDA, by a guard that does nothing.

    A build with CUDA and no GPU has a call of its own for this. A build without has no device guard for CUDA at all; one is
    registered by libc10's exported registrar.
    """
    if torch.backends.cuda.is_built():
        torch._C._ensureCUDADeviceGuardSet()
        return

    class CudaGuard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.CUDA

    guard = CudaGuard()
    library = _libc10()
    registry = ctypes.c_void_p * (int(torch._C._autograd.DeviceType.PrivateUse1.value) + 1)
    slots = registry.in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    register = library["_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"]
    register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p], None
    registrar = ctypes.create_string_buffer(8)
    cuda = torch._C._autograd.DeviceType.CUDA.value
    # torch hands out no pointer to a Python guard, except through the slot of PrivateUse1: borrow that slot.
    private = torch._C._autograd.DeviceType.PrivateUse1.value
    mine = slots[private]
    slots[private] = None
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    register(ctypes.byref(registrar), cuda, slots[private])
    register(ctypes.byref(registrar), private, mine)
    _kept.extend([guard, registrar])


def _libc10() -> ctypes.CDLL:
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libc10.so", "libc10.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise RuntimeError(f"the simulated GPU runs on Linux and macOS: no libc10 in {folder}")


# --- switching on and off --------------------------------------------------------------------------------------------

_undo: list[tuple[Any, str, Any]] = []
_ABSENT = object()


def active() -> bool:
    """Is the simulation switched on?"""
    return holder.active


def _replace(owner: Any, name: str, value: Any) -> None:
    _undo.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _both_autocasts(native: Callable[..., Any]) -> Callable[..., Any]:
    """CUDA's autocast state is the simulated device's as well."""

    @functools.wraps(native)
    def both(*args: Any) -> Any:
        if args and args[0] == "cuda":
            native(BACKEND, *args[1:])
        return native(*args)

    return both


def set_sync_debug_mode(mode: int | str) -> None:
    """``torch.cuda.set_sync_debug_mode``: "default" (0), "warn" (1) or "error" (2) at every synchronisation."""
    names = {"default": 0, "warn": 1, "error": 2}
    value = names.get(mode, mode) if isinstance(mode, str) else mode
    if value not in (0, 1, 2):
        raise RuntimeError("invalid value of debug_mode, expected `default`, `warn`, `error`, or 0, 1, 2")
    _device().sync_debug_mode = int(value)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


# What stands for the functions and classes of ``torch.cuda``.
_CUDA: dict[str, Any] = {
    "_lazy_init": _nothing,
    "init": _nothing,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: _device().device_count,
    "current_device": lambda: _device().index,
    "set_device": _set_device,
    "device": _DeviceContext,
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "get_device_name": lambda device=None: _properties(device).name,
    "get_device_properties": _properties,
    "get_device_capability": lambda device=None: (_ordinal(device), CAPABILITY)[1],
    "get_arch_list": lambda: ["sm_90"],
    "can_device_access_peer": lambda *_: False,
    "is_bf16_supported": lambda *_a, **_k: True,
    "_is_in_bad_fork": lambda: _device().process != os.getpid(),
    "synchronize": _synchronize,
    "Stream": Stream,
    "Event": Event,
    "stream": _stream_context,
    "StreamContext": _stream_context,
    "current_stream": _current_stream,
    "default_stream": _default_stream,
    "set_stream": _set_stream,
    "is_current_stream_capturing": lambda: False,
    "manual_seed": _manual_seed,
    "manual_seed_all": _manual_seed,
    "seed": _seed,
    "seed_all": _seed,
    "initial_seed": lambda: _device().seed,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "get_rng_state_all": lambda: [_get_rng_state()],
    "set_rng_state_all": lambda states: _set_rng_state(list(states)[-1]),
    "empty_cache": lambda: _device().drain(),
    "ipc_collect": _nothing,
    "memory_allocated": _memory_allocated,
    "max_memory_allocated": _max_memory_allocated,
    "memory_reserved": _memory_allocated,
    "max_memory_reserved": _max_memory_allocated,
    "reset_peak_memory_stats": _reset_peak,
    "reset_max_memory_allocated": _reset_peak,
    "mem_get_info": _mem_get_info,
    "set_per_process_memory_fraction": _nothing,
    "memory_stats": _memory_stats,
    "memory_summary": _memory_summary,
    "set_sync_debug_mode": set_sync_debug_mode,
    "get_sync_debug_mode": lambda: _device().sync_debug_mode,
}


def switch_on() -> None:
    """Put the simulation in place of ``torch.cuda``."""
    if holder.active:
        return
    holder.active = True
    for name, value in _CUDA.items():
        _replace(torch.cuda, name, value)
    for name, value in {
        "device": property(_tensor_device), "is_cuda": property(on_device), "to": _to, "cuda": _cuda, "numpy": _numpy,
        "record_stream": _nothing, "pin_memory": _pin_memory, "is_pinned": _is_pinned, "get_device": _get_device, "type": _type,
    }.items():  # fmt: skip
        _replace(torch.Tensor, name, value)
    from torch.utils._device import _device_constructors

    _device_constructors()  # remembers torch's own factories, which ours call
    for name in _FACTORIES:
        _replace(torch, name, _pinning(getattr(torch, name)))
    _replace(torch.nn.Module, "_apply", _apply)
    _replace(torch.nn.DataParallel, "scatter", _scatter)
    _replace(torch.profiler.profiler._KinetoProfile, "__init__", _profile)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        _replace(torch.cuda.nvtx, name, lambda *_args, **_kwargs: 0)
    _replace(torch.cuda.memory, "_record_memory_history", _nothing)
    _replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    _replace(torch.UntypedStorage, "clone", _clone_storage)
    _replace(torch, "Generator", Generator)
    _replace(torch, "set_autocast_enabled", _both_autocasts(torch.set_autocast_enabled))
    _replace(torch, "set_autocast_dtype", _both_autocasts(torch.set_autocast_dtype))
    if torch.distributed.is_available():
        for name, value in collectives.replacements().items():
            _replace(torch.distributed, name, value)
    if hasattr(torch, "accelerator"):
        for name, value in {
        "is_available": lambda: True, "current_accelerator": lambda *_a, **_k: torch.device("cuda"), "device_count": lambda:
        _device().device_count, "current_device_index": lambda: _device().index, "synchronize": _synchronize,
        "set_device_index": _set_device, "current_stream": _current_stream, "set_stream": _set_stream,
    }.items():  # fmt: skip
            _replace(torch.accelerator, name, value)


def switch_off() -> None:
    """Give ``torch.cuda`` and the rest back as they were."""
    while _undo:
        owner, name, value = _undo.pop()
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    _streams.current = _streams.default = None
    holder.active = False
