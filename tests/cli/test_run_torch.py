"""``preassert run`` with torch: what ends a process, what reaches whom, and what changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

GUARDED = [sys.executable, "-m", "preassert", "run"]
BAD_LABEL = "F.cross_entropy(torch.zeros(4, 5), torch.tensor([0, 5, 1, 2]))"
HEAD = "import sys, torch\nimport torch.nn.functional as F\n"


def start(folder: Path, source: str, *options: str, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
    command = [*(GUARDED if prefix is None else prefix), *options, "script.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_a_violation_ends_the_process_with_65(tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    done = start(
        tmp_path,
        f"""
        import atexit
        atexit.register(print, "handlers ran")
        print("before")
        def step():
            return {BAD_LABEL}
        step()
        print("after")
        """,
        "--json",
        str(report),
    )
    assert done.returncode == 65
    assert done.stdout == "before\nhandlers ran\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    # the user's frames and torch's, none of ours
    assert [line.split('"')[1] for line in lines if line.startswith("  File ")][:2] == [str(tmp_path / "script.py")] * 2
    assert "preassert" + os.sep not in done.stderr
    assert "preassert.Violation: target-out-of-range" in lines
    assert any(line.strip().startswith("script.py:8 in step: return F.cross_entropy") for line in lines)
    violation = json.loads(report.read_text(encoding="utf-8"))
    assert violation["schema"] == "preassert.violation/1"
    assert violation["elements"] == [{"position": [1], "value": 5}]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".py") == ["violation.json"]


@pytest.mark.parametrize("hook", ["", "sys.excepthook = lambda kind, error, trace: print(kind.__name__, file=sys.stderr)"])
def test_a_violation_that_scripted_code_words_anew_ends_with_65(hook: str, tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    done = start(
        tmp_path,
        f"""
        @torch.jit.script
        def look(table, ids):
            return torch.embedding(table, ids)
        {hook}
        look(torch.zeros(3, 2), torch.tensor([0, 3]))
        """,
        "--json",
        str(report),
    )
    assert done.returncode == 65
    assert hook or "\npreassert.Violation: embedding-index-out-of-range\n" in done.stderr
    violation = json.loads(report.read_text(encoding="utf-8"))
    assert (violation["elements"], violation["site"]["line"]) == ([{"position": [1], "value": 3}], 8)


def test_what_the_script_deals_with_itself(tmp_path: Path) -> None:
    """A violation that is caught, or that ends a thread only, changes nothing; nor does the guard where nothing is wrong."""
    source = f"""
        import threading
        torch.manual_seed(1)
        try:
            {BAD_LABEL}
        except IndexError as error:
            print(isinstance(error, LookupError))
        print(torch.rand(2), F.cross_entropy(torch.ones(4, 5), torch.tensor([0, 4, 1, -100])))
        thread = threading.Thread(target=lambda: {BAD_LABEL})
        thread.start(); thread.join()
        print("main goes on")
        sys.exit(4)
    """
    plain, guarded = start(tmp_path, source, prefix=[sys.executable]), start(tmp_path, source)
    assert (guarded.returncode, guarded.stdout) == (plain.returncode, plain.stdout)
    assert guarded.returncode == 4
    assert "preassert.Violation: target-out-of-range" in guarded.stderr  # the thread's
    assert "preassert" + os.sep not in guarded.stderr


def test_errors_of_torch_show_no_frame_of_ours(tmp_path: Path) -> None:
    source = """
        def report(function):
            try:
                function()
            except Exception:
                sys.excepthook(*sys.exc_info())
        report(lambda: F.cross_entropy(torch.zeros(4, 5), torch.tensor([0, 4])))
        report(lambda: torch.gather(torch.zeros(2, 2), 3, torch.zeros(2, 2, dtype=torch.long)))
        report(lambda: F.embedding(torch.tensor([0.5]), torch.zeros(3, 2)))
        report(lambda: torch.zeros(2) @ torch.zeros(3))
        torch.zeros(3)[torch.tensor([0]), torch.tensor([0])]
    """
    plain, guarded = start(tmp_path, source, prefix=[sys.executable]), start(tmp_path, source)
    assert guarded.returncode == plain.returncode == 1
    assert guarded.stderr == plain.stderr
    assert plain.stderr.count("Traceback") == 5


HOOKS = {
    "replaced before torch": ("", "sys.excepthook = lambda *parts: print('mine', file=sys.stderr)"),
    "replaced after torch": ("sys.excepthook = lambda *parts: print('mine', file=sys.stderr)", ""),
}


@pytest.mark.parametrize(("after", "before"), HOOKS.values(), ids=HOOKS.keys())
def test_a_replaced_excepthook_is_called_and_the_code_is_still_65(after: str, before: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"import sys\n{before}\n{HEAD}{after}\nprint('out')\n{BAD_LABEL}\n", encoding="utf-8")
    done = subprocess.run([*GUARDED, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (65, "out\n", "mine\n")


def test_a_hook_that_calls_ours_does_its_work_to_the_end(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        f"""
        usual = sys.excepthook
        def hook(*parts):
            usual(*parts)
            print("saved")
        sys.excepthook = hook
        {BAD_LABEL}
        """,
    )
    assert (done.returncode, done.stdout) == (65, "saved\n")
    assert done.stderr.count("preassert.Violation: target-out-of-range") == 1


SURVIVORS = {
    "console": "import code; code.InteractiveConsole(globals()).push({BAD!r})",
    "handler": "try:\n    {BAD}\nexcept RuntimeError:\n    sys.excepthook(*sys.exc_info())",
    "thread": "import threading\ndef work():\n    try:\n        {BAD}\n"
    "    except RuntimeError:\n        sys.excepthook(*sys.exc_info())\n"
    "t = threading.Thread(target=work); t.start(); t.join()",
}


@pytest.mark.parametrize("source", SURVIVORS.values(), ids=SURVIVORS.keys())
def test_a_program_that_prints_a_violation_by_the_hook_goes_on(source: str, tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    done = start(tmp_path, source.format(BAD=BAD_LABEL) + "\nprint('goes on')", "--json", str(report))
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "preassert.Violation: target-out-of-range" in done.stderr
    assert not report.exists()  # it did not end the program


ENDS = {
    "the end of the script": "print('end')",
    "sys.exit": "print('end'); sys.exit(3)",
    "another error": "print('end'); raise KeyError('later')",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_what_is_pending_at_the_end_ends_with_65(end: str, tmp_path: Path) -> None:
    """Deferred: no boundary comes after the last lookup, and the report must not be all that is left of it."""
    report = tmp_path / "violation.json"
    source = f"""
        import atexit
        atexit.register(print, "handlers ran")
        torch.zeros(3, device="cuda").gather(0, torch.tensor([3], device="cuda"))
        {end}
    """
    done = start(tmp_path, source, "--simgpu", "--mode", "deferred", "--json", str(report))
    assert (done.returncode, done.stdout) == (65, "end\nhandlers ran\n")
    assert done.stderr.count("preassert.Violation: gather-index-out-of-range") == 1
    assert ("KeyError: 'later'" in done.stderr) == ("KeyError" in end)
    assert "preassert" + os.sep not in done.stderr
    violation = json.loads(report.read_text(encoding="utf-8"))
    assert (violation["mode"], violation["site"]["line"]) == ("deferred", 6)


def test_what_is_pending_at_the_end_of_a_child_ends_it_with_65(tmp_path: Path) -> None:
    source = """
        import torch.multiprocessing as mp
        def work(rank):
            torch.zeros(3, device="cuda").gather(0, torch.tensor([rank + 2], device="cuda"))
        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
    """
    done = start(tmp_path, source, "--simgpu", "--mode", "deferred")
    assert done.returncode == 65
    assert done.stderr.count("preassert.Violation: gather-index-out-of-range") == 1
    assert "terminated with exit code 65" in done.stderr


def test_a_lost_device_at_the_end_says_nothing_new(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        """
        import preassert.guard
        def flush():
            raise RuntimeError("CUDA error: device-side assert triggered")
        preassert.guard.flush = flush
        print("done")
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


CHILDREN = {
    "subprocess": """
        import subprocess
        if len(sys.argv) > 1:
            BAD
        sys.exit(subprocess.call([sys.executable, __file__, "child"]))
    """,
    "torch.multiprocessing.spawn": """
        import torch.multiprocessing
        def work(rank):
            if rank == 1:
                BAD
        if __name__ == "__main__":
            torch.multiprocessing.spawn(work, nprocs=2)
    """,
    "DataLoader worker": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i):
                if i == 5:
                    BAD
                return i
        if __name__ == "__main__":
            for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2): pass
    """,
}


@pytest.mark.parametrize("source", CHILDREN.values(), ids=CHILDREN.keys())
def test_children_are_guarded_and_their_violation_ends_the_run(source: str, tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    done = start(tmp_path, textwrap.dedent(source).replace("BAD", BAD_LABEL), "--json", str(report))
    assert "preassert.Violation: target-out-of-range" in done.stderr
    assert "target[1] = 5, valid 0..4" in done.stderr
    assert done.returncode == 65
    violation = json.loads(report.read_text(encoding="utf-8"))
    assert (violation["hazard"], violation["operator"]) == ("target-out-of-range", "aten::nll_loss_forward")
    assert violation["elements"] == [{"position": [1], "value": 5}]
    assert Path(violation["site"]["file"]).name == "script.py"


def test_processes_of_multiprocessing_are_guarded(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        f"""
        import multiprocessing
        def work():
            {BAD_LABEL}
        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                process = multiprocessing.get_context(method).Process(target=work)
                process.start(); process.join()
                print(method, process.exitcode)
        """,
    )
    # as python: the child's failure is the parent's business
    assert (done.returncode, done.stdout) == (0, "fork 1\nspawn 1\nforkserver 1\n")
    assert done.stderr.count("preassert.Violation: target-out-of-range") == 3


RANKED = """
    import os
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    def train():
        labels = torch.tensor([0, 5 if rank == 1 else 1, 1, 2])
        return F.cross_entropy(torch.zeros(4, 5), labels)
    train()
    dist.barrier()
"""


def test_torchrun_names_rank_line_and_value(tmp_path: Path) -> None:
    report = tmp_path / "violation.json"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0"]
    done = start(tmp_path, RANKED, "--json", str(report), *launcher)
    summary = done.stderr[done.stderr.index("Root Cause (first observed failure)") :]
    assert "rank      : 1 (local_rank: 1)" in summary
    assert "exitcode  : 65" in summary
    assert "target[1] = 5, valid 0..4" in summary
    assert "script.py:10 in train: return F.cross_entropy" in summary
    assert "rank: 1" in summary
    assert done.returncode == 65
    assert json.loads(report.read_text(encoding="utf-8"))["rank"] == 1


OPTIONS: dict[str, tuple[list[str], int]] = {
    "hazard left out": (["--ignore-hazard", "target-out-of-range"], 1),
    "operator left out": (["--ignore-operator", "nll_loss_forward"], 1),
    "sentinel": (["--sentinel", "5"], 1),
    "others": (["--ignore-operator", "aten::embedding", "--ignore-hazard", "ctc-target-invalid", "--sentinel", "6"], 65),
}


@pytest.mark.parametrize(("options", "code"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options(options: list[str], code: int, tmp_path: Path) -> None:
    done = start(tmp_path, BAD_LABEL, "--mode", "immediate", *options)
    assert done.returncode == code
    assert ("preassert.Violation" in done.stderr) == (code == 65)


def test_the_guard_is_there_as_soon_as_torch_is(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        """
        import preassert
        from preassert.guard import interception
        print(interception(), torch.__spec__.loader is torch.__loader__, type(torch.__loader__).__name__)
        print([finder for finder in sys.meta_path if "preassert" in type(finder).__module__])
        with preassert.guard(mode="immediate"):
            pass
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["[]"]
    assert done.stdout.split()[0] in ("kernels", "mode")
    assert done.stdout.split()[1:3] == ["True", "SourceFileLoader"]


def test_find_spec_does_not_import(tmp_path: Path) -> None:
    """transformers and others ask whether torch is there without importing it."""
    code = "import importlib.util, sys; spec = importlib.util.find_spec('torch')"
    code += "; print(spec.name, spec.loader.path[-11:], 'torch' in sys.modules)"
    done = subprocess.run([*GUARDED, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "torch __init__.py False\n"), done.stderr


def test_classes_of_main_cross_processes(tmp_path: Path) -> None:
    source = """
        class Box:
            def __init__(self, tensor): self.tensor = tensor
        def work(queue, box): queue.put(Box((box.tensor * 2).tolist()))
        if __name__ == "__main__":
            import torch.multiprocessing as mp
            context = mp.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, Box(torch.ones(2))))
            process.start(); print(queue.get().tensor); process.join()
    """
    plain, guarded = start(tmp_path, source, prefix=[sys.executable]), start(tmp_path, source)
    assert (guarded.returncode, guarded.stdout) == (plain.returncode, plain.stdout) == (0, "[2.0, 2.0]\n")
