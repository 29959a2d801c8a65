"""The file of a label map: JSON with a version and a fingerprint."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from preassert.errors import InputError
from preassert.labels.labelmap import CHOICES, LabelMap
from preassert.labels.sources import read_json
from preassert.labels.values import key

SCHEMA = "preassert.labelmap/1"
METADATA_KEY = "preassert.labelmap"  # under which Parquet and Arrow files carry the same JSON


def to_json(labels: LabelMap) -> dict[str, Any]:
    """The map as plain data. ``fingerprint`` covers classes and policies, not names, counts or origin."""
    return {
        "schema": SCHEMA,
        "fingerprint": labels.fingerprint,
        "num_classes": labels.num_classes,
        "order": "given" if labels.classes is not None else labels.order,
        "policy": labels.get_policy(),
        "classes": labels.labels,
        "names": None if labels.declared_names is None else list(labels.declared_names),
        "counts": labels.counts_,
        "origin": labels.origin_,
    }


def dumps(labels: LabelMap, indent: int | None = None) -> str:
    return json.dumps(to_json(labels), ensure_ascii=False, indent=indent)


def save(labels: LabelMap, path: str | os.PathLike[str]) -> None:
    # A lone surrogate (from a file name, say) has no UTF-8 form; ASCII escapes can hold it.
    text = dumps(labels, indent=1) + "\n"
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        data = (json.dumps(to_json(labels), indent=1) + "\n").encode("ascii")
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".preassert-tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> LabelMap:
    return from_json(read_json(path), os.fspath(path))


def loads(text: str | bytes, where: str) -> LabelMap:
    """Read the JSON text of a map; ``where`` names its source in errors."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"not JSON: {error}") from error
    return from_json(content, where)


def from_json(content: Any, where: str) -> LabelMap:
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith("preassert.labelmap/"):
        raise InputError(where, f"not a label map (no schema {SCHEMA!r})")
    if content["schema"] != SCHEMA:
        raise InputError(where, f"a label map of version {content['schema']!r}; this preassert reads {SCHEMA!r}")
    try:
        labels = _rebuild(content)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(where, f"a damaged label map: {reason}") from error
    if labels.fingerprint != content.get("fingerprint") or list(map(key, labels.labels)) != list(map(key, content["classes"])):
        raise InputError(where, "its classes or policies disagree with its fingerprint: it was edited or damaged; fit it again")
    return labels


def _rebuild(content: dict[str, Any]) -> LabelMap:
    classes, order, policy = content["classes"], content["order"], content["policy"]
    if not isinstance(classes, list) or not all(type(label) in (str, int, bool, float) for label in classes):
        raise ValueError("classes must be a list of text, numbers and bools")
    if order not in CHOICES["order"] or not isinstance(policy, dict):
        raise ValueError("order or policy is not one that this preassert knows")
    # Pieces of `origin` come back as they are; lookalikes were reported when the map was made.
    parameters = {"unknown": policy["unknown"], "missing": policy["missing"], "ignore_index": policy["ignore_index"]}
    labels = LabelMap(order=order, classes=classes if order == "given" else None, lookalikes="ignore", **parameters)
    labels._reset()
    counts = content.get("counts") or [0] * len(classes)
    if len(counts) != len(classes) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("counts must hold one whole number for each class")
    for label, count in zip(classes, counts, strict=True):
        if order != "given" and key(label) in labels._counts:
            raise ValueError(f"classes lists {label!r} twice")
        labels._labels[key(label)] = label
        labels._counts[key(label)] = count
    names = content.get("names")
    if names is not None and (not isinstance(names, list) or len(names) != len(classes)):
        raise ValueError("names must hold one name for each class")
    labels._names = None if names is None else tuple(map(str, names))
    labels.origin_ = content.get("origin") or {}
    labels._fitted = True
    labels._check_ignore_index()
    return labels
