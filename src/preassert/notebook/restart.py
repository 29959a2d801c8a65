"""Restart the kernel's process in place: the same process id and connection file, a new interpreter, a new CUDA context."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from preassert.errors import UsageError

RESCUE = "PREASSERT_RESCUE"  # folder of the saved variables, for the new process
_LOAD = "--IPKernelApp.extra_extensions=preassert"
_DELAY_S = 0.5  # the reply and the outputs of this cell go out before


def check_possible(shell: Any) -> None:
    """Raises UsageError: this is no kernel that can be started again with its own command line; says what to do instead."""
    instead = "use %preassert save, restart by the menu of your front end, then %load_ext preassert and %preassert restore"
    if os.name == "nt":
        raise UsageError(f"on Windows a process cannot be replaced in place: {instead}")
    kernel = getattr(shell, "kernel", None)
    file = getattr(getattr(kernel, "parent", None), "abs_connection_file", None)
    if kernel is None or getattr(kernel, "io_loop", None) is None or not file:
        raise UsageError(f"this is not a kernel of ipykernel, so its process cannot be replaced in place: {instead}")
    if not any(os.path.basename(file) in word for word in sys.orig_argv[1:]) or not os.path.exists(file):
        raise UsageError(f"the kernel's command line does not name its connection file ({file}), or it is gone: {instead}")


def schedule(shell: Any, folder: Path) -> None:
    """Replace the process once the current cell has been answered. Call :func:`check_possible` first."""
    words = [word for word in sys.orig_argv[1:] if word != _LOAD]
    command = [sys.executable, *words, _LOAD]
    environment = {**os.environ, RESCUE: str(folder)}
    loop = shell.kernel.io_loop
    loop.add_callback(lambda: loop.call_later(_DELAY_S, _replace, shell, command, environment))


def _replace(shell: Any, command: list[str], environment: dict[str, str]) -> None:
    for child in multiprocessing.active_children():
        child.terminate()  # workers of loaders look for a change of their parent's id, which does not change
    try:
        shell.history_manager.end_session()
    except Exception as error:  # a locked history is no reason to stay in a dead context
        logging.getLogger("preassert").warning("the history of this session could not be closed: %s", error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        _give_back_descriptor(stream)
    os.execve(sys.executable, command, environment)


def _give_back_descriptor(stream: Any) -> None:
    """ipykernel has put a pipe to one of its threads in the place of descriptors 1 and 2; the thread ends with this process."""
    original, descriptor = getattr(stream, "_original_stdstream_copy", None), getattr(stream, "_original_stdstream_fd", None)
    if original is not None and descriptor is not None:
        os.dup2(original, descriptor)
