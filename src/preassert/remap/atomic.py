"""Outputs appear whole or not at all: written beside, flushed to disk, renamed.

A run that is killed can leave ``.NAME.*.preassert-tmp`` beside its output, and nothing under the final name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

from preassert.errors import UsageError

SUFFIX = ".preassert-tmp"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def temporary_beside(target: Path, *, folder: bool) -> Path:
    """A new empty file or folder in the folder of ``target``: on its file system, and hidden."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name[:100]}."
    if folder:
        made = Path(tempfile.mkdtemp(prefix=prefix, suffix=SUFFIX, dir=target.parent))
        umask = os.umask(0)
        os.umask(umask)
        made.chmod(0o777 & ~umask)
        return made
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=SUFFIX, dir=target.parent)
    os.close(handle)
    return Path(name)


def discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def finish(temporary: Path, like: Path) -> None:
    """Flush what was written to disk, and give it the permissions of the input."""
    files = [path for path in temporary.rglob("*") if path.is_file()] if temporary.is_dir() else [temporary]
    for file in files:
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    if not temporary.is_dir():
        shutil.copymode(like, temporary)


def publish(temporary: Path, target: Path) -> None:
    """Give a finished output its name.

    Raises:
        UsageError: something of that name has appeared meanwhile.
    """
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists already")
    os.rename(temporary, target)
    _sync_folder(target.parent)


def backup_name(target: Path) -> Path:
    """``NAME.bak``, or the first free ``NAME.bak2``, ``NAME.bak3``."""
    number = 1
    while True:
        candidate = target.with_name(f"{target.name}.bak{'' if number == 1 else number}")
        if not candidate.exists() and not candidate.is_symlink():
            return candidate
        number += 1


def replace(temporary: Path, target: Path) -> Path:
    """Put a finished output in the place of ``target`` and keep what was there; returns the path of the backup.

    At every moment ``target`` exists and is whole, for folders on file systems that can exchange two names (Linux);
    elsewhere a folder is missing under its name for the time between two renames.
    """
    backup = backup_name(target)
    if target.is_dir():
        if not _exchange(temporary, target):
            os.rename(target, backup)
            os.rename(temporary, target)
        else:
            os.rename(temporary, backup)
    else:
        try:
            os.link(target, backup)
        except OSError:  # a file system without hard links
            partial = temporary_beside(backup, folder=False)
            shutil.copy2(target, partial)
            os.replace(partial, backup)
        os.replace(temporary, target)
    _sync_folder(target.parent)
    return backup


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), os.fspath(other))


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # folders cannot be opened on Windows
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def copy_or_link(source: Path, target: Path, *, link: bool) -> None:
    """Bring an unchanged file into an output folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copy2(source, target)
