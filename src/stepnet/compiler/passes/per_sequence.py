"""Values of one row per sequence: a state that no step changes, and what follows from it alone.

    for t: k = m W; h = g(k, h)     ->     K = M W, once per sequence; for t: h = g(K[b], h)

Its gradient is summed over the steps of each sequence (`sum_steps`), as early as what follows is linear:

    for t: dM += dk W', dW += m' dk     ->     for t: dK += dk; dM = dK W', dW = M' dK, once per sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepnet.compiler.rules.normal import Joint
from stepnet.ir.graph import Graph, Node, Value, in_order
from stepnet.ir.ops import FLOATS, OPS, RANDOM, ROUNDED, Stage

from .new_values import further

_MOVES = frozenset({"reshape", "permute", "expand", "flip", "neg", "copy"})
_COUNTS = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool"})  # they have no gradient
_SHRINKS = frozenset({"sum", "slice"})  # what they read is larger: summed only where it is summed anyway


def per_sequence(joint: Joint, states: Sequence[str], n_x: int, n_y: int, tangent_of: Sequence[int]) -> Joint:
    """The joint graph with states that never change, and what follows from them, of kind `sequence`.

    The gradient of such a state is that of what the steps do with it: the part that is handed from step to
    step, a tangent, is added by the caller.

    Args:
        joint: y leaves, new states and gradients from x, states, weights and tangents.
        states: names of the states.
        n_x, n_y: how many x leaves and y leaves there are.
        tangent_of: which result (y leaves, then states) each tangent belongs to.
    """
    results = list(joint.results)
    nodes = list(joint.graph.nodes)
    values = dict(joint.graph.values)
    held: list[str] = []
    first_gradient = n_y + len(states)
    for i, name in enumerate(states):
        if results[n_y + i] != name:
            continue
        place = first_gradient + n_x + i
        if n_y + i in tangent_of:
            cut = _without(f"d_{n_y + i}", results[place], nodes, values)
            if cut is None:
                continue
            nodes, results[place] = cut
        elif len(results) > place and values[name].dtype not in _COUNTS:
            continue  # it is cut off from step to step: what comes in is that of sequences without steps
        held.append(name)
    if not held:
        return joint
    values |= {name: replace(values[name], kind="sequence") for name in held}
    _mark(nodes, values)
    sums = _Sums(nodes, values)
    for i, name in enumerate(states):
        place = first_gradient + n_x + i
        if name in held and len(results) > place:
            gradient = results[place]
            results[place] = None if gradient is None else sums.total(gradient)
    nodes = sums.finish()
    for place, name in enumerate(results[:first_gradient]):
        unchanged = place >= n_y and name == states[place - n_y]
        if name is not None and values[name].kind == "sequence" and not unchanged:
            results[place] = _row_of(name, nodes, values)
    live = tuple(name for name in results if name is not None)
    graph = Graph(joint.graph.name, joint.graph.parameters, tuple(nodes), live, values)
    return replace(joint, graph=graph.with_nodes(graph.needed(live)), results=tuple(results))


def _without(
    tangent: str, gradient: str | None, nodes: list[Node], values: dict[str, Value]
) -> tuple[list[Node], str | None] | None:
    """The nodes with `gradient = tangent + rest` as `gradient = rest`, and what `rest` is called then.

    None: the gradient is no such sum, so it changes on its way from step to step."""
    users = [node for node in nodes if tangent in node.inputs]
    if gradient == tangent and not users:
        return nodes, None
    if len(users) != 1 or users[0].op != "add" or users[0].inputs[0] == users[0].inputs[1]:
        return None
    (add,) = users
    at = add.output
    while at != gradient:  # through sums alone, each read by nobody else
        readers = [node for node in nodes if at in node.inputs]
        if len(readers) != 1 or readers[0].op != "add":
            return None
        at = readers[0].output
    other = add.inputs[0] if add.inputs[1] == tangent else add.inputs[1]
    if values[other].shape != values[add.output].shape:
        return None
    kept = [
        replace(node, inputs=tuple(other if name == add.output else name for name in node.inputs))
        for node in nodes
        if node is not add
    ]
    return kept, other if gradient == add.output else gradient


def _mark(nodes: Sequence[Node], values: dict[str, Value]) -> None:
    """Give what follows from values per sequence, and from nothing of each row, their kind."""
    for node in nodes:
        kinds = {values[name].kind for name in node.inputs}
        plain = node.op not in RANDOM and OPS[node.op].stage is not Stage.ROWS
        if plain and "sequence" in kinds and kinds <= {"sequence", "shared"}:
            values.update({n: replace(values[n], kind="sequence") for n in node.outputs if n})


def _fresh(like: str, tail: Any, values: dict[str, Value], kind: Any = None) -> str:
    """A new value with the shape of another one; `tail`: of its name, and its kind unless that is told."""
    return further(values, f"{like}_{tail}", values[like], kind=kind or tail)


def _row_of(name: str, nodes: list[Node], values: dict[str, Value]) -> str:
    """A value per sequence as one of each row."""
    row = _fresh(name, "row", values)
    nodes.append(Node("copy", (name,), (row,)))
    return row


class _Sums:
    """Sums over the steps of each sequence, made as early as what follows from them is linear."""

    def __init__(self, nodes: list[Node], values: dict[str, Value]) -> None:
        self.nodes, self.values = nodes, values
        self.made = {name: node for node in nodes for name in node.outputs}
        self.totals: dict[str, str] = {}
        self.new: list[Node] = []

    def total(self, name: str) -> str:
        """The sum of a row value over the steps of each sequence."""
        if name not in self.totals:
            node = self.made.get(name)
            if not self._is_row(name):
                row = _row_of(name, self.new, self.values)
                self.totals[name] = self.total(row)
                return self.totals[name]
            if node is not None and node.op == "full" and node.attr("value") == 0:
                total = _fresh(name, "sequence", self.values)
                self.new.append(replace(node, outputs=(total,)))
            elif node is not None and self._is_linear(node) and not self._is_one_sum(name):
                inputs = tuple(self.total(n) if self._is_row(n) else n for n in node.inputs)
                total = _fresh(name, "sequence", self.values)
                self.new.append(replace(node, inputs=inputs, outputs=(total,)))
            else:
                total = self._summed(name, node.line if node else None)
            self.totals[name] = total
        return self.totals[name]

    def _summed(self, name: str, line: str | None) -> str:
        """Sums of numbers of 16 bits are made in float32."""
        dtype = self.values[name].dtype
        if dtype in ROUNDED:
            name = self._cast(name, "float32", line)
        total = _fresh(name, "sequence", self.values)
        self.new.append(Node("sum_steps", (name,), (total,), (), line))
        return self._cast(total, dtype, line) if dtype in ROUNDED else total

    def _cast(self, name: str, dtype: str, line: str | None) -> str:
        made = _fresh(name, dtype, self.values, self.values[name].kind)
        self.values[made] = replace(self.values[made], dtype=dtype)
        self.new.append(Node("cast", (name,), (made,), (), line))
        return made

    def _is_row(self, name: str) -> bool:
        return self.values[name].kind == "row"

    def _is_linear(self, node: Node) -> bool:
        """Whether a node is linear in the rows that it reads, and reads some."""
        rows = [n for n in node.inputs if self._is_row(n)]
        if not rows:
            return False
        op = node.op
        if op in _SHRINKS:
            source = self.made.get(rows[0])
            return rows[0] in self.totals or (source is not None and self._is_linear(source))
        if op in ("add", "sub"):
            return len(rows) == 2
        if op in ("mul", "matmul"):
            return len(rows) == 1
        if op == "cast":
            dtypes = self.values[rows[0]].dtype, self.values[node.output].dtype
            return dtypes != ("float32", "float64") and dtypes[0] not in ROUNDED and FLOATS.issuperset(dtypes)
        if op == "div":
            return rows == [node.inputs[0]]
        if op == "where":
            return not self._is_row(node.inputs[0]) and all(map(self._row_or_zero, node.inputs[1:]))
        if op == "cat":
            return all(map(self._row_or_zero, node.inputs))
        return op in _MOVES

    def _is_one_sum(self, name: str) -> bool:
        """Whether a value is the sum of others of its size, none of which is better summed by itself: one
        pass adds up all of them."""
        node = self.made.get(name)
        if node is None or node.op not in ("add", "sub") or not self._is_linear(node):
            return False
        return all(
            self.values[n].shape == self.values[name].shape
            and n not in self.totals
            and (n not in self.made or not self._is_linear(self.made[n]) or self._is_one_sum(n))
            for n in node.inputs
        )

    def _row_or_zero(self, name: str) -> bool:
        maker = self.made.get(name)
        return self._is_row(name) or (maker is not None and maker.op == "full" and maker.attr("value") == 0)

    def finish(self) -> list[Node]:
        """All nodes; sums over rows of what is linear in a value per sequence are over sequences then."""
        nodes = [self._over_sequences(n) if OPS[n.op].stage is Stage.ROWS else n for n in self.nodes]
        return list(in_order([*nodes, *self.new]))

    def _over_sequences(self, node: Node) -> Node:
        inputs = node.inputs
        if all(self.values[n].kind == "sequence" for n in inputs):  # the same at every step
            inputs = tuple(_row_of(n, self.new, self.values) for n in inputs)
        rows = [n for n in inputs if self._is_row(n)]
        if node.op == "embed_grad":
            once = rows == [inputs[0]]
        else:
            once = len(rows) < len(inputs) or (len(inputs) == 1 and self._is_summed(rows[0]))
        return replace(node, inputs=tuple(self.total(n) if once and n in rows else n for n in inputs))

    def _is_summed(self, name: str) -> bool:
        """Whether a row value follows from ones that are summed anyway."""
        if name in self.totals:
            return True
        node = self.made.get(name)
        if node is None or not self._is_linear(node):
            return False
        return all(self._is_summed(n) for n in node.inputs if self._is_row(n))
