"""Changes to a net: layers added, inputs taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stepnet.file_model import shorten
from stepnet.openvino.element_types import ElementType, by_dtype
from stepnet.openvino.order import sort_layers
from stepnet.openvino.records import Layer, Net, Port, Shape

Source = tuple[int, int]  # layer id, output index


def copied(net: Net) -> Net:
    """A net that can be changed: its layers and bodies are copies, its tensors are not."""
    layers = {i: replace(layer) for i, layer in net.layers.items()}
    for layer in layers.values():
        layer.bodies = {prefix: copied(body) for prefix, body in layer.bodies.items()}
        layer.maps = dict(layer.maps)
    return replace(net, layers=layers)


def all_nets(net: Net) -> Iterator[Net]:
    """A net and the bodies in it, those first."""
    for layer in list(net.layers.values()):
        for body in layer.bodies.values():
            yield from all_nets(body)
    yield net


class Editor:
    """Adds layers to a net, in place; `done` puts its layers in order again."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._next = max(net.layers, default=-1) + 1
        self._names = {layer.name for layer in net.layers.values()}

    def port(self, source: Source) -> Port:
        """The output that a source names."""
        return self.net.layers[source[0]].outputs[source[1]]

    def add(
        self, type: str, sources: Sequence[Source],
        outputs: Sequence[tuple[ElementType | None, Shape | None]],
        attributes: Mapping[str, str] | None = None, *, version: str = "opset1", near: Layer,
    ) -> Layer:  # fmt: skip
        """A layer, named after the one that it is made for."""
        name, k = f"{near.name}/{type}", 1
        while name in self._names:
            name, k = f"{near.name}/{type}_{k}", k + 1
        self._names.add(name)
        inputs = [self.port(source) for source in sources]
        layer = Layer(
            id=self._next,
            name=name,
            type=type,
            version=version,
            attributes=dict(attributes or {}),
            inputs=tuple(Port(i, port.type, port.shape) for i, port in enumerate(inputs)),
            outputs=tuple(Port(len(sources) + i, kind, shape) for i, (kind, shape) in enumerate(outputs)),
            where=f"{self.net.scope}: {type} layer {self._next} '{shorten(name)}'",
            sources=tuple(sources),
        )
        self.net.layers[self._next] = layer
        self._next += 1
        return layer

    def constant(self, value: Tensor, *, near: Layer) -> Source:
        """A constant; its output."""
        layer = self.add("Const", [], [(by_dtype(value.dtype), tuple(value.shape))], near=near)
        layer.value = value
        return layer.id, 0

    def result(self, source: Source, *, near: Layer) -> int:
        """An output of the net; its layer id."""
        layer = self.add("Result", [source], [], near=near)
        self.net.results = (*self.net.results, layer.id)
        return layer.id

    def numbers(self, values: Sequence[int] | int, *, near: Layer) -> Source:
        """A constant of int64."""
        return self.constant(torch.tensor(values, dtype=torch.int64), near=near)

    def slice(
        self, source: Source, start: int, stop: int, step: int, axis: int, shape: Shape | None, *, near: Layer
    ) -> Source:
        """Part of an axis; its output."""
        numbers = [self.numbers([value], near=near) for value in (start, stop, step, axis)]
        outputs = [(self.port(source).type, shape)]
        return self.add("Slice", [source, *numbers], outputs, version="opset8", near=near).id, 0

    def rewire(self, layer: Layer, index: int, source: Source) -> None:
        """Feed an input of a layer from elsewhere."""
        found = self.port(source)
        ports = [*layer.inputs]
        ports[index] = replace(ports[index], type=found.type, shape=found.shape)
        layer.inputs = tuple(ports)
        layer.sources = (*layer.sources[:index], source, *layer.sources[index + 1 :])

    def read_apart(self, source: Source, which: Callable[[Layer], bool]) -> None:
        """Let some of those who read an output read the larger of it and itself, which OpenVINO keeps."""
        layers, near = list(self.net.layers.values()), self.net.layers[source[0]]
        at = [(layer, k) for layer in layers for k, of in enumerate(layer.sources) if of == source]
        readers = [(layer, k) for layer, k in at if which(layer)]
        if readers:
            apart = self.twice(source, near)
            for layer, k in readers:
                self.rewire(layer, k, apart)

    def twice(self, source: Source, near: Layer) -> Source:
        """The larger of an output and itself."""
        port, told = self.port(source), {"auto_broadcast": "numpy"}
        kind = "LogicalOr" if port.type is not None and port.type.dtype is torch.bool else "Maximum"
        return self.add(kind, [source, source], [(port.type, port.shape)], told, near=near).id, 0

    def feed(self, layer: Layer, sources: Sequence[Source]) -> None:
        """Give a layer other inputs, as many as there are sources; its ports are numbered anew."""
        found = [self.port(source) for source in sources]
        layer.inputs = tuple(Port(i, port.type, port.shape) for i, port in enumerate(found))
        layer.outputs = tuple(replace(port, id=i) for i, port in enumerate(layer.outputs, len(sources)))
        layer.sources = tuple(sources)

    def replace_outputs(self, moved: Mapping[Source, Source]) -> None:
        """Let all who read some outputs read others. Names go along."""
        for layer in self.net.layers.values():
            for i, source in enumerate(layer.sources):
                if source in moved:
                    self.rewire(layer, i, moved[source])
        for old, new in moved.items():
            names = self.port(old).names
            if names:
                for (number, index), called in ((old, ()), (new, names)):
                    self.net.layers[number].change_output(index, names=called)

    def needed(self) -> set[int]:
        """The layers from which a Result can be reached, or an Assign: a variable is an output, too."""
        return self.behind(self.net.results)

    def behind(self, results: Iterable[int]) -> set[int]:
        """The layers from which one of these can be reached, or an Assign."""
        found = {i for i, layer in self.net.layers.items() if layer.type.lower() == "assign"}
        found |= set(results)
        waiting = list(found)
        while waiting:
            for source, _ in self.net.layers[waiting.pop()].sources:
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return found

    def drop_dead(self) -> None:
        """Take away layers that are not needed. Parameters stay."""
        alive = self.needed() | set(self.net.parameters)
        for i in list(self.net.layers):
            if i not in alive:
                del self.net.layers[i]

    def done(self) -> None:
        """Put the layers in order again."""
        self.net.order = sort_layers(self.net.layers, self.net.scope)
