"""Slices moved up through pointwise ops, so that what is sliced off is computed where it is used."""

from __future__ import annotations

import itertools

from stepnet.ir.graph import Node, Value, in_order
from stepnet.ir.ops import OPS, Stage


def split_by_slices(nodes: list[Node], values: dict[str, Value], wanted: set[str]) -> list[Node]:
    """slice(f(a, b)) -> f(slice(a), slice(b)), where every reader of f slices the last dimension."""
    out = list(nodes)
    changed = True
    while changed:
        changed = False
        readers: dict[str, list[Node]] = {}
        for node in out:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        for node in out:
            if OPS[node.op].stage is not Stage.POINTWISE or node.output in wanted:
                continue
            last = len(values[node.output].shape) - 1
            use = readers.get(node.output, [])
            if len(use) < 2 or not all(
                u.op == "slice" and u.attr("dim") == last and u.attr("step") == 1 for u in use
            ):
                continue
            spans = sorted((u.attr("start"), u.attr("end")) for u in use)
            if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
                continue  # overlapping: work would be done twice
            for u in use:
                at = out.index(u)
                start, end = u.attr("start"), u.attr("end")
                pieces, inputs = [], []
                for name in node.inputs:
                    value = values[name]
                    if not value.shape or value.shape[-1] == 1:
                        inputs.append(name)
                        continue
                    part = f"{name}_{start}_{end}"
                    if part not in values:
                        shape = (*value.shape[:-1], end - start)
                        values[part] = Value(part, value.kind, shape, value.dtype)
                    dim = len(value.shape) - 1
                    attrs = (("dim", dim), ("start", start), ("end", end), ("step", 1))
                    if not any(part in n.outputs for n in (*out, *pieces)):
                        pieces.append(Node("slice", (name,), (part,), attrs, node.line))
                    inputs.append(part)
                out[at : at + 1] = [*pieces, Node(node.op, tuple(inputs), u.outputs, node.attrs, node.line)]
            out.remove(node)
            changed = True
            break
    return list(in_order(out))  # a slice for several readers comes before all of them
