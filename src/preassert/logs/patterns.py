"""Regular expressions that are compiled when they are first used.

Compiling all of them would cost more time than explaining a small log takes; most logs need a few.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for ``re.compile(pattern, flags)``; its methods appear when one is called."""

    def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
        self._source = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = self._compiled = self.__dict__.get("_compiled") or re.compile(self._source, self._flags)
        method = getattr(compiled, name)
        setattr(self, name, method)
        return method


if TYPE_CHECKING:

    def lazy(pattern: str, flags: int = 0) -> re.Pattern[str]: ...
    def lazy_bytes(pattern: bytes, flags: int = 0) -> re.Pattern[bytes]: ...

else:
    lazy = lazy_bytes = _Lazy
