"""Table formats: suffix -> module with a ``READER``. Adding one is a module and a line here."""

from __future__ import annotations

import importlib

from preassert.data.formats.base import Reader
from preassert.data.source import Source, refuse_pipe

TABLES: dict[str, str] = {
    ".arrow": "arrow",
    ".bin": "tokens",
    ".csv": "csv",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".npz": "npy",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".pt": "torchfile",
    ".pth": "torchfile",
    ".safetensors": "safetensors",
    ".tab": "csv",
    ".tar": "webdataset",
    ".tgz": "webdataset",
    ".tsv": "csv",
}

# First bytes -> module, for files whose suffix says nothing.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"FEA1", "arrow"),
    (b"\x93NUMPY", "npy"),
)


def module_of(source: Source) -> str | None:
    """The format module for a file by its suffix, else by its first bytes; None when neither tells."""
    known = TABLES.get(source.suffix)
    if known is not None:
        return known
    head = source.head(8)
    return next((module for magic, module in _MAGIC if head.startswith(magic)), None)


def open_reader(source: Source) -> Reader:
    """The reader of ``source``.

    Raises:
        ValueError: no format is known for it.
    """
    if source.filesystem is None:
        refuse_pipe(source.path)
    module = module_of(source)
    if module is None:
        raise ValueError(f"unknown format (known suffixes: {' '.join(TABLES)})")
    reader: Reader = importlib.import_module(f"preassert.data.formats.{module}").READER(source)
    return reader
