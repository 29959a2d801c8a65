"""The command line. Each command is one module; only the one that is called is imported.

A command module has ``SUMMARY`` (one line) and ``main(argv) -> int`` which parses its own arguments and returns the exit
code: 0 clean, 1 findings or a diagnosis, 2 usage, 3 a missing extra (DESIGN section 5).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from preassert.errors import InputError, MissingExtra, UsageError
from preassert.model import EXIT_MISSING_EXTRA, EXIT_USAGE

COMMANDS = {
    "check": "does this data fit this model? Labels, token ids, masks, checkpoints; no GPU needed",
    "run": "run a script; a bad value raises at its own line, before the kernel can assert",
    "explain": "what a log, traceback or notebook output means, and what to fix",
    "remap": "make labels 0..K-1, the same in every split, reversibly",
    "hazards": "list the kinds of fault, or explain one",
    "doctor": "is the guard active here, and does it fire?",
    "demo": "the whole story in a minute, on any machine",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "usage: preassert COMMAND [options]",
        "",
        "Prevents and explains `CUDA error: device-side assert triggered`.",
        "",
        "commands:",
        *(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()),
        "",
        "`preassert COMMAND --help` explains one; `preassert --version` prints the version.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``preassert`` and of ``python -m preassert``; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv:
        print(usage(), file=sys.stderr)
        return EXIT_USAGE
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        from preassert import __version__

        print(f"preassert {__version__}")
        return 0
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"preassert: no command {name!r}{hint}\n\n{usage()}", file=sys.stderr)
        return EXIT_USAGE
    import importlib

    command = importlib.import_module(f"preassert.cli.{name}")
    try:
        code: int = command.main(rest)
    except UsageError as error:
        print(f"preassert {name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except MissingExtra as error:
        print(f"preassert {name}: {error}", file=sys.stderr)
        return EXIT_MISSING_EXTRA
    except InputError as error:
        print(f"preassert {name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`): silence the interpreter's own complaint at exit
        return 141
    return code
