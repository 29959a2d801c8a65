"""Bind the names a contract uses to the positions of an operator's schema, once, at installation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal

from preassert.contracts.domains import AdvancedIndices, Index

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
    fetch: Fetch = eval(_code(f"lambda args, kwargs: ({', '.join(parts)},)", "eval"), defaults)
    return fetch


Kernel = Callable[..., Any]


def index_kernel(schema: Any, domain: Index, scope: dict[str, Any]) -> Kernel:
    """A kernel for the CPU and an operator with one index argument: a plain tensor that keeps its range is launched at once.

    Generated with the operator's own signature, because it runs on every guarded call and on tiny tensors everything
    counts: a few indices are sorted as a Python list (faster than its ``min`` and ``max``), many are left to
    ``index_holds``. Of advanced indices a single one is judged here.

    Args:
        scope: ``cover``, ``plain`` (the type ``torch.Tensor``), ``int64``, ``modes`` (counts the active function modes),
            ``index_holds``, ``malformed`` (the errors of looking), ``call`` (where nothing is checked), ``launch`` (what has
            been proven) and ``verify(args, kwargs)`` (all else: check at leisure, then launch).
    """
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    keyword = [argument for argument in schema.arguments if argument.kwarg_only]
    names = {argument.name: f"a{place}" for place, argument in enumerate(positional)}
    defaults = {f"d_{argument.name}": argument.default_value for argument in schema.arguments if argument.has_default_value()}
    signature = [f"a{place}=d_{arg.name}" if arg.has_default_value() else f"a{place}" for place, arg in enumerate(positional)]
    rest = ["**kwargs"] if keyword else []
    values = {**names, **{argument.name: f"kwargs.get({argument.name!r}, d_{argument.name})" for argument in keyword}}
    tensor, *bounds = (values[name] for name in domain.parameters)
    cut, legal, lowest = len(domain.size_names), "()", "-n" if domain.wraps else str(domain.lowest)
    if isinstance(domain, AdvancedIndices):
        seen = f"len({tensor}) == 1 and type(t := {tensor}[0]) is plain and t.dtype is int64"
        size = f"{bounds[0]}.shape[0]"
    else:
        seen, size = f"type(t := {tensor}) is plain", f"size({', '.join(bounds[:cut])})"
        if domain.legal_value is not None:
            legal = f"(legal({', '.join(bounds[cut:])}),)"
    given = ", ".join(names.values())
    # Most calls leave the keywords out, and to unpack nothing costs too.
    launched = f"launch({given}, **kwargs) if kwargs else launch({given})" if rest else f"launch({given})"
    source = f"""
def kernel({", ".join([*signature, *rest])}):
    if cover.active:
        return call({", ".join([given, *rest])})
    try:
        fine = {seen} and not modes() and (n := {size}) >= 0 and (
            0 < t.numel() <= 32
            and 0 < (d := t.dim()) < 3
            and not (v := t.tolist() if d == 1 else sum(t.tolist(), [])).sort()
            and {lowest} <= v[0]
            and v[-1] < n
            or index_holds(t, {lowest}, n - 1, {legal})
        )
    except malformed:
        fine = True  # torch says it, and without our error as its context: the call is not made in here
    if fine:
        return {launched}
    return verify(({given},), {"kwargs" if rest else "{}"})
"""
    space = {**scope, **defaults, "size": domain.size, "legal": domain.legal_value}
    exec(_code(source, "exec"), space)
    kernel: Kernel = space["kernel"]
    return kernel


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


@functools.cache  # kernels are made anew each time that a guard is entered
def _code(source: str, kind: Literal["eval", "exec"]) -> CodeType:
    # Under the name of this file, so that its frames count as ours where tracebacks are cleaned.
    return compile(source, __file__, kind)
