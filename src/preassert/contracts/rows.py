"""The record of the contract table: one operator, one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from preassert.contracts.domains import Domain


@dataclass(frozen=True, slots=True)
class Row:
    """What one operator demands.

    Attributes:
        operator: schema name with overload, for example ``"aten::scatter.src"``.
        hazard: slug of the hazard a broken demand is, unless the domain names its own.
        domains: one for each argument whose values matter.
        call: how a person writes the call, for example ``"torch.gather"``; used when no frame says it better.
        level: ``"kernel"``: the backend kernel is replaced (forward and backward, every caller); ``"composite"``: the
            operator is a composition that hides the fault from the kernels below it, so the composition is replaced.
        covers: its kernel calls other guarded operators on the same values, which then need no check of their own.
        backward: it runs in the backward pass, on values that the forward saved.
        cpu_silent: why the CPU kernel cannot serve as an oracle (it goes on, or crashes); None where it raises.
        optional: absent from some supported releases of torch.
    """

    operator: str
    hazard: str
    domains: tuple[Domain, ...]
    call: str
    level: Literal["kernel", "composite"] = "kernel"
    covers: bool = False
    backward: bool = False
    cpu_silent: str | None = None
    optional: bool = False


def variants(operators: str, hazard: str, *domains: Domain, call: str, **options: object) -> tuple[Row, ...]:
    """Rows of several forms of one operator (in-place, ``out=``) that make the same demands.

    ``operators`` holds the names without ``aten::``, separated by spaces.
    """
    return tuple(Row(f"aten::{name}", hazard, domains, call, **options) for name in operators.split())  # type: ignore[arg-type]
