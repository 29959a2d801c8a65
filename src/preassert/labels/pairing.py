"""A map and a model belong together, or do not: the two fail silently when swapped."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preassert.errors import InputError
from preassert.labels.problems import MapMismatch
from preassert.labels.sources import read_json
from preassert.labels.values import shown

if TYPE_CHECKING:
    from preassert.labels.labelmap import LabelMap

CONFIG_KEY = "preassert_labelmap"  # holds the fingerprint, in a config.json or any other dict saved with a model
MAP_FILE = "labelmap.json"  # name under which a map is looked for in the folder of a checkpoint


def stamp(labels: LabelMap, model: Any) -> None:
    """Write names and fingerprint of the map into the config of ``model``, so that they are saved with it.

    Args:
        model: a model with ``.config``, a config with ``id2label``, or a dict (a ``config.json``, a ``torch.save`` dict).
    """
    names = labels.to_id2label()
    values = {"id2label": names, "label2id": {name: index for index, name in names.items()}, CONFIG_KEY: labels.fingerprint}
    config = getattr(model, "config", model)
    if isinstance(config, dict):
        # As json.load gives it back: the keys of a JSON object are text.
        config.update(values, id2label={str(index): name for index, name in names.items()})
        if "num_labels" in config:
            config["num_labels"] = labels.num_classes
        return
    for name, value in values.items():
        setattr(config, name, value)


def verify(labels: LabelMap, model: Any) -> tuple[str, ...]:
    """Refuse a model, config or checkpoint that was made with another map.

    Args:
        model: a model with ``.config``, a config, a dict, or a path to a ``config.json`` or to the folder that holds it.

    Returns:
        What was compared and agreed: some of ``"fingerprint"``, ``"id2label"``, ``"num_labels"``. Empty: the model says
        nothing about its labels, and nothing is proven. Default names (``LABEL_0``) say nothing.

    Raises:
        MapMismatch: fingerprint, names or number of labels disagree. Names the first difference.
        InputError: a path that cannot be read.
    """
    where, config = _config_of(model)
    agreed = []
    saved = _get(config, CONFIG_KEY)
    if isinstance(saved, Mapping):  # a whole map saved into the config
        saved = saved.get("fingerprint")
    names = _names(config)
    expected = labels.to_id2label()
    if names is not None and names != expected:
        raise MapMismatch(f"{where} {_difference(names, expected)}")
    if saved is not None:
        if saved != labels.fingerprint:
            both = f"its fingerprint is {shown(saved, 90)}, the map has {labels.fingerprint}"
            raise MapMismatch(f"{where} was saved with another label map: {both}")
        agreed.append("fingerprint")
    if names is not None:
        agreed.append("id2label")
    count = _get(config, "num_labels")
    count = len(_get(config, "id2label") or ()) or None if count is None else count
    if isinstance(count, int) and not isinstance(count, bool):
        if count != labels.num_classes:
            raise MapMismatch(f"{where} has {count} labels, the map has {labels.num_classes}")
        agreed.append("num_labels")
    return tuple(agreed)


def _config_of(model: Any) -> tuple[str, Any]:
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        saved = None
        if path.is_dir():
            if (path / MAP_FILE).exists():
                saved = read_json(path / MAP_FILE)
            path = path / "config.json"
        if saved is not None and not path.exists():
            content: Any = {}
        else:
            content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(os.fspath(path), "not a JSON object")
        return str(path), {CONFIG_KEY: saved, **content} if saved is not None else content
    if isinstance(model, Mapping):
        inner = model.get("config")
        return "the checkpoint", {**inner, **model} if isinstance(inner, Mapping) else model
    if hasattr(model, "config"):
        return f"the {type(model).__name__}", model.config
    if hasattr(model, "id2label"):
        return f"the {type(model).__name__}", model
    raise TypeError(f"a model with .config, a config, a dict or a path is needed, not {type(model).__name__}")


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _names(config: Any) -> dict[int, str] | None:
    """Declared names by id; None where there are none, or only the defaults ``LABEL_0``, ``LABEL_1``."""
    names = _get(config, "id2label")
    if not isinstance(names, Mapping) or not names:
        return None
    try:
        numbered = {int(index): str(name) for index, name in names.items()}
    except (TypeError, ValueError):
        raise MapMismatch(f"id2label must map whole numbers to names: {shown(dict(names))}") from None
    if all(re.fullmatch(r"LABEL_\d+", name) for name in numbered.values()):
        return None
    return numbered


def _difference(names: Mapping[int, str], expected: Mapping[int, str]) -> str:
    for index in sorted({*names, *expected}):
        if names.get(index) != expected.get(index):
            theirs = f"names {index} {shown(names[index])}" if index in names else f"has no name for {index}"
            ours = f"the map names it {shown(expected[index])}" if index in expected else "the map has no such class"
            different = sum(names.get(i) != expected.get(i) for i in {*names, *expected})
            more = f" ({different} of {max(len(names), len(expected))} differ)"
            return f"{theirs}, {ours}{more}"
    raise AssertionError("called on equal names")
