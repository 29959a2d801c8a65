"""Formats that ``remap`` rewrites. Adding one is a module with ``survey`` and ``rewrite`` and a line here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Protocol

from preassert.data.layouts.yolo import looks_like_labels
from preassert.data.source import COMPRESSIONS
from preassert.errors import InputError
from preassert.labels import LabelMap
from preassert.remap.recode import Options, Recoder, Tally

FILES: dict[str, str] = {
    ".arrow": "arrow",
    ".csv": "csv",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".json": "coco",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".parquet": "parquet",
    ".png": "masks",
    ".pq": "parquet",
    ".tab": "csv",
    ".tsv": "csv",
}
_HF_FILES = ("dataset_dict.json", "state.json", "dataset_info.json")
_PACKED = ("csv", "jsonl")  # formats that may be compressed as a whole
CARRIES_MAP = ("arrow", "hf", "parquet")  # formats that hold the map inside


class Format(Protocol):
    def survey(self, path: Path, options: Options, tally: Tally) -> None:
        """Count the labels of one input."""

    def rewrite(self, path: Path, target: Path, options: Options, recoder: Recoder) -> None:
        """Write the input with labels replaced to ``target`` (an empty file or folder)."""


def format_of(path: Path) -> str:
    """Name of the format of an input.

    Raises:
        InputError: it does not exist, or is nothing that can be rewritten.
    """
    if path.is_dir():
        return _folder_format(path)
    if not path.exists():
        raise InputError(str(path), "no such file or folder")
    if not path.is_file():
        raise InputError(str(path), "not a regular file")
    known = _suffix_format(path)
    if known == "coco" and _is_json_lines(path):
        return "jsonl"
    if known is None:
        formats = f"{' '.join(sorted(FILES))} and folders of tables, YOLO labels, PNG masks or Hugging Face data sets"
        raise InputError(str(path), f"cannot be rewritten; remap knows {formats}")
    return known


def shards(path: Path) -> list[Path]:
    """The files of a folder of tables; empty for a file, and for a data set that is rewritten as a folder."""
    if not path.is_dir() or any((path / name).exists() for name in _HF_FILES):
        return []
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith((".", "_")))
    tables = [file for file in files if _suffix_format(file) not in (None, "masks", "coco")]
    return tables if tables and not any(file.suffix in (".txt", ".png", ".yaml", ".yml") for file in files) else []


def _suffix_format(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        known = FILES.get(suffixes[-2]) if len(suffixes) > 1 else None
        return known if known in _PACKED else None
    return FILES.get(suffixes[-1]) if suffixes else None


def _is_json_lines(path: Path) -> bool:
    """Some name their JSON Lines ``.json``: the first line is an object of its own, and another follows."""
    with open(path, "rb") as file:
        first, second = file.readline(1 << 20), file.readline(1 << 20)
    try:
        return isinstance(json.loads(first), dict) and second.lstrip().startswith(b"{")
    except (ValueError, RecursionError):
        return False


def _folder_format(path: Path) -> str:
    if any((path / name).exists() for name in _HF_FILES):
        return "hf"
    described = next(path.glob("*.yaml"), None) or next(path.glob("*.yml"), None)
    texts = next(path.rglob("*.txt"), None)
    in_labels = path.name == "labels" or next(path.rglob("labels/**/*.txt"), None)
    if texts and (described or in_labels or looks_like_labels(str(path))):
        return "yolo"
    if next(path.rglob("*.png"), None):
        return "masks"
    if texts:
        return "yolo"
    raise InputError(str(path), "a folder without a Hugging Face data set, YOLO labels (data.yaml, *.txt) or PNG masks")


def module(name: str) -> Format:
    loaded: Format = importlib.import_module(f"preassert.remap.formats.{name}")
    return loaded


def embedded_map(name: str, path: Path) -> LabelMap | None:
    """The map that an output of an earlier ``remap`` carries inside; None where the format or the file has none."""
    if name not in CARRIES_MAP:
        return None
    found: LabelMap | None = importlib.import_module(f"preassert.remap.formats.{name}").embedded_map(path)
    return found
