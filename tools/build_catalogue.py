"""Writes src/preassert/hazards/catalogue.json from src/preassert/hazards/kinds/*.toml.

    python tools/build_catalogue.py [--check]

``--check`` writes nothing and exits 1 when the file is stale; 2: a TOML file breaks the schema.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HAZARDS = Path(__file__).resolve().parents[1] / "src" / "preassert" / "hazards"
sys.path.insert(0, str(HAZARDS.parents[1]))  # runs from a clean checkout, without installing

from preassert.errors import InputError  # noqa: E402
from preassert.hazards.source import catalogue  # noqa: E402


def compiled(kinds: Path) -> str:
    """The text of ``catalogue.json``: the same for the same sources, on every machine."""
    return json.dumps(catalogue(kinds), ensure_ascii=False, separators=(",", ":")) + "\n"


def write(path: Path, text: str) -> None:
    """Replace ``path`` in one step, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile the hazard catalogue.")
    parser.add_argument("--check", action="store_true", help="only say whether catalogue.json is up to date")
    parser.add_argument("--kinds", type=Path, default=HAZARDS / "kinds", help="folder of the TOML files")
    parser.add_argument("--output", type=Path, default=HAZARDS / "catalogue.json", help="file to write")
    arguments = parser.parse_args(argv)
    try:
        text = compiled(arguments.kinds)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    current = arguments.output.read_text(encoding="utf-8") if arguments.output.is_file() else None
    if current == text:
        return 0
    if arguments.check:
        print(f"{arguments.output} is stale: run python tools/build_catalogue.py", file=sys.stderr)
        return 1
    write(arguments.output, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
