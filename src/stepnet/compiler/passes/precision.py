"""Steps with numbers of 16 bits, as float32 with a few of them rounded.

Autocast and modules in bfloat16 or float16 make torch round whatever it computes. The same step with

    operands of products        rounded; sums of them in float32
    what backward reads again   rounded where torch rounds it, as half the bytes are kept
    what is compared            rounded, and what is searched or made whole: those are no continuous functions
    y, gradients of x, weights  rounded once, at the end
    casts that the step writes  rounded, as written; not those that torch makes on its own
    all else                    float32, states and their gradients from step to step too

is as near to the exact numbers as torch's, and mostly nearer. A writer of code then meets one type that it
computes in, and rounded values that are made by `cast` and moved by shape ops alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepnet.compiler.rules.normal import Joint
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, RANDOM, ROUNDED, Stage

_WIDE = "float32"
# What may jump where its operand moves a little.
_JUMPS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "round", "trunc", "sign"})
_JUMPS |= {"argmax", "argmin", "isnan", "remainder", "fmod", "argsort", "topk", "cumargmax", "cumargmin"}
_PRODUCTS = ("matmul", "matmul_tn")
# Bfloat16 has products of its own; float16 is multiplied in float32, which holds each product exactly.
_HAS_PRODUCTS = ("bfloat16",)


def holds_rounded(graph: Graph) -> bool:
    """Whether any value has 16 bits."""
    return any(value.dtype in ROUNDED for value in graph.values.values())


def widened(joint: Joint, states: Sequence[str], n_y: int) -> Joint:
    """The joint graph with float32 in place of all that need not be rounded.

    Args:
        joint: as traced.
        states: its parameters that are carried; with the gradients of their new values they become float32,
            whatever they are outside.
        n_y: how many of its results are y leaves.
    """
    return _Widener(joint, states, n_y).run()


class _Widener:
    """`names` of values in the new graph: as they are, wide, and rounded."""

    def __init__(self, joint: Joint, states: Sequence[str], n_y: int) -> None:
        self.joint, self.old = joint, joint.graph
        self.makers = joint.graph.producers
        self.n_out = n_y + len(states)
        self.carried = {*states, *(f"d_{k}" for k in range(n_y, self.n_out))}
        self.n_y = n_y
        self.n_x = self.old.parameters.index(states[0]) if states else 0
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.wide: dict[str, str] = {}
        self.low: dict[str, str] = {}
        self.again: dict[str, str] = {}  # rounded, and wide once more
        self.same: dict[str, str] = {}  # a cast to float32, of which value
        self.line: str | None = None
        made = joint.results[: self.n_out]
        nodes = self.old.needed([name for name in made if name is not None])
        self.forward = {name for node in nodes for name in node.outputs}  # the rest is done on the way back
        self.exact = {*self.carried, *made[n_y:]}  # states pass through all steps: what is kept of them, too
        self.multiplied = {
            self._source(name) for node in self.old.nodes if node.op in _PRODUCTS for name in node.inputs
        }

    def run(self) -> Joint:
        for name in self.old.parameters:
            self._parameter(name)
        for node in self.old.nodes:
            self.line = node.line
            self._node(node, late=self.forward.isdisjoint(node.outputs))
        results = tuple(None if n is None else self._result(at, n) for at, n in enumerate(self.joint.results))
        live = tuple(name for name in results if name is not None)
        graph = Graph(self.old.name, self.old.parameters, tuple(self.nodes), live, self.values)
        return replace(self.joint, graph=graph.with_nodes(graph.needed(live)), results=results)

    # -- values

    def _is_low(self, name: str) -> bool:
        return self.old.values[name].dtype in ROUNDED

    def _source(self, name: str) -> str:
        """The value of 16 bits that a float32 one is a cast of; else the value itself."""
        node = self.makers.get(name)
        if node is None or node.op != "cast" or self.old.values[name].dtype != _WIDE:
            return name
        return node.inputs[0] if self._is_low(node.inputs[0]) else name

    def _fresh(self, like: str, tail: str, dtype: str) -> str:
        """A new value with the shape of an old one, under a name of its own."""
        name = f"{like}_{tail}"
        while name in self.values or name in self.old.values:
            name += "_"
        self.values[name] = replace(self.old.values[like], name=name, dtype=dtype)
        return name

    def _emit(self, op: str, inputs: Sequence[str], out: str, attrs: tuple = ()) -> str:
        self.nodes.append(Node(op, tuple(inputs), (out,), attrs, self.line))
        return out

    def _own(self, name: str, dtype: str | None = None) -> str:
        """Declare an old value under its own name."""
        value = self.old.values[name]
        self.values[name] = value if dtype is None else replace(value, dtype=dtype)
        return name

    def _parameter(self, name: str) -> None:
        if not self._is_low(name):
            self._own(name)
        elif name in self.carried:
            self.wide[name] = self._own(name, _WIDE)
        else:
            self.low[name] = self._own(name)

    # -- how a value is read

    def _as_wide(self, name: str) -> str:
        """A value in float32, as it was computed."""
        if not self._is_low(name):
            return self._read(name, late=False)
        if name not in self.wide:
            node = self.makers.get(name)
            if node is not None and name not in self.low and OPS[node.op].stage is Stage.SHAPE:
                wide = [self._as_wide(n) if self._floating(n) else n for n in node.inputs]
                self.wide[name] = self._emit(node.op, wide, self._own(name, _WIDE), node.attrs)
            else:
                self.wide[name] = self._emit("cast", (self.low[name],), self._fresh(name, "wide", _WIDE))
        return self.wide[name]

    def _as_low(self, name: str) -> str:
        """A value of 16 bits, rounded."""
        if name not in self.low:
            node = self.makers.get(name)
            dtype = self.old.values[name].dtype
            if node is not None and self._moves(node) and all(map(self._is_low, node.inputs)):
                parts = [self._as_low(n) for n in node.inputs]
                self.low[name] = self._emit(node.op, parts, self._fresh(name, "low", dtype), node.attrs)
            else:
                self.low[name] = self._emit("cast", (self._as_wide(name),), self._fresh(name, "low", dtype))
        return self.low[name]

    def _moves(self, node: Node) -> bool:
        """Whether the op is better done on what is rounded: weights are small so, and parts of a joined value
        are rounded where they are made."""
        if OPS[node.op].stage is not Stage.SHAPE:
            return False
        return node.op == "cat" or all(self._rounded_early(n) for n in node.inputs)

    def _rounded_early(self, name: str) -> bool:
        return name in self.low or self.old.values[name].kind == "shared"

    def _as_rounded(self, name: str) -> str:
        """A value of 16 bits, rounded, in float32."""
        name = self._source(name)
        if not self._is_low(name):
            return self._as_wide(name)
        if name not in self.again:
            low = self._as_low(name)
            exact = self.old.parameters.count(name) and name not in self.carried
            self.again[name] = (
                self._as_wide(name)
                if exact
                else self._emit("cast", (low,), self._fresh(name, "again", _WIDE))
            )
        return self.again[name]

    def _floating(self, name: str) -> bool:
        return self._is_low(name) or name in self.same

    def _read(self, name: str, late: bool) -> str:
        """A value as pointwise ops and sums read it. What backward reads of forward rows is kept rounded."""
        source = self._source(name)
        if not self._is_low(source):
            return name
        kept = late and source in self.forward and source not in self.exact
        kept &= self.old.values[source].kind == "row"
        kept |= name != source and _is_written(self.makers[name])
        return self._as_rounded(source) if kept else self._as_wide(source)

    # -- nodes

    def _node(self, node: Node, late: bool) -> None:
        op, stage = node.op, OPS[node.op].stage
        low_out = [n for n in node.outputs if n and self._is_low(n)]
        if op == "cast":
            self._cast(node, late)
        elif op in _PRODUCTS and all(self._is_low(self._source(n)) for n in node.inputs):
            self._product(node)
        elif op in _PRODUCTS:
            self._plain(node, [self._as_rounded(n) for n in node.inputs])
        elif stage is Stage.OPAQUE or op in RANDOM or op == "iota":
            inputs = [self._as_low(n) if self._is_low(n) else self._as_wide(n) for n in node.inputs]
            for name in node.outputs:
                if name:
                    self._own(name)
            self.nodes.append(replace(node, inputs=tuple(inputs)))
            self.low.update((n, n) for n in low_out)
        elif op == "embed" and low_out:
            table, index = node.inputs
            self.low[node.output] = self._emit("embed", (self._as_low(table), index), self._own(node.output))
        elif stage is Stage.SHAPE and low_out:
            pass  # made where it is read, in the precision that its reader wants
        elif op in _JUMPS or (op == "sum_rows" and self._source(node.inputs[0]) in self.multiplied):
            self._plain(node, [self._as_rounded(n) for n in node.inputs])
        else:
            self._plain(node, [self._read(n, late) for n in node.inputs])

    def _plain(self, node: Node, inputs: Sequence[str]) -> None:
        """The same op in float32."""
        out = node.output
        low = self._is_low(out)
        self._emit(node.op, inputs, self._own(out, _WIDE if low else None), node.attrs)
        if low:
            self.wide[out] = out

    def _cast(self, node: Node, late: bool) -> None:
        (name,), out = node.inputs, node.output
        to = self.old.values[out].dtype
        if self._is_low(name) and to == _WIDE:
            self.same[out] = name
        elif to in ROUNDED:
            source = self._read(name, late)
            if self.values[source].dtype != _WIDE:
                source = self._emit("cast", (source,), self._fresh(out, "wide", _WIDE))
            self.wide[out] = source
            if _is_written(node):
                self.wide[out] = self._as_rounded(out)
        elif to.startswith(("float", "complex")):
            self._plain(node, [self._read(name, late)])
        else:
            self._plain(node, [self._as_rounded(name)])

    def _product(self, node: Node) -> None:
        a, b = (self._source(n) for n in node.inputs)
        dtypes = {self.old.values[n].dtype for n in (a, b)}
        vectors = node.op == "matmul_tn" or self.old.values[b].kind != "row"
        own = vectors and len(dtypes) == 1 and dtypes <= set(_HAS_PRODUCTS)
        read: Callable[[str], str] = self._as_low if own else self._as_rounded
        self._plain(node, [read(a), read(b)])

    def _result(self, at: int, name: str) -> str:
        state = self.n_y <= at < self.n_out or self._is_state_gradient(at)
        if self._is_low(name):
            return self._as_wide(name) if state else self._as_low(name)
        return self._as_wide(name)

    def _is_state_gradient(self, at: int) -> bool:
        first = self.n_out + self.n_x
        return first <= at < first + self.n_out - self.n_y


def _is_written(node: Node) -> bool:
    return ("written", 1) in node.attrs
