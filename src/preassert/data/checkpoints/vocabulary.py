"""Which token ids a tokenizer can produce, file by file."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from preassert.data.checkpoints.files import damaged, read_bytes, read_json, read_json_object, whole_number
from preassert.data.checkpoints.sentencepiece import read_pieces
from preassert.errors import InputError
from preassert.model import Finding

# Tokens that a tokenizer adds to itself on load when its vocabulary lacks them (checked on transformers 4 and 5).
_SPECIAL_KEYS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens", "extra_special_tokens",
)  # fmt: skip
_SENTENCEPIECE = (
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model", "sentencepiece.model", "prophetnet.tokenizer",
)  # fmt: skip
_COUNTED = re.compile(r"\S+ \d+")
# `<|im_start|>`: the form in which chat templates write special tokens
_TEMPLATE_TOKEN = re.compile(r"<[|｜][^\s<>|｜{}'\"+]{1,60}[|｜]>")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The ids that one file gives to tokens. ``column`` names the field where the file is about other things too."""

    file: str
    tokens: Mapping[int, str]
    column: str | None = None
    implied: bool = False  # the file names the tokens only; the ids are those they get on load

    def beyond(self, rows: int) -> list[tuple[int, str]]:
        """(id, token) of every token without a row in a table of ``rows``, in order of the ids."""
        return sorted((number, token) for number, token in self.tokens.items() if number >= rows or number < 0)


@dataclass(slots=True)
class Tokenizer:
    """All that a folder says about its tokenizer."""

    files: list[TokenFile] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    settings_file: str | None = None
    longest: list[tuple[str, str, int]] = field(default_factory=list)  # (file, field, tokens) that input is cut or padded to
    undefined: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # (file, tokens) of chat templates
    findings: list[Finding] = field(default_factory=list)

    def highest(self) -> int | None:
        """The highest id of any token, or None if there is no vocabulary."""
        return max((max(file.tokens) for file in self.files if file.tokens), default=None)


def read_tokenizer(folder: str, names: Iterable[str]) -> Tokenizer:
    """Read the tokenizer files among ``names``, the entries of ``folder``. Files that cannot be read become findings."""
    reader = _Reader(folder, frozenset(names))
    steps = (
        reader.settings, reader.fast, reader.listed, reader.lines, reader.sentencepiece, reader.added, reader.implied,
        reader.templates,
    )  # fmt: skip
    for step in steps:
        try:
            step()
        except InputError as error:
            reader.out.findings.append(damaged(error))
    return reader.out


class _Reader:
    def __init__(self, folder: str, names: frozenset[str]) -> None:
        self.folder = folder
        self.names = names
        self.out = Tokenizer()

    def path(self, name: str) -> str | None:
        return os.path.join(self.folder, name) if name in self.names else None

    def keep(self, file: str, tokens: Mapping[int, str], column: str | None = None, implied: bool = False) -> None:
        if tokens:
            self.out.files.append(TokenFile(file, tokens, column, implied))

    def settings(self) -> None:
        path = self.path("tokenizer_config.json")
        if path is None:
            return
        self.out.settings_file = path
        self.out.settings = settings = read_json_object(path)
        longest = whole_number(settings.get("model_max_length"))
        if longest is not None and longest < 10**9:  # transformers writes 10**30 where there is no limit
            self.out.longest.append((path, "model_max_length", longest))

    def fast(self) -> None:
        path = self.path("tokenizer.json")
        if path is None:
            return
        content = read_json_object(path)
        tokens = _model_tokens(path, content.get("model"))
        tokens.update(_added_tokens(path, content.get("added_tokens")))
        self.keep(path, tokens)
        truncation, padding = content.get("truncation"), content.get("padding")
        if isinstance(truncation, dict) and (longest := whole_number(truncation.get("max_length"))) is not None:
            self.out.longest.append((path, "truncation.max_length", longest))
        if isinstance(padding, dict) and isinstance(padding.get("strategy"), dict):
            fixed = whole_number(padding["strategy"].get("Fixed"))
            if fixed is not None:
                self.out.longest.append((path, "padding.strategy.Fixed", fixed))

    def listed(self) -> None:
        """vocab.json: GPT-2, RoBERTa, CTC, Marian ..."""
        path = self.path("vocab.json")
        if path is not None:
            content = read_json_object(path)
            target = content.get(str(self.out.settings.get("target_lang")))
            content = target if isinstance(target, dict) else content  # MMS: one vocabulary for each language
            self.keep(path, {number: token for token, value in content.items() if (number := whole_number(value)) is not None})

    def lines(self) -> None:
        """vocab.txt: BERT and its kin, where the id is the number of the line; or a dictionary of fairseq (PhoBERT, BERTweet)
        with a count on each line, which begins behind four tokens of its own."""
        path = self.path("vocab.txt")
        if path is None:
            return
        try:
            lines = [line.rstrip("\n") for line in io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding="utf-8")]
        except UnicodeDecodeError as error:
            raise InputError(path, f"not UTF-8 (byte {error.start})") from error
        if lines and all(_COUNTED.fullmatch(line) for line in lines[:100]):
            lines = ["<s>", "<pad>", "</s>", "<unk>", *(line.rpartition(" ")[0] for line in lines)]
        self.keep(path, dict(enumerate(lines)))

    def sentencepiece(self) -> None:
        # Beside a vocab.json the pieces have no ids of their own (Marian, M2M100). Some tokenizers shift the ids up by a
        # few (XLM-R by 1, Pegasus by 103), so the number of pieces is a lower bound of the rows needed.
        if "vocab.json" in self.names:
            return
        for name in _SENTENCEPIECE:
            path = self.path(name)
            if path is None:
                continue
            if name == "tokenizer.model" and not _binary(path):
                self.keep(path, _ranked_tokens(path))
            else:
                self.keep(path, dict(enumerate(read_pieces(path))))

    def added(self) -> None:
        path = self.path("added_tokens.json")
        if path is not None:
            content = read_json_object(path)
            self.keep(path, {number: token for token, value in content.items() if (number := whole_number(value)) is not None})
        declared = self.out.settings.get("added_tokens_decoder")
        if isinstance(declared, dict) and self.out.settings_file:
            tokens = {int(key): _content(value) or "?" for key, value in declared.items() if key.isdecimal() and len(key) < 19}
            self.keep(self.out.settings_file, tokens, "added_tokens_decoder")

    def implied(self) -> None:
        """Special tokens that are named but not in the vocabulary get the next free ids when the tokenizer is loaded."""
        highest = self.out.highest()
        if highest is None:
            return
        known = {token for file in self.out.files for token in file.tokens.values()}
        sources = [(self.out.settings_file, self.out.settings)] if self.out.settings_file else []
        path = self.path("special_tokens_map.json")
        if path is not None:
            sources.append((path, read_json_object(path)))
        for file, content in sources:
            tokens: dict[int, str] = {}
            for key in _SPECIAL_KEYS:
                for token in _named_tokens(content.get(key)):
                    if token not in known:
                        known.add(token)
                        highest += 1
                        tokens[highest] = token
            self.keep(file, tokens, "special tokens", implied=True)

    def templates(self) -> None:
        known = {token for file in self.out.files for token in file.tokens.values()}
        if not known:
            return
        for file, text in self._template_texts():
            absent = [token for token in dict.fromkeys(_TEMPLATE_TOKEN.findall(text)) if token not in known]
            if absent:
                self.out.undefined.append((file, tuple(absent)))

    def _template_texts(self) -> list[tuple[str, str]]:
        texts: list[tuple[str, str]] = []
        template = self.out.settings.get("chat_template")
        if self.out.settings_file:
            texts += [(self.out.settings_file, text) for text in _template_strings(template)]
        path = self.path("chat_template.jinja")
        if path is not None:
            texts.append((path, read_bytes(path).decode("utf-8", "replace")))
        path = self.path("chat_template.json")
        if path is not None:
            content = read_json(path)
            template = content.get("chat_template") if isinstance(content, dict) else content
            texts += [(path, text) for text in _template_strings(template)]
        return texts


def _model_tokens(path: str, model: Any) -> dict[int, str]:
    """id -> token of the ``model`` of a tokenizer.json: a mapping (BPE, WordPiece, WordLevel) or a list (Unigram)."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and all(type(number) is int for number in vocabulary.values()):
        return {number: token for token, number in vocabulary.items()}
    if isinstance(vocabulary, list) and all(isinstance(entry, list) and entry[:1] != [] for entry in vocabulary):
        return {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
    raise InputError(path, "its model has no vocabulary (`model.vocab`)")


def _added_tokens(path: str, added: Any) -> dict[int, str]:
    if added is None:
        return {}
    tokens: dict[int, str] = {}
    for entry in added if isinstance(added, list) else [added]:
        fields = entry if isinstance(entry, dict) else {}
        number, content = whole_number(fields.get("id")), fields.get("content")
        if number is None or not isinstance(content, str):
            raise InputError(path, "its added_tokens are not a list of objects with id and content")
        tokens[number] = content
    return tokens


def _content(value: Any) -> str | None:
    """The text of a token written as a string or as an AddedToken object; None for an empty or absent one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _named_tokens(value: Any) -> list[str]:
    if isinstance(value, dict) and "content" not in value:  # extra_special_tokens: {"image_token": "<image>"}
        value = list(value.values())
    return [token for entry in (value if isinstance(value, list) else [value]) if (token := _content(entry)) is not None]


def _template_strings(template: Any) -> list[str]:
    """A chat template is a string, or a list of named ones."""
    if isinstance(template, str):
        return [template]
    if isinstance(template, list):
        return [entry["template"] for entry in template if isinstance(entry, dict) and isinstance(entry.get("template"), str)]
    return []


def _binary(path: str) -> bool:
    """Whether ``tokenizer.model`` is a protocol buffer, and not the text file of tiktoken that Llama 3 ships under that name."""
    head = read_bytes(path)[:64]
    return not (head and re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", head))


def _ranked_tokens(path: str) -> dict[int, str]:
    """tiktoken: one ``base64 rank`` a line."""
    tokens = {}
    for line in read_bytes(path).splitlines():
        text, _, rank = line.partition(b" ")
        if rank.isdigit() and len(rank) < 19:
            tokens[int(rank)] = text.decode("ascii", "replace")
    return tokens
