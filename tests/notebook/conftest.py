"""A real kernel, driven through jupyter_client."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Outcome:
    """What one cell did, as a front end sees it."""

    status: str = ""
    number: int = 0
    stdout: str = ""
    stderr: str = ""
    shown: list[dict[str, str]] = field(default_factory=list)  # MIME type -> content
    error: dict[str, Any] | None = None

    @property
    def html(self) -> str:
        return "\n".join(each.get("text/html", "") for each in self.shown)

    @property
    def plain(self) -> str:
        return "\n".join(each.get("text/plain", "") for each in self.shown)

    @property
    def traceback(self) -> str:
        return _ANSI.sub("", "\n".join(self.error["traceback"])) if self.error else ""


class Kernel:
    """Start one, run cells, stop it."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder / "ipython"), "NO_COLOR": "1"}
        for name in ("PYTEST_CURRENT_TEST", "PREASSERT_RUN"):  # ipykernel does not relay descriptor 2 below pytest
            environment.pop(name, None)
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, code: str, timeout_s: float = 120) -> Outcome:
        outcome = Outcome()
        reply = self.client.execute_interactive(code, timeout=timeout_s, output_hook=lambda message: _take(outcome, message))
        outcome.status, outcome.number = reply["content"]["status"], reply["content"].get("execution_count", 0)
        return outcome

    @property
    def pid(self) -> int:
        return int(self.run("import os; print(os.getpid())").stdout)

    def wait_restarted(self, before: str, deadline_s: float = 90) -> None:
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self.session(2.0) not in (None, before) and self._hears():
                return
        raise AssertionError("the kernel has not come back")

    def _hears(self) -> bool:
        """Has the socket for output connected again? It may need a moment longer than the one for requests."""
        try:
            self.client.execute_interactive("pass", silent=True, store_history=False, timeout=3)
        except TimeoutError:
            return False
        return True

    def session(self, timeout_s: float = 30.0) -> str | None:
        """The id that the kernel's messages carry; another process has another one. None: no answer in time."""
        wanted = self.client.kernel_info()
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                reply = self.client.get_shell_msg(timeout=max(0.05, until - time.monotonic()))
            except Exception:
                return None
            if reply["parent_header"].get("msg_id") == wanted:
                return str(reply["header"]["session"])
        return None

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _take(outcome: Outcome, message: dict[str, Any]) -> None:
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        setattr(outcome, content["name"], getattr(outcome, content["name"]) + content["text"])
    elif kind in ("display_data", "execute_result"):
        outcome.shown.append(content["data"])
    elif kind == "error":
        outcome.error = content


@pytest.fixture(scope="session")
def start_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Kernel]]:
    """Makes kernels that end with the session."""
    started: list[Kernel] = []

    def start() -> Kernel:
        started.append(Kernel(tmp_path_factory.mktemp("kernel")))
        return started[-1]

    yield start
    for kernel in started:
        kernel.stop()
