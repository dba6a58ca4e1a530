"""Products of parts side by side, of which some wait for no state: one product for these, one for the others.

    cat(x, h) W   ->   x W[:64] + h W[64:]

That of x is then made on all rows, and the loop reads of the matrix only what the state is multiplied by.
Generated C multiplies many rows as fast either way, so there it is for matrices that do not stay near a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby

from stepnet.ir.graph import Graph, Node, Value

from .fission import is_product
from .new_values import further, sliced

LARGE = 1 << 18  # elements of a matrix
_PARTS = 4  # early columns that are fewer than one in so many stay: rows of their product cost more to keep


def is_large(body: Graph, node: Node) -> bool:
    """Whether a node multiplies rows by a matrix that does not stay near a core from step to step."""
    return is_product(body, node) and body.values[node.inputs[1]].size >= LARGE


def early_columns(body: Graph, carried: Iterable[str], *, fuse: bool) -> Graph:
    """A body with such products. `carried` are the parameters that change with the step; `fuse`: of large
    matrices alone."""
    late = set(carried)
    makers = body.producers
    values, nodes = dict(body.values), list[Node]()
    for node in body.nodes:
        if late.intersection(node.inputs):
            late.update(node.outputs)
        joined = makers.get(node.inputs[0]) if (is_large if fuse else is_product)(body, node) else None
        runs = _runs(values, joined.inputs, late) if joined is not None and joined.op == "cat" else []
        nodes += _products(values, node, runs) if runs else [node]
    return replace(body, nodes=tuple(nodes), values=values) if len(nodes) > len(body.nodes) else body


def _runs(values: Mapping[str, Value], parts: Sequence[str], late: Set[str]) -> list[tuple[bool, list[str]]]:
    """The parts, early and late ones in turn, if it pays to multiply them apart."""
    early = [part for part in parts if part not in late]
    kinds = {values[part].kind for part in early} | {values[part].dtype for part in parts}
    if kinds not in ({"row", "float32"}, {"row", "float64"}):  # two sums of narrow types are rounded twice
        return []
    columns, all_columns = (sum(values[part].size for part in some) for some in (early, parts))
    runs = [(of_state, list(some)) for of_state, some in groupby(parts, late.__contains__)]
    alone = sum(of_state for of_state, _ in runs) == 1
    return runs if alone and columns * _PARTS >= all_columns else []


def _products(values: dict[str, Value], node: Node, runs: Sequence[tuple[bool, list[str]]]) -> list[Node]:
    """A product for each run, and their sum, to which that of the state comes last."""
    (row, matrix), start, nodes, terms = node.inputs, 0, list[Node](), list[tuple[bool, str]]()
    for of_state, parts in runs:
        end = start + sum(values[part].size for part in parts)
        left = parts[0]
        if len(parts) > 1:
            left = further(values, f"{row}_from{start}", values[row], shape=(end - start,))
            nodes.append(Node("cat", tuple(parts), (left,), (("dim", 0),), node.line))
        shape = (end - start, values[matrix].shape[1])
        own = further(values, f"{matrix}_rows{start}", values[matrix], shape=shape)
        made = further(values, f"{node.output}_from{start}", values[node.output])
        nodes.append(sliced(matrix, own, 0, start, end, node.line))
        nodes.append(replace(node, inputs=(left, own), outputs=(made,)))
        terms.append((of_state, made))
        start = end
    first, *others = (made for _, made in sorted(terms, key=lambda term: term[0]))
    for made in others:
        last = made == others[-1]
        total = node.output if last else further(values, f"{node.output}_sum", values[node.output])
        nodes.append(Node("add", (first, made), (total,), (), node.line))
        first = total
    return nodes
