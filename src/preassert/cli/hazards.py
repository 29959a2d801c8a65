"""``preassert hazards``: list the kinds of fault, or explain one."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from preassert import hazards
from preassert.errors import UsageError
from preassert.hazards.find import Match, find
from preassert.hazards.records import Hazard, Printed
from preassert.report.text import clean_line

SUMMARY = "list the kinds of fault, or explain one"

_WIDEST = 100  # longer lines of prose are hard to read
_NARROWEST = 40
_SHOWN = 10  # printed assertions and wordings; --json has all
_RESTART = {
    "required": "Yes. After this on a GPU the CUDA context of the process is dead; only a new process can use the GPU.",
    "not-required": "No. The process can go on using the GPU.",
    "depends": "If `torch.zeros(1, device='cuda')` fails as well, the context is dead and the process must restart.",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="preassert hazards", description="List the kinds of fault, or explain one.")
    parser.add_argument("what", nargs="*", help="slug of a hazard, or a text that was printed (an assertion, an exception)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    what = " ".join(arguments.what).strip()
    if not what:
        entries = [hazards.get(slug) for slug in hazards.slugs()]
        print(_as_json({"hazards": [_summary(hazard) for hazard in entries]}) if arguments.json else _table(entries))
        return 0
    if what in hazards.slugs():
        matches: tuple[Match, ...] = (Match(what, "its slug"),)
    else:
        matches = find(what)
        if not matches:
            raise UsageError(_unknown(what))
    if arguments.json:
        found = [{**hazards.raw()[match.slug], "because": match.because} for match in matches]
        print(_as_json({"hazards": found}))
    elif len(matches) > 1:
        print(_choices(what, matches))
    else:
        print(_explained(hazards.get(matches[0].slug), None if matches[0].slug == what else matches[0].because))
    return 0


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps({"schema": "preassert.hazards/1", **content}, indent=2, ensure_ascii=True)


def _summary(hazard: Hazard) -> dict[str, str]:
    return {"slug": hazard.slug, "title": hazard.title, "restart": hazard.restart}


def _unknown(what: str) -> str:
    import difflib

    near = difflib.get_close_matches(what.lower(), hazards.slugs(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`preassert hazards` lists all"
    return f"nothing in the catalogue fits {clean_line(what, 80)!r}; {hint}"


def _width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def _bold(text: str) -> str:
    """Bold on a terminal, unless NO_COLOR is set (no-color.org)."""
    if not os.environ.get("NO_COLOR") and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return f"\x1b[1m{text}\x1b[0m"
    return text


def _rows(rows: Sequence[tuple[str, str]]) -> Iterable[str]:
    """``left  right`` with the right side wrapped in its own column, or below where the terminal is narrow."""
    column = max(len(left) for left, _ in rows) + 2
    room = _width() - column
    for left, right in rows:
        if room >= _NARROWEST:
            first, *more = textwrap.wrap(right, room, break_on_hyphens=False)
            yield f"{_bold(left)}{' ' * (column - len(left))}{first}"
            yield from (" " * column + line for line in more)
        else:
            yield _bold(left)
            yield from textwrap.wrap(right, _width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _table(entries: Sequence[Hazard]) -> str:
    hint = "`preassert hazards SLUG` explains one; `preassert hazards 'text that was printed'` finds one."
    return "\n".join([*_rows([(hazard.slug, hazard.title) for hazard in entries]), "", _wrapped(hint, "")])


def _choices(what: str, matches: Sequence[Match]) -> str:
    heading = f"{len(matches)} hazards fit {clean_line(what, 80)!r}:"
    return "\n".join(
        [heading, "", *_rows([(match.slug, match.because) for match in matches]), "", "`preassert hazards SLUG` explains one."]
    )


def _explained(hazard: Hazard, because: str | None) -> str:
    heading = _wrapped(f"{hazard.slug}: {hazard.title}", "")
    parts = [heading.replace(hazard.slug, _bold(hazard.slug), 1)]
    if because:
        parts.append(_wrapped(f"Found because {because}", "  "))
    parts.append(_section("What happened", hazard.meaning))
    parts.append(_section("Causes, most likely first", *_numbered(hazard.causes)))
    parts.append("\n".join([_bold("How to make sure"), *("\n" + textwrap.indent(code, "  ") for code in hazard.confirm)]))
    parts.append(_section("What to do", *_numbered(hazard.fixes)))
    parts.append(_section("Must the process restart?", _RESTART[hazard.restart]))
    if hazard.not_this:
        parts.append(_section("What it is not", hazard.not_this))
    if hazard.printed:
        parts.append(_listed("Printed on the GPU as", _assertions(hazard)))
    if hazard.host:
        parts.append(_listed("Printed by the host as", [message.example.strip() for message in hazard.host]))
    since = f"since torch {hazard.since}" + (f", until {hazard.until}" if hazard.until else "")
    parts.append(_section("Sources", f"({since})", *hazard.sources))
    return "\n\n".join(parts)


def _assertions(hazard: Hazard) -> list[str]:
    """``expression (files)``, one line each; those of torch's operators that most releases print first."""
    records: dict[str, list[Printed]] = {}
    for record in hazard.printed:
        records.setdefault(record.expression or "(no text)", []).append(record)

    def rank(expression: str) -> tuple[bool, int]:
        same = records[expression]
        releases = (re.search(r"(\d+) of \d+ sampled wheels", record.versions) for record in same)
        return not any(record.operators for record in same), -sum(int(found.group(1)) for found in releases if found)

    return [
        f"{expression} ({', '.join(dict.fromkeys(record.file for record in records[expression]))})"
        for expression in sorted(records, key=rank)
    ]


def _section(heading: str, *paragraphs: str) -> str:
    return "\n".join([_bold(heading), *(_wrapped(part, "  ") for text in paragraphs for part in text.split("\n\n"))])


def _numbered(items: Sequence[str]) -> list[str]:
    return [f"{number}. {item}" for number, item in enumerate(items, 1)]


def _wrapped(text: str, indent: str) -> str:
    hanging = indent + "   " if text[:1].isdigit() else indent
    return textwrap.fill(
        text, _width(), initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False
    )


def _listed(heading: str, lines: Iterable[str]) -> str:
    lines = list(lines)
    shown = [clean_line(line, _width() - 2) for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"... {len(lines) - _SHOWN} more (--json has all)")
    return "\n".join([_bold(heading), *(f"  {line}" for line in shown)])
