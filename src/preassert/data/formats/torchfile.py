"""``torch.save`` files, read without torch and without running what their pickle says.

A zip archive holds ``data.pkl`` (the structure) and ``data/<key>`` (the numbers). The stand-ins for what the pickle names
(``preassert.data.pickles``) build a description of the tensors only.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, cast

from preassert.data.formats.arrays import check_size, pieces, read_exactly
from preassert.data.formats.base import Chunk, Covered, Reader
from preassert.data.formats.safetensors import widen_bfloat16
from preassert.data.pickles import COMMON, Opaque, Token, Unpickler, load
from preassert.data.source import Source, refuse_bomb
from preassert.lazy import need

_PICKLE_LIMIT_BYTES = 256 << 20
_SAMPLES = 4096  # handed on together
_PLAIN = (int, float, str, list, tuple, type(None))
_STORAGES = {
    "BoolStorage": "?", "ByteStorage": "u1", "CharStorage": "i1", "ShortStorage": "<i2", "IntStorage": "<i4",
    "LongStorage": "<i8", "HalfStorage": "<f2", "FloatStorage": "<f4", "DoubleStorage": "<f8", "BFloat16Storage": "bfloat16",
}  # fmt: skip
_DTYPES = {"uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}  # tensors that are rebuilt from an untyped storage


@dataclass(frozen=True, slots=True)
class Storage:
    """One ``data/<key>`` entry of the archive."""

    dtype: str
    key: str
    elements: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the pickle describes it; nothing is read yet."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def contiguous(self) -> bool:
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


class Samples(list[Any]):
    """The values of one key in a list of samples: tensors, numbers, text or lists."""


class TorchFileReader(Reader):
    """One ``.pt``/``.pth`` file: a tensor, or tensors and lists in dictionaries and tuples (named ``train.y``, ``1``).

    In a list of samples (dictionaries with the same keys, or tuples) each sample is a row, and each key or place a column.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if not source.head(4).startswith(b"PK\x03\x04"):
            raise ValueError("not a zip archive, which torch.save writes since torch 1.6: save it again with a newer torch")
        with self._archive() as archive:
            names = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(names) != 1:
                raise ValueError("a zip archive without data.pkl: not written by torch.save")
            self._prefix = names[0].removesuffix("data.pkl")
            member = archive.getinfo(names[0])
            if member.file_size > _PICKLE_LIMIT_BYTES:
                raise ValueError(f"its pickle is larger than {_PICKLE_LIMIT_BYTES:,} bytes")
            refuse_bomb(source.path, member.file_size, member.compress_size)
            value = load(BytesIO(archive.read(member)), _Unpickler, _PICKLE_LIMIT_BYTES)
        self.values: dict[str, Any] = {}
        _flatten("", value, self.values, 0)

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self.source.open() as stream, zipfile.ZipFile(stream) as archive:
            yield archive

    def columns(self) -> tuple[str, ...]:
        return tuple(self.values)

    def chunks(self, columns: Sequence[str], covered: Covered | None) -> Iterator[Chunk]:
        with self._archive() as archive:
            for column in columns:
                row = 1
                for piece in self._pieces(archive, column, self.values[column]):
                    yield Chunk(row, {column: piece})
                    row += len(piece)

    def _pieces(self, archive: zipfile.ZipFile, column: str, value: Any) -> Iterator[Any]:
        if isinstance(value, Samples):
            for start in range(0, len(value), _SAMPLES):
                yield [self._sample(archive, column, inner) for inner in value[start : start + _SAMPLES]]
        elif isinstance(value, list):
            yield value
        else:
            yield from self._tensor(archive, column, value)

    def _sample(self, archive: zipfile.ZipFile, column: str, value: Any) -> Any:
        """A number or a list for a tensor."""
        if not isinstance(value, Tensor):
            return list(value) if isinstance(value, tuple) else value
        rows = [row for piece in self._tensor(archive, column, value) for row in piece.tolist()]
        return rows if value.shape else rows[0]

    def _tensor(self, archive: zipfile.ZipFile, column: str, tensor: Tensor) -> Iterator[Any]:
        np = need("numpy", extra="data", purpose="read .pt files")
        bfloat16 = tensor.dtype == "bfloat16"
        dtype = np.dtype("<u2" if bfloat16 else tensor.dtype)
        last = tensor.offset + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.strides, strict=True)) + 1
        elements = math.prod(tensor.shape)
        name = f"{self._prefix}data/{tensor.storage.key}"
        if name not in archive.NameToInfo:
            raise ValueError(f"tensor {column!r}: the archive has no {name}")
        member = archive.getinfo(name)
        refuse_bomb(self.source.path, member.file_size, member.compress_size)
        if elements:
            check_size(last * dtype.itemsize, member.file_size, f"tensor {column!r}")
            refuse_bomb(self.source.path, elements * dtype.itemsize, member.file_size)  # a view may repeat its storage
        with archive.open(member) as opened:
            stream = cast(BinaryIO, opened)
            if tensor.contiguous or not elements:
                _skip(stream, tensor.offset * dtype.itemsize)
                parts = pieces(stream, dtype, tensor.shape)
            else:
                # A view: its rows are spread over the storage, so the storage is read as one.
                flat = np.frombuffer(read_exactly(stream, last * dtype.itemsize), dtype)
                strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
                parts = iter([np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides)])
            for part in parts:
                yield widen_bfloat16(part) if bfloat16 else part


def _skip(stream: BinaryIO, size_bytes: int) -> None:
    while size_bytes:
        size_bytes -= len(read_exactly(stream, min(size_bytes, 1 << 20)))


def _flatten(name: str, value: Any, out: dict[str, Any], depth: int) -> None:
    """Collect tensors and lists of numbers or text under dotted names."""
    if depth > 8:
        return
    if isinstance(value, Tensor):
        out[name] = value
    elif isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{name}.{key}" if name else str(key), inner, out, depth + 1)
    elif isinstance(value, list) and len(value) > 1 and (keys := _keys_of_samples(value)):
        for key in keys:
            column = Samples(sample[key] for sample in value)
            if all(isinstance(inner, (Tensor, *_PLAIN)) for inner in column[:8]):
                out[f"{name}.{key}" if name else str(key)] = column
    elif isinstance(value, (list, tuple)) and value:
        if any(isinstance(inner, (Tensor, dict)) for inner in value[:8]):
            for at, inner in enumerate(value):
                _flatten(f"{name}.{at}" if name else str(at), inner, out, depth + 1)
        elif all(isinstance(inner, _PLAIN) for inner in value[:8]):
            out[name] = list(value)


def _keys_of_samples(samples: list[Any]) -> list[Any]:
    """The keys that all of them have, or the places of tuples of the same length; none where they are something else."""
    first = samples[0]
    if isinstance(first, dict) and all(isinstance(sample, dict) and sample.keys() == first.keys() for sample in samples):
        return list(first)
    if isinstance(first, tuple) and all(isinstance(sample, tuple) and len(sample) == len(first) for sample in samples):
        return list(range(len(first)))
    return []


class _Unpickler(Unpickler):
    def storage(self, kind: Token, key: str, elements: int) -> Storage:
        return Storage(kind.name, key, elements)

    def stand_in(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return Token(_STORAGES[name])
        if module == "torch.storage" and name == "UntypedStorage":
            return Token("u1")
        if module == "torch" and name in _DTYPES:
            return Token(_DTYPES[name])
        if module == "torch" and name in ("device", "dtype", "float32", "int64"):
            return Opaque
        return _GLOBALS.get((module, name))


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    whole = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not isinstance(storage, Storage) or not whole or not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise ValueError("a tensor that is not described by whole numbers")
    explicit = next((value.name for value in rest if isinstance(value, Token)), None)
    return Tensor(storage, offset, shape, strides, explicit or storage.dtype)


_GLOBALS: dict[tuple[str, str], Any] = {
    **COMMON,
    ("torch", "Tensor"): Opaque,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild,
    ("torch.nn.parameter", "Parameter"): Opaque,
}


READER = TorchFileReader
