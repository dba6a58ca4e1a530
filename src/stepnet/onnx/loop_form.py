"""Loops of a graph as LSTM, GRU, RNN, Scan and Loop."""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype
from torch import Tensor

from stepnet.export.emit import END
from stepnet.export.graph import Cell, LoopInput, LoopOp, LoopOutput, Node, Value

from .graph_writer import GraphWriter, added_along


def loop_nodes(w: GraphWriter, loop: LoopOp, node: Node) -> tuple[ir.Value, ...]:
    """A Scan, or a Loop if there is a condition."""
    return _Body(w, loop, node).written()


class _Body:
    """A loop on its way. Its invariants are values of the graph around it; a result that is neither carried
    nor joined is joined, and its last one taken."""

    def __init__(self, w: GraphWriter, loop: LoopOp, node: Node) -> None:
        self.w, self.loop, self.node = w, loop, node
        carried = {parameter.node for _, parameter in loop.back_edges}
        self.whole = {port.parameter.node: w.at(port.value) for port in loop.inputs if port.axis is None}
        self.sliced = [port for port in loop.inputs if port.axis is not None]
        invariant = {number: value for number, value in self.whole.items() if number not in carried}
        self.body = w.body(loop.body, invariant)
        self.flat = {port.parameter.node: self._flat(port) for port in self.sliced if self._is_flat(port)}
        self.body.write(loop.body.nodes)
        self.states = [self.body.at(parameter) for _, parameter in loop.back_edges]
        _states_first(self.body.nodes, self.states)
        self.first = [self.whole[parameter.node] for _, parameter in loop.back_edges]
        self.used: set[ir.Value] = set()
        self.new = [self._own(self.body.results[result]) for result, _ in loop.back_edges]

    def written(self) -> tuple[ir.Value, ...]:
        if self.loop.condition is not None:
            return self._loop()
        finals = {result: i for i, (result, _) in enumerate(self.loop.back_edges)}
        joined = [port for port in self.loop.outputs if port.axis is not None or port.result not in finals]
        slices = [_cut(self.w, port, port.parameter.node in self.flat) for port in self.sliced]
        parts = [self.flat.get(p.parameter.node) or self.body.at(p.parameter) for p in self.sliced]
        if not slices:
            slices, parts = [self._steps()], [ir.val(self.w.name("step"), ir.DataType.INT64, [])]
        for value, state in zip(self.new, self.states, strict=True):
            value.shape = value.shape or state.shape  # a Scan needs it, and does not infer it from a Loop
        rows, are_flat = zip(*map(self._row, joined), strict=True) if joined else ((), ())
        body = self._graph([*self.states, *parts], [*self.new, *rows])
        made = self.w.call(
            "Scan", *self.first, *slices, body=body, num_scan_inputs=len(slices),
            scan_input_directions=[int(p.stride < 0) for p in self.sliced] or [0],
            outputs=len(self.new) + len(rows),
            **({"scan_output_directions": [int(p.stride < 0) for p in joined]} if joined else {}),
        )  # fmt: skip
        made = made if isinstance(made, tuple) else (made,)
        for value, inside in zip(made, [*self.new, *rows], strict=True):
            value.type = inside.type
        tables = zip(joined, made[len(self.new) :], are_flat, strict=True)
        found = {id(port): _joined(self.w, self.loop, port, *table) for port, *table in tables}
        return tuple(
            found[id(port)] if id(port) in found else made[finals[port.result]] for port in self.loop.outputs
        )

    def _loop(self) -> tuple[ir.Value, ...]:
        """A Loop that computes its condition."""
        loop = self.loop
        assert loop.goes_on is not None
        assert loop.trips is not None
        assert loop.condition is not None
        number = ir.val(self.w.name("step"), ir.DataType.INT64, [])
        goes = ir.val(self.w.name("goes"), ir.DataType.BOOL, [])
        going = self._own(self.body.results[loop.goes_on])
        joined = [port for port in loop.outputs if port.axis is not None]
        rows, are_flat = zip(*map(self._row, joined), strict=True) if joined else ((), ())
        body = self._graph([number, goes, *self.states], [going, *self.new, *rows])
        trips = None if self.w.known(loop.trips) == [-1] else self.w.at(loop.trips)
        first = (self.w.at(loop.condition), *self.first)
        made = self.w.call("Loop", trips, *first, body=body, outputs=len(self.new) + len(rows))
        made = made if isinstance(made, tuple) else (made,)
        found = {result: value for (result, _), value in zip(loop.back_edges, made, strict=False)}
        tables = zip(joined, made[len(self.new) :], are_flat, strict=True)
        found |= {port.result: _joined(self.w, self.loop, port, *table) for port, *table in tables}
        return tuple(found[port.result] for port in loop.outputs)

    def _graph(self, inputs: list[ir.Value], outputs: list[ir.Value]) -> ir.Graph:
        return ir.Graph(
            inputs, outputs, nodes=self.body.nodes, initializers=self.body.initializers,
            name=self.w.name(self.loop.body.name),
        )  # fmt: skip

    def _is_flat(self, port: LoopInput[Value]) -> bool:
        """Whether the body only drops the axis that a slice keeps."""
        uses = [node for node in self.loop.body.nodes if port.parameter in node.inputs]
        return abs(port.stride) == 1 and all(
            node.op == "squeeze" and self.body.known(node.inputs[1]) == [port.axis] for node in uses
        )

    def _flat(self, port: LoopInput[Value]) -> ir.Value:
        """A slice without that axis, as a Scan cuts; what drops it undoes what adds it here."""
        node, axis = self.loop.body.nodes[port.parameter.node], port.axis
        assert axis is not None
        name, sizes = self.w.name(str(node.name)), [*node.attributes["shape"]]
        del sizes[axis]
        shape = [f"{name}_{i}" if size < 0 else size for i, size in enumerate(sizes)]
        made = ir.val(name, from_torch_dtype(node.dtypes[0]), ir.Shape(shape))
        assert self.body.outer is not None
        self.body.outer[port.parameter.node] = self.body.call("Unsqueeze", made, self.body.numbers([axis]))
        return made

    def _row(self, port: LoopOutput) -> tuple[ir.Value, bool]:
        """What is joined, and whether it lacks the axis of steps, where the body would only add it."""
        value, shape = self.body.results[port.result], self.loop.body.nodes[port.result].attributes["shape"]
        sizes = None if shape is None else [*shape]
        inside = added_along(value, port.axis) if abs(port.stride) == 1 else None
        if inside is not None and port.axis is not None:
            inside.type, value = value.type, inside
        flat = inside is not None
        if not flat and port.axis is not None and abs(port.stride) == 1 and not self._is_own(value):
            kind, flat = value.type, True  # a copy of each row is due: it may lack the axis as well
            value = self.body.call("Squeeze", value, self.body.numbers([port.axis]))
            value.type = kind
        value = self._own(value)
        if sizes is not None:
            if flat and port.axis is not None:
                del sizes[port.axis]
            value.shape = ir.Shape([None if size < 0 else size for size in sizes])
        return value, flat

    def _is_own(self, value: ir.Value) -> bool:
        """Whether the body makes a value, and does not give it yet."""
        producer = value.producer()
        return value not in self.used and producer is not None and any(producer is n for n in self.body.nodes)

    def _own(self, value: ir.Value) -> ir.Value:
        """A value that is an output of the body once, and made in it."""
        if not self._is_own(value):
            kind, value = value.type, self.body.call("Identity", value)
            value.type = kind
        self.used.add(value)
        return value

    def _steps(self) -> ir.Value:
        """As many numbers as there are steps, for a loop that reads no slice: as its outputs say, or one."""
        if self.loop.count is None:
            ends = [(p.start, p.end, p.stride) for p in self.loop.outputs if p.axis is not None]
            known = [abs((end - start) // stride) for start, end, stride in ends if min(start, end) >= 0]
            return self.w.numbers([0] * (known or [1])[0])
        like, axis = self.loop.count
        size = self.w.call("Shape", self.w.at(like), start=axis, end=axis + 1)
        return self.w.call("Expand", self.w.numbers([0]), size)


def _states_first(nodes: list[ir.Node], states: list[ir.Value]) -> None:
    """Name what states say before what else is added or multiplied: OpenVINO, where sizes are fixed, else
    writes the result where a slice lies, and its next step reads that."""
    said = {*states}
    for node in nodes:
        if said.intersection(node.inputs):
            said.update(node.outputs)
            first, *rest = node.inputs
            if node.op_type in ("Add", "Mul") and first not in said:
                node.replace_input_with(0, *rest)
                node.replace_input_with(1, first)


def _cut(w: GraphWriter, port: LoopInput[Value], flat: bool) -> ir.Value:
    """An input with an axis of steps in front; that of a slice, after it, is as long as a slice, and there is
    none if slices are to be flat."""
    value, axis, size = w.at(port.value), port.axis, abs(port.stride)
    assert axis is not None
    low, high = (port.start, port.end) if port.stride > 0 else (port.end, port.start)
    if (low, high) != (0, -1):  # an end of -1 is behind the last element here, and the last one in a Slice
        bounds = [v if v >= 0 else v + 1 or END for v in (low, high)]
        value = w.call("Slice", value, *(w.numbers([v]) for v in (*bounds, axis)))
    if size > 1:
        value = _reshaped(w, value, axis, axis + 1, [-1, size])
    elif not flat:
        value = w.call("Unsqueeze", value, w.numbers([axis + 1]))
    shape = port.parameter.graph.nodes[port.parameter.node].attributes["shape"]
    return _moved(w, value, len(shape) + (not flat), axis, 0)


def _moved(w: GraphWriter, value: ir.Value, rank: int, axis: int, to: int) -> ir.Value:
    """A value with an axis at another place. A Scan is cut along the first: along another one ONNX Runtime,
    which moves it there itself, ends the process where a size is 0."""
    if axis == to:
        return value
    order = [*range(rank)]
    order.insert(to, order.pop(axis))
    return w.call("Transpose", value, perm=order)


def _reshaped(w: GraphWriter, value: ir.Value, start: int, end: int, sizes: list[int]) -> ir.Value:
    """A value with other axes in place of some."""
    before, after = w.call("Shape", value, start=0, end=start), w.call("Shape", value, start=end)
    return w.call("Reshape", value, w.call("Concat", before, w.numbers(sizes), after, axis=0))


def _joined(w: GraphWriter, loop: LoopOp, port: LoopOutput, rows: ir.Value, flat: bool) -> ir.Value:
    """The rows of a Scan or a Loop, which have an axis of steps in front."""
    if port.axis is None:
        return w.call("Gather", rows, w.numbers(-1), axis=0)
    if port.axis:
        shape = loop.body.nodes[port.result].attributes["shape"]
        rows = _moved(w, rows, len(shape) + (not flat), 0, port.axis)
    if flat:
        return rows
    if abs(port.stride) == 1:
        return w.call("Squeeze", rows, w.numbers([port.axis + 1]))
    return _reshaped(w, rows, port.axis, port.axis + 2, [-1])


_GATES = {"lstm": (1, 3, 0, 2), "gru": (0, 1, 2), "rnn": (0,)}  # i o f c of f i c o; z r h
_KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}


def cell_nodes(w: GraphWriter, cell: Cell, inputs: list[ir.Value]) -> tuple[ir.Value, ...]:
    """The op of a known cell, time first: ONNX Runtime has no other."""
    (x, *states), lengths = inputs, None
    if cell.ragged:
        *states, lengths = states
    swap = [1, 0, 2]
    gates, hidden = _GATES[cell.kind], cell.r.shape[1]
    weights = [_ordered(t, gates).unsqueeze(0) for t in (cell.w, cell.r)]
    biases = list(cell.b.split(hidden))
    own = torch.cat([biases[g] for g in gates])
    again = torch.zeros_like(own)
    if len(biases) > len(gates):
        again[-hidden:] = biases[-1]
    attributes: dict[str, object] = {
        "hidden_size": hidden, "direction": "reverse" if cell.reverse else "forward"
    }  # fmt: skip
    if cell.kind == "gru":
        attributes["linear_before_reset"] = int(cell.linear_before_reset)
    if cell.activation is not None:
        attributes["activations"] = [_ACTIVATIONS[cell.activation]]
    y, *finals = w.call(
        _KINDS[cell.kind],
        x if cell.time == 0 else w.call("Transpose", x, perm=swap),
        *(w.constant(t) for t in weights),
        w.constant(torch.cat([own, again]).unsqueeze(0)),
        None if lengths is None else w.call("Cast", lengths, to=ir.DataType.INT32),
        *(w.call("Unsqueeze", state, w.numbers([0])) for state in states),
        outputs=1 + len(states),
        **attributes,
    )
    y = w.call("Squeeze", y, w.numbers([1]))
    y = y if cell.time == 0 else w.call("Transpose", y, perm=swap)
    last = [w.call("Squeeze", final, w.numbers([0])) for final in finals]
    if lengths is not None:  # ONNX Runtime's last state of a sequence of no steps is zero
        some = w.call("Unsqueeze", w.call("Greater", lengths, w.numbers(0)), w.numbers([1]))
        last = [w.call("Where", some, final, state) for final, state in zip(last, states, strict=True)]
    return (*[y] * len(cell.joined), *last)


def _ordered(weight: Tensor, gates: tuple[int, ...]) -> Tensor:
    parts = weight.chunk(len(gates))
    return torch.cat([parts[g] for g in gates])
