"""Losses. Source: aten/src/ATen/native/LossNLL.cpp, LossNLL2d.cpp, cuda/Loss.cu, cuda/NLLLoss2d.cu, MultiMarginLoss, LossCTC."""

from __future__ import annotations

from typing import Any

from preassert.contracts.domains import CtcTargets, Index, Interval, Lengths
from preassert.contracts.rows import Row, variants

TARGET = "target-out-of-range"
PROBABILITY = "probability-outside-unit-interval"
CTC = "ctc-target-invalid"


def _classes(scores: Any) -> int:
    """Classes of ``[C]`` or ``[N, C]`` scores."""
    return int(scores.size(-1)) if scores.dim() else 1


_NLL = Index("target", size=lambda self: _classes(self), legal=lambda ignore_index: ignore_index)
_NLL2D = Index("target", size=lambda self: int(self.size(1)), legal=lambda ignore_index: ignore_index)
_MARGIN = Index("target", size=lambda self: _classes(self))
# -1 ends the list of labels. The CPU holds what follows it to the range too; CUDA stops at any negative number.
_MULTILABEL = Index("target", size=lambda self: _classes(self), lowest=-1)
_CTC_LENGTHS = (
    Lengths("input_lengths", highest=lambda log_probs: int(log_probs.size(0)), like="targets"),
    Lengths(
        "target_lengths",
        highest=lambda targets: int(targets.size(1)) if targets.dim() == 2 else int(targets.numel()),
        like="targets",
    ),
)
_CTC_SILENT = "the CPU kernel reads past the row of log-probabilities: a number for a near label, SIGSEGV for a far one"

ROWS: tuple[Row, ...] = (
    *variants("nll_loss_forward nll_loss_forward.output", TARGET, _NLL, call="F.nll_loss"),
    *variants("nll_loss2d_forward nll_loss2d_forward.output", TARGET, _NLL2D, call="F.nll_loss"),
    *variants("nll_loss_backward nll_loss_backward.grad_input", TARGET, _NLL, call="backward of F.nll_loss", backward=True),
    *variants("nll_loss2d_backward nll_loss2d_backward.grad_input", TARGET, _NLL2D, call="backward of F.nll_loss", backward=True),
    *variants("multi_margin_loss multi_margin_loss.out", TARGET, _MARGIN, call="F.multi_margin_loss"),
    *variants(
        "multi_margin_loss_backward multi_margin_loss_backward.grad_input",
        TARGET,
        _MARGIN,
        call="backward of F.multi_margin_loss",
        backward=True,
    ),
    *variants(
        "multilabel_margin_loss_forward multilabel_margin_loss_forward.output",
        TARGET,
        _MULTILABEL,
        call="F.multilabel_margin_loss",
    ),
    *variants(
        "multilabel_margin_loss_backward multilabel_margin_loss_backward.grad_input",
        TARGET,
        _MULTILABEL,
        call="backward of F.multilabel_margin_loss",
        backward=True,
    ),
    *variants(
        "binary_cross_entropy binary_cross_entropy.out",
        PROBABILITY,
        Interval("self"),
        Interval("target"),
        call="F.binary_cross_entropy",
    ),
    *variants(
        "_ctc_loss",
        CTC,
        *_CTC_LENGTHS,
        CtcTargets(),
        call="F.ctc_loss",
        cpu_silent=_CTC_SILENT,
    ),
    *variants(
        "_ctc_loss.Tensor _cudnn_ctc_loss.Tensor",
        CTC,
        *_CTC_LENGTHS,
        CtcTargets(),
        call="F.ctc_loss",
        covers=True,
        cpu_silent=_CTC_SILENT,
        optional=True,
    ),
    Row("aten::_cudnn_ctc_loss", CTC, (*_CTC_LENGTHS, CtcTargets()), "F.ctc_loss", cpu_silent="CUDA only"),
    *variants(
        "_ctc_loss_backward _ctc_loss_backward.Tensor",
        CTC,
        CtcTargets(),
        call="backward of F.ctc_loss",
        backward=True,
        covers=True,
        cpu_silent=_CTC_SILENT,
        optional=True,
    ),
)
