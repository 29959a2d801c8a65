"""A violation in a DataLoader worker or a DataParallel thread, whole.

torch carries the class of an exception and its traceback as text to the one who waits, and makes a new exception of the two.
Of a violation that would leave the text; here its fields go along.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch._utils

from preassert.errors import Violation

_wrapper: Any = torch._utils.ExceptionWrapper
_usual: Any = None  # what ``hook`` has replaced


class _Carrier:
    """Stands where torch keeps the class of the exception, and is called like it: with the text."""

    def __init__(self, violation: Violation) -> None:
        self.__name__ = type(violation).__name__
        self._violation = copy.copy(violation)  # without traceback, whose frames hold tensors

    def __call__(self, text: str) -> Violation:
        violation = copy.copy(self._violation)
        violation.args = (text,)
        return violation


def hook() -> None:
    global _usual
    if _usual is not None:
        return
    _usual = usual = _wrapper.__init__

    def wrap(wrapper: Any, exc_info: Any = None, *arguments: Any, **keywords: Any) -> None:
        exc_info = exc_info or sys.exc_info()
        usual(wrapper, exc_info, *arguments, **keywords)
        if isinstance(exc_info[1], Violation):
            wrapper.exc_type = _Carrier(exc_info[1])

    _wrapper.__init__ = wrap


def unhook() -> None:
    global _usual
    if _usual is not None:
        _wrapper.__init__, _usual = _usual, None
