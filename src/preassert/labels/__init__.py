"""Labels made right: :class:`LabelMap`, its file, and the check that a map and a model belong together."""

from __future__ import annotations

from preassert.labels.labelmap import LabelMap
from preassert.labels.pairing import stamp, verify
from preassert.labels.problems import LabelWarning, MapMismatch, NotFitted, Unseen, UnseenLabels
from preassert.labels.targets import ChangedTargets, ChangedTargetsWarning, clamp_targets, mask_targets

__all__ = [
    "ChangedTargets",
    "ChangedTargetsWarning",
    "LabelMap",
    "LabelWarning",
    "MapMismatch",
    "NotFitted",
    "Unseen",
    "UnseenLabels",
    "clamp_targets",
    "mask_targets",
    "stamp",
    "verify",
]
