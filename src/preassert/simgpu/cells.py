"""Recurrent cells: on an accelerator PyTorch calls fused kernels that the CPU does not have. Host versions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Maybe = torch.Tensor | None


def _with_bias(gates: torch.Tensor, bias: Maybe) -> torch.Tensor:
    return gates if bias is None else gates + bias


def lstm(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_thnn_fused_lstm_cell``: (hidden, cell, workspace); the workspace holds the activated gates."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_backward(
    grad_hy: Maybe, grad_cy: Maybe, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Maybe, Maybe, Maybe]:
    """``_thnn_fused_lstm_cell_backward_impl``: gradients of (gates, cx, bias)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    through = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(o)
    if grad_hy is not None:
        through = through + grad_hy * o * (1 - squashed * squashed)
        grad_o = grad_hy * squashed * o * (1 - o)
    gates = torch.cat([through * g * i * (1 - i), through * cx * f * (1 - f), through * i * (1 - g * g), grad_o], 1)
    return gates, through * f, gates.sum(0) if has_bias else None


def gru(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_thnn_fused_gru_cell``: (hidden, workspace); the workspace holds r, z, n, hx and the hidden part of n."""
    ir, iz, i_n = _with_bias(input_gates, input_bias).chunk(3, 1)
    hr, hz, h_n = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, h_n], 1)


def gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """``_thnn_fused_gru_cell_backward``: gradients of (input gates, hidden gates, hx, input bias, hidden bias)."""
    r, z, n, hx, h_n = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * h_n * r * (1 - r)
    of_input, of_hidden = torch.cat([grad_r, grad_z, grad_n], 1), torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * z, *biases


HOST_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_lstm_cell": lstm,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_backward,
    "aten::_thnn_fused_gru_cell": gru,
    "aten::_thnn_fused_gru_cell_backward": gru_backward,
}
