"""What the kernel's stderr has carried: the assertion lines of the device are printed past Python, and no exception has them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_KEPT_CHARS = 256 * 1024
_MARK = "Assertion `"


class Listener:
    """Listens at ipykernel's stderr stream, which relays file descriptor 2 as well (Linux, macOS). Elsewhere it hears nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[str] = deque()
        self._recent_chars = 0
        self._first: list[str] = []  # from the first assertion line on: the first one is the cause
        self._first_chars = 0
        self._listening = False

    def start(self, later: Callable[[Callable[[], None]], Any]) -> None:
        """``later`` runs a function between two cells: within a cell IPython has put its own ``write`` there, for that cell."""
        if getattr(sys.stderr, "watch_fd_thread", None) is None:
            return
        self._listening = True
        self._attach(sys.stderr)
        later(lambda: self._attach(sys.stderr))

    def stop(self) -> None:
        self._listening = False

    def _attach(self, stream: Any) -> None:
        write = stream.write
        if not self._listening or getattr(write, "listener", None) is self:
            return

        def heard(text: str) -> Any:
            if self._listening:
                self._take(text)
            return write(text)

        heard.listener = self  # type: ignore[attr-defined]  # a mark on the function
        # an attribute of the instance: the thread that reads the descriptor calls ``self.write``
        stream.write = heard

    def _take(self, text: str) -> None:
        with self._lock:
            if self._first or _MARK in text:
                if self._first_chars < _KEPT_CHARS:
                    self._first.append(text)
                    self._first_chars += len(text)
                return
            self._recent.append(text)
            self._recent_chars += len(text)
            while self._recent_chars > _KEPT_CHARS:
                self._recent_chars -= len(self._recent.popleft())

    def text(self, wait_s: float = 0.0) -> str:
        """The newest output, or what came from the first assertion line on; waits so long for such a line."""
        until = time.monotonic() + wait_s
        while self._listening and not self._first and time.monotonic() < until:
            time.sleep(0.02)
        if self._first and wait_s:
            time.sleep(0.05)  # the lines that are still in the pipe
        with self._lock:
            return "".join([*self._recent, *self._first])
