"""Sums over rows of arithmetic on them, some thousand rows at a time: what the arithmetic makes on the way
then stays in a cache, where tables of all rows would each go to memory and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from stepnet.executors.loop import Bound
from stepnet.ir.graph import Graph
from stepnet.ir.ops import OPS, Stage

_BLOCK = 1 << 18  # bytes of a table of a block, as several of which a core's cache holds (measured)
_LEAST = 4  # blocks, fewer of which are all rows at once
_ARITHMETIC = (Stage.POINTWISE, Stage.REDUCE)
_OF_A_ROW = (*_ARITHMETIC, Stage.SHAPE)
_DTYPES = ("float32", "float64")  # others would round the sum of each block


def summed_by_blocks(graph: Graph, nodes: Sequence[Bound], kept: Collection[str]) -> list[Bound]:
    """The nodes of a region, those of a sum over rows and of what nothing but that sum reads as one. `kept`:
    values that others than these nodes read."""
    if not any(node.op == "sum_rows" for node in nodes):
        return [*nodes]
    groups = _groups(graph, nodes, kept)
    whole = {total: group for total, group in groups.items() if _is_worth(group)}
    within = {id(node) for group in whole.values() for node in group[:-1]}
    return [
        _as_one(graph, whole[id(node)]) if id(node) in whole else node
        for node in nodes
        if id(node) not in within
    ]


def _groups(graph: Graph, nodes: Sequence[Bound], kept: Collection[str]) -> dict[int, list[Bound]]:
    """By the `id` of each sum: what makes rows for it alone, in order, and the sum."""
    groups: dict[int, list[Bound]] = {}
    readers: dict[str, set[int | None]] = {}  # the sums for which a value is read; None: for others
    for node in reversed(nodes):
        total: int | None = None
        if node.op == "sum_rows":
            total = id(node) if _can_be_split(graph, node) else None
        elif _is_of_a_row(graph, node) and node.outputs[0] not in kept:
            sums = readers.get(node.outputs[0], {None})
            total = next(iter(sums)) if len(sums) == 1 else None
        if total is not None:
            groups.setdefault(total, []).insert(0, node)
        for name in node.inputs:
            readers.setdefault(name, set()).add(total)
    return groups


def _is_worth(group: Sequence[Bound]) -> bool:
    return any(OPS[node.op].stage in _ARITHMETIC for node in group)


def _can_be_split(graph: Graph, total: Bound) -> bool:
    """Whether a sum over rows is that of sums of blocks, but for the order of what is added."""
    values = [graph.values[name] for name in (*total.inputs, *total.outputs)]
    return values[0].kind == "row" and values[0].dtype == values[1].dtype and values[0].dtype in _DTYPES


def _is_of_a_row(graph: Graph, node: Bound) -> bool:
    """Whether each row of what a node makes is made of that row of what it reads, and of what all share."""
    if OPS[node.op].stage not in _OF_A_ROW or node.run is None or len(node.outputs) != 1:
        return False
    kinds = [graph.values[name].kind for name in (*node.inputs, *node.outputs)]
    return kinds[-1] == "row" and "sequence" not in kinds


def _as_one(graph: Graph, group: Sequence[Bound]) -> Bound:
    made = {name for node in group for name in node.outputs}
    inputs = tuple(dict.fromkeys(name for node in group for name in node.inputs if name not in made))
    in_rows = [graph.values[name].kind == "row" for name in inputs]
    tables = [graph.values[name] for name in (*made, *inputs) if graph.values[name].kind == "row"]
    block = max(1, _BLOCK // max(1, *(table.bytes for table in tables)))
    (total,) = group[-1].outputs

    def run_block(args: Sequence[Tensor], rows: int) -> Tensor:
        values = dict(zip(inputs, args, strict=True))
        for node in group:
            assert node.run is not None
            values[node.outputs[0]] = node.run(*[values[name] for name in node.inputs], rows=rows)
        return values[total]

    def run(*args: Tensor, rows: int) -> Tensor:
        if rows < _LEAST * block or torch.is_grad_enabled():
            return run_block(args, rows)
        parts: list[Tensor] = []
        for at in range(0, rows, block):
            count = min(block, rows - at)
            some = [a.narrow(0, at, count) if by else a for a, by in zip(args, in_rows, strict=True)]
            parts.append(run_block(some, count))
        return torch.stack(parts).sum(0)

    return Bound(run, "sum_rows", inputs, (total,))
