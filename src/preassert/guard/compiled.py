"""torch.compile: inductor lowers guarded operators itself, so the replaced kernels never run in compiled code.

While inductor compiles under a guard, every operator of the contract table gets a decomposition that first passes the
checked argument through ``preassert::checked`` and then goes on as before. The graph stays whole (``fullgraph=True``,
dynamic shapes, forward and backward); at run time the check is one opaque call for each argument. Whose line it was is known
from the trace: file, line, module and the function the user called travel in the graph as a string, so that code which
inductor takes from its caches tells the truth too.

What is not guarded: functions compiled before the guard began, and programs compiled ahead of time without it (exported and
AOTInductor packages).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from preassert.contracts.rows import Row
from preassert.contracts.table import table
from preassert.guard import verdict
from preassert.guard.bind import name_arguments, places
from preassert.guard.check import holds
from preassert.guard.fault import Fault
from preassert.guard.intercept import TRACED, Bound, bind_row, overload_of
from preassert.guard.site import Call, Place, make_site, owner
from preassert.guard.state import STATE

# Functional forms as functionalisation writes them -> the row of the kernel that eager code reaches
FUNCTIONAL_FORMS = {
    "aten::index_put": "aten::_index_put_impl_",
    "aten::_unsafe_index_put": "aten::_index_put_impl_",
    "aten::masked_scatter": "aten::masked_scatter_",
    "aten::put": "aten::put_",
    "aten::index_fill.int_Scalar": "aten::index_fill_.int_Scalar",
    "aten::index_fill.int_Tensor": "aten::index_fill_.int_Tensor",
    "aten::embedding_renorm": "aten::embedding_renorm_",
}

# These are taken apart before inductor's table is asked: the inner operator stands for the call
_STANDS_FOR = {
    "F.multi_margin_loss": "aten::multi_margin_loss",
    "F.multilabel_margin_loss": "aten::multilabel_margin_loss_forward",
    "F.one_hot": "aten::one_hot",
}

_SCHEMA = "checked(Tensor value, SymInt[] numbers, Tensor?[] tensors, str site) -> Tensor"


# --- the operator in the graph -------------------------------------------------------------------------------------------


def _checked(value: Tensor, numbers: list[int], tensors: list[Tensor | None], site: str) -> Tensor:
    options = STATE.options
    if options is None or value.numel() == 0:
        return value.clone()
    spec = _spec(site)
    bounds = spec.bounds(numbers, tensors)
    if value.is_cpu and not verdict.PRETEND_DEVICE and holds(spec.domain, value, bounds, options.sentinels):
        return value.clone()
    instead = verdict.judge(spec.fault(value, bounds), options)
    return value.clone() if instead is None else instead.clone()


def _checked_fake(value: Tensor, numbers: list[int], tensors: list[Tensor | None], site: str) -> Tensor:
    return torch.empty_like(value)


@lru_cache(maxsize=1)
def _operator() -> Any:
    """Define ``preassert::checked`` once in the process."""
    library = torch.library.Library("preassert", "FRAGMENT")
    library.define(_SCHEMA)
    library.impl("checked", _checked, "CompositeExplicitAutograd")
    torch.library.register_fake("preassert::checked", _checked_fake, lib=library)
    # It stands below autograd, or takes integers. (A Python autograd kernel would cost 20 µs a call.)
    library.impl("checked", torch.library.fallthrough_kernel, "Autograd")
    _kept.append(library)
    return torch.ops.preassert.checked.default


_kept: list[Any] = []  # a Library takes its registrations along when it is collected


class _Spec:
    """What the string in the graph says."""

    def __init__(self, site: str) -> None:
        self.plain = plain = json.loads(site)
        self.row = table()[plain["row"]]
        stands_for = table().get(_STANDS_FOR.get(plain["call"] or "", ""))
        if stands_for is not None:
            self.row = replace(self.row, hazard=stands_for.hazard, call=stands_for.call)
        self.domain = self.row.domains[plain["domain"]]
        self.schema = overload_of(plain["operator"])._schema  # type: ignore[union-attr]  # it was there when compiled
        self.tree = pytree.treespec_loads(plain["tree"])

    def bounds(self, numbers: list[int], tensors: list[Tensor | None]) -> Any:
        number, tensor = iter(numbers), iter(tensors)
        leaves = [next(number) if kind == "n" else next(tensor) if kind == "t" else kind["="] for kind in self.plain["leaves"]]
        return pytree.tree_unflatten(leaves, self.tree)

    def fault(self, value: Tensor, bounds: Any) -> Fault:
        plain = self.plain
        site = make_site(plain["file"], plain["line"], plain["function"]) if plain["file"] else None
        name = self.domain.argument
        at = Place(site, plain["module"], Call(plain["call"], {name: value}) if plain["call"] else None)
        kwargs = {name: value, "assert_msg": plain["message"]}
        return Fault(self.row, self.schema, self.domain, places(self.schema)[name], plain["place"], value, bounds, (), kwargs, at)


@lru_cache(maxsize=4096)
def _spec(site: str) -> _Spec:
    return _Spec(site)


# --- while inductor traces -------------------------------------------------------------------------------------------------


class _Tracing:
    """Is a decomposition of ours running (its inner operators work on checked values), and in a guarded compilation at all?"""

    compiling = 0
    inside = 0
    guarded_graphs = 0


def insert(row: Row, overload: Any, bounds: tuple[Bound, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with each checked tensor passed through ``preassert::checked``; None when nothing is to be inserted."""
    if not _Tracing.compiling or _Tracing.inside:
        return None
    meta = torch.fx.traceback.get_current_meta()
    if "stack_trace" not in meta:  # a pattern of inductor's own, not the user's program
        return None
    changed = False
    for number, bound in enumerate(bounds):
        domain = bound.domain
        for place, tensor, limits in list(domain.cases(*bound.fetch(args, kwargs))):
            if row.level == "composite" and tensor.requires_grad:  # above autograd: the ``q`` of quantile, being learnt
                continue
            leaves, tree = pytree.tree_flatten(limits)
            kinds = ["n" if _is_number(leaf) else "t" if isinstance(leaf, Tensor) else {"=": leaf} for leaf in leaves]
            site = json.dumps(
                {
                    "row": row.operator,
                    "operator": overload._schema.name
                    + (f".{overload._overloadname}" if overload._overloadname != "default" else ""),
                    "domain": number,
                    "place": place,
                    "leaves": kinds,
                    "message": name_arguments(overload._schema, args, kwargs).get("assert_msg"),
                    "tree": pytree.treespec_dumps(tree),
                    **_whose(meta),
                }
            )
            passed = _operator()(
                tensor, [leaf for leaf in leaves if _is_number(leaf)], [leaf for leaf in leaves if isinstance(leaf, Tensor)], site
            )
            fault = Fault(row, overload._schema, domain, bound.argument_position, place, tensor, limits, args, kwargs)
            args, kwargs = fault.replaced(passed)
            changed = True
    return (args, kwargs) if changed else None


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, torch.SymInt)) and not isinstance(leaf, bool)


_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>\S+)')


def _whose(meta: dict[str, Any]) -> dict[str, Any]:
    """The user's line, the module and the call, from what the tracer knows of the node."""
    frames = [match.groupdict() for match in _FRAME.finditer(meta.get("stack_trace") or "")]  # innermost last
    mine = [frame for frame in frames if owner(frame["file"]) == "user"] or [f for f in frames if owner(f["file"]) == "package"]
    frame = mine[-1] if mine else None
    call = None
    for _name, source in meta.get("source_fn_stack") or ():
        function = getattr(source, "__name__", str(source))
        if getattr(source, "__module__", "") in ("torch.nn.functional", "torch._C._nn"):
            call = f"F.{function}"
        elif isinstance(source, type) and issubclass(source, torch.nn.Module):
            call = _FUNCTION_OF.get(source.__name__, call)
    return {
        "file": frame["file"] if frame else None,
        "line": int(frame["line"]) if frame else 0,
        "function": frame["function"] if frame else "",
        "module": _module(meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")),
        "call": call,
    }


_FUNCTION_OF = {
    "Embedding": "F.embedding",
    "EmbeddingBag": "F.embedding_bag",
    "CrossEntropyLoss": "F.cross_entropy",
    "NLLLoss": "F.nll_loss",
    "BCELoss": "F.binary_cross_entropy",
    "CTCLoss": "F.ctc_loss",
    "MultiMarginLoss": "F.multi_margin_loss",
    "MultiLabelMarginLoss": "F.multilabel_margin_loss",
}


def _module(stack: dict[str, Any] | None) -> str | None:
    """``L['self'].layers.0.attention`` -> ``layers.0.attention``; a loss of torch is no module of the model."""
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    if isinstance(kind, type) and kind.__module__ == "torch.nn.modules.loss":
        return None
    name = re.sub(r"\._modules\['([^']+)'\]", r".\1", str(path))
    name = re.sub(r"\['?([^'\]]+)'?\]", r".\1", name.partition("]")[2] if name.startswith("L[") else name)
    return name.strip(".") or (kind.__name__ if isinstance(kind, type) else None)


def _decomposition(row: Row, overload: Any, before: Callable[..., Any] | None) -> Callable[..., Any]:
    bounds = bind_row(row, overload._schema)

    def decompose(*args: Any, **kwargs: Any) -> Any:
        replaced = insert(row, overload, bounds, args, kwargs)
        if replaced is None:
            return NotImplemented if before is None else before(*args, **kwargs)
        _Tracing.inside += 1
        try:
            return (before or overload)(*replaced[0], **replaced[1])
        finally:
            _Tracing.inside -= 1

    return decompose


def targets() -> Iterator[tuple[Row, Any]]:
    """(row, overload) of everything that inductor can meet."""
    for operator in (*table(), *FUNCTIONAL_FORMS):
        row = table()[FUNCTIONAL_FORMS.get(operator, operator)]
        overload = overload_of(operator)
        if overload is not None and row.level == "kernel":
            yield row, overload


def select_guarded() -> Any:
    """Inductor's own table with ours on top. A function of the module: inductor pickles it into its cache keys."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    graph: Any = V.graph
    if isinstance(graph, GraphLowering):
        return select_decomp_table()  # lowering asks which operators can have a fallback kernel: tracing is over
    known = dict(select_decomp_table())
    known.update({overload: _decomposition(row, overload, known.get(overload)) for row, overload in targets()})
    return known


@contextmanager
def guarded_decompositions() -> Iterator[None]:
    """Within the block, what inductor compiles is guarded."""
    from torch._inductor import config

    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    select = compile_fx.select_decomp_table
    _operator()
    compile_fx.select_decomp_table = select_guarded
    _Tracing.compiling += 1
    try:
        with config.patch(**_cache_mark(config)):
            yield
    finally:
        _Tracing.compiling -= 1
        compile_fx.select_decomp_table = select


def _cache_mark(config: Any) -> dict[str, Any]:
    """A graph pass that does nothing but enter the key of inductor's caches: guarded and unguarded code never mix."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    before = config.joint_custom_pre_pass
    if before is not None:
        return {}  # the user's pass is in the key; the strings in the graph tell the code apart in memory

    class PreassertMark(CustomGraphPass):
        def __call__(self, graph: torch.fx.graph.Graph) -> None:
            return None

        def uuid(self) -> Any:
            return _fingerprint()

    return {"joint_custom_pre_pass": PreassertMark()}


@lru_cache(maxsize=1)
def _fingerprint() -> str:
    """Changes with the code that decides what is inserted: strings in cached graphs are read by the code that wrote them."""
    digest = hashlib.sha256()
    for module in (sys.modules[__name__], *(sys.modules[name] for name in sorted(sys.modules) if name.startswith(_CONTRACTS))):
        if module.__file__ is not None:
            digest.update(Path(module.__file__).read_bytes())
    return f"preassert-{digest.hexdigest()}"


_CONTRACTS = "preassert.contracts."


# --- hooking ---------------------------------------------------------------------------------------------------------------

_wrapped: Any = None


def hook() -> None:
    """Guard what torch.compile hands to inductor from now on. Imports nothing of inductor until something is compiled."""
    global _wrapped
    backend: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if backend is None or _wrapped is not None:
        return
    _wrapped = original = backend.__call__

    def compile_guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if STATE.options is None:
            return original(self, *args, **kwargs)
        _Tracing.guarded_graphs += 1
        with guarded_decompositions():
            return original(self, *args, **kwargs)

    backend.__call__ = compile_guarded
    TRACED.append(insert)


def unhook() -> None:
    global _wrapped
    if _wrapped is not None:
        backend: Any = torch._TorchCompileInductorWrapper
        backend.__call__ = _wrapped
        _wrapped = None
        TRACED.clear()


def unguarded_graphs() -> int:
    """How many graphs this process has compiled without a guard; that code stays unguarded."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    graphs = counters["stats"]["unique_graphs"] if counters else 0
    return max(0, int(graphs) - _Tracing.guarded_graphs)
