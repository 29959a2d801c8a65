"""A rolling copy of models and optimizers in host memory: what is on the device is lost with its context."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from preassert.errors import UsageError


class Snapshots:
    """The newest ``state_dict`` of each variable that was asked for, all taken at the same moment."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # key -> name of the user's variable
        self.states: dict[str, Any] = {}  # key -> state_dict on the host
        self.cell: int | None = None  # taken at the end of this cell
        self.rolling = False

    def watch(self, names: Mapping[str, str], variables: Mapping[str, Any]) -> None:
        """Raises UsageError: a variable that is missing or has no ``state_dict``."""
        for key, name in names.items():
            if name not in variables:
                raise UsageError(f"{key}={name}: there is no variable {name!r}")
            if not callable(getattr(variables[name], "state_dict", None)):
                raise UsageError(f"{key}={name}: a {type(variables[name]).__name__} has no state_dict()")
        self.names = dict(names)
        self.rolling = True

    def take(self, variables: Mapping[str, Any], cell: int) -> None:
        """Copy all of them. Waits for the device. If one cannot be copied, the snapshot before stays as it is."""
        states = {key: to_host(variables[name].state_dict()) for key, name in self.names.items()}
        self.states, self.cell = states, cell

    def load(self, variables: Mapping[str, Any]) -> list[str]:
        """Put the states back into the variables of the same names; returns these names.

        Raises:
            UsageError: nothing has been taken, or a variable is missing. RuntimeError: a model that does not fit its state.
        """
        if not self.states:
            raise UsageError("no snapshot has been taken")
        missing = [self.names[key] for key in self.states if self.names[key] not in variables]
        if missing:
            raise UsageError(f"run the cell that builds {', '.join(missing)} first, then load the snapshot")
        for key, state in self.states.items():
            variables[self.names[key]].load_state_dict(state)
        return [self.names[key] for key in self.states]

    def describe(self) -> str:
        if not self.names:
            return "none; %preassert snapshot model=NAME optimizer=NAME keeps one from then on"
        what = ", ".join(f"{key}={name}" for key, name in self.names.items())
        when = "not taken yet" if self.cell is None else f"taken at cell [{self.cell}]"
        return f"{what}, {when}, {'renewed after each cell' if self.rolling else 'not renewed'}"


def to_host(state: Any) -> Any:
    """A copy in which every tensor is a host tensor of its own."""
    import torch

    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        copy = OrderedDict((key, to_host(value)) for key, value in state.items())
        if hasattr(state, "_metadata"):  # versions of the modules
            copy.__dict__["_metadata"] = state._metadata
        return copy if isinstance(state, OrderedDict) else dict(copy)
    if isinstance(state, (list, tuple)):
        return type(state)([to_host(value) for value in state]) if type(state) in (list, tuple) else state
    return state
