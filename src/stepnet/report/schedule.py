"""How often each layer of a loop's body has to run, by the edges alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stepnet.compiler.passes.fission import components
from stepnet.openvino.records import Layer

from .inspection import When


def frequencies(
    inputs: Mapping[int, Collection[int]], edges: Iterable[tuple[int, int]], varying: Iterable[int]
) -> dict[int, When]:
    """How often each node of a body has to run.

    At each "step" what lies on a cycle through a back edge: it depends on its own result of the step before.
    On all "rows" at once, before or after, what else depends on a slice or on a state. The rest once.

    Args:
        inputs: what each node reads, in an order in which they can run.
        edges: (result, parameter): those that change something.
        varying: the slices and states.
    """
    linked = {str(i): [*map(str, sources)] for i, sources in inputs.items()}
    for result, parameter in edges:
        linked[str(parameter)].append(str(result))
    in_cycle = {int(i) for part in components(linked) if len(part) > 1 for i in part}
    varies = in_cycle | {*varying}
    for i, sources in inputs.items():
        if not varies.isdisjoint(sources):
            varies.add(i)
    return {i: "step" if i in in_cycle else "rows" if i in varies else "once" for i in inputs}


def when(loop: Layer) -> dict[int, When]:
    """How often each layer of a TensorIterator's body has to run."""
    net, port_map = loop.bodies[""], loop.maps[""]
    inputs = {i: [source for source, _ in net.layers[i].sources] for i in net.order}
    edges = [(a, b) for a, b in loop.back_edges if net.layers[a].sources[0][0] != b]  # others change nothing
    slices = {row.internal for row in port_map.inputs if row.axis is not None or row.purpose}
    return frequencies(inputs, edges, slices | {parameter for _, parameter in edges})
