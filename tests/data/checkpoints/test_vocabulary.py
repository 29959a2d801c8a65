"""Which ids a tokenizer can produce, from each kind of file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints.vocabulary import read_tokenizer


def read(folder: Path) -> Any:
    return read_tokenizer(str(folder), sorted(path.name for path in folder.iterdir()))


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


SETTINGS, MAP = "tokenizer_config.json", "special_tokens_map.json"
WORDS = {"a": 0, "b": 1, "c": 7}
ADDED = [{"id": 9, "content": "<x>"}]


@pytest.mark.parametrize(
    ("files", "highest"),
    [
        ({"tokenizer.json": as_json({"model": {"type": "BPE", "vocab": WORDS}})}, 7),
        ({"tokenizer.json": as_json({"model": {"type": "WordLevel", "vocab": WORDS}, "added_tokens": ADDED})}, 9),
        ({"tokenizer.json": as_json({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.5]]}})}, 1),
        ({"tokenizer.json": as_json({"model": {"vocab": {}}})}, None),
        ({"vocab.json": as_json(WORDS), "merges.txt": b"a b\n"}, 7),
        (
            {"vocab.json": as_json({"eng": {"a": 0}, "fra": {"a": 5}}), "tokenizer_config.json": as_json({"target_lang": "fra"})},
            5,
        ),
        ({"vocab.txt": "[PAD]\n[UNK]\ncaf\u00e9\n\u2028\n".encode()}, 3),
        ({"vocab.txt": b"a\nb"}, 1),
        ({"vocab.txt": b"the 17\nof 9\n", MAP: as_json({"bos_token": "<s>", "pad_token": "<pad>", "mask_token": "<mask>"})}, 6),
        ({"vocab.txt": b""}, None),
        ({"vocab.txt": b"a\n", "added_tokens.json": as_json({"<x>": 4})}, 4),
        ({"vocab.txt": b"a\n", "tokenizer_config.json": as_json({"added_tokens_decoder": {"6": {"content": "<x>"}}})}, 6),
        # named, not in the vocabulary: they get the next ids on load
        ({"vocab.txt": b"a\nb\n", "tokenizer_config.json": as_json({"pad_token": "<pad>", "unk_token": "a"})}, 2),
        (
            {
                "vocab.txt": b"a\nb\n",
                "tokenizer_config.json": as_json({"extra_special_tokens": {"image": "<i>", "sound": "<s>"}}),
            },
            3,
        ),
        (
            {
                "vocab.txt": b"a\nb\n",
                "special_tokens_map.json": as_json({"additional_special_tokens": ["<x>", {"content": "<y>"}]}),
            },
            3,
        ),
        ({"vocab.txt": b"a\n", "special_tokens_map.json": as_json({"pad_token": "", "eos_token": None})}, 0),
        ({"tokenizer_config.json": as_json({"pad_token": "<pad>"})}, None),  # no vocabulary to add to
        ({"tokenizer.model": b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(5))}, 4),  # tiktoken
    ],
)
def test_highest_id(files: dict[str, bytes], highest: int | None, tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = read(tmp_path)
    assert found.findings == []
    assert found.highest() == highest


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", as_json({"model": {"vocab": {"a": "0"}}})),
        ("tokenizer.json", as_json({"model": {"vocab": [["a"], "b"]}})),
        ("tokenizer.json", as_json({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]})),
        ("tokenizer.json", b"[]"),
        ("vocab.txt", b"\xff\xfe"),
        ("vocab.json", b"null"),
        ("spiece.model", b"\x08"),
        ("added_tokens.json", b"[1"),
        ("special_tokens_map.json", b""),
    ],
)
def test_an_unreadable_file_is_a_finding_and_the_others_are_read(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"a\nb\n")
    (tmp_path / name).write_bytes(data)
    found = read(tmp_path)
    assert [(f.hazard, f.severity, Path(f.where.file).name) for f in found.findings] == [(None, "error", name)]
    assert found.highest() == (None if name == "vocab.txt" else 1)


def test_transformers_gives_missing_special_tokens_the_ids_expected_here(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="[UNK]").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.update(pad_token="<pad>", eos_token="<eos>")
    (tmp_path / "tokenizer_config.json").write_bytes(as_json(settings))
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = read(tmp_path)
    assert found.highest() == max(loaded.get_vocab().values())
    implied = next(file for file in found.files if file.implied)
    assert {token: number for number, token in implied.tokens.items()} == {
        "<pad>": loaded.pad_token_id,
        "<eos>": loaded.eos_token_id,
    }


TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ '<|' + m.role + '|>' }}{% endfor %}"


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": TEMPLATE.encode()},
        {"chat_template.json": as_json({"chat_template": TEMPLATE})},
        {"tokenizer_config.json": as_json({"chat_template": TEMPLATE})},
        {"tokenizer_config.json": as_json({"chat_template": [{"name": "default", "template": TEMPLATE}]})},
    ],
)
def test_tokens_of_chat_templates(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"a\n<|im_end|>\n")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (undefined,) = read(tmp_path).undefined
    assert (Path(undefined[0]).name, undefined[1]) == (next(iter(files)), ("<|im_start|>",))


def test_lengths(tmp_path: Path) -> None:
    settings = {"model_max_length": 77}
    (tmp_path / "tokenizer_config.json").write_bytes(as_json(settings))
    content = {"model": {"vocab": {"a": 0}}, "truncation": {"max_length": 70}, "padding": {"strategy": {"Fixed": 72}}}
    (tmp_path / "tokenizer.json").write_bytes(as_json(content))
    assert [length for _, _, length in read(tmp_path).longest] == [77, 70, 72]
    (tmp_path / "tokenizer_config.json").write_bytes(as_json({"model_max_length": 10**30}))
    (tmp_path / "tokenizer.json").write_bytes(as_json({"model": {"vocab": {"a": 0}}, "padding": {"strategy": "BatchLongest"}}))
    assert read(tmp_path).longest == []


def test_beside_vocab_json_the_pieces_are_no_ids(tmp_path: Path) -> None:
    """Marian and M2M100: the ids are in vocab.json."""
    (tmp_path / "vocab.json").write_bytes(as_json(WORDS))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"not read")
    assert read(tmp_path).highest() == 7
