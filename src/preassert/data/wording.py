"""Turns what a tally counted into findings: message, likely cause and fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from preassert.data.rules import TARGET, Report, Rule
from preassert.data.tally import MAX_VALUES, Plain, Tally
from preassert.hazards.likely import likely
from preassert.model import Finding, Severity, Where

SHOWN_VALUES = 6  # distinct values named in a message; the report holds more

LinesOf = Callable[[Sequence[int]], tuple[int, ...]]


def findings_of(tally: Tally, file: str, lines_of: LinesOf, row_noun: str = "row") -> list[Finding]:
    """At most two findings: one for offending values, one for rows that are too long.

    The fix for values is left open unless the rule states it: it may depend on other files.

    Args:
        tally: the whole column of one file.
        file: as the report names it.
        lines_of: rows -> lines of the file on which they start, or nothing for formats without lines.
        row_noun: what a row number counts.
    """
    out: list[Finding] = []
    rule = tally.rule
    if tally.count:
        lines = lines_of(tally.first_rows)
        values = tuple(tally.values)
        parts = [
            f"{_subject(tally)}: {_amount(tally)} outside {rule.valid}{_bound(rule)}: "
            + values_in_words(tally.values, tally.more_values),
            f"first at {_place(tally.first_rows, lines, row_noun)}",
        ]
        likely = likely_cause(tally)
        if likely:
            parts.append(f"likely: {likely}")
        out.append(
            Finding(
                hazard=rule.hazard,
                severity="error",
                where=_where(file, tally.first_rows, lines, tally.column),
                message="; ".join(parts),
                value=values[0] if values else None,
                values=values,
                valid=rule.valid,
                count=tally.count,
                fix=rule.fix,
                extra=_extra(tally),
            )
        )
    if tally.too_long:
        lines = lines_of(tally.long_rows)
        lengths = tuple(tally.lengths)
        noun = "row is" if tally.too_long == 1 else "rows are"
        out.append(
            Finding(
                hazard=rule.length_hazard,
                severity="error",
                where=_where(file, tally.long_rows, lines, tally.column),
                message=f"{_subject(tally)}: {tally.too_long:,} {noun} longer than {rule.max_length}{_bound(rule)}: "
                f"{values_in_words(tally.lengths, False, 'lengths')}; first at {_place(tally.long_rows, lines, row_noun)}",
                value=lengths[0] if lengths else None,
                values=lengths,
                valid=f"at most {rule.max_length} elements a row",
                count=tally.too_long,
                fix=rule.fix or f"truncate to {rule.max_length} (tokenizer(..., truncation=True, max_length={rule.max_length}))",
            )
        )
    return out


def _subject(tally: Tally) -> str:
    return tally.column or "values"


def _amount(tally: Tally) -> str:
    noun = "element" if tally.nested else "row"
    total = tally.elements if tally.nested else tally.rows
    return f"{tally.count:,} of {total:,} {noun}s {'is' if tally.count == 1 else 'are'}"


def _bound(rule: Rule) -> str:
    return f" (set by {rule.bound_by})" if rule.bound_by else ""


def values_in_words(values: dict[Plain, int] | dict[int, int], more: bool, noun: str = "values") -> str:
    """``5 (6 times), missing (2 times)``; the most frequent first, bounded."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    shown = [f"{name(value)} ({count:,}x)" if count > 1 else name(value) for value, count in ranked[:SHOWN_VALUES]]
    rest = len(ranked) - SHOWN_VALUES
    if rest > 0:
        shown.append(f"{rest:,}{' or more' if more else ''} more {noun}")
    return ", ".join(shown)


def name(value: Plain) -> str:
    """A value as a message names it: text in quotes, a missing one in words."""
    if value is None:
        return "missing or NaN"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:37]}...")
    return str(value)


def _place(rows: Sequence[int], lines: Sequence[int], row_noun: str) -> str:
    if not rows:
        return "an unknown row"
    place = f"{row_noun} {rows[0]:,}"
    return f"{place} (line {lines[0]:,})" if lines else place


def _where(file: str, rows: Sequence[int], lines: Sequence[int], column: str | None) -> Where:
    return Where(
        file=file,
        row=rows[0] if rows else None,
        rows=tuple(rows),
        line=lines[0] if lines else None,
        lines=tuple(lines),
        column=column or None,
    )


def in_lines(
    file: str,
    lines: Sequence[int],
    what: str,
    values: Sequence[Plain],
    *,
    hazard: str,
    valid: str,
    count: int,
    fix: str,
    likely: str | None = None,
) -> Finding:
    """The finding for a text file whose rows are its lines. ``what`` is wrong, in words; ``lines`` and ``values``: the first."""
    return Finding(
        hazard=hazard,
        severity="error",
        where=_where(file, lines, lines, None),
        message=f"{what}; first at line {lines[0]}" + (f"; likely: {likely}" if likely else ""),
        value=values[0],
        values=tuple(values),
        valid=valid,
        count=count,
        fix=fix,
    )


def _extra(tally: Tally) -> dict[str, object]:
    ranked = sorted(tally.values.items(), key=lambda item: -item[1])[:50]
    out: dict[str, object] = {"value_counts": [[value, count] for value, count in ranked]}
    if tally.more_values:
        out["values_truncated"] = True
    return out


def likely_cause(tally: Tally) -> str | None:
    """The most likely cause: what only a file can have (no value, a fraction, a name), else what the numbers tell."""
    rule = tally.rule
    numbers = [value for value in tally.values if isinstance(value, (int, float))]
    texts = [value for value in tally.values if isinstance(value, str) and value not in ("inf", "-inf")]
    if tally.missing == tally.count:
        return "missing labels; cast to int64 a NaN becomes the smallest int64"
    if tally.fractional == tally.count and not rule.real:
        return "an average of several raters, or a regression target"
    if texts:
        return _likely_of_names(rule, texts, only_names=len(texts) == len(tally.values))
    if not numbers:
        return None
    lowest, highest = rule.limits()
    labels = _labels(tally)
    return likely(
        rule.hazard,
        argument="target" if rule.hazard == TARGET else tally.column,
        count=tally.count,
        total=tally.elements,
        minimum=min(labels) if labels else tally.minimum,
        maximum=max(labels) if labels else tally.maximum,
        lowest=lowest,
        highest=highest,
        legal=rule.ignore,
        distinct=numbers,
        parameter=tally.column,
        remap="preassert remap",  # the fix is the whole command, where it can do it
        signed_bits=-tally.width_bits if tally.width_bits is not None and tally.width_bits < 0 else None,
        labels=len(labels) if labels else None,
    )


def _labels(tally: Tally) -> list[int] | None:
    """The distinct labels, where every value was counted; the ignored ones are left out: they say nothing of the others."""
    if tally.rule.real or tally.fractional or tally.histogram is None:
        return None
    return [value for value in tally.histogram if isinstance(value, int) and value not in tally.rule.ignore]


def _likely_of_names(rule: Rule, texts: Sequence[str], *, only_names: bool) -> str | None:
    if rule.alphabet is not None:
        return "the text was not normalised (case, accents, punctuation) as the alphabet wants it"
    if rule.names is None and holds_several(rule, texts[0]):
        return "several labels in one field, or a decimal comma"
    if rule.names is None:
        return "the column holds names; ids or a class list (--classes FILE) are wanted" if only_names else None
    if holds_several(rule, texts[0]):
        return "several names in one field"
    folded = {known.strip().casefold(): known for known in rule.names}
    spelt = next((value for value in texts if value.strip().casefold() in folded), None)
    return None if spelt is None else f"{spelt!r} is {folded[spelt.strip().casefold()]!r} in another spelling"


def holds_several(rule: Rule, text: str) -> bool:
    """Whether a field holds several labels with commas, blanks or the like between them: ``0,3``, ``cat|dog``."""
    parts = [part for part in re.split(r"[\s,;|/]+", text) if part]
    known = rule.names
    return len(parts) > 1 and all(part in known if known is not None else re.fullmatch(r"-?\d+", part) for part in parts)


def unreadable(file: str, reason: str, *, line: int | None = None) -> Finding:
    """The finding for a file (or a line of it) that cannot be read."""
    at = f"line {line}: " if line is not None else ""
    return bad_input(file, f"cannot be read: {at}{reason}", line=line)


def bad_input(file: str, message: str, *, line: int | None = None) -> Finding:
    """The finding for an input that is not what it should be, where no hazard of the catalogue says so."""
    return Finding(hazard=None, severity="error", where=Where(file=file, line=line), message=message)


def note(file: str, message: str, *, severity: Severity = "info", column: str | None = None) -> Finding:
    """A remark that is no error."""
    return Finding(hazard=None, severity=severity, where=Where(file=file, column=column), message=message)


def summarise(report: Report, file: str, tallies: Sequence[Tally]) -> None:
    """Put rows, extremes and histogram of one column (over all files) into ``report.scanned``, and what they show as notes."""
    first = tallies[0]
    rule = first.rule
    column = first.column or ""
    minima = [tally.minimum for tally in tallies if tally.minimum is not None]
    maxima = [tally.maximum for tally in tallies if tally.maximum is not None]
    entry: dict[str, object] = {
        "rows": sum(tally.rows for tally in tallies),
        "elements": sum(tally.elements for tally in tallies),
        "missing": sum(tally.missing for tally in tallies),
        "offending": sum(tally.count for tally in tallies),
        "min": min(minima, default=None),
        "max": max(maxima, default=None),
        "valid": rule.valid,
    }
    histogram: dict[int | str, int] | None = {}
    for tally in tallies:
        if tally.histogram is None or histogram is None:
            histogram = None
            continue
        for value, count in tally.histogram.items():
            histogram[value] = histogram.get(value, 0) + count
    counts, remark = class_counts(rule, histogram)
    report.scanned.setdefault("columns", {})[column] = {**entry, **counts}
    if remark:
        report.findings.append(note(file, f"{column or 'values'}: {remark}", column=first.column))
    lowest, highest = rule.limits()
    clean = not entry["offending"] and rule.names is None and rule.hazard == TARGET
    if clean and lowest == 0 and highest is not None and minima and min(minima) == 1 and max(maxima) <= highest:
        message = f"{column or 'values'}: labels run {min(minima)}..{max(maxima)} and 0 never occurs: do they start at 1?"
        report.findings.append(note(file, message, column=first.column))


def class_counts(rule: Rule, histogram: dict[int | str, int] | None) -> tuple[dict[str, object], str | None]:
    """What ``Report.scanned`` tells of a column's values, and a remark on the classes that have none, where there are some."""
    empty = None if histogram is None else empty_classes(rule, histogram)
    shown = None if histogram is None or len(histogram) > 4096 else sorted_pairs(histogram)
    counts: dict[str, object] = {"histogram": shown, "empty_classes": empty}
    if not empty or not histogram:
        return counts, None
    named = ", ".join(map(str, empty[:10])) + (f" and {len(empty) - 10:,} more" if len(empty) > 10 else "")
    return counts, f"{len(empty):,} {'class never occurs' if len(empty) == 1 else 'classes never occur'}: {named}"


def sorted_pairs(histogram: dict[int | str, int]) -> list[list[int | str]]:
    """``[[value, count], ...]``, numbers in order before names in order."""
    return [[value, count] for value, count in sorted(histogram.items(), key=lambda item: (isinstance(item[0], str), item[0]))]


def empty_classes(rule: Rule, histogram: dict[int | str, int]) -> list[int | str] | None:
    """Legal classes without a row; None where the rule has no end or is wider than a class list is."""
    if rule.alphabet is not None or rule.real or rule.hazard != TARGET:
        return None
    if rule.names is None and not any(isinstance(value, int) for value in histogram):
        return None
    if rule.names is not None and any(isinstance(value, str) for value in histogram):
        return [known for known in rule.names if known not in histogram]
    lowest, highest = rule.limits()
    if lowest is None or highest is None or highest - lowest > 100_000:
        return None
    return [value for value in range(lowest, highest + 1) if value not in histogram]


def compare_class_names(files: Mapping[str, Mapping[str, str | None]]) -> Iterator[Finding]:
    """One finding for each file in which an id has another name than in the first file that has the id.

    Args:
        files: file -> id (as text) -> name.
    """
    first: dict[str, tuple[str, str | None]] = {}
    for file, names in files.items():
        clashes = [key for key, known in names.items() if key in first and first[key][1] != known]
        for key, known in names.items():
            first.setdefault(key, (file, known))
        if not clashes:
            continue
        other, expected = first[clashes[0]]
        values = tuple(int(key) if key.lstrip("-").isdigit() else key for key in clashes)
        yield Finding(
            hazard=TARGET,
            severity="error",
            where=Where(file=file),
            message=f"class {clashes[0]} is {names[clashes[0]]!r} here and {expected!r} in {other} ({len(clashes):,} ids differ)",
            value=values[0],
            values=values[:MAX_VALUES],
            valid=f"the class names of {other}",
            count=len(clashes),
            fix=f"renumber {file} by name, so that an id means in it what it means in {other}",
        )
