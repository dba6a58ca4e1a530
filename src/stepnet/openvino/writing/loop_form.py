"""Loops of a graph as TensorIterators and Loops."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from stepnet.errors import IRError
from stepnet.export.emit import END
from stepnet.export.graph import Cell, LoopOp, Node
from stepnet.export.graph import LoopInput as In
from stepnet.export.graph import LoopOutput as To
from stepnet.openvino.workarounds.operand_order import state_first

from .builder import NetBuilder, Out
from .net_writer import NetWriter

_CELLS = {"lstm": ("LSTMCell", "opset4"), "gru": ("GRUCell", "opset3"), "rnn": ("RNNCell", "opset1")}


def loop_layers(outer: NetWriter, loop: LoopOp, node: Node) -> tuple[Out, ...]:
    """A TensorIterator; or a Loop if there is a condition, or a loop inside, which OpenVINO refuses in a
    TensorIterator."""
    body = outer.net.body(loop.body.name)
    inner = type(outer)(body)
    nodes = state_first(loop)
    first = next(i for i, inside in enumerate(nodes) if inside.op in ("copy", "result"))
    inner.write(nodes[:first])
    inputs = [
        In(outer.at(port.value), inner.at(port.parameter), port.axis, port.start, port.end, port.stride)
        for port in loop.inputs
    ]
    holds = any(inside.op in ("loop", "cell") for inside in nodes)
    if loop.count is not None and not holds:
        inputs.append(_count(outer, inner, loop))
    inner.write(nodes[first:])
    outputs = [replace(port, result=inner.results[port.result]) for port in loop.outputs]
    edges = [(inner.results[result], inner.at(parameter)) for result, parameter in loop.back_edges]
    if loop.once:
        return _branch(outer, loop, body, inputs, edges, node)
    if loop.trips is None or loop.condition is None:
        if not holds:
            return outer.net.tensor_iterator(body, inputs, outputs, edges, name=node.name)
        return _nested(outer, loop, body, inputs, outputs, edges, node)
    return outer.net.loop(
        body, outer.at(loop.trips), outer.at(loop.condition), inputs, outputs, edges,
        execution_condition=None if loop.goes_on is None else inner.results[loop.goes_on], name=node.name,
    )  # fmt: skip


def _branch(
    outer: NetWriter, loop: LoopOp, body: NetBuilder, inputs: list[In[Out]], edges: list[tuple[int, Out]],
    node: Node,
) -> tuple[Out, ...]:  # fmt: skip
    """A loop of one turn or none as an If, whose other body gives what is carried as it came: a Loop of no
    turns gives none of what changes its sizes."""
    assert loop.condition is not None
    other, given = outer.net.body(f"no {loop.body.name}"), {port.parameter: port.value for port in inputs}
    kept, pairs, kinds = [], [], []
    for (result, parameter), (_, inside) in zip(edges, loop.back_edges, strict=True):
        declared = loop.body.nodes[inside.node]
        kinds.append((declared.dtypes[0], declared.attributes["shape"]))
        same = other.parameter(str(declared.name), *kinds[-1])
        kept.append(In(given[parameter], same))
        pairs.append((result, other.result(same)))
    return outer.net.branch(outer.at(loop.condition), (body, other), (inputs, kept), pairs, kinds, node.name)


def _nested(
    outer: NetWriter, loop: LoopOp, body: NetBuilder, inputs: list[In[Out]], outputs: list[To],
    edges: list[tuple[int, Out]], node: Node,
) -> tuple[Out, ...]:  # fmt: skip
    """A loop with loops inside as a Loop of as many trips, which in OpenVINO cuts and joins single rows of a
    whole axis, forwards."""
    whole = {(0, -1, 1), (-1, 0, -1)}
    if any(p.axis is not None and (p.start, p.end, p.stride) not in whole for p in (*inputs, *outputs)):
        raise IRError(
            f"the loop '{node.name}' cannot be written: it cuts parts of an axis, and runs a loop inside",
            got="a TensorIterator inside a TensorIterator, which OpenVINO refuses",
            expected="a body without loops, or slices of one row of all of an axis",
            remedy="move the inner loop in front of the outer one",
        )
    trips, true = _trips(outer, loop), torch.ones((), dtype=torch.bool)
    types = [loop.body.nodes[port.parameter.node].dtypes[0] for port in loop.inputs]
    ins = [
        replace(port, value=_turned(outer, port.value, port, dtype), **_forwards(port))
        for port, dtype in zip(inputs, types, strict=True)
    ]
    outs = [replace(port, **_forwards(port)) for port in outputs]
    made = outer.net.loop(
        body, trips, outer.net.constant(true), ins, outs, edges,
        execution_condition=body.result(body.constant(true)), name=node.name,
    )  # fmt: skip
    given = [loop.body.nodes[port.result].inputs[0] for port in loop.outputs]
    types = [loop.body.nodes[value.node].dtypes[value.index] for value in given]
    return tuple(itertools.starmap(partial(_turned, outer), zip(made, outputs, types, strict=True)))


def _forwards(port: In[Out] | To) -> dict[str, Any]:
    return {} if port.axis is None else {"start": 0, "end": -1, "stride": 1}


def _turned(outer: NetWriter, value: Out, port: In[Out] | To, dtype: torch.dtype) -> Out:
    """The rows of an axis the other way round, if a port goes backwards."""
    if port.axis is None or port.stride > 0:
        return value
    bounds = [outer.numbers([n]) for n in (-1, -END - 1, -1, port.axis)]
    out = outer.net.layer("Slice", [value, *bounds], version="opset8", outputs=[dtype])
    assert isinstance(out, Out)
    return out


def _trips(outer: NetWriter, loop: LoopOp) -> Out:
    """How often a loop without a condition runs: as often as its whole axes have rows."""
    ports = ((port.value, port.axis) for port in loop.inputs if port.axis is not None)
    value, axis = loop.count or next(ports)
    return _size(outer, outer.at(value), axis)


def _size(outer: NetWriter, value: Out, axis: int | list[int]) -> Out:
    shape = outer.layer("shape", [value], torch.int64, output_type="i64")
    return outer.layer("take", [shape, outer.numbers(axis), outer.numbers(0)], torch.int64, batch_dims=0)


def _count(outer: NetWriter, inner: NetWriter, loop: LoopOp) -> In[Out]:
    """Slices of zeros that are added to a state: a body that reads no slice would run once, and OpenVINO
    drops a slice that nothing depends on."""
    assert loop.count is not None
    nodes, (like, time), (result, parameter) = loop.body.nodes, loop.count, loop.back_edges[0]
    state = nodes[parameter.node]
    dtype, rank = state.dtypes[0], len(state.attributes["shape"])
    one = outer.numbers([1])
    size = _size(outer, outer.at(like), [time])
    sizes = outer.layer("cat", [size if axis == time else one for axis in range(rank)], torch.int64, axis=0)
    zero = outer.net.constant(torch.tensor(0, dtype=dtype))
    zeros = outer.layer("expand", [zero, sizes], dtype, mode="bidirectional")
    part = inner.net.parameter("step", dtype, (1,) * rank)
    (new,) = nodes[result].inputs
    if nodes[new.node].op == "copy":  # the sum is one
        result, (new,) = new.node, nodes[new.node].inputs
    inner.instead[result] = inner.layer("or" if dtype == torch.bool else "add", [inner.at(new), part], dtype)
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
