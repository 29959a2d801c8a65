"""Find hazards by what was printed: an assertion, a kernel, the host's wording, or words of the explanation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from preassert.hazards import get, slugs
from preassert.hazards.records import Hazard, Printed

# Placeholders in recorded expressions -> what is printed in their place.
_PLACEHOLDERS = {"tmpN": r"tmp\w+", "SIZE": r"[\w +*]+", "1 + ks0": r"[\w +*]*ks\d+[\w +*]*", "[MIN, MAX]": r"\[.*\]"}
_ANY_TEXT = re.compile(r"<any text\b")
_ASSERTION = re.compile(r"[Aa]ssertion [`'‘\"]?(.*?)[`'’\"]? failed")
_EXCEPTION = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt): )?(?:(?:CUDA|HIP) error: )?")
_SHORTEST = 4  # a shorter text is part of too many expressions


@dataclass(frozen=True, slots=True)
class Match:
    """Why a hazard was found."""

    slug: str
    because: str


def find(text: str) -> tuple[Match, ...]:
    """The hazards that fit ``text`` best, one match each, in alphabetical order; empty when none fits.

    Looks, in this order and stopping at the first that finds something: a printed expression equal to the text (or to the
    assertion quoted in it), the host's wording, a printed expression that holds the text or is held by it, a kernel or
    source file, words of title and meaning.
    """
    text = " ".join(text.split())
    quoted = _ASSERTION.search(text)
    expression = quoted.group(1) if quoted else text
    for tier in (_equal(expression), _host(text), _part(expression), _place(text), _words(text)):
        found = _one_each(tier)
        if len(found) > 1:
            found = _narrowed(found, text, expression)
        if found:
            return tuple(sorted(found, key=lambda match: match.slug))
    return ()


def _hazards() -> Iterator[Hazard]:
    return map(get, slugs())


def _records(hazard: Hazard) -> list[Printed]:
    """Printed assertions, CUDA's before those of other backends, which print the same text."""
    return sorted(hazard.printed, key=lambda record: not record.file.endswith((".cu", ".cuh")))


def _one_each(matches: Iterator[Match]) -> list[Match]:
    first: dict[str, Match] = {}
    for match in matches:
        first.setdefault(match.slug, match)
    return list(first.values())


def _narrowed(found: list[Match], text: str, expression: str) -> list[Match]:
    """Keep the hazards whose record names the file that the text names, where it names one."""
    files = set(re.findall(r"[\w.*<>-]+\.(?:cu|cuh|h|hip|cpp|py)\b", text))
    files |= {file.removesuffix(".hip") + ".cu" for file in files if file.endswith(".hip")}
    kept = [
        match for match in found if any(_same(record, expression) and record.file in files for record in get(match.slug).printed)
    ]
    return kept or found


def _equal(expression: str) -> Iterator[Match]:
    if expression:
        for hazard in _hazards():
            for record in _records(hazard):
                if _same(record, expression):
                    yield Match(hazard.slug, f"{record.file} prints `{record.expression}`")


def _same(record: Printed, expression: str) -> bool:
    pattern = _pattern(record.expression)
    return pattern is not None and pattern.fullmatch(expression) is not None


@cache
def _pattern(expression: str) -> re.Pattern[str] | None:
    """What a recorded expression looks like when it is printed; None where it may be any text."""
    if not expression.strip() or _ANY_TEXT.search(expression):
        return None
    out, rest = "", " ".join(expression.split())
    while rest:
        for placeholder, printed in _PLACEHOLDERS.items():
            if rest.startswith(placeholder):
                out, rest = out + printed, rest[len(placeholder) :]
                break
        else:
            out, rest = out + re.escape(rest[0]), rest[1:]
    return re.compile(out)


def _host(text: str) -> Iterator[Match]:
    for hazard in _hazards():
        for message in hazard.host:
            if re.search(message.pattern, text):
                yield Match(hazard.slug, f"the host says: {message.example.strip()}")


def _part(expression: str) -> Iterator[Match]:
    if len(expression) < _SHORTEST:
        return
    for hazard in _hazards():
        for record in _records(hazard):
            pattern = _pattern(record.expression)
            held = pattern is not None and len(record.expression) >= _SHORTEST * 2 and pattern.search(expression)
            if held or expression in record.expression:
                yield Match(hazard.slug, f"{record.file} prints `{record.expression}`")


def _place(text: str) -> Iterator[Match]:
    words = set(re.findall(r"[\w.-]+", text)) - {"operator", "unknown", "lambda", "check", "at", "internal"}
    for hazard in _hazards():
        for record in _records(hazard):
            named = words & {record.file, *record.kernels}
            if named:
                yield Match(hazard.slug, f"{record.file} prints `{record.expression}` in {', '.join(record.kernels)}")


def _words(text: str) -> Iterator[Match]:
    words = _EXCEPTION.sub("", text).rstrip(".").lower()
    if len(words) < _SHORTEST:
        return
    for hazard in _hazards():
        if words in f"{hazard.title} {hazard.meaning}".lower():
            yield Match(hazard.slug, "words of its explanation")
