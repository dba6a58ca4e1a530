"""What a loop layer of an OpenVINO net is: the ports that its values enter and leave by, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepnet.errors import LoopError
from stepnet.executors.segment import Count, iterations
from stepnet.openvino.graph import Node
from stepnet.openvino.loops import TensorIteratorRunner
from stepnet.openvino.records import Layer, Net, PortRow

from .inspection import PortMapping, Way
from .sizes import Sizes, Survey


def inputs_of(layer: Layer, prefix: str, net: Net) -> Iterator[PortMapping]:
    """What enters a body; `net` is what contains the loop."""
    inner = layer.bodies[prefix].layers
    states = {parameter for _, parameter in layer.back_edges}
    places = {port.id: i for i, port in enumerate(layer.inputs)}
    for row in layer.maps[prefix].inputs:
        source = None if row.external < 0 else layer.sources[places[row.external]]
        outer = "" if source is None else net.layers[source[0]].name
        way: Way = "slice" if row.axis is not None else "state" if row.internal in states else "whole"
        way = "iteration" if row.purpose else "given" if layer.type == "If" else way
        yield _mapping(outer, inner[row.internal].name, way, row, source=source)


def outputs_of(layer: Layer, prefix: str, net: Net, outputs: Mapping[int, str]) -> Iterator[PortMapping]:
    """What leaves a body; `outputs` are the model's names for Results of the net that contains the loop."""
    inner = layer.bodies[prefix].layers
    places = {port.id: i for i, port in enumerate(layer.outputs)}
    readers: dict[int, list[str]] = {}
    for user in net.layers.values():
        for source, index in user.sources:
            if source == layer.id:
                readers.setdefault(index, []).append(outputs.get(user.id, user.name))
    for row in layer.maps[prefix].outputs:
        place = places.get(row.external)
        outer = "" if place is None else ", ".join(readers.get(place, ()))
        way: Way = "joined" if row.axis is not None else "condition" if row.external < 0 else "last"
        way = "result" if layer.type == "If" else way
        yield _mapping(outer, inner[row.internal].name, way, row, output=place)


def _mapping(
    outer: str, inner: str, way: Way, row: PortRow, *,
    source: tuple[int, int] | None = None, output: int | None = None,
) -> PortMapping:  # fmt: skip
    cut = (row.axis, row.start, row.end, row.stride, row.part_size)
    return PortMapping(outer, inner, way, *cut, row.internal, source, output)


@dataclass(frozen=True)
class StepCount:
    """The number of steps at the sizes that are counted, None if only a run determines it.

    `static`: it is the same at all sizes. `words`: what determines it.
    """

    count: int | None
    static: bool
    words: str


def steps(node: Node, net: Net, at: Sizes) -> StepCount:
    """The steps of a TensorIterator, Loop or sequence; `net` contains the layer."""
    counted, first, second = (_count(node, survey) for survey in (at.counted, *at.pair))
    return StepCount(counted, counted is not None and counted == first == second, _words(node.layer, net))


def _count(node: Node, survey: Survey) -> int | None:
    inputs = survey.given.get(id(node.layer), ())
    if isinstance(node.run, TensorIteratorRunner):
        return _iterations(node.run, dict(zip(node.run.ports, inputs, strict=False)))
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor):
        return None
    if node.layer.type != "Loop":
        return first.shape[1] if first.dim() > 1 else None
    if first.is_meta or first.numel() != 1 or int(first.reshape(())) < 0 or _condition(node.layer):
        return None
    return int(first.reshape(()))


def _iterations(runner: TensorIteratorRunner, inputs: dict[str, Any]) -> int | None:
    slices = runner.loop.slices
    try:
        if not slices:
            return Count(runner.loop).steps
        value, axis = inputs.get(slices[0].source), slices[0].axis
        if not isinstance(value, Tensor) or not -value.dim() <= axis < value.dim():
            return None
        return iterations(slices[0], value.shape[axis])[2]
    except LoopError:
        return None


def _condition(layer: Layer) -> bool:
    """Whether the body of a Loop computes a condition."""
    net, port_map = layer.bodies[""], layer.maps[""]
    result = next((r.internal for r in port_map.outputs if r.purpose == "execution_condition"), None)
    if result is None:
        return False
    source = net.layers[net.layers[result].sources[0][0]]
    return source.type.lower() not in ("const", "constant")


def _words(layer: Layer, net: Net) -> str:
    sources = [net.layers[source].name for source, _ in layer.sources]
    if layer.type == "Loop":
        words = f"trip count from {sources[0]}"
        return f"{words}, while the body's condition holds" if _condition(layer) else words
    if layer.type != "TensorIterator":
        return f"one for each element of {sources[0]} along axis 1"
    ports = [p.id for p in layer.inputs]
    for row in layer.maps[""].inputs:
        if row.axis is not None:
            each = "one for each element" if row.part_size == 1 else f"one for each {row.part_size} elements"
            return f"{each} of {sources[ports.index(row.external)]} along axis {row.axis}"
    return "no input is cut into steps"
