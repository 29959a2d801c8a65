"""Data held against a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preassert.data.checkpoints import check

EMBEDDING = "embedding-index-out-of-range"
TARGET = "target-out-of-range"


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    def write(*records: dict[str, Any]) -> str:
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return str(path)

    return write


def seen(folder: Path, path: str) -> list[tuple[Any, ...]]:
    report = check(str(folder), [path])
    return [(f.hazard, f.where.column, f.where.rows, f.values, f.count) for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"input_ids": [0, 59], "token_type_ids": [0, 1], "labels": 2}, []),
        ({"input_ids": [0] * 24, "label": 0}, []),
        ({"input_ids": [60, 5, 61]}, [(EMBEDDING, "input_ids", (2,), (60, 61), 2)]),
        ({"input_ids": [-100, 5]}, [(EMBEDDING, "input_ids", (2,), (-100,), 1)]),  # ignore_index is for labels
        ({"input_ids": [5] * 25}, [(EMBEDDING, "input_ids", (2,), (25,), 1)]),
        ({"token_type_ids": [2]}, [(EMBEDDING, "token_type_ids", (2,), (2,), 1)]),
        ({"position_ids": [23, 24]}, [(EMBEDDING, "position_ids", (2,), (24,), 1)]),
        ({"labels": 3}, [(TARGET, "labels", (2,), (3,), 1)]),
        ({"label": -1}, [(TARGET, "label", (2,), (-1,), 1)]),
        ({"labels": -100}, []),
        ({"label": "yes"}, []),
        ({"label": "perhaps"}, [(TARGET, "label", (2,), ("perhaps",), 1)]),
    ],
)
def test_a_classifier(record: dict[str, Any], expected: Any, bert: Path, rows: Any) -> None:
    first: dict[str, Any] = {"input_ids": [1], "token_type_ids": [0], "position_ids": [0], "labels": 0, "label": 0}
    if isinstance(record.get("label"), str):
        first["label"] = "no"
    kept = {key: value for key, value in first.items() if key in record}
    assert seen(bert, rows(kept, record)) == expected


@pytest.mark.parametrize("changes", [{"problem_type": "regression"}, {"problem_type": "multi_label_classification"}])
def test_labels_that_are_no_classes(changes: Any, bert: Path, edit: Any, rows: Any) -> None:
    edit(bert / "config.json", **changes)
    assert seen(bert, rows({"input_ids": [1], "labels": 7.5})) == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"input_ids": [63] * 100, "labels": [-100] * 99 + [63]}, []),  # rotary positions have no end
        ({"input_ids": [64], "labels": [-100]}, [(EMBEDDING, "input_ids", (1,), (64,), 1)]),
        ({"input_ids": [1], "labels": [64]}, [(TARGET, "labels", (1,), (64,), 1)]),
        ({"input_ids": [1], "labels": [-1]}, [(TARGET, "labels", (1,), (-1,), 1)]),
    ],
)
def test_a_language_model(record: dict[str, Any], expected: Any, llama: Path, rows: Any) -> None:
    assert seen(llama, rows(record)) == expected


BART = {
    "model.shared.weight": (30, 8),
    "model.encoder.embed_positions.weight": (12, 8),
    "model.decoder.embed_positions.weight": (8, 8),
}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"input_ids": [29] * 10, "labels": [29] * 6}, []),
        ({"input_ids": [29] * 11}, [(EMBEDDING, "input_ids", (1,), (11,), 1)]),
        ({"labels": [29] * 7}, [(EMBEDDING, "labels", (1,), (7,), 1)]),
        ({"decoder_input_ids": [30]}, [(EMBEDDING, "decoder_input_ids", (1,), (30,), 1)]),
    ],
)
def test_an_encoder_and_a_decoder(
    record: dict[str, Any], expected: Any, tmp_path: Path, rows: Any, edit: Any, write_safetensors: Any
) -> None:
    folder = tmp_path / "bart"
    folder.mkdir()
    edit(
        folder / "config.json",
        model_type="bart",
        architectures=["BartForConditionalGeneration"],
        is_encoder_decoder=True,
        vocab_size=30,
    )
    write_safetensors(folder / "model.safetensors", BART)
    assert seen(folder, rows(record)) == expected


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "npy"])
def test_padding_takes_up_no_position(kind: str, tmp_path: Path, rows: Any, edit: Any, write_safetensors: Any) -> None:
    """RoBERTa numbers only the tokens that are no padding."""
    folder = tmp_path / "roberta"
    folder.mkdir()
    edit(folder / "config.json", model_type="roberta", pad_token_id=1, architectures=["RobertaForMaskedLM"])
    shapes = {"roberta.embeddings.word_embeddings.weight": (30, 8), "roberta.embeddings.position_embeddings.weight": (12, 8)}
    write_safetensors(folder / "model.safetensors", shapes)
    ids = [[5] * 10 + [1] * 5, [5] * 12 + [1] * 3]
    if kind == "jsonl":
        path = rows(*({"input_ids": row} for row in ids))
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = str(tmp_path / "data.parquet")
        parquet.write_table(arrow.table({"input_ids": ids}), path)
    else:
        numpy = pytest.importorskip("numpy")
        path = str(tmp_path / "data.npz")
        numpy.savez(path, input_ids=numpy.array(ids))
    assert seen(folder, path) == [(EMBEDDING, "input_ids", (2,), (12,), 1)]


def test_segmentation_labels(tmp_path: Path, rows: Any, edit: Any, write_safetensors: Any) -> None:
    folder = tmp_path / "segformer"
    folder.mkdir()
    names = {str(number): f"c{number}" for number in range(4)}
    edit(folder / "config.json", model_type="segformer", architectures=["SegformerForSemanticSegmentation"], id2label=names)
    write_safetensors(folder / "model.safetensors", {"decode_head.classifier.weight": (4, 8, 1, 1)})
    assert seen(folder, rows({"labels": [[0, 3], [255, 1]]})) == []
    assert seen(folder, rows({"labels": [[0, 4], [255, 1]]})) == [(TARGET, "labels", (1,), (4,), 1)]


def test_prompts_take_up_positions(bert: Path, tmp_path: Path, rows: Any, edit: Any, write_safetensors: Any) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "P_TUNING", "task_type": "SEQ_CLS", "num_virtual_tokens": 4}
    edit(adapter / "adapter_config.json", base_model_name_or_path="bert", **settings)
    write_safetensors(adapter / "adapter_model.safetensors", {"prompt_embeddings": (4, 8)})
    assert seen(adapter, rows({"input_ids": [1] * 20})) == []
    assert seen(adapter, rows({"input_ids": [1] * 21})) == [(EMBEDDING, "input_ids", (1,), (21,), 1)]


def test_data_without_a_column_that_the_model_reads(bert: Path, rows: Any) -> None:
    report = check(str(bert), [rows({"text": "a"})])
    assert [f.severity for f in report.findings] == ["warning"]
    assert "input_ids" in report.findings[0].message


def test_the_report_says_what_sets_the_bound(bert: Path, rows: Any) -> None:
    findings: Sequence[Any] = check(str(bert), [rows({"input_ids": [60]})]).findings
    (finding,) = [f for f in findings if f.severity == "error"]
    assert "bert.embeddings.word_embeddings.weight" in finding.message
    assert finding.fix is not None
    assert "tokenize" in finding.fix
