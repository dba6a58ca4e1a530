"""Forms that OpenVINO runs wrongly, or refuses, in forms that mean the same and that it runs right."""

from __future__ import annotations

from stepnet.openvino.records import Net
from stepnet.openvino.writing.edit import Editor, all_nets, copied

from .dropped_slices import told_count
from .old_cells import plain_cells
from .port_maps import plain_cuts
from .shared_memory import keep_apart


def sound(net: Net) -> Net:
    """A net that computes the same, and that OpenVINO computes right; the given one stays as it is."""
    net = copied(net)
    for inner in all_nets(net):
        edit = Editor(inner)
        plain_cells(edit)
        plain_cuts(edit)
        for layer in list(inner.layers.values()):
            if layer.type == "TensorIterator":
                told_count(edit, layer)
            if layer.type in ("TensorIterator", "Loop"):
                keep_apart(layer)
        edit.done()
    return net
