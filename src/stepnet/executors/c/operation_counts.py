"""Whether generated C is surely faster than calls of torch, counted and not timed."""

from __future__ import annotations

from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import Plan

CALL = 2e-6  # seconds, the least that a call of torch takes
NUMBER = 1e-9  # seconds, the most that generated code takes for one number of an op
COSTLY = 10  # numbers of cheap ops in the time of one of exp, tanh and the like


def is_surely_faster(plan: Plan, sequences: int) -> bool:
    """True if on each step of so many sequences a call of torch for each op, at its fastest, takes longer
    than all arithmetic of generated code at its slowest."""
    calls, numbers = 0, 0
    for loop in (plan.forward, plan.backward):
        if loop is None:
            continue
        values = loop.body.values
        for node in (node for region in loop.regions if region.kind == "scan" for node in region.nodes):
            op = OPS[node.op]
            if op.stage in (Stage.SHAPE, Stage.SOURCE):
                continue
            size = max(values[name].size for name in (*node.inputs[:1], *node.outputs))
            if op.stage is Stage.MATMUL:
                size = values[node.output].size * values[node.inputs[0]].shape[-1]
            calls += 1
            numbers += size * (COSTLY if op.costly else 1)
    return sequences * numbers * NUMBER <= calls * CALL
