"""What the two ways to record a function share: what is given and made, and how a graph is tidied."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from stepnet.data.modes import draws_put_back

Flat = Callable[..., tuple[Tensor, ...]]
Decompositions = dict[Any, Callable[..., Any]]


class Input(NamedTuple):
    """One input: its shape, without that of rows; whether a gradient is wanted; whether it has rows."""

    shape: Sequence[int]
    dtype: torch.dtype
    grad: bool
    rows: bool


class Recorded(NamedTuple):
    """A graph of (inputs, tangents of the results that need a gradient) -> (results, gradients of inputs),
    the constants that it reads, and what it calls the number of rows."""

    graph: Graph
    constants: dict[str, Tensor]
    rows: str


@contextlib.contextmanager
def recording(with_gradients: bool) -> Iterator[None]:
    """What a recording is made under, whoever makes it. Where gradients are on they are, for rows that want
    none, too: a step may ask for that, and differentiate what it makes."""
    with (
        torch.set_grad_enabled(with_gradients or torch.is_grad_enabled()),
        draws_put_back(),
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.detect_anomaly(check_nan=False),  # which keeps the line of each forward call
    ):
        yield


def finished(graph: Graph) -> Graph:
    """A recorded graph, its tangents inputs behind the others."""
    _as_inputs(graph, [n for n in graph.nodes if n.target is torch.ops.stepnet_joint.tangent.default])
    graph.eliminate_dead_code()
    return graph


def _as_inputs(graph: Graph, nodes: Sequence[Node]) -> None:
    """Make nodes inputs, behind the others."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    for i, node in enumerate(nodes):
        with graph.inserting_after(last):
            last = graph.placeholder(f"tangents_{i + 1}")
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
