"""Deferred violations: recorded now, settled at the next boundary, never lost and never silent.

A boundary is: before any ``torch.optim`` step, the end of a guard, :func:`preassert.flush`, and the end of the process.
Between the record and the boundary the operator has run on sanitised values; at the boundary the policy decides.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from preassert.errors import Violation, number_text
from preassert.guard import randomness
from preassert.guard.options import Options
from preassert.guard.state import STATE

_KEPT = 100  # violations kept in full between two boundaries; later ones are only counted


class PreassertWarning(UserWarning):
    """A violation under policy ``warn``, or a remark about the guard itself."""


class Ledger:
    """Violations between record and boundary, and the counts of the whole run."""

    def __init__(self) -> None:
        self._collectors: list[Any] = []  # device logs, asked at each boundary
        self.reset()

    def reset(self) -> None:
        """Forget everything (tests, and the child side of a fork); the hooks and the device logs stay."""
        self.lock = threading.RLock()
        self.pending: list[Violation] = []
        self.pending_count = 0
        self.counts: Counter[tuple[str, str]] = Counter()  # (hazard, site) -> violations
        self.skipped_steps = 0
        self.ignored = 0  # targets turned into ignore_index
        self._owed: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # policy ``skip``: those that have a step to leave out

    # --- recording

    def add(self, violation: Violation, options: Options) -> None:
        """Take a violation in. Announced on stderr at once, so that not even SIGKILL can lose it."""
        with self.lock:
            STATE.note(violation)
            self.counts[violation.hazard, _place(violation)] += violation.count
            self.pending_count += 1
            first = not self.pending
            if len(self.pending) < _KEPT:
                self.pending.append(violation)
        if options.policy == "skip":
            write_quarantine(violation, options)
        if first and options.policy == "raise":
            announce(f"recorded {_headline(violation)}; it is raised before the next optimizer step")

    def add_ignored(self, violation: Violation) -> None:
        """Policy ``ignore``: the bad targets have become ``ignore_index``; counted, summarised at the end."""
        with self.lock:
            STATE.note(violation)
            self.ignored += violation.count
            self.counts[violation.hazard, _place(violation)] += violation.count
            new = self.counts[violation.hazard, _place(violation)] == violation.count
        if new:
            announce(f"ignoring {_headline(violation)}; later ones at this line are only counted")

    def attach(self, collector: Any) -> None:
        """Ask ``collector`` at each boundary for what only a device knows: (violation, options, already ignored?)."""
        if collector not in self._collectors:
            self._collectors.append(collector)

    def detach(self, collector: Any) -> None:
        """Undo :meth:`attach`."""
        if collector in self._collectors:
            self._collectors.remove(collector)

    # --- boundaries

    def collect(self) -> None:
        for collector in tuple(self._collectors):
            for violation, options, ignored in collector.collect():
                if ignored:
                    self.add_ignored(violation)
                else:
                    self.add(violation, options)

    def take(self) -> Violation | None:
        """The first pending violation, with a note on the others; the ledger is then empty."""
        with self.lock:
            if not self.pending:
                return None
            first, others = self.pending[0], self.pending_count - 1
            self.pending, self.pending_count = [], 0
        if others:
            noun = "violation" if others == 1 else "violations"
            _add_note(first, f"{others} more {noun} followed before this boundary; the first is the likely cause of the others")
        return first

    def settle(self, options: Options | None) -> Violation | None:
        """Apply the policy to what is pending.

        Returns:
            the violation to raise, or None.
        """
        self.collect()
        policy = "raise" if options is None else options.policy
        total = sum(self.counts.values())
        if options is not None and options.max_violations is not None and self.pending and total > options.max_violations:
            violation = self.take()
            if violation is not None:
                _add_note(violation, f"{total} bad values in this run, more than max_violations={options.max_violations}")
            return violation
        if policy in ("raise", "ignore"):
            return self.take()
        with self.lock:
            pending, self.pending, self.pending_count = self.pending, [], 0
        if policy == "warn":
            for violation in pending:
                _warn(violation)
        elif pending:
            # Whatever optimizers there are: until its next step, each may hold a share of the sanitised batch.
            self._owed.update(thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer))
        return None

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Global optimizer hook: nothing that a sanitised batch produced reaches the weights unless the policy says so.

        Returns:
            None, or the arguments of the step with a boundary behind its ``closure``, which runs a forward pass of its own.
        """
        if STATE.options is None:
            return None
        if STATE.budget is not None:
            STATE.budget.end_step()
        self._bound(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        @functools.wraps(closure)
        def bounded_closure(*args: Any, **kwargs: Any) -> Any:
            loss = closure(*args, **kwargs)
            self._bound(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": bounded_closure}
        return (args[0], bounded_closure, *args[2:]), kwargs

    def _bound(self, optimizer: Optimizer) -> None:
        options = STATE.options
        if options is None:
            return
        violation = self.settle(options)
        if violation is not None:
            raise violation
        if optimizer in self._owed:
            self._owed.discard(optimizer)
            self._drop(optimizer)

    def _drop(self, optimizer: Optimizer) -> None:
        # Optimizers leave a parameter without a gradient alone: no update, no weight decay, no momentum, no state step.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self.skipped_steps += 1
        randomness.rewind()

    def summary(self) -> str | None:
        """What was met in this run and what became of it; None when nothing was."""
        if not self.counts:
            return None
        lines = [f"{count:,} x {hazard} at {place}" for (hazard, place), count in self.counts.most_common(10)]
        done = []
        if self.skipped_steps:
            done.append(_counted(self.skipped_steps, "optimizer step", "skipped"))
        if self.ignored:
            done.append(_counted(self.ignored, "target", "ignored"))
        return "bad values: " + "; ".join(lines + done)


def _counted(number: int, noun: str, fate: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'} {fate}"


def _place(violation: Violation) -> str:
    return f"{violation.site.file}:{violation.site.line}" if violation.site else "an unknown line"


def _headline(violation: Violation) -> str:
    shown = ""
    if violation.elements:
        element = violation.elements[0]
        position = f"[{', '.join(map(str, element.position))}]" if element.position else ""
        shown = f" ({violation.named_argument}{position} = {number_text(element.value)}, valid {violation.valid})"
    return f"{violation.hazard} at {_place(violation)}{shown}"


def _warn(violation: Violation) -> None:
    site = violation.site
    if site is None:
        warnings.warn(str(violation), PreassertWarning, stacklevel=4)
    else:
        warnings.warn_explicit(str(violation), PreassertWarning, site.file, site.line, registry={})


class _Silence:
    depth = 0


_silence = _Silence()


@contextmanager
def silence() -> Iterator[None]:
    """Announce nothing within the block: the self-test plants violations that concern nobody."""
    _silence.depth += 1
    try:
        yield
    finally:
        _silence.depth -= 1


def announce(text: str) -> None:
    """One line on stderr, whatever has happened to ``sys.stderr``."""
    if _silence.depth:
        return
    try:
        print(f"preassert: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        os.write(2, f"preassert: {text}\n".encode("utf-8", "replace"))


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10 prints no notes; keep it where 3.11 would
        vars(error).setdefault("__notes__", []).append(note)


def write_quarantine(violation: Violation, options: Options) -> None:
    """One JSON line for the batch: dataset indices, values, site. Appended and flushed at once."""
    if options.quarantine is None:
        return
    sample = violation.sample
    entry = {
        "schema": "preassert.quarantine/1",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hazard": violation.hazard,
        "dataset_indices": list(sample.indices) if sample else [],
        "unknown_because": sample.unknown_because if sample else "no DataLoader batch is current",
        "values": violation.to_dict()["elements"],
        "count": violation.count,
        "valid": violation.valid,
        "site": violation.to_dict()["site"],
        "rank": violation.rank,
    }
    with open(options.quarantine, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def finish() -> None:
    """End of the process: what is still pending is printed, and the counts."""
    LEDGER.collect()
    violation = LEDGER.take()
    if violation is not None:
        announce(f"the process ends before the next boundary; pending:\npreassert.Violation: {violation}")
    if STATE.options is not None:
        summarise(STATE.options)


def summarise(options: Options) -> None:
    """The end of a guard or of the process: what was met and what the budget came to; silent when there is nothing to say."""
    summary = LEDGER.summary() if options.policy != "raise" else None
    if summary:
        announce(summary)
    if STATE.budget is not None:
        announce(STATE.budget.summary())


LEDGER = Ledger()
_hook: Any = None


def hook_optimizers() -> None:
    """Make every ``torch.optim`` step a boundary."""
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(LEDGER.before_step)
        if not hasattr(torch.library, "get_kernel"):
            _keep_hooks_from_dynamo()


def _keep_hooks_from_dynamo() -> None:
    """The first compilation of older torch (seen: 2.2) takes the hooks off every torch.optim step, for eager steps too: a
    boundary would be lost without a word. Put them back behind it. Nothing to do where its patcher does no such thing."""
    from torch._dynamo import eval_frame

    patcher: Any = getattr(eval_frame, "TorchPatcher", None)
    patch = getattr(patcher, "patch", None)
    plain = getattr(patch, "__wrapped__", None)
    if patch is None or plain is None or "hooked" not in plain.__code__.co_names:
        return
    if patch.cache_info().currsize:
        _hook_steps()

    @functools.cache
    def patch_and_hook() -> None:
        patched_before = bool(patch.cache_info().currsize)
        patch()
        if not patched_before:
            _hook_steps()

    patcher.patch = staticmethod(patch_and_hook)


def _hook_steps() -> None:
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer and "step" in vars(kind):
            step = _step_with_hooks(vars(kind)["step"])
            step.hooked = True
            kind.step = step  # type: ignore[method-assign]


def _step_with_hooks(step: Any) -> Any:
    hooked: Any = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (step if torch._dynamo.external_utils.is_compiling() else hooked)(*args, **kwargs)

    return either


def unhook_optimizers() -> None:
    global _hook
    if _hook is not None:
        _hook.remove()
        _hook = None


def in_backward() -> bool:
    """Is this thread inside the autograd engine (including the forward that checkpointing repeats there)?"""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


atexit.register(finish)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=LEDGER.reset)
