"""Bind the names a contract uses to the positions of an operator's schema, once, at installation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fetch = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]


def places(schema: Any) -> dict[str, int | None]:
    """Argument name -> position, None for keyword-only ones. The dispatcher passes positional arguments by position."""
    positional = 0
    out: dict[str, int | None] = {}
    for argument in schema.arguments:
        if argument.kwarg_only:
            out[argument.name] = None
        else:
            out[argument.name] = positional
            positional += 1
    return out


def fetcher(schema: Any, names: tuple[str, ...]) -> Fetch:
    """A function that picks the arguments ``names`` out of a boxed call; trailing defaults may be left out of the call.

    Raises:
        LookupError: the schema has no argument of that name.
    """
    at = places(schema)
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    parts = []
    for number, name in enumerate(names):
        if name not in at:
            raise LookupError(f"{schema.name} has no argument {name!r}")
        position = at[name]
        if position is None:
            parts.append(f"kwargs.get({name!r}, d{number})")
        elif name in defaults:
            parts.append(f"(args[{position}] if len(args) > {position} else d{number})")
        else:
            parts.append(f"args[{position}]")
    # Generated, because this runs on every guarded call: a loop over names costs a microsecond, an expression a tenth.
    source = f"lambda args, kwargs: ({', '.join(parts)},)"
    fetch: Fetch = eval(source, {f"d{number}": defaults.get(name) for number, name in enumerate(names)})
    return fetch


def name_arguments(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a boxed call by schema name, as far as they were passed."""
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    named.update(kwargs)
    return named
