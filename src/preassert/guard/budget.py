"""``budget=``: sites that have been clean for long are checked by sampling, so that the guard stays under a share of the step.

A site is an operator, a shape and dtype of its argument, and the user's line. Its first checks are always made, and so are
those of a new shape. Beyond that every n-th call is checked; at each step n doubles while the measured share of the step time
(of about the last fifty steps) is over the budget, and halves while it is under half of it. A call that is not checked is not
sanitised either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

FIRST = 50  # checks of a new site before sampling begins
_LARGEST_INTERVAL = 1024
_MEMORY = 0.98  # weight of the past at each step; without it a step that happens to check nothing looks cheap
_MAX_SITES = 10_000  # beyond that all are forgotten, hence new: shapes that never repeat are always checked


class Budget:
    """Decides which checks are due, and what they have cost.

    Args:
        share: largest share of the step time, 0..1.
        clock: seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share = share
        self.clock = clock
        self.interval = 1
        self.measured: float | None = None  # share of the last steps
        self._calls: dict[Hashable, int] = {}
        self._checked = self._skipped = self._steps = 0
        self._spent_s = 0.0  # in this step
        self._sums_s = (0.0, 0.0)  # spent and passed, fading
        self._began: float | None = None
        self._lock = threading.Lock()

    def is_due(self, site: Hashable) -> bool:
        """Is this call of ``site`` to be checked?"""
        with self._lock:
            if len(self._calls) >= _MAX_SITES:
                self._calls.clear()
            calls = self._calls[site] = self._calls.get(site, 0) + 1
            due = calls <= FIRST or calls % self.interval == 0
            if due:
                self._checked += 1
            else:
                self._skipped += 1
            return due

    def suspect(self, site: Hashable) -> None:
        """A violation was met at ``site``: it is new again."""
        with self._lock:
            self._calls[site] = 0

    def spend(self, seconds: float) -> None:
        """Time that the guard took, whether it checked or only decided not to."""
        with self._lock:
            self._spent_s += seconds

    def end_step(self) -> None:
        """An optimizer steps: compare the guard's time with the time since the last step, and adapt."""
        now = self.clock()
        with self._lock:
            if self._began is not None and now > self._began:
                self._steps += 1
                spent_s, passed_s = self._sums_s
                self._sums_s = spent_s * _MEMORY + self._spent_s, passed_s * _MEMORY + now - self._began
                self.measured = self._sums_s[0] / self._sums_s[1]
                if self.measured > self.share:
                    self.interval = min(self.interval * 2, _LARGEST_INTERVAL)
                elif self.measured < self.share / 2:
                    self.interval = max(self.interval // 2, 1)
            self._began, self._spent_s = now, 0.0

    def stats(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "measured": self.measured,
            "interval": self.interval,
            "checked": self._checked,
            "not_checked": self._skipped,
            "sites": len(self._calls),
            "steps": self._steps,
        }

    def summary(self) -> str:
        """One line for the end of the run."""
        calls = self._checked + self._skipped
        cost = "no step was measured" if self.measured is None else f"{self.measured:.2%} of the last steps"
        return f"budget {self.share:.2%}: {cost}; {self._checked:,} of {calls:,} calls checked"
