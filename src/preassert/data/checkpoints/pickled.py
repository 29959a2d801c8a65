"""Names and shapes of the tensors in a ``.bin`` / ``.pt`` file, without torch and without running what the pickle says.

``torch.save`` writes a pickle of the state dict beside the raw storages: as ``data.pkl`` in a zip archive (torch >= 1.6),
or as four pickles in a row (before). The stand-ins for what it names (``preassert.data.pickles``) keep the shape only.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Any

from preassert.data.checkpoints.files import refuse_lfs_pointer
from preassert.data.pickles import COMMON, Opaque, Refused, Token, Unpickler, load
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


@dataclass(frozen=True, slots=True)
class Shape:
    """What is kept of a tensor."""

    dtype: str
    shape: tuple[int, ...]


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
    try:
        return load(file, _ShapeUnpickler, LARGEST_PICKLE_BYTES)
    except Refused as error:
        raise InputError(path, str(error)) from error


class _ShapeUnpickler(Unpickler):
    def storage(self, kind: Token, key: str, elements: int) -> Token:
        return kind

    def stand_in(self, module: str, name: str) -> Any:
        return _stand_in(module, name)


def _stand_in(module: str, name: str) -> Any:
    if (module, name) in _GLOBALS:
        return _GLOBALS[module, name]
    if module in ("torch", "torch.storage") and (name in _STORAGES or name == "TypedStorage"):
        return Token(_STORAGES.get(name, "U8"))
    if module == "torch" and name in _DTYPES:
        return Token(_DTYPES[name])
    if module == "torch.serialization" and name == "_get_layout":
        return Token
    if module == "torch" and name in ("device", "Tensor"):
        return {"device": Opaque, "Tensor": Token("Tensor")}[name]
    if module.partition(".")[0] in ("argparse", "transformers", "torch", "pathlib", "datetime", "numpy") and name[:1].isupper():
        return Opaque  # configs and the like beside the tensors; never called into
    return None


def _tensor(storage: Any, _offset: Any, size: Any, *_: Any) -> Shape:
    if not (isinstance(storage, Token) and isinstance(size, tuple) and all(isinstance(n, int) and n >= 0 for n in size)):
        raise ValueError("a tensor whose shape is not a tuple of whole numbers")
    return Shape(storage.name, size)


def _without_data(_type: Any, dtype: Any, _device: Any, size: Any, *_: Any) -> Shape:
    """``_rebuild_meta_tensor_no_storage`` and its kind."""
    return Shape(dtype.name if isinstance(dtype, Token) else "U8", tuple(size))


_GLOBALS: dict[tuple[str, str], Any] = {
    **COMMON,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): lambda storage, offset, size, *rest: Shape(
        rest[4].name if len(rest) > 4 and isinstance(rest[4], Token) else "U8", _tensor(storage, offset, size).shape
    ),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): lambda dtype, size, *_: _without_data(None, dtype, None, size),
    ("torch._utils", "_rebuild_qtensor"): _tensor,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): Opaque,
    ("torch.nn.parameter", "Parameter"): Token("Parameter"),
    ("numpy.core.multiarray", "scalar"): Opaque,
    ("numpy._core.multiarray", "scalar"): Opaque,
    ("numpy.core.multiarray", "_reconstruct"): Opaque,
    ("numpy._core.multiarray", "_reconstruct"): Opaque,
    ("numpy", "dtype"): Opaque,
    ("_codecs", "encode"): Opaque,
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
