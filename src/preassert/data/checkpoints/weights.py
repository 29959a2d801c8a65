"""Names, dtypes and shapes of a checkpoint's tensors, from headers and indexes; no tensor is loaded."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from preassert.data.checkpoints.files import damaged, read_json_object, refuse_lfs_pointer
from preassert.data.checkpoints.pickled import read_shapes
from preassert.errors import InputError
from preassert.model import Finding, Where

LARGEST_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself

_ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64, "C128": 128, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(?:safetensors|bin)$")
# Saved beside the weights by trainers; not weights of the model.
_NOT_WEIGHTS = re.compile(r"^(?:training_args|optimizer|scheduler|scaler|rng_state|adapter_model|trainer_state)", re.I)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint; ``dtype`` in the spelling of safetensors (``"F32"``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str

    @property
    def floating(self) -> bool:
        """False for packed (quantised) weights, whose shape is not that of the layer."""
        return self.dtype.startswith(("F16", "F32", "F64", "BF16", "F8"))


@dataclass(slots=True)
class Weights:
    """All tensors found, the files they came from, and what was wrong with those (hazard None)."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_safetensors(path: str) -> dict[str, TensorInfo]:
    """The header of one safetensors file, checked against the size of the file.

    Raises:
        InputError: unreadable, truncated, or not a safetensors file.
    """
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise InputError(path, f"{size} bytes: too short for a safetensors file")
            refuse_lfs_pointer(path, prefix + file.read(64))
            header_bytes = int.from_bytes(prefix, "little")
            if header_bytes > LARGEST_HEADER_BYTES:
                raise InputError(path, f"its header claims {header_bytes:,} bytes: not a safetensors file")
            if header_bytes > size - 8:
                raise InputError(path, f"truncated: its header has {header_bytes:,} bytes, the file {size:,}")
            file.seek(8)
            raw = file.read(header_bytes)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    try:
        header = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"its header is not JSON ({error}): damaged, or not a safetensors file") from error
    if not isinstance(header, dict):
        raise InputError(path, "its header is not a JSON object")
    return {name: _tensor(path, name, entry, size - 8 - header_bytes) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: str, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and begin <= end
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise InputError(path, f"its header entry for tensor {name!r} is malformed")
    if end > data_bytes:
        raise InputError(path, f"truncated: tensor {name!r} ends at byte {end:,} of the data, the file holds {data_bytes:,}")
    bits = _ITEM_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
        raise InputError(path, f"tensor {name!r} of shape {list(shape)} and type {dtype} does not fill its {end - begin:,} bytes")
    return TensorInfo(name, dtype, shape, path)


def read_file(path: str) -> dict[str, TensorInfo]:
    """The tensors of one weight file, safetensors or ``torch.save``.

    Raises:
        InputError: as :func:`read_safetensors` and :func:`preassert.data.checkpoints.pickled.read_shapes`.
    """
    if path.endswith(".safetensors"):
        return read_safetensors(path)
    return {name: TensorInfo(name, kept.dtype, kept.shape, path) for name, kept in read_shapes(path).items()}


def read_weights(folder: str, names: Iterable[str], stem: str = "") -> Weights:
    """The weights that transformers would load from ``folder``; ``names`` are the entries of that folder.

    ``stem`` is ``"adapter_model"`` for the weights of a PEFT adapter, and empty for those of the model.
    """
    present = set(names)
    weights = Weights()
    stems = (stem,) if stem else ("model", "pytorch_model")
    for name in (f"{base}{tail}" for tail in (".safetensors", ".safetensors.index.json") for base in stems):
        if name in present:
            return _take(folder, name, present, weights)
    variants = sorted(name for name in present if name.endswith(".safetensors.index.json"))
    single = sorted(name for name in present if name.endswith(".safetensors") and _is_weights(name) and not _SHARD.search(name))
    if not stem and (variants or single):
        return _take(folder, (variants or single)[0], present, weights)
    for name in (f"{base}{tail}" for tail in (".bin", ".bin.index.json") for base in stems):
        if name in present:
            return _take(folder, name, present, weights)
    shards = sorted(name for name in present if _SHARD.search(name) and _is_weights(name))
    if shards and not stem:
        _without_index(folder, shards, weights)
    return weights


def _is_weights(name: str) -> bool:
    return not _NOT_WEIGHTS.match(name)


def _take(folder: str, name: str, present: set[str], weights: Weights) -> Weights:
    if name.endswith(".index.json"):
        _read_index(folder, name, present, weights)
    else:
        _read_into(weights, os.path.join(folder, name))
    return weights


def _read_into(weights: Weights, path: str) -> bool:
    try:
        weights.tensors.update(read_file(path))
    except InputError as error:
        weights.findings.append(damaged(error))
        return False
    weights.files.append(path)
    return True


def _read_index(folder: str, name: str, present: set[str], weights: Weights) -> None:
    path = os.path.join(folder, name)
    try:
        mapping = read_json_object(path).get("weight_map")
        if not isinstance(mapping, dict) or not all(isinstance(shard, str) for shard in mapping.values()):
            raise InputError(path, "has no weight_map from tensor names to files")
    except InputError as error:
        weights.findings.append(damaged(error))
        return
    listed: dict[str, list[str]] = {}
    for tensor, shard in mapping.items():
        listed.setdefault(shard, []).append(tensor)
    missing: list[str] = []
    for shard in sorted(listed):
        if os.path.basename(shard) != shard:  # an index must not lead out of its folder
            weights.findings.append(_broken(path, f"names the shard {shard!r}, which is not a file name"))
        elif shard not in present:
            missing.append(shard)
        else:
            before = set(weights.tensors)
            if _read_into(weights, os.path.join(folder, shard)):
                _compare(path, shard, listed[shard], set(weights.tensors) - before, weights)
    if missing:
        lost = sum(len(listed[shard]) for shard in missing)
        verb = "is" if len(missing) == 1 else "are"
        weights.findings.append(
            _broken(path, f"names {', '.join(missing)}, which {verb} not in the folder ({lost} tensors)", count=len(missing))
        )


def _compare(index: str, shard: str, listed: list[str], held: set[str], weights: Weights) -> None:
    absent = [tensor for tensor in listed if tensor not in held and tensor not in weights.tensors]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        message = f"{shard} does not hold {', '.join(absent[:3])}{more}, listed for it"
        weights.findings.append(_broken(index, message, count=len(absent)))


def _without_index(folder: str, shards: list[str], weights: Weights) -> None:
    for shard in shards:
        _read_into(weights, os.path.join(folder, shard))
    total = max(int(_SHARD.search(shard)[2]) for shard in shards)  # type: ignore[index]
    message = f"{len(shards)} of {total} shards and no index file (*.index.json) that says which tensor is where"
    weights.findings.append(_broken(folder, message))


def _broken(file: str, message: str, count: int | None = None) -> Finding:
    return Finding(None, "error", Where(file), message, count=count, fix="fetch or save the checkpoint again, whole")
