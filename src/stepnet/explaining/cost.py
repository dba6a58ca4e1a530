"""What a node costs: floating-point operations, counted as explain says it counts them."""

from __future__ import annotations

from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, RANDOM, Stage
from stepnet.ir.plan import LoopPlan, Region

from .records import Weight

TRANSCENDENTAL = 10  # a polynomial of about that many operations
_MOVES = frozenset({"copy", "cast", "full", "iota"})


def weight(node: Node) -> Weight:
    """What kind of work a node is."""
    stage = OPS[node.op].stage
    if stage is Stage.OPAQUE:
        return "call"
    if stage is Stage.MATMUL or node.op == "matmul_tn":
        return "matmul"
    if node.op in _MOVES or stage is Stage.SHAPE:
        return "move"
    return "costly" if OPS[node.op].costly or node.op in RANDOM else "cheap"


def contracts(node: Node, graph: Graph) -> int:
    """How many products a matmul adds up for each element of its result, on one row; 0 for other nodes."""
    if node.op == "matmul":
        return graph.values[node.inputs[0]].shape[-1]
    if node.op == "matmul_tn":  # [.., K] and [.., N] of each row: all leading elements are added up
        first, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        return first.size * graph.values[node.inputs[1]].shape[-1] // max(result.size, 1)
    return 0


def flops(node: Node, graph: Graph, rows: int) -> int:
    """Floating-point operations of a node over a table of rows.

    A matmul of K products costs 2 K an element; exp, tanh and the like 10 an element; a reduction and a sum
    over rows 1 for each element they read; other arithmetic 1 an element; moving data, torch calls 0.
    """
    kind = weight(node)
    if kind in ("move", "call"):
        return 0
    result = graph.values[next(name for name in node.outputs if name)]
    stage = OPS[node.op].stage
    times = rows if result.kind == "row" or stage is Stage.ROWS else 1
    if kind == "matmul":
        return 2 * contracts(node, graph) * result.size * times
    if stage is Stage.REDUCE or node.op in ("sum_rows", "embed_grad"):
        return graph.values[node.inputs[0]].size * times
    return result.size * (TRANSCENDENTAL if kind == "costly" else 1) * times


def border(loop: LoopPlan, region: Region) -> tuple[list[str], list[str]]:
    """The values that a region reads and does not make, and those of its own that are read after it.

    Of a prologue the ops that compute: the others are views of weights, and constants.
    """
    if region.kind != "prologue":
        return region.read, loop.outputs(region)
    nodes = [node for node in region.nodes if weight(node) != "move"]
    made = dict.fromkeys(name for node in nodes for name in node.outputs)
    read = dict.fromkeys(name for node in nodes for name in node.inputs)
    return [name for name in read if name not in made], list(made)


def border_bytes(names: list[str], graph: Graph, rows: int) -> int:
    """Bytes of values that cross a region's border: a row value once for each row, others once."""
    values = [graph.values[name] for name in names]
    return sum(value.bytes * (rows if value.kind == "row" else 1) for value in values)
