"""A check that fails, to show that failures arrive."""

import torch


def check_fails() -> None:
    assert torch.ones(1, device="cuda").item() == 2
