"""Loops of a graph as TensorIterators and Loops."""

from __future__ import annotations

from dataclasses import replace

import torch

from stepnet.export.graph import Cell, LoopOp, Node
from stepnet.export.graph import LoopInput as In
from stepnet.export.graph import LoopOutput as To
from stepnet.openvino.workarounds.operand_order import state_first

from .builder import Out
from .net_writer import NetWriter

_CELLS = {"lstm": ("LSTMCell", "opset4"), "gru": ("GRUCell", "opset3"), "rnn": ("RNNCell", "opset1")}


def loop_layers(outer: NetWriter, loop: LoopOp, node: Node) -> tuple[Out, ...]:
    """A TensorIterator, or a Loop if there is a condition."""
    body = outer.net.body(loop.body.name)
    inner = type(outer)(body)
    nodes = state_first(loop)
    first = next(i for i, inside in enumerate(nodes) if inside.op in ("copy", "result"))
    inner.write(nodes[:first])
    inputs = [
        In(outer.at(port.value), inner.at(port.parameter), port.axis, port.start, port.end, port.stride)
        for port in loop.inputs
    ]
    if loop.count is not None:
        inputs.append(_count(outer, inner, loop))
    inner.write(nodes[first:])
    outputs = [replace(port, result=inner.results[port.result]) for port in loop.outputs]
    edges = [(inner.results[result], inner.at(parameter)) for result, parameter in loop.back_edges]
    if loop.trips is None or loop.condition is None:
        return outer.net.tensor_iterator(body, inputs, outputs, edges, name=node.name)
    return outer.net.loop(
        body, outer.at(loop.trips), outer.at(loop.condition), inputs, outputs, edges,
        execution_condition=None if loop.goes_on is None else inner.results[loop.goes_on], name=node.name,
    )  # fmt: skip


def _count(outer: NetWriter, inner: NetWriter, loop: LoopOp) -> In[Out]:
    """Slices of zeros that are added to a state: a body that reads no slice would run once, and OpenVINO
    drops a slice that nothing depends on."""
    assert loop.count is not None
    nodes, (like, time), (result, parameter) = loop.body.nodes, loop.count, loop.back_edges[0]
    state = nodes[parameter.node]
    dtype, rank = state.dtypes[0], len(state.attributes["shape"])
    one = outer.numbers([1])
    shape = outer.layer("shape", [outer.at(like)], output_type="i64")
    size = outer.layer("take", [shape, outer.numbers([time]), outer.numbers(0)], batch_dims=0)
    sizes = [size if axis == time else one for axis in range(rank)]
    zero = outer.net.constant(torch.tensor(0, dtype=dtype))
    zeros = outer.layer("expand", [zero, outer.layer("cat", sizes, axis=0)], mode="bidirectional")
    part = inner.net.parameter("step", dtype, (1,) * rank)
    (new,) = nodes[result].inputs
    if nodes[new.node].op == "copy":  # the sum is one
        result, (new,) = new.node, nodes[new.node].inputs
    inner.instead[result] = inner.layer("or" if dtype == torch.bool else "add", [inner.at(new), part])
    cuts = [(port.start, port.end, port.stride) for port in loop.outputs if port.axis is not None]
    return In(zeros, part, time, *(cuts or [(0, -1, 1)])[0])


def cell_layers(outer: NetWriter, cell: Cell, inputs: list[Out], node: Node) -> tuple[Out, ...]:
    """A TensorIterator around one cell, in the form that OpenVINO fuses to a sequence."""
    x, *states = inputs
    kind, version = _CELLS[cell.kind]
    body = outer.net.body(f"{kind} body")
    dtype, (size, width) = cell.w.dtype, (cell.r.shape[1], cell.w.shape[1])
    part = body.parameter("x", dtype, (1, -1, width) if cell.time == 0 else (-1, 1, width))
    carried = [body.parameter(f"state_{i}", dtype, (-1, size)) for i in range(len(states))]
    weights = [body.constant(weight) for weight in (cell.w, cell.r, cell.b)]
    axes = body.constant(torch.tensor([cell.time]))
    row = body.layer("Squeeze", [part, axes], outputs=[dtype])
    attributes: dict[str, object] = {"hidden_size": size}
    if cell.kind == "gru":
        attributes["linear_before_reset"] = cell.linear_before_reset
    if cell.activation is not None:
        attributes["activations"] = [cell.activation]
    new = body.layer(
        kind, [row, *carried, *weights], attributes, version=version, outputs=[dtype] * len(carried)
    )
    new = new if isinstance(new, tuple) else (new,)
    results = [body.result(out) for out in new]
    cut = {"axis": cell.time, "start": 0, "end": -1, "stride": 1}
    if cell.reverse:
        cut |= {"start": -1, "end": 0, "stride": -1}
    outputs = []
    for at in cell.joined:
        outputs.append(To(body.result(body.layer("Unsqueeze", [new[at], axes], outputs=[dtype])), **cut))
    outputs += [To(result) for result in results]
    ins = [In(x, part, **cut), *(In(s, p) for s, p in zip(states, carried, strict=True))]
    edges = list(zip(results, carried, strict=True))
    return outer.net.tensor_iterator(body, ins, outputs, edges, name=node.name)
