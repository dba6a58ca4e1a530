"""How many steps a loop takes, and what says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepnet.errors import LoopError
from stepnet.executors.segment import iterations
from stepnet.ir.tensor_iterator import Slice
from stepnet.openvino.graph import Node
from stepnet.openvino.records import Layer, Net, PortRow

from .sizes import Sizes, Survey


@dataclass(frozen=True)
class Steps:
    """A number of steps at the sizes that are counted, None if only a run tells; `static`: at all sizes."""

    count: int | None
    static: bool
    words: str


def steps(node: Node, net: Net, at: Sizes) -> Steps:
    """The steps of a TensorIterator, Loop or sequence; `net` is what the layer is in."""
    rule = {"TensorIterator": _tensor_iterator, "Loop": _loop}.get(node.layer.type, _sequence)
    counted, first, second = (rule(node.layer, survey) for survey in (at.counted, *at.pair))
    return Steps(counted, counted is not None and counted == first == second, _words(node.layer, net))


def _tensor_iterator(layer: Layer, survey: Survey) -> int | None:
    rows = layer.maps[""]
    sliced = [row for row in rows.inputs if row.axis is not None]
    if not sliced:
        ranged = [_range(row) for row in rows.outputs if row.axis is not None]
        return next((count for count in ranged if count is not None), 1)
    return _along(layer, sliced[0], survey)


def _range(row: PortRow) -> int | None:
    """Steps of a joined output whose start and end say how long it is."""
    if row.start < 0 or row.end < 0:
        return None
    return abs(row.end - row.start) // abs(row.stride)


def _along(layer: Layer, row: PortRow, survey: Survey) -> int | None:
    value = _given(layer, survey, [p.id for p in layer.inputs].index(row.external))
    if not isinstance(value, Tensor) or row.axis is None or not -value.dim() <= row.axis < value.dim():
        return None
    port = Slice(
        "", "", axis=row.axis, start=row.start, end=row.end, stride=row.stride, part_size=row.part_size
    )
    try:
        return iterations(port, value.shape[row.axis])[2]
    except LoopError:
        return None


def _loop(layer: Layer, survey: Survey) -> int | None:
    trips = _given(layer, survey, 0)
    if not isinstance(trips, Tensor) or trips.is_meta or trips.numel() != 1 or int(trips.reshape(())) < 0:
        return None
    return None if _condition(layer) else int(trips.reshape(()))


def _condition(layer: Layer) -> bool:
    """Whether the body of a Loop computes a condition."""
    net, rows = layer.bodies[""], layer.maps[""]
    result = next((r.internal for r in rows.outputs if r.purpose == "execution_condition"), None)
    if result is None:
        return False
    source = net.layers[net.layers[result].sources[0][0]]
    return source.type.lower() not in ("const", "constant")


def _sequence(layer: Layer, survey: Survey) -> int | None:
    x = _given(layer, survey, 0)
    return x.shape[1] if isinstance(x, Tensor) and x.dim() > 1 else None


def _given(layer: Layer, survey: Survey, i: int) -> Any:
    given: Sequence[Any] = survey.given.get(id(layer), ())
    return given[i] if i < len(given) else None


def _words(layer: Layer, net: Net) -> str:
    def source(i: int) -> str:
        return net.layers[layer.sources[i][0]].name

    if layer.type == "Loop":
        words = f"trip count from {source(0)}"
        return f"{words}, while the body's condition holds" if _condition(layer) else words
    if layer.type != "TensorIterator":
        return f"one for each element of {source(0)} along axis 1"
    ports = [p.id for p in layer.inputs]
    for row in layer.maps[""].inputs:
        if row.axis is not None:
            each = "one for each element" if row.part_size == 1 else f"one for each {row.part_size} elements"
            return f"{each} of {source(ports.index(row.external))} along axis {row.axis}"
    return "no input is cut into steps"
