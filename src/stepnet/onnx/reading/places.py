"""What errors call the nodes of a file."""

from __future__ import annotations

import onnx_ir as ir
from onnx import NodeProto

from stepnet.file_model import shorten


def short(name: object) -> str:
    """A name of the file, cut where it is long."""
    return shorten(str(name), 100)


def name_of(number: int, node: NodeProto | ir.Node) -> str:
    """A node of a graph, as errors call it."""
    return f"node {number} '{short(node.name or '')}' ({short(node.op_type)})"
