"""Whole trainings: the losses on the simulated device are those on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.set_num_threads(1)


def _same(train: Callable[[str], list[float]]) -> None:
    losses = {device: train(device) for device in ("cuda", "cpu")}
    assert losses["cuda"] == losses["cpu"]
    assert losses["cpu"][-1] != losses["cpu"][0]


def _digits(device: str) -> list[float]:
    from sklearn.datasets import load_digits
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target))
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses = []
    for _, (x, y) in zip(range(20), DataLoader(data, batch_size=64, shuffle=True, pin_memory=device == "cuda"), strict=False):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def _bert(device: str) -> list[float]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    model = BertForSequenceClassification(config).to(device)
    model.train()  # with dropout: the device's generator has the numbers of the CPU's
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(7)
    losses = []
    for _ in range(4):
        ids = torch.randint(0, 100, (8, 16), generator=data).to(device)
        labels = torch.randint(0, 3, (8,), generator=data).to(device)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.after(x))


class _Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, 32), nn.Embedding(32, 32)
        self.blocks = nn.Sequential(_Block(32, 4), _Block(32, 4))
        self.head = nn.Linear(32, 64)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), target.flatten())


def _gpt(device: str) -> list[float]:
    torch.manual_seed(0)
    model = _Gpt().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    text = torch.randint(0, 64, (4096,))
    losses = []
    with sdpa_kernel(SDPBackend.MATH):  # the simulated device takes this path; the CPU would take its own kernel
        for _ in range(6):
            batch = torch.stack([text[i : i + 33] for i in torch.randint(0, 4063, (8,))]).to(device)
            loss = model(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def check_digits() -> None:
    _same(_digits)


def check_bert() -> None:
    _same(_bert)


def check_gpt() -> None:
    _same(_gpt)
