"""Last states of sequences of no steps.

Where the time is 0, OpenVINO (2026.4, CPU) leaves the last states of an LSTMSequence, GRUSequence or
RNNSequence, and of the loops over a cell that it makes these of, as their memory was: any numbers.
"""

from __future__ import annotations

from stepnet.openvino.element_types import by_name
from stepnet.openvino.first_states import states_of, steps_of
from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor, Source

_INT64, _TRUTH = by_name("i64", ""), by_name("boolean", "")


def first_states_kept(edit: Editor) -> None:
    """Who reads a last state reads the first one where there is no step, in place. Cuts are whole by now."""
    for layer in list(edit.net.layers.values()):
        steps = steps_of(layer)
        if steps is None:
            continue
        some: Source | None = None
        for k, first in states_of(layer):
            last = layer.id, k
            size = _size(edit, *steps)
            if size > 0 or _is_kept(edit, last, first):
                continue
            if size == 0:
                new = first
            else:
                some = some or _some(edit, *steps, layer)
                port, told = edit.port(last), {"auto_broadcast": "numpy"}
                chosen = edit.add("Select", [some, last, first], [(port.type, port.shape)], told, near=layer)
                new = chosen.id, 0
            _read_instead(edit, last, new)


def _size(edit: Editor, source: Source, axis: int) -> int:
    shape = edit.port(source).shape
    return shape[axis] if shape else -1


def _is_kept(edit: Editor, last: Source, first: Source) -> bool:
    """Whether nobody reads a state, or the first one is chosen already."""
    readers = [layer for layer in edit.net.layers.values() if last in layer.sources]
    return all(it.type == "Select" and it.sources[1:] == (last, first) for it in readers)


def _some(edit: Editor, source: Source, axis: int, near: Layer) -> Source:
    """Whether there is a step."""
    rank = len(edit.port(source).shape or ()) or -1
    shape = edit.add(
        "ShapeOf", [source], [(_INT64, (rank,))], {"output_type": "i64"}, version="opset3", near=near
    )
    numbers = [edit.numbers(value, near=near) for value in (axis, 0)]
    size = edit.add(
        "Gather", [(shape.id, 0), *numbers], [(_INT64, ())], {"batch_dims": "0"}, version="opset8", near=near
    )
    told = {"auto_broadcast": "numpy"}
    made = edit.add("Greater", [(size.id, 0), numbers[1]], [(_TRUTH, ())], told, near=near)
    return made.id, 0


def _read_instead(edit: Editor, last: Source, new: Source) -> None:
    layers = [layer for layer in edit.net.layers.values() if layer.id != new[0]]
    for layer in layers:
        for k, source in enumerate(layer.sources):
            if source == last:
                edit.rewire(layer, k, new)
    names = edit.port(last).names
    if names:
        edit.net.layers[last[0]].change_output(last[1], names=())
        called = tuple(dict.fromkeys((*edit.port(new).names, *names)))
        edit.net.layers[new[0]].change_output(new[1], names=called)
