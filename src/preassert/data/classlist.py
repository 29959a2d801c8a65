"""Class lists and alphabets given as files."""

from __future__ import annotations

import json
import os
from typing import Any

from preassert.data.source import read_small, reading
from preassert.errors import InputError
from preassert.lazy import need


def read_class_list(path: str) -> tuple[str, ...]:
    """The class names in a file, in the order of their ids.

    Text: one name a line, empty lines left out. JSON: a list, ``{name: id}``, ``{id: name}``, or an object with
    ``id2label``, ``label2id`` or ``classes``. YAML: the same, or ``names`` as YOLO writes it.

    Raises:
        InputError: it cannot be read, is empty, or names a class twice.
    """
    suffix = os.path.splitext(path)[1].lower()
    with reading(path):
        text = read_small(path).decode("utf-8-sig")
        if suffix == ".json":
            names = _names(json.loads(text))
        elif suffix in (".yaml", ".yml"):
            names = _names(need("yaml", extra="data", purpose="read YAML files").safe_load(text))
        else:
            names = [line.strip() or line for line in text.splitlines() if line]
            if any(len(name) > 1 for name in names):  # a blank is a letter of an alphabet, but no name of a class
                names = [name for name in names if name.strip()]
    if not names:
        raise InputError(path, "holds no class names")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise InputError(path, f"names {', '.join(map(repr, twice[:5]))} more than once")
    return tuple(names)


def _names(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(entry) for entry in value]
    if not isinstance(value, dict):
        raise ValueError("neither a list nor a mapping of class names")
    for key in ("id2label", "label2id", "names", "classes"):
        if isinstance(value.get(key), (dict, list)):
            return _names(value[key])
    if value and all(type(entry) is int for entry in value.values()):
        return [str(name) for name, _ in sorted(value.items(), key=lambda item: item[1])]
    try:
        return [str(name) for _, name in sorted(value.items(), key=lambda item: int(item[0]))]
    except ValueError:
        raise ValueError("neither {name: id} nor {id: name}") from None


def read_alphabet(text: str) -> frozenset[str]:
    """The characters of an alphabet: of a vocabulary (``vocab.json``), of a text file without its line breaks, or of ``text``.

    In a vocabulary only single characters count, and ``|`` stands for the blank between words as in wav2vec 2.0.
    """
    if not os.path.exists(text):
        return frozenset(text)
    with reading(text):
        content = read_small(text).decode("utf-8-sig")
        if text.lower().endswith(".json"):
            vocabulary = json.loads(content)
            characters = {entry for entry in vocabulary if isinstance(entry, str) and len(entry) == 1}
            return frozenset(characters | ({" "} if "|" in characters else set()))
    return frozenset(content) - {"\n", "\r"}
