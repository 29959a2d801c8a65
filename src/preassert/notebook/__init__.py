"""Notebooks and IPython: ``%load_ext preassert``.

Guards the kernel; shows a violation or a dead CUDA context as a card instead of a page of frames; saves variables and restarts
the kernel process in place. Importing this room imports neither torch nor IPython.
"""

from __future__ import annotations

from typing import Any

_session: Any = None


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext preassert``: import torch, guard the kernel, and show failures as cards. Twice is the same as once."""
    global _session
    if _session is not None:
        return
    from preassert.notebook.session import Session

    _session = Session(shell)
    _session.start()


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext preassert``: end the guard and put everything back as it was."""
    global _session
    if _session is not None:
        _session.stop()
        _session = None


__all__ = ["load_ipython_extension", "unload_ipython_extension"]
