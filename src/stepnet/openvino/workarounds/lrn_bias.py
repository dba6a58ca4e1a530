"""An LRN whose bias is no whole number.

OpenVINO (2026.4, CPU) cuts `bias` off to a whole number: 0.5 is 0 there.
"""

from __future__ import annotations

import torch

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor


def with_whole_bias(edit: Editor, layer: Layer) -> None:
    """Take a bias out of the power, in place: (b + a s)^beta is b^beta (1 + a/b s)^beta for b > 0."""
    if layer.type.lower() != "lrn":
        return
    alpha, beta, bias = (layer.said.float(name) for name in ("alpha", "beta", "bias"))
    port = layer.outputs[0]
    if bias <= 0 or bias == int(bias) or port.type is None:
        return
    told = {"auto_broadcast": "numpy"}
    factor = edit.constant(torch.tensor(bias**-beta, dtype=port.type.dtype), near=layer)
    product = edit.add("Multiply", [(layer.id, 0), factor], [(port.type, port.shape)], told, near=layer)
    edit.replace_outputs({(layer.id, 0): (product.id, 0)})
    edit.rewire(product, 0, (layer.id, 0))
    layer.attributes = {**layer.attributes, "alpha": repr(alpha / bias), "bias": "1.0"}
