"""Tensor names for the inputs and outputs of a net that was read: version 11 finds them by these."""

from __future__ import annotations

from collections.abc import Sequence

from stepnet.openvino.records import Net


def name_ends(net: Net, outputs: Sequence[str]) -> None:
    """Name the tensors of Parameters and Results that have no names, as files of version 10 do not.

    A Parameter's is its layer's name. A Result's is `outputs`, what the model calls it, and what OpenVINO
    calls it in version 10: the layer that feeds it, with a number where that has several outputs.
    """
    for i in net.parameters:
        layer = net.layers[i]
        if not layer.outputs[0].names:
            layer.change_output(0, names=(layer.name,))
    fed: dict[tuple[int, int], list[str]] = {}
    for i, called in zip(net.results, outputs, strict=True):
        layer = net.layers[i]
        source, index = layer.sources[0]
        feeder = net.layers[source]
        port = feeder.outputs[index]
        if not port.names:
            name = feeder.name if len(feeder.outputs) == 1 else f"{feeder.name}.{index}"
            feeder.change_output(index, names=(name,))
        if not layer.output_names:
            fed.setdefault((source, index), []).append(called)
    for i, name in zip(net.results, outputs, strict=True):
        layer = net.layers[i]
        if layer.output_names:
            continue
        source, index = layer.sources[0]
        others = fed[source, index]
        layer.output_names = tuple(dict.fromkeys((name, *others, *net.layers[source].outputs[index].names)))
