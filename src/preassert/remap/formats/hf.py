"""Hugging Face ``save_to_disk`` folders: the Arrow files, and the feature that names the classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from preassert.errors import InputError
from preassert.labels import LabelMap
from preassert.labels.sources import read_json
from preassert.remap.atomic import copy_or_link
from preassert.remap.columns import Column, class_label_features
from preassert.remap.formats import arrow
from preassert.remap.recode import Options, Recoder, Tally

ORIGINAL = "preassert_original"  # in dataset_info.json: what --inverse restores


def _splits(path: Path) -> list[Path]:
    """Folders that hold one data set each."""
    if not (path / "dataset_dict.json").exists():
        return [path]
    content = read_json(path / "dataset_dict.json")
    names = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InputError(str(path / "dataset_dict.json"), "no list of splits")
    return [path / name for name in names]


def _data_files(split: Path) -> list[Path]:
    state = read_json(split / "state.json") if (split / "state.json").exists() else {}
    entries = state.get("_data_files") if isinstance(state, dict) else None
    names = [entry.get("filename") for entry in entries] if isinstance(entries, list) else []
    if state and state.get("_indices_files"):
        raise InputError(str(split), "it has an indices mapping; call flatten_indices() and save it again")
    if names:
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise InputError(str(split / "state.json"), "names of data files are not plain names")
        return [split / name for name in names]
    found = sorted(split.glob("*.arrow"))
    if not found:
        raise InputError(str(split), "no Arrow files in this data set")
    return found


def _files(path: Path) -> Iterator[Path]:
    for split in _splits(path):
        yield from _data_files(split)


def survey(path: Path, options: Options, tally: Tally) -> None:
    for file in _files(path):
        arrow.survey(file, options, tally)


def rewrite(path: Path, target: Path, options: Options, recoder: Recoder) -> None:
    rewritten = set()
    for split in _splits(path):
        for file in _data_files(split):
            new = target / file.relative_to(path)
            new.parent.mkdir(parents=True, exist_ok=True)
            arrow.rewrite(file, new, options, recoder)
            rewritten.add(file)
        for name, change in (("dataset_info.json", _change_info), ("state.json", _change_state)):
            source = split / name
            if source.exists():
                (target / source.relative_to(path)).write_text(
                    json.dumps(change(read_json(source), _column(split, options), recoder), indent=2), encoding="utf-8"
                )
                rewritten.add(source)
    for source in sorted(path.rglob("*")):
        if source.is_file() and source not in rewritten:
            copy_or_link(source, target / source.relative_to(path), link=options.link)


def _column(split: Path, options: Options) -> Column:
    with arrow._open(_data_files(split)[0]) as (reader, _):
        return Column.find(reader.schema, replace(options), str(split))


def _change_info(info: Any, column: Column, recoder: Recoder) -> Any:
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict):
        return info
    if recoder.inverse:
        original = info.get(ORIGINAL)
        kept = {name: value for name, value in info.items() if name != ORIGINAL}
        return {**kept, "features": original} if isinstance(original, dict) else kept
    return {**info, "features": class_label_features(features, column, recoder.labels), ORIGINAL: features}


def _change_state(state: Any, column: Column, recoder: Recoder) -> Any:
    """The fingerprint keys the caches of ``datasets``: other contents need another one."""
    if not isinstance(state, dict) or not isinstance(state.get("_fingerprint"), str):
        return state
    seed = f"{state['_fingerprint']} {recoder.labels.fingerprint} {column.name} {recoder.inverse}"
    return {**state, "_fingerprint": hashlib.sha256(seed.encode()).hexdigest()[:16]}


def embedded_map(path: Path) -> LabelMap | None:
    return arrow.embedded_map(next(_files(path)))
