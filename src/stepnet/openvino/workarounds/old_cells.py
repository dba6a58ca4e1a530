"""Cells of old files: gates in another order, both weights in one matrix, or no bias.

OpenVINO (2026.4, CPU) ignores `weights_format`, and does not know the other forms.
"""

from __future__ import annotations

import torch

from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer
from stepnet.openvino.table import is_constant
from stepnet.openvino.writing.edit import Editor, Source

_UNBIASED = {"lstmcell": 5, "grucell": 4, "rnncell": 4}  # inputs of a cell without B


def plain_cells(edit: Editor) -> None:
    """Give every cell of a net a bias, every LSTMCell weights apart and gates in the order f, i, c, o."""
    for layer in list(edit.net.layers.values()):
        kind = layer.type.lower()
        if kind not in _UNBIASED:
            continue
        attributes = layer.said
        hidden = attributes.size("hidden_size")
        if len(layer.sources) == _UNBIASED[kind]:
            rank = len(edit.port(layer.sources[-1]).shape or ())
            if rank == 1:
                _split(edit, layer, hidden)
            elif rank == 2:
                _without_bias(edit, layer, hidden, attributes)
        if kind != "lstmcell":
            continue
        order = attributes.text("weights_format", "fico").strip().lower()
        if order != "fico":
            rows = [order.index(gate) * hidden + k for gate in "fico" for k in range(hidden)]
            for i in range(3, min(6, len(layer.sources))):
                edit.rewire(layer, i, _rows(edit, layer.sources[i], rows, layer))
        if "weights_format" in layer.attributes:
            layer.attributes = {**layer.attributes, "weights_format": "fico"}


def _split(edit: Editor, layer: Layer, hidden: int) -> None:
    """[W | R] in two."""
    joined = layer.sources[3]
    value = edit.net.layers[joined[0]].value
    if is_constant(edit.net.layers[joined[0]]) and value is not None:
        parts = [edit.constant(v, near=layer) for v in (value[:, :-hidden], value[:, -hidden:])]
    else:
        numbers = [edit.numbers(v, near=layer) for v in (1, [-1, hidden])]
        kind = edit.port(joined).type
        made = edit.add(
            "VariadicSplit", [joined, *numbers], [(kind, (4 * hidden, -1)), (kind, (4 * hidden, hidden))],
            near=layer,
        )  # fmt: skip
        parts = [(made.id, 0), (made.id, 1)]
    edit.feed(layer, [*layer.sources[:3], *parts, layer.sources[4]])


def _without_bias(edit: Editor, layer: Layer, hidden: int, attributes: Attributes) -> None:
    gates = {"lstmcell": 4, "grucell": 3, "rnncell": 1}[layer.type.lower()]
    gates += attributes.bool("linear_before_reset", False)
    kind = edit.port(layer.sources[0]).type
    zeros = torch.zeros(gates * hidden, dtype=torch.float32 if kind is None else kind.dtype)
    edit.feed(layer, [*layer.sources, edit.constant(zeros, near=layer)])


def _rows(edit: Editor, source: Source, rows: list[int], near: Layer) -> Source:
    """Rows of a matrix or vector in another order."""
    layer, port = edit.net.layers[source[0]], edit.port(source)
    if is_constant(layer) and layer.value is not None:
        return edit.constant(layer.value[torch.tensor(rows)], near=near)
    numbers = [edit.numbers(rows, near=near), edit.numbers(0, near=near)]
    made = edit.add(
        "Gather", [source, *numbers], [(port.type, port.shape)], {"batch_dims": "0"},
        version="opset8", near=near,
    )  # fmt: skip
    return made.id, 0
