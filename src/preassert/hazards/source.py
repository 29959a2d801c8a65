"""Reads and checks ``kinds/<slug>.toml``, the sources of the catalogue. Used by ``tools/build_catalogue.py`` and by tests.

Prose may be wrapped in the file: single line breaks are joined, blank lines part paragraphs. ``confirm`` keeps its lines.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from preassert.errors import InputError

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

KINDS = Path(__file__).with_name("kinds")
SCHEMA = "preassert.hazards/1"
RESTART = ("required", "not-required", "depends")


class _Bad(Exception):
    """A value breaks the schema; the message starts with the key."""


def catalogue(folder: Path = KINDS) -> dict[str, Any]:
    """All hazards of ``folder`` as one JSON-ready object: ``{"schema": ..., "hazards": {slug: entry}}``, ordered by slug.

    Raises:
        InputError: a file is not TOML or breaks the schema (names file and key), or two hazards claim one assertion.
    """
    entries: dict[str, Any] = {}
    owners: dict[tuple[str, str, tuple[str, ...], str], str] = {}
    for path in sorted(folder.glob("*.toml")):
        entry = read(path)
        for record in entry["printed"]:
            other = owners.setdefault(_identity(record), path.name)
            if other != path.name:
                raise InputError(str(path), f"printed: {record['file']}: `{record['expression']}` is in {other} too")
        entries[entry["slug"]] = entry
    return {"schema": SCHEMA, "hazards": entries}


def read(path: Path) -> dict[str, Any]:
    """One file as a checked entry with every key present (absent optional keys are None).

    Raises:
        InputError: the file cannot be read, is not TOML, or breaks the schema; names the file and the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(str(path), f"not TOML: {error}") from error
    try:
        return _entry(data, path.stem)
    except _Bad as error:
        raise InputError(str(path), str(error)) from None


def _entry(data: dict[str, Any], stem: str) -> dict[str, Any]:
    entry = _fields({"printed": [], "host": [], **data}, _HAZARD, "")
    if entry["slug"] != stem:
        raise _Bad(f"slug: {entry['slug']!r} differs from the file name")
    printed = [_identity(record) for record in entry["printed"]]
    for before, after in itertools.pairwise(printed):
        if after == before:
            raise _Bad(f"printed: {after[0]}: `{after[1]}` is there twice")
        if after < before:
            raise _Bad(f"printed: {after[0]}: `{after[1]}` is out of order (by file, expression, kernels, versions)")
    return entry


def _identity(record: dict[str, Any]) -> tuple[str, str, tuple[str, ...], str]:
    return record["file"], record["expression"], tuple(record["kernels"]), record["versions"]


Check = Callable[[Any, str], Any]


def _fields(data: dict[str, Any], schema: dict[str, tuple[Check, bool]], prefix: str) -> dict[str, Any]:
    unknown = sorted(set(data) - set(schema))
    if unknown:
        raise _Bad(f"{prefix}{unknown[0]}: unknown key")
    out: dict[str, Any] = {}
    for key, (check, needed) in schema.items():
        if key in data:
            out[key] = check(data[key], prefix + key)
        elif needed:
            raise _Bad(f"{prefix}{key}: missing")
        else:
            out[key] = None
    return out


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise _Bad(f"{key}: a string is needed, not {type(value).__name__}")
    return value


def _filled(value: Any, key: str) -> str:
    text = _text(value, key).strip()
    if not text:
        raise _Bad(f"{key}: empty")
    return text


def _line(value: Any, key: str) -> str:
    text = _filled(value, key)
    if "\n" in text:
        raise _Bad(f"{key}: one line is needed")
    return text


def _prose(value: Any, key: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", _filled(value, key)))


def _code(value: Any, key: str) -> str:
    return _filled(textwrap.dedent(_text(value, key)), key)


def _like(pattern: re.Pattern[str], what: str) -> Check:
    def checked(value: Any, key: str) -> str:
        text = _line(value, key)
        if not pattern.fullmatch(text):
            raise _Bad(f"{key}: {text!r} is not {what}")
        return text

    return checked


_slug = _like(re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*"), "a slug")
_operator = _like(re.compile(r"[a-z]\w*::\w+"), "an operator name like aten::embedding")


def _restart(value: Any, key: str) -> str:
    text = _line(value, key)
    if text not in RESTART:
        raise _Bad(f"{key}: {text!r} is not one of {', '.join(RESTART)}")
    return text


def _pattern(value: Any, key: str) -> str:
    text = _line(value, key)
    try:
        re.compile(text)
    except re.error as error:
        raise _Bad(f"{key}: {text!r} is not a regular expression: {error}") from None
    return text


def _list(check: Check, *, filled: bool = False) -> Check:
    def listed(value: Any, key: str) -> list[Any]:
        if not isinstance(value, list):
            raise _Bad(f"{key}: a list is needed, not {type(value).__name__}")
        out = [check(item, f"{key}[{position}]") for position, item in enumerate(value)]
        if filled and not out:
            raise _Bad(f"{key}: empty")
        if _repeated(out):
            raise _Bad(f"{key}: an item is there twice")
        return out

    return listed


def _repeated(items: Iterable[Any]) -> bool:
    seen: list[Any] = []
    for item in items:
        if item in seen:
            return True
        seen.append(item)
    return False


def _printed(value: Any, key: str) -> dict[str, Any]:
    return _fields(_table(value, key), _PRINTED, f"{key}.")


def _host(value: Any, key: str) -> dict[str, Any]:
    record = _fields(_table(value, key), _HOST, f"{key}.")
    if not re.search(record["pattern"], record["example"]):
        raise _Bad(f"{key}.example: the pattern does not match it")
    return record


def _table(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Bad(f"{key}: a table is needed, not {type(value).__name__}")
    return value


# key -> (check, is it needed?), in the order of the records in hazards/__init__.py
_PRINTED: dict[str, tuple[Check, bool]] = {
    "file": (_line, True),
    "expression": (_text, True),  # empty where an assertion is printed without text
    "kernels": (_list(_line, filled=True), True),
    "operators": (_list(_operator), True),
    "argument": (_line, False),
    "valid": (_line, False),
    "element": (_line, False),
    "versions": (_line, True),
    "source": (_line, True),
}

_HOST: dict[str, tuple[Check, bool]] = {
    "pattern": (_pattern, True),
    "example": (_line, True),
    "operators": (_list(_operator), True),
    "argument": (_line, False),
}

_HAZARD: dict[str, tuple[Check, bool]] = {
    "slug": (_slug, True),
    "title": (_line, True),
    "since": (_line, True),
    "until": (_line, False),
    "restart": (_restart, True),
    "meaning": (_prose, True),
    "causes": (_list(_prose, filled=True), True),
    "confirm": (_list(_code, filled=True), True),
    "fixes": (_list(_prose, filled=True), True),
    "not_this": (_prose, False),
    "sources": (_list(_line, filled=True), True),
    "printed": (_list(_printed), True),
    "host": (_list(_host), True),
}
