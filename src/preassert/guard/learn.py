"""Which values a model accepts: learned in dry runs, written as a contract, held against data.

``preassert.check(model, loader, loss=...)`` and ``preassert check --model module:callable --data module:callable``.

A contract is found by asking the program itself. The model is run dry (:mod:`preassert.guard.dryrun`) on an example batch;
that shows every operator that consumes indices, and its range. Then each input is set to values at and beyond the ends of
those ranges, and the run tells which are accepted. So the range that is reported is that of the *input*, whatever the model
does with it before it is an index (an offset, a shift, a mask), and each end of it has been tried on both sides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from preassert import hazards
from preassert.data.rules import Report
from preassert.data.source import read_small, reading
from preassert.errors import InputError, UsageError
from preassert.guard import blame, dryrun, guard
from preassert.guard.dryrun import DEPTHS, Depth, NeedsValues, Outcome
from preassert.model import Finding, Where

SCHEMA = "preassert.contract/1"
HIGHEST_PROBE = 2**31 - 1  # an input that accepts this has no upper end
LONGEST_PROBE = 1 << 16  # longer rows are not tried
_LONGEST_REAL_PROBE = 1 << 12  # where lengths cost arithmetic
_CHEAP = 2 * 10**9  # multiplications (weights x elements) up to which running a model beats running it dry
_MAX_SHAPES = 16  # batches of a new shape that are also run dry
_SHOWN = 20
TARGET_NAMES = ("labels", "label", "targets", "target", "y", "label_ids")


# --- what is learned -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """One operator that an input reaches."""

    operator: str
    argument: str
    hazard: str
    module: str | None
    valid: str  # of the operator's own argument


@dataclass(slots=True)
class InputContract:
    """What one input may be.

    Attributes:
        name: its path in the batch: ``"input_ids"``, ``"1"``, ``"targets.labels"``.
        lowest, highest: legal values, both inclusive; None leaves that side open.
        legal: further legal values (``ignore_index``). excluded: values within the range that are not (the blank of CTC).
        max_length: most elements of a row (last dimension); None: no limit was found.
        hazard: what a value outside is; length_hazard: what a longer row is.
        uses: the operators that it reaches.
    """

    name: str
    dtype: str
    lowest: int | float | None = None
    highest: int | float | None = None
    legal: tuple[int | float, ...] = ()
    excluded: tuple[int, ...] = ()
    max_length: int | None = None
    hazard: str | None = None
    length_hazard: str | None = None
    uses: list[Use] = field(default_factory=list)

    @property
    def bounded(self) -> bool:
        return self.lowest is not None or self.highest is not None

    @property
    def valid(self) -> str:
        """The legal values in words: ``"0..4 or -100"``."""
        if not self.bounded:
            return "any"
        low = "" if self.lowest is None else f"{self.lowest:g}" if isinstance(self.lowest, float) else str(self.lowest)
        high = "" if self.highest is None else f"{self.highest:g}" if isinstance(self.highest, float) else str(self.highest)
        text = f"{low}..{high}" + "".join(f" or {value}" for value in self.legal)
        return text + (f" except {', '.join(map(str, self.excluded))}" if self.excluded else "")

    def outside(self, tensor: Tensor) -> Tensor:
        """True where a value is not legal."""
        wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor.to(torch.int64)
        bad = torch.zeros_like(wide, dtype=torch.bool)
        if self.lowest is not None:
            bad |= ~(wide >= self.lowest)  # so that NaN is outside
        if self.highest is not None:
            bad |= ~(wide <= self.highest)
        for hole in self.excluded:
            bad |= wide == hole
        for value in self.legal:
            bad &= wide != value
        return bad


@dataclass(slots=True)
class Contract:
    """What a model accepts. ``depth``: how much had to be computed to learn it (see :mod:`preassert.guard.dryrun`)."""

    model: str
    depth: str
    inputs: dict[str, InputContract]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, content: Any, where: str) -> Contract:
        """What ``to_dict`` gave; ``where`` names its source in errors.

        Raises:
            InputError: it is no contract of this version.
        """
        if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
            raise InputError(where, f"not a contract (no schema {SCHEMA!r})")
        try:
            inputs = {str(name): _input_from(entry) for name, entry in content["inputs"].items()}
            return cls(str(content["model"]), str(content["depth"]), inputs, [str(note) for note in content["notes"]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(where, f"a damaged contract: {f'no {error}' if isinstance(error, KeyError) else error}") from error

    @classmethod
    def read(cls, path: str) -> Contract:
        """What ``write`` wrote.

        Raises:
            InputError: the file cannot be read, or holds no contract of this version.
        """
        with reading(path):
            content = json.loads(read_small(path))
        return cls.from_dict(content, path)

    def write(self, path: str) -> None:
        """Write as JSON; a reader never sees half a file."""
        folder = os.path.dirname(os.path.abspath(path))
        temporary = None
        try:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as stream:
                temporary = stream.name
                json.dump(self.to_dict(), stream, indent=2)
                stream.write("\n")
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)
            raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _input_from(entry: Mapping[str, Any]) -> InputContract:
    """One input of a contract that was written; raises TypeError or ValueError where it is damaged."""
    found = InputContract(
        **{
            **entry,
            "legal": tuple(entry["legal"]),
            "excluded": tuple(entry["excluded"]),
            "uses": [Use(**use) for use in entry["uses"]],
        }
    )
    for value in (found.lowest, found.highest, found.max_length, *found.legal, *found.excluded):
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"{value!r} where a number is expected")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"a number of {value.bit_length()} bits, more than an int64 has")
    for slug in (found.hazard, found.length_hazard):
        if slug is not None and slug not in hazards.slugs():
            raise ValueError(f"unknown hazard {slug!r}")
    return found


# --- batches: tensors by name --------------------------------------------------------------------------------------------

Leaves = dict[str, Tensor]


def leaves_of(batch: Any, prefix: str = "") -> Leaves:
    """The tensors (and arrays) of a batch by their path: ``{"input_ids": ..., "1.boxes": ...}``."""
    if isinstance(batch, Tensor):
        return {prefix or "input": batch}
    if _is_array(batch):
        return {prefix or "input": torch.as_tensor(batch)}
    found: Leaves = {}
    for key, value in _children(batch):
        found.update(leaves_of(value, f"{prefix}.{key}" if prefix else str(key)))
    return found


def in_words(name: str) -> str:
    """The path of an input as it is written in Python, where it begins with a place in a tuple: ``batch[1].labels``."""
    first, dot, rest = name.partition(".")
    return f"batch[{first}]{dot}{rest}" if first.isdigit() else name


def with_leaves(batch: Any, leaves: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The batch with other tensors in the places of its own; containers keep their types."""
    if isinstance(batch, Tensor) or _is_array(batch):
        return leaves[prefix or "input"]
    made = {key: with_leaves(value, leaves, f"{prefix}.{key}" if prefix else str(key)) for key, value in _children(batch)}
    if isinstance(batch, Mapping):
        return made
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*made.values())
    if isinstance(batch, (list, tuple)):
        return type(batch)(made.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **made)
    return batch


def _children(batch: Any) -> list[tuple[Any, Any]]:
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, (list, tuple)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(entry.name, getattr(batch, entry.name)) for entry in dataclasses.fields(batch) if entry.init]
    return []


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") and getattr(getattr(value, "dtype", None), "kind", "") in "iufb"


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


# --- how a model is called -----------------------------------------------------------------------------------------------


def caller(model: nn.Module, loss: Callable[..., Any] | None) -> Callable[[nn.Module, Any], Any]:
    """How ``model`` takes a batch: ``training_step`` of a Lightning module, keywords of a mapping, arguments of a tuple.

    With ``loss``, the last element of a tuple (or the entry of a mapping named ``labels``, ``target``, ``y`` ...) is the target.
    """
    if loss is None and callable(getattr(model, "training_step", None)):
        return _training_step
    takes = inspect.signature(model.forward).parameters
    any_keyword = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    places = sum(parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in takes.values())
    any_place = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in takes.values())

    def forward(module: nn.Module, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            named = {str(key): value for key, value in inputs.items() if any_keyword or key in takes}
            return module(**named) if named else module(inputs)
        if isinstance(inputs, (list, tuple)):
            return module(*inputs) if any_place or len(inputs) <= places else module(*inputs[:places])
        return module(inputs)

    def forward_and_loss(module: nn.Module, batch: Any) -> Any:
        inputs, target = _split(batch)
        assert loss is not None
        return loss(forward(module, inputs), target)

    return forward if loss is None else forward_and_loss


def _split(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        name = next((name for name in TARGET_NAMES if name in batch), None)
        if name is None:
            raise UsageError(f"which entry is the target of the loss? One of {', '.join(TARGET_NAMES)} is expected")
        return {key: value for key, value in batch.items() if key != name}, batch[name]
    if isinstance(batch, (list, tuple)) and len(batch) >= 2:
        inputs = batch[:-1]
        return (inputs[0] if len(inputs) == 1 else inputs), batch[-1]
    raise UsageError("with a loss, a batch is (inputs ..., target) or a mapping with the target under 'labels' or 'target'")


def _training_step(module: Any, batch: Any) -> Any:
    quiet = {name: lambda *_, **__: None for name in ("log", "log_dict") if hasattr(module, name)}
    for name, nothing in quiet.items():
        object.__setattr__(module, name, nothing)  # logging needs a trainer
    try:
        return module.training_step(batch, 0)
    finally:
        for name in quiet:
            object.__delattr__(module, name)


def example_batch(model: Any) -> dict[str, Tensor] | None:
    """A batch for a model of ``transformers``, made from its configuration; None for other models."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        return None
    takes = inspect.signature(model.forward).parameters
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    batch: dict[str, Tensor] = {}
    if "input_ids" in takes and isinstance(getattr(text, "vocab_size", None), int):
        ids = torch.arange(3, 11).remainder(max(1, text.vocab_size)).reshape(1, 8)
        if isinstance(getattr(text, "eos_token_id", None), int) and 0 <= text.eos_token_id < text.vocab_size:
            ids[ids == text.eos_token_id] = 0
            ids[:, -1] = text.eos_token_id  # some classifiers look for it
        batch["input_ids"] = ids
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones_like(ids)
        if "token_type_ids" in takes:
            batch["token_type_ids"] = torch.zeros_like(ids)
        if "bbox" in takes:
            batch["bbox"] = torch.zeros(1, 8, 4, dtype=torch.int64)
    if "pixel_values" in takes:
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 64)
        height, width = (size, size) if isinstance(size, int) else size
        batch["pixel_values"] = torch.zeros(1, getattr(vision, "num_channels", 3), height, width)
    if "input_values" in takes:
        batch["input_values"] = torch.zeros(1, 16000)
    if "labels" in takes:
        labels = _example_labels(type(model).__name__, config, batch)
        if labels is not None:
            batch["labels"] = labels
    return batch or None


def _example_labels(name: str, config: Any, batch: Mapping[str, Tensor]) -> Tensor | None:
    if name.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForMultipleChoice")):
        return torch.zeros(1, dtype=torch.int64 if config.num_labels > 1 else torch.float32)
    if name.endswith("ForSemanticSegmentation"):
        return torch.zeros(1, *batch["pixel_values"].shape[-2:], dtype=torch.int64)
    if name.endswith("ForCTC"):
        return torch.tensor([[1, 2, 1]])
    if "input_ids" in batch and name.endswith(
        ("LM", "LMHeadModel", "ForTokenClassification", "ConditionalGeneration", "MTModel")
    ):
        ids = batch["input_ids"]
        return torch.zeros_like(ids[:, :6] if getattr(config, "is_encoder_decoder", False) else ids)
    return None


# --- learning ------------------------------------------------------------------------------------------------------------


def learn(model: nn.Module, example: Any = None, *, loss: Callable[..., Any] | None = None) -> Contract:
    """Learn which values ``model`` accepts.

    Args:
        model: any module; it is left as it was.
        example: a batch as a loader gives it; None for a model of ``transformers``, which knows its own inputs.
        loss: called as ``loss(model(inputs), target)``; None where the model computes it (or has none).

    Returns:
        A contract for each whole-number input, and for real inputs of operators that take probabilities. Values, not
        combinations of values, are bounded.

    Raises:
        UsageError: there is no example, or the model fails on it in a way that is not about values.
    """
    if example is None:
        example = example_batch(model)
        if example is None:
            raise UsageError(f"{type(model).__name__}: an example batch is needed to learn what it accepts (--data, or a loader)")
    with guard(mode="immediate"):  # one guard around all runs: to begin one takes as long as a run of a small model
        return _Learner(model, example, loss).learn()


class _Learner:
    def __init__(self, model: nn.Module, example: Any, loss: Callable[..., Any] | None) -> None:
        self.example = example
        self.call = caller(model, loss)
        self.leaves = {name: leaf.detach().cpu() for name, leaf in leaves_of(example).items()}
        if not self.leaves:
            raise UsageError("the example batch holds no tensors")
        self.notes: list[str] = []
        self.real_model: nn.Module | None = None
        self.weights = 0
        self.known: dict[tuple[str, int | float, int], bool] = {}
        self.model, self.depth = self.settle(model)

    def settle(self, model: nn.Module) -> tuple[nn.Module, Depth]:
        """The least depth at which the example runs, with values that are accepted."""
        last: Exception | None = None
        for depth in DEPTHS:
            try:
                self.model, self.depth = (model if depth == "all" else dryrun.shapes_only_copy(model)), depth
                outcome = self.settle_values()
                if outcome.fine:
                    self.base = outcome
                    self.note_unknown_buffers(model)
                    self.allow_arithmetic(model)
                    return self.model, depth
                last = outcome.violation or outcome.error
            except NeedsValues as error:
                last = error
        raise UsageError(f"{type(model).__name__} cannot be run on the example batch: {type(last).__name__}: {last}") from last

    def note_unknown_buffers(self, model: nn.Module) -> None:
        unknown = [name for name, buffer in model.named_buffers() if buffer.is_meta and _is_whole(buffer)]
        if unknown:
            shown = ", ".join(unknown[:3])
            self.notes.append(f"{shown}: on the meta device, without values; what is indexed with it (positions) is not bounded")

    def allow_arithmetic(self, model: nn.Module) -> None:
        """Where the arithmetic costs less than to go without it (a small model), answer yes-or-no questions by running it."""
        self.weights = sum(parameter.numel() for parameter in model.parameters())
        if all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers())):
            self.real_model = model
            if not self.run({}, to_the_end=False).fine:
                self.real_model = None

    def settle_values(self) -> Outcome:
        """Run the example; where its own values are refused, let constants stand in for them, one input after the other."""
        outcome = self.run({}, name_modules=True)
        for name, leaf in list(self.leaves.items()):
            if outcome.fine or not (outcome.broken and _is_whole(leaf)):
                continue
            for constant in (0, 1):
                changed = {name: torch.full_like(leaf, constant)}
                attempt = self.run(changed, name_modules=True)
                if attempt.fine or len(attempt.looks) > len(outcome.looks):
                    self.leaves.update(changed)
                    outcome = attempt
                    break
        return outcome

    def run(self, changed: Mapping[str, Tensor], *, name_modules: bool = False, to_the_end: bool = True) -> Outcome:
        batch = with_leaves(self.example, {**self.leaves, **changed})
        batch = {**batch} if isinstance(batch, Mapping) else batch
        call = functools.partial(_call, self.call, batch)
        if not to_the_end and self.real_model is not None:
            elements = max(leaf.numel() for leaf in {**self.leaves, **changed}.values())
            if self.weights * elements <= _CHEAP:
                return dryrun.run(call, self.real_model, depth="all", to_the_end=False)
        return dryrun.run(call, self.model, depth=self.depth, name_modules=name_modules, to_the_end=to_the_end)

    def learn(self) -> Contract:
        inputs = {}
        for name, leaf in self.leaves.items():
            if leaf.numel() == 0 or leaf.is_complex() or leaf.dtype == torch.bool:
                continue
            found = self.whole(name, leaf) if _is_whole(leaf) else self.real(name, leaf)
            if found is not None:
                inputs[name] = found
        for name, contract in inputs.items():
            if _is_whole(self.leaves[name]):
                self.length(name, contract)
        kind = type(self.model).__name__
        return Contract(kind, self.depth, inputs, self.notes)

    # values

    def filled(self, name: str, value: int | float, step: int) -> Tensor | None:
        """One input with every element (``step`` 1) or every second one (2) set to ``value``; None if it cannot hold that."""
        leaf = self.leaves[name].clone()
        try:
            leaf[..., ::step] = value
        except RuntimeError:  # not a value of this dtype
            return None
        return leaf

    def probe(self, name: str, value: int | float, step: int = 1, *, to_the_end: bool = True) -> Outcome | None:
        """The run with one input set to ``value``; None where that cannot be known."""
        leaf = self.filled(name, value, step)
        if leaf is None:
            return None
        try:
            return self.run({name: leaf}, to_the_end=to_the_end)
        except NeedsValues:
            return None

    def accepts(self, name: str, value: int | float, step: int = 1) -> bool:
        key = (name, value, step)
        if key not in self.known:
            outcome = self.probe(name, value, step, to_the_end=False)
            self.known[key] = outcome is None or outcome.fine
        return self.known[key]

    def inside(self, name: str, leaf: Tensor) -> tuple[int, int] | None:
        """A value that the input accepts, and the step (see :meth:`filled`) with which values can be tried on it."""
        own = [int(value) for value in leaf.reshape(-1)[:1000].unique().tolist()]
        for step in (1, 2) if leaf.dim() else (1,):
            for value in dict.fromkeys((0, 1, *sorted(own, key=abs)[:8])):
                if self.accepts(name, value, step):
                    return value, step
        return None

    def whole(self, name: str, leaf: Tensor) -> InputContract | None:
        start = self.inside(name, leaf)
        if start is None:
            self.notes.append(f"{name}: no constant is accepted, so its range is not known")
            return None
        inside, step = start
        limits = torch.iinfo(leaf.dtype)
        top, bottom = min(HIGHEST_PROBE, limits.max), max(-HIGHEST_PROBE, limits.min)
        found = InputContract(name, str(leaf.dtype).removeprefix("torch."))
        refused = [self.probe(name, top, step), self.probe(name, bottom, step)]
        ends = [end for outcome in refused if outcome is not None for end in _ends(outcome)]
        ends += [look.domain.limits(look.bounds) for look in self.base.looks]
        accepts = functools.partial(self.accepts, name, step=step)
        if refused[0] is not None and not refused[0].fine:
            found.highest = last_accepted(accepts, inside, top, [int(high) for _, high in ends if high is not None])
        if refused[1] is not None and not refused[1].fine:
            found.lowest = last_accepted(accepts, inside, bottom, [int(low) for low, _ in ends if low is not None])
        if not found.bounded:
            return None
        marks = {int(value) for look in self.base.looks for value in look.domain.legal(look.bounds)} | {-100, -1, 255}
        marks = {mark for mark in marks if limits.min <= mark <= limits.max and not _within(found, mark)}
        found.legal = tuple(sorted(mark for mark in marks if accepts(mark)))
        holes = {0, *(int(low) - 1 for low, _ in ends if low is not None)}
        found.excluded = tuple(sorted(hole for hole in holes if _within(found, hole) and not accepts(hole)))
        self.describe(found, [outcome for outcome in refused if outcome is not None])
        return found

    def real(self, name: str, leaf: Tensor) -> InputContract | None:
        """Probabilities: the only demand that operators make of real inputs."""
        refused = {value: outcome for value in (2.0, -1.0) if (outcome := self.probe(name, value)) is not None and outcome.broken}
        found = InputContract(name, str(leaf.dtype).removeprefix("torch."))
        if 2.0 in refused and self.accepts(name, 1.0):
            found.highest = 1.0
        if -1.0 in refused and self.accepts(name, 0.0):
            found.lowest = 0.0
        if not found.bounded:
            return None
        self.describe(found, list(refused.values()))
        return found

    def describe(self, found: InputContract, refused: Sequence[Outcome]) -> None:
        """Which operators the input reaches: those whose indices change with it, or that refuse it."""
        reached: dict[tuple[str, str, str | None, str], Use] = {}
        for outcome in refused:
            for before, after in zip(self.base.looks, outcome.looks, strict=False):
                if before.row is not after.row or before.domain is not after.domain:
                    break
                if before.tensor.shape == after.tensor.shape and torch.equal(before.tensor, after.tensor):
                    continue
                valid = before.domain.valid(before.bounds)
                use = Use(before.row.operator, before.domain.argument, before.hazard, before.module, valid)
                reached.setdefault((use.operator, use.argument, use.module, use.valid), use)
                if after.broken and found.hazard is None:
                    found.hazard = after.hazard
            violation = outcome.violation
            if violation is not None:
                use = Use(violation.operator, violation.argument, violation.hazard, violation.module, violation.valid)
                reached.setdefault((use.operator, use.argument, use.module, use.valid), use)
                found.hazard = found.hazard or violation.hazard
        found.uses = list(reached.values())
        if found.hazard is None and found.uses:  # refused by a check of the model's own before the operator could
            found.hazard = found.uses[-1].hazard

    # lengths

    def length(self, name: str, found: InputContract) -> None:
        """The longest row, where positions are looked up in a table."""
        leaf = self.leaves[name]
        if leaf.dim() < 2 or leaf.size(1) < 2:
            return
        together = self.companions(name)
        if together is None:
            return
        now = leaf.size(1)
        longest = LONGEST_PROBE if self.depth != "all" else _LONGEST_REAL_PROBE
        # Positions are the indices that go up with the length; how far up they may still go is the candidate.
        candidates = set()
        for look, longer in zip(self.stretched(together, now).looks, self.stretched(together, now + 1).looks, strict=False):
            high = look.domain.limits(look.bounds)[1]
            if look.row is longer.row and high is not None and _highest(longer.tensor) > _highest(look.tensor):
                candidates.add(now + int(high) - _highest(look.tensor))
        for length in sorted(candidates):
            if now <= length <= longest and self.fits(together, length):
                beyond = self.stretched(together, length + 1)
                if not beyond.fine:
                    found.max_length = length
                    broken = next((look for look in beyond.looks if look.broken), None)
                    found.length_hazard = broken.hazard if broken is not None else "embedding-index-out-of-range"
                    return

    def companions(self, name: str) -> list[str] | None:
        """The inputs that must be as long as this one: itself alone, or all of the same length. None: it cannot be longer."""
        now = self.leaves[name].size(1)
        same = [other for other, leaf in self.leaves.items() if leaf.dim() >= 2 and leaf.size(1) == now]
        for together in ([name], same):
            if self.fits(together, now + 1):
                return together
        return None

    def fits(self, names: Sequence[str], length: int) -> bool:
        return self.stretched(names, length, to_the_end=False).fine

    def stretched(self, names: Sequence[str], length: int, *, to_the_end: bool = True) -> Outcome:
        """The run with dimension 1 of some inputs made ``length`` long, by its first element alone: no padding, which
        some models do not count."""
        changed = {}
        for name in names:
            leaf = self.leaves[name]
            changed[name] = leaf[:, :1].expand(leaf.size(0), length, *leaf.shape[2:]).clone()
        try:
            return self.run(changed, to_the_end=to_the_end)
        except NeedsValues as error:
            return Outcome([], error=error)


def _call(call: Callable[[nn.Module, Any], Any], batch: Any, module: nn.Module) -> Any:
    return call(module, batch)


def last_accepted(accepts: Callable[[int], bool], inside: int, outside: int, candidates: Iterable[int]) -> int:
    """The last whole number from ``inside`` (accepted) towards ``outside`` (refused) that is accepted.

    ``candidates`` are tried first, in their order; where none is the end, it is searched for by halving.
    """
    step = 1 if outside > inside else -1
    for candidate in dict.fromkeys(candidates):
        if not 0 <= (candidate - inside) * step < (outside - inside) * step:
            continue
        if accepts(candidate + step):
            inside = candidate + step
            continue
        outside = candidate + step
        if candidate == inside or accepts(candidate):
            return candidate
        outside = candidate
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if accepts(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _ends(outcome: Outcome) -> list[tuple[int | float | None, int | float | None]]:
    """The ranges of the demands that a run broke."""
    ends = [look.domain.limits(look.bounds) for look in outcome.looks if look.broken]
    if outcome.violation is not None:
        ends.append((outcome.violation.lowest, outcome.violation.highest))
    return ends


def _highest(tensor: Tensor) -> int:
    return int(tensor.max()) if tensor.numel() and _is_whole(tensor) else -1


def _within(found: InputContract, value: int) -> bool:
    return (found.lowest is None or value >= found.lowest) and (found.highest is None or value <= found.highest)


# --- data ----------------------------------------------------------------------------------------------------------------


def check(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    loss: Callable[..., Any] | None = None,
    batches: int | None = None,
    contract: Contract | None = None,
) -> Report:
    """Does the data fit the model? Nothing runs on a GPU, and no arithmetic of the model is done where that can be helped.

    Args:
        model: any module.
        loader: a DataLoader, or any iterable of batches.
        loss: called as ``loss(model(inputs), target)``, where the model does not compute it.
        batches: look at that many batches only; None looks at all.
        contract: what :func:`learn` gave before; None learns it from the first batch.

    Returns:
        One finding for each input and hazard, with the offending values and, for a DataLoader, the dataset indices
        (``finding.extra["dataset_indices"]``). ``scanned["contract"]`` is the contract.

    Raises:
        UsageError: the loader is empty, or the model cannot be run on its first batch.
    """
    blame.watch()
    try:
        return _Checker(model, loader, loss, contract).check(batches)
    finally:
        blame.unwatch()


class _Checker:
    """``model`` None: a contract is given, and combinations of values are not tried."""

    def __init__(
        self, model: nn.Module | None, loader: Iterable[Any], loss: Callable[..., Any] | None, contract: Contract | None
    ) -> None:
        self.model = model
        self.loader = loader
        self.loss = loss
        self.contract = contract
        self.name = type(getattr(loader, "dataset", loader)).__name__
        self.found: dict[tuple[str, str], _Offence] = {}
        self.shapes: set[Any] = set()
        self.inputs: dict[str, None] = {}  # names that occurred in batches
        self.learner: _Learner | None = None

    def check(self, batches: int | None) -> Report:
        seen = samples = 0
        for batch in self.loader:
            if batches is not None and seen >= batches:
                break
            if self.contract is None:
                assert self.model is not None
                self.contract = learn(self.model, batch, loss=self.loss)
            samples += self.look(batch, seen)
            seen += 1
        if self.contract is None:
            raise UsageError(f"{self.name}: no batches to check")
        report = Report(scanned={"batches": seen, "rows": samples, "contract": self.contract.to_dict()})
        report.findings = [offence.finding(self.name) for offence in self.found.values()]
        return report

    def look(self, batch: Any, number: int) -> int:
        assert self.contract is not None
        leaves = leaves_of(batch)
        self.inputs.update(dict.fromkeys(leaves))
        clean = True
        rows = 0
        for name, leaf in leaves.items():
            rows = max(rows, leaf.size(0) if leaf.dim() else 1)
            demand = self.contract.inputs.get(name)
            if demand is None or leaf.numel() == 0:
                continue
            bad = demand.outside(leaf.detach())
            if bool(bad.any()):
                clean = False
                self.note_values(demand, leaf.detach().cpu(), bad.cpu(), number)
            if demand.max_length is not None and leaf.dim() >= 2 and leaf.size(1) > demand.max_length:
                clean = False
                self.note_length(demand, leaf, number)
        shape = tuple((name, tuple(leaf.shape)) for name, leaf in leaves.items())
        if self.model is not None and clean and shape not in self.shapes and len(self.shapes) < _MAX_SHAPES:
            self.shapes.add(shape)
            self.run_dry(self.model, batch, number)
        return rows

    def run_dry(self, model: nn.Module, batch: Any, number: int) -> None:
        """What no range of one input can say: combinations of values. Once for each shape."""
        if self.learner is None:
            try:
                self.learner = _Learner(model, batch, self.loss)
            except UsageError:
                return
        learner = self.learner
        leaves = {name: leaf.detach().cpu() for name, leaf in leaves_of(batch).items()}
        call = functools.partial(_call, learner.call, with_leaves(batch, leaves))
        try:
            outcome = dryrun.run(call, learner.model, depth=learner.depth, describe=True)
        except NeedsValues:
            return
        violation = outcome.violation
        if violation is None:
            return
        offence = self.offence(violation.argument, violation.hazard, violation.valid)
        offence.add([element.value for element in violation.elements], violation.count, (), number, str(violation.call))

    def offence(self, name: str, hazard: str, valid: str) -> _Offence:
        return self.found.setdefault((name, hazard), _Offence(name, hazard, valid))

    def note_values(self, demand: InputContract, leaf: Tensor, bad: Tensor, number: int) -> None:
        positions = bad.reshape(-1).nonzero().reshape(-1)
        values = leaf.reshape(-1)[positions].tolist()
        sample = blame.sample(leaf, positions[:10_000].tolist(), values[:10_000])
        offence = self.offence(demand.name, demand.hazard or "index-out-of-range", demand.valid)
        offence.add(values, len(values), sample.indices if sample else (), number, self.reached(demand))

    def note_length(self, demand: InputContract, leaf: Tensor, number: int) -> None:
        hazard = demand.length_hazard or "embedding-index-out-of-range"
        offence = self.offence(f"{demand.name} (length)", hazard, f"at most {demand.max_length} elements a row")
        rows = list(range(leaf.size(0)))
        sample = blame.sample(
            leaf, [row * (leaf.numel() // leaf.size(0)) for row in rows], leaf.reshape(leaf.size(0), -1)[:, 0].tolist()
        )
        offence.add([leaf.size(1)] * leaf.size(0), leaf.size(0), sample.indices if sample else (), number, "a table of positions")

    def reached(self, demand: InputContract) -> str:
        use = next((use for use in demand.uses if use.hazard == demand.hazard), None)
        if use is None:
            return "an operator that indexes"
        return use.operator if use.module is None else f"{use.operator} in {use.module}"


def _plain(value: Any) -> Any:
    """NaN as a word: it is no JSON, and no two are equal."""
    return "NaN" if value != value else value


@dataclass(slots=True)
class _Offence:
    """What is wrong with one input, over all batches."""

    name: str
    hazard: str
    valid: str
    count: int = 0
    values: dict[Any, int] = field(default_factory=dict)
    indices: list[Any] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    reaches: str = ""

    def add(self, values: Sequence[Any], count: int, indices: Iterable[Any], batch: int, reaches: str) -> None:
        self.count += count
        self.reaches = self.reaches or reaches
        self.batches.append(batch)
        for value in map(_plain, values):
            if value in self.values or len(self.values) < 1000:
                self.values[value] = self.values.get(value, 0) + 1
        known = set(self.indices)
        self.indices.extend(index for index in indices if index not in known)

    def finding(self, file: str) -> Finding:
        values = tuple(sorted(self.values, key=str if any(isinstance(v, str) for v in self.values) else None))[:_SHOWN]
        shown = ", ".join(map(str, values[:5])) + (", ..." if len(self.values) > 5 else "")
        where = f"dataset index {', '.join(map(str, self.indices[:10]))}" if self.indices else f"batch {self.batches[0]}"
        if len(self.indices) > 10:
            where += f", ... ({len(self.indices) - 10} more)"
        noun = "value is" if self.count == 1 else "values are"
        # A table or a head can grow for numbers from 0 on; for nothing else.
        grows = all(isinstance(value, int) and value >= 0 for value in self.values)
        return Finding(
            self.hazard,
            "error",
            Where(file, column=self.name),
            f"{in_words(self.name)}: {self.count:,} {noun} outside {self.valid} ({shown}) at {where}; reaches {self.reaches}",
            value=values[0] if values else None,
            values=values,
            valid=self.valid,
            count=self.count,
            fix="correct or leave out these samples" + (f", or give the model room for {shown}" if grows else ""),
            extra={"dataset_indices": self.indices, "batches": self.batches},
        )


def check_contract(contract: Contract, loader: Iterable[Any], *, batches: int | None = None) -> Report:
    """Does the data keep to a contract that was learned before? The model is not built.

    What no range of one input can say (combinations of values) only :func:`check` can find.

    Args:
        contract: what :func:`learn` gave, or :meth:`Contract.read`.
        loader, batches: as for :func:`check`.

    Returns:
        As :func:`check` does; an input of the contract that no batch has is a warning.

    Raises:
        UsageError: the loader is empty, or its batches have no input of the contract.
    """
    blame.watch()
    try:
        checker = _Checker(None, loader, None, contract)
        report = checker.check(batches)
    finally:
        blame.unwatch()
    lost = [name for name in contract.inputs if name not in checker.inputs]
    if lost and len(lost) == len(contract.inputs):
        found = ", ".join(map(in_words, checker.inputs)) or "no tensors"
        raise UsageError(f"{checker.name}: batches hold {found}; the contract is about {', '.join(map(in_words, lost))}")
    report.findings += [
        Finding(None, "warning", Where(checker.name, column=name), f"{in_words(name)}: in the contract, but in no batch")
        for name in lost
    ]
    return report


# --- command -------------------------------------------------------------------------------------------------------------


def check_command(
    model: str | None, data: Sequence[str] = (), *, contract: str | None = None, batches: int | None = None
) -> Report:
    """``preassert check --model module:callable [--data module:callable] [--contract FILE]``, or without ``--model``.

    Args:
        model: names a callable without arguments (or a module itself) that gives a module, or ``(module, loss)``.
            ``package.module:name`` is imported from the current folder, ``path/to/file.py:name`` from that file.
            None: the data is held against what ``contract`` says.
        data: as ``model``; each gives a DataLoader or another iterable of batches.
        contract: file to write the contract to, or without ``model`` to read it from.
        batches: look at that many batches of each only.

    Raises:
        UsageError: a name cannot be loaded, or the model cannot be run.
        InputError: ``contract`` is no contract.
    """
    # What the user's program prints must not get into a report on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        if model is not None:
            report, learned = _learned_and_checked(model, data, batches)
            if contract is not None:
                learned.write(contract)
        elif contract is not None and data:
            learned = Contract.read(contract)
            report = Report()
            for name in data:
                _take(report, check_contract(learned, _loader(name), batches=batches), name)
        else:
            raise UsageError("--contract without --model holds data against a contract: give --data module:callable")
    report.findings += [_in_words(demand, model or learned.model) for demand in learned.inputs.values()]
    report.findings += [Finding(None, "info", Where(model or learned.model), note) for note in learned.notes]
    return report


def _learned_and_checked(model: str, data: Sequence[str], batches: int | None) -> tuple[Report, Contract]:
    made = _made(model)
    module, loss = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise UsageError(f"--model {model}: gives a {type(module).__name__}, a torch.nn.Module is expected")
    report = Report()
    learned: Contract | None = None
    for name in data:
        found = check(module, _loader(name), loss=loss, batches=batches, contract=learned)
        learned = learned or Contract.from_dict(found.scanned["contract"], model)
        _take(report, found, name)
    if learned is None:
        learned = learn(module, loss=loss)
        report.scanned["contract"] = learned.to_dict()
    return report, learned


def _loader(name: str) -> Iterable[Any]:
    loader = _made(name)
    if not isinstance(loader, Iterable):
        raise UsageError(f"--data {name}: gives a {type(loader).__name__}, an iterable of batches is expected")
    return loader


def _take(report: Report, found: Report, name: str) -> None:
    """Add what was found in the data that the user knows by ``name``."""
    renamed = [dataclasses.replace(finding, where=dataclasses.replace(finding.where, file=name)) for finding in found.findings]
    report.extend(Report(renamed, found.scanned))


def _in_words(demand: InputContract, model: str) -> Finding:
    """A note that says what one input may be."""
    length = "" if demand.max_length is None else f", rows of at most {demand.max_length:,}"
    reached = ", ".join(dict.fromkeys(f"{use.operator} in {use.module}" if use.module else use.operator for use in demand.uses))
    message = f"{in_words(demand.name)} in {demand.valid}{length}" + (f": reaches {reached}" if reached else "")
    return Finding(demand.hazard, "info", Where(model, column=demand.name), message, valid=demand.valid)


def _made(spec: str) -> Any:
    """What ``module:name`` names; a callable that is not a module is called."""
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{spec!r}: module:callable or file.py:callable is expected")
    try:
        found = getattr(_imported(place), name)
    except AttributeError as error:
        raise UsageError(f"{spec!r}: {place} has no {name!r}") from error
    if isinstance(found, nn.Module) or not callable(found):
        return found
    return found()


def _imported(place: str) -> Any:
    with _importable_from_here():
        if not place.endswith(".py"):
            try:
                return importlib.import_module(place)
            except ModuleNotFoundError as error:
                if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
                    raise UsageError(f"no module {place!r} from here") from error
                raise
        if not os.path.isfile(place):
            raise UsageError(f"{place}: no such file")
        name = os.path.splitext(os.path.basename(place))[0]
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)  # data classes and pickling look modules up there
        spec.loader.exec_module(module)
        return module


@contextlib.contextmanager
def _importable_from_here() -> Iterator[None]:
    """As for a script: modules beside it can be imported."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    yield
