"""``preassert explain``: what a log, traceback or notebook output means, and what to fix."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from preassert import logs
from preassert.errors import UsageError
from preassert.model import EXIT_CLEAN, EXIT_FINDINGS

SUMMARY = "what a log, traceback or notebook output means, and what to fix"

WIDEST = 110  # longer lines of prose are hard to read

_EPILOG = """\
Several files (one of each rank) are one story: the first failure of all is the cause.
Reads .gz, .xz, .bz2 and .zst, UTF-16, notebooks and JSON records. Without FILE, or with -, standard input.

  python train.py 2>&1 | preassert explain
  preassert explain train.log
  preassert explain logs/rank_*.log --json

exit code: 0 nothing of the catalogue failed (clean or unknown), 1 a diagnosis, 2 usage, 3 a missing extra
"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="preassert explain",
        description="What a log, traceback or notebook output means, and what to fix.",
        epilog=_EPILOG,
        # with a width, argparse need not import shutil to ask for the terminal's
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=WIDEST),
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="log files, patterns, folders, notebooks; - is standard input")
    parser.add_argument("--json", action="store_true", help="print JSON (schema preassert.explain/1)")
    parser.add_argument("--html", metavar="OUT", help="write one self-contained HTML page to OUT")
    parser.add_argument("--github", action="store_true", help="print GitHub annotations")
    parser.add_argument("--shape", metavar="N,M", help="shape of the offending argument: turns positions into coordinates")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all echoes and ranks")
    arguments = parser.parse_args(argv)
    shape = _shape(arguments.shape) if arguments.shape else None
    if not arguments.files and sys.stdin.isatty():
        raise UsageError("name a log file, or pipe one in: python train.py 2>&1 | preassert explain")
    report = logs.explain_files(logs.expand(arguments.files or ["-"]), shape=shape).to_dict()
    if arguments.html:
        _write_html(report, arguments.html)
    if arguments.json:
        # ASCII only: a control character or a lone surrogate of the log stays an escape
        print(json.dumps(report, indent=2, ensure_ascii=True))
    elif arguments.github:
        from preassert.report.diagnosis import to_github

        annotation = to_github(report)
        if annotation:
            print(annotation)
    elif not arguments.html:
        from preassert.report.diagnosis import to_text

        _print(to_text(report, verbose=arguments.verbose, width=_width(), bold=_bold if _colours() else str))
    ours = report["verdict"] not in (logs.CLEAN, logs.UNKNOWN) or report["restart_required"]
    return EXIT_FINDINGS if ours else EXIT_CLEAN


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").strip("[]() ").removesuffix(",").split(","))
    except ValueError:
        shape = ()
    if not shape or any(size < 1 for size in shape):
        raise UsageError(f"--shape needs positive sizes such as 8,512, not {text!r}")
    return shape


def _write_html(report: dict[str, Any], path: str) -> None:
    from preassert.report.diagnosis import to_html

    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(to_html(report))
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return WIDEST
    return max(60, min(WIDEST, columns))


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"
