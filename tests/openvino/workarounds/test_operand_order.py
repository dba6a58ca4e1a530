"""What depends on the state is the first operand, where the order is free."""

from __future__ import annotations

import torch

from stepnet.export.graph import Graph, LoopOp
from stepnet.openvino.workarounds.operand_order import state_first
from stepnet.openvino.writing.from_graph import OPENVINO

F32 = torch.float32


def test_sums_and_products_are_turned_and_nothing_else():
    body = Graph("body", OPENVINO)
    x, h = body.parameter("x", F32, (3,)), body.parameter("h", F32, (3,))
    made = {}
    for op in ("add", "mul", "maximum", "minimum", "sub", "div"):
        (made[op],) = body.node(op, [x, h], [F32])
    (later,) = body.node("add", [x, made["sub"]], [F32])
    (both,) = body.node("mul", [made["add"], made["mul"]], [F32])
    (neither,) = body.node("add", [x, x], [F32])
    result = body.result(later)
    nodes = state_first(LoopOp(body, (), (), ((result, h),)))
    assert [nodes[made[op].node].inputs for op in ("add", "mul", "maximum", "minimum")] == [(h, x)] * 4
    assert [nodes[made[op].node].inputs for op in ("sub", "div")] == [(x, h)] * 2
    assert nodes[later.node].inputs == (made["sub"], x)
    assert nodes[both.node].inputs == (made["add"], made["mul"])
    assert nodes[neither.node].inputs == (x, x)
    assert body.nodes[later.node].inputs == (x, made["sub"])  # the graph is as it was
