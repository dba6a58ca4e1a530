"""Attributes that a file may leave out.

OpenVINO (2026.4) reads 0, or nothing, where its specification has a default: a SoftMax along axis 0, not 1.
A sequence without activations whose lengths are not all whole it does not compile.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer

_DEFAULTS = {
    "softmax": ("axis", "1"), "shapeof": ("output_type", "i64"), "depthtospace": ("block_size", "1"),
    "lstmsequence": ("activations", "sigmoid,tanh,tanh"), "grusequence": ("activations", "sigmoid,tanh"),
    "rnnsequence": ("activations", "tanh"),
}  # fmt: skip


def with_defaults(layer: Layer) -> None:
    """Say the default of an attribute that is left out, in place."""
    name, value = _DEFAULTS.get(layer.type.lower(), (None, ""))
    if name is not None and not (layer.type.lower() == "shapeof" and layer.version == "opset1"):
        layer.attributes = {name: value} | layer.attributes
