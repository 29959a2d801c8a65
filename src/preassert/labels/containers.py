"""Labels come in many containers; inside they are one of three flat forms, and results go back into the same container.

torch, pandas, polars, pyarrow and Pillow are looked up in ``sys.modules``: an object of theirs can only exist where
they are loaded, so none of them is ever imported for a plain list.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from preassert.labels.values import Label, plain, shown
from preassert.lazy import need
from preassert.model import unravel

Wrap = Callable[[Any, Any], Any]  # (flat result, boolean mask of the elements kept or None) -> container


@dataclass(slots=True)
class Flat:
    """Labels as one flat sequence in C order. Exactly one of ``ints``, ``text`` and ``objects`` is set.

    ``ints`` is an integer (or bool) ndarray; ``missing`` marks elements of it that have no value. ``text`` is a pyarrow
    string array, nulls missing. ``objects`` is a list of whatever was given.
    """

    shape: tuple[int, ...]
    wrap: Wrap
    ints: Any = None
    missing: Any = None
    text: Any = None
    objects: Sequence[Any] | None = None
    ragged: bool = False

    def __len__(self) -> int:
        if self.ints is not None:
            return len(self.ints)
        return len(self.text if self.text is not None else self.objects)  # type: ignore[arg-type]

    def values_at(self, positions: Any) -> list[Label | None]:
        """The labels at these flat positions (an index ndarray)."""
        if self.objects is not None:
            return [plain(self.objects[i]) for i in positions]
        if self.text is not None:
            values: list[Label | None] = self.text.take(arrow().array(positions)).to_pylist()
            return values
        found = self.ints[positions].tolist()
        if self.missing is None:
            return list(found)
        return [None if gone else value for value, gone in zip(found, self.missing[positions].tolist(), strict=True)]

    def counted(self, first_seen: bool) -> Iterable[tuple[Label | None, int]]:
        """(label, count) pairs; in order of first appearance if asked, else in any order."""
        import numpy as np

        if self.text is not None:
            pairs = self.text.value_counts()
            return zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)
        if self.objects is not None:
            return _count_objects(self.objects)
        ints = self.ints if self.missing is None else self.ints[~self.missing]
        out: list[tuple[Label | None, int]] = []
        if self.missing is not None and len(ints) < len(self.ints):
            out.append((None, len(self.ints) - len(ints)))
        if not len(ints):
            return out
        low, high = int(ints.min()), int(ints.max())
        if not first_seen and ints.dtype != bool and high - low < max(1 << 16, len(ints) // 4) and high < 2**62:
            counts = _bincount(ints, low, high)
            present = np.flatnonzero(counts)
            return [*out, *zip((present + low).tolist(), counts[present].tolist(), strict=True)]
        values, index, counts = np.unique(ints, return_index=True, return_counts=True)
        order = np.argsort(index) if first_seen else slice(None)
        return [*out, *zip(values[order].tolist(), counts[order].tolist(), strict=True)]

    def whole_numbers(self) -> Any | None:
        """The elements as an integer ndarray; None where one is missing, or is text, a bool or a fraction."""
        import numpy as np

        if self.objects is None:
            return None if self.ints is None or self.missing is not None or self.ints.dtype == bool else self.ints
        numbers = [plain(value) for value in self.objects]
        if not all(type(number) is int and -(2**63) <= number < 2**63 for number in numbers):
            return None
        return np.array(numbers, np.int64)

    def place(self, position: int) -> str:
        """Where a flat position is in the container, in words."""
        if self.ragged:
            return f"element {position} (nested lists read in order)"
        if len(self.shape) == 1:
            return f"[{position}]"
        return f"[{', '.join(map(str, unravel(position, self.shape)))}]"


def _bincount(ints: Any, low: int, high: int) -> Any:
    import numpy as np

    counts = np.zeros(high - low + 1, np.int64)
    for start in range(0, len(ints), 1 << 20):
        chunk = ints[start : start + (1 << 20)].astype(np.int64, copy=False)
        counts += np.bincount(chunk - low, minlength=len(counts))
    return counts


def _count_objects(objects: Sequence[Any]) -> list[tuple[Label | None, int]]:
    kinds = set(map(type, objects))
    if kinds <= {str} or kinds <= {int} or kinds <= {bool}:
        return list(Counter(objects).items())
    # Typed keys: a Counter of the bare objects would merge True with 1 and keep each NaN apart.
    counts: dict[tuple[type, Any], int] = {}
    for value in objects:
        label = plain(value)
        typed = (type(label), label)
        counts[typed] = counts.get(typed, 0) + 1
    return [(label, count) for (_, label), count in counts.items()]


def arrow() -> Any:
    """pyarrow; call it only where ``has_pyarrow`` or where an object of its was given."""
    return need("pyarrow", extra="data", purpose="read text labels")


@lru_cache(maxsize=1)
def has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def home(value: Any) -> str:
    """The library that defines the type of ``value``, or one of its base types: "numpy", "pandas", ..."""
    for base in type(value).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("numpy", "torch", "pandas", "polars", "pyarrow", "PIL", "scipy"):
            return root
    return "builtins"


def flatten(y: Any) -> Flat:
    """Read any supported container.

    Raises:
        TypeError: a container (or an element of it) that cannot hold labels.
    """
    library = home(y)
    if library == "torch":
        return _from_torch(y)
    if library == "pandas":
        return _from_pandas(y)
    if library == "polars":
        return _from_polars(y)
    if library == "pyarrow":
        return _from_pyarrow(y)
    if library == "PIL":
        return _from_image(y)
    if library == "numpy":
        return _from_numpy(y)
    if library == "scipy":
        raise TypeError(f"sparse input is not supported: {type(y).__name__}")
    if hasattr(y, "__array__"):
        import numpy as np

        return _from_numpy(np.asarray(y))
    if isinstance(y, (str, bytes, dict)) or not isinstance(y, Iterable):
        raise TypeError(f"labels must be a sequence, an array, a series or a tensor, not {type(y).__name__}: {shown(y)}")
    return _from_sequence(y if isinstance(y, (list, tuple)) else list(y))


def _identity(result: Any, keep: Any) -> Any:
    return result


def _from_numpy(array: Any) -> Flat:
    import numpy as np

    if isinstance(array, np.generic):
        raise TypeError(f"labels must be a sequence or an array, not one scalar: {shown(array)}")
    masked = np.ma.getmaskarray(array).ravel() if isinstance(array, np.ma.MaskedArray) else None
    array = np.asarray(array)
    shape = array.shape

    def wrap(result: Any, keep: Any) -> Any:
        return np.asarray(result).reshape(shape) if keep is None else result

    flat = array.ravel()
    if masked is not None and array.dtype.kind not in "biuf":
        return Flat(shape, wrap, objects=[None if gone else value for value, gone in zip(flat.tolist(), masked, strict=True)])
    if array.dtype.kind == "U":
        # Measured: pyarrow reads fixed-width text slower than a list made of it.
        texts = flat.tolist()
        return _text(texts, shape, wrap) or Flat(shape, wrap, objects=texts)
    if array.dtype.kind in "biuf":
        return _from_numbers(flat, masked, shape, wrap)
    if array.dtype.kind == "c":
        raise ValueError(
            "Complex data not supported: labels are ints, text, bools or floats"
        )  # words that scikit-learn looks for
    if array.dtype.kind in "SVMm":
        raise TypeError(f"an array of dtype {array.dtype} does not hold labels; decode or convert it first")
    objects = flat.tolist()
    return _text(objects, shape, wrap) or Flat(shape, wrap, objects=objects)


def _from_numbers(flat: Any, missing: Any, shape: tuple[int, ...], wrap: Wrap) -> Flat:
    """Bools, ints and floats; floats become ints where each is whole or NaN."""
    import numpy as np

    kind = flat.dtype.kind
    if kind == "f":
        flat = flat.astype(np.float32) if flat.dtype.itemsize == 2 else flat  # float16 ends before 2**53
        gone = np.isnan(flat)
        missing = gone if missing is None else gone | missing
        filled = np.where(missing, 0, flat) if missing.any() else flat
        if bool((np.abs(filled) < 2**53).all()):  # beyond it a float no longer holds every whole number
            ints = filled.astype(np.int64)
            if bool((ints == filled).all()):
                return Flat(shape, wrap, ints=ints, missing=missing if missing.any() else None)
        return Flat(shape, wrap, objects=[None if m else v for v, m in zip(flat.tolist(), missing.tolist(), strict=True)])
    if kind == "u" and flat.dtype.itemsize == 8 and len(flat) and int(flat.max()) >= 2**63:
        return Flat(shape, wrap, objects=flat.tolist())
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    return Flat(shape, wrap, ints=flat, missing=missing if missing is not None and missing.any() else None)


def _from_torch(tensor: Any) -> Flat:
    torch = sys.modules["torch"]
    host = tensor.detach()
    device = host.device
    host = host.cpu()
    host = host.float() if host.dtype == torch.bfloat16 else host
    array = host.numpy()
    shape = tuple(tensor.shape)

    def wrap(result: Any, keep: Any) -> Any:
        if getattr(result, "dtype", None) is not None and result.dtype.kind in "biuf":
            out = torch.from_numpy(result).to(device)
            return out.reshape(shape) if keep is None else out
        return result.reshape(shape) if keep is None else result

    if array.dtype.kind not in "biuf":
        raise TypeError(f"a tensor of dtype {tensor.dtype} does not hold labels")
    return _from_numbers(array.ravel(), None, shape, wrap)


def _from_pandas(y: Any) -> Flat:
    pandas = sys.modules["pandas"]
    if isinstance(y, pandas.DataFrame):
        flat = _from_numpy(y.to_numpy())
        flat.wrap = lambda result, keep: (
            pandas.DataFrame(result.reshape(y.shape), index=y.index, columns=y.columns) if keep is None else result
        )
        return flat
    values = y.array if hasattr(y, "array") else y

    def wrap(result: Any, keep: Any) -> Any:
        if isinstance(y, pandas.Series):
            return pandas.Series(result, index=y.index if keep is None else y.index[keep], name=y.name)
        if isinstance(y, pandas.Index):
            return pandas.Index(result, name=y.name)
        return result

    shape = (len(y),)
    dtype = str(values.dtype)
    if isinstance(values.dtype, pandas.CategoricalDtype):
        categories = [plain(value) for value in values.categories]
        return _from_codes(values.codes, categories, shape, wrap)
    if values.dtype.kind in "iubf":
        import numpy as np

        if values.dtype.kind == "f":
            return _from_numbers(np.asarray(values.to_numpy(na_value=np.nan)), None, shape, wrap)
        missing = values.isna()
        if missing.any():
            return _from_numbers(np.asarray(values.to_numpy(dtype=_fill_dtype(values), na_value=0)), missing, shape, wrap)
        return _from_numbers(np.asarray(values.to_numpy(dtype=_fill_dtype(values))), None, shape, wrap)
    if has_pyarrow() and (dtype.startswith(("string", "str", "large_string")) or "arrow" in type(values).__name__.lower()):
        flat = _from_pyarrow(arrow().array(values, from_pandas=True))
        flat.wrap = wrap
        return flat
    return Flat(shape, wrap, objects=list(values))


def _fill_dtype(values: Any) -> str:
    """NumPy dtype of a nullable pandas array of bools or integers."""
    if values.dtype.kind == "b":
        return "bool"
    return "uint64" if values.dtype.kind == "u" else "int64"


def _from_codes(codes: Any, categories: list[Any], shape: tuple[int, ...], wrap: Wrap) -> Flat:
    """A dictionary-encoded column: -1 (or any code outside) is missing. Decoded through the few categories."""
    import numpy as np

    codes = np.asarray(codes)
    missing = codes < 0
    missing = missing if missing.any() else None
    if all(type(category) is int for category in categories) and categories:
        return Flat(shape, wrap, ints=np.array(categories, np.int64)[np.where(codes < 0, 0, codes)], missing=missing)
    if has_pyarrow() and all(type(category) is str for category in categories):
        pa = arrow()

        indices = pa.array(codes.astype(np.int32), mask=missing)
        return Flat(
            shape, wrap, text=pa.DictionaryArray.from_arrays(indices, pa.array(categories, pa.string())).dictionary_decode()
        )
    return Flat(shape, wrap, objects=[None if code < 0 else categories[code] for code in codes.tolist()])


def _from_polars(y: Any) -> Flat:
    polars = sys.modules["polars"]
    if not isinstance(y, polars.Series):
        raise TypeError(f"pass one column, not a polars {type(y).__name__}: frame['label']")

    def wrap(result: Any, keep: Any) -> Any:
        return polars.Series(y.name, result)

    def wrap_nested(result: Any, keep: Any) -> Any:
        return polars.Series(y.name, nested(result, keep))

    shape = (len(y),)
    if isinstance(y.dtype, (polars.List, polars.Array)):
        inner = _from_sequence(y.to_list())
        nested, inner.wrap = inner.wrap, wrap_nested
        return inner
    if y.dtype.is_integer() or y.dtype == polars.Boolean or y.dtype.is_float():
        missing = y.is_null().to_numpy() if y.null_count() else None
        array = y.fill_null(False if y.dtype == polars.Boolean else 0).to_numpy() if missing is not None else y.to_numpy()
        return _from_numbers(array, missing, shape, wrap)
    if has_pyarrow() and y.dtype in (polars.String, polars.Categorical, polars.Enum):
        pa = arrow()

        return Flat(shape, wrap, text=_combined(y.cast(polars.String).to_arrow()).cast(pa.large_string()))
    return Flat(shape, wrap, objects=y.to_list())


def _combined(array: Any) -> Any:
    pa = arrow()

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def is_arrow_text(kind: Any) -> bool:
    pa = arrow()

    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or (hasattr(pa, "string_view") and kind == pa.string_view())
    )


def can_hold_labels(kind: Any) -> bool:
    """Whether an Arrow type is one of those that :func:`flatten` takes; of a list, that of its elements is asked."""
    types = arrow().types
    if isinstance(kind, arrow().BaseExtensionType):
        return can_hold_labels(kind.storage_type)
    if types.is_dictionary(kind):
        return can_hold_labels(kind.value_type)
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null, is_arrow_text)
    return any(test(kind) for test in tests)


def without_views(array: Any) -> Any:
    """``array`` with string views (and dictionaries of them) as large strings: pyarrow cannot filter or take views."""
    pa = arrow()
    if not hasattr(pa, "string_view"):
        return array
    if array.type == pa.string_view():
        return array.cast(pa.large_string())
    if pa.types.is_dictionary(array.type) and array.type.value_type == pa.string_view():
        return pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_string()), ordered=array.type.ordered)
    return array


def _from_pyarrow(y: Any) -> Flat:
    import numpy as np

    pa = arrow()

    if not isinstance(y, (pa.Array, pa.ChunkedArray)):
        raise TypeError(f"pass one column, not a pyarrow {type(y).__name__}: table['label']")
    chunked = isinstance(y, pa.ChunkedArray)
    y = _combined(y)
    y = without_views(y.storage if isinstance(y, pa.ExtensionArray) else y)
    kind = y.type

    def wrap(result: Any, keep: Any) -> Any:
        array = result if isinstance(result, pa.Array) else pa.array(result, from_pandas=True)
        return pa.chunked_array([array]) if chunked else array

    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = flatten(y.flatten())
        unwrapped = inner.wrap
        inner.wrap = lambda result, keep: wrap(relist(y, unwrapped(result, keep)), None)
        inner.ragged = True
        return inner
    shape = (len(y),)
    if pa.types.is_dictionary(kind):
        if is_arrow_text(kind.value_type):
            return Flat(shape, wrap, text=y.dictionary_decode())
        inner = flatten(y.dictionary_decode())
        inner.wrap = wrap
        return inner
    if is_arrow_text(kind):
        return Flat(shape, wrap, text=y)
    if pa.types.is_null(kind):
        return Flat(shape, wrap, objects=[None] * len(y))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        missing = y.is_null().to_numpy(zero_copy_only=False) if y.null_count else None
        y = y.fill_null(False if pa.types.is_boolean(kind) else 0) if y.null_count else y
        return _from_numbers(np.asarray(y.to_numpy(zero_copy_only=False)), missing, shape, wrap)
    if pa.types.is_decimal(kind):
        return Flat(shape, wrap, objects=[None if value is None else float(value) for value in y.to_pylist()])
    raise TypeError(f"a pyarrow array of type {kind} does not hold labels")


def relist(lists: Any, leaves: Any) -> Any:
    """A pyarrow list array with the nesting and the nulls of ``lists`` over other ``leaves`` (of ``lists.flatten()``)."""
    import numpy as np

    pa = arrow()
    pc = need("pyarrow.compute", extra="data", purpose="read nested labels")

    leaves = _combined(leaves)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    mask = lists.is_null() if lists.null_count else None
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        if mask is not None:  # from_arrays wants values under the nulls too
            rows = np.cumsum(~mask.to_numpy(zero_copy_only=False)) - 1
            slots = (np.maximum(rows, 0)[:, None] * size + np.arange(size)).ravel()
            leaves = leaves.take(pa.array(slots)) if len(leaves) else pa.nulls(len(slots), leaves.type)
        return pa.FixedSizeListArray.from_arrays(leaves, size, mask=mask)
    maker, width = (pa.LargeListArray, np.int64) if pa.types.is_large_list(lists.type) else (pa.ListArray, np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
    return maker.from_arrays(pa.array(offsets), leaves, mask=mask)


def _from_image(image: Any) -> Flat:
    import numpy as np

    if image.mode not in ("1", "L", "P", "I", "I;16", "I;16L", "I;16B"):
        raise TypeError(f"a mask has one channel of class ids, and this image has mode {image.mode}")
    return _from_numpy(np.asarray(image))


# Elements from which pyarrow is quicker than a dict, where it is loaded already and where it is not.
_LONG_TEXT, _VERY_LONG_TEXT = 1_000, 200_000


def _text(values: Sequence[Any], shape: tuple[int, ...], wrap: Wrap) -> Flat | None:
    """A long sequence of nothing but text and None, as pyarrow holds it; None for anything else."""
    worth = _LONG_TEXT if "pyarrow" in sys.modules else _VERY_LONG_TEXT
    if len(values) < worth or type(values[0]) is not str or not has_pyarrow():
        return None
    pa = arrow()
    try:
        text = pa.array(values)
    except (pa.ArrowException, UnicodeError, TypeError):  # a mixture, or text with lone surrogates
        return None
    return Flat(shape, wrap, text=text) if isinstance(text, pa.Array) and is_arrow_text(text.type) else None


_SCALARS = {str, int, float, bool, type(None)}


def _is_nest(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return True
    library = home(value)
    return (library in ("numpy", "torch") and value.ndim > 0) or (
        library in ("pandas", "polars", "pyarrow") and hasattr(value, "__len__")
    )


def _from_sequence(values: Sequence[Any]) -> Flat:
    """A flat sequence answers with an ndarray, as scikit-learn's encoders do; nested ones answer with nested lists."""
    flat = _text(values, (len(values),), _identity)
    if flat is not None:
        return flat
    if set(map(type, values)) <= _SCALARS or not any(map(_is_nest, values)):
        return Flat((len(values),), _identity, objects=list(values))
    leaves = list(_leaves(values))

    def wrap(result: Any, keep: Any) -> Any:
        return result if keep is not None else _renest(values, iter(result.tolist()))

    return Flat((len(leaves),), wrap, objects=leaves, ragged=True)


def _children(nest: Any) -> Iterable[Any]:
    if isinstance(nest, (list, tuple)):
        return nest
    return nest.to_pylist() if hasattr(nest, "to_pylist") else nest.tolist()  # type: ignore[no-any-return]


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if _is_nest(value):
            yield from _leaves(_children(value))
        else:
            yield value


def _renest(shape_of: Iterable[Any], results: Iterator[Any]) -> list[Any]:
    return [_renest(_children(value), results) if _is_nest(value) else next(results) for value in shape_of]
