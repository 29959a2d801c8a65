"""What the guard costs: a training step, one tiny call, one million indices. CPU only.

Every figure is taken within one run: unguarded, guarded and rival take turns in short rounds, so that a noisy machine
disturbs all of them alike, and the fastest rounds are compared. One thread, and its CPU time instead of the clock on the
wall: other processes then count only by the caches that they take. The rival is a ``TorchDispatchMode`` that makes the same
checks. An override that does nothing is measured beside the tiny calls: that part of their cost is torch's.

Run: ``python bench/overhead.py``; ``measure()`` gives the same as data.
"""

from __future__ import annotations

import gc
import itertools
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert
from preassert.guard.fallback import ModeInstallation

_STEP_ROUNDS = 24
_CALL_ROUNDS = 40


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    def __init__(self, *, vocabulary: int = 2000, width: int = 128, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.blocks(self.token(ids) + self.position(place)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def small_resnet() -> nn.Module:
    """The 18 layers of ResNet-18 at a quarter of its width."""
    widths = [16, 16, 32, 64, 128]
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [Residual(before, after, 1 if number == 0 else 2), Residual(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def gpt_step() -> Callable[[], None]:
    model = SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 2000, (4, 64))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()

    return step


def resnet_step() -> Callable[[], None]:
    model = small_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, target = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), target).backward()
        optimizer.step()

    return step


# --- measuring


def seconds(work: Callable[[], Any], repeats: int) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        work()
    return (time.thread_time() - began) / repeats


def _plain(work: Callable[[], Any], repeats: int) -> float:
    return seconds(work, repeats)


def _guarded(mode: str) -> Callable[[Callable[[], Any], int], float]:
    def run(work: Callable[[], Any], repeats: int) -> float:
        with preassert.guard(mode=mode):
            work()
            return seconds(work, repeats)

    return run


def _dispatch_mode(work: Callable[[], Any], repeats: int) -> float:
    """The same contract table in a ``TorchDispatchMode``: what the guard is on torch without ``get_kernel``."""
    from preassert.guard.options import Options
    from preassert.guard.state import STATE

    options = Options(mode="immediate")
    modes = ModeInstallation()
    STATE.push(options)
    modes.install()
    try:
        work()
        return seconds(work, repeats)
    finally:
        modes.remove()
        STATE.remove(options)


def take_turns(
    work: Callable[[], Any], contenders: dict[str, Callable[[Callable[[], Any], int], float]], *, rounds: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of one call, per contender and round; the order changes from round to round."""
    work()
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    try:
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(contenders[name](work, repeats))
    finally:
        gc.enable()
    return times


def _ratio(of: list[float], to: list[float]) -> float:
    return min(of) / min(to)


def measure_step(name: str, step: Callable[[], None]) -> list[dict[str, Any]]:
    """A training step, immediate and deferred. The unguarded step runs a second time: its ratio to itself is the noise."""
    contenders = {
        "plain": _plain,
        "immediate": _guarded("immediate"),
        "again": _plain,
        "deferred": _guarded("deferred"),
        "mode": _dispatch_mode,
    }
    times = take_turns(step, contenders, rounds=_STEP_ROUNDS, repeats=4)
    rival, noise = _ratio(times["mode"], times["plain"]), _ratio(times["again"], times["plain"])
    return [
        {
            "name": f"training step, {name}, {mode}",
            "value": f"{min(times[mode]) * 1e3:.2f} ms",
            "rival": f"unguarded {min(times['plain']) * 1e3:.2f} ms, against itself {noise:.3f}x; dispatch mode {rival:.3f}x",
            "ratio": round(_ratio(times[mode], times["plain"]), 4),
            "goal": "<= 1.02x",
        }
        for mode in ("immediate", "deferred")
    ]


def _override_that_does_nothing(operator: str) -> Callable[[Callable[[], Any], int], float]:
    """What torch takes for a Python kernel that calls the one below it: the floor of this way of interception."""

    def run(work: Callable[[], Any], repeats: int) -> float:
        library = torch.library.Library("aten", "IMPL")
        below = torch.library.get_kernel(f"aten::{operator}", "CPU").call_boxed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(operator, lambda keyset, *args, **kwargs: below(keyset, *args, **kwargs), "CPU", with_keyset=True)
        try:
            work()
            return seconds(work, repeats)
        finally:
            library._destroy()

    return run


def measure_tiny() -> list[dict[str, Any]]:
    """One call on four indices. ``embedding`` calls ``index_select`` inside, and for ids of two dimensions reshapes twice."""
    ids, table, columns = torch.tensor([0, 3, 1, 2]), torch.randn(5, 8), torch.tensor([[0], [3], [1], [2]])
    square = ids.reshape(2, 2)
    rows = []
    for name, operator, call in (
        ("index_select", "index_select", lambda: table.index_select(0, ids)),
        ("embedding", "embedding", lambda: torch.embedding(table, ids)),
        ("embedding, 2-d", "embedding", lambda: torch.embedding(table, square)),
        ("tensor[index]", "index.Tensor", lambda: table[ids]),
        ("gather", "gather", lambda: table.gather(1, columns)),
    ):
        contenders = {
            "plain": _plain,
            "floor": _override_that_does_nothing(operator),
            "immediate": _guarded("immediate"),
            "deferred": _guarded("deferred"),
            "mode": _dispatch_mode,
        }
        with torch.no_grad():
            times = take_turns(call, contenders, rounds=_CALL_ROUNDS, repeats=400)
        fastest_us = {contender: min(values) * 1e6 for contender, values in times.items()}
        added_us = {contender: value - fastest_us["plain"] for contender, value in fastest_us.items()}
        rows += [
            {
                "name": f"tiny call of {name}, {mode}",
                "value": f"+{added_us[mode]:.2f} us",
                "rival": f"bare operator {fastest_us['plain']:.2f} us; override that does nothing +{added_us['floor']:.2f} us; "
                f"dispatch mode +{added_us['mode']:.2f} us",
                "ratio": round(fastest_us[mode] / fastest_us["plain"], 3),
                "goal": goal,
            }
            for mode, goal in (("immediate", "<= +4 us"), ("deferred", "<= +6 us"))
        ]
    return rows


def measure_large() -> list[dict[str, Any]]:
    """The check alone of one million indices (the guard's own code), against ``torch.aminmax`` on them."""
    from preassert.guard.check import index_holds

    ids = torch.randint(0, 50_000, (1_000_000,))
    contenders = {
        "aminmax": lambda _work, repeats: seconds(lambda: torch.aminmax(ids), repeats),
        "check": lambda _work, repeats: seconds(lambda: index_holds(ids, 0, 49_999, ()), repeats),
        "legal": lambda _work, repeats: seconds(lambda: index_holds(ids, 0, 49_999, (-100,)), repeats),
    }
    times = take_turns(lambda: None, contenders, rounds=_CALL_ROUNDS, repeats=4)
    return [
        {
            "name": f"1M indices{', with ignore_index' if name == 'legal' else ''}",
            "value": f"{min(times[name]) * 1e6:.0f} us",
            "rival": f"torch.aminmax {min(times['aminmax']) * 1e6:.0f} us",
            "ratio": round(_ratio(times[name], times["aminmax"]), 3),
            "goal": "<= 1.3x",
        }
        for name in ("check", "legal")
    ]


def measure() -> list[dict[str, Any]]:
    """All rows: ``name``, ``value``, ``rival``, ``ratio``, ``goal``. About half a minute on an idle core."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure_tiny() + measure_large()
        rows += measure_step("small GPT", gpt_step()) + measure_step("ResNet-18 of a quarter of the width", resnet_step())
    finally:
        torch.set_num_threads(threads)
    return rows


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
