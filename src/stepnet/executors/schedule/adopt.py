"""Small matmuls on the border of a scan, and sums of biases before it, taken into it.

The plan says: once on all rows, then the loop. For a weight that is not too large it is faster to
do a few steps' worth of rows at a time, right before the steps that read them: the product then never
leaves the cache. The arithmetic is the same.
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import LoopPlan, Region

_DTYPES = ("float32", "float64", "bfloat16")
MOST_BYTES = 1 << 22  # of a weight; above it the matmul of all rows at once is as fast


def adopt(loop: LoopPlan) -> LoopPlan:
    """The loop with what is such moved into the scans it borders on."""
    regions = list(loop.regions)
    for at, region in enumerate(regions):
        if region.kind != "scan":
            continue
        before = [n for k in range(at) for n in _products(loop.body, regions[k])]
        sums = [n for k in range(at) for n in _sums(loop.body, regions, regions[k])]
        before += [n for n in sums if n.output not in loop.wanted]
        early = [n for n in before if _readers(regions, n) == {at}]
        made = region.made | {carry.parameter for carry in region.carries}
        shown = set(loop.outputs(region)) if at < len(loop.regions) else set()
        after = [n for k in range(at + 1, len(regions)) for n in _products(loop.body, regions[k])]
        scans = {k for k, other in enumerate(regions) if other.kind == "scan"}
        late = [n for n in after if n.inputs[0] in made & shown and scans.isdisjoint(_readers(regions, n))]
        taken = {id(n) for n in (*early, *late)}
        if not taken:
            continue
        regions = [
            other if k == at else replace(other, nodes=tuple(n for n in other.nodes if id(n) not in taken))
            for k, other in enumerate(regions)
        ]
        regions[at] = replace(region, nodes=(*early, *region.nodes, *late))
    return replace(loop, regions=tuple(regions))


def _products(body: Graph, region: Region) -> list[Node]:
    """The matmuls of a map that a scan can take over."""
    if region.kind != "map":
        return []
    found = []
    rounded = {name for node in region.nodes if node.op in ("cast", "shift") for name in node.outputs}
    for node in region.nodes:
        if node.op != "matmul":
            continue
        row, weight = (body.values[name] for name in node.inputs)
        plain = (
            row.kind == "row" and weight.kind == "shared" and len(row.shape) == 1 and len(weight.shape) == 2
        )
        made_here = node.inputs[0] in region.made - rounded
        if plain and not made_here and weight.bytes <= MOST_BYTES and row.dtype in _DTYPES:
            found.append(node)
    return found


def _sums(body: Graph, regions: list[Region], region: Region) -> list[Node]:
    """The sums of two vectors, such as biases, that one node reads: of few rows torch takes longer to add
    them once, and of many rows it costs next to nothing to add them at each."""
    found: list[Node] = []
    for node in region.nodes if region.kind == "prologue" else ():
        if node.op != "add":
            continue
        kinds = {(body.values[name].shape, body.values[name].dtype) for name in (*node.inputs, node.output)}
        readers = sum(node.output in n.inputs for other in regions for n in other.nodes)
        if readers == 1 and kinds == {((body.values[node.output].size,), "float32")}:
            found.append(node)
    return found


def _readers(regions: list[Region], node: Node) -> set[int]:
    return {k for k, region in enumerate(regions) if any(node.output in n.inputs for n in region.nodes)}
