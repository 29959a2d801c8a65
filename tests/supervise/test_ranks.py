"""torchrun below a supervisor: the rank that failed first is named, and the others do not linger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """\
import os, sys, threading, time
import torch, torch.distributed as dist
import torch.nn.functional as F

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")

def beat():
    while True:
        with open(f"beat{rank}.part", "w") as file:
            file.write(repr(time.time()))
        os.replace(f"beat{rank}.part", f"beat{rank}")
        time.sleep(0.1)

threading.Thread(target=beat, daemon=True).start()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 5))
for batch in range(3):
    target = torch.arange(8) % 5
    if rank == 2 and batch == 1:
        target[6] = 9
        open("fault", "w").write(repr(time.time()))
    F.cross_entropy(model(torch.randn(8, 4)), target).backward()  # the line
    dist.barrier()
"""
LINE = SCRIPT.splitlines().index("    F.cross_entropy(model(torch.randn(8, 4)), target).backward()  # the line") + 1


@pytest.mark.slow
def test_the_first_rank_to_fail_is_named_and_the_others_end(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "train.py"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PREASSERT_", "SLURM_", "RANK"))}
    done = subprocess.run(
        [sys.executable, "-m", "preassert", "run", "--supervise", "--restart", "2", "--report", "report", *launcher],
        cwd=tmp_path,
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    ended = time.time()
    assert done.returncode == 65, done.stderr
    told = done.stderr
    assert f"train.py:{LINE} in <module>" in told
    assert "target[6] = 9, valid 0..4" in told
    assert "preassert: rank 2 failed first; what other ranks print after it are echoes" in told
    assert "not restarted: target-out-of-range is a fault of the data" in told
    report = json.loads((tmp_path / "report" / "explain.json").read_text())
    assert report["supervised"]["rank"] == 2
    assert report["supervised"]["class"] == "target-out-of-range"
    fault = float((tmp_path / "fault").read_text())
    for rank in (0, 1, 3):
        assert float((tmp_path / f"beat{rank}").read_text()) - fault < 5, f"rank {rank} lived on"
    assert ended - fault < 60
