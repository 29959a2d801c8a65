"""Cards: a violation, a diagnosis or a remark as a piece of HTML that stands inside somebody else's page (a notebook).

The style is held to the card's own class. Text and background are the page's, so that a card can be read in light and in dark
themes. Without its style (untrusted notebooks, code hosts) a card is still headings, tables and lists. Text from outside is
cleaned and escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from preassert import hazards
from preassert.errors import Violation, number_text
from preassert.report.diagnosis import cause_of, html_body
from preassert.report.text import clean

Tone = Literal["stop", "dead", "note"]

_FIXES_SHOWN, _CAUSES_SHOWN = 3, 3
_FRAMES_CHARS = 200_000
_QUOTED = re.compile("`([^`\n]+)`")

# The class is doubled where a front end's own rules for tables would win (JupyterLab aligns cells to the right).
_STYLE = """
.preassert-card { border: 1px solid #8886; border-left: 5px solid #d64545; border-radius: 5px; padding: .5em 1em .7em;
  margin: .4em 0; max-width: 62em; font: 14px/1.5 system-ui, sans-serif; color: inherit;
  background: transparent; text-align: left }
.preassert-card.preassert-dead { border-left-color: #d98200 }
.preassert-card.preassert-note { border-left-color: #3a8f5c }
.preassert-card h1, .preassert-card h2, .preassert-card h3 { font: 600 15px/1.4 system-ui, sans-serif; margin: .7em 0 .2em;
  color: inherit; border: 0; padding: 0 }
.preassert-card > h3:first-of-type { font-size: 17px; margin-top: .1em }
.preassert-card p, .preassert-card ul, .preassert-card ol { margin: .3em 0; color: inherit }
.preassert-card table { border-collapse: collapse; margin: .4em 0; color: inherit; font-size: 14px }
.preassert-card.preassert-card table tr:nth-child(n) { background: transparent }
.preassert-card.preassert-card table th, .preassert-card.preassert-card table td { text-align: left; vertical-align: top;
  padding: .12em 1em .12em 0; border: 0; color: inherit; white-space: normal; max-width: none }
.preassert-card.preassert-card table td.preassert-typed code { white-space: nowrap }
.preassert-card.preassert-card table th { font-weight: 600; white-space: nowrap }
.preassert-card code, .preassert-card pre { font: 13px/1.45 ui-monospace, monospace; color: inherit; background: #8882;
  border-radius: 3px; padding: .05em .3em }
.preassert-card pre { padding: .5em .7em; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.preassert-card details { margin: .5em 0 0 } .preassert-card summary { cursor: pointer }
.preassert-card details > pre { max-height: 30em; overflow: auto }
.preassert-card small { opacity: .8 }
"""


def shown(text: object) -> str:
    """Text from outside, for HTML: control characters shown, everything escaped."""
    return html.escape(clean(str(text)))


def card(title: str, parts: Iterable[str], tone: Tone) -> str:
    """A card of parts that are HTML already; ``title`` is text."""
    body = "\n".join(part for part in parts if part)
    return f'<style>{_STYLE}</style><div class="preassert-card preassert-{tone}"><h3>{shown(title)}</h3>\n{body}\n</div>'


def paragraph(text: str) -> str:
    return f"<p>{shown(text)}</p>" if text else ""


def listing(title: str, items: Iterable[str]) -> str:
    """A list under its title, if it has one; `words in backquotes` are code."""
    rows = "".join(f"<li>{_QUOTED.sub(_as_code, shown(item))}</li>" for item in items)
    heading = f"<h3>{shown(title)}</h3>" if title else ""
    return f"{heading}<ul>{rows}</ul>" if rows else ""


def _as_code(quoted: re.Match[str]) -> str:
    return f"<code>{quoted[1]}</code>"


def commands(lines: Iterable[tuple[str, str]]) -> str:
    """(what to type, what it does) for each line."""
    rows = "".join(
        f'<tr><td class="preassert-typed"><code>{shown(typed)}</code></td><td>{shown(does)}</td></tr>' for typed, does in lines
    )
    return f"<table>{rows}</table>"


def folded(summary: str, text: str) -> str:
    """Long text that opens on a click."""
    if not text:
        return ""
    if len(text) > _FRAMES_CHARS:
        text = text[: _FRAMES_CHARS // 2] + "\n[...]\n" + text[-_FRAMES_CHARS // 2 :]
    return f"<details><summary>{shown(summary)}</summary><pre>{shown(text)}</pre></details>"


def violation_card(violation: Violation, *, place: str | None = None, frames: str = "") -> str:
    """Args: ``place``: the user's line in the words of the front end; ``frames``: the full traceback as text."""
    entry = hazards.raw().get(violation.hazard, {})
    parts = [paragraph(entry.get("title", ""))]
    if violation.operator:
        parts.append(_facts(_violation_facts(violation, place)))
        parts.append(f"<p>{shown(ALIVE)}</p>")
    else:  # relayed as text
        parts.append(f"<pre>{shown(violation)}</pre>")
    parts.append(listing("Fixes", entry.get("fixes", [])[:_FIXES_SHOWN]))
    parts.append(f"<p><small>More: <code>!preassert hazards {shown(violation.hazard)}</code></small></p>")
    parts.append(folded("Full traceback", frames))
    return card(f"Stopped before the kernel: {violation.hazard}", parts, "stop")


ALIVE = "No kernel has run on the bad values: the process and its CUDA context are unharmed. Correct the cell and run it again."


def _violation_facts(violation: Violation, place: str | None) -> dict[str, str]:
    """Label -> HTML, in the order of house rule 5."""
    bad = [f"{violation.named_argument}{list(e.position) or ''} = {number_text(e.value)}" for e in violation.elements]
    more = violation.count - len(bad)
    values = ", ".join(bad) + (f", ... ({more:,} more)" if more > 0 and bad else "")
    outside = f"{violation.count:,} of {violation.total:,}" if bad else ""
    if outside and violation.minimum is not None and violation.maximum is not None:
        outside += f" (min {number_text(violation.minimum)}, max {number_text(violation.maximum)})"
    call = f"{violation.call}({', '.join(map(str, violation.arguments))})"
    site = violation.site
    line = "" if site is None else shown(place or f"{site.file}:{site.line} in {site.function}")
    if site is not None and site.source:
        line += f"<br><code>{shown(site.source)}</code>"
    sample = ""
    if violation.sample is not None:
        indices = ", ".join(map(str, violation.sample.indices[:10])) + (" ..." if len(violation.sample.indices) > 10 else "")
        sample = f"dataset index {indices}" if indices else f"unknown ({violation.sample.unknown_because})"
        sample += f" ({violation.sample.detail})" if violation.sample.detail else ""
    return {
        "call": f"<code>{shown(call)}</code>",
        "bad value": f"<b>{shown(values or violation.named_argument)}</b>",
        "valid": shown(violation.valid),
        "note": shown(violation.detail or ""),
        "outside": shown(outside),
        "line": line,
        "module": shown(violation.module or ""),
        "sample": shown(sample),
        "rank": "" if violation.rank is None else shown(violation.rank),
        "likely": shown(violation.likely or ""),
    }


def _facts(rows: Mapping[str, str]) -> str:
    cells = "".join(f"<tr><th>{shown(name)}</th><td>{value}</td></tr>" for name, value in rows.items() if value)
    return f"<table>{cells}</table>"


def diagnosis_card(
    report: Mapping[str, Any], *, lead: str = "", place: str | None = None, more: str = "", frames: str = ""
) -> str:
    """A ``preassert.explain/1`` report, the first things first and the rest folded.

    Args:
        lead: text above the diagnosis. place: the user's line where it was noticed. more: HTML below the diagnosis.
        frames: the full traceback as text.
    """
    cause = cause_of(report)
    if cause is None or report["verdict"] == "unknown":
        parts = [paragraph(lead), _without_title(report), more, folded("Full traceback", frames)]
        return card(str(report["verdict"]), parts, "note")
    parts = [
        paragraph(lead),
        paragraph(str(cause.get("title") or "")),
        f"<pre>{shown(cause['evidence'])}</pre>",
        _facts(
            {
                "operator": shown(cause.get("operator") or ""),
                "argument": shown(cause.get("argument") or ""),
                "valid": shown(cause.get("valid") or ""),
                "where": shown("; ".join((cause.get("elements") or [])[:3])),
                "noticed at": f"{shown(place)}; the fault may be earlier, because kernels run later" if place else "",
            }
        ),
        more,
        listing("Most likely causes", (cause.get("causes") or [])[:_CAUSES_SHOWN]),
        listing("Fixes", (cause.get("fixes") or [])[:_FIXES_SHOWN]),
        f"<details><summary>Full diagnosis</summary>{html_body(report)}</details>",
        folded("Full traceback", frames),
    ]
    return card(str(report["verdict"]), parts, "dead" if report["restart_required"] else "stop")


def _without_title(report: Mapping[str, Any]) -> str:
    """The body of a report whose verdict stands in the card's title."""
    return html_body(report).partition("</h1>")[2]
