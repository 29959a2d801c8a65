"""The learned contract is right and complete: what is outside raises under the guard, what is inside does not."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import preassert
from preassert.cli import main
from preassert.errors import UsageError
from preassert.guard.learn import (
    Contract,
    InputContract,
    caller,
    check,
    check_contract,
    example_batch,
    in_words,
    last_accepted,
    learn,
    leaves_of,
    with_leaves,
)

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=20, num_labels=5, **TINY)
    return transformers.BertForSequenceClassification(config).eval()


def roberta() -> nn.Module:
    config = transformers.RobertaConfig(vocab_size=50, max_position_embeddings=20, type_vocab_size=1, num_labels=3, **TINY)
    return transformers.RobertaForTokenClassification(config).eval()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=20, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def llama() -> nn.Module:
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=16, **TINY)
    return transformers.LlamaForCausalLM(config).eval()


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=5, **TINY)
    return transformers.ViTForImageClassification(config).eval()


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, images: Tensor) -> Any:
        return self.net(images)


def segmentation_batch() -> Any:
    return torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64)


SEGMENTATION_LOSS = nn.CrossEntropyLoss(ignore_index=255)

# input -> (lowest, highest, legal, max_length, hazard)
EMBEDDING, TARGET = "embedding-index-out-of-range", "target-out-of-range"
EXPECTED: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[Any, ...]]]] = {
    "bert": (
        bert,
        {
            "input_ids": (0, 49, (), 20, EMBEDDING),
            "token_type_ids": (0, 1, (), 20, EMBEDDING),
            "labels": (0, 4, (-100,), None, TARGET),
        },
    ),
    "roberta": (
        roberta,
        {
            "input_ids": (0, 49, (), 18, EMBEDDING),
            "token_type_ids": (0, 0, (), 18, EMBEDDING),
            "labels": (0, 2, (-100,), 18, TARGET),
        },
    ),
    "gpt2": (
        gpt2,
        {
            "input_ids": (0, 49, (), 20, EMBEDDING),
            "token_type_ids": (0, 49, (), 20, EMBEDDING),
            "labels": (0, 49, (-100,), 20, TARGET),
        },
    ),
    "t5": (t5, {"input_ids": (0, 49, (), None, EMBEDDING), "labels": (0, 49, (-100,), None, EMBEDDING)}),
    "llama": (llama, {"input_ids": (0, 49, (), None, EMBEDDING), "labels": (0, 49, (-100,), None, TARGET)}),
    "vit": (vit, {"labels": (0, 4, (-100,), None, TARGET)}),
}


def shown(contract: Contract) -> dict[str, tuple[Any, ...]]:
    return {name: (i.lowest, i.highest, i.legal, i.max_length, i.hazard) for name, i in contract.inputs.items()}


@pytest.mark.parametrize("name", EXPECTED)
def test_contracts_of_transformers(name: str) -> None:
    make, expected = EXPECTED[name]
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    contract = learn(model)
    assert contract.depth == "constants"  # no arithmetic was needed
    assert shown(contract) == expected
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(i.uses for i in contract.inputs.values())


def test_the_contract_of_a_segmentation_model() -> None:
    contract = learn(Segmenter(), segmentation_batch(), loss=SEGMENTATION_LOSS)
    assert shown(contract) == {"1": (0, 3, (255,), None, TARGET)}
    assert contract.inputs["1"].valid == "0..3 or 255"


def draws(demand: InputContract, generator: random.Random, inside: bool) -> int:
    """A value near an end of the range, on the wanted side of it."""
    assert demand.lowest is not None
    assert demand.highest is not None
    low, high = int(demand.lowest), int(demand.highest)
    if inside:
        return generator.choice([low, high, generator.randint(low, high), *map(int, demand.legal)])
    values = [low - 1, high + 1, low - generator.randint(1, 10**6), high + generator.randint(1, 10**6)]
    return next(value for value in generator.sample(values, 4) if value not in demand.legal)


def accepted(run: Callable[[], Any]) -> bool:
    try:
        with torch.no_grad():
            run()
    except (preassert.Violation, IndexError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", [*EXPECTED, "segmentation"])
def test_random_values_at_the_boundary(name: str) -> None:
    """Every value inside is accepted by the real model under the guard; one value outside, anywhere, is not."""
    generator = random.Random(name)
    batch: Any
    loss: Callable[..., Any] | None
    if name == "segmentation":
        model, batch, loss = Segmenter(), segmentation_batch(), SEGMENTATION_LOSS
    else:
        model, loss = EXPECTED[name][0](), None
        batch = example_batch(model)
    contract = learn(model, batch, loss=loss)
    call = caller(model, loss)
    leaves = leaves_of(batch)
    with preassert.guard():
        trials(contract, leaves, lambda inputs: call(model, with_leaves(batch, inputs)), generator, name in ("gpt2", "llama"))


def trials(contract: Contract, leaves: Any, run: Callable[[Any], Any], generator: random.Random, causal: bool) -> None:
    for trial in range(30):
        filled = dict(leaves)
        for key, demand in contract.inputs.items():
            shape = leaves[key].shape
            values = [draws(demand, generator, inside=True) for _ in range(leaves[key].numel())]
            filled[key] = torch.tensor(values, dtype=torch.int64).reshape(shape)
        assert accepted(lambda inputs=filled: run(inputs)), (trial, filled)
        key = generator.choice(list(contract.inputs))
        place = generator.randrange(filled[key].numel())
        if key == "labels" and causal:
            place = 1 + place % (filled[key].numel() - 1)  # the first label of a causal model is predicted by nothing
        broken = filled[key].clone()
        broken.reshape(-1)[place] = draws(contract.inputs[key], generator, inside=False)
        assert not accepted(lambda inputs={**filled, key: broken}: run(inputs)), (trial, key, broken)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_lengths_at_the_boundary(name: str) -> None:
    model = EXPECTED[name][0]()
    longest = EXPECTED[name][1]["input_ids"][3]
    for length, fits in ((longest, True), (longest + 1, False)):
        ids = torch.full((1, length), 5)
        with torch.no_grad(), preassert.guard():
            try:
                model(input_ids=ids)
                ran = True
            except (RuntimeError, IndexError):
                ran = False
        assert ran is fits, length


# --- models of other kinds


class Offset(nn.Module):
    """Ids start at 1 in the data, rows at 0 in the table; the second table counts buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.hours = nn.Embedding(24, 4)
        self.hashed = nn.Embedding(7, 4)

    def forward(self, words: Tensor, hours: Tensor, users: Tensor, weights: Tensor) -> Tensor:
        summed = self.words(words - 1) + self.hours(torch.div(hours, 2, rounding_mode="floor")) + self.hashed(users % 7)
        return summed * weights.unsqueeze(-1)


def test_what_the_model_does_to_an_input_before_it_is_an_index() -> None:
    batch = {
        "words": torch.tensor([[1, 2, 3]]),
        "hours": torch.tensor([[0, 5, 47]]),
        "users": torch.tensor([[12345, 1, 2]]),
        "weights": torch.ones(1, 3),
    }
    contract = learn(Offset(), batch)
    assert {name: (i.lowest, i.highest) for name, i in contract.inputs.items()} == {"words": (1, 10), "hours": (0, 47)}


class Lightning(nn.Module):
    """Has a ``training_step`` that logs, as a LightningModule without a trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def log(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("you are not attached to a trainer")

    def training_step(self, batch: Any, _: int) -> Any:
        features, target = batch
        loss = nn.functional.cross_entropy(self.net(features), target)
        self.log("loss", loss)
        return loss


def test_a_lightning_module() -> None:
    model = Lightning()
    contract = learn(model, (torch.zeros(2, 4), torch.tensor([0, 2])))
    assert shown(contract) == {"1": (0, 2, (-100,), None, TARGET)}
    with pytest.raises(RuntimeError, match="trainer"):
        model.log("x", 1)  # put back


class Gathers(nn.Module):
    """``take_along_dim`` and ``one_hot`` hide their fault below; a table of real numbers is indexed too."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 6)
        self.table = torch.randn(9, 2)

    def forward(self, x: Tensor, pick: Tensor, kind: Tensor, row: Tensor) -> Any:
        hot = nn.functional.one_hot(kind, 5).float()
        return torch.take_along_dim(self.scores(x), pick, 1).sum() + hot.sum() + self.table[row].sum()


def test_composites_and_plain_indexing(take_along_dim_wraps: bool) -> None:
    batch = (torch.zeros(2, 4), torch.tensor([[1], [2]]), torch.tensor([0, 4]), torch.tensor([8, 0]))
    contract = learn(Gathers(), batch)
    from_the_end = -6 if take_along_dim_wraps else 0
    learned = {name: (i.lowest, i.highest) for name, i in contract.inputs.items()}
    assert learned == {"1": (from_the_end, 5), "2": (0, 4), "3": (-9, 8)}


class NeedsArithmetic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, ids: Tensor) -> Any:
        hidden = self.norm(self.words(ids))
        return hidden[hidden.sum(-1) > 0]  # how many rows: only the arithmetic knows


def test_control_flow_that_needs_values_runs_for_real_and_leaves_no_trace() -> None:
    model = NeedsArithmetic().train()
    mean = model.norm.running_mean.clone() if model.norm.running_mean is not None else None
    state = torch.get_rng_state()
    contract = learn(model, {"ids": torch.tensor([1, 2, 3])})
    assert contract.depth == "all"
    assert (contract.inputs["ids"].lowest, contract.inputs["ids"].highest) == (0, 10)
    assert mean is not None
    assert model.norm.running_mean is not None
    assert torch.equal(mean, model.norm.running_mean)
    assert torch.equal(state, torch.get_rng_state())


def test_probabilities() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    contract = learn(model, (torch.zeros(2, 4), torch.zeros(2, 3)), loss=nn.BCELoss())
    target = contract.inputs["1"]
    assert (target.lowest, target.highest, target.hazard) == (0.0, 1.0, "probability-outside-unit-interval")
    assert target.outside(torch.tensor([0.0, 1.0, -0.1, 1.1, float("nan")])).tolist() == [False, False, True, True, True]


def test_an_example_that_is_itself_bad() -> None:
    contract = learn(nn.Embedding(10, 4), torch.tensor([3, 99]))
    assert (contract.inputs["input"].lowest, contract.inputs["input"].highest) == (0, 9)


def test_narrow_integers_that_cannot_leave_the_range_are_not_bounded() -> None:
    assert learn(nn.Embedding(300, 4), torch.tensor([1], dtype=torch.int32)).inputs["input"].highest == 299


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="on meta tensors, F.embedding of torch 2.9 takes uint8")
def test_an_example_of_a_dtype_that_torch_refuses() -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        learn(nn.Embedding(300, 4), torch.tensor([1], dtype=torch.uint8))  # F.embedding takes no uint8


@pytest.mark.parametrize(
    ("example", "words"),
    [(None, "an example batch is needed"), ({}, "no tensors"), ({"x": torch.zeros(2, 3)}, "cannot be run on the example batch")],
)
def test_usage_errors(example: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        learn(nn.Linear(4, 3), example)


@pytest.mark.parametrize(
    ("end", "inside", "outside", "candidates"),
    [(9, 0, 1000, [9, 500]), (9, 0, 1000, []), (9, 0, 1000, [7, 11]), (0, 0, 1000, []), (-3, 5, -1000, [-3]), (-3, 5, -1000, [])],
)
def test_the_end_of_a_range_is_found(end: int, inside: int, outside: int, candidates: list[int]) -> None:
    step = 1 if outside > inside else -1
    asked: list[int] = []

    def accepts(value: int) -> bool:
        asked.append(value)
        return (value - end) * step <= 0

    assert last_accepted(accepts, inside, outside, candidates) == end
    assert len(asked) <= 25


# --- data


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.positions = nn.Embedding(20, 8)
        self.net = nn.Linear(8, 5)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        hidden = self.words(input_ids) + self.positions(torch.arange(input_ids.size(1)))
        return nn.functional.cross_entropy(self.net(hidden.mean(1)), labels)


class Reviews(Dataset[dict[str, Tensor]]):
    def __init__(self, labels: list[int], lengths: int = 6) -> None:
        self.labels = labels
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.full((self.lengths,), 3 + index % 40)
        return {"input_ids": ids, "labels": torch.tensor(self.labels[index])}


def test_data_is_held_against_the_model() -> None:
    labels = [index % 5 for index in range(40)]
    labels[13], labels[38] = 5, 7
    report = check(Classifier(), DataLoader(Reviews(labels), batch_size=8))
    (finding,) = report.findings
    assert (finding.hazard, finding.where.column, finding.values, finding.count) == (TARGET, "labels", (5, 7), 2)
    assert finding.extra["dataset_indices"] == [13, 38]
    assert finding.valid == "0..4 or -100"
    assert (report.scanned["batches"], report.scanned["rows"]) == (5, 40)
    assert report.exit_code() == 1


@pytest.mark.parametrize(("label", "grows"), [(5, True), (-1, False)])
def test_a_model_can_only_grow_for_numbers_from_0_on(label: int, grows: bool) -> None:
    (finding,) = check(Classifier(), DataLoader(Reviews([0, label, 2, 3]), batch_size=2)).findings
    assert finding.fix is not None
    assert (f"room for {label}" in finding.fix) == grows


def test_shuffled_data_names_the_same_samples() -> None:
    labels = [index % 5 for index in range(40)]
    labels[13], labels[38] = 5, 7
    loader = DataLoader(Reviews(labels), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    (finding,) = preassert.check(Classifier(), loader).findings
    assert sorted(finding.extra["dataset_indices"]) == [13, 38]


def test_clean_data_is_clean_and_some_batches_can_be_asked_for() -> None:
    loader = DataLoader(Reviews([index % 5 for index in range(40)]), batch_size=8)
    assert check(Classifier(), loader).findings == []
    assert check(Classifier(), loader, batches=2).scanned["batches"] == 2


def test_rows_that_are_too_long() -> None:
    short, long = Reviews([0] * 4), Reviews([0] * 4, lengths=21)
    loader = [next(iter(DataLoader(short, batch_size=4))), next(iter(DataLoader(long, batch_size=4)))]
    findings = check(Classifier(), loader).findings
    assert [(f.hazard, f.values, f.count) for f in findings] == [(EMBEDDING, (21,), 4)]


class Paired(nn.Module):
    """Legal one by one, not together: a row of a table that depends on two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.table(a + b)


def test_combinations_are_seen_by_running() -> None:
    loader = [{"a": torch.tensor([0]), "b": torch.tensor([0])}, {"a": torch.tensor([6, 1]), "b": torch.tensor([7, 1])}]
    (finding,) = check(Paired(), loader).findings
    assert (finding.hazard, finding.values, finding.extra["batches"]) == (EMBEDDING, (13,), [1])


def test_a_bad_first_batch_is_no_obstacle() -> None:
    loader = DataLoader(Reviews([9, 0, 1, 2]), batch_size=2)
    (finding,) = check(Classifier(), loader).findings
    assert (finding.values, finding.extra["dataset_indices"], finding.valid) == ((9,), [0], "0..4 or -100")


def test_probabilities_in_data() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Sigmoid())
    loader = [(torch.zeros(1, 4), torch.tensor([[0.5, 1.0]])), (torch.zeros(1, 4), torch.tensor([[float("nan"), 1.5]]))]
    report = check(model, loader, loss=nn.BCELoss())
    (finding,) = report.findings
    assert (finding.hazard, set(finding.values), finding.count) == ("probability-outside-unit-interval", {1.5, "NaN"}, 2)
    json.loads(json.dumps(finding.to_dict(), allow_nan=False))


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = bert()
    contract = learn(model)
    assert (contract.inputs["input_ids"].highest, contract.inputs["labels"].highest) == (49, 4)
    assert "position_ids" in contract.notes[0]  # a buffer whose values are not there


@pytest.mark.parametrize(
    ("name", "words"), [("input_ids", "input_ids"), ("1", "batch[1]"), ("1.labels", "batch[1].labels"), ("a.0", "a.0")]
)
def test_names_in_words(name: str, words: str) -> None:
    assert in_words(name) == words


def test_no_data() -> None:
    with pytest.raises(UsageError, match="no batches"):
        check(Classifier(), [])


# --- command

PROGRAM = """
import torch
from torch import nn

print("this must not reach the report")


def net():
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3)), nn.CrossEntropyLoss()


def train():
    data = [(torch.tensor([1, 2]), i % 3) for i in range(20)]
    data[11] = (torch.tensor([1, 10]), 3)
    return torch.utils.data.DataLoader(data, batch_size=4)


def nothing():
    return 7


broken = {}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_training.py").write_text(PROGRAM, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("my_training", None)


@pytest.mark.parametrize("place", ["my_training", "my_training.py"])
def test_the_command(place: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--model", f"{place}:net", "--data", f"{place}:train", "--contract", "contract.json", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    found = {(f["hazard"], f["where"]["column"], tuple(f["values"]), tuple(f["dataset_indices"])) for f in errors}
    assert found == {(EMBEDDING, "0", (10,), (11,)), (TARGET, "1", (3,), (11,))}
    contract = json.loads((program / "contract.json").read_text(encoding="utf-8"))
    assert contract["schema"] == "preassert.contract/1"
    assert {name: (entry["lowest"], entry["highest"]) for name, entry in contract["inputs"].items()} == {"0": (0, 9), "1": (0, 2)}


def test_the_command_says_what_a_model_accepts(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import transformers\n\ndef net():\n    return transformers.GPT2LMHeadModel(transformers.GPT2Config("
    text += "vocab_size=50, n_positions=20, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))\n"
    (program / "my_training.py").write_text(text, encoding="utf-8")
    assert main(["check", "--model", "my_training:net", "--contract", "c.json"]) == 0
    shown = capsys.readouterr().out
    assert "input_ids in 0..49, rows of at most 20: reaches aten::embedding in transformer.wte" in shown
    assert "labels in 0..49 or -100" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--contract", "absent.json", "--data", "my_training:train"], "absent.json: no such file"),
        (["--contract", "absent.json"], "give --data module:callable"),
        (["--model", "my_training:net", "a.csv"], "not from files"),
        (["--model", "my_training:nothing"], "gives a int, a torch.nn.Module is expected"),
        (["--model", "my_training:absent"], "has no 'absent'"),
        (["--model", "no_such_module:net"], "no module 'no_such_module'"),
        (["--model", "no_such_file.py:net"], "no such file"),
        (["--model", "my_training"], "module:callable"),
        (["--model", "my_training:net"], "an example batch is needed"),
        (["--model", "my_training:net", "--data", "my_training:nothing"], "an iterable of batches is expected"),
        (["--model", "my_training:net", "--data", "my_training:broken"], "no batches"),
    ],
)
def test_the_command_refuses(arguments: list[str], words: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert words in capsys.readouterr().err


# --- a contract that was written


def written(program: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["check", "--model", "my_training:net", "--contract", "c.json"]) == 2  # no example batch: nothing is known
    assert main(["check", "--model", "my_training:net", "--data", "my_training:train", "--contract", "c.json"]) == 1
    capsys.readouterr()
    contract: dict[str, Any] = json.loads((program / "c.json").read_text())
    return contract


def test_data_against_a_written_contract(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same findings, and the model is not built."""
    contract = written(program, capsys)
    assert json.loads(json.dumps(Contract.read("c.json").to_dict())) == contract
    text = PROGRAM.replace("def net():", "def net():\n    raise AssertionError('built')\n\ndef old():")
    (program / "later.py").write_text(text, encoding="utf-8")
    assert main(["check", "--contract", "c.json", "--data", "later.py:train", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    found = {
        (f["hazard"], f["where"]["file"], f["where"]["column"], tuple(f["values"]), tuple(f["dataset_indices"])) for f in errors
    }
    assert found == {(EMBEDDING, "later.py:train", "0", (10,), (11,)), (TARGET, "later.py:train", "1", (3,), (11,))}
    assert report["scanned"]["contract"] == contract
    assert main(["check", "--contract", "c.json", "--data", "later.py:train", "--batches", "2"]) == 0
    assert json.loads((program / "c.json").read_text()) == contract
    sys.modules.pop("later", None)


def test_inputs_that_the_batches_do_not_have(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = Contract.from_dict(written(program, capsys), "c.json")
    report = check_contract(contract, [{"0": torch.tensor([[1, 2]])}])
    assert [(f.severity, f.where.column) for f in report.findings] == [("warning", "1")]
    with pytest.raises(UsageError, match=r"batches hold input_ids; the contract is about batch\[0\], batch\[1\]"):
        check_contract(contract, [{"input_ids": torch.tensor([[1, 2]])}])


AN_INPUT = {"name": "0", "dtype": "torch.int64", "legal": [], "excluded": [], "uses": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "preassert.contract/2"}, "not a contract"),
        ({"inputs": None}, "a damaged contract"),
        ({"inputs": {"0": {}}}, "a damaged contract: no 'legal'"),
        ({"inputs": {"0": {**AN_INPUT, "highest": "9"}}}, "'9' where a number is expected"),
        ({"inputs": {"0": {**AN_INPUT, "legal": [10**400]}}}, "more than an int64 has"),
        ({"inputs": {"0": {**AN_INPUT, "hazard": "zzz"}}}, "unknown hazard 'zzz'"),
        ({"inputs": {"0": {**AN_INPUT, "uses": [{}]}}}, "a damaged contract"),
        ({"inputs": {"0": {**AN_INPUT, "more": 1}}}, "a damaged contract"),
    ],
)
def test_a_damaged_contract_is_refused(
    change: dict[str, Any], words: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"schema": "preassert.contract/1", "model": "net", "depth": "meta", "inputs": {}, "notes": []}
    (program / "c.json").write_text(json.dumps({**good, **change}))
    assert main(["check", "--contract", "c.json", "--data", "my_training:train"]) == 2
    assert words in capsys.readouterr().err
