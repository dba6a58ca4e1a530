"""Which layers share a box in the picture: in a small net each has its own, in a large one neighbours share.

Boxes of an acyclic graph stay acyclic if each holds consecutive layers of one topological order. The order
follows branches to their ends and changes between layers that run once and at each step as seldom as it can;
boxes end where few values are alive.
"""

from __future__ import annotations

import math
from graphlib import TopologicalSorter
from itertools import accumulate, pairwise

from .inspection import Layer, Net

MOST = 32  # layers of a net that have boxes of their own
FEW = 12  # boxes, about, that the layers of a larger net share

Group = tuple[Layer, ...]


def groups(net: Net) -> list[Group]:
    """The layers of each box of a net, in topological order; a loop, an input or an output is alone."""
    order = _order(net)
    inner = [layer for layer in order if layer.computes]
    if len(inner) <= MOST:
        return [(layer,) for layer in order]
    alive = _alive(inner)
    size = math.ceil(len(inner) / FEW)
    inputs, outputs = ([(x,) for x in order if x.type == kind] for kind in ("Parameter", "Result"))
    borders = [0, *_borders(inner)]
    cuts = [pairwise(_cuts(alive, start, stop, size)) for start, stop in pairwise(borders)]
    return [*inputs, *(tuple(inner[a:b]) for pairs in cuts for a, b in pairs), *outputs]


def _order(net: Net) -> list[Layer]:
    """A topological order; where there is a choice, a reader of the layer before."""
    layers = {layer.id: layer for layer in net.layers}
    sorter = TopologicalSorter({i: [source for source, _ in layer.reads] for i, layer in layers.items()})
    sorter.prepare()
    ready: list[int] = []
    order: list[Layer] = []
    last = None
    while sorter.is_active():
        ready += reversed(sorter.get_ready())
        alike = [k for k, i in enumerate(ready) if layers[i].when == last and layers[i].computes]
        layer = layers[ready.pop(alike[-1] if alike and last is not None else -1)]
        order.append(layer)
        last = layer.when if layer.computes else last
        sorter.done(layer.id)
    return order


def _borders(layers: list[Layer]) -> list[int]:
    """Where a box must end: beside a loop, and where it changes how often layers run."""
    borders = []
    for i, (a, b) in enumerate(pairwise(layers)):
        if a.loop is not None or b.loop is not None or a.when != b.when:
            borders.append(i + 1)
    return [*borders, len(layers)]


def _alive(layers: list[Layer]) -> list[int]:
    """How many values are alive after each layer."""
    place = {layer.id: i for i, layer in enumerate(layers)}
    last_use = {place[s]: i for i, layer in enumerate(layers) for s, _ in layer.reads if s in place}
    change = [0] * (len(layers) + 1)
    for start, stop in last_use.items():
        change[start] += 1
        change[stop] -= 1
    return list(accumulate(change))


def _cuts(alive: list[int], start: int, stop: int, size: int) -> list[int]:
    """Places from start to stop, about `size` apart, where few values are alive."""
    pieces = max(1, round((stop - start) / size))
    cuts = [start]
    for piece in range(1, pieces):
        ideal = start + (stop - start) * piece / pieces
        first, end = (
            max(cuts[-1] + 1, math.ceil(ideal - size / 2)),
            min(stop, math.floor(ideal + size / 2) + 1),
        )
        if first < end:
            cuts.append(min(range(first, end), key=lambda at: (alive[at - 1], abs(at - ideal))))
    return [*cuts, stop]
