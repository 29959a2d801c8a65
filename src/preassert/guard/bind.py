"""Bind the names a contract uses to the positions of an operator's schema, once, at installation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from preassert.contracts.domains import Index

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
    parts, defaults = _expressions(schema, names)
    # Generated, because this runs on every guarded call: a loop over names costs a microsecond, an expression a tenth.
    fetch: Fetch = _compiled(f"lambda args, kwargs: ({', '.join(parts)},)", defaults)
    return fetch


Proof = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def index_proof(schema: Any, domain: Index, names: dict[str, Any]) -> Proof:
    """A function that is True when a plain tensor on the CPU keeps an index domain; False says nothing.

    One generated expression, because it runs on every guarded call: a short 1-d tensor is judged by Python's own ``min``
    and ``max``, anything else by ``index_holds``.

    Args:
        names: ``plain`` (the type ``torch.Tensor``), ``modes`` (counts the active function modes) and ``index_holds``.
    """
    parts, scope = _expressions(schema, domain.parameters)
    cut = 1 + len(domain.size_names)
    legal = "()" if domain.legal_value is None else f"(legal({', '.join(parts[cut:])}),)"
    lowest = "-n" if domain.wraps else str(domain.lowest)
    source = (
        f"lambda args, kwargs: type(t := {parts[0]}) is plain and t.is_cpu and not modes()"
        f" and ((n := size({', '.join(parts[1:cut])})) or True)"
        f" and (t.dim() == 1 and 0 < t.numel() <= 32 and {lowest} <= min(v := t.tolist()) and max(v) < n"
        f" or index_holds(t, {lowest}, n - 1, {legal}))"
    )
    proof: Proof = _compiled(source, {**scope, **names, "size": domain.size, "legal": domain.legal_value})
    return proof


def _expressions(schema: Any, names: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """For each name an expression over ``args`` and ``kwargs``, and the scope (defaults) that the expressions need."""
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
    return parts, {f"d{number}": defaults.get(name) for number, name in enumerate(names)}


def name_arguments(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a boxed call by schema name, as far as they were passed."""
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    named.update(kwargs)
    return named


def _compiled(expression: str, scope: dict[str, Any]) -> Any:
    # Under the name of this file, so that its frames count as ours where tracebacks are cleaned.
    return eval(compile(expression, __file__, "eval"), scope)
