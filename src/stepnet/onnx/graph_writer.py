"""ONNX graphs as they are written: nodes, constants and names, of no op of `export` in particular."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype
from torch import Tensor

from stepnet.export.graph import Graph, Node, Value

if TYPE_CHECKING:
    from typing_extensions import Self

_FEW = 16  # constants of fewer numbers stay as they are
_UNDOES = {"Squeeze": "Unsqueeze", "Unsqueeze": "Squeeze"}  # along the same axes


class GraphWriter:
    """Adds the nodes of a graph, or of the body of a loop, to a list.

    Args:
        names: how often a name was taken; shared by the graphs of a model.
        f16: whether weights of float32 are stored as float16.
        outer: the values of parameters of a body that are values of the graph around it.
        prefix: of all names.
    """

    def __init__(
        self, graph: Graph, names: dict[str, int], f16: bool, outer: dict[int, ir.Value] | None = None,
        prefix: str = "",
    ) -> None:  # fmt: skip
        self.graph, self.names, self.f16, self.prefix = graph, names, f16, prefix
        self.outer = outer
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.inputs: list[ir.Value] = []
        self.results: dict[int, ir.Value] = {}
        self.uses = Counter(value for node in graph.nodes for value in node.inputs)
        self._made: list[tuple[ir.Value, ...]] = []
        self._numbers: dict[str, ir.Value] = {}

    def write(self, nodes: Iterable[Node]) -> None:
        """The nodes of nodes, in order."""
        for node in nodes:
            inputs = [self.at(value) for value in node.inputs]
            made = self.nodes_of(node, inputs)
            made = made if isinstance(made, tuple) else (made,)
            for value, dtype in zip(made, node.dtypes, strict=True):
                value.dtype = from_torch_dtype(dtype)
            self._made.append(made)

    def at(self, value: Value) -> ir.Value:
        """What holds a value."""
        return self._made[value.node][value.index]

    def call(self, kind: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """An ONNX op; its output, or a tuple of them. What undoes the op before it is not written: a file
        that is read and written again would hold both."""
        undone = _undone(kind, inputs) if kind in _UNDOES else _the_same(kind, inputs)
        if undone is not None:
            return undone
        node = ir.node(kind, inputs, attributes, num_outputs=outputs, name=self.name(kind))
        for value in node.outputs:
            value.name = self.name(kind.lower())
        self.nodes.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def numbers(self, values: int | Sequence[int]) -> ir.Value:
        """Whole numbers, as an int64 constant."""
        if repr(values) not in self._numbers:
            self._numbers[repr(values)] = self.constant(torch.tensor(values, dtype=torch.int64))
        return self._numbers[repr(values)]

    def constant(self, tensor: Tensor) -> ir.Value:
        """A constant."""
        small = self.f16 and tensor.dtype == torch.float32 and tensor.numel() >= _FEW
        stored = tensor.half() if small else tensor
        if small and bool((stored.isinf() & ~tensor.isinf()).any()):
            small, stored = False, tensor
        name = self.name("constant")
        data = TorchTensor(stored.detach().cpu().contiguous(), name=name)
        value = ir.Value(name=name, type=ir.TensorType(data.dtype), shape=data.shape, const_value=data)
        self.initializers.append(value)
        return self.call("Cast", value, to=ir.DataType.FLOAT) if small else value

    def known(self, value: Value) -> list[Any]:
        """The numbers of a constant that ONNX takes as an attribute."""
        content = value.graph.nodes[value.node].content
        assert isinstance(content, Tensor)
        return content.reshape(-1).tolist()

    def name(self, stem: str) -> str:
        """A name that no other value or node of the model has."""
        count = self.names[stem] = self.names.get(stem, 0) + 1
        return self.prefix + stem if count == 1 else self.name(f"{stem}_{count - 1}")

    def body(self, graph: Graph, outer: dict[int, ir.Value]) -> Self:
        """A writer for the body of a loop."""
        return type(self)(graph, self.names, self.f16, outer, self.prefix)

    def nodes_of(self, node: Node, inputs: list[ir.Value]) -> Any:
        """The nodes that an op becomes; what they give."""
        raise NotImplementedError


def numbers_of(value: ir.Value | None) -> list[int] | None:
    """The numbers of a constant list; None of what is computed."""
    data = None if value is None else value.const_value
    return None if data is None or len(data.shape) != 1 else data.numpy().tolist()


def _undone(kind: str, inputs: Sequence[ir.Value | None]) -> ir.Value | None:
    """What the op before took, if this one would give it back."""
    given, axes = inputs[0], numbers_of(inputs[1])
    before = None if given is None else given.producer()
    if before is None or before.op_type != _UNDOES[kind] or axes is None:
        return None
    return before.inputs[0] if numbers_of(before.inputs[1]) == axes else None


def _the_same(kind: str, inputs: Sequence[ir.Value | None]) -> ir.Value | None:
    """What is given, if the op before brought it to the shape that this one asks for."""
    before = inputs[0].producer() if kind == "Reshape" and inputs[0] is not None else None
    sizes = numbers_of(inputs[1]) if before is not None and before.op_type == "Reshape" else None
    if before is None or sizes is None or 0 in sizes:  # which asks for a size of what is given
        return None
    return inputs[0] if numbers_of(before.inputs[1]) == sizes else None


def added_along(value: ir.Value, axis: int | None) -> ir.Value | None:
    """What an Unsqueeze made a value of, if it added this axis."""
    made = value.producer()
    if axis is None or made is None or made.op_type != "Unsqueeze":
        return None
    return made.inputs[0] if numbers_of(made.inputs[1]) == [axis] else None
