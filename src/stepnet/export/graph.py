"""A model as a graph of small ops, for any file format. Loops are nodes that hold the graph of their body.

Ops are named as in `stepnet.ir.ops`, or as torch names them, and mean what torch means. Axes, shapes and
bounds are int64 values, as sizes may be computed; what else is known as a model is written are attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from stepnet.errors import IRError

V = TypeVar("V")


def _ops(*names: str) -> frozenset[str]:
    return frozenset(name for text in names for name in text.split())


OPS = _ops(
    # x, element by element; attributes: gelu: approximate; elu: alpha; a copy has memory of its own
    "neg abs sign relu floor ceil round not isnan exp log sqrt sin cos tan tanh sigmoid erf sinh cosh atan",
    "asin acos asinh acosh atanh hardswish hardsigmoid mish silu softplus gelu elu cast copy",
    # x, y of one dtype, which broadcast; floor_divide: whole numbers that divide evenly, or are not negative;
    # prelu: x, slopes; where: condition, x, y
    "add sub mul div floor_divide maximum minimum pow remainder fmod eq ne lt le gt ge and or xor",
    "bitwise_and bitwise_or bitwise_xor bitwise_not",
    # x, by how many bits: fewer than x has without its sign
    "bitwise_right_shift",
    "prelu where",
    # x, axes; attribute keepdim; normalize: eps, and the sizes of the axes if known, and these are the last
    "sum mean amax amin prod normalize",
    # x; attribute axis; cumsum: x, axis; topk: x, how many, attributes axis and mode (max or min)
    "softmax log_softmax cumsum topk",
    # x, y; attribute transposed: the rank of y where its last two axes change places, or 0; conv: x, kernel,
    # attributes as those of torch, and the shape of the kernel; conv_transpose: x, kernel, the same
    "matmul conv conv_transpose",
    # x; attributes kernel, strides, dilations and pads (of either side); mean_pool: with_padding
    "max_pool mean_pool",
    # images [batch, channels, height, width], places [batch, height, width, 2]; attributes mode, padding_mode
    # and align_corners, those of torch
    "grid_sample",
    # x, shape; attribute zero_keeps: 0 keeps a dimension; expand: to what both shapes broadcast to
    "reshape expand tile",
    # x, axes; permute: x, dims; pad: x, before, after, number; slice: x, starts, ends, steps, axes
    "squeeze unsqueeze permute pad slice",
    # parts, attribute axis; split: x, axis, sizes; take: x, index, axis, attribute batch_dims;
    # gather: x, index, attribute axis; scatter: x, index, new entries, attributes axis and how (none, or what
    # is done with what is there: add, mul, max, min); gather_nd, scatter_nd: x, index [..., n] of its first n
    # axes, for scatter_nd new entries
    "cat split take gather scatter gather_nd scatter_nd",
    # x; range: start, end, step; nonzero: [dimensions, entries]; unique: x, and the axis if it is not of the
    # flat tensor: what is distinct, in order, where each is first, which one each is, how often each is there
    "shape range nonzero unique",
    # made by methods of a graph
    "parameter constant result loop cell",
)


@dataclass(frozen=True)
class Target:
    """The format that a graph is for, as errors call it.

    `unit` is one op of it. `refused` says of ops of `stepnet.ir.ops` and of calls why the format has none,
    `takes` whether it has an op, or a fast form, for a known cell; others are loops like any. `softplus`:
    whether that of runtimes keeps the digits of small results.
    """

    name: str
    unit: str
    refused: Mapping[str, str]
    takes: Callable[[Cell], bool]
    softplus: bool = False


@dataclass(frozen=True)
class Value:
    """An output of a node."""

    graph: Graph
    node: int
    index: int = 0


@dataclass(frozen=True)
class LoopInput(Generic[V]):
    """What feeds a parameter of a loop's body: `value` whole, or its slices if `axis` is given.

    A slice holds as many elements as `stride` says; `start` and `end` count as in `stepnet.InputPort`. The
    values of a format may stand in it, too.
    """

    value: V
    parameter: V
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1


@dataclass(frozen=True)
class LoopOutput:
    """An output of a loop: the last value of a result of the body, or all joined along `axis`."""

    result: int
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1


@dataclass(frozen=True)
class LoopOp:
    """A loop: a body, ports, and back edges from a result to the parameter of the next step.

    It runs as often as its slices allow; if it takes none, as often as `count`, a value and an axis, says. A
    loop with a condition runs while the result `goes_on` is true, from `condition` on, at most `trips` times;
    one that runs `once`, where the condition is true.
    """

    body: Graph
    inputs: tuple[LoopInput[Value], ...]
    outputs: tuple[LoopOutput, ...]
    back_edges: tuple[tuple[int, Value], ...]
    count: tuple[Value, int] | None = None
    trips: Value | None = None
    condition: Value | None = None
    goes_on: int | None = None
    once: bool = False


@dataclass(frozen=True)
class Cell:
    """A loop around a known cell alone.

    `kind` is lstm, gru or rnn; `w`, `r` and `b` are its weights, gates in the order f i c o or z r h. Of the
    inputs of its node the first is x, cut along `time`, the others are the initial states, and the lengths
    [batch] if it is `ragged`; it gives the rows of the states in `joined`, then the last value of each. What
    rows past the end of a sequence are is not said.
    """

    kind: str
    w: Tensor
    r: Tensor
    b: Tensor
    time: int
    reverse: bool
    joined: tuple[int, ...]
    ragged: bool
    linear_before_reset: bool = False
    activation: str | None = None


@dataclass(frozen=True)
class Node:
    """One op. `dtypes` are those of its outputs; `content` is a constant's tensor, or what a loop holds."""

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    dtypes: tuple[torch.dtype, ...]
    name: str | None = None
    content: Tensor | LoopOp | Cell | None = None


@dataclass(eq=False)
class Graph:
    """Nodes in the order that they were made, each after what feeds it.

    `carried` has for the final value of each state of a recurrence the initial one.

    >>> graph = Graph("double", Target("Clay", "sign", {}, lambda cell: True))
    >>> x = graph.parameter("x", torch.float32, (-1, 3))
    >>> y = graph.node("mul", [x, graph.constant(torch.tensor(2.0))], [torch.float32])[0]
    >>> graph.result(y, ("y",))
    3
    >>> [node.op for node in graph.nodes]
    ['parameter', 'constant', 'mul', 'result']
    """

    name: str
    target: Target
    nodes: list[Node] = field(default_factory=list)
    carried: dict[Value, Value] = field(default_factory=dict)

    def parameter(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        """An input; -1 in `shape` is a size that is left open."""
        return self._add(Node("parameter", (), {"shape": tuple(shape)}, (dtype,), name))[0]

    def constant(self, tensor: Tensor) -> Value:
        """A constant. The tensor is kept, not copied.

        Raises:
            IRError: it is a meta tensor.
        """
        if tensor.is_meta:
            raise IRError(
                f"{self.name}: a constant has no data",
                expected="a tensor with values",
                got="a tensor on the meta device",
                remedy="load the weights before the module is saved",
            )
        return self._add(Node("constant", (), {}, (tensor.dtype,), content=tensor.detach()))[0]

    def node(
        self, op: str, inputs: Sequence[Value], dtypes: Sequence[torch.dtype],
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:  # fmt: skip
        """An op; its outputs."""
        return self._add(Node(op, tuple(inputs), attributes or {}, tuple(dtypes)))

    def loop(self, loop: LoopOp, name: str) -> tuple[Value, ...]:
        """A loop; its outputs."""
        inputs = [v for v in (loop.trips, loop.condition) if v is not None]
        inputs += [i.value for i in loop.inputs]
        dtypes = tuple(loop.body.nodes[out.result].dtypes[0] for out in loop.outputs)
        return self._add(Node("loop", tuple(inputs), {}, dtypes, name, loop))

    def cell(
        self, cell: Cell, x: Value, states: Sequence[Value], lengths: Value | None, name: str
    ) -> tuple[Value, ...]:
        """A loop around a known cell; its outputs."""
        dtypes = (cell.w.dtype,) * (len(cell.joined) + len(states))
        inputs = (x, *states) if lengths is None else (x, *states, lengths)
        return self._add(Node("cell", inputs, {}, dtypes, name, cell))

    def result(self, value: Value, names: Sequence[str] = (), shape: Sequence[int] | None = None) -> int:
        """An output of the graph; the number of its node. Those of a body need no name, and a shape
        only where it cannot be inferred."""
        attributes = {"names": tuple(names), "shape": None if shape is None else tuple(shape)}
        self._add(Node("result", (value,), attributes, (self.dtype(value),)))
        return len(self.nodes) - 1

    def body(self, name: str) -> Graph:
        """A graph for the body of a loop of this one."""
        return Graph(name, self.target)

    def dtype(self, value: Value) -> torch.dtype:
        """The dtype of a value."""
        return self.nodes[value.node].dtypes[value.index]

    def _add(self, node: Node) -> tuple[Value, ...]:
        assert node.op in OPS, node.op
        assert all(value.graph is self for value in node.inputs), f"{node.op} reads a value of another graph"
        self.nodes.append(node)
        return tuple(Value(self, len(self.nodes) - 1, i) for i in range(len(node.dtypes)))
