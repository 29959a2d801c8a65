"""The label map that ``preassert remap`` left in the metadata of a Parquet or Arrow file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preassert.lazy import need

# As preassert.labels.mapfile and preassert.remap.columns write them; a test holds the rooms together.
SCHEMA = "preassert.labelmap/1"
MAP_KEY = b"preassert.labelmap"
COLUMN_KEY = b"preassert.labelmap.column"
EARLIER_KEY = b"preassert.labelmap.schema"  # the schema before, with the map of a column that was remapped earlier
_LIMIT_BYTES = 64 << 20
_MOST_MAPS = 64  # columns remapped one after the other
_SHOWN_NAMES = 6


@dataclass(frozen=True, slots=True)
class CarriedMap:
    """What a check needs of a label map. ``names``: of the indices 0..; fewer than ``num_classes`` if some stand for no label."""

    num_classes: int
    ignore_index: int
    names: tuple[str, ...]
    fingerprint: str

    def __str__(self) -> str:
        shown = ", ".join(f"{index} {name!r}" for index, name in enumerate(self.names[:_SHOWN_NAMES]))
        more = ", ..." if len(self.names) > _SHOWN_NAMES else ""
        noun = "class" if self.num_classes == 1 else "classes"
        return f"{self.num_classes:,} {noun} ({shown}{more}), {self.fingerprint[:19]}"


def carried_maps(metadata: Mapping[bytes, bytes] | None) -> tuple[dict[str, CarriedMap], list[str]]:
    """Column -> map for every column that was remapped, and what is wrong with maps that cannot be read.

    Args:
        metadata: of the schema of the file.
    """
    found: dict[str, CarriedMap] = {}
    wrong: list[str] = []
    for _ in range(_MOST_MAPS):
        text = (metadata or {}).get(MAP_KEY)
        if metadata is None or text is None:
            break
        column = metadata.get(COLUMN_KEY, b"").decode("utf-8", "replace")
        try:
            found.setdefault(column, _parse(text))
            metadata = _earlier(metadata.get(EARLIER_KEY))
        except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
            wrong.append(
                f"{column or 'values'}: the label map in its metadata cannot be read: {' '.join(str(error).split())[:200]}"
            )
            break
    return found, wrong


def _parse(text: bytes) -> CarriedMap:
    if len(text) > _LIMIT_BYTES:
        raise ValueError(f"{len(text):,} bytes")
    content: Any = json.loads(text)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA!r}")
    classes, count, ignored = content["classes"], content["num_classes"], content["policy"]["ignore_index"]
    if not isinstance(classes, list) or type(count) is not int or type(ignored) is not int:
        raise ValueError("classes, num_classes or ignore_index is not what it should be")
    if not 0 <= count - len(classes) <= 2 or count < 1:  # one more each for missing and for other labels
        raise ValueError(f"{len(classes):,} classes are listed and num_classes is {count:,}")
    names = content.get("names")
    if not isinstance(names, list) or len(names) != len(classes):
        names = classes
    return CarriedMap(count, ignored, tuple(map(str, names)), str(content.get("fingerprint", "")))


def _earlier(stored: bytes | None) -> Mapping[bytes, bytes] | None:
    """The metadata before the last remap."""
    if stored is None or len(stored) > _LIMIT_BYTES:
        return None
    pa = need("pyarrow", extra="data", purpose="read Arrow files")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored, validate=True)))
    earlier: Mapping[bytes, bytes] | None = schema.metadata
    return earlier
