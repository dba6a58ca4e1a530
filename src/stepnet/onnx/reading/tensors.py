"""What the file says of the numbers of its constants, before any of them is read."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from stepnet.file_model import Broken, NotRead, shorten

from .info import NUMBERS
from .places import name_of

# where numbers of a type are that are not raw, one for each
_LISTS = {
    "FLOAT": "float_data", "INT32": "int32_data", "INT64": "int64_data", "DOUBLE": "double_data",
}  # fmt: skip


def check_constants(model: ModelProto, where: str) -> None:
    """Refuse constants, inputs and outputs of no type that ONNX has, and constants whose numbers do not fill
    their shapes.

    Raises:
        IRError: says which one.
    """
    _check_graph(model.graph, where)
    for function in model.functions:
        _check_nodes(function.node, f"{where}: function '{shorten(function.name)}'")


def _check_graph(graph: GraphProto, where: str) -> None:
    for tensor in graph.initializer:
        _check(tensor, f"{where}: constant '{shorten(tensor.name)}'")
    for value in (*graph.input, *graph.output):
        _check_type(value.type.tensor_type.elem_type, f"{where}: '{shorten(value.name)}'")
    _check_nodes(graph.node, where)


def _check_nodes(nodes: Iterable[NodeProto], where: str) -> None:
    for number, node in enumerate(nodes):
        for attribute in node.attribute:
            place, name = f"{where}: {name_of(number, node)}", shorten(attribute.name)
            if attribute.type == AttributeProto.GRAPH:
                _check_graph(attribute.g, f"{place}, {name}")
            elif attribute.type == AttributeProto.TENSOR:
                _check(
                    attribute.t,
                    place if node.op_type == "Constant" else f"{place}, {name}",
                )


def _check(tensor: TensorProto, where: str) -> None:
    _check_type(tensor.data_type or "none", where)
    if tensor.data_location == TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            whole = entry.value.isascii() and entry.value.isdigit()
            if entry.key in ("offset", "length") and not whole:
                what = f"{where}: the {entry.key} in its file is no number of bytes"
                raise Broken(what, got=shorten(entry.value), expected="a whole number, 0 or more")
        return
    kind, size = ir.DataType(tensor.data_type), math.prod(tensor.dims)
    if min(tensor.dims, default=0) < 0 or kind == ir.DataType.STRING:
        return
    if tensor.HasField("raw_data"):
        got, wanted, of = len(tensor.raw_data), (size * kind.bitwidth + 7) // 8, "bytes"
    elif kind.name in _LISTS:
        got, wanted, of = len(getattr(tensor, _LISTS[kind.name])), size, f"numbers of {_LISTS[kind.name]}"
    else:
        return
    if got != wanted:
        sizes = ", ".join(map(str, tensor.dims))
        what = f"{where}: does not fill its shape"
        raise Broken(what, got=f"{got} {of}", expected=f"{wanted} for {kind.name}[{sizes}]")


def _check_type(kind: object, where: str) -> None:
    if kind not in TensorProto.DataType.values():
        raise NotRead(f"{where} is of no element type that is known", got=kind, expected=NUMBERS)
