"""Pack the record of printed assertion lines into ``src/preassert/logs/printed_lines.json``.

    python tools/build_printed_lines.py [tests/logs/lines.jsonl]

Each line of the input is one assertion of one torch release: version, file, line, assertion, kernels, path_prefix.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src" / "preassert" / "logs" / "printed_lines.json"
SOURCE = ROOT / "tests" / "logs" / "lines.jsonl"


def pack(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Releases (oldest first), expressions and kernels by number; per file rows [line, expression, release bits, kernels]."""
    releases = sorted({record["version"] for record in records}, key=lambda version: [int(part) for part in version.split(".")])
    expressions = sorted({record["assertion"] for record in records})
    kernels = sorted({kernel for record in records for kernel in record["kernels"]})
    rows: dict[tuple[str, int, int, tuple[int, ...]], int] = {}
    for record in records:
        names = tuple(sorted(kernels.index(kernel) for kernel in record["kernels"]))
        key = (record["file"], record["line"], expressions.index(record["assertion"]), names)
        rows[key] = rows.get(key, 0) | 1 << releases.index(record["version"])
    files: dict[str, list[list[Any]]] = {}
    for (file, line, expression, names), mask in sorted(rows.items()):
        files.setdefault(file, []).append([line, expression, mask, list(names)])
    return {"releases": releases, "expressions": expressions, "kernels": kernels, "files": files}


def render(source: Path) -> str:
    records = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
    return json.dumps(pack(records), ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> int:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    TARGET.write_text(render(source), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
