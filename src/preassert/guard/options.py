"""What the user asked of the guard."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from preassert import hazards
from preassert.contracts.table import table
from preassert.errors import UsageError

Mode = Literal["auto", "immediate", "deferred"]
Policy = Literal["raise", "warn", "skip", "ignore"]
MODES = ("auto", "immediate", "deferred")
POLICIES = ("raise", "warn", "skip", "ignore")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one guard; see :func:`preassert.guard`."""

    mode: Mode = "auto"
    policy: Policy = "raise"
    skip: frozenset[str] = frozenset()  # operators without overload ("aten::gather") and hazards
    devices: frozenset[str] | None = None  # device types; None: all
    sentinels: tuple[int | float, ...] = ()
    max_elements: int = 5  # bad elements named in the report
    max_violations: int | None = None
    quarantine: str | None = None  # JSON Lines file for skipped samples
    budget: float | None = None

    @property
    def deferred_on_cpu(self) -> bool:
        return self.mode == "deferred" or self.policy != "raise"


def make_options(
    *,
    mode: str = "auto",
    policy: str = "raise",
    skip: Iterable[str] = (),
    devices: Iterable[str] | None = None,
    sentinels: Iterable[int | float] = (),
    max_elements: int = 5,
    max_violations: int | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    budget: float | None = None,
) -> Options:
    """Check the settings and freeze them.

    Raises:
        UsageError: an unknown mode, policy, operator or hazard, or a number out of its range; the message names it.
    """
    if mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    if mode == "immediate" and policy != "raise":
        raise UsageError(f"policy {policy!r} needs the deferred mode: an immediate check can only raise")
    if budget is not None and not 0 < budget <= 1:
        raise UsageError(f"budget is a share of the step time between 0 and 1, not {budget!r}")
    if max_elements < 1:
        raise UsageError(f"max_elements must be at least 1, not {max_elements!r}")
    if max_violations is not None and max_violations < 0:
        raise UsageError(f"max_violations must not be negative, but it is {max_violations!r}")
    if quarantine is not None and policy != "skip":
        raise UsageError(f"quarantine names the samples that policy 'skip' leaves out; the policy is {policy!r}")
    return Options(
        mode=mode,  # type: ignore[arg-type]  # checked above
        policy=policy,  # type: ignore[arg-type]
        skip=frozenset(_skip_name(name) for name in ([skip] if isinstance(skip, str) else skip)),
        devices=None
        if devices is None
        else frozenset(str(d).partition(":")[0] for d in ([devices] if isinstance(devices, str) else devices)),
        sentinels=tuple(sentinels),
        max_elements=max_elements,
        max_violations=max_violations,
        quarantine=None if quarantine is None else os.fspath(quarantine),
        budget=budget,
    )


def _skip_name(name: str) -> str:
    if name in hazards.raw():
        return name
    operator = (name if name.startswith("aten::") else f"aten::{name}").partition(".")[0]
    if operator in {row.partition(".")[0] for row in table()}:
        return operator
    raise UsageError(f"skip: {name!r} is neither a hazard nor a guarded operator; see `preassert hazards` and docs/operators.md")
