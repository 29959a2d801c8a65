"""How far each index of a model may go: the rows of its tables, read from the shapes of its tensors and its config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from preassert.data.checkpoints import architectures
from preassert.data.checkpoints.architectures import PADDING, Positions, Task
from preassert.data.checkpoints.files import whole_number
from preassert.data.checkpoints.weights import TensorInfo
from preassert.data.rules import EMBEDDING

Config = Mapping[str, Any]
INDEX = "index-out-of-range"
_POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")


@dataclass(frozen=True, slots=True)
class Bound:
    """A size, and what sets it.

    Attributes:
        size: indices ``0 .. size - 1`` are legal; for positions, sequences of ``size`` tokens.
        source: what says so, in words that follow "set by": ``"wte.weight in gpt2/model.safetensors"``.
        file: the file that says so.
        declared: what config.json says of the same size, where it does; and under which key.
        rows: rows of the table of positions, which are more than ``size`` where the first token is not at row 0.
        hazard: what an index beyond it meets.
        padding: the token id that takes up no position, for positions that count tokens and not places (RoBERTa).
    """

    size: int
    source: str
    file: str
    declared: int | None = None
    key: str | None = None
    rows: int | None = None
    hazard: str = EMBEDDING
    padding: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that bound the inputs and labels of one model. None: there is no such table, or its size is not known.

    Attributes:
        task: what the labels are.
        tokens: ``input_ids``. decoder_tokens: ``decoder_input_ids``, where the decoder has its own numbering or table.
        output_tokens: labels of a language model or CTC model.
        classes: labels of a classifier.
        positions: tokens of a row of ``input_ids``. decoder_positions: tokens of a row of labels.
        token_types: ``token_type_ids``.
        boxes: coordinates in ``bbox``.
        separate_decoder: the decoder has a vocabulary of its own (Marian, FSMT).
    """

    task: Task = "unknown"
    tokens: Bound | None = None
    decoder_tokens: Bound | None = None
    output_tokens: Bound | None = None
    classes: Bound | None = None
    positions: Bound | None = None
    decoder_positions: Bound | None = None
    token_types: Bound | None = None
    boxes: Bound | None = None
    separate_decoder: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    rank: tuple[int, int]  # place of its name in the list of names, then depth: the smallest is the model's own
    tensor: TensorInfo


@dataclass(slots=True)
class _Tables:
    """The embedding tables by stack: "encoder", "decoder", or "" where the model has one stack only."""

    tokens: dict[str, _Table] = field(default_factory=dict)
    positions: dict[str, _Table] = field(default_factory=dict)
    token_types: dict[str, _Table] = field(default_factory=dict)
    boxes: dict[str, _Table] = field(default_factory=dict)


def limits_of(config: Config, config_file: str, tensors: Mapping[str, TensorInfo], task: Task | None = None) -> Limits:
    """Resolve the limits of the model that ``config`` describes and ``tensors`` are the weights of.

    Where the weights do not hold a table that the architecture needs (they are missing, or named in a way not known
    here), the config's own number is taken. ``task`` is given where the config does not know it (an adapter does).
    """
    return _Resolver(config, config_file, tensors, task).limits()


def text_config(config: Config, stack: str = "") -> Config:
    """The part of a config that describes the text model (of the stack ``encoder`` or ``decoder``)."""
    if stack and isinstance(config.get(stack), dict):
        return text_config(config[stack])
    if whole_number(config.get("vocab_size")) is not None:
        return config
    for key in architectures.TEXT_CONFIGS:
        part = config.get(key)
        if isinstance(part, dict):
            return text_config(part)
    return config


class _Resolver:
    def __init__(self, config: Config, config_file: str, tensors: Mapping[str, TensorInfo], task: Task | None) -> None:
        self.config = config
        self.config_file = config_file
        self.tensors = tensors
        self.tables = _find_tables(tensors.values())
        self.task: Task = task or architectures.task_of(config.get("architectures"))
        self.two_stacks = config.get("is_encoder_decoder") is True or isinstance(config.get("encoder"), dict)
        self.text_encoder = str(config.get("model_type")) not in architectures.NOT_TEXT_ENCODERS

    def limits(self) -> Limits:
        tokens = self.token_bound("encoder") if self.text_encoder or not self.two_stacks else None
        decoder_tokens = self.token_bound("decoder") if self.two_stacks else None
        classes = self.class_bound()
        task: Task = "classes" if self.task == "unknown" and classes is not None else self.task
        return Limits(
            task=task,
            tokens=tokens,
            decoder_tokens=decoder_tokens,
            output_tokens=self.output_bound(decoder_tokens or tokens),
            classes=classes,
            positions=self.position_bound("encoder") if self.text_encoder or not self.two_stacks else None,
            decoder_positions=self.position_bound("decoder") if self.two_stacks else None,
            token_types=self.token_type_bound(tokens),
            boxes=self.box_bound(),
            separate_decoder=any(key in self.config for key in ("decoder_vocab_size", "tgt_vocab_size")),
        )

    def pick(self, by_stack: Mapping[str, _Table], stack: str) -> TensorInfo | None:
        """The table of a stack: its own, else the shared one; a model of one stack may call it anything."""
        order = (stack, "") if self.two_stacks else ("", "decoder", "encoder")
        return next((by_stack[name].tensor for name in order if name in by_stack), None)

    def declared(self, config: Config, *keys: str) -> tuple[int | None, str | None]:
        for key in keys:
            value = whole_number(config.get(key))
            if value is not None and value > 0:
                return value, key
        return None, None

    def bound(self, tensor: TensorInfo | None, declared: int | None, key: str | None) -> Bound | None:
        if tensor is not None:
            return Bound(tensor.shape[0], f"{tensor.name} in {tensor.file}", tensor.file, declared, key)
        if declared is not None:
            return Bound(declared, f"{key} in {self.config_file}", self.config_file)
        return None

    def token_bound(self, stack: str) -> Bound | None:
        config = text_config(self.config, stack if self.two_stacks else "")
        keys: tuple[str, ...] = ("vocab_size",)
        if stack == "decoder":
            keys = ("decoder_vocab_size", "tgt_vocab_size", "vocab_size")
        elif "src_vocab_size" in config:
            keys = ("src_vocab_size",)
        declared, key = self.declared(config, *keys)
        if declared is not None:
            declared += architectures.EXTRA_ROWS.get(str(config.get("model_type")), 0)
            declared += whole_number(config.get("additional_vocab_size")) or 0
        tensor = self.pick(self.tables.tokens, stack)
        if tensor is None and self.task != "tokens" and self.tensors:
            return None  # no table among the weights: vocab_size may be about something else (wav2vec 2.0)
        if tensor is None and self.task == "ctc":
            return None
        return self.bound(tensor, declared, key)

    def output_bound(self, tokens: Bound | None) -> Bound | None:
        if self.task not in ("tokens", "ctc"):
            return None
        head = _find_head(self.tensors.values(), architectures.TOKEN_HEADS)
        declared, key = self.declared(text_config(self.config, "decoder" if self.two_stacks else ""), "vocab_size")
        if head is None and self.task == "tokens":
            return tokens  # tied: the rows of the embedding are the outputs
        return self.bound(head, declared, key)

    def class_bound(self) -> Bound | None:
        if self.task not in ("classes", "pixels", "unknown"):
            return None
        head = _find_head(self.tensors.values(), architectures.CLASS_HEADS)
        if head is None and self.task == "unknown":
            return None
        declared, key = class_count(self.config)
        return self.bound(head, declared, key)

    def position_bound(self, stack: str) -> Bound | None:
        config = text_config(self.config, stack if self.two_stacks else "")
        tensor = self.pick(self.tables.positions, stack) if not self.two_stacks else self.own_positions(stack)
        model_type = str(config.get("model_type"))
        rule = architectures.POSITIONS.get(model_type)
        kind = config.get("position_embedding_type")
        if (rule is not None and not rule.bounded) or (isinstance(kind, str) and kind in architectures.TABLELESS_POSITIONS):
            return None
        declared, key = self.declared(config, f"max_{stack}_position_embeddings", *_POSITION_KEYS)
        if tensor is None:
            known = (rule is not None and rule.from_config) or (
                not self.tensors and model_type in architectures.LEARNED_POSITIONS
            )
            if not known or declared is None:
                return None
            rule = rule or Positions()
            size = max(0, declared - (_offset(rule, config) if rule.included else 0))
            hazard = INDEX if rule.from_config else EMBEDDING
            return Bound(size, f"{key} in {self.config_file}", self.config_file, hazard=hazard)
        if rule is None:  # two rows more than declared: the offset of fairseq's learned positions
            rule = Positions() if declared is None or tensor.shape[0] != declared + 2 else Positions(offset=2, included=False)
        offset = _offset(rule, config)
        tokens = None if declared is None else declared - (offset if rule.included else 0)
        rows = tensor.shape[0]
        padding = offset - 1 if rule.offset == PADDING else None
        source = f"{tensor.name} in {tensor.file}"
        return Bound(max(0, rows - offset), source, tensor.file, tokens, key, rows, padding=padding)

    def own_positions(self, stack: str) -> TensorInfo | None:
        table = self.tables.positions.get(stack)
        return table.tensor if table is not None else None

    def token_type_bound(self, tokens: Bound | None) -> Bound | None:
        if str(self.config.get("model_type")) in architectures.TOKEN_TYPES_ARE_TOKENS:
            return tokens
        tensor = self.pick(self.tables.token_types, "encoder")
        if tensor is None:
            return None
        declared, key = self.declared(text_config(self.config, "encoder" if self.two_stacks else ""), "type_vocab_size")
        return self.bound(tensor, declared, key)

    def box_bound(self) -> Bound | None:
        tensor = self.pick(self.tables.boxes, "encoder")
        declared, key = self.declared(self.config, "max_2d_position_embeddings")
        return self.bound(tensor, declared, key) if tensor is not None else None


def class_count(config: Config) -> tuple[int | None, str | None]:
    """The number of classes a config declares, and the key that does: ``id2label``, ``num_labels``, or the default of 2."""
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return len(names), "id2label"
    count = whole_number(config.get("num_labels"))
    if count is not None and count > 0:
        return count, "num_labels"
    return 2, "num_labels (2 where it is not set)"


def _offset(rule: Positions, config: Config) -> int:
    if rule.offset == PADDING:
        padding = whole_number(config.get("pad_token_id"))
        return (1 if padding is None else padding) + 1
    return int(rule.offset)


def _find_tables(tensors: Iterable[TensorInfo]) -> _Tables:
    tables = _Tables()
    roles = (
        (tables.tokens, architectures.TOKEN_TABLES),
        (tables.positions, architectures.POSITION_TABLES),
        (tables.token_types, architectures.TOKEN_TYPE_TABLES),
        (tables.boxes, architectures.BOX_TABLES),
    )
    for tensor in tensors:
        *modules, last = tensor.name.split(".")
        if last != "weight" or not modules or len(tensor.shape) != 2:
            continue
        path, module = modules[:-1], modules[-1]
        if any(architectures.OTHER_MODALITIES.fullmatch(part) for part in path):
            continue
        for by_stack, names in roles:
            if module in names:
                table = _Table((names.index(module), len(path)), tensor)
                stack = _stack(path)
                if stack not in by_stack or table.rank < by_stack[stack].rank:
                    by_stack[stack] = table
    return tables


def _stack(path: list[str]) -> str:
    for part in path:
        words = part.split("_")
        if "decoder" in words:
            return "decoder"
        if "encoder" in words:
            return "encoder"
    return ""


def _find_head(tensors: Iterable[TensorInfo], names: tuple[str, ...]) -> TensorInfo | None:
    """The weight of the first head in ``names`` that is there; the least deep one where several match."""
    weights = [
        tensor
        for tensor in tensors
        if tensor.name.endswith(".weight") and len(tensor.shape) >= 2 and not architectures.NOT_A_HEAD.search(tensor.name)
    ]
    for name in names:
        pattern = re.compile(name[1:] if name.startswith("^") else rf"(?:.*\.)?{name}")
        found = [tensor for tensor in weights if pattern.fullmatch(tensor.name.removesuffix(".weight"))]
        if found:
            return min(found, key=lambda tensor: tensor.name.count("."))
    return None
