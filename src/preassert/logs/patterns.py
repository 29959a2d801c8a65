"""Regular expressions that are compiled when they are first used.

Compiling all of them would cost more time than explaining a small log takes; most logs need a few.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for ``re.compile(pattern, flags)``; its methods appear when one is called."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._source = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self._source, self._flags)
        for method in ("search", "match", "fullmatch", "finditer", "findall", "sub", "split"):
            setattr(self, method, getattr(compiled, method))
        self.pattern = compiled.pattern
        return getattr(compiled, name)


if TYPE_CHECKING:

    def lazy(pattern: str, flags: int = 0) -> re.Pattern[str]: ...

else:
    lazy = _Lazy
