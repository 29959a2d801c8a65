"""One run of ``remap``: survey all inputs, fit or take the map, write all outputs beside their names, then name them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from preassert.errors import InputError, UsageError
from preassert.labels import LabelMap, LabelWarning
from preassert.remap import atomic
from preassert.remap.formats import CARRIES_MAP, embedded_map, format_of, module
from preassert.remap.recode import Options, Recoder, Tally

MAP_SUFFIX = ".labelmap.json"
MAP_NAME = "labelmap.json"


@dataclass(slots=True)
class Job:
    """What to do.

    Attributes:
        inputs: files and folders; all share one map.
        output: the file or folder to write; for several inputs a folder. None with ``in_place`` or ``dry_run``.
        into_folder: ``output`` is a folder to write into, even if it does not exist yet.
        map_path: read if it exists, else written. None: beside the output, unless the output carries the map inside.
        parameters: of the ``LabelMap`` to fit; of an existing one they replace the policies, for this run.
    """

    inputs: Sequence[Path]
    output: Path | None = None
    into_folder: bool = False
    map_path: Path | None = None
    in_place: bool = False
    inverse: bool = False
    dry_run: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Written:
    input: Path
    output: Path | None
    format: str
    elements: int
    dropped: int
    backup: Path | None = None


@dataclass(slots=True)
class Result:
    labels: LabelMap
    map_path: Path | None  # where the map is saved; None where only the outputs carry it, or nothing was written
    map_was_there: bool
    written: list[Written]
    counts: list[tuple[Any, Any, int]]  # (old, new, elements); new is None where the element was left out
    notes: list[str]


def run(job: Job) -> Result:
    """Do it.

    Raises:
        UnseenLabels: labels (or indices) that the map does not know; nothing is written.
        UsageError, InputError: nothing is written.
    """
    formats = [format_of(path) for path in job.inputs]
    if job.in_place:
        job.options.link = True  # what does not change is shared with the backup
    targets = _targets(job)
    notes: list[str] = []
    labels, map_was_there = _existing_map(job, formats)
    if labels is not None and not job.inverse:
        labels = _with_parameters(labels, job.parameters, notes)
    if labels is None:
        labels = _fit(job, formats, notes)
    map_path = _map_path(job, targets, formats, map_was_there)
    outputs = [(path, target, name) for path, target, name in zip(job.inputs, targets, formats, strict=True)]
    temporaries: list[Path] = []
    folders = _missing_folders([*targets, map_path])
    try:
        written, recoders = _write_all(job, labels, outputs, temporaries)
        if job.dry_run:
            return Result(labels, None, map_was_there, written, _counts(recoders), notes)
        if map_path is not None and not map_was_there and not job.inverse:
            # The map first: a crash between the two leaves a map without outputs, never outputs without their map.
            map_path.parent.mkdir(parents=True, exist_ok=True)
            labels.save(map_path)
        return Result(labels, map_path, map_was_there, _publish(job, written, temporaries), _counts(recoders), notes)
    finally:
        for temporary in temporaries:
            atomic.discard(temporary)
        for folder in folders:
            with suppress(OSError):  # not empty: the run succeeded
                folder.rmdir()


def _missing_folders(paths: Sequence[Path | None]) -> list[Path]:
    """Folders that outputs need and that do not exist yet, innermost first."""
    missing = {folder for path in paths if path is not None for folder in path.absolute().parents if not folder.exists()}
    return sorted(missing, key=lambda folder: -len(folder.parts))


def _write_all(
    job: Job, labels: LabelMap, outputs: list[tuple[Path, Path | None, str]], temporaries: list[Path]
) -> tuple[list[Written], list[Recoder]]:
    recoders = []
    written = []
    for path, target, name in outputs:
        recoder = Recoder(labels, inverse=job.inverse)
        recoders.append(recoder)
        if job.dry_run:
            _dry(path, name, job, recoder)
        else:
            assert target is not None
            temporary = atomic.temporary_beside(target, folder=path.is_dir())
            temporaries.append(temporary)
            module(name).rewrite(path, temporary, job.options, recoder)
            if not recoder.failed:
                atomic.finish(temporary, path)
        written.append(Written(path, target, name, recoder.elements, recoder.dropped))
    failed = [recoder for recoder in recoders if recoder.failed]
    if failed:
        for other in failed[1:]:
            failed[0].absorb(other)
        raise failed[0].error()
    return written, recoders


def _dry(path: Path, name: str, job: Job, recoder: Recoder) -> None:
    """Count what would be replaced, without writing. Positions of unknown labels need the writing run."""
    tally = Tally()
    module(name).survey(path, replace(job.options), tally)
    for old, count in tally.pairs_for(recoder):
        new = recoder.value(old)
        recoder.count_result(old, new, count, str(path))


def _publish(job: Job, written: list[Written], temporaries: list[Path]) -> list[Written]:
    done = []
    for entry, temporary in zip(written, temporaries, strict=True):
        assert entry.output is not None
        if job.in_place:
            done.append(replace(entry, backup=atomic.replace(temporary, entry.output)))
        else:
            atomic.publish(temporary, entry.output)
            done.append(entry)
    return done


def _counts(recoders: Sequence[Recoder]) -> list[tuple[Any, Any, int]]:
    total = recoders[0]
    for other in recoders[1:]:
        total.absorb(other)
    return total.table()


def _fit(job: Job, formats: Sequence[str], notes: list[str]) -> LabelMap:
    if job.inverse:
        raise UsageError(f"no label map for --inverse: none in {job.inputs[0]} and none beside it; give it with --map")
    tally = Tally()
    for path, name in zip(job.inputs, formats, strict=True):
        module(name).survey(path, job.options, tally)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LabelWarning)
        try:
            labels = tally.fit(job.parameters, job.options.used_only)
        except ValueError as error:
            raise UsageError(str(error)) from error
    notes += tally.notes
    notes += [str(warning.message) for warning in caught if issubclass(warning.category, LabelWarning)]
    if not labels.num_classes:
        raise InputError(", ".join(map(str, job.inputs)), "no labels found")
    return labels


def _with_parameters(labels: LabelMap, parameters: dict[str, Any], notes: list[str]) -> LabelMap:
    fitting = {"order", "classes"} & set(parameters)
    if fitting:
        raise UsageError(f"the map exists already: {' and '.join(sorted(fitting))} can only be given for a new one")
    policy = {name: value for name, value in parameters.items() if labels.get_policy()[name] != value}
    if not policy:
        return labels
    notes.append(
        f"policies other than those of the map file: {', '.join(f'{name}={value}' for name, value in sorted(policy.items()))}"
    )
    try:
        return labels.with_policy(**policy)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _existing_map(job: Job, formats: Sequence[str]) -> tuple[LabelMap | None, bool]:
    if job.map_path is not None:
        if job.map_path.exists():
            return LabelMap.load(job.map_path), True
        if job.inverse:
            raise InputError(str(job.map_path), "no such file")
        return None, False
    if not job.inverse:
        return None, False
    found: LabelMap | None = None
    for path, name in zip(job.inputs, formats, strict=True):
        here = embedded_map(name, path) or _map_beside(path)
        if here is None:
            raise UsageError(f"no label map for --inverse: none in {path} and none beside it; give it with --map")
        if found is not None and here != found:
            raise UsageError(f"{path} was remapped with another map than {job.inputs[0]}; undo them one by one")
        found = here
    return found, True


def _map_beside(path: Path) -> LabelMap | None:
    for candidate in (path.with_name(path.name + MAP_SUFFIX), path.parent / MAP_NAME):
        if candidate.exists():
            return LabelMap.load(candidate)
    return None


def _targets(job: Job) -> list[Path | None]:
    """Final name of each output; checked before any work.

    Raises:
        UsageError: missing, existing or clashing outputs.
    """
    if len({path.resolve() for path in job.inputs}) != len(job.inputs):
        raise UsageError("the same input is given twice")
    if job.dry_run:
        return [None] * len(job.inputs)
    if job.in_place:
        if job.output is not None:
            raise UsageError("--in-place and -o exclude each other")
        return [path.resolve() if path.is_symlink() else path for path in job.inputs]
    if job.output is None:
        raise UsageError("say where to write: -o OUTPUT, or --in-place (keeps a backup), or --dry-run")
    targets: list[Path | None] = list(_outputs(job.inputs, job.output, job.into_folder))
    for path, target in zip(job.inputs, targets, strict=True):
        assert target is not None
        if target.exists() or target.is_symlink():
            raise UsageError(f"{target} exists already; name another output, or use --in-place on the input (keeps a backup)")
        if path.is_dir() and path.resolve() in target.resolve().parents:
            raise UsageError(f"{target} lies inside its input {path}")
        if not path.is_dir() and target.suffix.lower() != path.suffix.lower():
            raise UsageError(f"{target}: remap keeps the format, and {path.name} ends in {path.suffix!r}")
    return targets


def _outputs(inputs: Sequence[Path], output: Path, into_folder: bool) -> list[Path]:
    if len(inputs) == 1 and (inputs[0].is_dir() or not (into_folder or output.is_dir())):
        return [output]
    names = [path.name for path in inputs]
    if len(set(names)) == len(names):
        return [output / name for name in names]
    common = Path(os.path.commonpath([path.resolve().parent for path in inputs]))
    return [output / path.resolve().relative_to(common) for path in inputs]


def _map_path(job: Job, targets: Sequence[Path | None], formats: Sequence[str], was_there: bool) -> Path | None:
    if job.map_path is not None or job.inverse or job.dry_run:
        return job.map_path
    if was_there or all(name in CARRIES_MAP for name in formats):
        return None
    finals = [target for target in targets if target is not None]
    if len(finals) == 1:
        path = finals[0].with_name(finals[0].name + MAP_SUFFIX)
    else:
        path = Path(os.path.commonpath([final.parent for final in finals])) / MAP_NAME
    if path.exists():
        raise UsageError(f"{path} exists already; pass it with --map to use it, or another name to fit a new one")
    return path


def map_in(path: Path) -> LabelMap | None:
    """The label map that a file or folder carries inside (Parquet, Arrow, Hugging Face); None where there is none."""
    return embedded_map(format_of(path), path)
