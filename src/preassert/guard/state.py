"""What the guard knows at run time. One process, one state: the overrides are seen by every thread."""

from __future__ import annotations

import copy
import threading

from preassert.errors import Violation
from preassert.guard.budget import Budget
from preassert.guard.options import Options


class _Cover(threading.local):
    """True while this thread runs a kernel whose inner guarded operators are already checked."""

    active = False


class State:
    """Active options (the innermost guard's), and what has been seen."""

    def __init__(self) -> None:
        self.stack: list[Options] = []
        self.options: Options | None = None  # top of the stack; None: no guard is active
        self.seen = 0  # violations raised or recorded since the process began
        self.last: Violation | None = None
        self.budget: Budget | None = None  # of the active options
        self._budgets: dict[float, Budget] = {}
        self.lock = threading.RLock()

    def note(self, violation: Violation) -> None:
        """Count a violation and keep what it says: a copy, since a traceback holds frames and these hold tensors."""
        self.seen += 1
        self.last = copy.copy(violation)

    def push(self, options: Options) -> None:
        with self.lock:
            self.stack.append(options)
            self._refresh()

    def remove(self, options: Options) -> None:
        """Take this very entry off, wherever it stands: guards of several threads may end in any order."""
        with self.lock:
            for position in range(len(self.stack) - 1, -1, -1):
                if self.stack[position] is options:
                    del self.stack[position]
                    break
            self._refresh()

    def _refresh(self) -> None:
        self.options = self.stack[-1] if self.stack else None
        share = None if self.options is None else self.options.budget
        if not self.stack:
            self._budgets.clear()
        self.budget = None if share is None else self._budgets.setdefault(share, Budget(share))


STATE = State()
COVER = _Cover()
