"""`torch.autograd.grad` inside a step that is exported: a transform of torch.func, which a trace takes apart.

What lies between the inputs and the outputs of such a call is known from the graph that Dynamo made of the
step. It becomes a function, and the call one that differentiates this.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from stepnet.compiler.trace.gradient_ways import THROUGH_STEPS

Function = Callable[..., Any]
_ALLOWED = torch._C._functorch.set_inplace_requires_grad_allowed  # pyright: ignore[reportAttributeAccessIssue]
_GRAD = inspect.signature(torch.autograd.grad)


def asks(nodes: Sequence[fx.Node]) -> bool:
    """Whether there is such a call among the nodes of a graph."""
    return any(n.target is torch.autograd.grad for n in nodes)


def by_states(
    nodes: Sequence[fx.Node], known: dict[fx.Node, fx.Node], states: Sequence[fx.Node], new: Sequence[fx.Node]
) -> tuple[int, ...]:
    """The states by which such calls ask for gradients of what depends on other inputs, too; as
    `compiler.trace.gradient_ways.by_states` tells of a step that runs.

    Args:
        nodes: of the step, as Dynamo has it.
        known: the nodes of its copy, by those.
        states: in the copy.
        new: what they become.

    Raises:
        Unsupported: one of these is a state that the step makes of the first.
    """
    found = set[int]()
    for call in (n for n in nodes if n.target is torch.autograd.grad):
        given = _GRAD.bind(*call.args, **call.kwargs).arguments
        by = _listed(given["inputs"], known)
        reached = {n for n in _behind(_listed(given["outputs"], known)) if n.op == "placeholder"}
        for i in (i for i, state in enumerate(states) if state in by and state in reached):
            kept = new[i] in states
            for j in (j for j, state in enumerate(states) if j != i and state in reached):
                if (kept and new[j] is not states[j]) or new[i] in _behind([new[j]]):
                    raise THROUGH_STEPS.fresh()
            if len(reached) > 1:
                found.add(i)
    return tuple(sorted(found))


def _behind(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What gradients of some nodes go to, these included."""
    found, todo = set[fx.Node](), [*nodes]
    while todo:
        node = todo.pop()
        if node not in found and node.target not in ("detach", torch.detach):
            found.add(node)
            todo += node.all_input_nodes
    return found


def _listed(nodes: Any, known: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    return [known[n] for n in (nodes if isinstance(nodes, (list, tuple)) else [nodes])]


def marks(node: fx.Node) -> bool:
    """Whether a node does no more than to say that a gradient is going to be asked for."""
    return node.target == "requires_grad_" or node.target is _ALLOWED


def differentiated(
    node: fx.Node, graph: fx.Graph, known: dict[fx.Node, fx.Node], function: Callable[[fx.Graph], Function]
) -> fx.Node:
    """A call of `torch.autograd.grad` as a node of a graph that holds all that was before it.

    Args:
        node: the call.
        graph: where it goes.
        known: the nodes there, by those that they were.
        function: makes one of a graph.

    Raises:
        ValueError: it asks for what this is no form for; says what.
    """
    said = _GRAD.bind(*node.args, **node.kwargs)
    said.apply_defaults()
    given = said.arguments
    if given["is_grads_batched"] or (given["allow_unused"] and not given["materialize_grads"]):
        raise ValueError("torch.autograd.grad with is_grads_batched or allow_unused")
    if any(map(_writes, graph.nodes)):
        raise ValueError("torch.autograd.grad, and writes in place")

    inputs, outputs = _listed(given["inputs"], known), _listed(given["outputs"], known)
    cotangents = [] if given["grad_outputs"] is None else _listed(given["grad_outputs"], known)
    between = _between(graph, inputs, outputs)
    modes = [n for n in graph.nodes if n.target in (torch.set_grad_enabled, torch._C._set_grad_enabled)]
    order = {n: i for i, n in enumerate(graph.nodes)}
    first = order[between[0]] if between else 0
    enabled = next((n.args[0] for n in reversed(modes) if order[n] < first), True)
    inside = sorted({*between, *(n for n in modes if order[n] > first)}, key=order.__getitem__)

    body = fx.Graph()
    copies = {n: body.placeholder(f"input_{i}") for i, n in enumerate(inputs)}
    own = {*inputs, *between}
    free = dict.fromkeys(n for m in (*between,) for n in m.all_input_nodes if n not in own)
    free |= dict.fromkeys(n for n in outputs if n not in own)
    copies |= {n: body.placeholder(f"free_{i}") for i, n in enumerate(free)}
    for n in inside:
        copies[n] = body.node_copy(n, copies.__getitem__)
    body.output(tuple(copies[n] for n in outputs))
    gradients = _gradients(function(body), len(inputs), len(free), bool(enabled), bool(given["create_graph"]))
    return graph.call_function(gradients, (*inputs, *free, *cotangents))


def _between(graph: fx.Graph, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """What leads from the inputs to the outputs, in order."""
    led = {*inputs}
    for n in graph.nodes:
        if not led.isdisjoint(n.all_input_nodes):
            led.add(n)
    needed = {*outputs}
    for n in reversed([*graph.nodes]):
        if n in needed and n not in inputs:
            needed.update(n.all_input_nodes)
    return [n for n in graph.nodes if n in led and n in needed and n not in inputs]


def _gradients(run: Function, inputs: int, free: int, enabled: bool, create_graph: bool) -> Function:
    """`torch.autograd.grad` of a function's results by its first arguments."""

    def inner_gradient(*given: Tensor) -> tuple[Tensor, ...]:
        beside, cotangents = given[inputs : inputs + free], given[inputs + free :]

        def outputs(*of: Tensor) -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(enabled):
                return run(*of, *beside)

        with torch.enable_grad():
            found, back = torch.func.vjp(outputs, *given[:inputs])  # pyright: ignore[reportAssignmentType]
            grads = back(tuple(cotangents) or tuple(map(torch.ones_like, found)))
        return grads if create_graph else tuple(grad.detach() for grad in grads)

    inner_gradient.__name__ += f"_{id(run)}"
    return inner_gradient


def _writes(node: fx.Node) -> bool:
    """Whether a call writes to what it is given."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    marked = node.op in ("call_method", "call_function") and not marks(node)
    in_place = name.endswith("_") and not name.endswith("__")
    in_place = in_place or node.target is operator.setitem or name in _IN_PLACE
    return marked and (in_place or node.kwargs.get("inplace") is True or "out" in node.kwargs)


_IN_PLACE = {
    name
    for name in dir(operator)
    if name.startswith("i") and (hasattr(operator, name[1:]) or hasattr(operator, f"{name[1:]}_"))
}
