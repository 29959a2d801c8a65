"""The folder of ``--report``: full log, diagnosis, page, environment. It never stops or changes the run."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, BinaryIO

# Of the environment only what says how the GPU and the launcher were set up: the rest may hold secrets.
_PREFIXES = ("CUDA", "TORCH", "PYTORCH", "NCCL", "OMP_", "MKL_", "SLURM_", "XLA_", "HIP_", "ROCR_", "PREASSERT_", "TRITON_")
_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_LIBRARY_PATH",
)
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "JWT")
_PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "numpy",
    "triton",
    "preassert",
)


class Folder:
    """Files of one supervised run. The first attempt's are ``stderr.log``, ``explain.json``, ...; later ones get a number."""

    def __init__(self, path: str | None, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._log: BinaryIO | None = None
        self._part = ""
        self._name = ""
        if path is not None:
            try:
                os.makedirs(path, exist_ok=True)
            except OSError as error:
                self._give_up(error)

    def open_log(self, attempt: int) -> None:
        if self._path is not None:
            self._name = self._numbered("stderr", attempt, "log")
            self._part = f"{self._name}.part"
            try:
                self._log = open(self._part, "wb", buffering=0)  # noqa: SIM115  # open as long as the child runs
            except OSError as error:
                self._give_up(error)

    def keep(self, block: bytes) -> None:
        if self._log is None:
            return
        try:
            while block:
                block = block[self._log.write(block) :]
        except OSError as error:
            self._give_up(error)

    def close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
            try:
                os.replace(self._part, self._name)
            except OSError as error:
                self._give_up(error)

    def write(self, attempt: int, report: Mapping[str, Any], command: Sequence[str], environment: Mapping[str, str]) -> None:
        """The diagnosis as JSON and HTML, and the environment. Nothing after a complaint."""
        if self._path is None:
            return
        from preassert.report.diagnosis import to_html

        contents = {
            self._numbered("explain", attempt, "json"): json.dumps(report, indent=2, ensure_ascii=True),
            self._numbered("explain", attempt, "html"): to_html(report),
            self._numbered("environment", attempt, "json"): json.dumps(
                describe(command, environment), indent=2, ensure_ascii=True
            ),
        }
        try:
            for file, content in contents.items():
                part = f"{file}.part"
                with open(part, "w", encoding="utf-8", errors="backslashreplace") as handle:
                    handle.write(content + "\n")
                os.replace(part, file)
        except OSError as error:
            self._give_up(error)

    def _numbered(self, stem: str, attempt: int, suffix: str) -> str:
        assert self._path is not None
        return os.path.join(self._path, f"{stem}.{suffix}" if attempt == 1 else f"{stem}.{attempt}.{suffix}")

    def _give_up(self, error: OSError) -> None:
        path, self._path = self._path, None
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None
        if path is not None:
            self._complain(f"no report in {path}: {error.strerror or error}; the run goes on")


def describe(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Where the run happened, without secrets and without importing what ran."""
    return {
        "command": list(command),
        "folder": os.getcwd(),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "environment": {name: value for name, value in sorted(environment.items()) if _tells(name)},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tells(name: str) -> bool:
    return (name.startswith(_PREFIXES) or name in _NAMES) and not any(word in name.upper() for word in _SECRET)
