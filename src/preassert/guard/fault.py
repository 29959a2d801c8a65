"""One demand of one call: what is looked at, and how to launch with something else in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from preassert.contracts.domains import Domain
from preassert.contracts.rows import Row
from preassert.guard.bind import name_arguments
from preassert.guard.options import Options
from preassert.guard.site import Place, outline

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """One demand of one call, broken (host tensors) or not yet judged (device tensors)."""

    row: Row
    schema: Any
    domain: Domain
    position: int | None  # of the argument; None: keyword-only
    place: int | None  # within a list argument
    tensor: Tensor
    bounds: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: Place | None = None  # where the call was made, when that is not on the stack (compiled code)

    @property
    def hazard(self) -> str:
        return self.domain.hazard or self.row.hazard

    @property
    def named(self) -> dict[str, Any]:
        """The arguments of the call by schema name."""
        return name_arguments(self.schema, self.args, self.kwargs)

    @property
    def unchanged(self) -> Arguments:
        return self.args, self.kwargs

    def replaced(self, tensor: Tensor) -> Arguments:
        """The arguments with ``tensor`` in the place of the offending one."""
        name = self.domain.argument
        old = self.args[self.position] if self.position is not None else self.kwargs[name]
        new: Any = tensor
        if self.place is not None:
            new = list(old)
            new[self.place] = tensor
        if self.position is None:
            return self.args, {**self.kwargs, name: new}
        return (*self.args[: self.position], new, *self.args[self.position + 1 :]), self.kwargs

    def outlined(self) -> Fault:
        """This fault without hold on the other tensors of the call: logits must not live until the end of the step."""
        return replace(
            self,
            args=tuple(_outlined(value) for value in self.args),
            kwargs={name: _outlined(value) for name, value in self.kwargs.items()},
        )

    def left_out(self, options: Options) -> bool:
        """Did the user leave this operator, hazard or device out?"""
        if options.devices is not None and self.tensor.device.type not in options.devices:
            return True
        skip = options.skip
        return bool(skip) and (self.hazard in skip or self.row.operator.partition(".")[0] in skip)


def _outlined(value: Any) -> Any:
    if isinstance(value, Tensor):
        return outline(value)
    return [_outlined(entry) for entry in value] if isinstance(value, (list, tuple)) else value
