"""Guarded cells in a real kernel; the GPU is a simulated one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).resolve().parents[1] / "cases"

BAD_TARGET = """\
def step(target):
    return F.cross_entropy(torch.zeros(4, 5), target)

step(torch.tensor([0, 1, 2, 5]))"""


@pytest.fixture(scope="module")
def kernel(start_kernel: Any) -> Any:
    kernel = start_kernel()
    prepared = kernel.run(
        "import preassert.simgpu; preassert.simgpu.activate(notice=False)\n"
        "import torch, torch.nn.functional as F\n"
        "get_ipython().run_line_magic('load_ext', 'preassert')"
    )
    assert prepared.status == "ok", prepared
    return kernel


def test_a_violation_is_a_card(kernel: Any) -> None:
    done = kernel.run(BAD_TARGET)
    assert done.status == "error"
    line = f"cell In[{done.number}], line 2"
    for words in (
        "target-out-of-range",
        "target[3] = 5",
        "0..4 or ignore_index=-100",
        line,
        "<details>",
    ):
        assert words in done.html
    assert f"{line} in step: return F.cross_entropy" in done.plain
    assert done.traceback == f"Violation: target-out-of-range ({line}); see the card. %tb shows every frame."
    assert done.error["ename"] == "Violation"  # what nbclient and CI read
    assert "target[3] = 5" in done.error["evalue"]


def test_tb_shows_every_frame(kernel: Any) -> None:
    kernel.run(BAD_TARGET)
    done = kernel.run("%tb")
    assert "---->" in done.traceback
    assert "step(torch.tensor([0, 1, 2, 5]))" in done.traceback
    assert done.shown == []


def test_the_same_exception_raised_again_by_a_later_cell_is_told_as_frames(kernel: Any) -> None:
    kernel.run("try:\n    step(torch.tensor([7, 0, 0, 0]))\nexcept Exception as error:\n    kept = error")
    assert "target[0] = 7" in kernel.run("raise kept").html
    assert "---->" in kernel.run("raise kept").traceback


def test_the_end_of_a_cell_is_a_boundary_of_the_deferred_mode(kernel: Any) -> None:
    done = kernel.run("w = torch.ones(4, 2, device='cuda')\nrows = F.embedding(torch.tensor([1, 9], device='cuda'), w)")
    assert done.status == "error"
    assert "input[1] = 9" in done.html
    assert kernel.run("w.sum().item()").status == "ok"  # the context lives


def test_a_recorded_violation_is_told_though_the_cell_fails_otherwise(kernel: Any) -> None:
    done = kernel.run("rows = F.embedding(torch.tensor([1, 9], device='cuda'), w)\n1 / 0")
    assert done.status == "error"
    assert "input[1] = 9" in done.html


def test_a_cell_that_awaits(kernel: Any) -> None:
    done = kernel.run("import asyncio\nawait asyncio.sleep(0)\nstep(torch.tensor([0, 1, 2, 6]))")
    assert "target[3] = 6" in done.html
    assert kernel.run("await asyncio.sleep(0, 'value')").plain == "'value'"


def test_raised_from_a_violation(kernel: Any) -> None:
    done = kernel.run(
        "try:\n    step(torch.tensor([7, 0, 0, 0]))\nexcept Exception as error:\n    raise KeyError('epoch 3') from error"
    )
    assert "target[0] = 7" in done.html


@pytest.mark.parametrize("code", ["1 / 0", "torch.ones(2) @ torch.ones(3)", "raise RuntimeError('CUDA is a nice word')", "def ("])
def test_other_errors_are_shown_as_always(kernel: Any, code: str) -> None:
    done = kernel.run(code)
    assert done.status == "error"
    assert done.shown == []
    assert "see the card" not in done.traceback


def test_an_error_with_a_violation_only_behind_it_is_its_own(kernel: Any) -> None:
    done = kernel.run("try:\n    step(torch.tensor([7, 0, 0, 0]))\nexcept Exception:\n    {}['missing']")
    assert done.error["ename"] == "KeyError"
    assert done.shown == []


def test_text_of_the_user_is_escaped(kernel: Any) -> None:
    done = kernel.run("step(torch.tensor([9, 0, 0, 0]))  # <script>alert('x')</script> & <img src=x>")
    assert "alert" in done.html  # in the folded frames
    assert "<script" not in done.html
    assert "<img" not in done.html


def test_out_of_memory_is_explained_and_not_a_death(kernel: Any) -> None:
    done = kernel.run(
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB')"
    )
    assert "out-of-memory" in done.html
    assert "%preassert restart" not in done.html


def test_cell_magic_guards_with_its_own_settings(kernel: Any) -> None:
    done = kernel.run("%%preassert --policy warn\nstep(torch.tensor([0, 1, 2, 5]))\nafter = 1")
    assert done.status == "ok"
    assert "target-out-of-range" in done.stderr
    assert kernel.run("after").plain == "1"


def test_cell_magic_fails_with_one_card(kernel: Any) -> None:
    done = kernel.run("%%preassert --mode deferred\nloss = step(torch.tensor([0, 1, 2, 5]))\nreached = True")
    assert done.status == "error"
    assert done.html.count("Stopped before the kernel") == 1
    assert kernel.run("reached").plain == "True"  # deferred: raised at the end


def test_cell_magic_shows_the_last_value(kernel: Any) -> None:
    assert kernel.run("%%preassert\n1 + 1").plain == "2"


def test_explain_shows_the_last_error_again(kernel: Any) -> None:
    kernel.run(BAD_TARGET)
    kernel.run("1 + 1")
    assert "target[3] = 5" in kernel.run("%preassert explain").html


def test_explain_a_file(kernel: Any) -> None:
    done = kernel.run(f"%preassert explain {CASES / 'logs' / '042-position-ids-printed.log'}")
    assert "embedding-index-out-of-range" in done.html
    assert "embedding-index-out-of-range" in done.plain
    printed = kernel.run(f"%preassert explain --json {CASES / 'logs' / '042-position-ids-printed.log'}").stdout
    assert json.loads(printed)["schema"] == "preassert.explain/1"


def test_check_a_file(kernel: Any) -> None:
    ratings = CASES / "data" / "001-csv-stars-one-to-five" / "ratings.csv"
    done = kernel.run(f"%preassert check {ratings} --column stars --classes 5")
    assert done.status == "ok"
    assert "target-out-of-range" in done.stdout


def test_status(kernel: Any) -> None:
    done = kernel.run("%preassert status")
    assert "guard: on, mode auto" in done.plain
    assert "no cell has met a dead context" in done.plain


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%preassert expalin", "no such command: 'expalin'"),
        ("%preassert explain no-such.log", "no-such.log"),
        ("%preassert snapshot model=nothing", "there is no variable 'nothing'"),
        ("%preassert snapshot model=step", "a function has no state_dict()"),
        ("%preassert snapshot load", "no snapshot has been taken"),
        ("%preassert restore .", "cannot be read as saved variables"),
        ("%preassert restart now", "restart takes no arguments"),
        ("%%preassert --mode fast\n1", "fast"),
    ],
)
def test_usage_errors_are_one_line(kernel: Any, line: str, words: str) -> None:
    done = kernel.run(line)
    assert done.status == "error"
    shown = done.stderr + done.traceback
    assert words in shown
    assert "---->" not in shown


def test_unload_puts_everything_back(kernel: Any) -> None:
    kernel.run("%unload_ext preassert")
    try:
        done = kernel.run(BAD_TARGET)
        assert done.error["ename"] == "IndexError"  # the CPU's own
        assert "---->" in done.traceback
        assert done.shown == []
        assert kernel.run("%preassert status").status == "error"
    finally:
        kernel.run("%load_ext preassert")
    assert "target[3] = 5" in kernel.run(BAD_TARGET).html
