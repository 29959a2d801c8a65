"""Save the user's variables of one kernel process and restore them in the next.

What is saved: values that can be pickled, each tried on its own; functions and classes of cells as their source; modules by
name. Values that share parts (an optimizer holds the parameters of its model) go into one pickle, so that they share them again.
The folder is private to the user (mode 0700): it holds pickles, which are code to whoever loads them.
"""

from __future__ import annotations

import ast
import importlib
import json
import linecache
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from preassert.errors import InputError
from preassert.report.text import clean_line

SCHEMA = "preassert.rescue/1"
_MANIFEST = "manifest.json"
_REASON_CHARS = 160
_PASSES = 5  # a definition may need another one, a value a definition
_SPARE_BYTES = 64 << 20  # left free on the disk

# Never shared in a way that matters: plain values, and what is pickled by name.
_UNSHARED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type)
_BY_NAME = (FunctionType, BuiltinFunctionType, ModuleType)
# An assignment that makes a class or function and nothing else may be run again.
_FACTORIES = {"namedtuple", "NamedTuple", "Enum", "IntEnum", "Flag", "IntFlag", "TypedDict", "NewType", "make_dataclass"}


class _NotSaved(Exception):
    """Why a value cannot be saved, in words for the user."""


@dataclass
class Report:
    """What has been saved or restored, and what has not, with the reason."""

    values: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)  # saved, but could not be loaded: the folder still has them
    snapshot: str | None = None
    size_bytes: int = 0

    def lines(self, verb: str) -> list[str]:
        """``verb``: "saved" or "restored"."""
        out = []
        for noun, names in (("variables", self.values), ("functions and classes", self.definitions), ("modules", self.modules)):
            if names:
                out.append(f"{verb} {noun}: {', '.join(names)}")
        if self.snapshot:
            out.append(f"{verb} snapshot: {self.snapshot}")
        out.extend(f"lost {name}: {reason}" for name, reason in self.lost.items())
        return out or [f"nothing to be {verb}: there were no variables"]


# -------------------------------------------------------------------------------------------------------------------- saving


class _Count:
    """A file that keeps nothing but its size."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size_bytes += size
        return size


class _Trial(pickle.Pickler):
    """Pickles into nothing: can it be done, how large is it, and which mutable parts has it?"""

    def __init__(self, sink: _Count, context_is_dead: bool) -> None:
        super().__init__(sink, protocol=5)
        self.context_is_dead = context_is_dead
        self.parts: dict[int, Any] = {}  # kept alive, so that no id is used twice

    def persistent_id(self, thing: Any) -> None:
        if self.context_is_dead and _is_on_device(thing):
            raise _NotSaved("it holds a tensor on the GPU, and the CUDA context is dead")
        if not isinstance(thing, (*_UNSHARED, *_BY_NAME)) and type(thing).__name__ not in ("dtype", "device"):
            self.parts[id(thing)] = thing


def _is_on_device(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(thing, (torch.Tensor, torch.UntypedStorage, torch.Generator)):
        return False
    return thing.device.type not in ("cpu", "meta")


def user_variables(shell: Any) -> dict[str, Any]:
    """Without private names and what IPython itself has put there."""
    hidden = shell.user_ns_hidden
    absent = object()
    return {
        name: value
        for name, value in shell.user_ns.items()
        if isinstance(name, str) and not name.startswith("_") and value is not hidden.get(name, absent)
    }


def save(
    folder: Path,
    variables: Mapping[str, Any],
    cells: Iterable[str],
    *,
    context_is_dead: bool,
    snapshots: Any = None,
) -> Report:
    """Write ``variables`` into ``folder``, which exists and is private.

    Args:
        cells: source of the cells that have run, oldest first, as Python.
        context_is_dead: then nothing that holds a tensor of a device is touched.
        snapshots: states on the host, kept beside the variables.
    """
    report = Report()
    sources = _definitions(cells)
    definitions: list[dict[str, Any]] = []
    trials: dict[str, _Trial] = {}
    sizes: dict[str, int] = {}
    modules = {}
    for name, value in variables.items():
        if isinstance(value, ModuleType):
            modules[name] = value.__name__
            continue
        if _is_defined_here(name, value):
            if name in sources:
                definitions.append({"name": name, "source": sources[name][1], "order": sources[name][0]})
            else:
                report.lost[name] = "its source is not in a cell of this kernel"
            continue
        sink = _Count()
        trial = _Trial(sink, context_is_dead)
        try:
            trial.dump(value)
        except _NotSaved as why:
            report.lost[name] = str(why)
        except Exception as error:  # pickling runs code of any class
            report.lost[name] = _reason(error)
        else:
            trials[name], sizes[name] = trial, sink.size_bytes
    definitions.sort(key=lambda each: each["order"])
    groups = []
    for number, names in enumerate(_sharing(trials)):
        size = sum(sizes[name] for name in names)
        file = f"{number}.pickle"
        try:
            if size + _SPARE_BYTES > shutil.disk_usage(folder).free:
                raise _NotSaved(f"{size / 1e9:.1f} GB are more than is free in {folder.parent}")
            chosen = {name: variables[name] for name in names}
            _write(folder / file, partial(pickle.dump, chosen, protocol=5))
        except _NotSaved as why:
            report.lost.update(dict.fromkeys(names, str(why)))
        except Exception as error:
            report.lost.update(dict.fromkeys(names, _reason(error)))
        else:
            groups.append({"file": file, "names": names})
            report.values.extend(names)
            report.size_bytes += size
    report.definitions, report.modules = [each["name"] for each in definitions], list(modules)
    if snapshots is not None and snapshots.states:
        import torch

        states = {"names": snapshots.names, "states": snapshots.states, "cell": snapshots.cell}
        _write(folder / "snapshot.pt", lambda out: torch.save(states, out))
        report.snapshot = ", ".join(snapshots.states)
    manifest = {
        "schema": SCHEMA,
        "modules": modules,
        "definitions": definitions,
        "groups": groups,
        "lost": report.lost,
        "path": sys.path,
    }
    _write(folder / _MANIFEST, lambda out: out.write(json.dumps(manifest).encode()))
    return report


def make_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="preassert-rescue-"))  # mode 0700


def _write(path: Path, fill: Callable[[Any], object]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as out:
            fill(out)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return clean_line(f"{type(error).__name__}: {error}", _REASON_CHARS)


def _is_defined_here(name: str, value: Any) -> bool:
    """A function or class of a cell. Under another name (``alias = f``) it is pickled by reference."""
    if not isinstance(value, (type, FunctionType)) or value.__module__ != "__main__":
        return False
    return value.__name__ in (name, "<lambda>")


def _definitions(cells: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Name -> (order, source) of the newest top-level definition in the cells."""
    found: dict[str, tuple[int, str]] = {}
    order = 0
    for cell in cells:
        try:
            body = ast.parse(cell).body
        except (SyntaxError, ValueError):  # it did not run either
            continue
        lines = cell.splitlines(keepends=True)
        for node in body:
            name = _defined_name(node)
            if name:
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                found[name] = (order, "".join(lines[first - 1 : node.end_lineno]))
                order += 1
    return found


def _defined_name(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        called = value.func if isinstance(value, ast.Call) else None
        factory = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else None
        if isinstance(value, ast.Lambda) or factory in _FACTORIES:
            return node.targets[0].id
    return None


def _sharing(trials: Mapping[str, _Trial]) -> list[list[str]]:
    """Groups of variables that have a mutable part in common, directly or through others."""
    leader = {name: name for name in trials}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    owner: dict[int, str] = {}
    for name, trial in trials.items():
        for part in trial.parts:
            leader[find(owner.setdefault(part, name))] = find(name)
    groups: dict[str, list[str]] = {}
    for name in trials:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


# ----------------------------------------------------------------------------------------------------------------- restoring


def restore(folder: Path, variables: dict[str, Any], snapshots: Any = None) -> tuple[Report, list[str]]:
    """Put what :func:`save` has written into ``variables``; names that exist already are replaced.

    Returns:
        the report, and the sources of the definitions, which are in no cell of this process.

    Raises:
        InputError: the folder is not one that :func:`save` has completed.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(str(folder), f"cannot be read as saved variables: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(str(folder), "does not hold saved variables")
    sys.path.extend(entry for entry in manifest["path"] if entry not in sys.path)
    report = Report(lost=dict(manifest["lost"]))
    todo: list[tuple[list[str], list[str], Callable[[], None]]] = []

    def bind_module(name: str, module: str) -> None:
        variables[name] = importlib.import_module(module)

    def define(name: str, source: str) -> None:
        file = f"<restored {name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks and inspect
        exec(compile(source, file, "exec", dont_inherit=True), variables)

    def load(file: str) -> None:
        with open(folder / file, "rb") as stored:
            variables.update(pickle.load(stored))

    for name, module in manifest["modules"].items():
        todo.append(([name], report.modules, lambda name=name, module=module: bind_module(name, module)))  # type: ignore[misc]
    for each in manifest["definitions"]:
        todo.append(([each["name"]], report.definitions, lambda each=each: define(each["name"], each["source"])))  # type: ignore[misc]
    for group in manifest["groups"]:
        todo.append((group["names"], report.values, lambda group=group: load(group["file"])))  # type: ignore[misc]
    _run_all(todo, report)
    if snapshots is not None and (folder / "snapshot.pt").exists():
        import torch

        stored = torch.load(folder / "snapshot.pt", map_location="cpu", weights_only=True)
        snapshots.names, snapshots.states, snapshots.cell = stored["names"], stored["states"], stored["cell"]
        report.snapshot = ", ".join(snapshots.states)
    return report, [each["source"] for each in manifest["definitions"]]


def _run_all(todo: list[tuple[list[str], list[str], Callable[[], None]]], report: Report) -> None:
    """In order, and again what failed: it may need something that came later."""
    reasons: dict[str, str] = {}
    for _ in range(_PASSES):
        failed = []
        for names, done, act in todo:
            try:
                act()
            except Exception as error:  # loading runs code of any class
                reasons.update(dict.fromkeys(names, _reason(error)))
                failed.append((names, done, act))
            else:
                done.extend(names)
        if not failed or len(failed) == len(todo):
            break
        todo = failed
    else:
        failed = todo
    for names, _, _ in failed:
        report.unloaded.extend(names)
        report.lost.update({name: reasons[name] for name in names})
