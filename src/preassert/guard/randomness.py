"""Random state, so that a skipped batch leaves no trace in it.

Under policy ``skip`` the state of the generators is kept when a DataLoader hands out a batch and put back when the step of
that batch is skipped: dropout and sampling then go on as if the batch had never been drawn. The loader's own draws
(shuffling, transforms in this process) came before and stay. Without a DataLoader nothing is kept and nothing put back.
"""

from __future__ import annotations

from typing import Any

import torch

from preassert.guard.state import STATE

_kept: list[Any] = []


def keep() -> None:
    """Remember the state of the CPU generator and of every initialised CUDA device's. Called when a batch is handed out."""
    options = STATE.options
    if options is None or options.policy != "skip":
        return
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    _kept[:] = [torch.random.get_rng_state(), cuda]


def rewind() -> None:
    """Put the remembered state back; does nothing when none was kept."""
    if not _kept:
        return
    torch.random.set_rng_state(_kept[0])
    if _kept[1] is not None:
        torch.cuda.set_rng_state_all(_kept[1])
