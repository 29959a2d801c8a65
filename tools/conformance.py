"""Prove the guard against torch's own operator database, and the contract table against the CPU kernels.

    python tools/conformance.py            # everything, prints the counts and writes docs/conformance.md
    python tools/conformance.py --op NAME  # one operator of op_db, prints what it finds

For every operator of op_db that reaches the contract table: all sample inputs in float32 and int64 on the CPU, forward
and backward, with and without ``preassert.guard(mode="immediate")``; outputs, gradients, dtypes, strides, the state of
the random number generator and warnings must be the same, bit for bit. Every error input that is about a value must
become a Violation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import preassert
from preassert.contracts.table import table
from preassert.guard import intercept

ROOT = Path(__file__).resolve().parent.parent
DTYPES = (torch.float32, torch.int64)
PARTS = ("kind", "outputs", "gradients", "arguments", "random state", "warnings")

# Refusals of op_db's error inputs that are not about the values of a tensor, although the meta device, which has no values,
# accepts the call: operator of op_db, a fragment of the refusal, and what it is about.
NOT_VALUES: tuple[tuple[str, str, str], ...] = (
    ("index_add", "source tensor shape must match self tensor shape", "shape"),
    ("masked_scatter", "only supports boolean masks", "dtype"),
    ("multinomial", "only supports floating-point dtypes", "dtype"),
    ("multinomial", "expects Long tensor out", "dtype"),
    ("multinomial", "cannot sample n_sample", "a Python number"),
)


@dataclass
class Tally:
    """What was seen of one operator of op_db."""

    samples: int = 0
    backward: int = 0
    checks: int = 0  # guarded kernels entered by the samples
    unusable: int = 0  # samples that torch itself refuses here
    differences: list[str] = field(default_factory=list)
    errors: int = 0
    caught: list[str] = field(default_factory=list)
    not_values: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


@contextlib.contextmanager
def reached(names: Counter[str]) -> Iterator[None]:
    """Count which rows of the table are checked inside, by name."""
    make = intercept.make_kernel

    def counting(row: Any, overload: Any, call: Any, **settings: Any) -> Any:
        kernel = make(row, overload, call, **settings)

        def counted(*args: Any, **kwargs: Any) -> Any:
            names[row.operator] += 1
            return kernel(*args, **kwargs)

        return counted

    intercept.make_kernel = counting
    try:
        with preassert.guard(mode="immediate"):
            yield
    finally:
        intercept.make_kernel = make


def fresh(value: Any) -> Any:
    """The same arguments again: leaves that need gradients stay leaves."""
    return tree_map(lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, value)


def bits(value: Any) -> Any:
    """A tensor as what must not change: dtype, shape, strides, layout and bytes."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout is not torch.strided:
        return str(value.dtype), tuple(value.shape), str(value.layout), bits(value.to_dense())
    raw = b""
    if not torch._is_zerotensor(value):
        plain = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, raw


def run(op: Any, sample: Any, backward: bool) -> tuple[Any, ...]:
    """Everything one call leaves behind: outputs, gradients, random state, warnings, or the error."""
    given, args, kwargs = fresh((sample.input, sample.args, sample.kwargs))
    torch.manual_seed(7)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            out = op(given, *args, **kwargs)
            outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
            grads: list[Any] = []
            wanted = [x for x in tree_flatten((given, args, kwargs))[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            roots = [x for x in outputs if x.requires_grad] if backward else []
            if roots and wanted:
                grads = list(torch.autograd.grad(roots, wanted, [torch.ones_like(x) for x in roots], allow_unused=True))
        except Exception as error:
            return "error", type(error).__name__, str(error)
    words = sorted(f"{w.category.__name__}: {str(w.message).splitlines()[0]}" for w in said)
    plain = [bits(x) if isinstance(x, torch.Tensor) else repr(x) for x in tree_flatten(out)[0]]
    inputs = [bits(x) for x in tree_flatten((given, args, kwargs))[0] if isinstance(x, torch.Tensor)]
    return "value", plain, [bits(x) for x in grads], inputs, torch.get_rng_state().numpy().tobytes(), words


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[tuple[Any, bool]]:
    backward = dtype.is_floating_point and op.supports_autograd
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), limit):
        yield sample, backward


@dataclass
class Reaching:
    """An operator of op_db whose samples enter guarded kernels."""

    op: Any
    calls: list[tuple[str, Any, bool]]  # label, sample, with backward
    rows: Counter[str]  # rows of the table entered, and how often


def reaching(ops: Iterable[Any], limit: int | None = None) -> list[Reaching]:
    """Which of ``ops`` enter guarded kernels. This pass also draws the warnings that torch gives once in a process.

    Args:
        limit: at most this many samples of each dtype.
    """
    found = []
    names: Counter[str] = Counter()
    with reached(names):
        for op in ops:
            calls = [
                (f"{dtype} sample {number}", sample, backward)
                for dtype in DTYPES
                if dtype in op.dtypes
                for number, (sample, backward) in enumerate(samples(op, dtype, limit))
            ]
            before = Counter(names)
            for _label, sample, backward in calls:
                run(op, sample, backward)
            if names != before:
                found.append(Reaching(op, calls, names - before))
    return found


def compare(one: Reaching, mode: str = "immediate") -> Tally:
    """Run the samples bare and guarded."""
    bare = [run(one.op, sample, backward) for _label, sample, backward in one.calls]
    with preassert.guard(mode=mode):
        guarded = [run(one.op, sample, backward) for _label, sample, backward in one.calls]
    tally = Tally(samples=len(one.calls), backward=sum(backward for *_, backward in one.calls), checks=one.rows.total())
    for (label, *_), before, after in zip(one.calls, bare, guarded, strict=True):
        tally.unusable += before[0] == "error"
        if before != after:
            part = next((place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
            tally.differences.append(f"{label}: {PARTS[part]}: {str(after[part])[:200]}")
    return tally


def try_errors(op: Any, tally: Tally, mode: str = "immediate") -> None:
    """Every error input must raise; those about a value must raise a Violation."""
    if op.error_inputs_func is None:
        return
    for sample in op.error_inputs("cpu"):
        call = sample.sample_input
        bare = _refusal(op, call)
        if bare is None:
            continue  # raises on other devices only
        try:
            with preassert.guard(mode=mode):
                guarded = _refusal(op, call)
        except preassert.Violation as violation:  # recorded, and then torch refused the call for another reason
            guarded = violation
        tally.errors += 1
        line = f"{type(bare).__name__}: {str(bare).splitlines()[0][:110]}"
        if isinstance(guarded, preassert.Violation):
            tally.caught.append(f"{guarded.hazard}: {line}")
        elif not named_elsewhere(op.full_name, str(bare)) and is_value_error(op, call):
            tally.missed.append(line)
        else:
            tally.not_values.append(line)


def named_elsewhere(name: str, words: str) -> bool:
    return any(name == operator and fragment in words for operator, fragment, _about in NOT_VALUES)


def _refusal(op: Any, call: Any) -> Exception | None:
    given, args, kwargs = fresh((call.input, call.args, call.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            op(given, *args, **kwargs)
            preassert.flush()  # the boundary of the deferred mode
        except Exception as error:
            return error
    return None


def is_value_error(op: Any, call: Any) -> bool:
    """Is the refusal about the values? True when the same call with tensors on the meta device, which have none, is accepted."""
    given, args, kwargs = tree_map(
        lambda x: x.detach().to("meta") if isinstance(x, torch.Tensor) else x, (call.input, call.args, call.kwargs)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            op(given, *args, **kwargs)
        except Exception:
            return False
    return True


def oracle_counts(cases: int) -> dict[str, dict[str, int]]:
    """Run tests/contracts/test_oracle.py with ``cases`` calls a row and read its counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.json"
        environment = {**os.environ, "PREASSERT_ORACLE_CASES": str(cases), "PREASSERT_ORACLE_COUNTS": str(path)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/contracts/test_oracle.py")]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit("the oracle tests fail; nothing is written")
        counts: dict[str, dict[str, int]] = json.loads(path.read_text())
        return counts


def report(tallies: dict[str, Tally], names: Counter[str], oracle: dict[str, dict[str, int]], cases: int) -> str:
    """The page docs/conformance.md."""
    total = {
        key: sum(getattr(t, key) for t in tallies.values()) for key in ("samples", "backward", "checks", "unusable", "errors")
    }
    caught = sum(len(t.caught) for t in tallies.values())
    other = sum(len(t.not_values) for t in tallies.values())
    missed = [f"{name}: {line}" for name, t in tallies.items() for line in t.missed]
    different = [f"{name}: {line}" for name, t in tallies.items() for line in t.differences]
    lines = [
        "# Conformance",
        "",
        f"Written by `tools/conformance.py` on torch {torch.__version__}, Python {platform.python_version()}, CPU.",
        "",
        "## The guard changes nothing (op_db)",
        "",
        "Every operator of torch's `op_db` whose samples reach the contract table, all sample inputs, float32 and int64, forward",
        'and backward, bare and under `preassert.guard(mode="immediate")`. Compared bit for bit: outputs, gradients, dtypes,',
        "strides, arguments written in place, the random state, warnings.",
        "",
        f"- operators of op_db: {len(op_db)}; of these reach the table: {len(tallies)}",
        f"- sample inputs: {total['samples']} ({total['backward']} with backward); checks made by the guard: {total['checks']}",
        f"- sample inputs that torch itself refuses here, refused with the same words under the guard: {total['unusable']}",
        f"- differences: {len(different)}",
        f"- rows of the table reached: {len(names)} of {len(table())}",
        "",
        *(f"  - {line}" for line in different),
        "",
        "## Error inputs (op_db)",
        "",
        f"- error inputs that raise on the CPU: {total['errors']}; caught as Violation: {caught}",
        f"- about a dtype, a shape or a Python argument: {other} (refused on the meta device too, where tensors have no values,",
        "  or named in `NOT_VALUES` of the tool)",
        f"- about a value and not caught: {len(missed)}",
        "",
        *(f"  - {line}" for line in missed),
        "",
        "| operator of op_db | samples | backward | checks | error inputs | caught |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {t.samples} | {t.backward} | {t.checks} | {t.errors} | {len(t.caught)} |"
            for name, t in sorted(tallies.items())
        ),
        "",
        "Caught:",
        "",
        *(f"- {name}: {line}" for name, t in sorted(tallies.items()) for line in t.caught),
        "",
        "Not about a value:",
        "",
        *(f"- {name}: {line}" for name, t in sorted(tallies.items()) for line in t.not_values),
        "",
        "## The contract table against the CPU kernels",
        "",
        f"{cases} random calls a row (`tests/contracts/test_oracle.py`): the contract says bad exactly where the CPU kernel",
        "refuses, and the kernel accepts what `repair` makes of a bad call. Where the CPU kernel is silent or crashes, an",
        "independent statement of the contract judges (a dash under *judged by kernel* for such a row), and only good values",
        "reach the kernel. *Asserts* and stray accesses of CUDA kernels cannot be judged here: no GPU was used.",
        "",
        "| row | calls | bad | judged by kernel | why the kernel cannot judge all |",
        "|---|---|---|---|---|",
    ]
    for operator, row in sorted(table().items()):
        count = oracle.get(operator)
        if count is None:
            lines.append(f"| {operator} | absent from this torch | | | |")
        else:
            judged = count["judged by kernel"] or "-"
            lines.append(f"| {operator} | {count['cases']} | {count['bad']} | {judged} | {row.cpu_silent or ''} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", help="only this operator of op_db; nothing is written")
    parser.add_argument("--cases", type=int, default=1000, help="random calls a row of the contract table")
    parser.add_argument("--counts", type=Path, help="take the counts of random calls from this file of an earlier run")
    parser.add_argument("--mode", choices=("immediate", "deferred"), default="immediate", help="deferred: nothing is written")
    options = parser.parse_args()
    names: Counter[str] = Counter()
    tallies: dict[str, Tally] = {}
    for one in reaching(op for op in op_db if options.op in (None, op.full_name)):
        op = one.op
        tally = compare(one, options.mode)
        try_errors(op, tally, options.mode)
        names.update(one.rows)
        tallies[op.full_name] = tally
        print(
            f"{op.full_name}: {tally.samples} samples, {len(tally.differences)} differences, {len(tally.missed)} missed",
            flush=True,
        )
        for line in (*tally.differences, *tally.missed):
            print(f"    {line}")
    failures = sum(len(t.differences) + len(t.missed) for t in tallies.values())
    if options.op is None and options.mode == "immediate":
        (ROOT / "docs").mkdir(exist_ok=True)
        oracle = json.loads(options.counts.read_text()) if options.counts else oracle_counts(options.cases)
        (ROOT / "docs/conformance.md").write_text(report(tallies, names, oracle, options.cases), encoding="utf-8")
    print(f"{len(tallies)} operators, {sum(t.samples for t in tallies.values())} samples, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
