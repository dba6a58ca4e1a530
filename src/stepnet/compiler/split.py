"""Split a joint graph into a forward body and a backward body, with what passes between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import VIEWS
from stepnet.ir.plan import Carry

from .normal import Joint
from .save_policy import choose


@dataclass(frozen=True)
class Halves:
    """The two bodies. `kept` passes from one to the other; `shifted` of it are carried parameters whose
    rows follow from those of a result."""

    forward: Graph
    backward: Graph | None
    forward_carries: tuple[Carry, ...]
    backward_carries: tuple[Carry, ...]
    kept: tuple[str, ...]
    shifted: tuple[str, ...]
    tangents: tuple[str | None, ...]
    gradients: tuple[str | None, ...]
    wanted: tuple[str, ...]


def split(
    joint: Joint, x: Sequence[str], states: Sequence[str], weights: Sequence[str], n_y: int,
    tangent_of: Sequence[int], wanted: Sequence[bool],
) -> Halves:  # fmt: skip
    """Split the joint graph.

    Args:
        joint: y leaves, new states and gradients from x, states, weights and tangents.
        x, states, weights: names of the inputs.
        n_y: how many results are y leaves.
        tangent_of: which result (y leaves, then states) each tangent belongs to.
        wanted: for each input (x, states, weights), whether its gradient is wanted outside the loop.
    """
    graph = joint.graph
    n_out = n_y + len(states)
    results = joint.results[:n_out]
    for name in results:
        if name is None or graph.values[name].kind not in ("row", "sequence"):
            raise Unsupported(
                "y or the new state is the same for every row, not one row per sequence",
                remedy="expand it to [rows, ...]; backend='naive' says that it is meant so, and is silent",
            )
    y, new = tuple(n for n in results[:n_y] if n), tuple(n for n in results[n_y:] if n)
    parameters = (*x, *states, *weights, *joint.constants)
    values = {**graph.values}
    forward_nodes = graph.needed([*y, *new])  # pyright: ignore[reportArgumentType]
    carries = tuple(Carry(p, r) for p, r in zip(states, new, strict=True) if r is not None)
    forward = Graph("forward", parameters, tuple(forward_nodes), (*y, *new), values)  # pyright: ignore
    if not tangent_of:
        none = (None,) * (len(x) + len(states) + len(weights))
        return Halves(forward, None, carries, (), (), (), (None,) * n_out, none, ())

    tangents: list[str | None] = [None] * n_out
    for k, result in enumerate(tangent_of):
        tangents[result] = f"d_{result}"
        assert graph.parameters[len(x) + len(states) + len(weights) + k] == f"d_{result}"
    inputs = (*x, *states, *weights)
    for i, state in enumerate(states):
        if values[state].kind == "sequence":  # the loop hands nothing on: the caller adds what comes in
            tangents[n_y + i] = None
    gradients = list(joint.results[n_out:])
    if len(gradients) != len(inputs):
        raise Unsupported("the trace has gradients that could not be told apart")

    every_carry, extra = [], []
    for i, state in enumerate(states):
        tangent, gradient = tangents[n_y + i], gradients[len(x) + i]
        if tangent is None:
            continue
        if gradient is None:  # nothing flows to the step before
            like = values[state]
            gradient = f"zero_{i}"
            values[gradient] = Value(gradient, "row", like.shape, like.dtype)
            extra.append(Node("full", (), (gradient,), (("value", 0.0),)))
            gradients[len(x) + i] = gradient
        every_carry.append(Carry(tangent, gradient))
    shown = [g if w else None for g, w in zip(gradients, wanted, strict=True)]
    whole = Graph("joint", graph.parameters, (*graph.nodes, *extra), (), values)
    ends = [g for g in shown if g is not None]
    back_carries = [c for c in every_carry if c.result in ends]
    while True:  # a gradient is carried only if something wanted depends on it
        ends += [c.result for c in back_carries if c.result not in ends]
        needed = whole.needed(ends)
        read = {n for node in needed for n in node.inputs} | set(ends)
        more = [c for c in every_carry if c not in back_carries and c.parameter in read]
        if not more:
            break
        back_carries += more
    tangent_names = {t for t in tangents if t is not None}
    tainted = set(tangent_names)
    backward_nodes = []
    for node in needed:
        if tainted.intersection(node.inputs) or any(values[n].kind == "sum" for n in node.outputs if n):
            tainted.update(node.outputs)
            backward_nodes.append(node)
        elif node in extra:
            backward_nodes.append(node)
    read = {n for node in backward_nodes for n in node.inputs} | set(ends)
    read -= tainted | {n for node in backward_nodes for n in node.outputs}
    rows = [n for n in values if n in read and values[n].kind == "row"]
    result_rows = set(y)
    late = set(map(id, backward_nodes))
    before = [n for n in needed if id(n) not in late]
    free: dict[str, float] = dict.fromkeys(x, 1e-3) | dict.fromkeys(result_rows, 1e-2)
    shiftable = {c.parameter: c.result for c in carries if c.result in result_rows}
    free |= dict.fromkeys(shiftable, 2e-2)
    kept = choose(whole, before, rows, free)
    kept |= _per_sequence(whole, before)
    again = _recomputed(before, [n for n in values if n in read], kept)
    read |= {n for node in again for n in node.inputs}
    kept = {n for n in kept if n in read and n not in weights}
    kept_order = tuple(n for n in values if n in kept)
    forward = forward.with_nodes(graph.needed([*forward.results, *kept_order]))
    back_values = {**values}
    shared = (*weights, *joint.constants)
    boots = range(len(x), len(x) + len(states))
    carried = {i for i in boots if tangents[n_y + i - len(x)] is not None}
    wanted_rows = tuple(dict.fromkeys(g for i, g in enumerate(shown) if g is not None and i not in carried))
    dropped = {c.parameter for c in every_carry} - {c.parameter for c in back_carries}
    tangents = [None if t in dropped else t for t in tangents]
    backward = Graph(
        "backward",
        (*kept_order, *shared, *(t for t in tangents if t is not None)),
        (*again, *backward_nodes),
        tuple(dict.fromkeys(ends)),
        back_values,
    )
    return Halves(
        forward,
        backward,
        carries,
        tuple(back_carries),
        kept_order,
        tuple(n for n in kept_order if n in shiftable),
        tuple(tangents),
        tuple(shown),
        wanted_rows,
    )


def _per_sequence(graph: Graph, before: list[Node]) -> set[str]:
    """Values per sequence to keep whole, a table for a call: all but views of others."""
    made = {name for node in before for name in node.outputs if node.op in VIEWS}
    return {n for n, value in graph.values.items() if value.kind == "sequence" and n not in made}


def _recomputed(before: list[Node], read: list[str], kept: set[str]) -> list[Node]:
    """Forward nodes that the backward loop runs again, to get from kept values to those it reads."""
    producers = {name: node for node in before for name in node.outputs}
    live, todo = [], [n for n in read if n not in kept]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name in kept or name not in producers:
            continue
        seen.add(name)
        node = producers[name]
        live.append(node)
        todo.extend(node.inputs)
    chosen = {id(node) for node in live}
    return [node for node in before if id(node) in chosen]
