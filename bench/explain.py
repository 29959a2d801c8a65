"""``preassert explain`` against ``grep -c`` on a large log, and against an empty interpreter on a small one.

    python bench/explain.py [--megabytes 1000] [--assertions 1000000]

Wall times are minima over a few runs; both sides of a ratio run in turn. On a busy machine the ratios are noisy.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SMALL = Path(__file__).resolve().parents[1] / "tests" / "cases" / "logs" / "078-masks-first-image.log"
ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [%d,0,0], thread: [%d,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.\n"
)
ENDING = (
    'Traceback (most recent call last):\n  File "/home/user/train.py", line 41, in <module>\n    main()\n'
    "RuntimeError: CUDA error: device-side assert triggered\n"
)


def write_log(path: Path, size_bytes: int, assertions: int, seed: int = 1) -> None:
    """A log of about ``size_bytes``: bursts of a hundred assertions among lines of an ordinary training, then a traceback."""
    rng = random.Random(seed)
    ordinary = [
        f"2025-03-02 09:{rng.randrange(60):02}:{rng.randrange(60):02} INFO  epoch {rng.randrange(99)} "
        f"step {rng.randrange(99999)} "
        f"loss {rng.random() * 3:.4f} lr 1.0e-04 grad_norm {rng.random():.3f} tokens/s {rng.randrange(99999)}\n".encode()
        for _ in range(5000)
    ]
    bursts = max(assertions // 100, 1)
    per_burst = max(size_bytes - assertions * 150, 0) // bursts
    number = 0
    with path.open("wb", buffering=1 << 20) as file:
        for _ in range(bursts):
            lines = []
            for _ in range(min(100, assertions - number)):
                lines.append((ASSERTION % (number // 128, number % 128)).encode())
                number += 1
            filled = 0
            while filled < per_burst:
                line = ordinary[rng.randrange(len(ordinary))]
                lines.append(line)
                filled += len(line)
            file.write(b"".join(lines))
        file.write(ENDING.encode())


def run(command: list[str]) -> tuple[float, float, str]:
    """(seconds, peak memory in MB, standard output) of a command. An installed package has its modules compiled: so has this."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # already waited for
        seconds = time.perf_counter() - start
        out.seek(0)
        return seconds, usage.ru_maxrss / 1024, out.read().decode()


def in_turn(ours: list[str], rival: list[str], times: int) -> tuple[float, float, float, str]:
    """Best seconds of both, peak memory and last output of ours."""
    best_ours = best_rival = float("inf")
    memory = 0.0
    output = ""
    for _ in range(times):
        seconds, peak, output = run(ours)
        best_ours, memory = min(best_ours, seconds), max(memory, peak)
        best_rival = min(best_rival, run(rival)[0])
    return best_ours, best_rival, memory, output


def measure(size_bytes: int = 1_000_000_000, assertions: int = 1_000_000) -> list[dict[str, Any]]:
    """The numbers of this bench: name, value, rival, ratio, goal. ``value`` and ``rival`` are seconds (MB for memory)."""
    explain = [sys.executable, "-m", "preassert", "explain"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "big.log"
        write_log(log, size_bytes, assertions)
        run(["grep", "-c", "Assertion", str(log)])  # both sides read from the page cache
        ours, grep, memory, output = in_turn([*explain, "--json", str(log)], ["grep", "-c", "Assertion", str(log)], 3)
    if f'"assert_lines": {assertions},' not in output:
        raise RuntimeError("the assertions were not counted right")
    small, empty, _, _ = in_turn([*explain, str(SMALL)], [sys.executable, "-c", "pass"], 15)
    size = f"{size_bytes / 1e9:g} GB log, {assertions:,} assertion lines"
    return [
        {"name": f"explain, {size}", "value": ours, "rival": grep, "ratio": ours / grep, "goal": "<= 2x grep -c Assertion"},
        {"name": f"explain, {size}: peak memory, MB", "value": memory, "rival": 200.0, "ratio": memory / 200, "goal": "< 200 MB"},
        {
            "name": "explain small.log, whole process",
            "value": small,
            "rival": empty,
            "ratio": small / empty,
            "goal": f"<= empty interpreter + 60 ms (is + {1000 * (small - empty):.0f} ms)",
        },
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="preassert explain against grep and an empty interpreter")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--assertions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    for row in measure(arguments.megabytes * 1_000_000, arguments.assertions):
        print(f"{row['name']}: {row['value']:.3f} against {row['rival']:.3f}, ratio {row['ratio']:.2f}; goal {row['goal']}")
    print(f"this process used at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
