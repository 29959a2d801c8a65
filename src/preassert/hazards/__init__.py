"""The hazard catalogue: each kind of fault explained once, in ``kinds/<slug>.toml``.

At run time the compiled form ``catalogue.json`` is read (3 ms against 200 ms of TOML parsing);
``tools/build_catalogue.py`` writes it and a test keeps the two equal.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from preassert.hazards.records import Hazard


@cache
def raw() -> dict[str, Any]:
    """The compiled catalogue as plain JSON data, slug -> entry. Cheap; used where records are not needed."""
    # open(), not importlib.resources: that one costs 15 ms of imports
    with open(os.path.join(os.path.dirname(__file__), "catalogue.json"), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)["hazards"]
    return data


def slugs() -> tuple[str, ...]:
    """Every slug, in alphabetical order."""
    return tuple(sorted(raw()))


@cache
def get(slug: str) -> Hazard:
    """The hazard named ``slug``.

    Raises:
        KeyError: no hazard of that name; the message suggests the nearest ones.
    """
    try:
        entry = raw()[slug]
    except KeyError:
        import difflib

        near = difflib.get_close_matches(slug, slugs(), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else "; `preassert hazards` lists all"
        raise KeyError(f"no hazard named {slug!r}{hint}") from None
    return decode(entry)


def decode(entry: dict[str, Any]) -> Hazard:
    """Turn one plain entry (of ``catalogue.json`` or of a checked TOML file) into a :class:`Hazard`."""
    from preassert.hazards.records import Hazard, HostMessage, Printed

    plain = dict(entry)
    plain["printed"] = tuple(
        Printed(**{**record, "kernels": tuple(record["kernels"]), "operators": tuple(record["operators"])})
        for record in entry["printed"]
    )
    plain["host"] = tuple(HostMessage(**{**record, "operators": tuple(record["operators"])}) for record in entry["host"])
    for key in ("causes", "confirm", "fixes", "sources"):
        plain[key] = tuple(entry[key])
    return Hazard(**plain)
