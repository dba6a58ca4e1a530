"""Last states of sequences and of loops over a cell, and what chooses the first ones where there is no step.

OpenVINO leaves the last states as its memory was there, so that files which are written choose. Here they
are the first ones: a choice that such a file holds is what it chooses from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from .records import Layer

Source = tuple[int, int]
CELLS = {"lstmcell", "grucell", "rnncell"}
_SEQUENCES = {"lstmsequence": 2, "grusequence": 1, "rnnsequence": 1}  # and their states


def over_a_cell(layer: Layer) -> bool:
    """Whether a layer is a TensorIterator with a cell in its body."""
    inner = layer.bodies[""].layers.values() if layer.type == "TensorIterator" else ()
    return any(it.type.lower() in CELLS for it in inner)


def steps_of(layer: Layer) -> tuple[Source, int] | None:
    """What is as long as a sequence, and the axis."""
    if layer.type.lower() in _SEQUENCES:
        return layer.sources[0], 1
    if not over_a_cell(layer):
        return None
    at = {port.id: source for port, source in zip(layer.inputs, layer.sources, strict=True)}
    cut = ((at[row.external], row.axis) for row in layer.maps[""].inputs if row.axis is not None)
    return next(cut, None)


def states_of(layer: Layer) -> Iterator[tuple[int, Source]]:
    """The outputs that are last states, and the first ones."""
    for k, first, _, _ in _carried(layer):
        yield k, first


def _carried(layer: Layer) -> Iterator[tuple[int, Source, int, int]]:
    """The same, with the Parameter and the Result of a body."""
    if not layer.bodies:
        yield from ((k, layer.sources[k], -1, -1) for k in range(1, 1 + _SEQUENCES[layer.type.lower()]))
        return
    rows, edges = layer.maps[""], dict(layer.back_edges)
    at = {port.id: source for port, source in zip(layer.inputs, layer.sources, strict=True)}
    first = {row.internal: at[row.external] for row in rows.inputs if row.axis is None}
    place = {port.id: k for k, port in enumerate(layer.outputs)}
    for row in rows.outputs:
        fed = edges.get(row.internal, -1)
        if row.axis is None and fed in first:
            yield place[row.external], first[fed], fed, row.internal


def choices(layers: Mapping[int, Layer], constants: Mapping[int, Tensor]) -> dict[Source, Source]:
    """The last state that each choice chooses from, where the loop itself gives what is chosen.

    With a step a last state has the shape of the first one, which a cell sees to; without, it is that. No
    loop has a step where what it cuts has none.
    """
    found: dict[Source, Source] = {}
    for layer in layers.values():
        if layer.type.lower() != "select" or len(layer.sources) != 3:
            continue
        some, last, first = layer.sources
        loop = layers[last[0]]
        steps = steps_of(loop)
        if steps is None or not _tells_steps(layers, constants, some, *steps):
            continue
        if any(k == last[1] and it == first and _of_a_cell(loop, *ends) for k, it, *ends in _carried(loop)):
            found[layer.id, 0] = last
    return found


def _tells_steps(
    layers: Mapping[int, Layer], constants: Mapping[int, Tensor], some: Source, source: Source, axis: int
) -> bool:
    """Whether a truth is that a value has a size above 0 along an axis."""
    more = layers[some[0]]
    size = layers[more.sources[0][0]] if _is(more, "greater", 2) else more
    shape = layers[size.sources[0][0]] if _is(size, "gather", 3) else size
    if not _is(shape, "shapeof", 1) or shape.sources[0] != source:
        return False
    asked = [more.sources[1], *size.sources[1:]]
    values = [constants.get(number) for number, _ in asked]
    return [None if v is None or v.numel() != 1 else v.item() for v in values] == [0, axis, 0]


def _is(layer: Layer, kind: str, inputs: int) -> bool:
    return layer.type.lower() == kind and len(layer.sources) == inputs


def _of_a_cell(loop: Layer, parameter: int, result: int) -> bool:
    """Whether a cell makes a state of itself: it is of one shape in all steps."""
    if not loop.bodies:
        return True
    body = loop.bodies[""]
    number, k = body.layers[result].sources[0]
    cell = body.layers[number]
    return cell.type.lower() in CELLS and cell.sources[1 + k : 2 + k] == ((parameter, 0),)
