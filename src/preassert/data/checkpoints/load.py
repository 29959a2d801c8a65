"""Reads a checkpoint folder: configs, tokenizer, shapes of the weights, and the base model under an adapter."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from preassert.data.checkpoints.architectures import Task
from preassert.data.checkpoints.files import damaged, read_json_object
from preassert.data.checkpoints.limits import Limits, limits_of
from preassert.data.checkpoints.vocabulary import Tokenizer, read_tokenizer
from preassert.data.checkpoints.weights import TensorInfo, Weights, read_weights
from preassert.errors import InputError
from preassert.model import Finding, Where

_ADAPTER_TASKS: dict[str, Task] = {"SEQ_CLS": "classes", "TOKEN_CLS": "classes", "CAUSAL_LM": "tokens", "SEQ_2_SEQ_LM": "tokens"}
# Adapters whose learned vectors stand before the tokens and take up positions.
_PROMPT_TYPES = frozenset({"PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING"})
# PEFT wraps the modules it keeps whole; inside the file their names carry the wrapper.
_WRAPPERS = re.compile(r"\.(?:modules_to_save(?:\.default)?|base_layer|token_adapter\.base_layer)(?=\.)")


@dataclass(slots=True)
class Checkpoint:
    """What is known about one checkpoint.

    Attributes:
        folder: as the user named it; files in findings begin with it.
        configs: (file, content) of the files that may name special ids: config.json and generation_config.json.
        limits: sizes that bound inputs and labels, with the adapter's tables in place.
        virtual_tokens: positions taken by a prompt adapter.
        findings: files that cannot be read or are missing.
        files: everything that was read.
    """

    folder: str
    config: dict[str, Any] = field(default_factory=dict)
    config_file: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    generation_file: str | None = None
    adapter: dict[str, Any] = field(default_factory=dict)
    adapter_file: str | None = None
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    base: Checkpoint | None = None
    virtual_tokens: int = 0
    longest: list[tuple[str, str, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def load(folder: str, tokenizer_folder: str | None = None, depth: int = 0) -> Checkpoint:
    """Read the checkpoint in ``folder``; what cannot be read becomes a finding.

    ``tokenizer_folder``: where the tokenizer is, if not in the same folder (diffusers pipelines).

    Raises:
        InputError: the folder itself cannot be listed.
    """
    names = _files_in(folder)
    out = Checkpoint(folder)
    out.config_file, out.config = _json(out, names, "config.json")
    out.generation_file, out.generation = _json(out, names, "generation_config.json")
    out.adapter_file, out.adapter = _json(out, names, "adapter_config.json")
    tokenizer_names = names if tokenizer_folder is None else _files_in(tokenizer_folder)
    out.tokenizer = read_tokenizer(tokenizer_folder or folder, tokenizer_names)
    out.findings += out.tokenizer.findings
    out.files += sorted({file.file for file in out.tokenizer.files})
    out.longest += out.tokenizer.longest
    sentence_file, sentence = _json(out, names, "sentence_bert_config.json")
    if sentence_file and isinstance(longest := sentence.get("max_seq_length"), int):
        out.longest.append((sentence_file, "max_seq_length", longest))
    if out.adapter_file is None:
        out.tensors = _keep(out, read_weights(folder, names))
        out.limits = limits_of(out.config, out.config_file or folder, out.tensors)
    else:
        _load_adapter(out, names, depth)
    return out


def _load_adapter(out: Checkpoint, names: list[str], depth: int) -> None:
    tensors = _keep(out, read_weights(out.folder, names, "adapter_model")).values()
    own = {renamed.name: renamed for tensor in tensors if (renamed := _unwrapped(tensor))}
    name = out.adapter.get("base_model_name_or_path")
    location = find_base(name, out.folder) if isinstance(name, str) and name and depth < 3 else None
    if location is None:
        path_like = isinstance(name, str) and name.startswith((".", "/", "~"))
        out.findings.append(
            Finding(
                None,
                "error" if path_like else "warning",
                Where(out.adapter_file or out.folder),
                f"the base model {name!r} is not on this machine: rows of its embedding are not known",
                fix="check where the base model is, or name it by a folder in base_model_name_or_path",
            )
        )
    else:
        out.base = load(location, depth=depth + 1)
        out.findings += out.base.findings
        out.files += out.base.files
        if not out.config_file:
            out.config, out.config_file = out.base.config, out.base.config_file
        if not out.tokenizer.files:
            out.tokenizer = out.base.tokenizer
    out.tensors = _merged(out.base.tensors if out.base else {}, own)
    if out.base is not None or own:
        task = _ADAPTER_TASKS.get(str(out.adapter.get("task_type")))
        out.limits = limits_of(out.config, out.config_file or out.folder, out.tensors, task)
    if str(out.adapter.get("peft_type")) in _PROMPT_TYPES and isinstance(out.adapter.get("num_virtual_tokens"), int):
        out.virtual_tokens = max(0, out.adapter["num_virtual_tokens"])


def find_base(name: str, adapter_folder: str) -> str | None:
    """The folder of the base model that an adapter names: a path (from here, or from where the adapter is), or a model in
    the local cache of the Hugging Face hub. None: it is not on this machine."""
    above = os.path.dirname(os.path.normpath(adapter_folder))
    for folder in (name, os.path.join(above, name), os.path.join(adapter_folder, name)):
        if os.path.isfile(os.path.join(folder, "config.json")) or os.path.isfile(os.path.join(folder, "adapter_config.json")):
            return os.path.normpath(folder)
    return _cached(name)


def _cached(name: str) -> str | None:
    if not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)?", name):
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    snapshots = os.path.join(cache, "models--" + name.replace("/", "--"), "snapshots")
    try:
        with open(os.path.join(os.path.dirname(snapshots), "refs", "main"), encoding="ascii") as file:
            revision = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = os.path.join(snapshots, revision)
    return folder if re.fullmatch(r"[0-9a-f]+", revision) and os.path.isfile(os.path.join(folder, "config.json")) else None


def _unwrapped(tensor: TensorInfo) -> TensorInfo | None:
    """A tensor of an adapter under the name it has in the model; None for the low-rank factors themselves."""
    if ".lora_" in tensor.name or "prompt_embeddings" in tensor.name:
        return None
    name = _WRAPPERS.sub("", tensor.name.removeprefix("base_model.model."))
    return TensorInfo(name, tensor.dtype, tensor.shape, tensor.file)


def _merged(base: Mapping[str, TensorInfo], own: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors of the model with those of the adapter in their places; a prefix more or less does not matter."""
    merged = dict(base)
    for name, tensor in own.items():
        for known in base:
            if known == name or known.endswith("." + name) or name.endswith("." + known):
                merged.pop(known, None)
        merged[name] = tensor
    return merged


def _files_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if _is_file(entry))
    except OSError as error:
        raise InputError(folder, error.strerror or str(error)) from error


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _json(out: Checkpoint, names: list[str], name: str) -> tuple[str | None, dict[str, Any]]:
    if name not in names:
        return None, {}
    path = os.path.join(out.folder, name)
    try:
        content = read_json_object(path)
    except InputError as error:
        out.findings.append(damaged(error))
        return None, {}
    out.files.append(path)
    return path, content


def _keep(out: Checkpoint, weights: Weights) -> dict[str, TensorInfo]:
    out.findings += weights.findings
    out.files += weights.files
    return weights.tensors
