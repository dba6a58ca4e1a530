"""LSTMSequence, GRUSequence and RNNSequence as TensorIterators with a cell in the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stepnet.errors import IRError
from stepnet.openvino.element_types import ElementType, by_name
from stepnet.openvino.records import Layer, Net, PortMap, PortRow, Shape
from stepnet.openvino.table import is_constant

from .builder import NetBuilder, Out
from .dims import dim_of, value_of
from .edit import Editor, Source, all_nets

_CELLS = {"lstmsequence": ("LSTMCell", "opset4"), "grusequence": ("GRUCell", "opset3"),
          "rnnsequence": ("RNNCell", "opset1")}  # fmt: skip
_INT64 = by_name("i64", "")
_TRUTH = by_name("boolean", "")


def unfuse(net: Net) -> None:
    """Replace every sequence layer of a net and of its bodies, in place.

    Where the sequence lengths are not known to be the whole time axis, the body gets a mask: after the end
    of a sequence its states stay and its output is zero, and a reversed sequence starts at its own end.

    Raises:
        IRError: the type of a layer's input is not known.
    """
    for inner in all_nets(net):
        found = [layer for layer in inner.layers.values() if layer.type.lower() in _CELLS]
        full = [_is_full(inner, layer) for layer in found]  # while all layers can be followed back
        for layer, whole in zip(found, full, strict=True):
            _Unfused(inner, layer).replace(masked=not whole)
        if found:
            edit = Editor(inner)
            edit.drop_dead()
            edit.done()


def _is_full(net: Net, layer: Layer) -> bool:
    """Whether every sequence is as long as the time axis."""
    value = value_of(net, layer.sources[len(layer.outputs)])
    return value is not None and value == dim_of(net, layer.sources[0], 1)


class _Unfused:
    """One layer on its way to loops, one for each direction."""

    def __init__(self, net: Net, layer: Layer) -> None:
        self.net, self.layer = net, layer
        self.edit = Editor(net)
        self.cell, self.version = _CELLS[layer.type.lower()]
        attributes = layer.said
        self.hidden = attributes.size("hidden_size")
        self.direction = attributes.choice("direction", ("forward", "reverse", "bidirectional"), "forward")
        self.attributes = {k: v for k, v in layer.attributes.items() if k != "direction"}
        states = len(layer.outputs) - 1
        self.x, self.lengths = layer.sources[0], layer.sources[1 + states]
        self.states, self.weights = layer.sources[1 : 1 + states], layer.sources[2 + states :]
        kind = self.edit.port(self.x).type
        if kind is None:
            raise IRError(
                f"{layer.where}: the type of its input is not known",
                expected="a precision",
                got="none",
                remedy="write the precision of the port into the file that it was read from",
            )
        self.kind: ElementType = kind
        shape = self.edit.port(self.x).shape or ()
        self.batch, self.time, self.width = shape if len(shape) == 3 else (-1, -1, -1)

    def replace(self, *, masked: bool) -> None:
        """Make the loops, and let all who read the layer read them."""
        mask = self._mask() if masked else None
        backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[self.direction]
        loops = [self._loop(d, reverse, mask) for d, reverse in enumerate(backwards)]
        for index in range(len(self.layer.outputs)):
            shape = (self.batch, 1, self.time, self.hidden) if index == 0 else (self.batch, 1, self.hidden)
            axes = self.edit.numbers([1], near=self.layer)
            parts = [self._one("Unsqueeze", [(loop.id, index), axes], shape) for loop in loops]
            joined = parts[0]
            if len(parts) > 1:
                shape = (shape[0], len(parts), *shape[2:])
                joined = self._one("Concat", parts, shape, {"axis": "1"})
            self.edit.replace_outputs({(self.layer.id, index): joined})
        del self.net.layers[self.layer.id]

    def _mask(self) -> Source:
        """[batch, time, 1]: whether a step lies in its sequence."""
        near, one = self.layer, self._one
        shape = one("ShapeOf", [self.x], (3,), {"output_type": "i64"}, _INT64, "opset3")
        numbers = [self.edit.numbers(n, near=near) for n in (0, 1)]
        steps = one("Gather", [shape, numbers[1], numbers[0]], (), {"batch_dims": "0"}, _INT64, "opset8")
        at = one(
            "Range", [numbers[0], steps, numbers[1]], (self.time,), {"output_type": "i64"}, _INT64, "opset4"
        )
        lengths = one("Convert", [self.lengths], (self.batch,), {"destination_type": "i64"}, _INT64)
        axes = [self.edit.numbers([n], near=near) for n in (1, 2)]
        lengths = one("Unsqueeze", [lengths, axes[0]], (self.batch, 1), None, _INT64)
        inside = one("Less", [at, lengths], (self.batch, self.time), {"auto_broadcast": "numpy"}, _TRUTH)
        return one("Unsqueeze", [inside, axes[1]], (self.batch, self.time, 1), None, _TRUTH)

    def _loop(self, d: int, reverse: bool, mask: Source | None) -> Layer:
        layer, dtype = self.layer, self.kind.dtype
        cut = {"start": -1, "end": 0, "stride": -1} if reverse else {"start": 0, "end": -1, "stride": 1}
        body = NetBuilder(layer.name, scope=f"{self.net.scope}: body of '{layer.name}'")
        sources: list[Source] = []
        rows: list[PortRow] = []

        def feed(source: Source, name: str, kind: torch.dtype, shape: Shape, axis: int | None = None) -> Out:
            out = body.parameter(name, kind, shape)
            at = {"start": 0, "end": -1, "stride": 1} if axis is None else cut
            rows.append(PortRow(len(sources), out.layer, axis, **at, part_size=1, purpose=None))
            sources.append(source)
            return out

        x = feed(self.x, "x", dtype, (self.batch, 1, self.width), 1)
        states = [
            feed(self._taken(state, d, 1, (self.batch, self.hidden)), f"state_{k}", dtype,
                 (self.batch, self.hidden))
            for k, state in enumerate(self.states)
        ]  # fmt: skip
        weights = [
            self._weight(body, source, d, feed, name)
            for source, name in zip(self.weights, "WRB", strict=True)
        ]
        axis = body.constant(torch.tensor([1]))
        row = (dtype, (self.batch, self.hidden))
        x = body.layer("Squeeze", [x, axis], outputs=[(dtype, (self.batch, self.width))])
        new = body.layer(
            self.cell, [x, *states, *weights], self.attributes, version=self.version,
            outputs=[row] * len(states),
        )  # fmt: skip
        new = new if isinstance(new, tuple) else (new,)
        y = new[0]
        if mask is not None:
            inside = feed(mask, "mask", torch.bool, (self.batch, 1, 1), 1)
            inside = body.layer("Squeeze", [inside, axis], outputs=[(torch.bool, (self.batch, 1))])
            zero = body.constant(torch.zeros((), dtype=dtype))
            broadcast = {"auto_broadcast": "numpy"}
            y = body.layer("Select", [inside, y, zero], broadcast, outputs=[row])
            new = [
                body.layer("Select", [inside, value, state], broadcast, outputs=[row])
                for value, state in zip(new, states, strict=True)
            ]
        y = body.layer("Unsqueeze", [y, axis], outputs=[(dtype, (self.batch, 1, self.hidden))])
        results = [body.result(value) for value in (y, *new)]
        shapes: list[Shape] = [(self.batch, self.time, self.hidden)]
        shapes += [(self.batch, self.hidden)] * len(states)
        loop = self.edit.add("TensorIterator", sources, [(self.kind, s) for s in shapes], near=layer)
        outputs = [PortRow(len(sources), results[0], 1, **cut, part_size=1, purpose=None)]
        for k, result in enumerate(results[1:], len(sources) + 1):
            outputs.append(PortRow(k, result, None, 0, -1, 1, 1, None))
        loop.bodies[""], loop.maps[""] = body.records(), PortMap(tuple(rows), tuple(outputs))
        loop.back_edges = tuple(
            (result, state.layer) for result, state in zip(results[1:], states, strict=True)
        )
        return loop

    def _weight(self, body: NetBuilder, source: Source, d: int, feed: Any, name: str) -> Out:
        """The weights of a direction: a constant of the body where they are one."""
        layer = self.net.layers[source[0]]
        if is_constant(layer) and layer.value is not None:
            return body.constant(layer.value[d])
        if layer.type.lower() == "convert":
            inner = self.net.layers[layer.sources[0][0]]
            if is_constant(inner) and inner.value is not None:
                value = inner.value[d]
                out = body.layer(
                    "Convert", [body.constant(value)], layer.attributes,
                    outputs=[(self.kind.dtype, tuple(value.shape))],
                )  # fmt: skip
                body.layers[out.layer].rt_info = layer.rt_info
                return out
        shape = self.edit.port(source).shape or ()
        rank = 1 if name == "B" else 2
        shape = tuple(shape[1:]) if len(shape) == rank + 1 else (-1,) * rank
        return feed(self._taken(source, d, 0, shape), name, self.kind.dtype, shape)

    def _taken(self, source: Source, index: int, axis: int, shape: Shape) -> Source:
        """One entry of an axis, which goes away."""
        numbers = [self.edit.numbers(n, near=self.layer) for n in (index, axis)]
        return self._one("Gather", [source, *numbers], shape, {"batch_dims": "0"}, version="opset8")

    def _one(
        self, type: str, sources: Sequence[Source], shape: Shape, attributes: dict[str, str] | None = None,
        kind: ElementType | None = None, version: str = "opset1",
    ) -> Source:  # fmt: skip
        outputs = [(kind or self.kind, shape)]
        return self.edit.add(type, sources, outputs, attributes, version=version, near=self.layer).id, 0
