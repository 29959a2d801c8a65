"""Contradictions between the files of a checkpoint, on small folders made for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check
from preassert.errors import InputError, UsageError
from preassert.hazards import slugs

EMBEDDING = "embedding-index-out-of-range"
TARGET = "target-out-of-range"
CTC = "ctc-target-invalid"


def test_clean_folders_are_clean(bert: Path, llama: Path) -> None:
    assert check(str(bert)).findings == []
    assert check(str(llama)).findings == []


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("config.json", {"pad_token_id": 64}, [(EMBEDDING, "config.json", (64,))]),
        ("config.json", {"eos_token_id": [2, 70, 71]}, [(EMBEDDING, "config.json", (70, 71))]),
        ("config.json", {"vocab_size": 66}, [(EMBEDDING, "config.json", (64, 65))]),
        ("config.json", {"vocab_size": 10**15}, [(EMBEDDING, "config.json", tuple(range(64, 84)))]),
        ("generation_config.json", {"bos_token_id": 99}, [(EMBEDDING, "generation_config.json", (99,))]),
        (
            "generation_config.json",
            {"forced_bos_token_id": 64, "pad_token_id": 3},
            [(EMBEDDING, "generation_config.json", (64,))],
        ),
        ("tokenizer_config.json", {"pad_token": "<pad>", "unk_token": "t0"}, []),  # id 62, which has a row
        (
            "tokenizer_config.json",
            {"additional_special_tokens": ["<a>", "<b>", "<c>"]},
            [(EMBEDDING, "tokenizer_config.json", (64,))],
        ),
        # no fault: absent, padded, or counted from the end
        ("config.json", {"pad_token_id": None}, []),
        ("config.json", {"pad_token_id": -1}, [(EMBEDDING, "config.json", (-1,))]),  # generation pads with it
        ("config.json", {"eos_token_id": -1}, []),  # never met
        ("config.json", {"pad_token_id": 63}, []),
        ("config.json", {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}, []),  # not a classifier
        ("config.json", {"vocab_size": 62}, []),  # fewer than the rows, and enough for the tokenizer: a warning
        ("generation_config.json", {"suppress_tokens": [99]}, []),  # only masked: a warning
        ("tokenizer_config.json", {"model_max_length": 4096}, []),  # rotary positions have no end
        ("tokenizer_config.json", {"chat_template": "<|im_start|>"}, []),  # split into pieces: a warning
    ],
)
def test_a_language_model(name: str, changes: Any, expected: Any, llama: Path, edit: Any, errors: Any) -> None:
    edit(llama / name, **changes)
    assert errors(check(str(llama)).findings) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 62}, "vocab_size is 62"),
        ({"suppress_tokens": [99]}, "suppress_tokens is 99"),
    ],
)
def test_warnings(changes: Any, words: str, llama: Path, edit: Any) -> None:
    edit(llama / "config.json", **changes)
    report = check(str(llama))
    (finding,) = report.findings
    assert (finding.severity, finding.hazard) == ("warning", EMBEDDING)
    assert words in finding.message
    assert report.exit_code() == 0
    assert report.exit_code("warning") == 1


@pytest.mark.parametrize(
    ("key", "severity"), [("pad_token_id", "error"), ("eos_token_id", "warning"), ("sep_token_id", "warning")]
)
def test_only_padding_is_looked_up_in_a_model_that_does_not_generate(key: str, severity: str, bert: Path, edit: Any) -> None:
    edit(bert / "config.json", **{key: 50256})
    assert [f.severity for f in check(str(bert)).findings] == [severity]


def test_a_head_with_fewer_rows_than_the_embedding(llama: Path, write_safetensors: Any, errors: Any) -> None:
    write_safetensors(llama / "model.safetensors", {"model.embed_tokens.weight": (64, 8), "lm_head.weight": (60, 8)})
    assert errors(check(str(llama)).findings) == [(TARGET, "model.safetensors", (60, 61))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}, [(TARGET, "config.json", (3,))]),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}, "label2id": {}}, [(TARGET, "config.json", (3,))]),
        ({"label2id": {"no": 1, "maybe": 2, "yes": 3}}, [(TARGET, "config.json", (3,))]),
        ({"id2label": {"-1": "none", "0": "a", "1": "b"}, "label2id": {}}, [(TARGET, "config.json", (-1,))]),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}, [(TARGET, "config.json", (2,))]),
        ({"id2label": None, "label2id": None}, [(TARGET, "config.json", (2,))]),  # transformers then makes 2
        ({"id2label": None, "label2id": None, "num_labels": 3}, []),
        ({"architectures": ["BertForMultipleChoice"], "id2label": None, "label2id": None}, []),  # its head has one row
        ({"architectures": None}, []),
    ],
)
def test_a_classifier(changes: Any, expected: Any, bert: Path, edit: Any, errors: Any) -> None:
    edit(bert / "config.json", **changes)
    assert errors(check(str(bert)).findings) == expected


@pytest.mark.parametrize(
    ("positions", "changes", "expected"),
    [
        (24, {}, []),
        (20, {}, [(EMBEDDING, "tokenizer_config.json", (24,)), (EMBEDDING, "config.json", (20, 21, 22, 23))]),
        (26, {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 26}, []),  # 24 tokens
        (
            25,
            {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 25},
            [(EMBEDDING, "tokenizer_config.json", (24,))],
        ),
        (26, {"model_type": "bart"}, []),  # two rows more than max_position_embeddings
        (26, {"model_type": "some-new-model"}, []),
        (20, {"model_type": "esm", "position_embedding_type": "rotary", "max_position_embeddings": 20}, []),
        (20, {"max_position_embeddings": 20}, [(EMBEDDING, "tokenizer_config.json", (24,))]),
    ],
)
def test_positions(
    positions: int, changes: Any, expected: Any, bert: Path, edit: Any, errors: Any, write_safetensors: Any
) -> None:
    write_safetensors(
        bert / "model.safetensors",
        {
            "bert.embeddings.word_embeddings.weight": (60, 8),
            "bert.embeddings.position_embeddings.weight": (positions, 8),
            "classifier.weight": (3, 8),
        },
    )
    edit(bert / "config.json", **changes)
    edit(bert / "tokenizer_config.json", model_max_length=24)
    assert errors(check(str(bert)).findings) == expected


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_without_weights_the_config_is_believed(kind: str, bert: Path, edit: Any, errors: Any, tmp_path: Path) -> None:
    from json import dumps

    (bert / "model.safetensors").unlink()
    edit(bert / "config.json", architectures=["BertForMaskedLM"])
    assert check(str(bert)).findings == []
    vocabulary: Any = {f"t{number}": number for number in range(61)}
    content = {"model": {"type": kind, "vocab": [[t, 0.0] for t in vocabulary] if kind == "Unigram" else vocabulary}}
    (bert / "tokenizer.json").write_text(dumps(content), encoding="utf-8")
    edit(bert / "tokenizer_config.json", model_max_length=25)
    assert errors(check(str(bert)).findings) == [
        (EMBEDDING, "tokenizer.json", (60,)),
        (EMBEDDING, "tokenizer_config.json", (25,)),
    ]


CTC_CONFIG = {
    "architectures": ["Wav2Vec2ForCTC"],
    "model_type": "wav2vec2",
    "vocab_size": 4,
    "pad_token_id": 0,
    "eos_token_id": 9,
}


@pytest.mark.parametrize(
    ("changes", "letters", "expected"),
    [
        ({}, "|ABC", []),
        ({}, "|ABCDE", [(CTC, "vocab.json", (4, 5))]),
        ({"pad_token_id": 4}, "|ABC", [(CTC, "config.json", (4,))]),
        ({"vocab_size": 5}, "|ABC", [(CTC, "config.json", (4,))]),
    ],
)
def test_ctc(changes: Any, letters: str, expected: Any, tmp_path: Path, edit: Any, errors: Any, write_safetensors: Any) -> None:
    edit(tmp_path / "config.json", **{**CTC_CONFIG, **changes})
    edit(tmp_path / "vocab.json", **{letter: number for number, letter in enumerate(letters)})
    write_safetensors(tmp_path / "model.safetensors", {"lm_head.weight": (4, 8), "wav2vec2.masked_spec_embed": (8,)})
    assert errors(check(str(tmp_path)).findings) == expected


def test_tokens_that_a_ctc_tokenizer_adds_to_itself(tmp_path: Path, edit: Any, write_safetensors: Any) -> None:
    edit(tmp_path / "config.json", **CTC_CONFIG)
    edit(tmp_path / "vocab.json", **{"[PAD]": 0, "|": 1, "A": 2, "B": 3})
    edit(tmp_path / "tokenizer_config.json", bos_token="<s>", eos_token="</s>", pad_token="[PAD]")
    write_safetensors(tmp_path / "model.safetensors", {"lm_head.weight": (4, 8)})
    assert [(f.severity, f.hazard, f.values) for f in check(str(tmp_path)).findings] == [("warning", CTC, (4, 5))]


def test_text_in_a_multimodal_config(tmp_path: Path, edit: Any, errors: Any, write_safetensors: Any) -> None:
    text = {"model_type": "llama", "vocab_size": 64, "pad_token_id": 64}
    edit(tmp_path / "config.json", model_type="llava", architectures=["LlavaForConditionalGeneration"], text_config=text)
    shapes = {
        "language_model.model.embed_tokens.weight": (64, 8),
        "language_model.lm_head.weight": (64, 8),
        "vision_tower.vision_model.embeddings.position_embedding.weight": (5, 8),
    }
    write_safetensors(tmp_path / "model.safetensors", shapes)
    report = check(str(tmp_path))
    assert errors(report.findings) == [(EMBEDDING, "config.json", (64,))]
    assert set(report.scanned["checkpoint"][0]["limits"]) == {"tokens", "output_tokens"}


def test_more_inputs_than_outputs_where_the_architecture_wants_it(tmp_path: Path, edit: Any, write_safetensors: Any) -> None:
    edit(
        tmp_path / "config.json",
        model_type="mllama",
        architectures=["MllamaForConditionalGeneration"],
        text_config={"vocab_size": 64},
    )
    edit(tmp_path / "config.json", text_config={"vocab_size": 64, "model_type": "mllama_text_model"}, tie_word_embeddings=False)
    edit(tmp_path / "tokenizer.json", model={"vocab": {f"t{n}": n for n in range(65)}})
    write_safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": (72, 8), "lm_head.weight": (64, 8)})
    assert check(str(tmp_path)).findings == []


def test_every_hazard_is_in_the_catalogue(llama: Path, edit: Any) -> None:
    assert {EMBEDDING, TARGET, CTC} <= set(slugs())


def test_findings_name_value_range_and_fix(llama: Path, edit: Any) -> None:
    edit(llama / "config.json", pad_token_id=64)
    (finding,) = check(str(llama)).findings
    assert (finding.where.column, finding.value, finding.valid, finding.count) == ("pad_token_id", 64, "0..63", 1)
    assert finding.fix is not None
    assert "resize_token_embeddings" in finding.fix
    assert "model.embed_tokens.weight" in finding.message


@pytest.mark.parametrize("spelling", ["llama", "./llama", "llama/", "../{parent}/llama"])
def test_files_are_named_as_the_folder_was(spelling: str, llama: Path, edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(llama / "config.json", pad_token_id=64)
    monkeypatch.chdir(llama.parent)
    folder = spelling.format(parent=llama.parent.name)
    (finding,) = check(folder).findings
    assert finding.where.file == ("../" + llama.parent.name + "/" if spelling.startswith("..") else "") + "llama/config.json"
    monkeypatch.chdir(llama)
    (finding,) = check(".").findings
    assert finding.where.file == "config.json"


def test_pipelines_of_diffusers(tmp_path: Path, llama: Path, edit: Any, errors: Any) -> None:
    folder = tmp_path / "pipeline"
    (folder / "tokenizer").mkdir(parents=True)
    llama.rename(folder / "text_encoder")
    (folder / "text_encoder" / "tokenizer.json").rename(folder / "tokenizer" / "tokenizer.json")
    edit(folder / "model_index.json", _class_name="StableDiffusionPipeline")
    assert check(str(folder)).findings == []
    edit(folder / "tokenizer" / "added_tokens.json", **{"<sks>": 64})
    assert errors(check(str(folder)).findings) == [(EMBEDDING, "added_tokens.json", (64,))]


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither config"):
        check(str(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        check(str(tmp_path / "missing"))
