"""Slices moved up through pointwise ops, so that what is sliced off is computed where it is used."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from stepnet.ir.graph import Node, Value, in_order
from stepnet.ir.ops import OPS, Stage


def split_by_slices(nodes: list[Node], values: dict[str, Value], wanted: set[str]) -> list[Node]:
    """slice(f(a, b)) -> f(slice(a), slice(b)), where every reader of f slices the last dimension."""
    out = list(nodes)
    while True:
        readers: dict[str, list[Node]] = {}
        for node in out:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        splits = (n for n in out if n.output not in wanted and _splits(n, values, readers.get(n.output, [])))
        node = next(splits, None)
        if node is None:
            return list(in_order(out))  # a slice for several readers comes before all of them
        for reader in readers[node.output]:
            at = out.index(reader)
            out[at : at + 1] = _sliced(node, reader, values, {name for n in out for name in n.outputs})
        out.remove(node)  # and go on: the slices may meet another pointwise op


def _splits(node: Node, values: dict[str, Value], readers: Sequence[Node]) -> bool:
    """Whether a pointwise op is read by slices of its last dimension alone, several that do not overlap."""
    if OPS[node.op].stage is not Stage.POINTWISE or len(readers) < 2:
        return False
    last = len(values[node.output].shape) - 1
    if not all(n.op == "slice" and n.attr("dim") == last and n.attr("step") == 1 for n in readers):
        return False
    spans = sorted((n.attr("start"), n.attr("end")) for n in readers)
    return all(a[1] <= b[0] for a, b in itertools.pairwise(spans))  # of others work would be done twice


def _sliced(node: Node, reader: Node, values: dict[str, Value], made: Collection[str]) -> list[Node]:
    """What a slice of an op gives: the op on slices of its inputs, behind those that are not `made` yet."""
    start, end = reader.attr("start"), reader.attr("end")
    pieces: dict[str, Node] = {}
    inputs: list[str] = []
    for name in node.inputs:
        value = values[name]
        if not value.shape or value.shape[-1] == 1:  # it is broadcast
            inputs.append(name)
            continue
        part = f"{name}_{start}_{end}"
        if part not in values:
            values[part] = Value(part, value.kind, (*value.shape[:-1], end - start), value.dtype)
        if part not in made:
            attrs = (("dim", len(value.shape) - 1), ("start", start), ("end", end), ("step", 1))
            pieces[part] = Node("slice", (name,), (part,), attrs, node.line)
        inputs.append(part)
    return [*pieces.values(), Node(node.op, tuple(inputs), reader.outputs, node.attrs, node.line)]
