"""Loops over known cells that read a table which others read, too.

OpenVINO (2026.4, CPU) makes sequence operators of them, and turns the table once, from steps first to batch
first, for all who read it, one that transposes it among them. Where it then lets one run steps first (as what
it gives is reshaped, say), the others get the table as it was before it was turned: steps for batch. It also
takes tables for one that are turned there and back by layers of their own.
"""

from __future__ import annotations

from stepnet.openvino.element_types import by_name
from stepnet.openvino.first_states import over_a_cell
from stepnet.openvino.order import sort_layers
from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor, Source

_MOVE = {"Transpose", "Reshape", "Squeeze", "Unsqueeze"}
_FEW = 16  # numbers of a constant, that are axes and such
_TRUTHS = (None, by_name("boolean", ""))  # of which none is the larger; nor has a cell a use for them


def tables_apart(edit: Editor) -> None:
    """Let each loop read a table of its own where others read one, too: the larger of the last such table and
    itself, so that no two are computed alike. Where only loops read it, the first keeps it."""
    layers = list(edit.net.layers.values())
    loops = [layer for layer in layers if over_a_cell(layer)]
    if not loops:
        return
    others = {source for layer in layers if layer.type != "TensorIterator" for source in layer.sources}
    tables = _one_for_all(edit)
    count: dict[int, int] = {}
    chains: dict[Source, list[Source]] = {}
    for loop in loops:
        for k, source in _tables(edit, loop):
            table = tables[source]
            depth = max(count.get(table, 0), int(source in others))
            count[table] = depth + 1
            chain = chains.setdefault(source, [source])
            while len(chain) <= depth:
                chain.append(edit.twice(chain[-1], near=loop))
            if depth:
                edit.rewire(loop, k, chain[depth])


def _one_for_all(edit: Editor) -> dict[Source, int]:
    """A number of each output, the same for those that OpenVINO may take for one: computed alike, or from
    such by layers that only move numbers, of which it drops those that undo each other."""
    layers = edit.net.layers
    found: dict[Source, int] = {}
    numbers: dict[object, int] = {}
    for layer in (layers[i] for i in sort_layers(layers, edit.net.scope)):
        given = tuple(found[source] for source in layer.sources)
        for k in range(len(layer.outputs)):
            source = layer.id, k
            key: object = source
            if layer.type in _MOVE:
                found[source] = given[0]
                continue
            if layer.value is not None and layer.value.numel() <= _FEW:
                key = str(layer.value.dtype), *layer.value.shape, *layer.value.flatten().tolist()
            elif given and not layer.bodies:
                key = layer.type, k, given, *sorted(layer.attributes.items())
            found[source] = numbers.setdefault(key, len(numbers))
    return found


def _tables(edit: Editor, loop: Layer) -> list[tuple[int, Source]]:
    """The inputs of numbers that it cuts, and what they read."""
    at = {port.id: k for k, port in enumerate(loop.inputs)}
    places = [at[row.external] for row in loop.maps[""].inputs if row.axis is not None]
    return [(k, loop.sources[k]) for k in places if edit.port(loop.sources[k]).type not in _TRUTHS]
