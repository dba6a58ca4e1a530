"""Parts of values that are joined of others, or chosen by place: what stands there, without the rest.

The real part of a complex number is a slice of both parts joined, and its gradient is chosen by place: that
of the real part, and zeros. Without this both parts of all that lies before and behind would be computed.
"""

from __future__ import annotations

from math import prod

from stepnet.ir.graph import Node

from .builder import Builder


def known_part(b: Builder, name: str, dim: int, start: int, end: int) -> str | None:
    """What makes up the places from `start` to `end` of a dimension of a value; None: all of it does."""
    node, value = b.maker(name), b.values[name]
    if node is None or start >= end:
        return None
    if node.op == "full":
        shape = (*value.shape[:dim], end - start, *value.shape[dim + 1 :])
        return b.full(node.attr("value"), shape, value.dtype, value.kind)
    found = None
    if node.op == "cat" and node.attr("dim") == dim:
        found = _joined(b, node, dim, start, end)
    elif node.op == "where":
        found = _chosen(b, node, dim, start, end)
    if found is None:
        return None
    source, first, last = found
    seen = b.values[source]
    if (seen.kind, seen.dtype) != (value.kind, value.dtype):
        return None
    return slice_feature(b, source, dim, first, last)


def slice_feature(b: Builder, name: str, dim: int, start: int, end: int, step: int = 1) -> str:
    """Part of a value along one of its dimensions."""
    value = b.values[name]
    if start == 0 and end >= value.shape[dim] and step == 1:
        return name
    shape = list(value.shape)
    shape[dim] = max(0, -(-(min(end, shape[dim]) - start) // step))
    known = known_part(b, name, dim, start, start + shape[dim]) if step == 1 else None
    if known is not None:
        return known
    return b.emit("slice", (name,), shape, value.dtype, dim=dim, start=start, end=end, step=step)


def _joined(b: Builder, node: Node, dim: int, start: int, end: int) -> tuple[str, int, int] | None:
    at = 0
    for part in node.inputs:
        size = b.values[part].shape[dim]
        if at <= start and end <= at + size:
            return part, start - at, end - at
        at += size
    return None


def _chosen(b: Builder, node: Node, dim: int, start: int, end: int) -> tuple[str, int, int] | None:
    condition, *sides = node.inputs
    shape = b.values[node.output].shape
    truths = _truths(b, condition, len(shape) - 1 - dim)
    if truths is None or len(truths) != shape[dim] or len(set(truths[start:end])) != 1:
        return None
    side = sides[0 if truths[start] else 1]
    made = b.maker(side)
    if made is not None and made.op == "expand" and end - start == 1:
        source = b.values[made.inputs[0]]
        if source.shape == (*shape[:dim], 1, *shape[dim + 1 :]):
            return source.name, 0, 1
    return (side, start, end) if b.values[side].shape == shape else None


def _truths(b: Builder, name: str, behind: int) -> list[bool] | None:
    """Whether each place of a dimension, of which so many are behind, is one number; None: that is not what
    the value tells."""
    shape = b.values[name].shape
    node = _origin(b, name)
    if len(shape) <= behind or prod(shape) != shape[-1 - behind] or node is None or node.op != "eq":
        return None
    places, number = (_origin(b, operand) for operand in node.inputs)
    if places is None or places.op != "iota" or number is None or number.op != "full":
        return None
    start, step = places.attr("start"), places.attr("step")
    return [start + at * step == number.attr("value") for at in range(shape[-1 - behind])]


def _origin(b: Builder, name: str) -> Node | None:
    node = b.maker(name)
    while node is not None and node.op == "reshape":
        node = b.maker(node.inputs[0])
    return node
