"""A model read from OpenVINO IR, as a torch module."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from stepnet.data.arguments import path_of
from stepnet.data.in_graph import by_python
from stepnet.data.outputs import Outputs
from stepnet.errors import IRError
from stepnet.file_model import Broken, FileModel, LoopReport, NotRead, Socket, beside, shorten

from .element_types import ElementType
from .graph import Graph, Making
from .inference import check_shapes
from .loops import RUNNERS
from .reader import declared_shape, declared_type, fits, read_net, shown
from .records import Layer, Net, Shape
from .states import open_states
from .table import check_supported, is_constant
from .weights import Weights, check_bytes, check_rank


class OpenVINOModel(FileModel):
    """A model read from OpenVINO IR; `load` makes one.

    Call it with its inputs by position, in the order of `inputs`, or by name. It returns `Outputs`: by
    name, by number, or unpacked in order.

    Attributes:
        inputs: name, shape and dtype of each input, in the order of the file.
        outputs: the same of each output, as the file declares it.
        rt_info: what the file notes of the whole model: text by key, or another such dict.

    >>> import tempfile
    >>> from stepnet import openvino
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     openvino.save(torch.nn.ReLU(), f"{folder}/relu.xml", torch.ones(2, 3))
    ...     model = openvino.load(f"{folder}/relu.xml")
    >>> model.inputs[0].dtype, model(torch.tensor([[-1.0, 0.0, 1.0]]))[0], [*model.loops]
    (torch.float32, tensor([[0., 0., 1.]]), [])
    """

    def __init__(self, net: Net, weights: Weights, *, trainable: bool) -> None:
        layers = [net.layers[i] for i in net.parameters]
        types, shapes = zip(*map(parameter_type, layers), strict=True) if layers else ((), ())
        dtypes = [type.dtype for type in types]
        inputs = [Socket(layer.name, *of) for layer, *of in zip(layers, shapes, dtypes, strict=True)]
        super().__init__(net.name, net.scope, inputs, _outputs(net))
        self.rt_info = net.rt_info
        self._aliases = _aliases(net)
        times = Counter(s.name for s in self.inputs)
        twice = next((name for name, count in times.items() if count > 1), None)
        if twice is not None:
            raise Broken(
                f"{net.scope}: two inputs have the name '{shorten(twice)}'",
                got=f"{times[twice]} Parameters of this name",
                expected="a name of its own for each Parameter",
            )
        self.layers = Graph(net, Making(weights, RUNNERS, trainable))
        check_shapes(self.graph, shapes, dtypes)
        self.states = {
            name: self.outputs[net.results.index(result)].name for name, (_, result) in net.states.items()
        }
        self._begun = frozenset(net.states)
        self._weights = weights
        self._own = frozenset({*vars(self), *self._modules, "_own"})

    @property
    def graph(self) -> Graph:
        """What runs it; a module of this name would be lost in programs of torch.export."""
        return self.layers

    @property
    def content(self) -> str | None:
        """See `ToldByContent`."""
        return self._content_with(self.graph.content)

    def _recipe(self) -> tuple[Any, ...]:
        return self.graph.net, self._weights

    @classmethod
    def _anew(cls, *recipe: Any) -> OpenVINOModel:
        return cls(*recipe, trainable=False)

    @by_python("a model from a file computes sizes in Python")
    def forward(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the model on tensors or numpy arrays.

        Raises:
            IRError: an input is missing, unknown, or of another type or shape than the file declares; or
                a layer cannot run on what it is given.
        """
        checked = self.checked(args, kwargs)
        with beside(checked):
            return Outputs(tuple(s.name for s in self.outputs), self.graph(*checked))

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

    def _takes(self, given: torch.dtype, declared: torch.dtype) -> bool:
        kinds = {t.dtype for t in self.graph.tensors()}
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
    path = Path(path_of("load: 'xml'", xml, error=IRError))
    net = read_net(path)
    check_supported(net)
    open_states(net)
    if not net.results:
        raise Broken(
            f"{net.scope}: has no Result layer",
            got=f"{len(net.layers)} layers of other types",
            expected="a Result for each output",
        )
    check_parameters(net)
    if bin is not None:
        weights = Weights(Path(path_of("load: 'bin'", bin, error=IRError)))
    else:
        beside = path.with_suffix(".bin")
        has_constants = beside.exists() or _has_constants(net)
        weights = Weights(beside if has_constants else None)
    return OpenVINOModel(net, weights, trainable=trainable)


def _has_constants(net: Net) -> bool:
    bodies = [body for layer in net.layers.values() for body in layer.bodies.values()]
    return any(is_constant(layer) for layer in net.layers.values()) or any(map(_has_constants, bodies))


def parameter_type(layer: Layer) -> tuple[ElementType, Shape | None]:
    """Element type and shape of a Parameter.

    Raises:
        IRError: they are unknown, or no machine could hold such a tensor.
    """
    element_type, shape = declared_type(layer), declared_shape(layer)
    if element_type.of_constants:
        raise NotRead(
            f"{layer.where}: only constants are of {element_type.name}",
            got=element_type.name,
            expected="an element type of whole bytes",
        )
    if shape is not None:
        check_rank(shape, layer.where)
        check_bytes(shape, element_type.dtype.itemsize, layer.where)
        port = layer.outputs[0].shape
        if port and not fits(shape, port):
            said = f"{shown(shape)} and {shown(port)}"
            raise Broken(f"{layer.where}: its shape and that of its port differ", got=said, expected="one")
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
