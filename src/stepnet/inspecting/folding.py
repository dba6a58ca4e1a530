"""Which layers share a box in the picture: in a small net each has its own, in a large one stretches share.

Boxes of an acyclic graph stay acyclic if each holds a stretch of one order in which the layers can run. The
order follows branches to their ends and changes between kinds of turns as seldom as it can; stretches end
where few values cross.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .records import Layer, Net

MOST = 32  # layers of a net that have boxes of their own
FEW = 12  # boxes, about, that the layers of a larger net share


@dataclass(frozen=True)
class Box:
    """One layer, or a stretch of them, with the loops and the ends of a net always alone."""

    layers: tuple[Layer, ...]

    @property
    def first(self) -> Layer:
        """The layer, if it is alone."""
        return self.layers[0]


def boxes(net: Net) -> list[Box]:
    """The boxes of a net, in an order in which they can run."""
    order = _order(net)
    inner = [layer for layer in order if layer.computes]
    if len(inner) <= MOST:
        return [Box((layer,)) for layer in order]
    crossing = _crossing(inner)
    size = math.ceil(len(inner) / FEW)
    found = [Box((layer,)) for layer in order if layer.type == "Parameter"]
    start = 0
    for stop in _borders(inner):
        for a, b in pairwise(_cuts(crossing, start, stop, size)):
            found.append(Box(tuple(inner[a:b])))
        start = stop
    return found + [Box((layer,)) for layer in order if layer.type == "Result"]


def _order(net: Net) -> list[Layer]:
    """Each layer after those it reads; where there is a choice, what the layer before made ready."""
    layers = {layer.id: layer for layer in net.layers}
    waits = {i: {source for source, _ in layer.reads} for i, layer in layers.items()}
    users: dict[int, list[int]] = {i: [] for i in layers}
    for i, sources in waits.items():
        for source in sources:
            users[source].append(i)
    left = {i: len(sources) for i, sources in waits.items()}
    ready = [i for i in reversed(list(layers)) if not left[i]]
    order: list[Layer] = []
    last = None
    while ready:
        alike = [k for k, i in enumerate(ready) if layers[i].when == last and layers[i].computes]
        at = ready.pop(alike[-1] if alike and last is not None else -1)
        order.append(layers[at])
        last = layers[at].when if layers[at].computes else last
        for user in reversed(users[at]):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return order


def _borders(layers: list[Layer]) -> list[int]:
    """Where a stretch must end: beside a loop, and where it changes how often layers run."""
    found = []
    for i, (a, b) in enumerate(pairwise(layers)):
        if a.loop is not None or b.loop is not None or a.when != b.when:
            found.append(i + 1)
    return [*found, len(layers)]


def _crossing(layers: list[Layer]) -> list[int]:
    """How many values are alive after each layer."""
    place = {layer.id: i for i, layer in enumerate(layers)}
    last: dict[int, int] = {}
    for i, layer in enumerate(layers):
        for source, _ in layer.reads:
            if source in place:
                last[place[source]] = i
    change = [0] * (len(layers) + 1)
    for start, stop in last.items():
        change[start] += 1
        change[stop] -= 1
    return list(accumulate(change))


def _cuts(crossing: list[int], start: int, stop: int, size: int) -> list[int]:
    """Places between start and stop, about `size` apart, where few values cross."""
    pieces = max(1, round((stop - start) / size))
    found = [start]
    for piece in range(1, pieces):
        wish = start + (stop - start) * piece / pieces
        near = range(
            max(found[-1] + 1, math.ceil(wish - size / 2)), min(stop, math.floor(wish + size / 2) + 1)
        )
        if near:
            found.append(min(near, key=lambda at: (crossing[at - 1], abs(at - wish))))
    return [*found, stop]
