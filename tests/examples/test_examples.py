"""Every example fails under ``preassert run`` with the right hazard, line, value, module and sample."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Expected:
    hazard: str
    source: str  # the user's line
    argument: str
    values: tuple[int | str, ...]  # distinct bad values that the report shows
    highest: int | None
    module: str | None
    samples: tuple[int, ...] | None  # None: no DataLoader; (): not knowable
    healthy_lines: int  # lines printed before it stops


EXPECTED = {
    "bert_added_token": Expected(
        "embedding-index-out-of-range", "loss = model(**batch).loss", "input", (12,), 11,
        "bert.embeddings.word_embeddings", (6,), 3,
    ),
    "bert_long_sequence": Expected(
        "embedding-index-out-of-range", 'output = model(attention_mask=(batch["input_ids"] != 0).long(), **batch)', "input",
        (32, 33, 34), 31, "bert.embeddings.position_embeddings", (7,), 7,
    ),
    "bert_num_labels": Expected(
        "target-out-of-range", "output = model(**batch)", "target", (3,), 2, "BertForSequenceClassification", (14,), 3,
    ),
    "segmentation_void_255": Expected(
        "target-out-of-range", "loss = F.cross_entropy(logits, mask.long())", "target", (255,), 3, None, (21,), 4,
    ),
    "gpt_nan_logits": Expected(
        "invalid-sampling-distribution", "ids = model.generate(", "self", ("NaN",), None, None, None, 6,
    ),
    "embedding_bag_offsets": Expected(
        "embedding-index-out-of-range", "return self.out(self.bag(ids, offsets))", "offsets", (12,), 10, "bag", (), 3,
    ),
}  # fmt: skip


def test_every_example_is_expected() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.py`" in readme and expected.hazard in readme for name, expected in EXPECTED.items())


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_stops_where_it_goes_wrong(name: str, tmp_path: Path) -> None:
    expected, report = EXPECTED[name], tmp_path / "violation.json"
    done = subprocess.run(
        [sys.executable, "-m", "preassert", "run", "--json", str(report), str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 65, done.stderr
    assert len(done.stdout.splitlines()) == expected.healthy_lines
    violation = json.loads(report.read_text(encoding="utf-8"))
    assert violation["hazard"] == expected.hazard
    assert violation["site"]["source"] == expected.source
    line = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()[violation["site"]["line"] - 1]
    assert line.strip() == expected.source
    assert violation["argument"] == expected.argument
    assert tuple(dict.fromkeys(element["value"] for element in violation["elements"])) == expected.values
    assert violation["highest"] == expected.highest
    assert violation["module"] == expected.module
    sample = violation["sample"]
    assert (None if sample is None else tuple(sample["indices"])) == expected.samples
    for words in (expected.hazard, f"{name}.py:{violation['site']['line']}", "likely: "):
        assert words in done.stderr
    if expected.samples:
        assert f"dataset index {expected.samples[0]}" in done.stderr
