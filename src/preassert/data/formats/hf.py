"""Folders that ``datasets.Dataset.save_to_disk`` and ``DatasetDict.save_to_disk`` write, and the cache of `datasets`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from preassert.data.formats.arrow import class_names_of
from preassert.data.source import read_small, reading
from preassert.errors import InputError


@dataclass(frozen=True, slots=True)
class Shard:
    """One Arrow file of a saved data set. ``class_names``: column -> names of its ``ClassLabel``."""

    file: str
    split: str
    class_names: dict[str, tuple[str, ...]]


def is_dataset(folder: str) -> bool:
    """Whether `datasets` wrote this folder."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        return True
    if not os.path.exists(os.path.join(folder, "dataset_info.json")):
        return False
    return os.path.exists(os.path.join(folder, "state.json")) or any(name.endswith(".arrow") for name in os.listdir(folder))


def shards(folder: str) -> Iterator[Shard]:
    """The Arrow files of all splits, in order.

    Raises:
        InputError: a description cannot be read, or names a file or split that is not there (after the others).
    """
    description = os.path.join(folder, "dataset_dict.json")
    if not os.path.exists(description):
        yield from _split(folder, os.path.basename(os.path.normpath(folder)))
        return
    splits = _object(description).get("splits")
    if not isinstance(splits, list):
        raise InputError(description, "names no splits")
    for split in splits:
        yield from _split(os.path.join(folder, str(split)), str(split))


def _split(folder: str, split: str) -> Iterator[Shard]:
    info = os.path.join(folder, "dataset_info.json")
    names = class_names_of(_object(info).get("features"))
    state = os.path.join(folder, "state.json")
    if os.path.exists(state):
        listed = _object(state).get("_data_files")
        if not isinstance(listed, list) or not all(isinstance(entry, dict) and "filename" in entry for entry in listed):
            raise InputError(state, "lists no data files")
        files = [os.path.basename(str(entry["filename"])) for entry in listed]
    else:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".arrow"))
    for file in files:
        yield Shard(os.path.join(folder, file), split, names)


def _object(path: str) -> dict[str, object]:
    with reading(path):
        value = json.loads(read_small(path))
    if not isinstance(value, dict):
        raise InputError(path, "no JSON object")
    return value
