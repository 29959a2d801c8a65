"""`make bench`: every figure against its rival in the same run; writes bench/results.json.

    python bench/run.py [NAME ...]     # names of the modules beside this one; all without

Each module has `measure()`, a list of {"name", "value", "rival", "ratio", "goal"}. Nothing here fails when a goal is missed: the
figures say so.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODULES = ("overhead", "compiled", "explain", "check", "labels")
ONE = "--one"
LIBRARIES = ("torch", "numpy", "pandas", "pyarrow", "duckdb", "Pillow", "msgspec")


def machine() -> dict[str, Any]:
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor()
    )
    memory = next((int(line.split()[1]) // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), None)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "system": platform.platform(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for library in ("preassert", *LIBRARIES):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = "not installed"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {**found, "commit": commit or "unknown"}


def measure_here(name: str) -> int:
    """The other side: measure one module and print its figures as the last line."""
    sys.path.insert(0, str(HERE))
    print(json.dumps(importlib.import_module(name).measure()))
    return 0


def main(names: list[str]) -> int:
    if names[:1] == [ONE]:
        return measure_here(names[1])
    unknown = set(names) - set(MODULES)
    if unknown:
        print(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {
        "schema": "preassert.bench/1",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": versions(),
    }
    report["figures"] = {}
    for name in names or MODULES:
        print(f"{name}:", flush=True)
        # each in a process of its own: one module's memory and threads are not the next one's
        done = subprocess.run([sys.executable, __file__, ONE, name], stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        report["figures"][name] = figures
        for figure in figures:
            print("  " + text(figure), flush=True)
    if not names:
        write(HERE / "results.json", json.dumps(report, indent=2) + "\n")
        write(HERE.parent / "docs" / "overhead.md", page(report))
    return 0


def write(out: Path, content: str) -> None:
    part = out.with_suffix(".part")
    part.write_text(content, encoding="utf-8")
    part.replace(out)
    print(f"written: {out}")


def page(report: dict[str, Any]) -> str:
    """The figures of one run for people."""
    where, what = report["machine"], report["versions"]
    lines = [
        "# Figures of one run",
        "",
        f"Written by `make bench` on {report['date']}: {where['cpu']}, {where['cores']} cores,",
        f"load {where['load_before']:.1f} at the start; Python {what['python']}, torch {what['torch']}, commit {what['commit']}.",
        "Each figure stands against its rival in the same run;",
        "nothing is asserted. A shared machine is noisy: small ratios move by several percent from run to run.",
        "",
        "| work | figure | rival | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for figures in report["figures"].values():
        for figure in figures:
            cells = [figure["name"], *(_cell(figure.get(key)) for key in ("value", "rival", "ratio", "goal"))]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None or value == float("inf"):
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def text(figure: dict[str, Any]) -> str:
    value, rival, ratio = (
        f"{part:.4g}" if isinstance(part, float) else part for part in map(figure.get, ("value", "rival", "ratio"))
    )
    return f"{figure['name']}: {value} against {rival}: {ratio} (goal {figure['goal']})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
