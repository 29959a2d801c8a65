"""FSDP on two gloo ranks: the rank with the bad label names it and ends at once; the other does not hang."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

SCRIPT = """
    import torch, torch.distributed as dist, torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        ids, target = torch.randint(0, 11, (6,)), torch.randint(0, 5, (6,))
        if step == 2 and dist.get_rank() == 1:
            target[3] = 5
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), target)
        loss.backward()
        optimizer.step()
    print("finished")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.distributed, "is_available") or not torch.distributed.is_available(), reason="no torch.distributed"
)
@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_a_bad_label_on_one_rank(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP")
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("no fully_shard in this torch")
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("fully_shard of this torch cannot run on a CPU")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "preassert", "run", "--mode", mode, *launch],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    summary = done.stderr.partition("Root Cause (first observed failure):")[2]
    assert done.returncode == 65, done.stderr[-3000:]
    assert "rank      : 1 (local_rank: 1)" in summary
    assert "exitcode  : 65" in summary
    assert "target[3] = 5, valid 0..4" in summary
    assert "train.py:" in summary
    assert "finished" not in done.stdout
    assert time.monotonic() - began < 100  # a hang would last until gloo's own half hour
