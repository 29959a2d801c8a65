"""Pickles of ``torch.save``, read without torch and without running what they say.

A pickle can call any function, so its opcodes are checked first, and the few globals that tensors need are replaced by
stand-ins; any other global is an error. What the stand-ins keep (shapes, or where the numbers lie) is the reader's choice.
"""

from __future__ import annotations

import collections
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

# Opcodes that make the C unpickler allocate by a number in the stream rather than by what is in the stream: its memo is
# an array as long as the highest entry. Entries are numbered in order, so a number beyond the bytes read is not genuine.
_MEMO_WRITES = {"PUT", "BINPUT", "LONG_BINPUT"}


class Refused(ValueError):
    """A pickle that is damaged, too large, or asks for more than tensors need."""


@dataclass(frozen=True, slots=True)
class Token:
    """Stands for a storage class, dtype or layout that only ever is an argument."""

    name: str


class Opaque:
    """Stands for an object that carries no tensor (a config, an argparse namespace): accepts any state."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def itself(value: Any, *_: Any) -> Any:
    """``_rebuild_parameter``: the tensor is all that is wanted of a parameter."""
    return value


def _of_subclass(function: Callable[..., Any], _type: Any, arguments: Any, _state: Any) -> Any:
    return function(*arguments)


# (module, name) -> stand-in, for what every reader treats alike
COMMON: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_subclass,
    ("torch._utils", "_rebuild_parameter"): itself,
    ("torch._utils", "_rebuild_parameter_with_state"): itself,
}


class Unpickler(pickle.Unpickler):
    """Knows the stand-ins of ``stand_in`` and nothing else; what a tensor's storage becomes says ``storage``."""

    def stand_in(self, module: str, name: str) -> Any:
        """What takes the place of a global; None: nothing may."""
        raise NotImplementedError

    def storage(self, kind: Token, key: str, elements: int) -> Any:
        raise NotImplementedError

    def persistent_load(self, pid: Any) -> Any:
        # ('storage', storage class, key, location, numel[, view metadata])
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], Token):
            return self.storage(pid[1], str(pid[2]), int(pid[4]))
        raise Refused("its pickle refers to something that is not a tensor storage")

    def find_class(self, module: str, name: str) -> Any:
        found = self.stand_in(module, name)
        if found is None:
            raise Refused(f"its pickle asks for {module}.{name}, which tensors do not need; not loaded, for it could run code")
        return found


class _Bounded:
    """A file for ``genops`` that refuses to read (and so to allocate) more at once than a pickle may have."""

    def __init__(self, file: IO[bytes], limit_bytes: int) -> None:
        self.tell = file.tell
        self.readline = file.readline
        self._read = file.read
        self._limit_bytes = limit_bytes

    def read(self, size: int) -> bytes:
        if size > self._limit_bytes:
            raise Refused(f"truncated or damaged pickle (a field of {size:,} bytes)")
        return self._read(size)


def load(file: IO[bytes], unpickler: Callable[[IO[bytes]], Unpickler], limit_bytes: int) -> Any:
    """One pickle from where the file stands; the file then stands behind it.

    Raises:
        Refused: it is damaged, larger than ``limit_bytes``, or asks for what has no stand-in.
    """
    start = file.tell()
    try:
        for opcode, argument, position in pickletools.genops(cast("IO[bytes]", _Bounded(file, limit_bytes))):
            read_bytes = (position or 0) - start
            if read_bytes > limit_bytes:
                raise Refused(f"its pickle is larger than {limit_bytes:,} bytes")
            if opcode.name in _MEMO_WRITES and isinstance(argument, int) and argument > read_bytes:
                raise Refused(f"its pickle is damaged (memo entry {argument} after {read_bytes} bytes)")
        end = file.tell()
        file.seek(start)
        value = unpickler(file).load()
        file.seek(end)
        return value
    except Refused:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise Refused(f"truncated or damaged pickle ({type(error).__name__}: {error})") from error
