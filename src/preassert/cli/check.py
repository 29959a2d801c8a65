"""``preassert check``: does this data fit this model?"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from preassert.errors import InputError, UsageError
from preassert.model import EXIT_USAGE

if TYPE_CHECKING:
    from preassert.data.rules import Report, Rule

_EPILOG = """\
what TARGET may be (told by its name and content; --as overrides):
  tables       Parquet, CSV/TSV, JSON Lines/JSON, Arrow/Feather, npy/npz, .pt, safetensors, token files (.bin), WebDataset (.tar),
               folders saved by `datasets`; .gz .zst .bz2 .xz; folders and globs of shards; s3:// gs://
  label files  COCO JSON, YOLO data.yaml, Pascal VOC, ImageFolder, segmentation masks
  checkpoints  a folder with config.json, tokenizer and weights; --data ties a data set to it

examples:
  preassert check train.parquet --column label --classes 10
  preassert check 'shards/*.jsonl' --column input_ids --classes 50257
  preassert check masks/ --classes 21 --ignore-index 255
  preassert check instances_train.json --classes 80
  preassert check ./checkpoint --data train.jsonl
  preassert check --model train.py:model --data train.py:loader --contract contract.json
  preassert check --contract contract.json --data train.py:loader

exit codes: 0 clean, 1 findings (see --fail-on), 2 usage, 3 a missing extra
Options may stand in pyproject.toml under [tool.preassert]: paths, column, classes, min, max, ignore-index, fail-on, dtype, as.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="preassert check",
        description="Does this data fit this model? No GPU needed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    out.add_argument("target", nargs="*", metavar="TARGET", help="files, folders, globs")
    what = out.add_argument_group("what is legal")
    what.add_argument("--column", action="append", metavar="NAME", help="column, array or tensor to check; repeatable")
    what.add_argument("--classes", metavar="N|FILE", help="legal ids are 0..N-1, or the names in FILE (one a line, JSON, YAML)")
    what.add_argument("--min", type=int, metavar="N", help="lowest legal id (included)")
    what.add_argument("--max", type=int, metavar="N", help="highest legal id (included)")
    what.add_argument("--ignore-index", action="append", type=int, metavar="N", help="legal besides; repeatable (default: -100)")
    what.add_argument("--max-length", type=int, metavar="N", help="most elements a list of one row may have (position table)")
    what.add_argument("--alphabet", metavar="FILE|CHARS", help="legal characters of a transcript (CTC)")
    what.add_argument("--unit-interval", action="store_true", help="the column holds probabilities: any number from 0 to 1")
    reading = out.add_argument_group("how it is read")
    reading.add_argument("--as", dest="kind", metavar="KIND", help="table, coco, imagefolder, masks, voc or yolo")
    reading.add_argument("--dtype", metavar="TYPE", help="element type of headerless .bin files (default: uint16)")
    reading.add_argument("--no-header", action="store_true", help="CSV files have no header; columns are 0, 1, ...")
    reading.add_argument(
        "--comment", metavar="C", help="lines of CSV files that begin with C are no rows (default: # where it begins no record)"
    )
    reading.add_argument("--histogram", action="store_true", help="count every class, also where statistics prove the file clean")
    model = out.add_argument_group("models")
    model.add_argument(
        "--data", action="append", metavar="PATH|MODULE:CALLABLE", help="data for a checkpoint or a model; repeatable"
    )
    model.add_argument("--model", metavar="MODULE:CALLABLE", help="learn what this model accepts, in one dry run")
    model.add_argument("--contract", metavar="FILE", help="write what --model accepts; without --model: hold --data against it")
    model.add_argument("--batches", type=int, metavar="N", help="check the first N batches of the data only")
    answer = out.add_argument_group("answer")
    answer.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    answer.add_argument("--sarif", metavar="FILE", help="write SARIF 2.1.0 ('-': standard output)")
    answer.add_argument("--html", metavar="FILE", help="write a page with histograms ('-': standard output)")
    answer.add_argument(
        "--fail-on", choices=("error", "warning", "info", "never"), help="what makes the exit code 1 (default: error)"
    )
    answer.add_argument("--quiet", action="store_true", help="no progress bar")
    return out


def main(argv: Sequence[str]) -> int:
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as leave:
        return EXIT_USAGE if leave.code else 0
    _fill_from_project(arguments)
    if not arguments.target and not arguments.model and not arguments.contract:
        raise UsageError("what is to be checked? Give files, folders or globs (see --help)")
    with _Progress(enabled=not arguments.quiet and not arguments.json and sys.stderr.isatty()) as progress:
        report = _run(arguments, progress)
    _answer(arguments, report)
    return report.exit_code(arguments.fail_on or "error")


def _run(arguments: argparse.Namespace, progress: _Progress) -> Report:
    from preassert.data.rules import Report
    from preassert.data.scan import Options
    from preassert.data.targets import check_targets

    if arguments.model or arguments.contract:
        if arguments.target:
            raise UsageError("--model and --contract take their data from --data module:callable, not from files")
        return _check_model(arguments)
    if arguments.batches:
        raise UsageError("--batches goes with --model or --contract")
    checkpoints = [target for target in arguments.target if _is_checkpoint(arguments, target)]
    others = [target for target in arguments.target if target not in checkpoints]
    if arguments.data and not checkpoints:
        raise UsageError("--data goes with a checkpoint folder or --model; name data files as targets")
    report = Report()
    if checkpoints:
        from preassert.data import checkpoints as checkpoint_room

        ignore = (-100,) if arguments.ignore_index is None else tuple(arguments.ignore_index)
        for target in checkpoints:
            report.extend(checkpoint_room.check(target, data=arguments.data or (), ignore=ignore))
    if others:
        options = Options(
            dtype=arguments.dtype,
            header=not arguments.no_header,
            comment=arguments.comment or None,
            histogram=True if arguments.histogram or arguments.html else None,
            progress=progress,
        )
        report.extend(check_targets(others, _rules(arguments), options, arguments.kind))
    return report


def _is_checkpoint(arguments: argparse.Namespace, target: str) -> bool:
    """A folder that looks like one, or that data is tied to; ``--column`` and ``--as`` ask for something else."""
    from preassert.data.targets import is_checkpoint

    if arguments.column or arguments.kind:
        return False
    return is_checkpoint(target) or (bool(arguments.data) and os.path.isdir(target))


def _check_model(arguments: argparse.Namespace) -> Report:
    import importlib

    learn = importlib.import_module("preassert.guard.learn")

    report: Report = learn.check_command(
        arguments.model, arguments.data or [], contract=arguments.contract, batches=arguments.batches
    )
    return report


def _rules(arguments: argparse.Namespace) -> list[Rule]:
    """One rule for each column asked for; one without a name when none is."""
    from preassert.data.classlist import read_alphabet, read_class_list
    from preassert.data.rules import Rule, hazard_of_column

    bounds: dict[str, Any] = {"lowest": arguments.min, "highest": arguments.max, "max_length": arguments.max_length}
    if arguments.ignore_index is not None:
        bounds["ignore"] = tuple(arguments.ignore_index)
    hazard: str | None = None
    stated = [name for name in ("classes", "alphabet", "unit_interval") if getattr(arguments, name)]
    if len(stated) > 1 or (stated and (arguments.min is not None or arguments.max is not None)):
        raise UsageError("give one of --classes, --min/--max, --alphabet, --unit-interval")
    if arguments.classes is not None:
        if _is_count(arguments.classes):
            bounds.update(lowest=0, highest=int(arguments.classes) - 1)
        else:
            bounds["names"] = read_class_list(_existing(arguments.classes, "--classes"))
    elif arguments.alphabet is not None:
        bounds["alphabet"] = read_alphabet(arguments.alphabet)
        hazard = "ctc-target-invalid"
    elif arguments.unit_interval:
        bounds.update(lowest=0, highest=1, real=True, ignore=tuple(arguments.ignore_index or ()))
        hazard = "probability-outside-unit-interval"
    if arguments.min is not None and arguments.max is not None and arguments.min > arguments.max:
        raise UsageError(f"--min {arguments.min} is above --max {arguments.max}")
    columns: list[str | None] = list(dict.fromkeys(arguments.column or [])) or [None]
    return [Rule(column=column, hazard=hazard or hazard_of_column(column), **bounds) for column in columns]


def _is_count(text: str) -> bool:
    if text.lstrip("-").isdecimal():  # a file of that name is ./N
        if int(text) < 1:
            raise UsageError(f"--classes {text}: at least one class is needed")
        return True
    return False


def _existing(path: str, option: str) -> str:
    if not os.path.isfile(path):
        raise UsageError(f"{option} {path}: neither a number nor a file")
    return path


def _fill_from_project(arguments: argparse.Namespace) -> None:
    """Take what the command line leaves open from ``[tool.preassert]`` of the nearest pyproject.toml."""
    stated = _project_options()
    if not arguments.target and not arguments.model and not arguments.contract:
        arguments.target = _strings(stated, "paths")
    if arguments.column is None and "column" in stated:
        arguments.column = _strings(stated, "column")
    ranged = (
        any(getattr(arguments, name) is not None for name in ("classes", "min", "max", "alphabet")) or arguments.unit_interval
    )
    if not ranged:
        arguments.classes = str(stated["classes"]) if "classes" in stated else None
        arguments.min, arguments.max = _whole(stated, "min"), _whole(stated, "max")
    if arguments.ignore_index is None and "ignore-index" in stated:
        value = stated["ignore-index"]
        arguments.ignore_index = value if isinstance(value, list) else [value]
        if not all(type(entry) is int for entry in arguments.ignore_index):
            raise UsageError(f"pyproject.toml: ignore-index = {value!r}: a whole number or a list of them is expected")
    for name, key in (("fail_on", "fail-on"), ("dtype", "dtype"), ("kind", "as")):
        if getattr(arguments, name) is None and key in stated:
            setattr(arguments, name, str(stated[key]))
    if arguments.fail_on not in (None, "error", "warning", "info", "never"):
        raise UsageError(f"pyproject.toml: fail-on = {arguments.fail_on!r}: error, warning, info or never is expected")


def _project_options() -> dict[str, Any]:
    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            break
    else:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), str(error)) from error
    tools = document.get("tool")
    options = tools.get("preassert") if isinstance(tools, dict) else None
    return options if isinstance(options, dict) else {}


def _strings(stated: dict[str, Any], key: str) -> list[str]:
    value = stated.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(entry, str) for entry in values):
        raise UsageError(f"pyproject.toml: {key} = {value!r}: text or a list of texts is expected")
    return list(values)


def _whole(stated: dict[str, Any], key: str) -> int | None:
    value = stated.get(key)
    if value is not None and type(value) is not int:
        raise UsageError(f"pyproject.toml: {key} = {value!r}: a whole number is expected")
    return value


def _answer(arguments: argparse.Namespace, report: Report) -> None:
    from preassert.report import findings as render

    if arguments.sarif:
        from preassert import __version__, hazards

        titles = {slug: entry["title"] for slug, entry in hazards.raw().items()}
        _write(arguments.sarif, render.to_sarif(report.findings, __version__, titles))
    if arguments.html:
        _write(arguments.html, render.to_html(report.findings, report.scanned))
    if arguments.json:
        print(render.to_json(report.findings, report.scanned))
    elif "-" not in (arguments.sarif, arguments.html):
        print(render.to_text(report.findings, report.scanned))


def _write(path: str, text: str) -> None:
    """Write a report: to a temporary file beside it first, so that a reader never sees half of it."""
    if path == "-":
        print(text)
        return
    import tempfile

    folder = os.path.dirname(os.path.abspath(path))
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as stream:
            temporary = stream.name
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class _Progress:
    """A bar on standard error, shown once a check takes longer than half a second; nothing when disabled."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._started_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._file: str | None = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, file: str, done: int, total: int | None) -> None:
        if not self._enabled or time.monotonic() - self._started_s < 0.5:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            shown = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*shown, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=total)
        from preassert.report.text import clean_line

        self._bar.update(self._task, description=clean_line(file, 40), completed=done, total=total)
