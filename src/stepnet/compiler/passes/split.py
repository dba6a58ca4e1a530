"""Split a joint graph into a forward body and a backward body, with what passes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from stepnet.compiler.rules.normal import Joint
from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import VIEWS
from stepnet.ir.plan import Carry

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
    graph, inputs, n_out = joint.graph, (*x, *states, *weights), n_y + len(states)
    results = _rows(graph, joint.results[:n_out])
    y, new = results[:n_y], results[n_y:]
    carries = tuple(map(Carry, states, new))
    nodes = tuple(graph.needed(results))
    forward = Graph("forward", (*inputs, *joint.constants), nodes, results, graph.values)
    if not tangent_of:
        return Halves(forward, None, carries, (), (), (), (None,) * n_out, (None,) * len(inputs), ())

    gradients = list(joint.results[n_out:])
    if len(gradients) != len(inputs):
        raise Unsupported("the trace has gradients that could not be told apart")
    tangents = _tangents(graph, states, n_y, tangent_of)
    whole, carried = _carried_gradients(graph, states, tangents[n_y:], gradients, len(x))
    values = whole.values
    shown = [g if w else None for g, w in zip(gradients, wanted, strict=True)]
    needed, ends, back_carries = _wanted(whole, [g for g in shown if g is not None], carried)
    late = _late(whole, needed, tangents, whole.values.keys() - graph.values.keys())
    ids = set(map(id, late))
    before = [node for node in needed if id(node) not in ids]

    read = {n for node in late for n in node.inputs} | set(ends)
    read -= {n for node in late for n in node.outputs} | {t for t in tangents if t is not None}
    shiftable = {c.parameter for c in carries if c.result in y}
    # What is there anyway costs next to nothing to keep; of that, inputs before results before what is moved.
    free = dict.fromkeys(x, 1e-3) | dict.fromkeys(y, 1e-2) | dict.fromkeys(shiftable, 2e-2)
    kept, again = _kept(whole, before, read, weights, free)
    forward = forward.with_nodes(graph.needed([*results, *kept]))

    dropped = {c.parameter for c in carried} - {c.parameter for c in back_carries}
    looped = {len(x) + i for i, tangent in enumerate(tangents[n_y:]) if tangent is not None}
    tangents = [None if t in dropped else t for t in tangents]
    backward = Graph(
        "backward",
        (*kept, *weights, *joint.constants, *(t for t in tangents if t is not None)),
        (*again, *late),
        tuple(dict.fromkeys(ends)),
        values,
    )
    return Halves(
        forward,
        backward,
        carries,
        tuple(back_carries),
        kept,
        tuple(n for n in kept if n in shiftable),
        tuple(tangents),
        tuple(shown),
        wanted=tuple(dict.fromkeys(g for i, g in enumerate(shown) if g is not None and i not in looped)),
    )


def _rows(graph: Graph, results: Sequence[str | None]) -> tuple[str, ...]:
    """The results, which are all there, with a row for each sequence."""
    rows = tuple(n for n in results if n is not None and graph.values[n].kind in ("row", "sequence"))
    if len(rows) < len(results):
        raise Unsupported(
            "y or the new state is the same for every row, not one row per sequence",
            remedy="expand it to [rows, ...]; backend='naive' accepts it, without a warning",
        )
    return rows


def _tangents(graph: Graph, states: Sequence[str], n_y: int, tangent_of: Sequence[int]) -> list[str | None]:
    """What comes in for each result, y leaves and then states."""
    tangents: list[str | None] = [f"d_{k}" if k in tangent_of else None for k in range(n_y + len(states))]
    for i, state in enumerate(states):
        if graph.values[state].kind == "sequence":  # the loop hands nothing on: the caller adds what comes in
            tangents[n_y + i] = None
    return tangents


def _carried_gradients(
    graph: Graph, states: Sequence[str], tangents: Sequence[str | None], gradients: list[str | None], at: int
) -> tuple[Graph, list[Carry]]:
    """From the tangent of each state to the gradient that is that of the step before, from place `at` of
    `gradients` on; where nothing flows there, zeros are added to the graph."""
    values, carried, zeros = {**graph.values}, list[Carry](), list[Node]()
    for i, (state, tangent) in enumerate(zip(states, tangents, strict=True)):
        if tangent is None:
            continue
        gradient = gradients[at + i]
        if gradient is None:
            gradient = gradients[at + i] = f"zero_{i}"
            values[gradient] = Value(gradient, "row", values[state].shape, values[state].dtype)
            zeros.append(Node("full", (), (gradient,), (("value", 0.0),)))
        carried.append(Carry(tangent, gradient))
    return Graph("joint", graph.parameters, (*graph.nodes, *zeros), (), values), carried


def _wanted(
    graph: Graph, ends: list[str], carried: Sequence[Carry]
) -> tuple[list[Node], list[str], list[Carry]]:
    """The nodes that the wanted gradients need; those and what is carried for them; and the carries. A
    gradient is carried only if something wanted depends on it."""
    carries = [c for c in carried if c.result in ends]
    while True:
        ends = [*ends, *(c.result for c in carries if c.result not in ends)]
        needed = graph.needed(ends)
        read = {n for node in needed for n in node.inputs} | set(ends)
        more = [c for c in carried if c not in carries and c.parameter in read]
        if not more:
            return needed, ends, carries
        carries += more


def _late(
    graph: Graph, needed: Sequence[Node], tangents: Sequence[str | None], zeros: Set[str]
) -> list[Node]:
    """The nodes that wait for what comes in for the results, or add up over rows; and those of `zeros`."""
    known: set[str] = {t for t in tangents if t is not None}
    late: list[Node] = []
    for node in needed:
        if known.intersection(node.inputs) or any(graph.values[n].kind == "sum" for n in node.outputs if n):
            known.update(node.outputs)
            late.append(node)
        elif not zeros.isdisjoint(node.outputs):
            late.append(node)
    return late


def _kept(
    graph: Graph, before: list[Node], read: Set[str], weights: Sequence[str], free: Mapping[str, float]
) -> tuple[tuple[str, ...], list[Node]]:
    """What the forward body keeps for all that the backward one reads, and the nodes that run again there."""
    values = graph.values
    kept = choose(graph, before, [n for n in values if n in read and values[n].kind == "row"], free)
    kept |= _per_sequence(graph, before)
    again = _recomputed(before, [n for n in values if n in read], kept)
    read = read | {n for node in again for n in node.inputs}
    return tuple(n for n in values if n in kept and n in read and n not in weights), again


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
