"""Reading the small files of a checkpoint: bounded, and with errors that name the file and the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from preassert.data.source import read_small
from preassert.data.wording import unreadable
from preassert.errors import InputError
from preassert.model import Finding

LARGEST_FILE_BYTES = 256 << 20  # large tokenizer.json files have some 35 MB, a config a few kB
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_bytes(path: str) -> bytes:
    """The whole file.

    Raises:
        InputError: it cannot be read, is larger than ``LARGEST_FILE_BYTES``, or is a Git LFS pointer.
    """
    data = read_small(path, LARGEST_FILE_BYTES)
    refuse_lfs_pointer(path, data)
    return data


def refuse_lfs_pointer(path: str, head: bytes) -> None:
    """Raise InputError if a file that begins with ``head`` is the stand-in that Git LFS leaves for a large file."""
    if head.startswith(_LFS_POINTER):
        raise InputError(path, "a Git LFS pointer, not the file itself (run `git lfs pull`)")


def read_json(path: str) -> Any:
    """The JSON document in the file.

    Raises:
        InputError: as :func:`read_bytes`, or the file is not UTF-8 or not JSON.
    """
    data = read_bytes(path)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 (byte {error.start})") from error
    except ValueError as error:
        raise InputError(path, f"not JSON ({error})") from error
    except RecursionError as error:
        raise InputError(path, "JSON nested too deeply") from error


def read_json_object(path: str) -> dict[str, Any]:
    """As :func:`read_json`, for a file that must hold an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(path, f"a JSON object is expected, found {type(value).__name__}")
    return value


def damaged(error: InputError) -> Finding:
    """The finding for a file of a checkpoint that cannot be read."""
    return replace(unreadable(error.file, error.reason), fix="fetch the file again, or save the checkpoint again")


def whole_number(value: Any) -> int | None:
    """``value`` if it is an int and not a bool, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
