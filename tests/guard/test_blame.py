"""Module path and sample blame, asked directly: what the guard hands over on one side, what the report says on the other."""

from __future__ import annotations

import random
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from preassert.guard import blame
from preassert.guard.site import current_frames
from preassert.model import Sample

BAD = 99  # the stray label or id in the data sets below
AT = 13  # index of the sample that has it


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    blame.watch()
    yield
    blame.unwatch()


class Rows(Dataset[Any]):
    """40 samples; ``make(i, label)`` gives one."""

    def __init__(self, make: Callable[[int, int], Any], bad: tuple[int, ...] = (AT,)) -> None:
        self.make = make
        self.bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return self.make(i, BAD if i in self.bad else i % 5)


def pair(i: int, label: int) -> tuple[Tensor, int]:
    return torch.full((3,), i / 100), label


def ids(i: int, label: int) -> Tensor:
    row = torch.arange(6) % 5
    row[i % 6] = label
    return row


def ask(tensor: Tensor, bad: float = BAD) -> Sample | None:
    flat = tensor.reshape(-1)
    mask = flat != flat if bad != bad else flat == bad
    positions = mask.nonzero().reshape(-1).tolist()
    return blame.sample(tensor, positions, flat[positions].tolist()) if positions else None


def first_violation(loader: Any, argument: Callable[[Any], Tensor], bad: float = BAD) -> Sample | None:
    """The answer at the first batch whose derived argument holds the bad value."""
    for batch in loader:
        tensor = argument(batch)
        batch = None  # the user's loop variable may be rebound: `x, y = x.to(device), y.to(device)`
        if bool((tensor != tensor).any() if bad != bad else (tensor == bad).any()):
            return ask(tensor, bad)
    raise AssertionError("no batch holds the bad value")


def label(batch: Any) -> Tensor:
    return batch[1].clone()


WEIGHTS = [9.0 if i == AT else 1.0 for i in range(40)]
LABELS = torch.tensor([BAD if i == AT else i % 5 for i in range(40)])
LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(Rows(pair), batch_size=4),
    "shuffled": lambda: DataLoader(Rows(pair), batch_size=4, shuffle=True),
    "drop_last": lambda: DataLoader(Rows(pair), batch_size=7, drop_last=True),
    "one sample": lambda: DataLoader(Rows(pair), batch_size=1),
    "weighted sampler": lambda: DataLoader(Rows(pair), batch_size=4, sampler=WeightedRandomSampler(WEIGHTS, 400)),
    "batch sampler": lambda: DataLoader(Rows(pair), batch_sampler=BatchSampler(range(39, -1, -1), 6, False)),
    "two workers": lambda: DataLoader(Rows(pair), batch_size=4, shuffle=True, num_workers=2),
    "prefetch": lambda: DataLoader(Rows(pair), batch_size=3, num_workers=1, prefetch_factor=5),
    "tensors": lambda: DataLoader(TensorDataset(torch.rand(40, 3), LABELS), 8),
    "numpy indices": lambda: DataLoader(Rows(pair), batch_sampler=[np.arange(10, 16), np.arange(3)]),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())
def test_labels_of_any_loader(make: Callable[[], Any]) -> None:
    found = first_violation(make(), label)
    assert found is not None
    assert found.indices == (AT,)


def test_persistent_workers_in_their_second_pass() -> None:
    loader = DataLoader(Rows(pair), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in loader:
        break  # a pass left early: its requests must not be taken for those of the next
    found = first_violation(loader, label)
    assert found is not None
    assert found.indices == (AT,)


@pytest.mark.skipif("in_order" not in DataLoader.__init__.__code__.co_varnames, reason="torch < 2.6")
def test_out_of_order_delivery() -> None:
    loader = DataLoader(Rows(slow_for_some), batch_size=4, num_workers=2, in_order=False)
    found = first_violation(loader, label)
    assert found is not None
    assert found.indices == (AT,)


def slow_for_some(i: int, label: int) -> tuple[Tensor, int]:
    import time

    if i < 4:
        time.sleep(0.3)
    return pair(i, label)


# What the user may do between the batch and the operator. Each row: sample, derived argument.
Item = namedtuple("Item", "x y")


class Holder:
    def __init__(self, item: Any) -> None:
        self.target = item[1]


DERIVED: dict[str, tuple[Callable[[int, int], Any], Callable[[Any], Tensor]]] = {
    "column": (pair, lambda b: b[1].unsqueeze(1)),
    "int32": (pair, lambda b: b[1].int()),
    "one-hot column, flattened": (ids, lambda b: b.flatten()),
    "transposed": (ids, lambda b: b.t().contiguous()),
    "transposed and flattened": (ids, lambda b: b.t().reshape(-1)),
    "shifted": (ids, lambda b: b[:, 1:].reshape(-1)),
    "mapping": (lambda i, y: {"input_ids": ids(i, 0), "labels": y}, lambda b: b["labels"] + 0),
    "nested": (lambda i, y: {"a": [{"b": (ids(i, 0), y)}]}, lambda b: b["a"][0]["b"][1] + 0),
    "named tuple": (lambda i, y: Item(i, y), lambda b: b.y + 0),
    "array": (lambda i, y: (np.float32(i), np.array([0, y])), lambda b: b[1][:, 1]),
    "chunk": (pair, lambda b: b[1][1:]),
    "without the ignored": (ids, lambda b: b[b != 0]),
    "twice": (ids, lambda b: torch.cat([b, b])),
    "each one twice": (pair, lambda b: b[1].repeat_interleave(2)),
    "permuted": (pair, lambda b: b[1].flip(0) + 0),
    "rows permuted": (ids, lambda b: b[torch.tensor([2, 0, 3, 1])]),
    "joined with another batch": (pair, lambda b: torch.cat([torch.tensor([3, 1, 1, 0, 2]), b[1]])),
    "mask": (lambda i, y: torch.full((2, 3), y), lambda b: b.unsqueeze(1)),
}


@pytest.mark.parametrize(("make", "argument"), DERIVED.values(), ids=DERIVED.keys())
def test_arguments_derived_from_the_batch(make: Callable[[int, int], Any], argument: Callable[[Any], Tensor]) -> None:
    found = first_violation(DataLoader(Rows(make), batch_size=4), argument)
    assert found is not None
    assert found.indices == (AT,)


def test_values_shifted_by_a_constant() -> None:
    found = first_violation(DataLoader(Rows(pair), batch_size=8), lambda b: b[1] + 1, bad=BAD + 1)
    assert found is not None
    assert found.indices == (AT,)


def test_values_masked_after_the_batch_was_made() -> None:
    def mask(batch: Tensor) -> Tensor:
        batch = batch.clone()
        batch[1, 2] = 77
        return batch

    found = first_violation(DataLoader(Rows(ids, bad=()), batch_size=4), mask, bad=77)
    assert found is not None
    assert found.indices == (1,)


def test_nan_in_the_features_reaches_the_loss() -> None:
    def features(i: int, label: int) -> Tensor:
        return torch.tensor([float("nan") if label == BAD else 0.5, 0.1])

    nan = float("nan")
    found = first_violation(DataLoader(Rows(features), batch_size=4), lambda b: b.sum(1, keepdim=True).sigmoid(), bad=nan)
    assert found is not None
    assert found.indices == (AT,)


def test_several_samples_and_the_batch_number() -> None:
    found = first_violation(DataLoader(Rows(pair, bad=(12, AT, 15)), batch_size=4), label)
    assert found is not None
    assert found.indices == (12, 13, 15)
    assert found.detail == "batch 3, rows 0, 1, 3"


def test_subset_names_both_indices() -> None:
    found = first_violation(DataLoader(Subset(Rows(pair), [3, 30, AT, 7]), batch_size=2), label)
    assert found is not None
    assert found.indices == (2,)  # as the sampler gave it
    assert found.detail is not None
    assert "13 in the data set behind the Subset" in found.detail


# custom collate functions


def sort_by_label(items: list[Any]) -> tuple[Tensor, Tensor]:
    items.sort(key=lambda item: -item[1])
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def drop_even_labels(items: list[Any]) -> tuple[Tensor, Tensor]:
    kept = [item for item in items if item[1] % 2]
    return torch.stack([x for x, _ in kept]), torch.tensor([y for _, y in kept])


def concatenate(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.cat([y for _, y in items]), torch.tensor([len(y) for _, y in items])


def with_row_numbers(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.cat([y for _, y in items]), torch.tensor([n for n, (_, y) in enumerate(items) for _ in y])


def detection(items: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*items, strict=True))


def popping(items: list[Any]) -> dict[str, Tensor]:
    return {"labels": torch.tensor([item.pop("y") for item in items])}


def padded_with_bad(items: list[Any]) -> Tensor:
    return nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=77)


def sorted_and_padded(items: list[Any]) -> Tensor:
    return nn.utils.rnn.pad_sequence(sorted(items, key=len, reverse=True), batch_first=True, padding_value=77)


def time_first(items: list[Any]) -> Tensor:
    return torch.stack(items, dim=1)


def ragged(i: int, label: int) -> tuple[int, Tensor]:
    return i, torch.tensor([*range(i % 4), label])


def growing(i: int, label: int) -> Tensor:
    return 10 * (i + 1) + torch.arange(2 if i % 4 == 1 else 4)


COLLATED: dict[str, tuple[Any, Callable[[int, int], Any], Callable[[Any], Tensor], int, tuple[int, ...]]] = {
    "sorted": (sort_by_label, pair, label, BAD, (AT,)),
    "dropped": (drop_even_labels, pair, label, BAD, (AT,)),
    "concatenated with lengths": (concatenate, ragged, lambda b: b[0], BAD, (AT,)),
    "concatenated with row numbers": (with_row_numbers, ragged, lambda b: b[0], BAD, (AT,)),
    "lists of tensors": (detection, ragged, lambda b: torch.cat(list(b[1])), BAD, (AT,)),
    "keys popped": (popping, lambda i, y: {"y": y}, lambda b: b["labels"], BAD, (AT,)),
    "padded": (padded_with_bad, growing, lambda b: b + 0, 77, (1,)),
    "sorted and padded": (sorted_and_padded, growing, lambda b: b + 0, 77, (1,)),
    "time first": (time_first, ids, lambda b: b + 0, BAD, (AT,)),
    "bytes": (
        lambda items: [bytes(item) for item in items],
        lambda i, y: b"ab" if y != BAD else b"a" + bytes([BAD]),
        lambda b: torch.tensor([list(row) for row in b]),
        BAD,
        (AT,),
    ),
}


@pytest.mark.parametrize(("collate", "make", "argument", "bad", "indices"), COLLATED.values(), ids=COLLATED.keys())
def test_custom_collate(collate: Any, make: Any, argument: Any, bad: int, indices: tuple[int, ...]) -> None:
    found = first_violation(DataLoader(Rows(make), batch_size=4, collate_fn=collate), argument, bad)
    assert found is not None
    assert found.indices == indices


def test_custom_collate_in_workers_is_checked_against_the_data_set() -> None:
    loader = DataLoader(Rows(pair), batch_size=4, num_workers=1, collate_fn=sort_by_label)
    found = first_violation(loader, label)
    assert found is not None
    assert found.indices == (AT,)


# what cannot be known is said


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([pair(i, BAD if i == AT else i % 5) for i in range(40)])


def offsets(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.cat([y for _, y in items]), torch.tensor([0] + [100 * (n + 1) for n in range(len(items) - 1)])


UNKNOWN: dict[str, tuple[Callable[[], Any], Callable[[Any], Tensor], int, str]] = {
    "iterable": (lambda: DataLoader(Stream(), batch_size=4), label, BAD, "iterable"),
    "iterable, workers": (lambda: DataLoader(Stream(), batch_size=4, num_workers=1), label, BAD, "iterable"),
    "elsewhere": (lambda: DataLoader(Rows(pair), batch_size=4), lambda b: torch.tensor([1, 2, 55]), 55, "not in the batch"),
    "positions": (lambda: DataLoader(Rows(ids, ()), batch_size=4), lambda b: torch.arange(8), 7, "not in the batch"),
    "offsets": (lambda: DataLoader(Rows(ragged, ()), 4, collate_fn=offsets), lambda b: b[1], 300, "made by collate_fn"),
    "a permutation of numbers": (
        lambda: DataLoader(Rows(lambda i, y: i + 48, ()), batch_size=8),
        lambda b: torch.tensor([55, 49, 50, 48, 51, 52, 54, 53]),
        55,
        "not in the batch",
    ),
    "bad in both of two joined": (
        lambda: DataLoader(Rows(pair), batch_size=4),
        lambda b: torch.cat([torch.tensor([3, BAD, 1, 0, 2]), b[1]]),
        BAD,
        "not in the batch",
    ),
    "rising values beside row numbers": (
        lambda: DataLoader(Rows(lambda i, y: (torch.tensor([3, 1, 3]), i), ()), batch_size=8),
        lambda b: torch.tensor([1, 3, 4, 6]),
        6,
        "not in the batch",
    ),
    "half of the labels twice": (
        lambda: DataLoader(Rows(lambda i, y: [0, 1, 2, 7, 0, 1, 2, 0][i % 8], ()), batch_size=8),
        lambda b: torch.cat([b[:4], b[:4]]),
        7,
        "not in the batch",
    ),
    "two rows that are two columns": (
        lambda: DataLoader(Rows(lambda i, y: (torch.tensor([1, 5 - i, 4]), 7 if i == 0 else 1), ()), batch_size=2),
        lambda b: b[1].flip(0) + 0,
        7,
        "not in the batch",
    ),
    "every row bad": (lambda: DataLoader(Rows(pair), batch_size=4), lambda b: torch.full((4, 2), 55), 55, "not in the batch"),
    "keys": (
        lambda: DataLoader({"a": pair(0, BAD), "b": pair(1, 2)}, sampler=["b", "a"], batch_size=2),  # type: ignore[arg-type]
        label,
        BAD,
        "'a'",
    ),
}


@pytest.mark.parametrize(("make", "argument", "bad", "reason"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown_says_why(make: Callable[[], Any], argument: Callable[[Any], Tensor], bad: int, reason: str) -> None:
    found = first_violation(make(), argument, bad)
    assert found is not None
    assert found.indices == ()
    assert found.unknown_because is not None
    assert reason in found.unknown_because
    assert "batch" in found.unknown_because


def test_without_a_loader_there_is_no_sample() -> None:
    assert ask(torch.tensor([1, BAD])) is None


def test_after_the_loop_only_the_batch_itself_is_recognised() -> None:
    batches = list(DataLoader(Rows(pair), batch_size=4))
    assert ask(torch.tensor([1, 2, 3, 55]), 55) is None
    found = ask(batches[3][1].clone())  # kept in a list and used later
    assert found is not None
    assert found.indices == (AT,)


def test_numbers_from_elsewhere_are_hardly_ever_blamed_on_a_sample() -> None:
    """Positions, environment numbers and transposed tables beside batches of ids and labels of many sizes; fixed by seed."""
    torch.manual_seed(0)
    pick = random.Random(0)
    blamed: dict[str, int] = {"positions": 0, "numbers": 0}
    for _ in range(200):
        rows, width, vocabulary = pick.choice([2, 3, 4, 8, 16]), pick.choice([4, 8, 12, 16, 32]), pick.choice([30, 100, 1000])
        data = TensorDataset(torch.randint(0, vocabulary, (rows, width)), torch.randint(0, 5, (rows,)))
        for _batch in DataLoader(data, batch_size=rows):
            unrelated = {"positions": torch.arange(width), "numbers": torch.randint(0, vocabulary, (pick.choice([1, 3, rows]),))}
            for name, tensor in unrelated.items():
                found = ask(tensor, int(tensor.max()))
                assert found is not None
                blamed[name] += bool(found.indices)
    assert max(blamed.values()) <= 4, blamed  # 2 %


def test_a_loader_that_runs_ahead() -> None:
    """accelerate and prefetchers fetch the next batch before the current one is used."""
    ahead = iter(DataLoader(Rows(pair), batch_size=4))
    current = next(ahead)
    for following in ahead:
        if BAD in current[1]:
            found = ask(current[1].clone())
            assert found is not None
            assert found.indices == (AT,)
            return
        current = following
    raise AssertionError("not reached")


def test_two_loaders_at_once() -> None:
    others = DataLoader(Rows(lambda i, y: torch.full((2,), 1000 + i)), batch_size=4)
    for (_, y), _other in zip(DataLoader(Rows(pair), batch_size=4), others, strict=True):
        if BAD in y:
            found = ask(y)
            assert found is not None
            assert found.indices == (AT,)


def test_large_tensors_are_not_kept_alive() -> None:
    import gc
    import weakref

    loader = DataLoader(TensorDataset(torch.zeros(8, 600_000), torch.arange(8)), batch_size=4)
    for big, _ in loader:
        refer = weakref.ref(big)
        del big
        gc.collect()
        assert refer() is None


@pytest.mark.parametrize("workers", [0, 2])
def test_watching_changes_nothing(workers: int) -> None:
    def run() -> tuple[Any, ...]:
        torch.manual_seed(3)
        random.seed(3)
        loader = DataLoader(Rows(pair), batch_size=4, shuffle=True, num_workers=workers, collate_fn=sort_by_label)
        batches = [(x.tolist(), y.tolist()) for _ in range(2) for x, y in loader]
        return batches, torch.get_rng_state().tolist(), random.getstate()

    watched = run()
    blame.unwatch()
    plain = run()
    blame.watch()
    assert watched == plain


def test_asking_changes_no_random_state() -> None:
    class Noisy(Rows):
        def __getitem__(self, i: int) -> Any:
            torch.rand(1), random.random(), np.random.rand()
            return super().__getitem__(i)

    loader = DataLoader(Noisy(pair), batch_size=4, num_workers=1, collate_fn=sort_by_label)
    for _, y in loader:
        if BAD in y:
            before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
            found = ask(y)
            assert found is not None
            assert found.indices == (AT,)
            after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
            assert torch.equal(before[0], after[0])
            assert before[1:] == after[1:]


def test_unwatch_restores_the_class() -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Base

    blame.unwatch()
    plain = (Base.__next__, Base._next_index)
    blame.watch()
    blame.watch()
    blame.unwatch()
    assert Base.__next__ is not plain[0]
    blame.unwatch()
    assert (Base.__next__, Base._next_index) == plain
    blame.watch()


# the module


class Probe(nn.Module):
    """Asks for its own path where an operator would be called."""

    path: str | None = "not asked"

    def forward(self, x: Tensor) -> Tensor:
        Probe.path = blame.module_path(current_frames())
        return x


class Direct(nn.Module):
    def __init__(self, child: nn.Module, call: str = "__call__") -> None:
        super().__init__()
        self.child = child
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = getattr(self.child, self.call)(x)
        return out


class MakesItsLoss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ProbeLoss()(x)  # type: ignore[no-any-return]


class ProbeLoss(nn.CrossEntropyLoss):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        Probe.path = blame.module_path(current_frames())
        return x


class Loose(nn.Module):
    """Keeps a module where nn.Module does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [Probe()]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hidden[0](x)
        return out


def shared() -> nn.Module:
    probe = Probe()
    return nn.Sequential(nn.Sequential(nn.Identity(), probe), nn.ModuleDict({"again": probe})["again"])


MODULES: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "alone": (Probe, "Probe"),
    "child": (lambda: Direct(Probe()), "child"),
    "grandchild": (lambda: Direct(nn.Sequential(nn.Identity(), Direct(Probe()))), "child.1.child"),
    "forward called directly": (lambda: Direct(Direct(Probe(), "forward"), "forward"), "child.child"),
    "loss of torch": (ProbeLoss, None),
    "loss inside the model": (lambda: Direct(ProbeLoss()), "child"),
    "loss made in forward": (MakesItsLoss, "MakesItsLoss"),
    "not registered": (Loose, "Loose"),
    "not registered, deeper": (lambda: Direct(Loose()), "child"),
    "compiled wrapper": (lambda: torch.compile(Direct(Probe()), disable=True), "child"),
    "data parallel": (lambda: nn.DataParallel(Direct(Probe())), "child"),
}


@pytest.mark.parametrize(("make", "path"), MODULES.values(), ids=MODULES.keys())
def test_module_path(make: Callable[[], nn.Module], path: str | None) -> None:
    Probe.path = "not asked"
    make()(torch.zeros(1))
    assert Probe.path == path


def test_no_module() -> None:
    assert blame.module_path(current_frames()) is None
    assert blame.module_path([]) is None


def test_a_hook_counts_to_its_module() -> None:
    model = Direct(nn.Identity())
    paths = []
    model.child.register_forward_pre_hook(lambda module, inputs: paths.append(blame.module_path(current_frames())))
    model(torch.zeros(1))
    assert paths == ["child"]


def test_shared_module_is_named_by_the_way_it_was_called() -> None:
    shared()(torch.zeros(1))
    assert Probe.path == "1"  # the last of the two calls


def test_frames_are_python_frames() -> None:
    """The path must not depend on local names beyond ``self``: a forward whose first argument is called otherwise is skipped."""

    class Odd(nn.Module):
        def forward(this, x: Tensor) -> Tensor:
            Probe.path = blame.module_path([sys._getframe()])
            return x

    Odd()(torch.zeros(1))
    assert Probe.path is None
