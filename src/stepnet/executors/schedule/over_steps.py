"""Sums over steps of products of two vectors of a row: products of matrices, once all steps are done.

    for t: dK[b] += w[t] outer d[t]     ->     dK[b] = W[b]' D[b], over the steps of each sequence

In the loop every step reads and writes all of dK[b], which takes longer than the arithmetic of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepnet.ir.graph import Node, Value

from .views import Access, broadcast, collapse, contiguous

_LEAST = 512  # numbers of a product, fewer of which are summed in the loop sooner


@dataclass(frozen=True)
class OverSteps:
    """`total[h, m, n]` += `left[h, m] * right[h, n]` at each step.

    Attributes:
        total: the sum.
        left, right: how the factors are read, as `product` has them.
        sizes: m, n and h.
        strides: of these, in the total, the left factor and the right one.
    """

    total: str
    left: Access
    right: Access
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


class Sums(NamedTuple):
    """A value that is only summed over steps: `products` added up; `nodes` make it of them, and the sum."""

    total: str
    products: list[Node]
    nodes: list[Node]


def sums_of_products(
    nodes: Sequence[Node], values: Mapping[str, Value], seen: Callable[[str], Access], real: str
) -> Iterator[Sums]:
    """The sums over steps of products, or of several added up, of the type `real`."""
    makers = {name: node for node in nodes for name in node.outputs}
    reads = [seen(name).base for node in nodes for name in node.inputs]

    def take(name: str, found: Sums) -> bool:
        """Whether a value is made of products for this sum alone."""
        source = seen(name)
        node = makers.get(source.base)
        alone = node is not None and source.is_whole and reads.count(source.base) == 1
        if node is None or not alone or node.op not in ("add", "mul"):
            return False
        (found.nodes if node.op == "add" else found.products).append(node)
        if node.op == "add":
            alike = {values[n].shape for n in (*node.inputs, *node.outputs)}
            return len(alike) == 1 and all(take(n, found) for n in node.inputs)
        kinds = {(values[n].kind, values[n].dtype) for n in (*node.inputs, found.total)}
        return kinds == {("row", real), ("sequence", real)}

    for node in nodes:
        if node.op == "sum_steps" and take(node.inputs[0], found := Sums(node.output, [], [node])):
            yield found


def of_vectors(total: str, shape: tuple[int, ...], factors: Sequence[Access]) -> OverSteps | None:
    """A sum of products of this shape, if one factor alone has its last dimension, and the other one a
    dimension that this one has not."""
    wide = [broadcast(seen, shape) for seen in factors]
    dims, steps = collapse(shape, [contiguous(shape), *(seen.strides for seen in wide)])
    if dims and steps[1][-1]:
        wide, steps = wide[::-1], [steps[0], *steps[:0:-1]]
    of_left = [d for d in range(len(dims)) if steps[1][d] and not steps[2][d]]
    both = [d for d in range(len(dims)) if steps[1][d] and steps[2][d]]
    if len(of_left) != 1 or len(both) > 1 or len(dims) != len(both) + 2 or steps[2][-1] != 1:
        return None
    order = (of_left[0], len(dims) - 1, *both)
    sizes = (*(dims[d] for d in order), 1)[:3]
    if sizes[0] * sizes[1] < _LEAST:
        return None
    return OverSteps(total, wide[0], wide[1], sizes, tuple((*(of[d] for d in order), 0)[:3] for of in steps))
