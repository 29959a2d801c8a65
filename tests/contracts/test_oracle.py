"""The CPU kernels judge the contract table: bad by contract exactly where the kernel refuses.

``PREASSERT_ORACLE_CASES`` sets the number of random calls a row (``tools/conformance.py`` runs 1,000);
``PREASSERT_ORACLE_COUNTS`` names a JSON file that the counts are added to.
"""

from __future__ import annotations

import json
import os
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_calls import CALLS, Call, Draw
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from preassert.contracts.domains import Distribution, Offsets, SegmentLengths, Total
from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard.intercept import Bound, bind_row, overload_of

# Older CPU kernels are no judges: they crash on, or accept, some of what later ones refuse (docs/compatibility.md).
pytestmark = pytest.mark.skipif(torch.__version__ < (2, 9), reason="the CPU kernels of torch before 2.9 judge less")

CASES = int(os.environ.get("PREASSERT_ORACLE_CASES", "60"))
COUNTS = os.environ.get("PREASSERT_ORACLE_COUNTS")
CALLS_PER_EXAMPLE = 20  # an example of hypothesis costs more than a call: each is the seed of this many
# The row is what 2.13 demands; take_along_dim of 2.9 hands its index to gather, which takes none from the end.
OTHERWISE = ("aten::take_along_dim", "aten::take_along_dim.out") if torch.__version__ < (2, 13) else ()
HERE = [row for row in table().values() if overload_of(row.operator) is not None and row.operator not in OTHERWISE]
# These answer for a whole row of the tensor or for all of it: a repair may change elements that are not wrong themselves.
TIED = (Distribution, Offsets, SegmentLengths, Total)


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def run(overload: Any, call: Call) -> str | None:
    """What the kernel says of the call: None when it accepts the values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            overload(*copied(list(call.args)), **{name: copied(value) for name, value in call.kwargs.items()})
    except (RuntimeError, IndexError) as error:
        return str(error)
    except UnicodeDecodeError:  # torch prints a uint8 target as a character
        return "a message that is not text"
    return None


def broken(bounds: tuple[Bound, ...], call: Call) -> list[str]:
    """What the contract says: the arguments that break it."""
    return [
        bound.domain.argument
        for bound in bounds
        for _place, tensor, limits in bound.domain.cases(*bound.fetch(call.args, call.kwargs))
        if bound.domain.bad(tensor, limits).any()
    ]


def placed(bound: Bound, call: Call, place: int | None, tensor: torch.Tensor) -> Call:
    """The call with ``tensor`` in the place of the argument that ``bound`` is about."""
    name = bound.domain.argument
    old = call.kwargs[name] if bound.argument_position is None else call.args[bound.argument_position]
    new: Any = tensor
    if place is not None:
        new = list(old)
        new[place] = tensor
    if bound.argument_position is None:
        return Call(call.args, {**call.kwargs, name: new})
    args = list(call.args)
    args[bound.argument_position] = new
    return Call(tuple(args), call.kwargs)


def repaired(bounds: tuple[Bound, ...], call: Call) -> Call | None:
    """The call with every broken argument repaired, each repair checked; None where one cannot be repaired."""
    for bound in bounds:
        domain = bound.domain
        for place, tensor, limits in list(domain.cases(*bound.fetch(call.args, call.kwargs))):
            wrong = domain.bad(tensor, limits)
            if not domain.can_repair(limits):
                if wrong.any():
                    return None
                continue
            safe = domain.repair(tensor, limits)
            assert safe.shape == tensor.shape
            assert safe.dtype == tensor.dtype
            assert not domain.bad(safe, limits).any(), (domain.argument, tensor, safe, limits)
            if not isinstance(domain, TIED) or not wrong.any():
                keep = ~wrong
                assert torch.equal(safe[keep].nan_to_num(), tensor[keep].nan_to_num()), (tensor, safe)
            call = placed(bound, call, place, safe)
    return call


def check(row: Row, overload: Any, bounds: tuple[Bound, ...], call: Call) -> bool:
    """One call against the kernel or the independent statement; True when it was bad."""
    names = broken(bounds, call)
    if call.broken is None:
        said = run(overload, call)
        assert bool(names) == (said is not None), f"contract: {names or 'fine'}; kernel: {said or 'accepts'}; {call}"
    else:
        assert bool(names) == call.broken, f"contract: {names or 'fine'}; statement: {call.broken}; {call}"
        if not call.broken and not call.no_kernel:
            assert run(overload, call) is None, call
    safe = repaired(bounds, call)
    if names and safe is not None and not call.no_kernel:
        assert run(overload, safe) is None, f"repaired call refused: {run(overload, safe)}; {call} -> {safe}"
    return bool(names)


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.operator.removeprefix("aten::"))
def test_contract_is_what_the_kernel_refuses(row: Row) -> None:
    overload = overload_of(row.operator)
    bounds = bind_row(row, overload._schema)
    maker = CALLS[row.operator]
    tally = {"cases": 0, "bad": 0, "judged by kernel": 0}

    @settings(
        max_examples=-(-CASES // CALLS_PER_EXAMPLE),
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**62))
    def one(seed: int) -> None:
        torch.manual_seed(seed % 2**31)
        for number in range(CALLS_PER_EXAMPLE):
            call = maker(Draw(random.Random(seed + number)))
            tally["bad"] += check(row, overload, bounds, call)
            tally["cases"] += 1
            tally["judged by kernel"] += call.broken is None

    one()
    assert tally["cases"] >= CASES
    assert 0 < tally["bad"] < tally["cases"], "the calls must be able to tell good from bad"
    assert (tally["judged by kernel"] > 0) or row.cpu_silent, "a row whose CPU kernel is silent says so"
    if COUNTS:
        path = Path(COUNTS)
        counts = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**counts, row.operator: tally}))


def test_every_row_has_calls() -> None:
    assert set(CALLS) == set(table())


def test_a_wrong_contract_is_found() -> None:
    """The comparison can fail: a contract one too wide, one too narrow, and a repair that repairs nothing."""
    row = table()["aten::gather"]
    overload = overload_of(row.operator)
    (bound,) = bind_row(row, overload._schema)

    class Shifted(type(bound.domain)):  # type: ignore[misc]
        shift = 0

        def cases(self, *values: Any) -> Any:
            for place, tensor, (lowest, highest, legal) in super().cases(*values):
                yield place, tensor, (lowest, highest + self.shift, legal)

    shifted = Shifted.__new__(Shifted)
    shifted.__dict__.update(bound.domain.__dict__)
    wrong = replace(bound, domain=shifted)
    for shift, index in ((1, 3), (-1, 2)):
        shifted.shift = shift
        with pytest.raises(AssertionError, match=r"kernel"):
            check(row, overload, (wrong,), Call((torch.zeros(3), 0, torch.tensor([index]))))
    shifted.shift = 0
    shifted.repair = lambda tensor, limits: tensor
    with pytest.raises(AssertionError):
        check(row, overload, (wrong,), Call((torch.zeros(3), 0, torch.tensor([3]))))
