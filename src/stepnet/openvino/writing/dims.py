"""Which dimension of which tensor a number is: as far as a net says it without running."""

from __future__ import annotations

from stepnet.openvino.records import Layer, Net
from stepnet.openvino.table import is_constant

Source = tuple[int, int]
Dim = int | tuple[Source, int]  # a size, or an axis of an output

_CARRY = {"convert", "squeeze", "unsqueeze", "reshape", "broadcast", "tile"}  # all values stay the same one
_SEQUENCES = {"lstmsequence", "grusequence", "rnnsequence"}


def dim_of(net: Net, source: Source, axis: int) -> Dim:
    """A dimension of an output, followed back to where it comes from."""
    for _ in net.layers:  # a walk back ends: layers form no cycle
        layer = net.layers[source[0]]
        shape = layer.outputs[source[1]].shape
        if shape is not None and axis < len(shape) and shape[axis] >= 0:
            return shape[axis]
        back = _back(net, layer, axis)
        if back is None:
            break
        source, axis = back
    return source, axis


def value_of(net: Net, source: Source) -> Dim | None:
    """What all elements of an output are: one number, or one dimension. None: not known."""
    for _ in net.layers:
        layer = net.layers[source[0]]
        kind = layer.type.lower()
        if is_constant(layer):
            return _constant(layer)
        if kind == "gather" and net.layers[layer.sources[0][0]].type.lower() in ("shapeof", "convert"):
            return _gathered(net, layer)
        if kind not in _CARRY:
            return None
        source = layer.sources[0]
    return None


def _back(net: Net, layer: Layer, axis: int) -> tuple[Source, int] | None:
    kind = layer.type.lower()
    if kind == "transpose":
        order = _numbers(net, layer.sources[1])
        return None if order is None or axis >= len(order) else (layer.sources[0], order[axis])
    if kind == "reshape":
        pattern = _numbers(net, layer.sources[1])
        zero = layer.said.bool("special_zero", False)
        kept = pattern is not None and zero and axis < len(pattern) and pattern[axis] == 0
        return (layer.sources[0], axis) if kept else None
    if kind in _SEQUENCES and axis in (0, 2):  # Y is [batch, directions, time, hidden]
        return layer.sources[0], 0 if axis == 0 else 1
    if kind in ("convert", "relu", "tanh", "sigmoid"):
        return layer.sources[0], axis
    return None


def _gathered(net: Net, layer: Layer) -> Dim | None:
    """`Gather(ShapeOf(x), index)`."""
    at = net.layers[layer.sources[0][0]]
    while at.type.lower() == "convert":
        at = net.layers[at.sources[0][0]]
    index = _numbers(net, layer.sources[1])
    if at.type.lower() != "shapeof" or index is None or len(index) != 1:
        return None
    shape = net.layers[at.sources[0][0]].outputs[at.sources[0][1]].shape
    axis = index[0]
    if axis < 0:
        if not shape:
            return None
        axis += len(shape)
    return dim_of(net, at.sources[0], axis)


def _constant(layer: Layer) -> int | None:
    values = set() if layer.value is None else set(layer.value.reshape(-1).tolist())
    return int(values.pop()) if len(values) == 1 else None


def _numbers(net: Net, source: Source) -> list[int] | None:
    layer = net.layers[source[0]]
    if not is_constant(layer) or layer.value is None or layer.value.numel() > 64:
        return None
    return [int(v) for v in layer.value.reshape(-1).tolist()]
