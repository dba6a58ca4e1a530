"""Weights as f16, each with a Convert back, as `openvino.save_model` writes them."""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.openvino.element_types import by_name
from stepnet.openvino.records import Net
from stepnet.openvino.table import is_constant

from .edit import Editor, all_nets

_FEW = 16  # constants of fewer numbers (an epsilon, a scale) save nothing and may vanish
_F16, _F32 = by_name("f16", ""), by_name("f32", "")
_DECOMPRESSION = (("attribute", {"name": "decompression", "version": "0"}),)


def compress(net: Net) -> None:
    """Store the f32 constants of a net and of its bodies as f16, in place.

    Those of a few numbers stay, and those with a number that f16 does not hold.
    """
    half: dict[int, tuple[Tensor, Tensor]] = {}  # by the memory that it is of: what was shared stays shared
    for inner in all_nets(net):
        edit = Editor(inner)
        moved: dict[tuple[int, int], tuple[int, int]] = {}
        for layer in list(inner.layers.values()):
            value = layer.value
            if not is_constant(layer) or value is None or value.dtype is not torch.float32:
                continue
            if value.numel() < _FEW:
                continue
            key = value.data_ptr()
            if key not in half or half[key][0].shape != value.shape:
                half[key] = value, value.to(torch.float16)
            small = half[key][1]
            if bool((small.isinf() & ~value.isinf()).any()):
                continue
            shape = tuple(value.shape)
            const = edit.add("Const", [], [(_F16, shape)], near=layer)
            const.value = small
            back = edit.add(
                "Convert", [(const.id, 0)], [(_F32, shape)], {"destination_type": "f32"}, near=layer
            )
            back.rt_info = _DECOMPRESSION
            moved[layer.id, 0] = back.id, 0
        edit.replace_outputs(moved)
        for i, _ in moved:
            del inner.layers[i]
        edit.done()
