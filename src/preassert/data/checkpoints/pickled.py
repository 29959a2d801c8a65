"""Names and shapes of the tensors in a ``.bin`` / ``.pt`` file, without torch and without running what the pickle says.

``torch.save`` writes a pickle of the state dict beside the raw storages: as ``data.pkl`` in a zip archive (torch >= 1.6),
or as four pickles in a row (before). A pickle can call any function, so here the opcodes are checked first, and the few
globals that a state dict needs are replaced by stand-ins that keep the shape only; any other global is an error.
"""

from __future__ import annotations

import collections
import io
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from preassert.data.checkpoints.files import refuse_lfs_pointer
from preassert.errors import InputError

LARGEST_PICKLE_BYTES = 64 << 20  # names and shapes only: 1 million tensors need about 150 MB, real models have < 100,000
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py, MAGIC_NUMBER

# torch storage class -> dtype in the spelling of safetensors
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64",
    "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
    "UntypedStorage": "U8", "ComplexFloatStorage": "C64", "ComplexDoubleStorage": "C128",
    "QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32",
}  # fmt: skip
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "complex64": "C64", "complex128": "C128", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip

# Opcodes that make the C unpickler allocate by a number in the stream rather than by what is in the stream: its memo is
# an array as long as the highest entry. Entries are numbered in order, so a number beyond the bytes read is not genuine.
_MEMO_WRITES = {"PUT", "BINPUT", "LONG_BINPUT"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is kept of a tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    """Stands for a class, dtype or layout that only ever is an argument."""

    name: str


class _Opaque:
    """Stands for an object that carries no tensor (a config, an argparse namespace): accepts any state."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Bounded:
    """A file for ``genops`` that refuses to read (and so to allocate) more at once than a pickle may have."""

    def __init__(self, file: IO[bytes]) -> None:
        self.tell = file.tell
        self.readline = file.readline
        self._read = file.read

    def read(self, size: int) -> bytes:
        if size > LARGEST_PICKLE_BYTES:
            raise ValueError(f"a field of {size:,} bytes")
        return self._read(size)


def read_shapes(path: str) -> dict[str, Shape]:
    """Tensor name -> dtype and shape, for a state dict (possibly under a key ``state_dict`` or ``model``).

    Raises:
        InputError: the file cannot be read, is truncated, is not what ``torch.save`` writes for a state dict, or its
            pickle names a function that a state dict has no need of.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            refuse_lfs_pointer(path, head)
            file.seek(0)
            value = _from_zip(path, file) if head.startswith(b"PK\x03\x04") else _from_legacy(path, file)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    return _state_dict(path, value)


def _from_zip(path: str, file: IO[bytes]) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(names) != 1:
                raise InputError(path, "a zip archive without data.pkl: not written by torch.save")
            if archive.getinfo(names[0]).file_size > LARGEST_PICKLE_BYTES:
                raise InputError(path, f"its pickle is larger than {LARGEST_PICKLE_BYTES:,} bytes")
            with archive.open(names[0]) as member:  # the size in the directory may lie: read no more than the limit
                data = member.read(LARGEST_PICKLE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(path, f"truncated or damaged zip archive ({error})") from error
    if len(data) > LARGEST_PICKLE_BYTES:
        raise InputError(path, f"its pickle is larger than {LARGEST_PICKLE_BYTES:,} bytes")
    return _load_one(path, io.BytesIO(data))


def _from_legacy(path: str, file: IO[bytes]) -> Any:
    if file.read(1) != b"\x80":
        raise InputError(path, "neither a zip archive nor a pickle: not written by torch.save")
    file.seek(0)
    magic = _load_one(path, file)
    if magic != _LEGACY_MAGIC:  # a plain pickle, such as pickle.dump(state_dict)
        return magic
    _load_one(path, file)  # protocol version
    _load_one(path, file)  # system information
    return _load_one(path, file)


def _load_one(path: str, file: IO[bytes]) -> Any:
    """One pickle from where the file stands; the file then stands behind it."""
    start = file.tell()
    try:
        for opcode, argument, position in pickletools.genops(cast("IO[bytes]", _Bounded(file))):
            read_bytes = (position or 0) - start
            if read_bytes > LARGEST_PICKLE_BYTES:
                raise InputError(path, f"its pickle is larger than {LARGEST_PICKLE_BYTES:,} bytes")
            if opcode.name in _MEMO_WRITES and isinstance(argument, int) and argument > read_bytes:
                raise InputError(path, f"its pickle is damaged (memo entry {argument} after {read_bytes} bytes)")
        end = file.tell()
        file.seek(start)
        value = _ShapeUnpickler(file, path).load()
        file.seek(end)
        return value
    except InputError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(path, f"truncated or damaged pickle ({type(error).__name__}: {error})") from error


class _ShapeUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], path: str) -> None:
        super().__init__(file)
        self._path = path

    def persistent_load(self, pid: Any) -> Any:
        # ('storage', storage class, key, location, numel[, view metadata])
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], _Token):
            return pid[1]
        raise InputError(self._path, "its pickle refers to something that is not a tensor storage")

    def find_class(self, module: str, name: str) -> Any:
        found = _stand_in(module, name)
        if found is None:
            raise InputError(self._path, f"its pickle asks for {module}.{name}, which a state dict does not need; not loaded")
        return found


def _stand_in(module: str, name: str) -> Any:
    if (module, name) in _GLOBALS:
        return _GLOBALS[module, name]
    if module in ("torch", "torch.storage") and (name in _STORAGES or name == "TypedStorage"):
        return _Token(_STORAGES.get(name, "U8"))
    if module == "torch" and name in _DTYPES:
        return _Token(_DTYPES[name])
    if module == "torch.serialization" and name == "_get_layout":
        return _Token
    if module == "torch" and name in ("device", "Size", "Tensor"):
        return {"device": _Opaque, "Size": tuple, "Tensor": _Token("Tensor")}[name]
    if module.partition(".")[0] in ("argparse", "transformers", "torch", "pathlib", "datetime", "numpy") and name[:1].isupper():
        return _Opaque  # configs and the like beside the tensors; never called into
    return None


def _tensor(storage: Any, _offset: Any, size: Any, *_: Any) -> Shape:
    if not (isinstance(storage, _Token) and isinstance(size, tuple) and all(isinstance(n, int) and n >= 0 for n in size)):
        raise ValueError("a tensor whose shape is not a tuple of whole numbers")
    return Shape(storage.name, size)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _typed(function: Callable[..., Any], _type: Any, arguments: Any, _state: Any) -> Any:
    return function(*arguments)


def _without_data(_type: Any, dtype: Any, _device: Any, size: Any, *_: Any) -> Shape:
    """``_rebuild_meta_tensor_no_storage`` and its kind."""
    return Shape(dtype.name if isinstance(dtype, _Token) else "U8", tuple(size))


def _opaque(*_: Any) -> _Opaque:
    return _Opaque()


_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): lambda storage, offset, size, *rest: Shape(
        rest[4].name if len(rest) > 4 and isinstance(rest[4], _Token) else "U8", _tensor(storage, offset, size).shape
    ),
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _typed,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): lambda dtype, size, *_: _without_data(None, dtype, None, size),
    ("torch._utils", "_rebuild_qtensor"): _tensor,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _opaque,
    ("torch.nn.parameter", "Parameter"): _Token("Parameter"),
    ("numpy.core.multiarray", "scalar"): _opaque,
    ("numpy._core.multiarray", "scalar"): _opaque,
    ("numpy.core.multiarray", "_reconstruct"): _opaque,
    ("numpy._core.multiarray", "_reconstruct"): _opaque,
    ("numpy", "dtype"): _Opaque,
    ("_codecs", "encode"): _opaque,
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
}


def _state_dict(path: str, value: Any) -> dict[str, Shape]:
    """The mapping of names to tensors in what was saved; wrappers that trainers put around it are looked through."""
    seen = 0
    while isinstance(value, dict) and seen < 3:
        shapes = {name: shape for name, shape in value.items() if isinstance(name, str) and isinstance(shape, Shape)}
        if shapes:
            return shapes
        inner = next((value[key] for key in ("state_dict", "model_state_dict", "model", "module") if key in value), None)
        value, seen = inner, seen + 1
    raise InputError(path, "holds no tensors by name (a state dict is expected)")
