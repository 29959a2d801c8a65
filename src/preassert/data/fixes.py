"""What to do about offending values, with the exact command where a command does it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from preassert.data.formats import hf
from preassert.data.rules import EMBEDDING
from preassert.data.source import COMPRESSIONS, Source, is_remote
from preassert.data.tally import Tally
from preassert.data.wording import holds_several

# What preassert.remap rewrites; text files also when packed.
_TEXT = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
_BINARY = (".parquet", ".pq", ".arrow", ".ipc", ".feather", ".npy")


@dataclass(frozen=True, slots=True)
class Counted:
    """One column of one file. ``asked``: the file, folder or pattern by which the user named it."""

    tally: Tally
    source: Source
    asked: str


def fix_of(counted: Counted, column: Sequence[Counted]) -> str | None:
    """What to do about the offending values in ``counted``; ``column`` is the same column of all files, itself included."""
    tally = counted.tally
    rule = tally.rule
    lowest, highest = rule.limits()
    sentinel = next((value for value in tally.values if isinstance(value, int)), None)
    if tally.missing == tally.count:
        return "fill in or drop the rows without a label, or give them the ignored value (ignore_index=-100)"
    if rule.alphabet is not None:
        return "normalise the transcripts, or add the characters to the alphabet and widen the output layer"
    if rule.real:
        return "apply torch.sigmoid first, or clip to 0..1; drop rows with NaN"
    if rule.hazard == EMBEDDING:
        rows = f"({tally.maximum + 1})" if isinstance(tally.maximum, int) else ""
        return f"correct the ids, or give the embedding more rows: model.resize_token_embeddings{rows}"
    if set(tally.values) <= {-1, 255} and sentinel is not None:
        how = f"ignore_index={sentinel} in the loss, and --ignore-index {sentinel} here"
        return f"if {sentinel} marks what is to be ignored: {how}; else correct the rows"
    if any(isinstance(value, str) and holds_several(rule, value) for value in tally.values):
        return "one label a field is read here: write several as a list ([0, 3]), a decimal comma as a point"
    if _renumbering_helps([entry.tally for entry in column]) and all(_can_be_rewritten(entry) for entry in column):
        return _remap_column(column)
    if rule.names is not None:
        return "correct the names, or add them to the class list and widen the model's head"
    if lowest == 0 and highest is not None and isinstance(tally.maximum, int) and tally.maximum > highest:
        return f"correct the rows, or build the model with num_classes={tally.maximum + 1}"
    return "correct the rows"


def _renumbering_helps(tallies: Sequence[Tally]) -> bool:
    """Whether renumbering the labels that are present in all files together would fit them into the range."""
    rule = tallies[0].rule
    lowest, highest = rule.limits()
    if rule.names is not None or lowest != 0 or highest is None:
        return False
    present: set[int | str] = set()
    for tally in tallies:
        if tally.nested or tally.missing or tally.fractional or tally.histogram is None:
            return False
        present.update(value for value in tally.histogram if value not in rule.ignore)
    return 0 < len(present) <= highest + 1 and len(set(map(type, present))) == 1


def _can_be_rewritten(counted: Counted) -> bool:
    source = counted.source
    if is_remote(source.path):
        return False
    if source.compression is not None:
        return source.suffix in _TEXT
    if source.suffix == ".npy" and counted.tally.column:  # a field of a structured array
        return False
    if source.suffix == ".feather" and source.head(4) == b"FEA1":
        return False
    return source.suffix in (*_TEXT, *_BINARY)


def _remap_column(column: Sequence[Counted]) -> str:
    """One command for all files: they must share one map."""
    first = column[0]
    ignored = [value for value in first.tally.rule.ignore if any(value in (entry.tally.histogram or ()) for entry in column)]
    if [entry.source.path for entry in column] == [first.asked]:
        return remap_command(first.asked, column=first.tally.column, ignored=ignored, source=first.source)
    asked = list(dict.fromkeys(entry.asked for entry in column))
    if len(asked) == 1 and os.path.isdir(asked[0]):
        inputs, beside = _inputs_below(asked[0], column), _outside(asked[0])
        output = f"{beside}.remapped" if inputs == [beside] else f"{beside}.remapped/"
    else:
        inputs = [name for entry in asked for name in (_inputs_below(entry, column) if os.path.isdir(entry) else [entry])]
        output, beside = "remapped/", inputs[0]
    return _command(inputs, output, beside, first.tally.column, ignored, first.source)


def _inputs_below(folder: str, column: Sequence[Counted]) -> list[str]:
    """What stands for the files of a folder: itself if `datasets` saved it, else a pattern for each suffix."""
    if hf.is_dataset(folder):
        return [_outside(folder)]
    sources = [entry.source for entry in column if entry.asked == folder]
    deep = any(os.path.dirname(source.path) != os.path.normpath(folder) for source in sources)
    endings = dict.fromkeys(source.suffix + (source.compression or "") for source in sources)
    return [os.path.join(_outside(folder), *(["**"] if deep else []), f"*{ending}") for ending in endings]


def _outside(path: str) -> str:
    """The path, normalised; for the current folder its name seen from above: an output may not lie inside its input."""
    path = os.path.normpath(path)
    return os.path.join(os.pardir, os.path.basename(os.path.abspath(path))) if path == os.curdir else path


def remap_command(path: str, *, column: str | None = None, ignored: Sequence[int] = (), source: Source | None = None) -> str:
    """The command that makes the labels of a file or a folder 0..K-1, for a shell.

    Args:
        column: its name; in a CSV file without a header the number that ``check`` knows it by, which begins at 0.
        ignored: values that occur and are no labels.
        source: how a table was read.
    """
    path = _outside(path)
    return _command([path], _beside(path), path, column, ignored, source)


def _beside(path: str) -> str:
    if os.path.isdir(path):
        return f"{path}.remapped"
    stem, suffix = os.path.splitext(path)
    packed = ""
    if suffix.lower() in COMPRESSIONS:
        packed = suffix
        stem, suffix = os.path.splitext(stem)
    return f"{stem}.remapped{suffix}{packed}"


def _command(
    inputs: Sequence[str], output: str, beside: str, column: str | None, ignored: Sequence[int], source: Source | None
) -> str:
    command = ["preassert", "remap", *inputs]
    if source is not None and not source.header and source.suffix in (".csv", ".tsv", ".tab"):
        command += ["--no-header", "--column", str(int(column or 0) + 1)]
    elif column:  # an .npy file has one array without a name
        command += ["--column", column]
    if source is not None and source.comment is not None:
        command += ["--comment", source.comment]
    command += ["-o", output, "--map", _map_beside(beside)]
    other = next((value for value in ignored if value != -100), None)
    return shlex.join(command if other is None else [*command, "--ignore-index", str(other)])


def _map_beside(path: str) -> str:
    """``labels.json`` in the same folder, so that all splits share it, unless that is something else."""
    shared = os.path.join(os.path.dirname(path), "labels.json")
    if os.path.exists(shared):
        with open(shared, "rb") as stream:
            if b"preassert.labelmap/" not in stream.read(256):
                return f"{path}.labelmap.json"
    return shared
