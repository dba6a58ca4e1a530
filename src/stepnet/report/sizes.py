"""Shapes of the inputs and results of each layer, without running it: at chosen sizes, or at any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.errors import IRError
from stepnet.file_model import FileModel, Socket
from stepnet.openvino import OpenVINOModel
from stepnet.openvino.graph import Graph, Node
from stepnet.openvino.inference import SIZES, UNKNOWN, Walk
from stepnet.openvino.records import Layer

from .records import Value

_TRIED = (1, *SIZES)  # for dynamic dimensions: one row of one step if the model takes it
_USUAL = {2**n for n in range(7)}  # tried for a single dimension, and so many sizes of constants
_MOST_SIZES = 16
_PASSES = 2


class Survey(Walk):
    """Shape inference that also keeps the inputs of each layer, and the Parameters of bodies."""

    def __init__(self) -> None:
        super().__init__({})
        self.given: dict[int, Sequence[Any]] = {}

    def graph(self, graph: Graph, arguments: Sequence[Any]) -> list[Any]:
        for i, argument in zip(graph.net.parameters, arguments, strict=True):
            self.seen[id(graph.net.layers[i])] = [argument]
        return super().graph(graph, arguments)

    def node(self, node: Node, given: Sequence[Any]) -> Sequence[Any]:
        self.given[id(node.layer)] = given
        return super().node(node, given)

    @property
    def unknown(self) -> int:
        """The number of layers that do not fit, or without a known result."""
        unknown = (not any(isinstance(r, Tensor) for r in results) for results in self.seen.values())
        return sum(unknown) + len(self.faults)

    def branch(self) -> Survey:
        inner = Survey()
        inner.given, inner.seen = self.given, self.seen
        return inner


@dataclass
class Sizes:
    """A model at chosen sizes, `counted`, and at two sizes of all dynamic dimensions."""

    inputs: dict[str, tuple[int, ...]]
    counted: Survey
    pair: tuple[Survey, Survey]

    def outputs(self, layer: Layer) -> tuple[Value, ...]:
        """Types and shapes of a layer's results.

        A dimension that differs between two sizes is dynamic; what cannot be inferred is as declared.
        """
        first, second = (dict(enumerate(survey.seen.get(id(layer), ()))) for survey in self.pair)
        written = (
            Value(None if p.type is None else dtype_name(p.type.dtype), p.shape or None)
            for p in layer.outputs
        )
        return tuple(
            common(first.get(i, UNKNOWN), second.get(i, UNKNOWN), it) for i, it in enumerate(written)
        )


def sizes(model: OpenVINOModel, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """Infer the shapes of a whole model.

    Args:
        shapes: of inputs by name; dynamic dimensions of other inputs are as small as the model takes.

    Raises:
        IRError: a shape is for no input, or does not fit it; or layers do not fit these shapes.
    """
    check_shapes(model, shapes)
    pair = (_survey(model, shapes_at(model, {}, SIZES[0])), _survey(model, shapes_at(model, {}, SIZES[1])))
    inputs, survey = {}, pair[0]
    for choose, size in product((shapes_at, fitting), _TRIED):
        inputs = choose(model, shapes, size)
        survey = _survey(model, inputs)
        if not survey.faults:
            break
    if survey.faults and shapes:
        raise next(iter(survey.faults.values())).error
    return Sizes(inputs, survey, pair)


def shapes_at(
    model: FileModel, shapes: Mapping[str, tuple[int, ...]], size: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs of known rank, with one size for all other dynamic dimensions."""
    known = {socket.name: shapes.get(socket.name, socket.shape) for socket in model.inputs}
    return {
        name: tuple(size if d == -1 else d for d in shape)
        for name, shape in known.items()
        if shape is not None
    }


def fitting(
    model: OpenVINOModel, shapes: Mapping[str, tuple[int, ...]], size: int
) -> dict[str, tuple[int, ...]]:
    """As `shapes_at`; where the model does not take that, with sizes of its constants at single dimensions.

    A file may leave even the number of features open: only a weight then determines it.
    """
    best = shapes_at(model, shapes, size)
    survey = _survey(model, best)
    if not survey.faults:
        return best
    weights = {d for tensor in model.graph.tensors() for d in tensor.shape}
    known = sorted(_USUAL | set(sorted(weights)[:_MOST_SIZES]))
    places = [
        (socket.name, axis)
        for socket in model.inputs
        if socket.name not in shapes and socket.shape is not None
        for axis in reversed(range(len(socket.shape)))
        if socket.shape[axis] == -1
    ]
    for name, axis in places * _PASSES:
        for number in known:
            shape = best[name]
            tried = best | {name: (*shape[:axis], number, *shape[axis + 1 :])}
            other = _survey(model, tried)
            if other.unknown < survey.unknown:
                best, survey = tried, other
            if not survey.faults:
                return best
    return best


def check_shapes(model: FileModel, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check shapes of inputs against the file.

    Raises:
        IRError: a shape is for no input, or does not fit it.
    """
    sockets = {socket.name: socket for socket in model.inputs}
    for name, shape in shapes.items():
        if name not in sockets:
            raise IRError(f"--shape {name}: the model has no such input", expected=", ".join(sockets))
        declared = sockets[name].shape
        fits = declared is None or (
            len(declared) == len(shape) and all(d in (-1, n) for d, n in zip(declared, shape, strict=True))
        )
        if not fits:
            text = ",".join(map(str, shape))
            raise IRError(f"--shape {name}={text}: does not fit the input", expected=sockets[name])
        made(sockets[name], shape, torch.device("meta"))


def made(socket: Socket, shape: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Zeros for an input.

    Raises:
        IRError: it is of more bytes than there are.
    """
    try:
        return torch.zeros(shape, dtype=socket.dtype, device=device)
    except RuntimeError as error:
        raise IRError(
            f"input '{socket.name}' cannot be made: it is too large",
            got=str(tuple(shape)),
            remedy="another --shape",
        ) from error


def declared(socket: Any) -> Value:
    """An input or output of a model, as its file says it."""
    return Value(None if socket.dtype is None else dtype_name(socket.dtype), socket.shape)


def _survey(model: OpenVINOModel, shapes: Mapping[str, tuple[int, ...]]) -> Survey:
    survey = Survey()
    arguments: list[Any] = [UNKNOWN] * len(model.inputs)
    for i, socket in enumerate(model.inputs):
        if socket.name in shapes:
            arguments[i] = made(socket, shapes[socket.name], torch.device("meta"))
    survey.graph(model.graph, arguments)
    return survey


def common(a: Any, b: Any, declared: Value) -> Value:
    """What two results of different sizes have in common; as declared where one is not known."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return declared
    if a.dim() != b.dim():
        return Value(dtype_name(a.dtype), None)
    return Value(
        dtype_name(a.dtype), tuple(m if m == n else -1 for m, n in zip(a.shape, b.shape, strict=True))
    )
