"""Graphs as OpenVINO nets: a layer for each op, by a table with one row per op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stepnet.compiler.rules.torch_names import RARE
from stepnet.export.composed_ops import MADE_OF
from stepnet.export.graph import Cell, Graph, LoopOp, Node, Target

from .builder import NetBuilder, Out
from .loop_form import cell_layers, loop_layers
from .net_writer import LAYERS, NetWriter

OPENVINO = Target(
    name="OpenVINO",
    unit="layer",
    refused=dict.fromkeys(
        (*RARE.keys() - LAYERS.keys() - MADE_OF.keys(), "trigamma"),
        "IR has no layer for it",
    )
    | {"unique_dim": "OpenVINO 2026.4 takes what it gives for as long as the axis"},
    takes=lambda cell: not cell.ragged,  # a mask in the body undoes the fusion that the layer is for
)

_FEW = 16  # whole numbers: an axis, a shape
_REDUCTIONS = {"add": "sum", "mul": "prod"}
_GELU = {"none": "ERF", "tanh": "TANH"}

# The attributes of a layer from those of its op, where they are not the same.
_ATTRIBUTES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "round": lambda a: {"mode": "half_to_even"},
    "cast": lambda a: {"destination_type": a["dtype"]},
    "gelu": lambda a: {"approximation_mode": _GELU[a["approximate"]]},
    "floor_divide": lambda a: {"m_pythondiv": False},  # what divides evenly or is not negative
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod"), lambda a: {"keep_dims": a["keepdim"]}),
    "topk": lambda a: {**a, "sort": "value", "index_element_type": "i64", "stable": True},
    "unique": lambda a: {"sorted": True, "index_element_type": "i64", "count_element_type": "i64"},
    "normalize": lambda a: {"normalize_variance": True, "eps": a["eps"], "eps_mode": "INSIDE_SQRT"},
    "matmul": lambda a: {"transpose_a": False, "transpose_b": bool(a["transposed"])},
    "reshape": lambda a: {"special_zero": a["zero_keeps"]},
    "expand": lambda a: {"mode": "bidirectional"},
    "pad": lambda a: {"pad_mode": "constant"},
    "scatter": lambda a: {"reduction": _REDUCTIONS.get(a["how"], a["how"]), "use_init_val": True},
    **dict.fromkeys(("shape", "range", "nonzero"), lambda a: {"output_type": "i64"}),
}


def net_of(graph: Graph) -> NetBuilder:
    """The net of a graph.

    >>> graph = Graph("double", OPENVINO)
    >>> x = graph.parameter("x", torch.float32, (-1, 3))
    >>> _ = graph.result(*graph.node("add", [x, x], [torch.float32]), ("y",))
    >>> [layer.type for layer in net_of(graph).net().layers.values()]
    ['Parameter', 'Add', 'Result']
    """
    net = NetBuilder(graph.name)
    OpWriter(net).write(graph.nodes)
    return net


class OpWriter(NetWriter):
    """Writes each op by the tables."""

    def layers_of(self, node: Node, inputs: list[Out]) -> Out | tuple[Out, ...]:
        content = node.content
        if isinstance(content, LoopOp):
            return loop_layers(self, content, node)
        if isinstance(content, Cell):
            return cell_layers(self, content, inputs, node)
        if isinstance(content, torch.Tensor):
            if content.dtype != torch.int64 or content.numel() > _FEW:
                return self.net.constant(content)
            key = repr(content.tolist())
            if key in self._own:
                return self._own[key]
            out = self.net.constant(content)
            self._numbers.setdefault(key, out)
            return out
        if node.op == "parameter":
            return self.net.parameter(str(node.name), node.dtypes[0], node.attributes["shape"])
        if node.op == "copy":  # the larger of a value and itself, which OpenVINO does not take for the same
            kind = "LogicalOr" if node.dtypes[0] == torch.bool else "Maximum"
            return self.net.layer(kind, [*inputs, *inputs], outputs=node.dtypes)
        if node.op in ("conv", "conv_transpose"):
            return self._conv(node, *inputs)
        if node.op in ("max_pool", "mean_pool"):
            return self._pool(node, *inputs)
        if node.op == "scatter":
            inputs = [*inputs, self.numbers(node.attributes["axis"])]
        attributes = _ATTRIBUTES.get(node.op, dict)(node.attributes)
        kind, _, opset = LAYERS[node.op].partition("@")
        return self.net.layer(kind, inputs, attributes, version=f"opset{opset or 1}", outputs=node.dtypes)

    def _pool(self, node: Node, x: Out) -> Any:
        said = node.attributes
        attributes = {
            "kernel": said["kernel"], "strides": said["strides"], "pads_begin": said["pads"],
            "pads_end": said["pads"], "rounding_type": "floor", "auto_pad": "explicit",
        }  # fmt: skip
        if node.op == "mean_pool":
            attributes["exclude-pad"] = not said["with_padding"]
            return self.net.layer("AvgPool", [x], attributes, outputs=node.dtypes)
        if all(size == 1 for size in said["dilations"]):
            return self.net.layer("MaxPool", [x], attributes, outputs=node.dtypes)
        attributes |= {"dilations": said["dilations"], "index_element_type": "i64", "axis": 0}
        outputs = [*node.dtypes, torch.int64]
        return self.net.layer("MaxPool", [x], attributes, version="opset8", outputs=outputs)[0]

    def _conv(self, node: Node, x: Out, kernel: Out) -> Out:
        said = node.attributes
        groups, shape = said["groups"], said["kernel"]
        kind = (
            ("Group" if groups > 1 else "")
            + "Convolution"
            + ("BackpropData" if "output_padding" in said else "")
        )
        if groups > 1:
            pattern = self.numbers([groups, shape[0] // groups, *shape[1:]])
            kernel = self.net.layer("Reshape", [kernel, pattern], {"special_zero": True}, outputs=node.dtypes)
        names = ("strides", "dilations", "pads_begin", "pads_end", "output_padding")
        attributes = {name: said[name] for name in names if name in said}
        return self.net.layer(kind, [x, kernel], attributes | {"auto_pad": "explicit"}, outputs=node.dtypes)
