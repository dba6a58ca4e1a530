"""From a trace to the normal form: aten calls become ops of the closed list, rows are proved to be rows.

Every traced tensor is followed with the place of its batch dimension, as vmap does. A value whose batch
dimension is known and never mixed is a `row`; one without is `shared`, or a `sum` where rows were added
up. Anything else is refused: the step is then run by the plain loop.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.trace.capture import WRITTEN, Captured
from stepnet.data.dtypes import dtype_name
from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph, Kind

from . import linalg, noise, other, picks, pointwise, reduce, shape  # noqa: F401  (they fill RULES)
from .builder import BATCH, RULES, Builder, Ref, RowNumbers, row_numbers
from .complex import Pair, complex_call, half, is_complex

_KEEP_ROW_NUMBERS = frozenset({"unsqueeze", "view", "_unsafe_view", "alias", "clone", "detach", "expand"})


def arguments(
    builder: Builder, env: dict[FxNode, Any], node: FxNode
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a traced call: Refs for tensors, BATCH for the batch size, numbers as they are."""

    def convert(arg: Any) -> Any:
        if isinstance(arg, FxNode):
            return env[arg]
        if isinstance(arg, (list, tuple)):
            return [convert(a) for a in arg]
        return _size(builder, arg) if isinstance(arg, torch.SymInt) else arg

    return tuple(convert(a) for a in node.args), {k: convert(v) for k, v in node.kwargs.items()}


@dataclass(frozen=True)
class Joint:
    """The joint graph; `results` are y leaves, new states, gradients (None: no gradient flows), and
    `constants` are tensors the step made from Python values, which are parameters too. `flow`: for each y
    leaf and new state the inputs (x, states, weights) that autograd leads back to; `requires`: those
    that make it require a gradient. `as_numbers`: the inputs that are read as `.item()` gives them, and in no
    other way. `by_states`: the states by which the step asks `torch.autograd.grad` of what depends on other
    inputs, each with these: on the first row this goes through them, where the caller made them of it."""

    graph: Graph
    results: tuple[str | None, ...]
    constants: dict[str, Tensor]
    flow: tuple[tuple[int, ...], ...] = ()
    requires: tuple[tuple[int, ...], ...] = ()
    paired: tuple[int, ...] = ()  # the results that are complex: their parts are the last dimension
    as_numbers: tuple[int, ...] = ()
    by_states: tuple[tuple[int, ...], ...] = ()


def normalise(captured: Captured, names: Sequence[str]) -> Joint:
    """The joint graph in normal form.

    Args:
        captured: the trace.
        names: what to call its inputs: x leaves, state leaves, weights.

    Raises:
        Unsupported: a value is not provably row-wise.
    """
    builder = Builder(captured.batch)
    env: dict[FxNode, Any] = {}
    parameters: list[str] = []
    results: list[Any] = []
    checked = {n.args[0].args[0] for n in captured.graph.nodes if "linalg_check_errors" in str(n.target)}
    inputs = iter([*names, *(f"d_{i}" for i in captured.tangent_of)])
    for node in captured.graph.nodes:
        builder.line = node.meta.get("stepnet_line")
        meta = node.meta.get("val")
        builder.meta = meta
        builder.written = WRITTEN in node.meta.get("custom", ())
        if node.op == "placeholder":
            env[node] = _parameter(builder, next(inputs), meta)
            parameters.append(env[node].name)
        elif node.op == "get_attr":
            tensor = captured.constants[node.target]
            env[node] = _constant(builder, str(node.target), tensor, parameters)
        elif node.op == "output":
            results = list(arguments(builder, env, node)[0][0])
        else:
            builder.node, builder.checked = node, node in checked
            env[node] = _call(builder, env, node)
    final = [None if ref is None else _result(builder, ref) for ref in results]
    live = tuple(name for name in final if name is not None)
    graph = Graph("step", tuple(parameters), tuple(builder.nodes), live, builder.values)
    graph = graph.with_nodes(graph.needed(live))
    return Joint(
        graph,
        tuple(final),
        builder.constants,
        tuple(captured.flow),
        tuple(captured.requires),
        captured.paired,
        _as_numbers(captured, len(names)),
        captured.by_states,
    )


def _as_numbers(captured: Captured, inputs: int) -> tuple[int, ...]:
    placeholders = [node for node in captured.graph.nodes if node.op == "placeholder"][:inputs]
    return tuple(k for k, node in enumerate(placeholders) if node.users and all(map(_is_item, node.users)))


def _is_item(node: FxNode) -> bool:
    return str(node.target).startswith("aten._local_scalar_dense")


def _parameter(builder: Builder, name: str, meta: Any) -> Ref:
    bdim, times = builder.batch_at(meta.shape)
    if bdim not in (None, 0) or times != 1:
        raise Unsupported("an input's batch dimension is not its first")
    kind: Kind = "shared" if bdim is None else "row"
    return Ref(builder.value(name, kind, builder.row_shape(meta.shape, bdim), dtype_name(meta.dtype)), bdim)


def _constant(builder: Builder, target: str, tensor: Tensor, parameters: list[str]) -> Any:
    name = f"const_{target.strip('_')}"
    if tensor.is_complex():
        pair = _constant(builder, target, torch.view_as_real(tensor.detach().resolve_conj()), parameters)
        return Pair(*(Ref(half(builder, pair.name, at)) for at in (0, 1)))
    # of its own: an array of numpy's may be what it is made on, and hold other numbers later
    builder.constants[name] = tensor.detach().clone()
    builder.value(name, "shared", tensor.shape, dtype_name(tensor.dtype))
    parameters.append(name)
    return Ref(name)


def _result(builder: Builder, ref: Any) -> str:
    value = builder.values[ref.name]
    if value.kind == "row" and (ref.bdim != 0 or ref.fold):
        raise Unsupported("a result of the step does not have its rows first", remedy="return [rows, ...]")
    return ref.name


def _call(builder: Builder, env: dict[FxNode, Any], node: FxNode) -> Any:
    target = node.target
    if getattr(target, "__name__", "") == "getitem":
        return env[node.args[0]][node.args[1]]  # pyright: ignore
    name = str(target).removeprefix("aten.")
    packet = name.split(".")[0]
    if name.startswith("profiler."):  # marks where a part of the step begins and ends
        return None
    args, kwargs = arguments(builder, env, node)
    if packet == "_local_scalar_dense" and isinstance(args[0], Ref) and args[0].bdim is None:
        return Ref(builder.reshape(args[0].name, ()))  # read anew at every call, as a number is
    if packet in ("sym_size", "sym_stride") or not _has_tensor(node):
        return _number(builder, node, args)
    numbers = row_numbers([one for arg in args for one in (arg if isinstance(arg, list) else [arg])])
    if numbers is not None:
        if packet in _KEEP_ROW_NUMBERS or (packet == "slice" and _is_whole(node)):
            return _moved(builder, numbers)
        if packet not in ("index", "index_put"):
            raise Unsupported("the step numbers its rows (arange over the batch)", line=builder.line)
    if is_complex(node.meta.get("val"), (*args, *kwargs.values())):
        return complex_call(builder, name, args, kwargs)
    found = RULES.get(name) or RULES.get(packet)
    if found is not None:
        out = found(builder, *builder.as_folded(args), **kwargs)
        if out is not NotImplemented:
            return out
    return RULES["opaque"](builder, node, args, kwargs)


def _moved(builder: Builder, numbers: RowNumbers) -> RowNumbers:
    """Numbers of rows in another shape: further dimensions may be merged into theirs, behind it."""
    at, times, others = builder.shown()
    if at is None or (times > numbers.times and numbers.bdim) or (at != numbers.bdim and prod(others) > 1):
        raise Unsupported("the step numbers its rows (arange over the batch)", line=builder.line)
    return RowNumbers(at, times)


def _is_whole(node: FxNode) -> bool:
    """Whether a slice is of all rows: `x[:, None]` takes one."""
    start, end, step = (*node.args[2:], None, None, None)[:3]
    return (
        start in (None, 0) and (end is None or (isinstance(end, int) and end >= 2**62)) and step in (None, 1)
    )


def _has_tensor(node: FxNode) -> bool:
    meta = node.meta.get("val")
    return isinstance(meta, (Tensor, tuple, list)) or meta is None


# What Python computes of `.item()`'s floats without an error, whatever they are.
_OF_FLOATS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.neg: "neg",
}


def _number(builder: Builder, node: FxNode, args: tuple[Any, ...]) -> Any:
    meta = node.meta["val"]
    op, refs = _OF_FLOATS.get(node.target), [a for a in args if isinstance(a, Ref)]
    if op is not None and refs and isinstance(meta, torch.SymFloat):
        one, *other = [
            builder.cast(a, "float64").name if isinstance(a, Ref) else builder.full(a, (), "float64")
            for a in args
        ]
        return Ref(builder.like(one, op, one, *other))
    return meta if isinstance(meta, (int, float, bool)) else _size(builder, meta)


def _size(builder: Builder, size: Any) -> Any:
    if str(size.node.expr) == builder.batch:
        return BATCH
    return size  # an expression of the batch size: only shapes that are checked elsewhere may use it
