"""A compiled training step under the guard against the same step compiled without it, on the CPU.

CPU time of one thread, fastest rounds, interleaved: wall time on a shared machine says more about its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import preassert

ROUNDS, STEPS = 15, 4


class SmallGPT(nn.Module):
    """4 layers, 256 wide, 4 heads, 8,192 tokens, 256 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8192, 256)
        self.positions = nn.Embedding(256, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 8192)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), target.flatten())


def stepper() -> Callable[[], None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = SmallGPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, fullgraph=True)
    ids = torch.randint(0, 8192, (2, 64))

    def step() -> None:
        optimizer.zero_grad()
        compiled(ids, ids.roll(-1, 1)).backward()
        optimizer.step()

    step()
    return step


def measure() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    plain = stepper()
    with preassert.guard(mode="immediate"):
        guarded = stepper()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    times: dict[str, list[float]] = {"plain": [], "guarded": []}
    for _ in range(ROUNDS):  # interleaved: a noisy machine disturbs both alike
        for name, step in (("plain", plain), ("guarded", guarded)):
            with preassert.guard(mode="immediate"):
                start = time.process_time()
                for _ in range(STEPS):
                    step()
                times[name].append((time.process_time() - start) / STEPS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "the guard made torch.compile compile again"
    best = {name: min(values) for name, values in times.items()}
    return [
        {
            "name": "compiled step of a small GPT, guarded",
            "value": f"{best['guarded'] * 1e3:.2f} ms",
            "rival": f"unguarded, {best['plain'] * 1e3:.2f} ms",
            "ratio": best["guarded"] / best["plain"],
            "goal": "<= 1.05",
        }
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)
