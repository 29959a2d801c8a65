"""pytest plugin: ``pytest --preassert`` guards every test.

``--preassert``            a bad value raises at its line; what the deferred mode recorded is raised at the end of its test.
``--preassert-mode MODE``  auto (default), immediate or deferred.
``--preassert-isolate``    after a test has killed the CUDA context, the remaining tests run in a fresh process.

Without ``--preassert-isolate`` a test that fails only because an earlier one killed the context is skipped, all of them with one
reason that names that test; tests that do not touch the GPU go on as always. Loading this plugin imports neither torch nor
preassert's own rooms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from preassert.model import MODES

_RESULTS = "PREASSERT_PYTEST_RESULTS"  # where the fresh process writes its reports, one JSON object a line


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("preassert", "guard against CUDA device-side asserts")
    group.addoption("--preassert", action="store_true", help="guard every test with preassert")
    group.addoption("--preassert-mode", choices=MODES, default="auto", help="mode of the guard")
    group.addoption(
        "--preassert-isolate", action="store_true", help="after a dead CUDA context, run the remaining tests in a fresh process"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("preassert") or config.getoption("preassert_isolate"):
        config.pluginmanager.register(_Guarded(config), "preassert-guarded")


class _Guarded:
    """The guard around one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.killer: str | None = None  # node id of the test that killed the context
        self.handed_over = False

    # --- guarding

    def pytest_sessionstart(self) -> None:
        if self.config.getoption("preassert"):
            from preassert.guard import install

            install(mode=self.config.getoption("preassert_mode"))

    def pytest_sessionfinish(self) -> None:
        if self.config.getoption("preassert"):
            from preassert.guard import uninstall

            uninstall()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        outcome = yield
        if self.config.getoption("preassert"):
            from preassert.guard import flush

            flush()  # a violation belongs to the test that made it
        return outcome

    # --- a dead context

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and kills_context(call.excinfo.value):
            if self.killer is None:
                self.killer = item.nodeid
                report.sections.append(("preassert", _explanation(call.excinfo.value)))
            elif item.nodeid != self.killer:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {self._reason()}")
        return report

    def _reason(self) -> str:
        return (
            f"the CUDA context of this process is dead since {self.killer}; run with --preassert to stop that test before "
            "the kernel, or with --preassert-isolate to go on in a fresh process"
        )

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self.killer is None or not self.config.getoption("preassert_isolate"):
            return None
        if not self.handed_over:
            self.handed_over = True
            items = item.session.items
            self._continue_elsewhere(items[items.index(item) :])
        return True  # its reports have come from the fresh process

    def _continue_elsewhere(self, items: list[pytest.Item]) -> None:
        """Run ``items`` in a fresh process and pass its reports on as if they had been made here."""
        hook = self.config.hook
        seen: set[str] = set()
        for report in run_elsewhere(self.config, [item.nodeid for item in items]):
            if report.nodeid not in seen:
                seen.add(report.nodeid)
                hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        for item in items:
            if item.nodeid not in seen:
                hook.pytest_runtest_logreport(report=_lost(item))

    # --- the other side: this session is the fresh process of another

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        target = os.environ.get(_RESULTS)
        if target:
            data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            with open(target, "a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")


def run_elsewhere(config: pytest.Config, node_ids: list[str]) -> Iterator[pytest.TestReport]:
    """Reports of ``node_ids``, run by a fresh pytest in a fresh process with the same options."""
    with tempfile.TemporaryDirectory(prefix="preassert-pytest-") as folder:
        results, arguments = Path(folder) / "results.jsonl", Path(folder) / "arguments"
        results.touch()
        arguments.write_text("\n".join(node_ids) + "\n", encoding="utf-8")  # a command line has a length limit
        given = map(str, config.invocation_params.args)
        options = [word for word in given if word not in config.args and not word.startswith("@")]
        if config.pluginmanager.hasplugin("xdist"):
            options.append("-n0")
        command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(config.rootpath), f"@{arguments}"]
        environment = {**os.environ, _RESULTS: str(results)}
        done = subprocess.run(command, cwd=config.rootpath, env=environment, capture_output=True, text=True, check=False)
        lines = results.read_text(encoding="utf-8").splitlines()
        if not lines:
            sys.stderr.write(f"preassert: the fresh process ran nothing (exit {done.returncode}):\n{done.stdout}{done.stderr}")
        for line in lines:
            yield config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))


def _lost(item: pytest.Item) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid,
        item.location,
        {},
        "failed",
        "preassert: the fresh process ended before this test reported",
        "call",
        duration=0.0,
    )


def kills_context(error: BaseException) -> bool:
    """Does this error say that the CUDA context of the process is dead?"""
    from preassert.integrations.explain import kills_context

    return isinstance(error, RuntimeError) and kills_context(error)


def _diagnosis(error: BaseException) -> Any:
    from preassert.integrations.explain import explain

    return explain(error)


def _explanation(error: BaseException) -> str:
    return f"This test killed the CUDA context of the process.\n{_diagnosis(error)}"
