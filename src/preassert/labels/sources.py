"""Classes that other files and objects declare: Hugging Face configs, COCO categories, YOLO names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preassert.errors import InputError
from preassert.labels.values import shown, shown_list
from preassert.lazy import need


def read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(os.fspath(path), str(getattr(error, "strerror", None) or error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(os.fspath(path), f"not JSON: {error}") from error


def read_yaml(path: str | os.PathLike[str]) -> Any:
    yaml = need("yaml", extra="data", purpose="read YAML files")
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(os.fspath(path), str(getattr(error, "strerror", None) or error)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(os.fspath(path), f"not YAML: {' '.join(str(error).split())}") from error


def numbered_names(names: Any, what: str) -> tuple[list[int], list[str]]:
    """(ids, names) in order of the ids, from a list of names or a mapping id -> name."""
    if isinstance(names, (list, tuple)):
        pairs = list(enumerate(names))
    elif isinstance(names, Mapping):
        try:
            pairs = sorted((int(number), name) for number, name in names.items())
        except (TypeError, ValueError):
            raise ValueError(f"{what} must map whole numbers to names: {shown_list(list(names))}") from None
    else:
        raise ValueError(f"{what} must be a list of names or a mapping from id to name, not {type(names).__name__}")
    return [number for number, _ in pairs], [str(name) for _, name in pairs]


def id2label_of(source: Any) -> list[str]:
    """Names in order of their ids.

    Raises:
        ValueError: the ids are not 0..K-1, or a name occurs twice: such a model cannot name its outputs.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        source = read_json(path / "config.json" if path.is_dir() else path)
    for attribute in ("config", "id2label"):
        if not isinstance(source, (Mapping, list, tuple)):
            source = getattr(source, attribute, source)
    if isinstance(source, Mapping) and "id2label" in source:
        source = source["id2label"]
    ids, names = numbered_names(source, "id2label")
    if ids != list(range(len(ids))):
        raise ValueError(f"id2label must number its names 0..{len(ids) - 1}; it has {shown_list(ids)}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"id2label has the name {shown(twice)} more than once")
    return names


def coco_categories(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[list[int], list[str]]:
    content = source if isinstance(source, Mapping) else read_json(source)
    where = "the COCO object" if isinstance(source, Mapping) else os.fspath(source)
    categories = content.get("categories") if isinstance(content, Mapping) else None
    if not isinstance(categories, list):
        raise InputError(where, "no list of categories")
    return numbered_categories(categories, where)


def numbered_categories(categories: list[Any], where: str) -> tuple[list[int], list[str]]:
    names: dict[int, str] = {}
    for position, category in enumerate(categories):
        number = category.get("id") if isinstance(category, Mapping) else None
        if type(number) is not int:
            raise InputError(where, f"categories[{position}] has no whole-number id")
        if number in names:
            raise InputError(where, f"two categories have the id {number}")
        names[number] = str(category.get("name", number))
    return sorted(names), [names[number] for number in sorted(names)]


def yolo_names(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[list[int], list[str]]:
    content = source if isinstance(source, Mapping) else read_yaml(source)
    where = "the YOLO object" if isinstance(source, Mapping) else os.fspath(source)
    names = content.get("names") if isinstance(content, Mapping) else None
    if names is None:
        raise InputError(where, "no names")
    try:
        return numbered_names(names, "names")
    except ValueError as error:
        raise InputError(where, str(error)) from None
