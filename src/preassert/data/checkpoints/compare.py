"""Holds the files of a checkpoint against each other: everything that can name an index, against the rows there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from preassert.data.checkpoints import architectures
from preassert.data.checkpoints.files import whole_number
from preassert.data.checkpoints.limits import Bound, Config, text_config
from preassert.data.checkpoints.load import Checkpoint
from preassert.data.checkpoints.vocabulary import TokenFile
from preassert.data.rules import EMBEDDING, TARGET
from preassert.model import Finding, Severity, Where

CTC = "ctc-target-invalid"
SHOWN_VALUES = 20

# Ids that are looked up: padding by every model, the others by ``generate``.
_GENERATED_IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
# Ids that are only compared with, or masked: out of range they do no harm, but they show that files do not belong together.
_COMPARED_IDS = ("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "suppress_tokens", "begin_suppress_tokens")
# A negative one of these is fed as it is: generation pads finished sentences with it (Llama 1: pad_token_id -1).
_FED_AS_THEY_ARE = frozenset({"pad_token_id", "bos_token_id", "decoder_start_token_id", "forced_bos_token_id"})
_DECODER_IDS = frozenset({"decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"})
_RESIZE = "model.resize_token_embeddings(len(tokenizer)) before training, and save the model and the tokenizer together"


def findings_of(checkpoint: Checkpoint) -> list[Finding]:
    """All contradictions within the checkpoint."""
    found: list[Finding] = []
    for step in (_tokens, _output_tokens, _vocabulary_size, _special_ids, _classes, _lengths, _token_types, _adapter, _templates):
        found.extend(step(checkpoint))
    return found


def _tokens(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Tokens of the tokenizer without a row in the embedding (or, for CTC, in the head)."""
    limits = checkpoint.limits
    bound, hazard, what = limits.tokens or limits.decoder_tokens, EMBEDDING, "the embedding"
    if limits.task == "ctc":
        bound, hazard, what = limits.output_tokens, CTC, "the head"
    if bound is None:
        return
    for file in checkpoint.tokenizer.files:
        beyond = file.beyond(bound.size)
        if beyond:
            yield _finding(
                hazard,
                file.file,
                file.column,
                [number for number, _ in beyond],
                f"{_name(beyond)} {_given(file, beyond)}; {what} has {bound.size:,} rows ({bound.source})",
                bound,
                # no transcript holds the tokens that a CTC tokenizer adds to itself (<s>, </s>)
                severity="warning" if hazard == CTC and file.implied else "error",
                fix="train the head with vocab_size=len(tokenizer)" if hazard == CTC else _RESIZE,
            )


def _given(file: TokenFile, beyond: list[tuple[int, str]]) -> str:
    ids = _ids([number for number, _ in beyond])
    if file.implied:
        return f"{'is' if len(beyond) == 1 else 'are'} not in the vocabulary and added on load as {ids}"
    return f"{'has' if len(beyond) == 1 else 'have'} {ids}"


def _output_tokens(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Tokens that the embedding has a row for and the output head has not: as a label they are out of range."""
    limits = checkpoint.limits
    rows, head = limits.decoder_tokens or limits.tokens, limits.output_tokens
    if limits.task != "tokens" or rows is None or head is None or head.size >= rows.size or limits.separate_decoder:
        return
    if rows.declared is not None and rows.key and head.declared is not None and rows.declared > head.declared:
        return  # an architecture with more inputs than outputs (mllama)
    for file in checkpoint.tokenizer.files:
        lost = [(number, token) for number, token in file.beyond(head.size) if 0 <= number < rows.size]
        if lost:
            yield _finding(
                TARGET,
                head.file,
                head.source.partition(" in ")[0],
                [number for number, _ in lost],
                f"{_name(lost)} ({_ids([number for number, _ in lost])}) cannot be a label: the output head has {head.size:,} "
                f"rows ({head.source}), the embedding {rows.size:,}",
                head,
                fix="resize the output head as well: model.resize_token_embeddings(len(tokenizer)) does both",
            )
            return


def _vocabulary_size(checkpoint: Checkpoint) -> Iterator[Finding]:
    """``vocab_size`` in the config against the rows."""
    if checkpoint.adapter_file is not None:
        return  # the config is that of the base, the rows may be the adapter's own: see _adapter
    for bound in dict.fromkeys((checkpoint.limits.tokens, checkpoint.limits.decoder_tokens)):
        if bound is None or bound.declared is None or checkpoint.config_file is None:
            continue
        if bound.declared > bound.size:
            yield _promised(checkpoint, bound, EMBEDDING)
        elif bound.declared < bound.size:
            highest = checkpoint.tokenizer.highest()
            used = highest is not None and highest >= bound.declared
            values = range(bound.declared, min(bound.size, (highest or 0) + 1)) if used else ()
            message = f"{bound.key} is {bound.declared:,}, {bound.source} has {bound.size:,} rows"
            if used:
                message += f"; the tokenizer goes up to id {highest:,}"
            yield _finding(
                EMBEDDING,
                checkpoint.config_file,
                bound.key,
                values,
                message,
                bound,
                severity="error" if used else "warning",
                valid=f"0..{bound.declared - 1}",
                fix=f'set "{bound.key}": {bound.size} in config.json',
            )


def _promised(checkpoint: Checkpoint, bound: Bound, hazard: str, noun: str = "rows") -> Finding:
    """The config promises more than the table has."""
    return _finding(
        hazard,
        checkpoint.config_file or checkpoint.folder,
        bound.key,
        range(bound.size, bound.declared or bound.size),
        f"{bound.key} promises {bound.declared:,} {noun}, there are {bound.size:,} ({bound.source})",
        bound,
        fix="the weights and config.json do not belong together: save them again from one model",
    )


def _special_ids(checkpoint: Checkpoint) -> Iterator[Finding]:
    limits = checkpoint.limits
    if limits.task == "ctc":
        yield from _blank(checkpoint)
        return
    tokens = limits.tokens or limits.decoder_tokens
    if tokens is None:
        return
    decoder = limits.decoder_tokens or tokens
    for file, content in _configs(checkpoint):
        parts = [content] if text_config(content) is content else [content, text_config(content)]
        seen: set[tuple[str, int]] = set()
        generates = file == checkpoint.generation_file or architectures.generates(checkpoint.config.get("architectures"))
        for key in ("pad_token_id", *_GENERATED_IDS, *_COMPARED_IDS):
            bound = decoder if key in _DECODER_IDS else tokens
            fed = key == "pad_token_id" or (generates and key in _GENERATED_IDS)
            lowest = 0 if key in _FED_AS_THEY_ARE else -1
            bad = [number for part in parts for number in _listed(part.get(key)) if not lowest <= number < bound.size]
            bad = [number for number in dict.fromkeys(bad) if (key, number) not in seen]
            seen.update((key, number) for number in bad)
            if bad:
                yield _finding(
                    EMBEDDING,
                    file,
                    key,
                    bad,
                    f"{key} is {', '.join(map(str, bad[:SHOWN_VALUES]))}; the embedding has {bound.size:,} rows ({bound.source})",
                    bound,
                    severity="error" if fed else "warning",
                    fix=_RESIZE if fed else f"set {key} to what the tokenizer has",
                )


def _blank(checkpoint: Checkpoint) -> Iterator[Finding]:
    head = checkpoint.limits.output_tokens
    blank = whole_number(checkpoint.config.get("pad_token_id"))
    if head is not None and blank is not None and blank >= head.size and checkpoint.config_file:
        yield _finding(
            CTC,
            checkpoint.config_file,
            "pad_token_id",
            [blank],
            f"pad_token_id, the blank of the CTC loss, is {blank}; the head has {head.size:,} rows ({head.source})",
            head,
            fix="set pad_token_id to the id of the tokenizer's pad token",
        )
    if head is not None and head.declared is not None and head.declared > head.size:
        yield _promised(checkpoint, head, CTC)


def _configs(checkpoint: Checkpoint) -> Iterator[tuple[str, Config]]:
    if checkpoint.config_file:
        yield checkpoint.config_file, checkpoint.config
    if checkpoint.generation_file:
        yield checkpoint.generation_file, checkpoint.generation
    if checkpoint.base is not None and checkpoint.base.generation_file and not checkpoint.generation_file:
        yield checkpoint.base.generation_file, checkpoint.base.generation


def _listed(value: Any) -> list[int]:
    """An id, or a list of ids."""
    entries = value if isinstance(value, list) else [value]
    return [number for entry in entries if (number := whole_number(entry)) is not None]


def _classes(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Names of classes in the config against the rows of the classifier."""
    limits, config, file = checkpoint.limits, checkpoint.config, checkpoint.config_file
    count = whole_number(config.get("num_labels"))
    numbered = _class_ids(config)
    bound = limits.classes
    if file is None or (bound is not None and _is_of_adapter(checkpoint, bound)):
        return  # the config of the base does not know the head that came later; num_labels is passed when it is loaded
    if bound is None or bound.file == file:  # no head to look at: the config against itself
        if count is not None and count > 0 and numbered and max(numbered) >= count:
            beyond = sorted(number for number in numbered if number >= count)
            message = f"{_class_names(config, beyond)} has {_ids(beyond)}, num_labels is {count}"
            yield _finding(TARGET, file, "id2label", beyond, message, Bound(count, f"num_labels in {file}", file), fix=_LABELS)
            return
        if bound is None or not numbered:
            return
    beyond = sorted(number for number in numbered if number >= bound.size or number < 0)
    if beyond:
        message = f"{_class_names(config, beyond)} has {_ids(beyond)}; there are {bound.size} classes ({bound.source})"
        yield _finding(TARGET, file, "id2label", beyond, message, bound, fix=_LABELS)
    elif bound.file != file and (promised := count or len(numbered) or 2) != bound.size and limits.task == "classes":
        key = bound.key or "num_labels"
        yield _finding(
            TARGET,
            file,
            key,
            range(min(promised, bound.size), max(promised, bound.size)),
            f"{key} stands for {promised} classes, the head has {bound.size} rows ({bound.source}): "
            "the model cannot be loaded as it is",
            bound,
            valid=f"0..{min(promised, bound.size) - 1}",
            fix=_LABELS,
        )


def _is_of_adapter(checkpoint: Checkpoint, bound: Bound) -> bool:
    adapter = checkpoint.adapter_file
    return adapter is not None and os.path.dirname(bound.file) == os.path.dirname(adapter)


_LABELS = "make num_labels, id2label and label2id agree with the rows of the head, or train a new head with num_labels classes"


def _class_ids(config: Config) -> set[int]:
    ids: set[int] = set()
    names, numbers = config.get("id2label"), config.get("label2id")
    if isinstance(names, dict):
        ids.update(int(key) for key in names if isinstance(key, str) and key.lstrip("-").isdecimal() and len(key) < 19)
    if isinstance(numbers, dict):
        ids.update(number for value in numbers.values() if (number := whole_number(value)) is not None)
    return ids


def _class_names(config: Config, ids: Iterable[int]) -> str:
    names, numbers = config.get("id2label"), config.get("label2id")
    by_id = {str(number): str(name) for name, number in numbers.items()} if isinstance(numbers, dict) else {}
    if isinstance(names, dict):
        by_id.update({key: str(name) for key, name in names.items()})
    shown = [repr(by_id.get(str(number), "?")) for number in ids]
    return "class " + ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _lengths(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Lengths that the tokenizer cuts or pads to, and the config's own, against the position table."""
    bound = checkpoint.limits.positions
    if bound is None:
        return
    size = max(0, bound.size - checkpoint.virtual_tokens)
    for file, key, longest in checkpoint.longest:
        if longest > size:
            yield _finding(
                bound.hazard,
                file,
                key,
                [longest],
                f"{key} is {longest:,}: longer than the {size:,} tokens there are positions for ({bound.source})",
                bound,
                valid=f"at most {size}",
                fix=f"set {key} to {size}",
            )
    for limit in dict.fromkeys((bound, checkpoint.limits.decoder_positions)):
        if limit is not None and limit.declared is not None and limit.declared > limit.size:
            yield _promised(checkpoint, limit, EMBEDDING, "positions")


def _token_types(checkpoint: Checkpoint) -> Iterator[Finding]:
    bound = checkpoint.limits.token_types
    if bound is not None and bound.key == "type_vocab_size" and bound.declared is not None and bound.declared > bound.size:
        yield _promised(checkpoint, bound, EMBEDDING)


def _adapter(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.adapter_file is None or checkpoint.limits.tokens is None:
        return
    rows = checkpoint.limits.tokens
    chosen = checkpoint.adapter.get("trainable_token_indices")
    lists = list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    bad = [number for entry in lists for number in _listed(entry) if number >= rows.size or number < 0]
    if bad:
        key = "trainable_token_indices"
        message = f"{key} names {_ids(bad)}; the embedding has {rows.size:,} rows ({rows.source})"
        yield _finding(EMBEDDING, checkpoint.adapter_file, key, bad, message, rows, fix=_RESIZE)
    below = checkpoint.base.limits.tokens if checkpoint.base else None
    if below is not None and below.size != rows.size:
        yield _finding(
            EMBEDDING,
            checkpoint.adapter_file,
            None,
            [],
            f"the adapter holds an embedding of {rows.size:,} rows, its base {below.size:,}: it loads only onto a resized base",
            rows,
            severity="warning",
            fix=f"base.resize_token_embeddings({rows.size}) before PeftModel.from_pretrained",
        )


def _templates(checkpoint: Checkpoint) -> Iterator[Finding]:
    rows = checkpoint.limits.tokens
    for file, tokens in checkpoint.tokenizer.undefined if rows else ():
        yield Finding(
            EMBEDDING,
            "warning",
            Where(file, column="chat_template"),
            f"the chat template uses {', '.join(tokens[:5])}, which the tokenizer does not know as a token: it is split into "
            "pieces; added as a token, it needs a row in the embedding",
            value=tokens[0],
            values=tokens[:SHOWN_VALUES],
            count=len(tokens),
            fix="tokenizer.add_special_tokens(...), then " + _RESIZE,
        )


def _name(beyond: list[tuple[int, str]]) -> str:
    shown = ", ".join(repr(token) for _, token in beyond[:5])
    noun = "token" if len(beyond) == 1 else "tokens"
    return f"{noun} {shown}" + (f" and {len(beyond) - 5:,} more" if len(beyond) > 5 else "")


def _ids(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"id {numbers[0]}"
    shown = ", ".join(map(str, numbers[:5]))
    return f"ids {shown}" + (f", ... {numbers[-1]}" if len(numbers) > 5 else "")


def _finding(
    hazard: str,
    file: str,
    column: str | None,
    values: Sequence[int],
    message: str,
    bound: Bound,
    *,
    fix: str,
    severity: Severity = "error",
    valid: str | None = None,
) -> Finding:
    return Finding(
        hazard,
        severity,
        Where(file, column=column),
        message,
        value=values[0] if values else None,
        values=tuple(values[:SHOWN_VALUES]),
        valid=valid or f"0..{bound.size - 1}",
        # a config may promise more rows than len() can count
        count=(values.stop - values.start if isinstance(values, range) else len(values)) or None,
        fix=fix,
    )
