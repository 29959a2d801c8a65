"""Compares a report of ``preassert check`` with what a case expects, as ``tests/cases/data/README.md`` says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


def differences(case: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """What is missing, extra or different, in words; empty when the report is as expected."""
    out: list[str] = []
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    claimed: set[int] = set()
    for expected in case["findings"]:
        mine = [at for at, finding in enumerate(errors) if _belongs(finding, expected)]
        claimed.update(mine)
        if not mine:
            out.append(f"missing: {expected}")
        else:
            out.extend(_unlike([errors[at] for at in mine], expected))
    out.extend(f"extra: {finding}" for at, finding in enumerate(errors) if at not in claimed)
    return out


def _belongs(finding: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    hazards = expected["hazard"] if isinstance(expected["hazard"], list) else [expected["hazard"]]
    files = expected["file"] if isinstance(expected["file"], list) else [expected["file"]]
    found = os.path.normpath(finding["where"]["file"])
    return finding["hazard"] in hazards and any(found == file or found.startswith(file + os.sep) for file in files)


def _unlike(mine: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    values = [value for finding in mine for value in finding["values"]]
    if expected.get("values_any") is not None:
        out.extend(
            f"value {value!r} is none of {expected['values_any']}" for value in values if value not in expected["values_any"]
        )
    elif expected.get("values") is not None and _sorted(set(values)) != _sorted(expected["values"]):
        out.append(f"values {values}, expected {expected['values']}")
    if expected.get("count") is not None and sum(finding["count"] for finding in mine) != expected["count"]:
        out.append(f"count {[finding['count'] for finding in mine]}, expected {expected['count']}")
    for key in ("rows", "lines"):
        if expected.get(key):
            found = sorted(row for finding in mine for row in finding["where"].get(key, []))
            if found[: len(expected[key])] != expected[key]:
                out.append(f"{key} {found}, expected {expected[key]}")
    if expected.get("ids") is not None and [i for finding in mine for i in finding["where"].get("ids", [])] != expected["ids"]:
        out.append(f"ids, expected {expected['ids']}")
    if expected.get("column") is not None and {finding["where"].get("column") for finding in mine} != {expected["column"]}:
        out.append(f"column, expected {expected['column']}")
    return out


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=lambda value: (value is None, isinstance(value, str), value if value is not None else 0))
