"""Layered layout of an acyclic graph, top to bottom, with few crossings (Sugiyama, Tagawa and Toda 1981).

layers      each node below all its inputs
bends       an edge over several layers gets a dummy node in each
order       within a layer by the mean position of the neighbours, sweep after sweep
places      as near to the mean of the neighbours as the order and the widths allow
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

_SWEEPS = 16
_GAP = 16.0  # between neighbours in a layer
_BEND = 8.0  # width of a point where an edge crosses a layer


@dataclass(frozen=True)
class Item:
    """A node to place. `end`: -1 in the first layer, 1 in the last. `pull`: -1 to the left, 1 right."""

    width: float
    height: float
    end: int = 0
    pull: float = 0.0


@dataclass(frozen=True)
class Placed:
    """Centres of the items, the points that each edge goes through between its ends, and the whole size."""

    centres: list[tuple[float, float]]
    bends: dict[tuple[int, int], list[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Graph:
    """Items and dummy nodes by layer, and their neighbours in the layers above and below."""

    widths: list[float]
    pulls: list[float]
    layers: list[list[int]]
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)


def arrange(items: Sequence[Item], edges: Sequence[tuple[int, int]], *, drop: float = 34.0) -> Placed:
    """Lay out a graph.

    Args:
        items: the nodes.
        edges: (from, to) by number; no cycles.
        drop: between layers.

    >>> arrange([Item(10, 4), Item(10, 4)], [(0, 1)], drop=6.0).centres
    [(5.0, 2.0), (5.0, 12.0)]
    """
    if not items:
        return Placed([], {}, 0.0, 0.0)
    depth = _depths(items, edges)
    graph = _Graph([i.width for i in items], [i.pull for i in items], [[] for _ in range(max(depth) + 1)])
    for node, layer in enumerate(depth):
        graph.layers[layer].append(node)
    links: list[tuple[int, int]] = []
    chains: dict[tuple[int, int], list[int]] = {}
    for a, b in edges:
        chain = []
        for layer in range(depth[a] + 1, depth[b]):
            chain.append(len(graph.widths))
            graph.widths.append(_BEND)
            graph.pulls.append(0.0)
            graph.layers[layer].append(chain[-1])
        chains[a, b] = chain
        path = [a, *chain, b]
        links += pairwise(path)
    graph.above = [[] for _ in graph.widths]
    graph.below = [[] for _ in graph.widths]
    for a, b in links:
        graph.below[a].append(b)
        graph.above[b].append(a)
    _order(graph)
    x = _places(graph)
    left = min(x[n] - graph.widths[n] / 2 for layer in graph.layers for n in layer)
    right = max(x[n] + graph.widths[n] / 2 for layer in graph.layers for n in layer)
    centres, spans, at = [0.0] * len(graph.widths), [(0.0, 0.0)] * len(graph.widths), 0.0
    for layer in graph.layers:
        tall = max((items[n].height for n in layer if n < len(items)), default=0.0)
        for n in layer:
            centres[n], spans[n] = at + tall / 2, (at, at + tall)
        at += tall + drop
    return Placed(
        [(x[n] - left, centres[n]) for n in range(len(items))],
        {edge: [(x[n] - left, y) for n in chain for y in spans[n]] for edge, chain in chains.items()},
        right - left,
        at - drop,
    )


def _depths(items: Sequence[Item], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Layers: below all inputs; a node without inputs as low as its readers allow."""
    reads: dict[int, list[int]] = {n: [] for n in range(len(items))}
    readers: list[list[int]] = [[] for _ in items]
    for a, b in edges:
        reads[b].append(a)
        readers[a].append(b)
    order = list(TopologicalSorter(reads).static_order())
    depth = [0] * len(items)
    for node in order:
        depth[node] = max((depth[n] + 1 for n in reads[node]), default=0)
    first = int(any(item.end < 0 for item in items))
    for node, item in enumerate(items):
        if item.end == 0 and not reads[node]:
            depth[node] = max(first, min((depth[r] for r in readers[node]), default=1) - 1)
    for node in order:  # those moved down may push others
        depth[node] = max(depth[node], *(depth[n] + 1 for n in reads[node]), 0)
    inner = max((d for d, item in zip(depth, items, strict=True) if item.end <= 0), default=-1)
    last = max(inner + 1, max(depth))
    depth = [{-1: 0, 0: d, 1: last}[item.end] for d, item in zip(depth, items, strict=True)]
    used = {d: i for i, d in enumerate(sorted(set(depth)))}
    return [used[d] for d in depth]


def _order(graph: _Graph) -> None:
    """Sort each layer by the mean place of its neighbours, down and up; keep what crosses least."""
    place = [0.0] * len(graph.widths)

    def settle(layer: list[int]) -> None:
        for i, n in enumerate(layer):
            place[n] = (i + 0.5) / len(layer)

    for layer in graph.layers:
        settle(layer)
    best, fewest = [list(layer) for layer in graph.layers], _crossings(graph)
    for sweep in range(_SWEEPS):
        near = graph.below if sweep % 2 else graph.above
        for layer in graph.layers[::-1] if sweep % 2 else graph.layers:
            wishes = {
                n: (sum(place[m] for m in near[n]) / len(near[n]) if near[n] else place[n]) + graph.pulls[n]
                for n in layer
            }
            layer.sort(key=wishes.__getitem__)
            settle(layer)
        crossings = _crossings(graph)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in graph.layers], crossings
    graph.layers = best


def _crossings(graph: _Graph) -> float:
    """Crossing edges between neighbouring layers; and pulled nodes that stand on the wrong side."""
    total = 0.0
    place = {n: i for layer in graph.layers for i, n in enumerate(layer)}
    for layer in graph.layers:
        seen: list[int] = []  # where the edges of nodes further left end, in order
        for n in layer:
            ends = [place[m] for m in graph.below[n]]
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
        total -= sum(3.0 * graph.pulls[n] * place[n] for n in layer)
    return total


def _places(graph: _Graph) -> list[float]:
    """Centres along the layers."""
    x = [0.0] * len(graph.widths)
    for layer in graph.layers:
        at = 0.0
        for n in layer:
            x[n] = at + graph.widths[n] / 2
            at += graph.widths[n] + _GAP
        for n in layer:
            x[n] -= (at - _GAP) / 2
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in graph.layers if down else graph.layers[::-1]:
            wishes = []
            for n in layer:
                near = (graph.above[n] if down else graph.below[n]) or [*graph.above[n], *graph.below[n]]
                wishes.append(sum(x[m] for m in near) / len(near) if near else x[n])
            widths = [graph.widths[n] for n in layer]
            for n, centre in zip(layer, spread(wishes, widths, _GAP), strict=True):
                x[n] = centre
    return x


def spread(wishes: Sequence[float], sizes: Sequence[float], gap: float) -> list[float]:
    """Centres in the given order, `gap` apart at least, as near to the wishes as can be (least squares).

    Neighbours that would overlap move as one block: the pool-adjacent-violators algorithm.

    >>> spread([0.0, 0.0, 9.0], [2.0, 2.0, 2.0], 1.0)
    [-1.5, 1.5, 9.0]
    """
    offsets, at = [], 0.0
    for i, size in enumerate(sizes):
        at += (sizes[i - 1] + size) / 2 + gap if i else 0.0
        offsets.append(at)
    blocks: list[tuple[float, int]] = []  # (mean wish less offset, how many)
    for wish, offset in zip(wishes, offsets, strict=True):
        mean, count = wish - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    flat = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
