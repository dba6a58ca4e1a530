"""Edges: which output feeds which input, and an order in which layers can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepnet.file_model import Broken, shorten

from .attributes import Attributes
from .known_names import check_names
from .records import Layer

OF_EDGES = ("from-layer", "from-port", "to-layer", "to-port")


def connect(layers: dict[int, Layer], edges: Iterable[Any], scope: str) -> tuple[int, ...]:
    """Give every layer its sources, and return the ids in an order that they can run in.

    Raises:
        IRError: an edge names a layer or port that is not there, an input is fed twice or not at all, or
            the edges form a cycle.
    """
    fed: dict[tuple[int, int], tuple[int, int]] = {}
    places = {
        (layer.id, output): {port.id: i for i, port in enumerate(layer.outputs if output else layer.inputs)}
        for layer in layers.values()
        for output in (False, True)
    }
    for edge in edges:
        said = " ".join(f"{name}={value}" for name, value in edge.attrib.items())
        attributes = Attributes(edge.attrib, f"{scope}: in '{shorten(said)}', <edge>")
        check_names(edge.attrib, attributes.where, OF_EDGES)
        start, start_port = attributes.int("from-layer"), attributes.int("from-port")
        end, end_port = attributes.int("to-layer"), attributes.int("to-port")
        for key, layer in (("from-layer", start), ("to-layer", end)):
            if layer not in layers:
                raise Broken(
                    f"{scope}: edge {key}={layer} names no layer",
                    got=f"{key}={layer}",
                    expected="the id of a layer",
                )
        output = _index(layers[start], start_port, places[start, True], "output")
        target = (end, _index(layers[end], end_port, places[end, False], "input"))
        if target in fed:
            raise Broken(
                f"{layers[end].where}: input port {end_port} is fed by two edges",
                got=f"edges from layers {fed[target][0]} and {start}",
                expected="one edge",
            )
        fed[target] = (start, output)
    for layer in layers.values():
        for i, port in enumerate(layer.inputs):
            if (layer.id, i) not in fed:
                raise Broken(
                    f"{layer.where}: input port {port.id} is not connected",
                    got="no edge to it",
                    expected=f"an edge to-layer={layer.id} to-port={port.id}",
                )
        layer.sources = tuple(fed[layer.id, i] for i in range(len(layer.inputs)))
    return sort_layers(layers, scope)


def _index(layer: Layer, port: int, places: Mapping[int, int], kind: str) -> int:
    if port in places:
        return places[port]
    raise Broken(
        f"{layer.where}: an edge names port {port}, but the layer has no such {kind} port",
        got=f"port {port}",
        expected=f"one of {list(places)[:8]}" if places else f"a layer with {kind} ports",
    )


def sort_layers(layers: dict[int, Layer], scope: str) -> tuple[int, ...]:
    """Kahn's algorithm; layers that wait for nothing run in the order of the file.

    Not networkx's `topological_sort`, whose order is the same: its import takes 0.4 s, and reading a file
    compiles nothing that would have paid for it.
    """
    waiting = {i: len({source for source, _ in layer.sources}) for i, layer in layers.items()}
    users: dict[int, list[int]] = {i: [] for i in layers}
    for i, layer in layers.items():
        for source in {source for source, _ in layer.sources}:
            users[source].append(i)
    ready = [i for i, count in waiting.items() if count == 0]
    order: list[int] = []
    for i in ready:  # grows while it is read
        order.append(i)
        for user in users[i]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if len(order) < len(layers):
        cycle = _cycle(layers, set(layers) - set(order))
        raise Broken(
            f"{scope}: edges form a cycle through layers {' -> '.join(map(str, cycle))}",
            got=" -> ".join(f"'{shorten(layers[i].name)}'" for i in cycle),
            expected="no layer that feeds itself",
        )
    return tuple(order)


def _cycle(layers: dict[int, Layer], stuck: set[int]) -> list[int]:
    """One cycle among the layers that could not be ordered, in the direction of its edges; of a long one its
    begin and its end."""
    seen: dict[int, None] = {}
    at = min(stuck)
    while at not in seen:
        seen[at] = None
        at = next(source for source, _ in layers[at].sources if source in stuck)
    path = list(seen)
    cycle = [*path[path.index(at) :], at][::-1]
    return cycle if len(cycle) < 10 else [*cycle[:8], cycle[-1]]
