"""Loops over known cells that read a table which others read, too.

OpenVINO (2026.4, CPU) makes sequence operators of them, and turns the table once, from steps first to batch
first, for all who read it, one that transposes it among them. Where it then lets one run steps first (as what
it gives is reshaped, say), the others get the table as it was before it was turned: steps for batch.
"""

from __future__ import annotations

from stepnet.openvino.element_types import by_name
from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor, Source

_CELLS = {"lstmcell", "grucell", "rnncell"}
_TRUTHS = (None, by_name("boolean", ""))  # of which none is the larger; nor has a cell a use for them


def tables_apart(edit: Editor) -> None:
    """Let each loop read a table of its own where others read one, too: the larger of the last such table and
    itself, so that no two are computed alike. Where only loops read it, the first keeps it."""
    layers = list(edit.net.layers.values())
    others = {source for layer in layers if layer.type != "TensorIterator" for source in layer.sources}
    last: dict[Source, Source] = {}
    for loop in filter(over_a_cell, layers):
        for k, source in _tables(edit, loop):
            if source in others or source in last:
                last[source] = edit.twice(last.get(source, source), near=loop)
                edit.rewire(loop, k, last[source])
            else:
                last[source] = source


def over_a_cell(layer: Layer) -> bool:
    """Whether a layer is a TensorIterator with a cell in its body."""
    inner = layer.bodies[""].layers.values() if layer.type == "TensorIterator" else ()
    return any(it.type.lower() in _CELLS for it in inner)


def _tables(edit: Editor, loop: Layer) -> list[tuple[int, Source]]:
    """The inputs of numbers that it cuts, and what they read."""
    at = {port.id: k for k, port in enumerate(loop.inputs)}
    places = [at[row.external] for row in loop.maps[""].inputs if row.axis is not None]
    return [(k, loop.sources[k]) for k in places if edit.port(loop.sources[k]).type not in _TRUTHS]
