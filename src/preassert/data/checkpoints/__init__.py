"""``preassert check ./checkpoint``: do the files of a model checkpoint belong together, and does a data set fit them?

Reads Hugging Face layouts without torch and without loading a weight: config.json, the shapes in safetensors headers,
``.bin`` files and sharded indexes, tokenizer files, generation_config.json, adapters with their base model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from preassert.data.checkpoints.compare import findings_of
from preassert.data.checkpoints.limits import Limits
from preassert.data.checkpoints.load import Checkpoint, load
from preassert.data.checkpoints.tie import rules_for
from preassert.data.rules import Report, tidy
from preassert.data.wording import note
from preassert.errors import UsageError

__all__ = ["check"]

# A diffusers pipeline: each text encoder beside its tokenizer.
_PIPELINE_PARTS = (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"), ("text_encoder_3", "tokenizer_3"))


def check(path: str, data: Sequence[str] = (), ignore: tuple[int, ...] = (-100,)) -> Report:
    """Check the checkpoint in the folder ``path``, and hold the ``data`` files against it.

    Args:
        path: folder with config.json or adapter_config.json, or a diffusers or sentence-transformers folder.
        data: tables with the columns that transformers uses (``input_ids``, ``token_type_ids``, ``labels`` or ``label`` ...);
            what :func:`preassert.data.scan.check_paths` takes.
        ignore: ``ignore_index`` of the loss.

    Returns:
        The findings: contradictions between the files of the checkpoint (hazard slug), files that are missing or cannot be
        read (hazard None), and rows of the data that do not fit. ``scanned["checkpoint"]`` says what the limits are.

    Raises:
        UsageError: ``path`` is not a checkpoint folder, or a path in ``data`` matches nothing.
        InputError: the folder cannot be listed.
        MissingExtra: a library that the format of the data needs is not installed.
    """
    parts = [load(folder, tokenizer) for folder, tokenizer in _parts(os.path.normpath(path))]
    report = Report(scanned={"checkpoint": [], "files": 0, "tensors": 0})
    for part in parts:
        if not part.files and not part.findings:
            raise UsageError(f"{part.folder}: neither config.json nor weights nor a tokenizer in it")
        report.findings += part.findings
        report.findings += findings_of(part)
        report.scanned["checkpoint"].append(_summary(part))
        report.scanned["files"] += len(part.files)
        report.scanned["tensors"] += len(part.tensors)
    report.findings = tidy(report.findings)
    if data:
        _check_data(report, parts[0], data, ignore)
    return report


def _parts(path: str) -> list[tuple[str, str | None]]:
    """(folder, folder of its tokenizer) of each model in ``path``."""
    pipeline = os.path.join(path, "model_index.json")
    if os.path.isfile(pipeline):
        found = [
            (os.path.join(path, model), os.path.join(path, tokenizer))
            for model, tokenizer in _PIPELINE_PARTS
            if os.path.isdir(os.path.join(path, model)) and os.path.isdir(os.path.join(path, tokenizer))
        ]
        if not found:
            raise UsageError(f"{path}: a diffusers pipeline without text_encoder and tokenizer: there are no token ids to check")
        return [(model, tokenizer) for model, tokenizer in found]
    modules = os.path.join(path, "modules.json")  # sentence-transformers before 2.0: the model is in a folder 0_Transformer
    inner = os.path.join(path, "0_Transformer")
    if os.path.isfile(modules) and not os.path.isfile(os.path.join(path, "config.json")) and os.path.isdir(inner):
        return [(inner, None)]
    return [(path, None)]


def _check_data(report: Report, checkpoint: Checkpoint, data: Sequence[str], ignore: tuple[int, ...]) -> None:
    from preassert.data.scan import check_paths

    rules = rules_for(checkpoint, ignore)
    if not rules:
        raise UsageError(
            f"{checkpoint.folder}: none of its tables or heads is known, so there is nothing to hold the data against"
        )
    scanned = check_paths(data, rules)
    report.extend(scanned)
    if not scanned.scanned.get("columns") and not scanned.findings:
        wanted = ", ".join(dict.fromkeys(rule.column or "" for rule in rules))
        report.findings.append(note(data[0], f"has none of the columns that this model reads ({wanted})", severity="warning"))


def _summary(checkpoint: Checkpoint) -> dict[str, object]:
    limits = checkpoint.limits
    sizes = {}
    for name in Limits.__dataclass_fields__:
        bound = getattr(limits, name)
        if hasattr(bound, "size"):
            sizes[name] = {"size": bound.size, "set_by": bound.source}
    return {
        "folder": checkpoint.folder,
        "model_type": checkpoint.config.get("model_type"),
        "task": limits.task,
        "files": len(checkpoint.files),
        "highest_token_id": checkpoint.tokenizer.highest(),
        "limits": sizes,
    }
