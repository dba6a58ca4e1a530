"""How often each layer of a loop's body has to run, by the edges alone."""

from __future__ import annotations

from stepnet.compiler.fission import components
from stepnet.openvino.records import Layer

from .inspection import When


def when(loop: Layer) -> dict[int, When]:
    """How often each layer of a TensorIterator's body has to run.

    At each "step" what lies on a cycle through a back edge: it depends on its own result of the step before.
    On all "rows" at once, before or after, what else depends on a slice or on a state. The rest once.
    """
    net, port_map = loop.bodies[""], loop.maps[""]
    inputs = {str(i): [str(source) for source, _ in layer.sources] for i, layer in net.layers.items()}
    edges = [(a, b) for a, b in loop.back_edges if net.layers[a].sources[0][0] != b]  # others change nothing
    for result, parameter in edges:
        inputs[str(parameter)].append(str(result))
    in_cycle = {int(i) for part in components(inputs) if len(part) > 1 for i in part}
    varies = in_cycle | {row.internal for row in port_map.inputs if row.axis is not None or row.purpose}
    varies |= {parameter for _, parameter in edges}
    for i in net.order:
        if any(source in varies for source, _ in net.layers[i].sources):
            varies.add(i)
    return {i: "step" if i in in_cycle else "rows" if i in varies else "once" for i in net.layers}
