"""A dead context in a real kernel, and the restart in place; the GPU is a simulated one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

PREPARE = """\
import preassert.simgpu; preassert.simgpu.activate(notice=False)
%load_ext preassert
import torch
import torch.nn.functional as F
"""

VARIABLES = """\
from collections import namedtuple
from dataclasses import dataclass
import numpy as np

Pair = namedtuple("Pair", "left right")
double = lambda x: 2 * x

@dataclass
class Settings:
    rate: float = 0.1

class Net(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.layer = torch.nn.Linear(2, 3)

def train(net, settings=Settings()):
    return net.settings.rate

settings = Settings(0.5)
net = Net(settings)
opt = torch.optim.Adam(net.parameters())
net.layer(torch.ones(2)).sum().backward(); opt.step()
pair = Pair(1, 2)
history = [1, 2, 3]
results = {"history": history, "scores": np.arange(5)}
alias = train
_private = 1
stream = (line for line in "abc")
on_gpu = torch.ones(2, device="cuda")
nested = {"deep": [on_gpu]}
remote = torch.nn.Linear(2, 2).cuda()
weights_before = net.layer.weight.detach().clone()
remote_before = remote.weight.detach().cpu()
"""

DIE = """\
ids = torch.tensor([1, 9], device="cuda")
rows = F.embedding(ids, torch.ones(4, 2, device="cuda"))
rows.sum().item()
"""


DEAD_CELL = 5


def killed(kernel: Any) -> Any:
    """The outcome of the cell that kills the context of a prepared kernel."""
    for cell in (PREPARE, VARIABLES, "%preassert snapshot model=remote", "import preassert; preassert.uninstall()"):
        prepared = kernel.run(cell)
        assert prepared.status == "ok", prepared
    return kernel.run(DIE)


@pytest.fixture(scope="module")
def dead(start_kernel: Any) -> Any:
    """A kernel whose context is dead, and the outcome of the cell that did it."""
    kernel = start_kernel()
    return kernel, killed(kernel)


@dataclass
class Restart:
    """A kernel that has been restarted in place, and what its cells said meanwhile."""

    kernel: Any
    restart: Any
    late: Any
    first: Any
    second: Any
    pids: tuple[int, int]


@pytest.fixture(scope="module")
def restarted(start_kernel: Any) -> Restart:
    kernel = start_kernel()
    killed(kernel)
    pid, before = kernel.pid, kernel.session()
    restart = kernel.run("%preassert restart")
    late = kernel.run("print('too late')", 30)  # arrives before the process is replaced
    kernel.wait_restarted(before)
    first, second = kernel.run("net.settings.rate"), kernel.run("1")
    return Restart(kernel, restart, late, first, second, (pid, kernel.pid))


def test_the_cell_that_kills_the_context(dead: Any) -> None:
    _, done = dead
    assert (done.status, done.number) == ("error", DEAD_CELL)
    # the assertion line is in no exception: it came through file descriptor 2
    assert "embedding-index-out-of-range" in done.html
    assert "Assertion `srcIndex &lt; srcSelectDimSize` failed" in done.html
    assert f"dead since this cell [{DEAD_CELL}]" in done.html
    assert "%preassert restart" in done.html
    assert f"cell In[{DEAD_CELL}], line 3" in done.html
    assert done.traceback == "embedding-index-out-of-range; see the card. %tb shows every frame."


@pytest.mark.parametrize(
    "cell",
    [
        "torch.ones(2, device='cuda').sum().item()",
        "try:\n    on_gpu.sum().item()\nexcept RuntimeError as error:\n    raise ValueError('epoch 2 failed') from error",
        "try:\n    on_gpu.sum().item()\nexcept RuntimeError:\n    {}['while handling it']",
    ],
)
def test_later_cells_say_at_once_that_it_is_dead(dead: Any, cell: str) -> None:
    done = dead[0].run(cell)
    assert f"The CUDA context is dead since cell [{DEAD_CELL}] (embedding-index-out-of-range)." in done.html
    assert "%preassert restart" in done.plain
    assert done.traceback.count("\n") == 0


def test_cells_on_the_cpu_go_on(dead: Any) -> None:
    assert dead[0].run("sum(history)").plain == "6"
    assert dead[0].run("1 / 0").shown == []


def test_status_says_so(dead: Any) -> None:
    assert f"dead since cell [{DEAD_CELL}]" in dead[0].run("%preassert status").plain


def test_what_cannot_be_saved_is_said_before_the_restart(restarted: Restart) -> None:
    assert restarted.restart.status == "ok"
    for words in (
        "lost on_gpu: it holds a tensor on the GPU, and the CUDA context is dead",
        "lost nested: it holds a tensor on the GPU",
        "lost stream: TypeError: cannot pickle",
    ):
        assert words in restarted.restart.plain


def test_a_cell_behind_the_restart_is_not_run(restarted: Restart) -> None:
    assert restarted.late.status == "error"
    assert "the kernel is restarting" in restarted.late.traceback
    assert restarted.late.stdout == ""


def test_the_first_cell_says_what_came_back(restarted: Restart) -> None:
    first = restarted.first
    assert first.number == 1
    assert first.shown[-1]["text/plain"] == "0.5"
    lines = {line.split(":")[0].strip(): line.split(": ")[-1].split(", ") for line in first.plain.splitlines() if ": " in line}
    assert {"settings", "net", "opt", "pair", "history", "results", "alias"} <= set(lines["restored variables"])
    assert set(lines["restored functions and classes"]) == {"Pair", "double", "Settings", "Net", "train"}
    assert lines["restored snapshot"] == ["model"]
    assert "lost remote: it holds a tensor on the GPU" in first.plain
    assert restarted.second.plain == "1"  # said once


def test_the_process_id_stays(restarted: Restart) -> None:
    assert restarted.pids[0] == restarted.pids[1]


@pytest.mark.parametrize(
    "expression",
    [
        "history == [1, 2, 3] and results['history'] is history and results['scores'].tolist() == [0, 1, 2, 3, 4]",
        "opt.param_groups[0]['params'][0] is net.layer.weight and len(opt.state) == 2",
        "torch.equal(net.layer.weight, weights_before)",
        "net.settings is settings and type(settings) is Settings",
        "alias is train and train(net) == 0.5 and double(4) == 8",
        "pair.left == 1 and type(pair) is Pair",
        "F is torch.nn.functional and np.__name__ == 'numpy'",
        "'_private' not in globals() and 'stream' not in globals()",
    ],
)
def test_what_is_restored(restarted: Restart, expression: str) -> None:
    assert restarted.kernel.run(expression).plain == "True"


def test_restored_functions_have_their_source(restarted: Restart) -> None:
    assert "return net.settings.rate" in restarted.kernel.run("import inspect; print(inspect.getsource(train))").stdout
    assert "return net.settings.rate" in restarted.kernel.run("train(None)").traceback


def test_the_new_process_is_guarded(restarted: Restart) -> None:
    assert "target[0] = 7" in restarted.kernel.run("F.cross_entropy(torch.zeros(1, 5), torch.tensor([7]))").html


def test_the_snapshot_is_loaded_into_a_rebuilt_model(restarted: Restart) -> None:
    missing = restarted.kernel.run("globals().pop('remote', None)\n%preassert snapshot load")
    assert "run the cell that builds remote first" in missing.stderr + missing.traceback
    done = restarted.kernel.run("remote = torch.nn.Linear(2, 2)\n%preassert snapshot load")
    assert "loaded the snapshot of cell [4] into remote" in done.stdout
    assert restarted.kernel.run("torch.equal(remote.weight, remote_before)").plain == "True"


def test_restart_again(restarted: Restart) -> None:
    """The command line does not grow, and what a child prints still arrives."""
    before = restarted.kernel.session()
    restarted.kernel.run("counted = [4]\n%preassert restart")
    restarted.kernel.wait_restarted(before)
    restarted.kernel.run("1")
    assert restarted.kernel.run("history, counted").plain == "([1, 2, 3], [4])"
    assert restarted.kernel.run("import sys; sum('extra_extensions' in word for word in sys.orig_argv)").plain == "1"
    assert restarted.kernel.run("import os; os.system('echo from a child >&2')").stderr.strip() == "from a child"
    assert restarted.kernel.run("train(net), type(net) is Net").plain == "(0.5, True)"


def test_the_new_process_can_be_interrupted(restarted: Restart) -> None:
    threading.Timer(1.0, restarted.kernel.manager.interrupt_kernel).start()
    done = restarted.kernel.run("import time; time.sleep(60)", 30)
    assert done.error["ename"] == "KeyboardInterrupt"


def test_save_and_restore_by_hand(restarted: Restart, tmp_path: Any) -> None:
    done = restarted.kernel.run(f"%preassert save {tmp_path / 'kept'}")
    assert f"%preassert restore {tmp_path / 'kept'}" in done.plain
    restarted.kernel.run("del history, net")
    assert "restored variables" in restarted.kernel.run(f"%preassert restore {tmp_path / 'kept'}").plain
    assert restarted.kernel.run("history, type(net) is Net").plain == "([1, 2, 3], True)"
