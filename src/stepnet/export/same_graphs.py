"""Whether two graphs of a model compute the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from .graph import Cell, Graph, LoopInput, LoopOp, LoopOutput, Node, Value


def same_node(node: Node, twin: Node) -> bool:
    """Whether two nodes, each of its graph, compute the same of the values in the same places.

    >>> from stepnet.export.graph import Target
    >>> ours, theirs = (Graph("m", Target("Clay", "sign", {}, lambda cell: True)) for _ in range(2))
    >>> _, _ = ours.constant(torch.ones(2)), theirs.constant(torch.zeros(2))
    >>> same_node(ours.nodes[0], theirs.nodes[0])
    False
    """
    return _same(node, twin)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    if isinstance(a, Value):
        return (a.node, a.index) == (b.node, b.index)
    if isinstance(a, Graph):
        return _same(a.nodes, b.nodes)
    if isinstance(a, (Node, LoopOp, LoopInput, LoopOutput, Cell)):
        return all(_same(getattr(a, part.name), getattr(b, part.name)) for part in fields(a))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return a == b or a != a


def _bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)
