"""The table of layers: every type that runs, one row each."""

from __future__ import annotations

from stepnet.file_model import NotRead

from . import states
from .layers import (
    activations,
    bags,
    cells,
    decoding,
    elementwise,
    fourier,
    indexing,
    matrix,
    moving,
    reduce,
    regions,
    resizing,
    sequences,
    shape,
)  # fmt: skip
from .layers.row import Row
from .records import Layer, Net

ROWS: dict[str, Row] = {
    row.type.lower(): row
    for module in (
        elementwise, activations, shape, indexing, moving, bags, fourier, decoding, resizing, regions, reduce,
        matrix, cells, sequences, states,
    )
    for row in module.ROWS
}  # fmt: skip
STRUCTURE = {"parameter", "result", "const", "constant", "tensoriterator", "loop", "if"}


def is_constant(layer: Layer) -> bool:
    """Whether a layer is a constant of the .bin file."""
    return layer.type.lower() in ("const", "constant")


def supported_types() -> list[str]:
    """Every type of layer that runs, as OpenVINO writes them.

    >>> "LSTMCell" in supported_types()
    True
    """
    return sorted(
        [row.type for row in ROWS.values()] + ["Parameter", "Result", "Const", "TensorIterator", "Loop", "If"]
    )


def check_supported(net: Net) -> None:
    """Refuse a model with layers that have no row; one error lists them all.

    Raises:
        IRError: with type, version, id and name of each.
    """
    unknown = list(_unknown(net))
    if not unknown:
        return
    types = sorted({f"{layer.type}@{layer.version}" for layer in unknown})
    shown = [layer.where for layer in unknown[:50]]
    if len(unknown) > 50:
        shown.append(f"and {len(unknown) - 50} more")
    raise NotRead(
        f"{net.scope}: {len(unknown)} unsupported layer(s), of type {', '.join(types)[:400]}",
        got="; ".join(shown),
        expected="types that stepnet.openvino.supported_types() lists",
    )


def _unknown(net: Net):
    for layer in net.layers.values():
        kind = layer.type.lower()
        if layer.version == "extension" or (kind not in ROWS and kind not in STRUCTURE):
            yield layer
        for body in layer.bodies.values():
            yield from _unknown(body)
