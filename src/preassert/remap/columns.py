"""One label column inside an Arrow schema: found by name or dotted path, rewritten at its leaves, everything around it kept."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from preassert.errors import InputError, UsageError
from preassert.labels import LabelMap
from preassert.labels.containers import arrow, can_hold_labels, flatten, relist, without_views
from preassert.labels.mapfile import METADATA_KEY, dumps, loads
from preassert.labels.values import shown_list
from preassert.remap.recode import Options, Recoder, Tally

MAP_KEY = METADATA_KEY.encode()
COLUMN_KEY = b"preassert.labelmap.column"
SCHEMA_KEY = b"preassert.labelmap.schema"  # base64 of the schema as it was: types and metadata that --inverse restores

Leaf = Callable[[Any, Any], Any]  # (leaf array, row number of each leaf) -> new leaf array


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


@dataclass(frozen=True, slots=True)
class Column:
    """Where the labels are: the number of a top-level field, and the struct fields below it."""

    name: str
    index: int
    inner: tuple[str, ...]

    @classmethod
    def find(cls, schema: Any, options: Options, file: str) -> Column:
        """The column that ``--column`` names; without it the one of an earlier remap, or the only ClassLabel.

        Raises:
            UsageError: none, or more than one, or one of a type that labels do not have.
        """
        name = options.column
        if name is None:
            name = (schema.metadata or {}).get(COLUMN_KEY, b"").decode() or _only_class_label(schema)
        if name is None:
            raise UsageError(f"{file}: --column is needed; columns are {shown_list(schema.names, 20)}")
        indices = schema.get_all_field_indices(name)
        if len(indices) == 1:
            found = cls(name, indices[0], ())
        else:
            first, *inner = name.split(".")
            outer = schema.get_all_field_indices(first)
            if indices or len(outer) != 1 or not inner:
                what = "more than one column" if len(indices) > 1 else "no column"
                raise UsageError(f"{file}: {what} {name!r}; columns are {shown_list(schema.names, 20)}")
            found = cls(name, outer[0], tuple(inner))
        kind = found.leaf_type(schema.field(found.index).type, file)
        if not can_hold_labels(kind):
            raise UsageError(f"{file}: column {name!r} holds {kind}, which remap cannot rewrite")
        return found

    def leaf_type(self, kind: Any, file: str) -> Any:
        """Type of the labels themselves.

        Raises:
            UsageError: the dotted path leads nowhere.
        """
        inner = list(self.inner)
        while True:
            if _is_list(kind):
                kind = kind.value_type
            elif arrow().types.is_struct(kind):
                names = [kind.field(i).name for i in range(kind.num_fields)]
                if not inner or inner[0] not in names:
                    asked = f"no {inner[0]!r} in" if inner else "a path goes on in"
                    raise UsageError(f"{file}: {asked} {self.name!r}; fields there are {shown_list(names, 20)}")
                kind = kind.field(names.index(inner.pop(0))).type
            elif inner:
                raise UsageError(f"{file}: {self.name!r} leads into {kind}, which has no fields")
            else:
                return kind

    def retype(self, kind: Any, leaf: Any) -> Any:
        """``kind`` with another type of the leaves."""
        return self._retype(kind, list(self.inner), leaf)

    def _retype(self, kind: Any, inner: list[str], leaf: Any) -> Any:
        pa = arrow()
        if _is_list(kind):
            field = kind.value_field.with_type(self._retype(kind.value_type, inner, leaf))
            if pa.types.is_fixed_size_list(kind):
                return pa.list_(field, kind.list_size)
            return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)
        if pa.types.is_struct(kind):
            fields = [kind.field(i) for i in range(kind.num_fields)]
            return pa.struct([f.with_type(self._retype(f.type, inner[1:], leaf)) if f.name == inner[0] else f for f in fields])
        return leaf

    def rebuild(self, array: Any, change: Leaf, first_row: int) -> Any:
        """The column with its leaves changed; ``array`` is one chunk of it."""
        import numpy as np

        return self._rebuild(array, list(self.inner), change, np.arange(first_row, first_row + len(array)))

    def _rebuild(self, array: Any, inner: list[str], change: Leaf, rows: Any) -> Any:
        import numpy as np

        pa = arrow()
        if _is_list(array.type):
            lengths = _lengths(array)
            return relist(array, self._rebuild(array.flatten(), inner, change, np.repeat(rows, lengths)))
        if pa.types.is_struct(array.type):
            fields = [array.type.field(i) for i in range(array.type.num_fields)]
            # flatten() applies the offset and the nulls of the struct to its children.
            children = array.flatten()
            place = [field.name for field in fields].index(inner[0])
            child = without_views(children[place])
            # Under a null struct there is no label, missing or other.
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            child = self._rebuild(child.filter(pa.array(valid)), inner[1:], change, rows[valid])
            child = without_views(child)
            children[place] = child.take(pa.array(np.cumsum(valid) - 1, mask=~valid)) if array.null_count else child
            fields[place] = fields[place].with_type(children[place].type)
            return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
        return change(array, rows)


def _lengths(lists: Any) -> Any:
    import numpy as np

    if arrow().types.is_fixed_size_list(lists.type):
        return np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, lists.type.list_size)
    return lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)


def _only_class_label(schema: Any) -> str | None:
    content = _json((schema.metadata or {}).get(b"huggingface"))
    features = content.get("info", {}).get("features", {}) if isinstance(content, dict) else {}
    found = [name for name, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"]
    return found[0] if len(found) == 1 else None


def _json(text: bytes | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def count_leaves(column: Column, array: Any, tally: Tally) -> None:
    def count(leaves: Any, rows: Any) -> Any:
        if arrow().types.is_dictionary(leaves.type):
            _keep_dictionary(leaves.dictionary.to_pylist(), tally)
        for label, times in flatten(leaves).counted(first_seen=True):
            tally.add(label, times)
        return leaves

    column.rebuild(array, count, 0)


def _keep_dictionary(values: list[Any], tally: Tally) -> None:
    """The order of a dictionary can carry meaning (ordered categories), and so can unused entries: ``--inverse`` needs both."""
    known = tally.origin.setdefault("dictionary", [])
    if known != values:
        known += [value for value in values if value not in set(known)]


class Rewriting:
    """Rewrites the label column batch by batch; ``schema`` is that of the output."""

    def __init__(self, schema: Any, options: Options, recoder: Recoder, file: str) -> None:
        pa = arrow()
        self.column = Column.find(schema, options, file)
        self.recoder = recoder
        self.file = file
        self.row = 0
        index = self.column.index
        metadata = dict(schema.metadata or {})
        _check_turn(metadata.get(COLUMN_KEY, b"").decode(), self.column.name, recoder.inverse, file)
        if not recoder.inverse:
            self.leaf = pa.int64()
            field = schema.field(index)
            self.schema = schema.set(index, field.with_type(self.column.retype(field.type, self.leaf)))
            metadata |= label_metadata(metadata, self.column, recoder.labels)
            metadata[SCHEMA_KEY] = base64.b64encode(schema.serialize().to_pybytes())
            metadata[MAP_KEY] = dumps(recoder.labels).encode("utf-8", "surrogatepass")
            metadata[COLUMN_KEY] = self.column.name.encode()
            self.schema = self.schema.with_metadata(metadata)
            return
        original = _original(metadata, file)
        if original is not None and original.names == schema.names:
            self.schema = original
            self.leaf = self.column.leaf_type(original.field(index).type, file)
            return
        self.leaf = pa.array(recoder.labels.classes_).type
        field = schema.field(index)
        kept = {key: value for key, value in metadata.items() if key not in (MAP_KEY, COLUMN_KEY, SCHEMA_KEY)}
        self.schema = schema.set(index, field.with_type(self.column.retype(field.type, self.leaf))).with_metadata(kept or None)

    def batch(self, batch: Any) -> Any:
        """One record batch (or table) with labels replaced, and rows left out where ``unknown="drop"`` says so."""
        pa = arrow()
        keeps: list[Any] = []
        whole = batch.column(self.column.index)
        chunks = whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
        new = []
        for chunk in chunks:
            new.append(self.column.rebuild(chunk, lambda leaves, rows: self._change(leaves, rows, keeps), self.row))
            self.row += len(chunk)
        target = self.schema.field(self.column.index)
        columns = list(batch.columns)
        column = pa.chunked_array([_cast(array, target.type) for array in new], target.type)
        columns[self.column.index] = column if isinstance(batch, pa.Table) else column.combine_chunks()
        made = type(batch).from_arrays(columns, schema=self.schema)
        return made.filter(pa.array(_joined(keeps))) if any(keep is not None for keep in keeps) else made

    def _change(self, leaves: Any, rows: Any, keeps: list[Any]) -> Any:
        import numpy as np

        pa = arrow()
        new, keep = self.recoder.array(leaves, lambda position: f"{self.file} row {rows[position] + 1:,}")
        if keep is not None and not np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            raise UsageError(f"{self.file}: --unknown drop leaves out whole rows, and column {self.column.name!r} holds lists")
        if self.recoder.labels.unknown == "drop" and not self.recoder.inverse:
            keeps.append(np.ones(len(leaves), bool) if keep is None else keep)
        if self.recoder.inverse:
            try:
                return _typed(new.tolist(), self.leaf, self.recoder.labels)
            except (pa.ArrowException, OverflowError, KeyError) as error:
                raise InputError(self.file, f"its labels do not fit the type {self.leaf} that the column had: {error}") from error
        return pa.array(new, self.leaf)


def _check_turn(last: str, column: str, inverse: bool, file: str) -> None:
    """Columns may be remapped one after the other; each keeps the schema before it, so they are undone in reverse."""
    if last and not inverse and last == column:
        raise UsageError(f"{file}: column {column!r} was remapped already; --inverse undoes that")
    if last and inverse and last != column:
        raise UsageError(f"{file}: column {last!r} was remapped last; undo it first")


def _joined(keeps: list[Any]) -> Any:
    import numpy as np

    return np.concatenate(keeps)


def _typed(values: list[Any], kind: Any, labels: LabelMap) -> Any:
    """An array of labels in the type that the column had."""
    pa = arrow()
    if not pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    entries = labels.origin_.get("dictionary") or labels.labels
    index = {entry: number for number, entry in enumerate(entries)}
    indices = pa.array([None if value is None else index[value] for value in values], kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, pa.array(entries, kind.value_type), ordered=kind.ordered)


def _cast(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)


def _original(metadata: dict[bytes, bytes], file: str) -> Any | None:
    saved = metadata.get(SCHEMA_KEY)
    if saved is None:
        return None
    pa = arrow()
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(saved, validate=True)))
    except (ValueError, pa.ArrowInvalid, OSError) as error:
        raise InputError(file, f"its metadata {SCHEMA_KEY.decode()} is damaged: {error}") from error


def embedded(metadata: dict[bytes, bytes] | None, file: str) -> LabelMap | None:
    """The map in the metadata of a schema."""
    text = (metadata or {}).get(MAP_KEY)
    return None if text is None else loads(text, f"{file} (its metadata)")


def label_metadata(metadata: dict[bytes, bytes], column: Column, labels: LabelMap) -> dict[bytes, bytes]:
    """Entries that describe the column to pandas and to Hugging Face ``datasets``, changed to what it holds now."""
    changed = {}
    pandas = _json(metadata.get(b"pandas"))
    if isinstance(pandas, dict) and not column.inner:
        for entry in pandas.get("columns", []):
            if entry.get("field_name", entry.get("name")) == column.name and entry.get("pandas_type") not in ("list", None):
                entry.update(pandas_type="int64", numpy_type="int64", metadata=None)
        changed[b"pandas"] = json.dumps(pandas).encode()
    hugging = _json(metadata.get(b"huggingface"))
    features = hugging.get("info", {}).get("features") if isinstance(hugging, dict) else None
    if isinstance(features, dict):
        hugging["info"]["features"] = class_label_features(features, column, labels)
        changed[b"huggingface"] = json.dumps(hugging).encode()
    return changed


def class_label_features(features: dict[str, Any], column: Column, labels: LabelMap) -> dict[str, Any]:
    """``features`` of a data set (as its JSON has them) with the label column as ClassLabel with the names of the map."""
    path = [column.name] if column.name in features else column.name.split(".")
    return {**features, path[0]: _class_label(features.get(path[0]), path[1:], labels)} if path[0] in features else features


def _class_label(feature: Any, inner: list[str], labels: LabelMap) -> Any:
    if isinstance(feature, list):  # the old way to write a list of something
        return [_class_label(item, inner, labels) for item in feature]
    if isinstance(feature, dict) and "feature" in feature:
        return {**feature, "feature": _class_label(feature["feature"], inner, labels)}
    if inner and isinstance(feature, dict):
        return {**feature, inner[0]: _class_label(feature.get(inner[0]), inner[1:], labels)}
    return {"names": labels.names, "_type": "ClassLabel"}


def declared_names(metadata: dict[bytes, bytes] | None, column: Column) -> list[str] | None:
    """Names of a ClassLabel column, by index; None for any other column."""
    content = _json((metadata or {}).get(b"huggingface"))
    feature = content.get("info", {}).get("features", {}) if isinstance(content, dict) else {}
    for name in [column.name] if column.name in feature else column.name.split("."):
        while isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        feature = feature[0] if isinstance(feature, list) and feature else feature
        feature = feature.get(name) if isinstance(feature, dict) else None
    while isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    feature = feature[0] if isinstance(feature, list) and feature else feature
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list):
        return [str(name) for name in feature["names"]]
    return None
