"""NumPy ``.npy``: labels of any shape; indices are written as int64. In chunks, through a memory map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from preassert.data.source import reading
from preassert.errors import InputError, UsageError
from preassert.labels.containers import flatten
from preassert.model import unravel
from preassert.remap.recode import Options, Recoder, Tally

CHUNK = 1 << 20  # elements


def _open(path: Path) -> Any:
    import numpy as np

    with reading(str(path)):
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # an array of objects is a pickle, and is refused here
    if array.dtype.kind not in "biufU":
        raise InputError(str(path), f"an array of dtype {array.dtype} does not hold labels")
    return array


def _flat(array: Any) -> tuple[Any, str]:
    """(1-d view in the order of the file, that order)."""
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return array.reshape(-1, order=order), order


def survey(path: Path, options: Options, tally: Tally) -> None:
    import numpy as np

    array = _open(path)
    flat, _ = _flat(array)
    for start in range(0, len(flat), CHUNK):
        chunk = np.asarray(flat[start : start + CHUNK])
        for label, count in flatten(chunk).counted(first_seen=True):
            tally.add(label, count)
        options.advance(chunk.nbytes)
    known = tally.origin.get("npy")
    kind = array.dtype if known is None else np.result_type(np.dtype(known), array.dtype)
    if known is not None and np.dtype(known) != array.dtype:
        tally.note(f"inputs have several dtypes; --inverse writes {kind}")
    tally.origin["npy"] = kind.str


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    import numpy as np

    array = _open(path)
    flat, order = _flat(array)
    kind = np.dtype(recoder.labels.origin_.get("npy") or _dtype_for(recoder)) if recoder.inverse else np.dtype(np.int64)

    def place(start: int) -> Any:
        return lambda position: f"{path} {_index(start + position, array.shape, order)}"

    kept = 0
    with open(target, "wb") as out:
        shape = array.shape
        _write_header(out, kind, order, shape)
        for start in range(0, len(flat), CHUNK):
            new, keep = recoder.array(np.asarray(flat[start : start + CHUNK]), place(start))
            if keep is not None:
                if array.ndim != 1:
                    raise UsageError(f"{path}: --unknown drop needs a flat array, not shape {array.shape}")
                new = new[keep]
            kept += len(new)
            out.write(_as_dtype(new, kind, path).tobytes())
            options.advance(min(CHUNK, len(flat) - start) * array.itemsize)
    if kept != len(flat):
        _rewrite_header(target, kind, order, (kept,))


def _index(position: int, shape: tuple[int, ...], order: str) -> list[int]:
    return list(unravel(position, shape[::-1])[::-1] if order == "F" else unravel(position, shape))


def _write_header(out: Any, kind: Any, order: str, shape: tuple[int, ...]) -> None:
    import numpy as np

    np.lib.format.write_array_header_1_0(out, {"descr": kind.str, "fortran_order": order == "F", "shape": shape})


def _rewrite_header(target: Path, kind: Any, order: str, shape: tuple[int, ...]) -> None:
    """A shorter array: headers are padded to a multiple of 64 bytes, and one for fewer rows has the same length."""
    with open(target, "r+b") as out:
        _write_header(out, kind, order, shape)


def _dtype_for(recoder: Recoder) -> str:
    labels = recoder.labels.classes_
    if labels.dtype != object:
        return str(labels.dtype.str)
    return f"<U{max((len(str(label)) for label in recoder.labels.labels), default=1) or 1}"


def _as_dtype(values: Any, kind: Any, path: Path) -> Any:
    import numpy as np

    if values.dtype != object:
        return values.astype(kind)
    if kind.kind == "U":
        return np.array(["" if value is None else str(value) for value in values.tolist()], kind)
    if kind.kind == "f":
        return np.array([np.nan if value is None else value for value in values.tolist()], kind)
    if kind.kind == "u" and None not in values:  # labels beyond int64 are Python's own
        return np.array(values.tolist(), kind)
    raise InputError(str(path), f"labels that are missing have no place in an array of {kind}")
