"""The story that preassert is for, told on the simulated device from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from preassert.logs import explain_text

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = """\
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Linear(4, 5).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x, y):
    loss = F.cross_entropy(model(x), y)  # the fault
    optimizer.zero_grad()
    loss.backward()
    return loss

for batch in range(4):
    x, y = torch.randn(64, 4), torch.arange(64) % 5
    if batch == 2:
        y[7], y[40] = 5, 9
    try:
        loss = step(x.cuda(), y.cuda())
        optimizer.step()
        print("batch", batch, loss.item())  # the line that is blamed
    except RuntimeError as error:
        import traceback
        print(type(error).__name__, traceback.extract_tb(error.__traceback__)[0].lineno)
        print(str(error).splitlines()[0])
try:
    print("alive", torch.ones(2, device="cuda").sum().item())
except RuntimeError as error:
    print("dead", type(error).__name__)
"""
FAULT_LINE = SCRIPT.splitlines().index("    loss = F.cross_entropy(model(x), y)  # the fault") + 1
BLAMED_LINE = next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if "blamed" in line)
ACTIVATE = "import preassert.simgpu; preassert.simgpu.activate()\n"


def traceback_line(stdout: str) -> int:
    """Line of train.py in the first printed failure."""
    return int(next(line for line in stdout.splitlines() if line.startswith("AcceleratorError")).split()[1])


@pytest.fixture(scope="module")
def frames() -> str:
    """The script with the innermost frame of train.py printed."""
    return SCRIPT.replace(
        "traceback.extract_tb(error.__traceback__)[0].lineno",
        "[f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith('train.py')][-1]",
    )


def start(run: Run, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(f"{ACTIVATE}exec(compile({script!r}, 'train.py', 'exec'))", **environment)


def test_without_help_a_later_line_is_blamed_and_the_context_is_dead(run: Run, frames: str) -> None:
    done = start(run, frames)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["batch", "batch"]
    assert traceback_line(done.stdout) == BLAMED_LINE
    assert "CUDA error: device-side assert triggered" in lines
    assert lines[-1] == "dead AcceleratorError"
    assert lines.count("CUDA error: device-side assert triggered") == 2  # batch 3 fails as well, though its data is right

    report = explain_text(done.stderr).to_dict()
    assert report["verdict"] == "target-out-of-range"
    assert report["restart_required"] is True
    cause = next(d for d in report["diagnoses"] if d["role"] == "cause")
    assert cause["count"] == 2
    assert any("7" in element for element in cause["elements"]), cause
    assert any("40" in element or "8" in element for element in cause["elements"]), cause  # 32 threads: row 40 is thread 8
    assert "preassert simulated GPU" in done.stderr


def test_launch_blocking_gives_the_line_but_no_value(run: Run, frames: str) -> None:
    done = start(run, frames, CUDA_LAUNCH_BLOCKING="1")
    assert traceback_line(done.stdout) == FAULT_LINE
    assert done.stdout.splitlines()[-1] == "dead AcceleratorError"


GUARDED = """\
import json, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
import preassert, preassert.simgpu as simgpu
simgpu.activate()

class Data(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, i):
        return torch.full((4,), i / 256), {140: 5, 150: -3}.get(i, i % 5)

def train(mode):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 5).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, violation, waits = [], None, []
    with (preassert.guard(mode=mode) if mode else __import__("contextlib").nullcontext()):
        for x, y in DataLoader(Data(), batch_size=32, pin_memory=True):
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            before = simgpu.synchronizations()
            try:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                waits.append(simgpu.synchronizations() - before)
                optimizer.step()
            except preassert.Violation as error:
                violation = error.to_dict()
                continue
            losses.append(loss.detach())
    return {"losses": [l.item() for l in losses], "violation": violation, "waits": waits}

result = {mode: train(mode) for mode in ("deferred", "immediate")}
result["alive"] = torch.ones(3, device="cuda").sum().item()
try:
    train(None)
    torch.cuda.synchronize()
except RuntimeError as error:
    result["unguarded"] = str(error).splitlines()[0]
print(json.dumps(result))
"""


def test_the_guard_names_line_value_and_sample_and_the_device_lives(run: Run) -> None:
    done = run(GUARDED)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    line = GUARDED.splitlines().index("                loss = F.cross_entropy(model(x), y)") + 1
    for mode in ("deferred", "immediate"):
        violation = result[mode]["violation"]
        assert violation["hazard"] == "target-out-of-range"
        assert violation["site"]["line"] == line
        assert [e["value"] for e in violation["elements"]] == [5, -3]
        assert [e["position"] for e in violation["elements"]] == [[12], [22]]
        assert violation["sample"]["indices"] == [140, 150]
        assert len(result[mode]["losses"]) == 7  # training went on without the bad batch
    assert set(result["deferred"]["waits"]) == {0}  # between two boundaries the host never waits
    assert max(result["immediate"]["waits"]) > 0
    assert result["deferred"]["losses"] == result["immediate"]["losses"]  # the bad batch was never applied
    assert result["alive"] == 3
    assert result["unguarded"] == "CUDA error: device-side assert triggered"


def test_run_simgpu_is_the_same_story_from_the_command_line(run: Run) -> None:
    raising = SCRIPT.replace("except RuntimeError as error:\n        import", "except KeyError as error:\n        import")
    done = run(raising, name="train.py", command=[sys.executable, "-m", "preassert", "run", "--simgpu", "SCRIPT"])
    assert done.returncode == 65, done.stderr
    assert f"train.py:{FAULT_LINE} in step" in done.stderr
    assert "target[7] = 5, target[40] = 9, valid 0..4" in done.stderr
    assert "preassert simulated GPU" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["batch", "batch"]


DISTRIBUTED = """\
import os, torch, torch.distributed as dist
import preassert.simgpu; preassert.simgpu.activate(notice=False)
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(2):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * rank + i)).cuda()
    loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0]).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = torch.full((1,), float(rank + 1), device="cuda")
dist.all_reduce(total)
with open(f"rank{rank}", "w") as file:
    file.write(f"{total.item()} {total.device} {model.module.weight.sum().item()}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_train_together(run: Run, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(DISTRIBUTED, command=[*launcher, "SCRIPT"])
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = ((tmp_path / f"rank{rank}").read_text().split() for rank in range(2))
    assert first[:2] == ["3.0", "cuda:0"]
    assert second[:2] == ["3.0", "cuda:1"]
    assert first[2] == second[2]


def test_after_the_first_backward_it_is_too_late_and_says_so(run: Run) -> None:
    done = run("import torch; torch.ones(1, requires_grad=True).sum().backward()\n" + ACTIVATE)
    assert "must be activated before the first backward pass" in done.stderr


def test_an_assertion_that_nobody_waited_for_is_printed_at_the_end(run: Run) -> None:
    done = run(ACTIVATE + "import torch; torch.nn.functional.nll_loss(torch.zeros(2, 3).cuda(), torch.tensor([0, 3]).cuda())")
    assert done.returncode == 0
    assert "thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed." in done.stderr
