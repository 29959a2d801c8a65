"""``preassert demo``: the whole story on a real data set, each step a command that the reader could type."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from preassert.cli.run import Options, child_environment
from preassert.errors import MissingExtra, UsageError
from preassert.lazy import need
from preassert.model import EXIT_CLEAN, EXIT_DATAERR, EXIT_FINDINGS
from preassert.report.text import clean

SUMMARY = "the whole story in a minute, on any machine"

INTRODUCTION = """\
A table of 1,797 handwritten digits (scikit-learn's) and a network with ten outputs.
In this table the digits are labelled 1..10. PyTorch wants 0..9."""

TRAIN = '''\
"""A classifier of handwritten digits: python train.py digits.csv"""

import csv
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10


def read(file):
    with open(file, newline="") as handle:
        rows = [[int(cell) for cell in row] for row in list(csv.reader(handle))[1:]]
    table = torch.tensor(rows)
    return TensorDataset(table[:, :-1] / 16, table[:, -1])


def train_step(model, criterion, optimizer, x, y):
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(read(sys.argv[1]), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        total = 0.0
        for x, y in loader:
            total += train_step(model, criterion, optimizer, x.to(device), y.to(device))
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True)
class Step:
    """One command of the story."""

    title: str
    command: tuple[str, ...]  # as the reader would type it
    codes: tuple[int, ...]  # exit codes with which the story goes on
    keep: str | None = None  # file in the demo's folder that its output goes to as well
    shown: int | None = None  # lines of its output; None: all
    simulated: bool = False  # on a machine without a GPU, ``cuda`` is simulated, and nothing is guarded


STEPS = (
    Step("1. Training as it is", ("python", "train.py", "digits.csv"), (1,), keep="train.log", simulated=True),
    Step("2. What does the log mean?", ("preassert", "explain", "train.log"), (EXIT_FINDINGS,), shown=17),
    Step(
        "3. Training under the guard: it stops before the kernel, at the line, with the value and the sample",
        ("preassert", "run", "train.py", "digits.csv"),
        (EXIT_DATAERR,),
    ),
    Step(
        "4. The same, seen in the data before any training",
        ("preassert", "check", "digits.csv", "--column", "label", "--classes", "10"),
        (EXIT_FINDINGS,),
    ),
    Step(
        "5. The fix",
        ("preassert", "remap", "digits.csv", "--column", "label", "-o", "fixed.csv", "--map", "labels.json"),
        (EXIT_CLEAN,),
    ),
    Step("6. Training again", ("preassert", "run", "train.py", "fixed.csv"), (EXIT_CLEAN,)),
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="preassert demo", description=f"{SUMMARY[0].upper()}{SUMMARY[1:]}.")
    parser.add_argument("--folder", metavar="DIR", help="keep the demo's files in DIR, which must not exist yet")
    arguments = parser.parse_args(argv)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", extra="torch", purpose="train the demo's model")
    with _folder(arguments.folder) as folder:
        _write_digits(folder / "digits.csv")
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        print(INTRODUCTION)
        for step in STEPS:
            code = _show(step, folder)
            if code not in step.codes:
                print(f"preassert demo: this step ended with {code}, not {step.codes[0]}; the story ends here", file=sys.stderr)
                return EXIT_FINDINGS
    return EXIT_CLEAN


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    if named is None:
        with tempfile.TemporaryDirectory(prefix="preassert-demo-") as made:
            yield Path(made)
        return
    folder = Path(named)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"--folder: {named} exists") from None
    yield folder


def _write_digits(file: Path) -> None:
    datasets = need("sklearn.datasets", extra="dev", purpose="load the demo's data set (scikit-learn's digits)")
    digits = datasets.load_digits()
    with file.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow([*(f"p{number}" for number in range(64)), "label"])
        for pixels, digit in zip(digits.data.astype(int).tolist(), digits.target.tolist(), strict=True):
            writer.writerow([*pixels, digit + 1])


def _show(step: Step, folder: Path) -> int:
    """Print the command, run it, and print what it prints, indented; returns its exit code."""
    print(f"\n{step.title}\n\n  $ {shlex.join(step.command)}", flush=True)
    done = subprocess.run(
        _real_command(step),
        cwd=folder,
        env=_environment(step),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if step.keep is not None:
        (folder / step.keep).write_text(done.stdout, encoding="utf-8")
    lines = clean(done.stdout).rstrip().splitlines()
    for line in lines[: step.shown]:
        print(f"  {line}".rstrip())
    if step.shown is not None and len(lines) > step.shown:
        print(f"  ... and {len(lines) - step.shown} lines on causes, fixes and how to confirm")
    return done.returncode


def _real_command(step: Step) -> list[str]:
    program, *arguments = step.command
    return [sys.executable, *arguments] if program == "python" else [sys.executable, "-m", program, *arguments]


def _environment(step: Step) -> dict[str, str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    if not step.simulated or not _can_simulate():
        return environment
    child = child_environment(Options(), environment)
    child["PREASSERT_RUN"] = json.dumps({"simgpu": True, "guard": None})
    return child


def _can_simulate() -> bool:
    """Simulate a GPU where there is none; asked in a process of its own, because this one stays free of torch."""
    probe = "import torch; print(not torch.cuda.is_available() and hasattr(torch.library, 'get_kernel'))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True" and os.name == "posix"
