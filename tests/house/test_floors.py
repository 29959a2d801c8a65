"""The house has floors: imports point down only, and rooms on one floor never import each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src" / "preassert"

FLOORS: dict[str, int] = {
    "__init__": 4, "__main__": 4, "cli": 4, "notebook": 4, "pytest_plugin": 4, "integrations": 4, "_bootstrap": 4,
    "guard": 3, "supervise": 3, "simgpu": 3, "remap": 3,
    "contracts": 2, "logs": 2, "data": 2, "labels": 2, "report": 2,
    "hazards": 1,
    "model": 0, "errors": 0, "lazy": 0,
}  # fmt: skip

# Doors may call each other (``__main__`` -> cli, cli.demo -> cli.run); the ground floor is one room.
ONE_ROOM_FLOORS = {0, 4}
# torch may be imported at module top here only.
TORCH_ROOMS = {"guard", "simgpu"}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(source: str) -> list[tuple[str, bool]]:
    """(dotted module, at module top?) for each import in the source; TYPE_CHECKING blocks are left out."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, top))
            if node.module == "preassert":
                found.extend((f"preassert.{alias.name}", top) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    visit(ast.parse(source), True)
    return found


def faults(room: str, source: str) -> list[str]:
    out = []
    for module, top in imports(source):
        parts = module.split(".")
        if parts[0] == "torch" and top and room not in TORCH_ROOMS:
            out.append(f"{room} imports torch at module top")
        if parts[0] != "preassert" or len(parts) < 2 or parts[1] not in FLOORS or parts[1] == room:
            continue
        here, there = FLOORS[room], FLOORS[parts[1]]
        if there > here or (there == here and here not in ONE_ROOM_FLOORS):
            out.append(f"{room} (floor {here}) imports {parts[1]} (floor {there})")
    return out


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    assert room in FLOORS, f"{room} has no floor: add it to FLOORS and to ARCHITECTURE.md"
    assert faults(room, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("data", "from preassert.guard import guard"),
        ("data", "def f():\n    from preassert import guard"),
        ("logs", "import preassert.data"),
        ("data", "import torch"),
        ("labels", "try:\n    from torch import nn\nexcept ImportError: pass"),
    ],
)
def test_the_check_can_fail(room: str, source: str) -> None:
    assert faults(room, source)


RATINGS = "CASES + '/data/001-csv-stars-one-to-five/ratings.csv'"

TORCH_FREE = {
    "import": "import preassert",
    "help": "from preassert.cli import main; main(['--help'])",
    "version": "from preassert.cli import main; main(['--version'])",
    "hazards": "from preassert.cli import main; main(['hazards'])",
    "hazard": "from preassert.cli import main; main(['hazards', 'target-out-of-range'])",
    "explain": "from preassert.cli import main; main(['explain', '--json', CASES + '/logs/042-position-ids-printed.log'])",
    "check": f"from preassert.cli import main; main(['check', {RATINGS}, '--column', 'stars', '--classes', '5'])",
    "remap": f"from preassert.cli import main; main(['remap', {RATINGS}, '--column', 'stars', '--dry-run'])",
    "labels": "from preassert import LabelMap; LabelMap().fit_transform(['b', 'a'])",
    "targets": "from preassert import safe_compute_loss_inputs; safe_compute_loss_inputs(3, [0, 1, 2])",
}


def loads_torch(code: str) -> bool:
    cases = str(Path(__file__).resolve().parents[1] / "cases")
    # The last line of stderr carries the answer, whatever the code printed.
    probe = f"import sys\nCASES = {cases!r}\n{code}\nprint('\\ntorch' if 'torch' in sys.modules else '\\nfree', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False)
    answer = done.stderr.strip().splitlines()[-1]
    assert answer in ("torch", "free"), done.stderr
    return answer == "torch"


@pytest.mark.parametrize("code", TORCH_FREE.values(), ids=TORCH_FREE.keys())
def test_torch_is_not_imported(code: str) -> None:
    assert not loads_torch(code)


def test_the_torch_check_can_fail() -> None:
    assert loads_torch("from preassert import guard")


def test_public_names_stand_in_both_tables() -> None:
    import preassert

    assert sorted(preassert.__all__) == sorted(["__version__", *preassert._HOMES])
