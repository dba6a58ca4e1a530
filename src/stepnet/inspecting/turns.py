"""Which layers of a loop's body wait for the step before, by the edges alone."""

from __future__ import annotations

from stepnet.compiler.fission import components
from stepnet.openvino.records import Layer

from .records import When


def when(loop: Layer) -> dict[int, When]:
    """How often each layer of a TensorIterator's body has to run.

    At each "step" what lies on a cycle through a back edge: it waits for its own result of the step before.
    On all "rows" at once, before or after, what else depends on a slice or on a state. The rest once.
    """
    net, rows = loop.bodies[""], loop.maps[""]
    before = {str(i): [str(source) for source, _ in layer.sources] for i, layer in net.layers.items()}
    edges = [(a, b) for a, b in loop.back_edges if net.layers[a].sources[0][0] != b]  # others change nothing
    for result, parameter in edges:
        before[str(parameter)].append(str(result))
    turning = {int(i) for part in components(before) if len(part) > 1 for i in part}
    moving = turning | {row.internal for row in rows.inputs if row.axis is not None or row.purpose}
    moving |= {parameter for _, parameter in edges}
    for i in net.order:
        if any(source in moving for source, _ in net.layers[i].sources):
            moving.add(i)
    return {i: "step" if i in turning else "rows" if i in moving else "once" for i in net.layers}
