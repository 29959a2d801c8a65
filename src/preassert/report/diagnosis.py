"""The answer of ``preassert explain`` for people: terminal text, one HTML page, GitHub annotations.

Input is the JSON object of the ``preassert.explain/1`` contract, so a saved report can be shown again. Every text from
the log goes through :func:`preassert.report.text.clean`; HTML is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from preassert.report.text import clean, clean_line

Report = Mapping[str, Any]
Style = Callable[[str], str]

WIDTH = 110
EVIDENCE_CHARS = 420
CAUSES_SHOWN, FIXES_SHOWN = 4, 5
ECHOES_SHOWN = 3

_VERDICT_NOTES = {
    "clean": "no failure in this text",
    "unknown": "something failed, but it is nothing of the catalogue",
}
_CONFIDENCE = {"determined": "the text decides it", "likely": "likely, not proved", "undetermined": "not determined by this text"}
_RESTART = {True: "Restart: required", False: "Restart: not required", None: "Restart: not decided by this text"}


def cause_of(report: Report) -> Mapping[str, Any] | None:
    return next((diagnosis for diagnosis in report["diagnoses"] if diagnosis["role"] == "cause"), None)


def to_text(report: Report, *, verbose: bool = False, width: int = WIDTH, bold: Style = str) -> str:
    """The report for a terminal, without a trailing newline."""
    cause = cause_of(report)
    sections = [_headline(report, cause, width, bold)]
    if cause is None:
        sections.append(_sources(report))
        sections.extend(_notes(report, width))
        return "\n".join(section for section in sections if section)
    sections.append(_what_happened(report, cause, width))
    sections.append(_restart(report, width, bold))
    if report["verdict"] == "unknown":
        sections.append(_unknown(cause, width))
    else:
        sections.extend(_help(report, cause, width, bold))
    sections.extend(_limits(report, cause, width, bold, verbose))
    sections.extend(_echoes(report, width, bold, verbose))
    sections.extend(_notes(report, width))
    if report["verdict"] != "unknown":
        sections.append(f"Next: preassert hazards {report['verdict']}")
    return "\n".join(section for section in sections if section)


def _headline(report: Report, cause: Mapping[str, Any] | None, width: int, bold: Style) -> str:
    verdict = report["verdict"]
    if cause is None:
        return f"{bold(verdict)}: {_VERDICT_NOTES.get(verdict, '')}"
    title = _VERDICT_NOTES[verdict] if verdict == "unknown" else cause.get("title") or ""
    note = _CONFIDENCE.get(report.get("confidence", ""), "")
    return _filled(f"{bold(verdict)}: {title}" + (f" ({note})" if note and verdict != "unknown" else ""), width, "  ", first="")


def _sources(report: Report) -> str:
    sources = report.get("sources") or []
    lines = sum(source["lines"] for source in sources)
    return f"  {lines:,} lines read" + (f" in {len(sources)} files" if len(sources) > 1 else "")


def _place(diagnosis: Mapping[str, Any], report: Report) -> str:
    sources = report.get("sources") or []
    file = f"{clean_line(str(diagnosis.get('file')))} " if len(sources) > 1 and diagnosis.get("file") else ""
    if diagnosis.get("line") is not None:
        place = f"{file}line {diagnosis['line']}"
    elif diagnosis.get("cell") is not None:
        place = f"{file}cell {diagnosis['cell']}"
    else:
        place = f"{file}text"
    return place + (f", rank {diagnosis['rank']}" if diagnosis.get("rank") is not None else "")


def _what_happened(report: Report, cause: Mapping[str, Any], width: int) -> str:
    lines = [_filled(f"{_place(cause, report)}: {clean_line(str(cause['evidence']), EVIDENCE_CHARS)}", width, "    ", first="  ")]
    count = cause.get("count") or 1
    if cause.get("kind") == "assertion" and count > 1:
        bad = cause.get("bad_elements_at_least")
        lines.append(f"  {count:,} such lines" + (f"; at least {bad:,} bad element{'s' if bad != 1 else ''}" if bad else ""))
    if cause.get("also_raised_on_the_host"):
        lines.append(
            _filled(f"told by: {clean_line(str(cause['also_raised_on_the_host']), EVIDENCE_CHARS)}", width, "    ", first="  ")
        )
    about = []
    if cause.get("operator"):
        about.append(f"operator {cause['operator']}")
    elif cause.get("operators"):
        about.append("one of " + ", ".join(cause["operators"][:5]))
    if cause.get("argument"):
        about.append(f"argument {cause['argument']}")
    if cause.get("valid"):
        about.append(f"valid: {cause['valid']}")
    if about:
        lines.append(_filled("; ".join(about), width, "    ", first="  "))
    elements = cause.get("elements") or []
    lines.extend(
        _filled(clean_line(str(element)), width, "    ", first="  where: " if index == 0 else "         ")
        for index, element in enumerate(elements)
    )
    frame = report.get("frame") or report.get("innermost_frame")
    if frame:
        source = f": {clean_line(frame['source'], 100)}" if frame.get("source") else ""
        number = f":{frame['line']}" if frame.get("line") else ""
        lines.append(
            _filled(
                f"noticed at {clean_line(frame['file'])}{number} in {clean_line(frame['function'] or '?')}{source}",
                width,
                "    ",
                first="  ",
            )
        )
    if report.get("torch_versions"):
        sampled = len(report.get("torch_versions_sampled") or [])
        lines.append(
            _filled(
                f"torch: of {sampled} releases on record, {', '.join(report['torch_versions'])} print this file and line",
                width,
                "    ",
                first="  ",
            )
        )
    return "\n".join(lines)


def _unknown(cause: Mapping[str, Any], width: int) -> str:
    what = {
        "assertion": "An assertion of other software than torch's device code.",
        "exception": "An exception that torch's kernels do not cause.",
        "crash": "The process crashed; the text does not say why.",
        "killed": (
            "The process was killed, mostly because the host (not the GPU) ran out of memory. "
            "See dmesg, or the memory limit of the container."
        ),
        "host memory": "The host (not the GPU) ran out of memory.",
        "build": "A compilation failed.",
        "cuda": (
            "A CUDA error that says nothing about values; restart the process, then check the driver (nvidia-smi) "
            "and rerun with CUDA_LAUNCH_BLOCKING=1."
        ),
        "tests": "Tests failed.",
    }.get(str(cause.get("what")), "")
    if cause.get("kind") == "assertion":
        what = (
            "A device-side assertion that is not on record; its text above is what can be said. "
            "Rerun under `preassert run` to get value and line."
        )
    return _filled(what, width, "  ", first="  ") if what else ""


def _help(report: Report, cause: Mapping[str, Any], width: int, bold: Style) -> list[str]:
    sections = []
    if cause.get("meaning"):
        sections.append("\n" + _filled(str(cause["meaning"]), width, "  ", first="  "))
    likely = report.get("likely") or []
    if likely:
        items = [f"{clue['hazard']}: {clean_line(clue['because'], 200)}" for clue in likely]
        sections.append(_list(bold("What the text speaks for (not proved)"), items, width))
    if cause.get("innocent_source"):
        sections.append(
            _filled(
                f"`{clean_line(str(cause['innocent_source']), 100)}` cannot assert itself: "
                "it only met the failure of an earlier kernel.",
                width,
                "  ",
                first="  ",
            )
        )
    sections.append(_list(bold("For this kind of program"), cause.get("advice") or [], width))
    sections.append(_list(bold("Most likely causes, in order"), (cause.get("causes") or [])[:CAUSES_SHOWN], width, numbered=True))
    sections.append(_blocks(bold("How to confirm"), (cause.get("confirm") or [])[:2]))
    sections.append(_list(bold("Fixes"), (cause.get("fixes") or [])[:FIXES_SHOWN], width))
    return sections


def _restart(report: Report, width: int, bold: Style) -> str:
    restart = report["restart_required"]
    if restart is None and report["verdict"] == "unknown":
        return ""
    reason = report.get("restart_reason")
    return _filled(bold(_RESTART[restart]) + (f". {_sentence(reason)}" if reason else "."), width, "    ", first="  ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _limits(report: Report, cause: Mapping[str, Any], width: int, bold: Style, verbose: bool) -> list[str]:
    sections = []
    if report.get("ruled_out"):
        words = "nothing in the text speaks for " + "; ".join(report["ruled_out"])
        sections.append(_filled(f"{bold('Ruled out')}: {words}.", width, "  ", first=""))
    if verbose and cause.get("not_this"):
        sections.append(_filled(f"{bold('Not to be confused')}: {cause['not_this']}", width, "  ", first=""))
    if report.get("asynchronous"):
        sections.append(_filled(f"{bold('Depends on')}: {report['asynchronous']}.", width, "  ", first=""))
    if report.get("reproduce"):
        sections.append("\n".join([bold("Reproduce"), *(f"  $ {clean_line(step)}" for step in report["reproduce"])]))
    if report.get("names_dsa"):
        sections.append(
            _filled(
                "TORCH_USE_CUDA_DSA, which the message names, is a switch for building torch from source: "
                "released builds ignore it.",
                width,
                "  ",
                first="",
            )
        )
    return sections


def _echoes(report: Report, width: int, bold: Style, verbose: bool) -> list[str]:
    others = [diagnosis for diagnosis in report["diagnoses"] if diagnosis["role"] != "cause"]
    if not others:
        return []
    shown = others if verbose else others[:ECHOES_SHOWN]
    lines = [bold("Only followed from it, or stood beside it")]
    for diagnosis in shown:
        times = f" ({diagnosis['count']:,} times)" if diagnosis["count"] > 1 else ""
        evidence = clean_line(str(diagnosis["evidence"]), 160)
        text = f"{diagnosis['role']}: {diagnosis['hazard']}, {_place(diagnosis, report)}{times}: {evidence}"
        lines.append(_filled(text, width, "    ", first="  "))
    if len(others) > len(shown):
        lines.append(f"  and {len(others) - len(shown)} more (-v shows them)")
    ranks = sorted({rank for diagnosis in report["diagnoses"] for rank in (diagnosis.get("ranks") or ())})
    if verbose and ranks:
        lines.append(_filled(f"ranks that print assertions: {', '.join(map(str, ranks))}", width, "    ", first="  "))
    return ["\n".join(lines)]


def _notes(report: Report, width: int) -> list[str]:
    return [_filled(f"Note: {clean_line(str(note))}", width, "  ", first="") for note in report.get("notes") or ()]


def _list(title: str, items: list[str], width: int, numbered: bool = False) -> str:
    if not items:
        return ""
    lines = [title]
    for number, item in enumerate(items, 1):
        mark = f"  {number}. " if numbered else "  - "
        lines.append(_filled(str(item), width, " " * len(mark), first=mark))
    return "\n".join(lines)


def _blocks(title: str, blocks: list[str]) -> str:
    if not blocks:
        return ""
    return "\n".join([title, *(_indented(block) for block in blocks)])


def _filled(text: str, width: int, rest: str, *, first: str) -> str:
    """Words filled into lines of ``width``; a word that is longer stays whole (a path must be copyable)."""
    lines: list[str] = []
    current = first
    empty = True
    for word in clean(text).split():
        if not empty and len(current) + 1 + len(word) > width:
            lines.append(current)
            current, empty = rest, True
        current += word if empty else f" {word}"
        empty = False
    return "\n".join([*lines, current]).rstrip()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in clean(text).split("\n"))


# --------------------------------------------------------------------------------------------------------------------- HTML


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
pre { padding: .7rem; overflow-x: auto; border: 1px solid #8886; border-radius: 4px; white-space: pre-wrap; }
.restart { border-left: 4px solid #c60; padding-left: .7rem; } table { border-collapse: collapse; }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
small { opacity: .75; }
"""


def to_html(report: Report) -> str:
    """One self-contained page: no script, nothing is loaded from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>preassert: {_e(report['verdict'])}</title><style>{_STYLE}</style></head><body>\n"
        f"{html_body(report)}\n</body></html>\n"
    )


def html_body(report: Report) -> str:
    """What stands on the page of :func:`to_html`, for a place that has a style of its own."""
    cause = cause_of(report)
    body = [f"<h1>{_e(report['verdict'])}</h1>"]
    if cause is None:
        body.append(f"<p>{_e(_VERDICT_NOTES.get(report['verdict'], ''))}</p>")
    else:
        title = _VERDICT_NOTES.get(report["verdict"]) or cause.get("title") or ""
        body.append(f"<p>{_e(title)} <small>({_e(_CONFIDENCE.get(report.get('confidence', ''), ''))})</small></p>")
        reason = report.get("restart_reason")
        because = f". {_e(_sentence(reason))}" if reason else ""
        body.append(f"<p class=restart><b>{_e(_RESTART[report['restart_required']])}</b>{because}</p>")
        body.append(f"<h2>Evidence: {_e(_place(cause, report))}</h2><pre>{_e(cause['evidence'])}</pre>")
        body.append(_html_facts(report, cause))
        if cause.get("meaning") and report["verdict"] != "unknown":
            body.append(f"<h2>Meaning</h2><p>{_e(cause['meaning'])}</p>")
        body.append(
            _html_list(
                "What the text speaks for (not proved)",
                [f"{clue['hazard']}: {clue['because']}" for clue in report.get("likely") or ()],
            )
        )
        body.append(_html_list("For this kind of program", cause.get("advice") or []))
        body.append(_html_list("Most likely causes, in order", cause.get("causes") or [], "ol"))
        if cause.get("confirm"):
            body.append("<h2>How to confirm</h2>" + "".join(f"<pre>{_e(step)}</pre>" for step in cause["confirm"]))
        body.append(_html_list("Fixes", cause.get("fixes") or []))
        if report.get("reproduce"):
            body.append("<h2>Reproduce</h2><pre>" + _e("\n".join(report["reproduce"])) + "</pre>")
        if report.get("asynchronous"):
            body.append(f"<p><small>Depends on: {_e(report['asynchronous'])}.</small></p>")
        body.append(_html_list("Nothing in the text speaks for", report.get("ruled_out") or []))
        body.append(_html_others(report))
    body.append(_html_list("Notes", report.get("notes") or []))
    return "\n".join(part for part in body if part)


def _e(text: Any) -> str:
    """Escaped for HTML, control characters shown."""
    escaped = clean(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace('"', "&quot;").replace("'", "&#39;")


def _html_facts(report: Report, cause: Mapping[str, Any]) -> str:
    facts = {
        "lines like it": f"{cause['count']:,}" if (cause.get("count") or 1) > 1 else None,
        "operator": cause.get("operator") or ", ".join(cause.get("operators") or ()),
        "argument": cause.get("argument"),
        "valid": cause.get("valid"),
        "elements": "; ".join(cause.get("elements") or ()),
        "torch releases that print it": ", ".join(report.get("torch_versions") or ()),
    }
    rows = "".join(f"<tr><th>{_e(name)}</th><td>{_e(value)}</td></tr>" for name, value in facts.items() if value)
    return f"<table>{rows}</table>" if rows else ""


def _html_list(title: str, items: Any, tag: str = "ul") -> str:
    if not items:
        return ""
    return f"<h2>{_e(title)}</h2><{tag}>" + "".join(f"<li>{_e(item)}</li>" for item in items) + f"</{tag}>"


def _html_others(report: Report) -> str:
    others = [diagnosis for diagnosis in report["diagnoses"] if diagnosis["role"] != "cause"]
    if not others:
        return ""
    rows = "".join(
        f"<tr><td>{_e(each['role'])}</td><td>{_e(each['hazard'])}</td><td>{_e(_place(each, report))}</td>"
        f"<td>{each['count']}</td><td><code>{_e(each['evidence'])}</code></td></tr>"
        for each in others
    )
    return f"<h2>Only followed from it, or stood beside it</h2><table>{rows}</table>"


# ------------------------------------------------------------------------------------------------------ GitHub annotations


def to_github(report: Report) -> str:
    """Workflow commands that GitHub shows beside a run; empty for a clean text."""
    cause = cause_of(report)
    if cause is None:
        return ""
    frame = report.get("frame")
    place = ""
    if frame and frame.get("line") and not frame["file"].startswith(("<", "Cell", "Input")):
        place = f" file={_property(frame['file'])},line={frame['line']},title={_property('preassert: ' + report['verdict'])}"
    else:
        place = f" title={_property('preassert: ' + report['verdict'])}"
    title = _VERDICT_NOTES.get(report["verdict"]) or cause.get("title") or ""
    fixes = cause.get("fixes") or [""]
    message = f"{title}\n{_place(cause, report)}: {clean_line(str(cause['evidence']), EVIDENCE_CHARS)}\n{fixes[0]}"
    return f"::error{place}::{_message(message)}"


def _message(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
