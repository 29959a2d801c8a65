"""Label files of the field, which are folders or documents rather than tables: one module each, with ``check``.

Adding one is a module and a line here (and in ``preassert.data.targets``, which recognises it).
"""

from __future__ import annotations

import importlib
from typing import Protocol

from preassert.data.rules import Report, Rule
from preassert.data.scan import Options

LAYOUTS: dict[str, str] = {
    "coco": "COCO annotations (JSON)",
    "imagefolder": "one folder of pictures for each class",
    "masks": "segmentation masks (PNG, TIFF ...)",
    "voc": "Pascal VOC annotations (XML)",
    "yolo": "YOLO label files (data.yaml, or a folder of .txt)",
}


class Check(Protocol):
    """Checks one target. ``rule`` holds the range or the class list the caller gave; unbounded when none was."""

    def __call__(self, path: str, rule: Rule, options: Options) -> Report: ...


def check_of(layout: str) -> Check:
    """The check of one of ``LAYOUTS``."""
    check: Check = importlib.import_module(f"preassert.data.layouts.{layout}").check
    return check
