"""A model read from OpenVINO IR, as a torch module."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepnet.data.dtypes import dtype_name
from stepnet.data.outputs import Outputs
from stepnet.errors import IRError

from .attributes import Attributes, shorten
from .element_types import ElementType, by_name
from .graph import Graph
from .inference import check_shapes
from .loops import LoopReport
from .reader import read_net, shape_from_text
from .records import Layer, Net, Shape
from .table import check_supported, is_constant
from .weights import Weights, check_bytes, check_rank


@dataclass(frozen=True)
class Socket:
    """An input or output of a model: -1 in `shape` is a dynamic dimension; None: of any rank."""

    name: str
    shape: Shape | None
    dtype: torch.dtype

    def __str__(self) -> str:
        shape = "..." if self.shape is None else ", ".join("?" if d == -1 else str(d) for d in self.shape)
        return f"{self.name}: {dtype_name(self.dtype)}[{shape}]"


class OpenVINOModel(nn.Module):
    """A model read from OpenVINO IR; `load` makes one.

    Call it with its inputs by position, in the order of `inputs`, or by name. It returns `Outputs`: by
    name, by number, or unpacked in order.

    Attributes:
        inputs: name, shape and dtype of each input, in the order of the file.
        outputs: the same of each output, as the file declares it.
        rt_info: what the file notes of the whole model: text by key, or another such dict.
    """

    takes_sequences = True

    def __init__(self, net: Net, weights: Weights, *, trainable: bool) -> None:
        super().__init__()
        self.name = net.name
        self.rt_info = net.rt_info
        self._where = net.scope
        self.inputs = tuple(_parameter(net.layers[i]) for i in net.parameters)
        self.outputs = _outputs(net)
        self._aliases = _aliases(net)
        times = Counter(s.name for s in self.inputs)
        twice = next((name for name, count in times.items() if count > 1), None)
        if twice is not None:
            raise IRError(
                f"{net.scope}: two inputs have the name '{shorten(twice)}'",
                expected="a name of its own for each Parameter",
            )
        shared: dict[int, nn.Parameter] = {}
        self.graph = Graph(net, weights, trainable=trainable, shared=shared)
        check_shapes(self.graph, [s.shape for s in self.inputs], [s.dtype for s in self.inputs])

    def forward(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the model on tensors or numpy arrays.

        Raises:
            IRError: an input is missing, unknown, or of another type or shape than the file declares; or
                a layer cannot run on what it is given.
        """
        given = self._by_position(args, kwargs)
        checked = [self._checked(socket, value) for socket, value in zip(self.inputs, given, strict=True)]
        return Outputs(tuple(s.name for s in self.outputs), self.graph(*checked))

    @property
    def open_sizes(self) -> dict[str, list[int]]:
        """The dimensions of the inputs that take any size; of any rank: none."""
        return {s.name: [d for d, size in enumerate(s.shape or ()) if size < 0] for s in self.inputs}

    @property
    def loops(self) -> tuple[LoopReport, ...]:
        """How each loop and sequence layer ran last: compiled, or by the plain loop and why."""
        return tuple(runner.reports for runner in self.graph.runners())

    def explain(self) -> str:
        """`loops` as text, a line each; run the model first."""
        lines = []
        for report in self.loops:
            if not report.ran:
                state = "has not run yet"
            elif report.compiled:
                state = "compiled"
            else:
                state = f"plain loop: {report.reason}"
            lines.append(f"{report.where}: {state}")
        return "\n".join(lines) or "the model has no loops"

    def extra_repr(self) -> str:
        return f"{self.name}: ({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"

    def _by_position(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        names = [s.name for s in self.inputs]
        where = f"{self._where}: the model"
        if len(args) > len(names):
            raise IRError(f"{where} has {len(names)} inputs", got=f"{len(args)} by position", expected=names)
        values: dict[str, Any] = dict(zip(names, args, strict=False))
        for key, value in kwargs.items():
            name = self._aliases.get(key)
            if name is None:
                raise IRError(f"{where} has no input '{shorten(key)}'", got=key, expected=names)
            if name in values:
                raise IRError(f"{where} is given input '{name}' twice")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise IRError(f"{where} is not given input '{missing[0]}'", got=list(values), expected=names)
        return [values[name] for name in names]

    def _checked(self, socket: Socket, value: Any) -> Tensor:
        if isinstance(value, (np.ndarray, np.generic)):
            value = torch.from_numpy(np.array(value))
        where = f"{self._where}: input '{socket.name}'"
        if not isinstance(value, Tensor):
            raise IRError(f"{where} must be a tensor or an array", got=type(value).__name__, expected=socket)
        wrong = value.dtype != socket.dtype and not self._moved(value.dtype, socket.dtype)
        if wrong or not _fits(tuple(value.shape), socket.shape):
            kind = dtype_name(value.dtype)
            raise IRError(f"{where} does not fit", got=f"{kind}{list(value.shape)}", expected=socket)
        return value

    def _moved(self, given: torch.dtype, declared: torch.dtype) -> bool:
        """Whether model and input were taken to another floating type (`model.double()`)."""
        if not (given.is_floating_point and declared.is_floating_point):
            return False
        kinds = {t.dtype for t in self.graph.tensors() if t.dtype.is_floating_point}
        return given in kinds and declared not in kinds


def load(
    xml: str | os.PathLike[str], bin: str | os.PathLike[str] | None = None, *, trainable: bool = False
) -> OpenVINOModel:
    """Read a model from OpenVINO IR, version 10 or 11.

    The whole file is checked before anything runs: its form, its constants, and, as far as they are
    static, all shapes. Only the two files are read, and nothing is allocated for a size that a file
    merely declares.

    Args:
        xml: the .xml file.
        bin: the file of weights; None: the .bin beside the .xml, if there is one. It is mapped into
            memory, and must not be changed while the model is in use.
        trainable: make floating-point constants parameters (copied from the file) instead of buffers.
            A constant that several layers share is one parameter.

    Returns:
        The model, a torch.nn.Module.

    Raises:
        IRError: the files are no model, or break a rule; says the file, the layer's id and name, what was
            found and what is expected. Layers of unknown types are all listed in one error.
        MissingExtraError: defusedxml is not installed.

    >>> load("missing.xml")
    Traceback (most recent call last):
    stepnet.errors.IRError: missing.xml: cannot be read: No such file or directory
    ...
    """
    path = Path(xml)
    net = read_net(path)
    check_supported(net)
    check_parameters(net)
    if bin is not None:
        weights = Weights(Path(bin))
    else:
        beside = path.with_suffix(".bin")
        has_constants = beside.exists() or _has_constants(net)
        weights = Weights(beside if has_constants else None)
    return OpenVINOModel(net, weights, trainable=trainable)


def _has_constants(net: Net) -> bool:
    bodies = [body for layer in net.layers.values() for body in layer.bodies.values()]
    return any(is_constant(layer) for layer in net.layers.values()) or any(map(_has_constants, bodies))


def _parameter(layer: Layer) -> Socket:
    element_type, shape = parameter_type(layer)
    return Socket(layer.name, shape, element_type.dtype)


def parameter_type(layer: Layer) -> tuple[ElementType, Shape | None]:
    """Element type and shape of a Parameter.

    Raises:
        IRError: they are unknown, or no machine could hold such a tensor.
    """
    attributes = Attributes(layer.attributes, layer.where)
    port = layer.outputs[0]
    if "element_type" in attributes:
        element_type = by_name(attributes.text("element_type"), layer.where)
    elif port.type is not None:
        element_type = port.type
    else:
        raise IRError(f"{layer.where}: has no element_type", expected='element_type="f32" or another')
    shape = shape_from_text(attributes.text("shape"), layer.where) if "shape" in attributes else port.shape
    if shape is not None:
        check_rank(shape, layer.where)
        check_bytes(shape, element_type.size, layer.where)
    return element_type, shape


def check_parameters(net: Net) -> None:
    """Check the Parameters of all bodies; those of the model itself are checked when it is made."""
    for layer in net.layers.values():
        if layer.type == "Parameter":
            parameter_type(layer)
        for body in layer.bodies.values():
            check_parameters(body)


def _outputs(net: Net) -> tuple[Socket, ...]:
    """Outputs by the Result's own name for it, else that of the tensor that feeds it; each name once."""
    found: dict[str, Socket] = {}
    for i in net.results:
        layer = net.layers[i]
        source, index = layer.sources[0]
        port = net.layers[source].outputs[index]
        names = (*layer.output_names, *port.names, layer.name, f"{layer.name}#{i}")
        name = next((n for n in names if n not in found), f"#{i}")
        found[name] = Socket(name, port.shape, torch.float32 if port.type is None else port.type.dtype)
    return tuple(found.values())


def _aliases(net: Net) -> dict[str, str]:
    """Every name that an input answers to: its layer's, and those of its tensor."""
    found: dict[str, str] = {}
    for i in net.parameters:
        layer = net.layers[i]
        for alias in layer.outputs[0].names:
            found.setdefault(alias, layer.name)
    return found | {net.layers[i].name: net.layers[i].name for i in net.parameters}


def _fits(given: tuple[int, ...], declared: Shape | None) -> bool:
    if declared is None:
        return True
    return len(given) == len(declared) and all(d in (-1, n) for n, d in zip(given, declared, strict=True))
