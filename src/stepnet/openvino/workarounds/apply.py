"""Nets in forms that OpenVINO runs right."""

from __future__ import annotations

from stepnet.openvino.records import Net
from stepnet.openvino.writing.edit import Editor, all_nets, copied

from .cut_tables import kept_cut
from .dropped_slices import told_count
from .floor_division import rounded_down
from .joined_cell_states import cell_states_told
from .left_out import with_defaults
from .lrn_bias import with_whole_bias
from .no_steps import taken_out
from .old_cells import plain_cells
from .quantised_ranges import of_one_shape
from .ranges import whole_ranges
from .shapes import with_shapes
from .shared_input import tables_apart
from .shared_memory import keep_apart
from .shared_ports import one_port_each
from .uninitialised_states import first_states_kept
from .unread import drop_unread
from .unused_states import states_needed
from .whole_reductions import apart_from_products


def worked_around(net: Net) -> Net:
    """A net that computes the same, and that OpenVINO computes right; the original stays as it is."""
    net = copied(net)
    with_shapes(net)
    for inner in all_nets(net):
        edit = Editor(inner)
        plain_cells(edit)
        for layer in [layer for layer in inner.layers.values() if layer.type == "Loop"]:
            if layer.id in inner.layers:  # not gone with one that read it
                taken_out(edit, layer)
        edit.done()
    drop_unread(net)
    for inner in all_nets(net):
        edit = Editor(inner)
        for layer in list(inner.layers.values()):
            with_defaults(layer)
            apart_from_products(edit, layer)
            with_whole_bias(edit, layer)
            rounded_down(edit, layer)
            kept_cut(edit, layer)
            of_one_shape(edit, layer)
            if layer.bodies:
                one_port_each(edit, layer)
            if layer.bodies and layer.type != "If":
                whole_ranges(edit, layer)
        tables_apart(edit)
        first_states_kept(edit)
        for layer in list(inner.layers.values()):
            if layer.type == "TensorIterator":
                told_count(edit, layer)
                cell_states_told(layer)
            if layer.type == "Loop":
                states_needed(edit, layer)
            if layer.type in ("TensorIterator", "Loop"):
                keep_apart(layer)
        edit.done()
    return net
