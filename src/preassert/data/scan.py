"""Checks files against rules: the one entry that the command line, checkpoints and Python callers share."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from preassert.data import formats
from preassert.data.carried import CarriedMap
from preassert.data.fixes import Counted, fix_of
from preassert.data.formats import hf
from preassert.data.formats.base import Proven, Reader
from preassert.data.rules import TARGET, Report, Rule, hazard_of_column, tidy
from preassert.data.source import Source, expand_all, is_remote, reading, source, walk
from preassert.data.tally import Tally
from preassert.data.wording import LinesOf, bad_input, compare_class_names, findings_of, note, summarise, unreadable
from preassert.errors import InputError, UsageError
from preassert.model import Finding, Where

__all__ = ["Options", "Report", "Rule", "check_paths"]

# Files with more rows than this are proven clean by their statistics alone where those suffice, without a histogram.
HISTOGRAM_ROWS = 2_000_000
# What a label column is called when nobody says; the first that is there is taken.
LABEL_COLUMNS = (
    "label",
    "labels",
    "target",
    "targets",
    "class",
    "class_id",
    "label_id",
    "category_id",
    "category",
    "y",
    "cls",
    "mask",
    "masks",
    "input_ids",
)

Progress = Callable[[str, int, int | None], None]  # file, rows done, rows in all


@dataclass(frozen=True, slots=True)
class Options:
    """How files are read.

    Attributes:
        dtype: element type of headerless ``.bin`` token files; None is uint16.
        header: whether CSV files start with column names; without, columns are named "0", "1", ...
        comment: what comment lines of CSV files begin with; None: ``#``, where the line cannot be a record.
        histogram: count every class. None: for files up to ``HISTOGRAM_ROWS`` rows, and wherever it costs no extra pass.
        progress: called now and then with file, rows read so far and rows in all (None: unknown).
    """

    dtype: str | None = None
    header: bool = True
    comment: str | None = None
    histogram: bool | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A rule as the caller gave it, and the tally of the column that it found."""

    rule: Rule
    tally: Tally


@dataclass(slots=True)
class _Missing:
    """Where a wanted column was not found."""

    files: list[str]
    columns: tuple[str, ...]


def check_paths(paths: Sequence[str], rules: Sequence[Rule], options: Options | None = None) -> Report:
    """Hold tables (Parquet, CSV, JSON Lines, arrays, token files, tar shards ...) against rules.

    Args:
        paths: files, folders of shards, globs, or ``s3://``-like addresses.
        rules: what each column may hold; at least one.
        options: how to read.

    Returns:
        The findings, in the order of the files. A file that cannot be read is a finding (hazard None, severity error)
        and does not keep the others from being checked; so is a shard without a column that other shards have.

    Raises:
        UsageError: nothing matches a path, or no readable file has a column that a rule (not optional) asks for.
        MissingExtra: a library that the format needs is not installed.
    """
    scan = Scan(rules, options or Options())
    for scan.asked, target in expand_all(paths):
        if not is_remote(target) and os.path.isdir(target):
            scan.folder(target)
        else:
            scan.file(target)
    return scan.finish()


class Scan:
    """The state of one check: findings so far, and tallies for each column over all files."""

    def __init__(self, rules: Sequence[Rule], options: Options) -> None:
        self.rules = rules
        self.options = options
        self.report = Report(scanned={"files": 0, "rows": 0})
        self.columns: dict[tuple[Rule, str | None], list[Counted]] = {}
        self.missing: dict[Rule, _Missing] = {}
        self.found: set[Rule] = set()
        self.maps: dict[str, tuple[str, CarriedMap]] = {}  # column -> the first file with a label map, and that map
        self.asked = ""  # the target, as the caller names it
        self.last_file = ""
        self._open_fixes: list[tuple[int, Counted, tuple[Rule, str | None]]] = []  # (number of the finding, ...)

    def folder(self, path: str) -> None:
        """Check the shards below a folder, or the data set that `datasets` saved there."""
        if hf.is_dataset(path):
            self._saved_dataset(path)
            return
        listed = walk(path)
        for loop in listed.loops:
            self.report.findings.append(
                note(loop, "a link that leads back to a folder above it; not followed", severity="warning")
            )
        tables = [file for file in listed.files if Source(file).suffix in formats.TABLES]
        shards = [file for file in tables if Source(file).suffix != ".json"]
        # Beside shards, JSON files are descriptions (dataset_info.json, state.json), not data.
        chosen = shards or tables
        if not chosen:
            raise UsageError(f"{path}: no data files in it (known suffixes: {' '.join(formats.TABLES)})")
        skipped = len(listed.files) - len(chosen)
        if skipped:
            self.report.scanned["files_passed_over"] = self.report.scanned.get("files_passed_over", 0) + skipped
        for file in chosen:
            self.file(file)

    def _saved_dataset(self, path: str) -> None:
        first: dict[str, hf.Shard] = {}
        told: set[tuple[str, str]] = set()
        try:
            for shard in hf.shards(path):
                self.file(shard.file, shard.class_names)
                for column, names in shard.class_names.items():
                    other = first.setdefault(column, shard)
                    if other.class_names[column] != names and (shard.split, column) not in told:
                        told.add((shard.split, column))
                        self.report.findings.append(_classes_differ(column, other, shard))
        except InputError as error:
            self.report.findings.append(unreadable(error.file, error.reason))

    def file(self, path: str, class_names: dict[str, tuple[str, ...]] | None = None) -> None:
        """Check one file; what is wrong with the file itself becomes a finding."""
        self.report.scanned["files"] += 1
        self.last_file = path
        plan: list[_Planned] = []
        reader: Reader | None = None
        try:
            with reading(path):
                reader = formats.open_reader(self._source(path))
                plan = self._plan(reader, path, class_names or {})
                if plan:
                    self._read(reader, [planned.tally for planned in plan])
        except InputError as error:
            self.report.findings.append(unreadable(error.file, error.reason))
        if reader is not None:
            self._conclude(reader, path, plan)

    def _source(self, path: str) -> Source:
        options = self.options
        columns = tuple(rule.column for rule in self.rules if rule.column is not None)
        return source(path, dtype=options.dtype, header=options.header, columns=columns, comment=options.comment)

    def _plan(self, reader: Reader, path: str, class_names: dict[str, tuple[str, ...]]) -> list[_Planned]:
        """One tally for each rule whose column the file has."""
        names = reader.columns()
        if names == () and reader.count_rows() is None:
            raise ValueError("the file is empty")
        declared = {**reader.class_names(), **class_names}
        maps = reader.label_maps()
        plan: list[_Planned] = []
        for rule in self.rules:
            columns = [rule.column] if rule.column is not None else _evident_columns(reader, rule, {*declared, *maps})
            present = [column for column in columns if names is None or column in names]
            if not present:
                self._miss(rule, path, names or _example(reader))
            for column in present:
                effective = replace(rule, column=column)
                if rule.column is None and rule.hazard == TARGET:
                    effective = replace(effective, hazard=hazard_of_column(column))
                open_rule = not rule.bounded and rule.max_length is None
                if column in maps:
                    self._tell_map(path, effective, maps[column])
                    effective = _rule_of_map(effective, maps[column], open_rule)
                elif column in declared:
                    effective = _rule_of_classes(effective, declared[column], open_rule)
                plan.append(_Planned(rule, Tally(effective, column)))
        return plan

    def _tell_map(self, path: str, rule: Rule, carried: CarriedMap) -> None:
        """Say once for each column which map its files carry, and where it disagrees with the caller or with another file."""
        column = rule.column or ""
        first = self.maps.setdefault(column, (path, carried))
        if first[0] != path:
            if first[1].fingerprint != carried.fingerprint:
                names = {
                    file: {str(index): label for index, label in enumerate(known.names)}
                    for file, known in (first, (path, carried))
                }
                self.report.findings.extend(compare_class_names(names))
            return
        entry = {"file": path, "num_classes": carried.num_classes, "fingerprint": carried.fingerprint}
        self.report.scanned.setdefault("label_maps", {})[column] = entry
        text = f"{column or 'values'}: carries a label map of preassert remap: {carried}"
        if _disagrees(rule, carried):
            by = f", set by {rule.bound_by}" if rule.bound_by else ""
            text += f"; held against {rule.valid}{by}, which is not what the map says"
            self.report.findings.append(note(path, text, severity="warning", column=column))
        else:
            self.report.findings.append(note(path, text, column=column))

    def _miss(self, rule: Rule, path: str, columns: tuple[str, ...]) -> None:
        entry = self.missing.setdefault(rule, _Missing([], columns))
        entry.files.append(path)

    def _read(self, reader: Reader, tallies: list[Tally]) -> None:
        total = reader.count_rows()
        histogram = self.options.histogram
        skip_proven = histogram is False or (histogram is None and total is not None and total > HISTOGRAM_ROWS)
        rules: dict[str, list[Rule]] = {}
        for tally in tallies:
            rules.setdefault(tally.column or "", []).append(tally.rule)
            if skip_proven:
                tally.histogram = None
        ranges = {column: _common_range(of_column) for column, of_column in rules.items()}

        def covered(column: str, low: int, high: int) -> bool:
            lowest, highest = ranges[column]
            return lowest <= low and high <= highest

        for chunk in reader.chunks(list(rules), covered if skip_proven else None):
            done = 0
            for tally in tallies:
                values = chunk.columns.get(tally.column or "")
                if values is None:
                    continue
                if isinstance(values, Proven):
                    tally.prove(values.rows, values.low, values.high)
                else:
                    tally.feed(values, chunk.first_row, text=reader.text)
                done = max(done, tally.rows)
            if self.options.progress:
                self.options.progress(reader.source.path, done, total)

    def _conclude(self, reader: Reader, path: str, plan: list[_Planned]) -> None:
        """Turn what was counted into findings, also when reading stopped half-way."""
        for line, reason in reader.broken_lines:
            self.report.findings.append(unreadable(path, reason, line=line))
        for message in reader.notes:
            self.report.findings.append(note(path, message, severity="warning"))
        rows = 0
        for rule, tally in ((planned.rule, planned.tally) for planned in plan):
            if tally.rows and tally.column in reader.absent:
                self._miss(rule, path, _example(reader))
                continue
            self.found.add(rule)
            rows = max(rows, tally.rows)
            counted = Counted(tally, reader.source, self.asked)
            column = (rule, tally.column)
            for finding in findings_of(tally, path, _lines_of(reader), reader.row_noun):
                if finding.fix is None:
                    self._open_fixes.append((len(self.report.findings), counted, column))
                self.report.findings.append(finding)
            if not tally.rows:
                self.report.findings.append(
                    note(path, f"{tally.column or 'the file'}: no rows", severity="warning", column=tally.column)
                )
            self.columns.setdefault(column, []).append(counted)
        self.report.scanned["rows"] += rows

    def finish(self) -> Report:
        for rule, missing in self.missing.items():
            if rule.optional:
                continue
            text = _no_column(rule, missing)
            if rule not in self.found:
                raise UsageError(f"{missing.files[0]}: {text}")
            for file in missing.files:
                self.report.findings.append(bad_input(file, text))
        for at, counted, column in self._open_fixes:
            self.report.findings[at] = replace(self.report.findings[at], fix=fix_of(counted, self.columns[column]))
        for files in self.columns.values():
            summarise(self.report, self.last_file, [counted.tally for counted in files])
        self.report.findings = tidy(self.report.findings)
        return self.report


def _common_range(rules: Sequence[Rule]) -> tuple[float, float]:
    """The range of whole numbers that every rule covers; an empty one where extremes prove nothing."""
    if not all(rule.provable for rule in rules):
        return math.inf, -math.inf
    limits = [rule.limits() for rule in rules]
    lowest = max(-math.inf if low is None else low for low, _ in limits)
    return lowest, min(math.inf if high is None else high for _, high in limits)


def _rule_of_map(rule: Rule, carried: CarriedMap, open_rule: bool) -> Rule:
    """The rule of a column whose file carries a label map: its range where the caller states none, and what to do."""
    if _disagrees(rule, carried):
        return replace(rule, fix=rule.fix or f"build the model with num_classes={carried.num_classes}, as the label map says")
    fix = rule.fix or "correct the rows: they were changed after preassert remap"
    if not open_rule:
        return replace(rule, fix=fix)
    ignore = (carried.ignore_index,) if rule.ignore == Rule().ignore else rule.ignore
    by = "the label map in its metadata"
    return replace(rule, lowest=0, highest=carried.num_classes - 1, ignore=ignore, bound_by=by, fix=fix)


def _rule_of_classes(rule: Rule, names: tuple[str, ...], open_rule: bool) -> Rule:
    """The rule of a column whose file declares its classes: these, unless the caller states others."""
    if open_rule:
        return replace(rule, names=names)
    if rule.names is None and rule.highest is not None and rule.highest + 1 < len(names):
        declared = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        return replace(rule, fix=rule.fix or f"build the model with num_classes={len(names)}: the file declares {declared}")
    return rule


def _disagrees(rule: Rule, carried: CarriedMap) -> bool:
    """Whether the caller's range or class list is another than that of the map."""
    if not rule.bounded or rule.real or rule.alphabet is not None:
        return False
    if rule.names is not None:
        return rule.names != carried.names
    stated = ((rule.lowest, 0), (rule.highest, carried.num_classes - 1))
    return any(mine is not None and mine != other for mine, other in stated)


def _classes_differ(column: str, first: hf.Shard, shard: hf.Shard) -> Finding:
    """Two splits of a saved data set number the names of a ``ClassLabel`` differently."""
    known, names = first.class_names[column], shard.class_names[column]
    values = tuple(name for at, name in enumerate(names) if at >= len(known) or known[at] != name)
    if not values:
        values = known[len(names) :]
    return Finding(
        hazard=TARGET,
        severity="error",
        where=Where(file=os.path.dirname(shard.file), column=column),
        message=f"{column}: the class list of {shard.split} is not that of {first.split}: " + ", ".join(map(repr, values[:5])),
        value=values[0],
        values=values,
        valid=f"the {len(known)} classes of {first.split}",
        count=len(values),
        fix=f"cast the column to the feature of {first.split}: ds.cast_column({column!r}, {first.split}.features[{column!r}])",
    )


def _lines_of(reader: Reader) -> LinesOf:
    """The lines of rows; none where the file breaks off before them."""

    def lines(rows: Sequence[int]) -> tuple[int, ...]:
        try:
            with reading(reader.source.path):
                return reader.lines(rows)
        except InputError:
            return ()

    return lines


def _example(reader: Reader) -> tuple[str, ...]:
    try:
        with reading(reader.source.path):
            return reader.example()
    except InputError:
        return ()


def _evident_columns(reader: Reader, rule: Rule, declared: Collection[str]) -> list[str]:
    """The label columns of a file when nobody names them: declared or remapped classes, the only column, or one of a usual name.

    Several declared columns are all taken, each with its own classes, unless the caller gave a range.
    """
    names = reader.columns()
    if names is None:
        names = _example(reader)
    classes = [column for column in names if column in declared]
    if classes:
        return classes[:1] if rule.bounded else classes
    if len(names) == 1:
        return [names[0]]
    lowered = {column.lower(): column for column in reversed(names)}
    return [lowered[usual] for usual in LABEL_COLUMNS if usual in lowered][:1]


def _no_column(rule: Rule, missing: _Missing) -> str:
    known = ", ".join(missing.columns[:30]) or "none"
    if rule.column is None:
        return f"which column holds the labels? Give --column (columns: {known})"
    near = difflib.get_close_matches(rule.column, missing.columns, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no column {rule.column!r}{hint} (columns: {known})"
