"""Write docs/operators.md: every guarded operator with what it demands, from the contract table itself.

python tools/build_operators.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from preassert.contracts.table import FAMILIES
from preassert.contracts.unguarded import UNGUARDED

OUT = Path(__file__).resolve().parent.parent / "docs" / "operators.md"


def page() -> str:
    lines = [
        "# Guarded operators",
        "",
        "Written by `tools/build_operators.py` from the contract table.",
        "`skip=` of the guard and `--ignore-operator` take the names without overload.",
        "",
    ]
    for family, rows in sorted(FAMILIES.items()):
        lines += [f"## {family}", "", "| operator | as written | arguments | hazard | |", "|---|---|---|---|---|"]
        for row in sorted(rows, key=lambda row: row.operator):
            arguments = ", ".join(f"`{domain.argument}`" for domain in row.domains)
            notes = [word for word, holds in (("backward", row.backward), ("composition", row.level == "composite")) if holds]
            if row.cpu_silent:
                notes.append(f"CPU: {row.cpu_silent}")
            lines.append(f"| `{row.operator}` | {row.call} | {arguments} | {row.hazard} | {'; '.join(notes)} |")
        lines.append("")
    lines += ["## Not guarded, and why", "", "| operator | reason |", "|---|---|"]
    lines += [f"| `{operator}` | {reason} |" for operator, reason in sorted(UNGUARDED.items())]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        stale = not OUT.exists() or OUT.read_text(encoding="utf-8") != text
        if stale:
            print("docs/operators.md is stale: python tools/build_operators.py", file=sys.stderr)
        return int(stale)
    part = OUT.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
