"""Ties a data set to a checkpoint: what each column may hold, given the model that will read it."""

from __future__ import annotations

from preassert.data.checkpoints.compare import CTC
from preassert.data.checkpoints.files import whole_number
from preassert.data.checkpoints.limits import Bound, Limits
from preassert.data.checkpoints.load import Checkpoint
from preassert.data.rules import EMBEDDING, TARGET, Rule

# Names under which transformers' collators and Trainer take labels.
LABEL_COLUMNS = ("labels", "label", "label_ids")


def rules_for(checkpoint: Checkpoint, ignore: tuple[int, ...] = (-100,)) -> list[Rule]:
    """A rule for each column that the model would look up in a table or hold against its outputs. All are optional:
    a data set need not have every column. ``ignore`` is the ``ignore_index`` of the loss."""
    limits = checkpoint.limits
    rules = [
        _indices("input_ids", limits.tokens, limits.positions, checkpoint.virtual_tokens),
        _indices("token_type_ids", limits.token_types),
        _indices("decoder_input_ids", limits.decoder_tokens, limits.decoder_positions),
        _indices("bbox", limits.boxes),
        _positions(limits.positions),
    ]
    rules += [_labels(column, checkpoint, ignore) for column in LABEL_COLUMNS]
    return [rule for rule in rules if rule is not None]


def _indices(column: str, rows: Bound | None, positions: Bound | None = None, taken: int = 0) -> Rule | None:
    if rows is None and positions is None:
        return None
    bound_by = " and ".join(dict.fromkeys(bound.source for bound in (rows, positions) if bound is not None))
    return Rule(
        column,
        lowest=None if rows is None else 0,
        highest=None if rows is None else rows.size - 1,
        ignore=(),
        hazard=EMBEDDING,
        max_length=None if positions is None else max(0, positions.size - taken),
        padding=None if positions is None else positions.padding,
        length_hazard=EMBEDDING if positions is None else positions.hazard,
        optional=True,
        bound_by=bound_by,
        fix=_FIXES.get(column),
    )


_FIXES = {
    "input_ids": "tokenize with the tokenizer of this checkpoint, truncation=True and max_length as stated; after adding "
    "tokens, model.resize_token_embeddings(len(tokenizer))",
    "token_type_ids": "leave token_type_ids out (return_token_type_ids=False): this model has no rows for that many segments",
    "bbox": "scale the boxes to 0..1000 by the page's width and height",
}


def _positions(bound: Bound | None) -> Rule | None:
    if bound is None or bound.rows is None:
        return None
    fix = "number each sequence from 0"
    return Rule("position_ids", 0, bound.rows - 1, (), hazard=EMBEDDING, optional=True, bound_by=bound.source, fix=fix)


def _labels(column: str, checkpoint: Checkpoint, ignore: tuple[int, ...]) -> Rule | None:
    limits = checkpoint.limits
    if limits.task == "tokens" and limits.output_tokens is not None:
        bound, length = limits.output_tokens, limits.decoder_positions
        fix = "labels of a language model are token ids: tokenize with the tokenizer of this checkpoint"
        max_length = None if length is None else length.size
        return Rule(
            column, 0, bound.size - 1, ignore, hazard=TARGET, max_length=max_length, optional=True, bound_by=bound.source, fix=fix
        )
    if limits.task == "ctc" and limits.output_tokens is not None:
        bound = limits.output_tokens
        fix = "transcribe with the tokenizer of this checkpoint, or train a head with vocab_size=len(tokenizer)"
        return Rule(column, 0, bound.size - 1, ignore, hazard=CTC, optional=True, bound_by=bound.source, fix=fix)
    if limits.task in ("classes", "pixels") and limits.classes is not None and not _not_classes(checkpoint, limits):
        bound = limits.classes
        if limits.task == "pixels":
            ignore = (whole_number(checkpoint.config.get("semantic_loss_ignore_index")) or 255,)
        names = _names(checkpoint, bound.size)
        return Rule(column, 0, bound.size - 1, ignore, names=names, hazard=TARGET, optional=True, bound_by=bound.source)
    return None


def _not_classes(checkpoint: Checkpoint, limits: Limits) -> bool:
    """Whether the labels are numbers or vectors and not class ids: regression, or several labels at once."""
    kind = checkpoint.config.get("problem_type")
    return kind in ("regression", "multi_label_classification") or (limits.classes is not None and limits.classes.size == 1)


def _names(checkpoint: Checkpoint, size: int) -> tuple[str, ...] | None:
    """The class names in order, if the config names them all and they are not the placeholders LABEL_0, LABEL_1 ..."""
    names = checkpoint.config.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(number) for number in range(size)}:
        return None
    ordered = tuple(str(names[str(number)]) for number in range(size))
    return None if all(name == f"LABEL_{number}" for number, name in enumerate(ordered)) else ordered
