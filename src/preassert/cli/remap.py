"""``preassert remap``: make labels 0..K-1, the same in every split, reversibly."""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preassert.errors import UsageError
from preassert.labels import UnseenLabels
from preassert.labels.labelmap import CHOICES
from preassert.labels.values import shown
from preassert.model import EXIT_CLEAN, EXIT_FINDINGS
from preassert.remap import Job, Options, Result, run
from preassert.remap.formats import shards
from preassert.report.text import clean, clean_line

SUMMARY = "make labels 0..K-1, the same in every split, reversibly"
SCHEMA = "preassert.remap/1"
TABLE_ROWS = 60  # of the table of --dry-run; --json has all


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="preassert remap",
        description="Replace labels by class indices 0..K-1 in CSV, JSON Lines, Parquet, Arrow, npy, COCO, YOLO, mask PNGs and "
        "Hugging Face folders. Everything else in the files stays as it is. Several inputs (splits, shards) share one map.",
        epilog="The map is saved (and kept inside Parquet, Arrow and Hugging Face outputs): --inverse undoes everything.",
    )
    made.add_argument("inputs", nargs="+", metavar="INPUT", help="files or folders; a pattern is expanded")
    made.add_argument("-o", "--output", metavar="OUT", help="file to write; a folder for several inputs. Never overwrites")
    made.add_argument("--column", help="column or key of the label; a dotted path for nested ones (objects.category)")
    made.add_argument("--map", metavar="FILE", help="label map: used if it exists, else fitted over all inputs and written there")
    made.add_argument("--in-place", action="store_true", help="replace the inputs; what was there is kept as NAME.bak")
    made.add_argument("--inverse", action="store_true", help="indices back to labels")
    made.add_argument("--dry-run", action="store_true", help="write nothing; print old -> new and how often")
    orders = [choice for choice in CHOICES["order"] if choice != "given"]
    made.add_argument("--order", choices=orders, help="numbering of the classes; default: natural (10 after 2)")
    made.add_argument("--classes", metavar="FILE", help="the classes, one a line, in order")
    made.add_argument("--unknown", choices=CHOICES["unknown"], help="labels not in the map; default: error")
    made.add_argument("--missing", choices=CHOICES["missing"], help="empty, null, NaN; default: error")
    made.add_argument("--ignore-index", type=int, metavar="N", help="no label, stays as it is; default: -100")
    made.add_argument("--used-only", action="store_true", help="number the classes that occur, not all that are declared")
    made.add_argument("--delimiter", metavar="C", help="of a CSV file; default: found in the header")
    made.add_argument("--encoding", help="of a text file; default: UTF-8, or what a byte order mark says")
    made.add_argument("--comment", metavar="C", help="CSV: lines that begin with C are copied, not read")
    made.add_argument("--no-header", action="store_true", help="CSV without column names; --column is a number from 1")
    made.add_argument("--link", action="store_true", help="folders: hard links for files that do not change, no copies")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse_args(argv)
    job = _job(arguments)
    try:
        with _progress(job, arguments) as advance:
            job.options.advance = advance
            result = run(job)
    except OSError as error:
        raise UsageError(clean(str(error))) from error
    except UnseenLabels as error:
        return _report_unseen(error, job, arguments)
    print(_as_json(result, job) if arguments.json else clean(_as_text(result, job)))
    return EXIT_CLEAN


def _job(arguments: argparse.Namespace) -> Job:
    choices = ("order", "unknown", "missing", "ignore_index")
    parameters: dict[str, Any] = {name: value for name in choices if (value := getattr(arguments, name)) is not None}
    if arguments.classes is not None:
        if "order" in parameters:
            raise UsageError("--classes gives the order; leave --order out")
        parameters.update(order="given", classes=_classes(Path(arguments.classes)))
    if arguments.comment is not None and (len(arguments.comment) != 1 or not arguments.comment.isascii()):
        raise UsageError(f"--comment must be one ASCII character, not {arguments.comment!r}")
    return Job(
        inputs=_expand(arguments.inputs),
        # A trailing slash says "into this folder"; pathlib would forget it.
        output=None if arguments.output is None else Path(arguments.output),
        into_folder=_means_folder(arguments.output, arguments.inputs),
        map_path=None if arguments.map is None else Path(arguments.map),
        in_place=arguments.in_place,
        inverse=arguments.inverse,
        dry_run=arguments.dry_run,
        parameters=parameters,
        options=Options(
            column=arguments.column,
            delimiter=arguments.delimiter,
            encoding=arguments.encoding,
            comment=arguments.comment,
            header=not arguments.no_header,
            used_only=arguments.used_only,
            link=arguments.link,
        ),
    )


def _means_folder(output: str | None, inputs: Sequence[str]) -> bool:
    return bool(output and output.endswith(("/", os.sep))) or any(shards(Path(path)) for path in inputs)


def _expand(patterns: Sequence[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        if not os.path.lexists(pattern) and glob.has_magic(pattern):
            found = sorted(glob.glob(pattern, recursive=True))
            if not found:
                raise UsageError(f"nothing matches {pattern}")
            paths += map(Path, found)
        else:
            paths.append(Path(pattern))
    return [file for path in paths for file in shards(path) or [path]]


def _classes(path: Path) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--classes {path}: {error}") from error
    names = [line for line in lines if line.strip()]
    if not names:
        raise UsageError(f"--classes {path}: no classes in it")
    from preassert.remap.recode import whole_number

    numbers = [whole_number(name) for name in names]
    return list(names) if any(number is None for number in numbers) else list(numbers)


@contextmanager
def _progress(job: Job, arguments: argparse.Namespace) -> Iterator[Callable[[int], None]]:
    if arguments.quiet or arguments.json or not sys.stderr.isatty():
        yield lambda size_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("remap"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    # Inputs are read twice where a map has to be fitted first.
    passes = 1 if job.dry_run or (job.map_path and job.map_path.exists()) or job.inverse else 2
    total = passes * sum(_size_bytes(path) for path in job.inputs)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("remap", total=total)
        yield lambda size_bytes: bar.advance(task, size_bytes)


def _size_bytes(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return 0


def _report_unseen(error: UnseenLabels, job: Job, arguments: argparse.Namespace) -> int:
    if arguments.json:
        unseen = [{"label": entry.label, "count": entry.count, "where": list(entry.places)} for entry in error.unseen[:10]]
        answer = {
            "schema": SCHEMA,
            "error": str(error).splitlines()[0],
            "unseen": unseen,
            "unseen_labels": len(error.unseen),
        }
        print(json.dumps(answer))
    else:
        print(f"preassert remap: {clean(str(error))}", file=sys.stderr)
        if not job.inverse:
            print("  --unknown and --missing say what to do with them; nothing was written", file=sys.stderr)
    return EXIT_FINDINGS


def _as_json(result: Result, job: Job) -> str:
    from preassert.labels.mapfile import to_json

    answer = {
        "schema": SCHEMA,
        "dry_run": job.dry_run,
        "inverse": job.inverse,
        "map": to_json(result.labels),
        "map_file": None if result.map_path is None else str(result.map_path),
        "files": [
            {
                "input": str(entry.input),
                "output": None if entry.output is None else str(entry.output),
                "format": entry.format,
                "elements": entry.elements,
                "dropped": entry.dropped,
                "backup": None if entry.backup is None else str(entry.backup),
            }
            for entry in result.written
        ],
        "table": [{"old": old, "new": new, "count": count} for old, new, count in result.counts],
        "notes": result.notes,
    }
    return json.dumps(answer)


def _as_text(result: Result, job: Job) -> str:
    lines = [f"note: {clean_line(note)}" for note in result.notes]
    if job.dry_run:
        lines += _table(result)
    for entry in result.written:
        left_out = f", {entry.dropped:,} left out" if entry.dropped else ""
        where = "dry run, nothing written" if entry.output is None else f"-> {clean_line(str(entry.output))}"
        backup = f" (before: {clean_line(str(entry.backup))})" if entry.backup else ""
        lines.append(f"{clean_line(str(entry.input))} {where}: {entry.elements:,} labels{left_out}{backup}")
    lines.append(f"map of {result.labels.num_classes:,} classes {_map_story(result, job)}")
    return "\n".join(lines)


def _map_story(result: Result, job: Job) -> str:
    file = clean_line(str(result.map_path)) if result.map_path else None
    if result.map_was_there:
        return f"used: {file}" if file else "used"
    if job.dry_run:
        return "fitted"
    return f"fitted, saved as {file}" if file else "fitted, kept inside the output"


def _table(result: Result) -> list[str]:
    names = dict(zip(result.labels.labels, result.labels.declared_names or (), strict=False))
    rows = [("old", "new", "count")]
    for old, new, count in result.counts[:TABLE_ROWS]:
        name = f" {clean_line(names[old], 40)}" if isinstance(old, (int, str)) and old in names else ""
        rows.append((("missing" if old is None else shown(old)) + name, "left out" if new is None else shown(new), f"{count:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{old:<{widths[0]}}  ->  {new:<{widths[1]}}  {count:>{widths[2]}}" for old, new, count in rows]
    if len(result.counts) > TABLE_ROWS:
        lines.append(f"... and {len(result.counts) - TABLE_ROWS:,} more (--json has all)")
    return lines
