"""``LabelMap``: arbitrary ids or names become 0..K-1, the same way everywhere, and back."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from preassert.labels import lookup
from preassert.labels.containers import Flat, arrow, flatten, is_torch
from preassert.labels.lookup import MISSING, UNKNOWN
from preassert.labels.problems import SHOWN_PLACES, LabelWarning, MapMismatch, Unseen, UnseenLabels, not_fitted
from preassert.labels.values import Label, key, lookalikes, natural_key, plain, resemblance, shown, shown_list
from preassert.lazy import need

if TYPE_CHECKING:
    from collections.abc import Hashable

Order = Literal["natural", "first_seen", "frequency", "given"]
OnUnknown = Literal["error", "ignore_index", "drop", "other"]
OnMissing = Literal["error", "ignore_index", "class"]
OnLookalikes = Literal["warn", "error", "ignore"]

CHOICES: dict[str, tuple[str, ...]] = {
    "order": ("natural", "first_seen", "frequency", "given"),
    "unknown": ("error", "ignore_index", "drop", "other"),
    "missing": ("error", "ignore_index", "class"),
    "lookalikes": ("warn", "error", "ignore"),
}
MISSING_NAME = "<missing>"  # shown for the class of missing values (missing="class")
OTHER_NAME = "<other>"  # shown for the class of unknown labels (unknown="other")

Self = TypeVar("Self", bound="LabelMap")


class _Index(dict[Any, int]):
    """label -> class index. What is not a key is judged once: missing, unknown, or a spelling of a key (a NumPy float)."""

    def __missing__(self, value: Any) -> int:
        label = plain(value)
        return MISSING if label is None else self.get(key(label), UNKNOWN)


class LabelMap:
    """A two-way map between labels and class indices 0..K-1.

    Args:
        order: how classes are numbered. ``"natural"``: sorted, with runs of digits in text compared as numbers (10 after 2);
            ``"first_seen"``; ``"frequency"``: most frequent first, ties natural; ``"given"``: as in ``classes``.
        classes: the classes, in order; then ``fit`` learns nothing and only checks.
        unknown: what ``transform`` does with a label that is not a class. ``"error"``: raise :class:`UnseenLabels`;
            ``"ignore_index"``: write ``ignore_index``; ``"drop"``: leave the element out (flat input only);
            ``"other"``: one more class, after all others.
        missing: the same for None, NaN and nulls. ``"class"``: one more class, after the known ones.
        ignore_index: a value that is not a label: never becomes a class, and passes through ``transform`` untouched.
            It must not be a class index. None: there is no such value.
        lookalikes: what ``fit`` does on labels that look alike but are not the same (``1`` and ``"1"``, ``True`` and ``1``, other
            Unicode normal forms, white space around). They are never merged. ``"warn"``: :class:`LabelWarning`.

    ``transform`` answers in the container it was given: ndarray, tensor (same device), Series (same index), Arrow array,
    nested lists; a flat list becomes an ndarray. Indices are int64. On a GPU tensor it synchronises once.
    The order of classes depends on the set of labels (and their counts) alone, unless ``order="first_seen"``: shards
    and splits may be fitted in any order, in any number of processes, and merged.
    """

    __module__ = "preassert"

    def __init__(
        self,
        *,
        order: Order = "natural",
        classes: Sequence[Any] | None = None,
        unknown: OnUnknown = "error",
        missing: OnMissing = "error",
        ignore_index: int | None = -100,
        lookalikes: OnLookalikes = "warn",
    ) -> None:
        self.order = order
        self.classes = classes
        self.unknown = unknown
        self.missing = missing
        self.ignore_index = ignore_index
        self.lookalikes = lookalikes

    # -- fitting ---------------------------------------------------------------------------------------------------

    def fit(self: Self, labels: Any, y: Any = None) -> Self:
        """Learn the classes from ``labels`` alone, forgetting earlier ones. Any container, any shape.

        ``y`` is ignored; pipelines pass it.

        Raises:
            UnseenLabels: missing values with ``missing="error"``; with ``classes`` given, labels outside them.
            ValueError: no labels at all; ``ignore_index`` would be a class index; a parameter is not one of its choices.
        """
        self._reset()
        flat = flatten(labels)
        if not len(flat):
            # The first words are those that scikit-learn's own check looks for.
            what = f"0 feature(s) (shape={flat.shape}) while a minimum of 1 is required: " if len(flat.shape) > 1 else ""
            raise ValueError(f"{what}no labels to learn from")
        self._learn(flat)
        return self

    def partial_fit(self: Self, labels: Any, y: Any = None) -> Self:
        """Learn from one more batch, shard or split. ``partial_fit`` over all pieces equals ``fit`` over the whole."""
        self._learn(flatten(labels))
        return self

    def _learn(self, flat: Flat) -> None:
        pairs = list(flat.counted(first_seen=self.order == "first_seen"))
        if self.missing == "error" and any(label is None for label, _ in pairs):
            raise self._unseen(flat, self._encode_missing(flat), only_missing=True)
        self.count_labels(pairs)
        if self.classes is not None and self.unknown == "error":
            codes = self.encode(flat)
            if bool((codes == UNKNOWN).any()):
                raise self._unseen(flat, codes)

    def count_labels(self, pairs: Iterable[tuple[Any, int]]) -> None:
        """``partial_fit`` on (label, count) pairs; for readers that counted already. Missing values are skipped."""
        self._check_parameters()
        if not hasattr(self, "_counts"):
            self._reset()
        new = False
        for value, count in pairs:
            label = plain(value)
            if label is None or (type(label) is int and label == self.ignore_index):
                continue
            known = key(label)
            if known in self._counts:
                self._counts[known] += count
            elif self.classes is None:
                self._counts[known] = count
                self._labels[known] = label
                new = True
        self._fitted = True
        self._forget_caches()
        if new:
            self._report_lookalikes()
        self._check_ignore_index()

    def fit_transform(self, labels: Any, y: Any = None) -> Any:
        return self.fit(labels).transform(labels)

    def merge(self: Self, *others: LabelMap) -> Self:
        """A new map over the labels of all maps, with the parameters of the first.

        Raises:
            MapMismatch: the maps differ in order or policies, or in classes where those were given.
        """
        merged = self._like()
        names: dict[Hashable, str] = {}
        pieces: tuple[LabelMap, ...] = (self, *others)
        for piece in pieces:
            if piece.get_policy() != self.get_policy() or piece.order != self.order:
                raise MapMismatch(f"maps with different parameters cannot be merged: {self!r} and {piece!r}")
            if self.classes is not None and [key(x) for x in piece.labels] != [key(x) for x in self.labels]:
                raise MapMismatch(f"maps with given classes merge only if the classes are equal: {self!r} and {piece!r}")
            piece._need_fit()
            merged.count_labels((piece._labels[known], count) for known, count in piece._counts.items())
            for label, name in zip(piece.labels, piece._names or (), strict=False):
                if names.setdefault(key(label), name) != name:
                    raise MapMismatch(
                        f"class {shown(label)} is named {shown(names[key(label)])} in one map and {shown(name)} in another"
                    )
        if names and len(names) == len(merged._labels):
            merged._names = tuple(names[key(label)] for label in merged.labels)
        return merged

    def with_policy(self: Self, **policy: Any) -> Self:
        """A copy with the same classes and other policies (``unknown``, ``missing``, ``ignore_index``).

        Raises:
            ValueError: as for ``fit``.
        """
        if unknown := set(policy) - set(self.get_policy()):
            raise ValueError(f"not a policy: {', '.join(sorted(unknown))}")
        self._need_fit()
        changed = copy.copy(self).set_params(**policy)
        changed._counts, changed._labels = dict(self._counts), dict(self._labels)
        changed.origin_ = dict(self.origin_)
        changed._forget_caches()
        changed._check_parameters()
        changed._check_ignore_index()
        if changed.ignore_index is not None and changed.ignore_index in changed._labels:
            raise ValueError(f"ignore_index={changed.ignore_index} is a class of this map")
        return changed

    def _like(self: Self) -> Self:
        return type(self)(**self.get_params())

    def _reset(self) -> None:
        self._check_parameters()
        self._counts: dict[Hashable, int] = {}
        self._labels: dict[Hashable, Label] = {}
        self._names: tuple[str, ...] | None = None
        self._reported: set[str] = set()
        self._fitted = False
        self.origin_: dict[str, Any] = {}  # how files wrote the labels (spelling, dtype); for `remap --inverse`
        for label in self._given():
            if key(label) in self._counts:
                raise ValueError(f"classes lists {shown(label)} twice")
            self._counts[key(label)] = 0
            self._labels[key(label)] = label
        self._forget_caches()

    def _given(self) -> list[Label]:
        if self.classes is None:
            return []
        given = []
        for value in self.classes:
            label = plain(value)
            if label is None:
                raise ValueError("classes must not contain a missing value; use missing='class' for a class of its own")
            if type(label) is int and label == self.ignore_index:
                raise ValueError(f"class {label} is also ignore_index={self.ignore_index}; give another ignore_index, or None")
            given.append(label)
        return given

    def _check_parameters(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
        if self.ignore_index is not None and (isinstance(self.ignore_index, bool) or not isinstance(self.ignore_index, int)):
            raise ValueError(f"ignore_index must be an int or None, not {self.ignore_index!r}")
        if self.ignore_index is not None and not -(2**63) + 1 < self.ignore_index < 2**63:
            raise ValueError(f"ignore_index={self.ignore_index} does not fit int64")
        if self.ignore_index is None and "ignore_index" in (self.unknown, self.missing):
            raise ValueError("a policy of 'ignore_index' needs an ignore_index, and it is None")
        if (self.order == "given") != (self.classes is not None) and (self.order == "given" or self.order != "natural"):
            raise ValueError("order='given' and classes=... belong together")

    def _check_ignore_index(self) -> None:
        if self.ignore_index is not None and 0 <= self.ignore_index < self.num_classes:
            raise ValueError(
                f"ignore_index={self.ignore_index} is also the index of a class ({self.num_classes} classes); "
                "give another one, or None"
            )

    def _report_lookalikes(self) -> None:
        if self.lookalikes == "ignore":
            return
        sentences = [text for text in lookalikes(list(self._labels.values())) if text not in self._reported]
        self._reported.update(sentences)
        if not sentences:
            return
        text = "; ".join(sentences[:10]) + (f"; and {len(sentences) - 10} more" if len(sentences) > 10 else "")
        if self.lookalikes == "error":
            raise ValueError(text)
        warnings.warn(text, LabelWarning, stacklevel=4)

    # -- what was learnt -------------------------------------------------------------------------------------------

    def _need_fit(self) -> None:
        if not getattr(self, "_fitted", False):
            raise not_fitted()

    def _forget_caches(self) -> None:
        self._cache: dict[Any, Any] = {}

    def _cached(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_caches()

    @property
    def labels(self) -> list[Label]:
        """The known classes as plain Python objects, in the order of their indices."""
        self._need_fit()
        found: list[Label] = self._cached("labels", self._ordered)
        return found

    def _ordered(self) -> list[Label]:
        if self.classes is not None or self.order == "first_seen":
            return list(self._labels.values())
        if self.order == "frequency":
            return sorted(self._labels.values(), key=lambda label: (-self._counts[key(label)], natural_key(label)))
        return sorted(self._labels.values(), key=natural_key)

    @property
    def classes_(self) -> Any:
        """The known classes as an ndarray: int64, bool, float64, or object for text and mixtures."""
        return _as_array(self.labels)

    @property
    def names(self) -> list[str]:
        """A name for each of the ``num_classes`` indices: the declared one (COCO, YOLO), else the label as text."""
        names = list(self._names) if self._names else [str(label) for label in self.labels]
        return names + [MISSING_NAME] * (self.missing == "class") + [OTHER_NAME] * (self.unknown == "other")

    def set_names(self, names: Sequence[str]) -> None:
        """Name the known classes, in the order of their indices."""
        if len(names) != len(self.labels):
            raise ValueError(f"{len(names)} names for {len(self.labels)} classes")
        self._names = tuple(map(str, names))

    @property
    def declared_names(self) -> tuple[str, ...] | None:
        """Names declared beside the ids by the source (COCO, YOLO); None where the label is its own name."""
        self._need_fit()
        return self._names

    @property
    def num_classes(self) -> int:
        """K: known classes, plus one each for ``missing="class"`` and ``unknown="other"``."""
        self._need_fit()
        return len(self._labels) + (self.missing == "class") + (self.unknown == "other")

    @property
    def counts_(self) -> list[int]:
        """How often each known class was seen while fitting."""
        return [self._counts[key(label)] for label in self.labels]

    @property
    def missing_code(self) -> int | None:
        return len(self._labels) if self.missing == "class" else None

    @property
    def other_code(self) -> int | None:
        return len(self._labels) + (self.missing == "class") if self.unknown == "other" else None

    def to_id2label(self) -> dict[int, str]:
        """``{0: "cat", ...}`` for a Hugging Face config."""
        return dict(enumerate(self.names))

    def get_policy(self) -> dict[str, Any]:
        return {"unknown": self.unknown, "missing": self.missing, "ignore_index": self.ignore_index}

    @property
    def fingerprint(self) -> str:
        """``sha256:...`` over classes and policies: equal exactly when two maps transform alike."""
        content = {"classes": self.labels, "policy": self.get_policy()}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def __len__(self) -> int:
        return self.num_classes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelMap):
            return NotImplemented
        fitted = getattr(self, "_fitted", False), getattr(other, "_fitted", False)
        if fitted != (True, True):
            return fitted == (False, False) and self.get_params() == other.get_params()
        return self.fingerprint == other.fingerprint

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = [f"{name}={shown(value)}" for name, value in self.get_params().items() if value is not defaults[name].default]
        about = f" of {self.num_classes} classes: {shown_list(self.labels, 4)}" if getattr(self, "_fitted", False) else ""
        return f"<{type(self).__name__}({', '.join(given)}){about}>"

    # -- transforming ----------------------------------------------------------------------------------------------

    def transform(self, labels: Any) -> Any:
        """Class indices (int64) in the container and shape of ``labels``.

        Raises:
            UnseenLabels: labels that are not classes (``unknown="error"``) or missing values (``missing="error"``). Names at
                most ten of them, with counts and places.
        """
        self._need_fit()
        if is_torch(labels) and labels.device.type != "cpu":
            from preassert.labels.on_device import transform

            out = transform(self, labels)
            if out is not None:
                return out
        flat = flatten(labels)
        codes = self.encode(flat)
        if not len(codes) or int(codes.min()) > MISSING:
            return flat.wrap(codes, None)
        return self._apply_policies(flat, codes)

    def is_known(self, labels: Any) -> Any:
        """Boolean ndarray in the shape of ``labels``: True where ``transform`` keeps the element (for ``unknown="drop"``)."""
        self._need_fit()
        flat = flatten(labels)
        known = self.encode(flat) != UNKNOWN
        return known if flat.ragged else known.reshape(flat.shape)

    def look_up(self, value: Any) -> int | None:
        """The class index of one label after all policies; None where the element is to be dropped.

        Raises:
            UnseenLabels: by policy, as ``transform`` does.
        """
        label = plain(value)
        index = self._index()
        code = MISSING if label is None else index.get(key(label), UNKNOWN)
        if code not in (UNKNOWN, MISSING):
            return code
        replacement = self.policy_code(code)
        if replacement is None and not (code == UNKNOWN and self.unknown == "drop"):
            raise self.unseen_error([Unseen(label, 1, ())])
        return replacement

    def policy_code(self, sentinel: int) -> int | None:
        """What the policies write for UNKNOWN or MISSING; None where they raise or drop."""
        policy, code = (self.unknown, self.other_code) if sentinel == UNKNOWN else (self.missing, self.missing_code)
        return self.ignore_index if policy == "ignore_index" else code

    def _index(self) -> _Index:
        def make() -> _Index:
            index = _Index((key(label), code) for code, label in enumerate(self.labels))
            if self.ignore_index is not None:
                index[self.ignore_index] = self.ignore_index
            return index

        self._need_fit()
        found: _Index = self._cached("index", make)
        return found

    def int_codes(self) -> dict[int, int]:
        """int labels -> codes, with ``ignore_index`` -> itself."""
        return {label: code for label, code in self._index().items() if type(label) is int}

    def encode(self, flat: Flat) -> Any:
        """Codes of all elements before policies: UNKNOWN and MISSING (of ``lookup``) where there is none; a new int64 ndarray."""
        import numpy as np

        if flat.text is not None:
            return self._encode_text(flat.text)
        if flat.objects is not None:
            return self._encode_objects(flat.objects)
        codes = np.empty(len(flat.ints), np.int64)
        if flat.ints.dtype == bool:
            index = self._index()
            codes[:] = np.array([index.get((bool, False), UNKNOWN), index.get((bool, True), UNKNOWN)])[flat.ints.view(np.uint8)]
        else:
            table: lookup.IntTable = self._cached("ints", lambda: lookup.build(self.int_codes()))
            table.look_up(flat.ints, codes)
        if flat.missing is not None:
            codes[flat.missing] = MISSING
        return codes

    def _encode_text(self, text: Any) -> Any:
        import numpy as np

        pa, pc = arrow(), need("pyarrow.compute", extra="data", purpose="read text labels")

        def make() -> tuple[Any, Any]:
            pairs = [(label, code) for code, label in enumerate(self.labels) if isinstance(label, str)]
            return pa.array([label for label, _ in pairs], text.type), np.array([code for _, code in pairs] + [UNKNOWN], np.int64)

        values, codes = self._cached(("text", str(text.type)), make)
        found = pc.index_in(text, value_set=values)
        if not found.null_count:
            slots = found.to_numpy()
            return slots.astype(np.int64) if len(values) == len(self.labels) else codes[slots]
        out = codes[found.fill_null(len(values)).to_numpy()]
        if text.null_count:
            out[text.is_null().to_numpy(zero_copy_only=False)] = MISSING
        return out

    def _encode_objects(self, objects: Sequence[Any]) -> Any:
        import numpy as np

        index = self._index()
        # True finds the key 1 in a dict; only then are the types of all elements worth a look.
        if (0 in index or 1 in index) and any("bool" in kind.__name__ for kind in set(map(type, objects))):
            return np.fromiter((self._code_of(index, value) for value in objects), np.int64, len(objects))
        try:
            found = itemgetter(*objects)(index) if len(objects) > 1 else [index[value] for value in objects]
        except TypeError as error:
            raise TypeError(f"labels must be ints, strings, bools or floats: {error}") from None
        return np.array(found, np.int64)

    @staticmethod
    def _code_of(index: _Index, value: Any) -> int:
        label = plain(value)
        return MISSING if label is None else index.get(key(label), UNKNOWN)

    @staticmethod
    def _encode_missing(flat: Flat) -> Any:
        """Codes that are MISSING where the value is, else 0."""
        import numpy as np

        if flat.text is not None:
            gone = flat.text.is_null().to_numpy(zero_copy_only=False)
        elif flat.objects is not None:
            gone = np.fromiter((plain(value) is None for value in flat.objects), bool, len(flat.objects))
        else:
            gone = flat.missing
        return np.where(gone, MISSING, 0)

    def _apply_policies(self, flat: Flat, codes: Any) -> Any:
        unknown, missing = codes == UNKNOWN, codes == MISSING
        any_unknown = bool(unknown.any())
        if (any_unknown and self.unknown == "error") or (self.missing == "error" and bool(missing.any())):
            raise self._unseen(flat, codes)
        if self.missing != "error":
            codes[missing] = self.policy_code(MISSING)
        if not any_unknown:
            return flat.wrap(codes, None)
        if self.unknown == "drop":
            if flat.ragged or len(flat.shape) != 1:
                raise ValueError(
                    f"unknown='drop' needs flat labels, not {'nested lists' if flat.ragged else f'shape {flat.shape}'}"
                )
            return flat.wrap(codes[~unknown], ~unknown)
        codes[unknown] = self.policy_code(UNKNOWN)
        return flat.wrap(codes, None)

    def _not_an_index(self, flat: Flat, bad: Any) -> UnseenLabels:
        hint = f"class indices are 0..{self.num_classes - 1}" + ("" if self.ignore_index is None else f" or {self.ignore_index}")
        return UnseenLabels(_gather(flat, bad), known=range(self.num_classes), total=len(flat), hint=hint)

    def _unseen(self, flat: Flat, codes: Any, only_missing: bool = False) -> UnseenLabels:
        import numpy as np

        bad = np.zeros(len(codes), bool)
        if self.unknown == "error" and not only_missing:
            bad |= codes == UNKNOWN
        if self.missing == "error":
            bad |= codes == MISSING
        return self.unseen_error(_gather(flat, np.flatnonzero(bad)), total=len(codes))

    def unseen_error(self, unseen: Sequence[Unseen], total: int | None = None) -> UnseenLabels:
        """The error for these labels, missing values and the most frequent first, with a hint where one resembles a class."""
        known = self.labels if getattr(self, "_fitted", False) else []
        ranked = sorted(unseen, key=lambda entry: (entry.label is not None, -entry.count))
        hints = (resemblance(entry.label, known) for entry in ranked[:10] if entry.label is not None)
        return UnseenLabels(ranked, known=known, total=total, hint=next((hint for hint in hints if hint), None))

    # -- and back --------------------------------------------------------------------------------------------------

    def inverse_transform(self, codes: Any) -> Any:
        """Labels for class indices, in the container of ``codes`` (a tensor becomes an ndarray where labels are not numbers).

        ``ignore_index`` and the class of missing values become None if missing values map to them, else ``ignore_index`` stays.
        The class of other labels becomes ``"<other>"``: what it was is lost.

        Raises:
            UnseenLabels: values that are neither a class index nor ``ignore_index``.
        """
        import numpy as np

        self._need_fit()
        flat = flatten(codes)
        slots = self._cached("inverse", lambda: lookup.build(self._inverse_slots()))
        indices = flat.whole_numbers()
        if indices is None:
            raise TypeError(f"class indices are whole numbers; this holds {shown_list(flat.values_at(np.arange(len(flat))), 3)}")
        found = np.empty(len(flat), np.int64)
        slots.look_up(indices, found)
        if len(found) and int(found.min()) == UNKNOWN:
            bad = np.flatnonzero(found == UNKNOWN)
            raise self._not_an_index(flat, bad)
        # Only where there is an element beyond the known classes does their array need room for None or text.
        labels = self.labels
        beyond = len(found) > 0 and int(found.max()) >= len(labels)
        values = self._cached(("values", beyond), lambda: _as_array([*labels, *self._beyond_labels()] if beyond else labels))
        return flat.wrap(values[found], None)

    def inverse_look_up(self, code: int) -> Label | None:
        """The label of one class index, as ``inverse_transform`` gives it.

        Raises:
            UnseenLabels: ``code`` is neither a class index nor ``ignore_index``.
        """
        if type(code) is int and 0 <= code < len(self._labels):
            return self.labels[code]
        label: Label | None = self.inverse_transform([code])[0]
        return plain(label)

    def _beyond_labels(self) -> list[Any]:
        """What the codes after the known classes stand for, and last what ``ignore_index`` does."""
        values: list[Any] = [None] * (self.missing == "class") + [OTHER_NAME] * (self.unknown == "other")
        return [*values, None if self.missing == "ignore_index" else self.ignore_index]

    def _inverse_slots(self) -> dict[int, int]:
        slots = {code: code for code in range(self.num_classes)}
        if self.ignore_index is not None:
            slots[self.ignore_index] = self.num_classes
        return slots

    # -- scikit-learn conventions ----------------------------------------------------------------------------------

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self: Self, **parameters: Any) -> Self:
        for name, value in parameters.items():
            if name not in self._parameter_names():
                raise ValueError(f"LabelMap has no parameter {name!r}; it has {', '.join(self._parameter_names())}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return bool(getattr(self, "_fitted", False))

    def __sklearn_tags__(self) -> Any:
        utils = need("sklearn.utils", extra="dev", purpose="answer scikit-learn")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=utils.TransformerTags(preserves_dtype=[]),
            input_tags=utils.InputTags(two_d_array=True, categorical=True, string=True, allow_nan=self.missing != "error"),
        )

    # -- other sources ---------------------------------------------------------------------------------------------

    @classmethod
    def from_classes(cls: type[Self], classes: Iterable[Any], *, names: Sequence[str] | None = None, **parameters: Any) -> Self:
        """A fitted map with exactly these classes, in this order. ``names`` gives each a name (for ids)."""
        made = cls(order="given", classes=list(classes), **parameters)
        made._reset()
        made._fitted = True
        if names is not None:
            made.set_names(names)
        made._check_ignore_index()
        made._report_lookalikes()
        return made

    @classmethod
    def from_id2label(cls: type[Self], id2label: Any, **parameters: Any) -> Self:
        """From ``config.id2label``: a mapping (keys may be text, as JSON has them), a config, a model, or a path to one."""
        from preassert.labels.sources import id2label_of

        return cls.from_classes(id2label_of(id2label), **parameters)

    @classmethod
    def from_coco(cls: type[Self], source: str | os.PathLike[str] | Mapping[str, Any], **parameters: Any) -> Self:
        """From the ``categories`` of a COCO file (path or loaded object): classes are the ids in order, with their names."""
        from preassert.labels.sources import coco_categories

        ids, names = coco_categories(source)
        return cls.from_classes(ids, names=names, **parameters)

    @classmethod
    def from_yolo(cls: type[Self], source: str | os.PathLike[str] | Mapping[str, Any], **parameters: Any) -> Self:
        """From the ``names`` of a YOLO ``data.yaml`` (path or loaded object): classes are the ids in order, with their names."""
        from preassert.labels.sources import yolo_names

        ids, names = yolo_names(source)
        return cls.from_classes(ids, names=names, **parameters)

    @classmethod
    def from_sklearn(cls: type[Self], encoder: Any, **parameters: Any) -> Self:
        """From a fitted scikit-learn LabelEncoder (or a classifier): its ``classes_``."""
        if not hasattr(encoder, "classes_"):
            raise ValueError(f"{type(encoder).__name__} has no classes_; fit it first")
        classes = encoder.classes_
        if isinstance(classes, list) or getattr(classes, "ndim", 1) != 1:
            raise ValueError(f"{type(encoder).__name__} has several outputs; make one map for each")
        return cls.from_classes(classes.tolist() if hasattr(classes, "tolist") else classes, **parameters)

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map as JSON; the file appears whole or not at all."""
        from preassert.labels.mapfile import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelMap:
        """Read a map written by ``save``.

        Raises:
            InputError: not a label map, another version, or contents that disagree with the fingerprint.
        """
        from preassert.labels.mapfile import load

        return load(path)


def _gather(flat: Flat, positions: Any) -> list[Unseen]:
    """The labels at these flat positions, each with its count and first places."""
    gathered: dict[Any, tuple[Any, list[int]]] = {}
    for label, position in zip(flat.values_at(positions), positions.tolist(), strict=True):
        gathered.setdefault((type(label), label), (label, []))[1].append(position)
    return [Unseen(label, len(found), tuple(map(flat.place, found[:SHOWN_PLACES]))) for label, found in gathered.values()]


def _as_array(values: Sequence[Any]) -> Any:
    import numpy as np

    kinds = set(map(type, values))
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return np.array(values, np.int64)
    if kinds == {bool}:
        return np.array(values, bool)
    if kinds and kinds <= {int, float} and all(abs(value) < 2**53 for value in values):
        return np.array(values, np.float64)
    out = np.empty(len(values), object)  # text too: NumPy's own text type drops trailing NULs
    out[:] = values
    return out
