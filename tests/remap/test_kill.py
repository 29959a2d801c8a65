"""SIGKILL at 50 random points of three kinds of run: the input stays whole, and nothing half-written has a final name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# One process with everything imported, which forks a run and kills it: a fresh interpreter would spend its life importing.
DRIVER = r"""
import json, os, random, signal, sys, time
from pathlib import Path
from preassert.cli import main

root, kind, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def prepare(case):
    case.mkdir()
    if kind == "folder":
        for i in range(40):
            file = case / "d" / "labels" / f"{i}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{(i * 7 + j) % 30 * 3} 0.5 0.5 0.1 0.1\n" for j in range(200)))
        return case / "d", ["--in-place", "--quiet"]
    file = case / "d.csv"
    file.write_text("x,label\n" + "".join(f"{j},name{j % 97}\n" for j in range(60_000)))
    return file, (["--column", "label", "--quiet", *(["--in-place"] if kind == "in-place" else ["-o", str(case / "o.csv")])])

def content(path):
    if not path.exists():
        return None
    if path.is_dir():
        return {str(p.relative_to(path)): p.read_text() for p in sorted(path.rglob("*")) if p.is_file()}
    return path.read_text()

def fork(arguments):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(["remap", *arguments]))
    return child

source, options = prepare(root / "whole")
before = content(source)
start = time.perf_counter()
assert os.waitstatus_to_exitcode(os.waitpid(fork([str(source), *options]), 0)[1]) == 0
duration = time.perf_counter() - start
target = source if kind != "out" else root / "whole" / "o.csv"
after = content(target)
assert after != before
killed, broken, finished = 0, [], 0
random.seed(int(sys.argv[4]))
for i in range(kills):
    case = root / str(i)
    source, options = prepare(case)
    child = fork([str(source), *options])
    time.sleep(random.random() * duration)
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    here = content(source)
    if kind == "out":
        out = content(case / "o.csv")
        if here != before or out not in (None, after):
            broken.append(i)
        finished += out is not None
    else:
        backups = [content(p) for p in case.iterdir() if ".bak" in p.name and not p.name.startswith(".")]
        lost = here == after and not backups and kind != "folder"
        if here not in (before, after) or any(b != before for b in backups) or lost:
            broken.append(i)
        finished += here == after
    strange = [p.name for p in case.iterdir() if not (p.name.endswith(".preassert-tmp") or p.name in
        ("d", "d.csv", "o.csv", "d.bak", "d.csv.bak", "d.labelmap.json", "d.csv.labelmap.json", "o.csv.labelmap.json"))]
    if strange:
        broken.append((i, strange))
print(json.dumps({"killed": killed, "broken": broken, "finished": finished}))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
@pytest.mark.parametrize(("kind", "kills"), [("out", 20), ("in-place", 15), ("folder", 15)])
def test_a_killed_run_leaves_everything_whole(kind: str, kills: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), kind, str(kills), "7"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["broken"] == []
    assert result["killed"] >= kills // 2, result  # else the test proves little
