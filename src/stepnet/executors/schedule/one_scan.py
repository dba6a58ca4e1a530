"""All of a step as one scan, its maps too.

Of one row for each sequence there is nothing that maps could do on many rows at once, and torch takes longer
to be called for each of their ops than generated code for the whole step.
"""

from __future__ import annotations

from dataclasses import replace

from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import LoopPlan, Region

_OF_A_STEP = frozenset((Stage.POINTWISE, Stage.REDUCE, Stage.MATMUL, Stage.SHAPE))


def in_one_scan(loop: LoopPlan) -> LoopPlan | None:
    """The loop with its maps taken into its scan; None: it has no maps or no scan, or more than these."""
    once = [region for region in loop.regions if region.kind == "prologue"]
    others = [region for region in loop.regions if region.kind != "prologue" and region.nodes]
    if {region.kind for region in others} != {"map", "scan"} or loop.rows_of_carries():
        return None
    maps = [node for region in others if region.kind == "map" for node in region.nodes]
    if not all(node.op == "full" or OPS[node.op].stage in _OF_A_STEP for node in maps):
        return None
    if any(node.op == "embed" for node in maps):  # of an index that names no row torch tells in its own words
        return None
    nodes = tuple(node for region in others for node in region.nodes)
    carries = tuple(carry for region in others for carry in region.carries)
    return replace(loop, regions=(*once, Region("scan", nodes, carries)))
