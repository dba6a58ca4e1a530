"""The closed list of ops as nodes of a graph: one row per op.

A row value of shape s is written as [d0, d1, *s]: time and batch, in either order, in front. So a map over
all rows and a step of a loop are the same nodes, and no shape has to be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph, Node
from stepnet.ir.graph import Value as BodyValue
from stepnet.ir.ops import OPS, Stage

from .emit import Emit
from .graph import Value
from .patterns import norms, softmaxes, softpluses, whole_splits

LEAD = 2
Rule = Callable[["RowNet", Node], Value]


class RowNet:
    """Values of a body, made as nodes of one graph when they are asked for.

    Args:
        emit: the graph that they are added to.
        graph: the body.
        nodes: those that may be made in this graph.
        constants: shared values that are known.
        outside: gives what is made elsewhere: a parameter of a loop's body.
        hooks: rules of ops that need to know more than the body.
    """

    def __init__(
        self, emit: Emit, graph: Graph, nodes: Iterable[Node], constants: Mapping[str, Tensor],
        outside: Callable[[str], Value], hooks: Mapping[str, Rule] | None = None,
    ) -> None:  # fmt: skip
        self.emit = emit
        self.graph = graph
        self.makers = {name: node for node in nodes for name in node.outputs}
        self.constants = constants
        self.outside = outside
        self.rules = {**RULES, **(hooks or {})}
        self.known: dict[str, Value] = {}
        self.thin: set[str] = set()  # row values that are still [1, .., *s] or alike: they broadcast
        self.reference: Value | None = None  # a value whose first two dimensions are those of all rows
        self.norms = {} if not self.makers else norms(graph, self.makers)
        exact = bool(self.makers) and emit.graph.target.softplus
        self.softpluses = softpluses(graph, self.makers) if exact else {}
        self.softmaxes = softmaxes(graph, self.makers)
        self._slices = whole_splits(graph, self.makers.values())

    def value(self, name: str) -> BodyValue:
        """What the body says of a value."""
        return self.graph.values[name]

    def is_row(self, name: str) -> bool:
        """Whether there is one for each row."""
        return self.graph.values[name].kind == "row"

    def get(self, name: str) -> Value:
        """The value of a name; makes it, and what it needs, at the first time."""
        work = [name]
        while work:
            top = work[-1]
            if top in self.known:
                work.pop()
                continue
            node = self.makers.get(top)
            if node is None or top in self.constants:
                self.known[top] = self._given(top)
                continue
            missing = [n for n in self._inputs(node) if n not in self.known]
            if missing:
                work += missing
                continue
            self._make(node)
        return self.known[name]

    def full(self, name: str) -> Value:
        """A row value repeated to all rows."""
        out = self.get(name)
        if name not in self.thin:
            return out
        shape = self.value(name).shape
        assert self.reference is not None
        lead = self.emit.slice(self.emit.shape(self.reference), 0, 0, LEAD)
        target = self.emit.concat([lead, self.emit.ints(shape)], 0) if shape else lead
        return self.emit.broadcast(out, target)

    def _given(self, name: str) -> Value:
        found = self.constants.get(name)
        return self.outside(name) if found is None else self.emit.tensor(found)

    def _inputs(self, node: Node) -> tuple[str, ...]:
        name = node.outputs[0]
        whole = self.norms.get(name) or self.softmaxes.get(name)
        if whole is not None:
            return (whole[0],)
        return (self.softpluses[name],) if name in self.softpluses else node.inputs

    def _make(self, node: Node) -> None:
        norm = self.norms.get(node.outputs[0])
        rows = [n for n in self._inputs(node) if self.is_row(n)]
        if self.is_row(node.outputs[0]) and all(n in self.thin for n in rows):
            self.thin.add(node.outputs[0])
        if norm is not None:
            source, dims, eps = norm
            axes = self.emit.ints([d + LEAD for d in dims])
            shape, value = self.value(source).shape, self.known[source]
            last = dims == tuple(range(len(shape) - len(dims), len(shape)))
            sizes = shape[len(shape) - len(dims) :] if last else ()
            self.known[node.output] = self.emit.call("normalize", value, axes, eps=eps, sizes=sizes)
            return
        soft = self.softmaxes.get(node.outputs[0])
        if soft is not None:
            source, dim = soft
            self.known[node.output] = self.emit.call("softmax", self.known[source], axis=dim + LEAD)
            return
        plus = self.softpluses.get(node.outputs[0])
        if plus is not None:
            self.known[node.output] = self.emit.call("softplus", self.known[plus])
            return
        rule = self.rules.get(node.op)
        if rule is None or node.op in self.emit.graph.target.refused:
            raise Unsupported(_shown(node), line=node.line)
        made = rule(self, node)
        self.known.setdefault(node.output, made)

    def lifted(self, name: str, rank: int) -> Value:
        """An operand of an op whose result has `rank` dimensions: rows of fewer get them after the lead."""
        own = len(self.value(name).shape)
        out = self.known[name]
        if not self.is_row(name) or own >= rank:
            return out
        return self.emit.unsqueeze(out, *range(LEAD, LEAD + rank - own))

    def siblings(self, node: Node) -> list[Node]:
        """All slices of one value along one dimension, if they are the whole of it, one after the other."""
        return self._slices.get((node.inputs[0], node.attr("dim")), [])


def _shown(node: Node) -> str:
    return str(node.attr("target")) if node.op == "opaque" else node.op


RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, fn))
        return fn

    return register


_POINTWISE = tuple(op for op, facts in OPS.items() if facts.stage is Stage.POINTWISE)


@_rule(*_POINTWISE)  # but for those that have rules below
def _pointwise(b: RowNet, node: Node) -> Value:
    rank = len(b.value(node.output).shape)
    return b.emit.pointwise(node.op, *(b.lifted(name, rank) for name in node.inputs))


@_rule("floor_divide")
def _floor_divide(b: RowNet, node: Node) -> Value:
    rank = len(b.value(node.output).shape)
    return b.emit.floored(*(b.lifted(name, rank) for name in node.inputs))


@_rule("copy")
def _copy(b: RowNet, node: Node) -> Value:
    return b.known[node.inputs[0]]


@_rule("cast")
def _cast(b: RowNet, node: Node) -> Value:
    return b.emit.cast(b.known[node.inputs[0]], dtype_of(b.value(node.output).dtype))


@_rule("sum", "amax", "amin")
def _reduce(b: RowNet, node: Node) -> Value:
    (name,) = node.inputs
    lead = LEAD if b.is_row(name) else 0
    axes = b.emit.ints([d + lead for d in node.attr("dims")])
    return b.emit.call(node.op, b.known[name], axes, keepdim=True)


def _lead(b: RowNet, node: Node) -> int:
    return LEAD if b.is_row(node.output) else 0


@_rule("reshape")
def _reshape(b: RowNet, node: Node) -> Value:
    shape = b.value(node.output).shape
    lead = (0,) * _lead(b, node)
    if not lead and not shape:
        return b.emit.reshape_to(b.known[node.inputs[0]], b.emit.ints([]))
    return b.emit.reshape(b.known[node.inputs[0]], (*lead, *shape))


@_rule("permute")
def _permute(b: RowNet, node: Node) -> Value:
    lead = _lead(b, node)
    order = [*range(lead), *(d + lead for d in node.attr("dims"))]
    return b.emit.transpose(b.known[node.inputs[0]], order)


@_rule("expand")
def _expand(b: RowNet, node: Node) -> Value:
    (name,) = node.inputs
    shape = b.value(node.output).shape
    ones = (1,) * _lead(b, node)
    return b.emit.broadcast(b.lifted(name, len(shape)), b.emit.ints((*ones, *shape)))


@_rule("slice")
def _slice(b: RowNet, node: Node) -> Value:
    (name,), lead, dim = node.inputs, _lead(b, node), node.attr("dim")
    parts = b.siblings(node)
    if parts:
        sizes = [n.attr("end") - n.attr("start") for n in parts]
        axis = dim - len(b.value(name).shape)
        for part, out in zip(
            parts, b.emit.split(b.known[name], axis, b.emit.ints(sizes), len(sizes)), strict=True
        ):
            b.known[part.output] = out
            if name in b.thin:
                b.thin.add(part.output)
        return b.known[node.output]
    return b.emit.slice(b.known[name], dim + lead, node.attr("start"), node.attr("end"), node.attr("step"))


@_rule("flip")
def _flip(b: RowNet, node: Node) -> Value:
    out, lead = b.known[node.inputs[0]], _lead(b, node)
    for d in node.attr("dims"):
        size = b.value(node.output).shape[d]
        out = b.emit.take(out, b.emit.ints(list(range(size))[::-1]), d + lead)
    return out


@_rule("cat")
def _cat(b: RowNet, node: Node) -> Value:
    lead = _lead(b, node)
    parts = []
    for name in dict.fromkeys(node.inputs):
        if lead and not b.is_row(name):
            shape = b.value(name).shape
            if b.reference is None:
                raise Unsupported("cat", line=node.line)
            front = b.emit.slice(b.emit.shape(b.reference), 0, 0, LEAD)
            part = b.emit.broadcast(b.known[name], b.emit.concat([front, b.emit.ints(shape)], 0))
        else:
            part = b.full(name) if lead else b.known[name]
        parts.append((name, part))
    by_name = dict(parts)
    b.thin.discard(node.output)
    return b.emit.concat([by_name[n] for n in node.inputs], node.attr("dim") + lead)


@_rule("gather")
def _gather(b: RowNet, node: Node) -> Value:
    lead = _lead(b, node)
    value, index = (b.full(n) if b.is_row(n) else b.known[n] for n in node.inputs)
    b.thin.discard(node.output)
    return b.emit.call("gather", value, index, axis=node.attr("dim") + lead)


@_rule("embed")
def _embed(b: RowNet, node: Node) -> Value:
    table, index = node.inputs
    return b.emit.take(b.known[table], b.known[index], 0)


@_rule("matmul")
def _matmul(b: RowNet, node: Node) -> Value:
    first, second = node.inputs
    rank = max(len(b.value(first).shape), len(b.value(second).shape))
    a, w = b.known[first], b.known[second]
    if b.is_row(first) and b.is_row(second):
        a, w = b.lifted(first, rank), b.lifted(second, rank)
    elif b.is_row(first) and len(b.value(second).shape) > 2 and len(b.value(first).shape) < 2:
        a = b.emit.unsqueeze(a, *range(LEAD, LEAD + len(b.value(second).shape) - 1))
        out = b.emit.call("matmul", a, w, transposed=0)
        return b.emit.reshape(out, (0,) * LEAD + b.value(node.output).shape)
    return b.emit.call("matmul", a, w, transposed=0)


@_rule("full")
def _full(b: RowNet, node: Node) -> Value:
    value = b.value(node.output)
    if b.is_row(node.output):
        b.thin.add(node.output)
        shape = (1,) * LEAD + value.shape
        return b.emit.tensor(torch.full(shape, node.attr("value"), dtype=dtype_of(value.dtype)))
    if not value.shape:
        return b.emit.number(node.attr("value"), dtype_of(value.dtype))
    return b.emit.tensor(torch.full(value.shape, node.attr("value"), dtype=dtype_of(value.dtype)))


@_rule("iota")
def _iota(b: RowNet, node: Node) -> Value:
    value = b.value(node.output)
    count = torch.arange(value.shape[0], dtype=dtype_of(value.dtype))
    return b.emit.tensor(count * node.attr("step") + node.attr("start"))
