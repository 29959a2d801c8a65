"""Findings of a check as text, JSON, SARIF and HTML. Text from outside is cleaned and escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from preassert.model import Finding, Severity
from preassert.report.text import clean_line

SCHEMA = "preassert.check/1"
_SARIF_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_NO_HAZARD = "bad-input"  # SARIF wants a rule; the hazard of an unreadable file is null everywhere else
_BARS = 60  # of a histogram in HTML; more classes are put together
_SHOWN = 50  # errors and warnings in a terminal
_INFO_SHOWN = 12


def to_json(findings: Sequence[Finding], scanned: Mapping[str, Any]) -> str:
    """One JSON object, with NaN and infinities spelt as text."""
    document = {"schema": SCHEMA, "findings": [finding.to_dict() for finding in findings], "scanned": dict(scanned)}
    return json.dumps(_plain(document), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def to_text(findings: Sequence[Finding], scanned: Mapping[str, Any]) -> str:
    """What a terminal shows: errors and warnings first, then what was read, column by column."""
    severe = [finding for severity in ("error", "warning") for finding in findings if finding.severity == severity]
    blocks = [_block(finding) for finding in severe[:_SHOWN]]
    if len(severe) > _SHOWN:
        blocks.append(f"         and {len(severe) - _SHOWN:,} more findings (--json has them all)")
    infos = [finding for finding in findings if finding.severity == "info"]
    if infos:
        lines = [f"note     {clean_line(finding.where.file)}: {clean_line(finding.message)}" for finding in infos[:_INFO_SHOWN]]
        if len(infos) > _INFO_SHOWN:
            lines.append(f"         and {len(infos) - _INFO_SHOWN} more notes (--json has them all)")
        blocks.append("\n".join(lines))
    table = _columns_table(scanned.get("columns", {}))
    if table:
        blocks.append(table)
    blocks.append(summary(findings, scanned))
    return "\n\n".join(blocks)


def _block(finding: Finding) -> str:
    what = finding.hazard or ("bad input" if finding.severity == "error" else "input")
    lines = [
        f"{finding.severity:<8} {what}  {clean_line(place(finding))}",
        f"         {clean_line(finding.message)}",
    ]
    if finding.fix:
        lines.append(f"         fix: {clean_line(finding.fix)}")
    return "\n".join(lines)


def place(finding: Finding) -> str:
    """``labels.csv:8 (row 7, column label)``"""
    where = finding.where
    text = f"{where.file}:{where.line}" if where.line is not None else where.file
    about = []
    if where.row is not None and where.row != where.line:
        about.append(f"row {where.row:,}")
    if where.column:
        about.append(f"column {where.column}")
    return f"{text} ({', '.join(about)})" if about else text


def summary(findings: Sequence[Finding], scanned: Mapping[str, Any]) -> str:
    """One line: what was read, and the verdict."""
    nouns = ("files", "rows", "pixels", "pictures", "boxes", "objects", "tensors")
    read = [f"{scanned[noun]:,} {noun if scanned[noun] != 1 else noun[:-1]}" for noun in nouns if _counted(scanned, noun)]
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = sum(finding.severity == "warning" for finding in findings)
    if errors:
        verdict = f"{errors:,} error{'s' if errors != 1 else ''}"
    else:
        verdict = "clean"
    if warnings:
        verdict += f", {warnings:,} warning{'s' if warnings != 1 else ''}"
    return f"{', '.join(read) or 'nothing'} checked: {verdict}"


def _counted(scanned: Mapping[str, Any], key: str) -> bool:
    return isinstance(scanned.get(key), int) and scanned[key] > 0


def _columns_table(columns: Mapping[str, Any]) -> str:
    rows = [["column", "rows", "min", "max", "missing", "outside", "classes"]]
    for name, entry in columns.items():
        if "min" not in entry:
            continue
        histogram = entry.get("histogram")
        classes = "-" if histogram is None else f"{len(histogram):,}"
        numbers = [entry.get(key) for key in ("rows", "min", "max", "missing", "offending")]
        rows.append([clean_line(name or "-", 40), *("-" if number is None else f"{number:,}" for number in numbers), classes])
    if len(rows) == 1:
        return ""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def to_sarif(findings: Sequence[Finding], version: str, titles: Mapping[str, str]) -> str:
    """SARIF 2.1.0, as code hosts read it. ``titles``: hazard slug -> its one-line title."""
    used = list(dict.fromkeys(finding.hazard or _NO_HAZARD for finding in findings))
    rules = [
        {"id": slug, "shortDescription": {"text": titles.get(slug, "an input that is not what it should be")}} for slug in used
    ]
    results = []
    for finding in findings:
        region = {"region": {"startLine": finding.where.line}} if finding.where.line else {}
        location = {
            "physicalLocation": {"artifactLocation": {"uri": quote(finding.where.file.replace("\\", "/"), safe="/:")}, **region}
        }
        text = finding.message + (f" Fix: {finding.fix}" if finding.fix else "")
        results.append(
            {
                "ruleId": finding.hazard or _NO_HAZARD,
                "level": _SARIF_LEVELS[finding.severity],
                "message": {"text": clean_line(text)},
                "locations": [location],
                "properties": _plain(
                    {key: value for key, value in finding.to_dict().items() if key not in ("message", "fix", "severity")}
                ),
            }
        )
    driver = {"name": "preassert", "version": version, "rules": rules}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(document, indent=2, allow_nan=False)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #1c1c1c; background: #fff }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #ddd }
.error { color: #a40000; font-weight: 600 }
.warning { color: #8a5a00; font-weight: 600 }
.info { color: #555 }
code { background: #f3f3f3; padding: 0 .2rem }
svg { width: 100%; height: auto }
.legal { fill: #4a7ab5 }
.outside { fill: #c0392b }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e4e4e4 }
  code { background: #262a30 }
  td, th { border-color: #383d45 }
  .error { color: #ff8a80 }
  .warning { color: #ffcc80 }
  .info { color: #aaa }
  svg text { fill: #e4e4e4 }
}
"""


def to_html(findings: Sequence[Finding], scanned: Mapping[str, Any]) -> str:
    """One page without scripts or outside resources: findings, and a histogram of each column."""
    rows = "\n".join(_html_row(finding) for finding in findings) or "<tr><td colspan=4>No findings.</td></tr>"
    pictures = "\n".join(
        _html_histogram(name, entry, _outside_of(findings, name)) for name, entry in scanned.get("columns", {}).items()
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'><title>preassert check</title>"
        f"<style>{_STYLE}</style></head><body>\n<h1>preassert check</h1>\n<p>{_escaped(summary(findings, scanned))}</p>\n"
        f"<table><tr><th>severity</th><th>hazard</th><th>where</th><th>what</th></tr>\n{rows}\n</table>\n{pictures}\n</body></html>\n"
    )


def _escaped(text: object) -> str:
    return html.escape(clean_line(str(text)))


def _html_row(finding: Finding) -> str:
    fix = f"<br>fix: <code>{_escaped(finding.fix)}</code>" if finding.fix else ""
    hazard = _escaped(finding.hazard or "bad input")
    return (
        f"<tr><td class={finding.severity}>{finding.severity}</td><td><code>{hazard}</code></td>"
        f"<td>{_escaped(place(finding))}</td><td>{_escaped(finding.message)}{fix}</td></tr>"
    )


def _outside_of(findings: Sequence[Finding], column: str) -> set[Any]:
    """The offending values of a column, which the histogram shows in another colour."""
    mine = [finding for finding in findings if finding.severity == "error" and (finding.where.column or column) == column]
    return {value for finding in mine for value in finding.values if isinstance(value, (int, str))}


def _html_histogram(name: str, entry: Mapping[str, Any], outside: set[Any]) -> str:
    histogram: list[tuple[Any, int]] = [(value, count) for value, count in entry.get("histogram") or ()]
    if not histogram:
        return f"<h2>{_escaped(name or 'values')}</h2><p>No histogram was counted.</p>"
    groups = _grouped(histogram, outside)
    most = max(count for _, count, _ in groups)
    step = 900 / len(groups)
    bars = []
    for at, (label, count, is_outside) in enumerate(groups):
        height = max(1.0, 160 * count / most)
        kind = "outside" if is_outside else "legal"
        title = f"<title>{_escaped(label)}: {count:,}</title>"
        box = f"x='{at * step:.1f}' y='{170 - height:.1f}' width='{step * 0.85:.1f}' height='{height:.1f}'"
        bars.append(f"<rect class={kind} {box}>{title}</rect>")
        if len(groups) <= 30:
            text = _escaped(clean_line(str(label), 8))
            bars.append(f"<text x='{at * step + step * 0.42:.1f}' y='186' font-size='11' text-anchor='middle'>{text}</text>")
    valid = f"; valid: {_escaped(entry['valid'])}" if entry.get("valid") else ""
    caption = f"{len(histogram):,} distinct values{valid}"
    return f"<h2>{_escaped(name or 'values')}</h2><p>{caption}</p><svg viewBox='0 0 900 192' role=img>{''.join(bars)}</svg>"


def _grouped(histogram: list[tuple[Any, int]], outside: set[Any]) -> list[tuple[str, int, bool]]:
    """(label, count, outside?) for at most ``_BARS`` bars; neighbours are put together, outsiders keep their own."""
    legal = [(value, count) for value, count in histogram if value not in outside]
    wrong = [(value, count) for value, count in histogram if value in outside][: _BARS // 2]
    size = -(-len(legal) // (_BARS - len(wrong))) if legal else 1
    groups: list[tuple[Any, str, int, bool]] = [(value, str(value), count, True) for value, count in wrong]
    for start in range(0, len(legal), size):
        part = legal[start : start + size]
        label = str(part[0][0]) if len(part) == 1 else f"{part[0][0]}..{part[-1][0]}"
        groups.append((part[0][0], label, sum(count for _, count in part), False))
    groups.sort(key=lambda group: (isinstance(group[0], str), group[0]))
    return [(label, count, is_outside) for _, label, count, is_outside in groups]
