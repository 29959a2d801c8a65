"""What the user asked of the guard."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from preassert import hazards
from preassert.contracts.table import table
from preassert.errors import UsageError
from preassert.model import MODES, POLICIES, Mode, Policy


class Options:
    """Settings of one guard, checked. A guard is its options, and can be entered; ``install`` takes them too."""

    def __init__(
        self,
        *,
        mode: Mode = "auto",
        policy: Policy = "raise",
        skip: Iterable[str] = (),
        devices: Iterable[str] | None = None,
        sentinels: Iterable[int | float] = (),
        max_elements: int = 5,
        max_violations: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        budget: float | None = None,
    ) -> None:
        """What the guard does.

        Args:
            mode: ``"immediate"``: check, then launch; on an accelerator that is one synchronisation a check.
                ``"deferred"``: no synchronisation; the operator runs on sanitised values and the violation is raised at the
                next boundary. ``"auto"``: immediate for CPU tensors, deferred on accelerators.
            policy: what to do with a violation: ``"raise"``; deferred mode also ``"warn"``, ``"skip"``, ``"ignore"``.
            skip: operators (``"aten::gather"``) or hazards (``"user-device-assert"``) to leave out.
            devices: device types to guard (``["cuda"]``); None guards all.
            sentinels: values that are legal everywhere, whatever the range says. Only for values that the kernels of your
                devices accept.
            max_elements: how many bad elements a report names.
            max_violations: deferred mode: stop the run after this many.
            quarantine: policy ``"skip"``: JSON Lines file that names the samples left out.
            budget: largest share of the step time that the guard may cost; clean sites are then checked by sampling.

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
        self.mode: Final = mode
        self.policy: Final = policy
        self.skip: Final = frozenset(_skip_name(name) for name in _several(skip))  # operators without overload, and hazards
        self.devices: Final = None if devices is None else frozenset(str(d).partition(":")[0] for d in _several(devices))
        self.sentinels: Final = tuple(sentinels)
        self.max_elements: Final = max_elements
        self.max_violations: Final = max_violations
        self.quarantine: Final = None if quarantine is None else os.fspath(quarantine)
        self.budget: Final = budget

    @property
    def deferred_on_cpu(self) -> bool:
        return self.mode == "deferred" or self.policy != "raise"


def _several(names: Iterable[str]) -> Iterable[str]:
    return [names] if isinstance(names, str) else names


def _skip_name(name: str) -> str:
    if name in hazards.raw():
        return name
    operator = (name if name.startswith("aten::") else f"aten::{name}").partition(".")[0]
    if operator in {row.partition(".")[0] for row in table()}:
        return operator
    raise UsageError(f"skip: {name!r} is neither a hazard nor a guarded operator; see `preassert hazards` and docs/operators.md")
