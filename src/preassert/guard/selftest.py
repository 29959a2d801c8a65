"""Does the guard fire? Bad values are planted at every contract family, in every mode, and our exception is required.

Used by ``preassert doctor`` and ``tools/gpu_check.py``. A guard that sanitises and stays silent is worse than none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from preassert.errors import Violation
from preassert.guard import flush, guard
from preassert.guard.intercept import can_replace_kernels
from preassert.guard.ledger import silence

NAN = float("nan")
Mode = Literal["immediate", "deferred", "compiled"]
MODES: tuple[Mode, ...] = ("immediate", "deferred", "compiled")


@dataclass(frozen=True, slots=True)
class Plant:
    """One operator with one argument to spoil."""

    family: str
    name: str
    hazard: str
    good: Any  # nested list: the argument as it should be
    bad: tuple[Any, ...]  # values to put in the place of its last element
    run: Callable[[Tensor], Tensor]
    floating: bool = False
    compiles: bool = True  # with fullgraph=True

    def tensor(self, device: torch.device, value: Any = None) -> Tensor:
        """The good argument, or the one with ``value`` in its last place."""
        out = torch.tensor(self.good, dtype=torch.float32 if self.floating else torch.int64, device=device)
        if value is not None:
            out.view(-1)[-1] = value
        return out


def _t(like: Tensor, *shape: int) -> Tensor:
    """Ones on the device of ``like``."""
    return torch.ones(shape, device=like.device)


TARGET, EMBEDDING, INDEX = "target-out-of-range", "embedding-index-out-of-range", "index-out-of-range"
GATHER, UNIT = "gather-index-out-of-range", "probability-outside-unit-interval"

PLANTS: tuple[Plant, ...] = (
    Plant("embedding", "F.embedding", EMBEDDING, [0, 9], (-1, 10, 255), lambda i: F.embedding(i, _t(i, 10, 4))),
    Plant(
        "embedding",
        "F.embedding_bag",
        EMBEDDING,
        [0, 9],
        (-1, 10, 255),
        lambda i: F.embedding_bag(i, _t(i, 10, 4), torch.zeros(1, dtype=torch.int64, device=i.device)),
    ),
    Plant(
        "embedding",
        "F.embedding_bag offsets",
        EMBEDDING,
        [0, 2],
        (-1, 3, 255),
        lambda o: F.embedding_bag(torch.zeros(2, dtype=torch.int64, device=o.device), _t(o, 10, 4), o),
    ),
    Plant("losses", "F.cross_entropy", TARGET, [0, -100, 4], (-1, 5, 255), lambda t: F.cross_entropy(_t(t, 3, 5), t)),
    Plant(
        "losses", "F.cross_entropy on masks", TARGET, [[[0, 2]]], (-1, 3, 255), lambda t: F.cross_entropy(_t(t, 1, 3, 1, 2), t)
    ),
    Plant("losses", "F.multi_margin_loss", TARGET, [0, 4], (-1, 5, 255), lambda t: F.multi_margin_loss(_t(t, 2, 5), t)),
    Plant(
        "losses",
        "F.multilabel_margin_loss",
        TARGET,
        [[0, 1, 2]],
        (-2, 3, 255),
        lambda t: F.multilabel_margin_loss(_t(t, 1, 3), t),
    ),
    Plant(
        "losses",
        "F.binary_cross_entropy",
        UNIT,
        [0.0, 1.0],
        (-0.5, 1.5, NAN),
        lambda p: F.binary_cross_entropy(p, p.detach()),
        True,
    ),
    Plant(
        "losses",
        "F.ctc_loss",
        "ctc-target-invalid",
        [[1, 4]],
        (-1, 5, 255),
        lambda t: F.ctc_loss(_t(t, 6, 1, 5).log_softmax(-1), t, (6,), (2,)),  # type: ignore[arg-type]  # takes lengths on the host
        compiles=False,  # torch.compile breaks the graph there, guarded or not; the eager kernel then runs
    ),
    Plant("indexing", "tensor[index]", INDEX, [0, -5], (-6, 5, 255), lambda i: _t(i, 5, 2)[i]),
    Plant(
        "indexing",
        "tensor[index] = value",
        INDEX,
        [0, -5],
        (-6, 5, 255),
        lambda i: _t(i, 5, 2).index_put((i,), torch.zeros((), device=i.device)),
    ),
    Plant("indexing", "torch.index_select", INDEX, [0, 4], (-1, 5, 255), lambda i: _t(i, 5, 2).index_select(0, i)),
    Plant("indexing", "Tensor.index_add", INDEX, [0, 4], (-1, 5, 255), lambda i: _t(i, 5, 2).index_add(0, i, _t(i, 2, 2))),
    Plant("indexing", "Tensor.index_copy", INDEX, [0, 4], (-1, 5, 255), lambda i: _t(i, 5, 2).index_copy(0, i, _t(i, 2, 2))),
    Plant("indexing", "Tensor.index_fill", INDEX, [0, -5], (-6, 5, 255), lambda i: _t(i, 5, 2).index_fill(0, i, 0.0)),
    Plant("indexing", "torch.take", INDEX, [0, -10], (-11, 10, 255), lambda i: _t(i, 5, 2).take(i)),
    Plant("gather", "torch.gather", GATHER, [[0], [4]], (-1, 5, 255), lambda i: _t(i, 2, 5).gather(1, i)),
    Plant("gather", "Tensor.scatter", GATHER, [[0], [4]], (-1, 5, 255), lambda i: _t(i, 2, 5).scatter(1, i, 0.0)),
    Plant("gather", "Tensor.scatter_add", GATHER, [[0], [4]], (-1, 5, 255), lambda i: _t(i, 2, 5).scatter_add(1, i, _t(i, 2, 1))),
    Plant(
        "gather",
        "Tensor.scatter_reduce",
        GATHER,
        [[0], [4]],
        (-1, 5, 255),
        lambda i: _t(i, 2, 5).scatter_reduce(1, i, _t(i, 2, 1), "amax"),
    ),
    Plant("gather", "torch.take_along_dim", GATHER, [[0], [4]], (-6, 5, 255), lambda i: torch.take_along_dim(_t(i, 2, 5), i, 1)),
    Plant("gather", "F.one_hot", GATHER, [0, 4], (-1, 5, 255), lambda i: F.one_hot(i, 5)),
    Plant(
        "sampling",
        "torch.multinomial",
        "invalid-sampling-distribution",
        [[0.5, 0.5]],
        (-1.0, NAN, float("inf")),
        lambda p: torch.multinomial(p, 1),
        True,
    ),
    Plant("sampling", "torch.bernoulli", UNIT, [0.0, 1.0], (-1.0, 1.5, NAN), torch.bernoulli, True),
    Plant("sampling", "torch.poisson", "invalid-sampling-distribution", [0.0, 3.0], (-1.0, NAN), torch.poisson, True),
    Plant(
        "pooling",
        "F.max_unpool2d",
        "invalid-pooling-index",
        [[[[0, 3], [8, 15]]]],
        (-1, 16, 255),
        lambda i: F.max_unpool2d(_t(i, 1, 1, 2, 2), i, [2, 2]),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one planted value (or the clean run) did."""

    plant: Plant
    mode: Mode
    value: Any  # None: the clean run
    problem: str | None  # None: as it should be


def check_mode(mode: Mode, device: str = "cpu", plants: Iterable[Plant] = PLANTS) -> Iterator[Outcome]:
    """Plant every bad value in one mode. Raises nothing: problems are in the outcomes.

    ``compiled`` builds one graph of all operators with ``torch.compile(fullgraph=True)`` and takes some seconds.
    """
    where = torch.device(device)
    chosen = list(plants)
    with guard(mode="immediate"):  # one installation for all of them
        if mode == "compiled":
            yield from _check_compiled(where, [plant for plant in chosen if plant.compiles])
            return
        for plant in chosen:
            yield _outcome(plant, mode, None, partial(_run, plant, where))
            for value in plant.bad:
                yield _outcome(plant, mode, value, partial(_run, plant, where, value))


def _run(plant: Plant, where: torch.device, value: Any = None) -> Tensor:
    return plant.run(plant.tensor(where, value))


def _check_compiled(where: torch.device, plants: list[Plant]) -> Iterator[Outcome]:
    torch._dynamo.reset()

    def everything(arguments: list[Tensor]) -> list[Tensor]:
        return [plant.run(argument) for plant, argument in zip(plants, arguments, strict=True)]

    compiled = torch.compile(everything, fullgraph=True, dynamic=False)
    clean = [plant.tensor(where) for plant in plants]
    from torch._inductor import config

    with config.patch(force_disable_caches=True):  # what is tested is this process, not an earlier one's code
        first = _outcome(plants[0], "compiled", None, lambda: compiled(clean))
    yield first
    if first.problem is not None:
        return
    for number, plant in enumerate(plants):
        for value in plant.bad:
            spoilt = [*clean[:number], plant.tensor(where, value), *clean[number + 1 :]]
            yield _outcome(plant, "compiled", value, partial(compiled, spoilt))


def _outcome(plant: Plant, mode: Mode, value: Any, call: Callable[[], Any]) -> Outcome:
    try:
        with silence(), guard(mode="deferred" if mode == "deferred" else "immediate"):
            call()
            flush()
    except Violation as violation:
        if value is None:
            return Outcome(plant, mode, value, f"a violation was reported where nothing is wrong: {violation}")
        if violation.hazard != plant.hazard:
            return Outcome(plant, mode, value, f"reported as {violation.hazard}, should be {plant.hazard}")
        return Outcome(plant, mode, value, None)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        return Outcome(plant, mode, value, f"{type(error).__name__}: {first_line}")
    return Outcome(plant, mode, value, None if value is None else _SILENT)


def compiled_unavailable() -> str | None:
    """Why the compiled mode cannot be tested here, or None."""
    if not can_replace_kernels():
        return "where the guard is a mode, compiled code is not guarded"
    if not hasattr(torch, "_TorchCompileInductorWrapper"):
        return "this torch has no inductor backend to hook"
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++", "cl")):
        return "no C++ compiler, which torch.compile needs on the CPU"
    return None


# --- a model of the user's -----------------------------------------------------------------------------------------------

FAR = 2**40  # outside every table


def check_model(model: Callable[..., Any], inputs: Any) -> list[Outcome]:
    """Plant bad values in each integer tensor of ``inputs`` and require a violation; the inputs as given must pass.

    ``inputs`` is a tensor, a tuple of arguments or a dict of keyword arguments. An integer input that never indexes anything
    (an attention mask) is told from one that the guard misses by running it unguarded: torch's CPU kernels raise there.
    """
    args, kwargs = (
        ((), dict(inputs)) if isinstance(inputs, dict) else ((inputs,), {}) if isinstance(inputs, Tensor) else (inputs, {})
    )
    named = {**{f"argument {number}": value for number, value in enumerate(args)}, **kwargs}
    outcomes: list[Outcome] = []
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.numel() == 0:
            continue
        plant = Plant("model", name, "any", None, (-1, FAR), lambda value: value)
        if not outcomes:
            outcomes.append(_model_outcome(plant, None, model, args, kwargs))
        for value in (-1, FAR):
            if not -(2 ** (tensor.element_size() * 8 - 1)) <= value < 2 ** (tensor.element_size() * 8 - 1):
                continue
            spoilt = tensor.clone()
            spoilt.view(-1)[-1] = value
            new_args = tuple(spoilt if argument is tensor else argument for argument in args)
            new_kwargs = {key: spoilt if argument is tensor else argument for key, argument in kwargs.items()}
            outcome = _model_outcome(plant, value, model, new_args, new_kwargs)
            if outcome.problem == _SILENT and _runs_unguarded(model, new_args, new_kwargs):
                continue  # this value is fine for the model: nothing to catch
            outcomes.append(outcome)
    return outcomes


_SILENT = "nothing was reported"


def _model_outcome(plant: Plant, value: Any, model: Callable[..., Any], args: Any, kwargs: Any) -> Outcome:
    try:
        with silence(), torch.no_grad(), guard(mode="immediate"):
            model(*args, **kwargs)
    except Violation as violation:
        problem = f"a violation was reported where nothing was planted: {violation}" if value is None else None
        return Outcome(plant, "immediate", value, problem)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        return Outcome(plant, "immediate", value, f"{type(error).__name__}: {first_line}")
    return Outcome(plant, "immediate", value, None if value is None else _SILENT)


def _runs_unguarded(model: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception:
        return False
    return True
