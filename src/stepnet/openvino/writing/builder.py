"""Nets built layer by layer: the records that the reader makes, with the tensors of their constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import IRError
from stepnet.export.graph import LoopInput as In
from stepnet.export.graph import LoopOutput as To
from stepnet.file_model import shorten
from stepnet.openvino.element_types import ElementType, by_dtype
from stepnet.openvino.reader import shape_text
from stepnet.openvino.records import Layer, Net, Port, PortMap, PortRow

# What an output is known to be: a dtype, or a dtype and a shape with -1 for dynamic dimensions.
Kind = torch.dtype | tuple[torch.dtype, Sequence[int]]


@dataclass(frozen=True)
class Out:
    """An output of a layer of a net that is being built."""

    net: NetBuilder
    layer: int
    index: int


class NetBuilder:
    """A net in the making, or the body of a loop of one.

    Layers get ids in the order that they are made, and names of their own: a name that is taken gets a
    number. Types and shapes of outputs that are not given are inferred by `net`.

    Args:
        name: the name of the net.
        rt_info: key and value, or another such map, kept with the model.

    >>> b = NetBuilder("double")
    >>> x = b.parameter("x", torch.float32, (-1, 3))
    >>> two = b.constant(torch.tensor(2.0))
    >>> b.result(b.layer("Multiply", [x, two]), names=("y",))
    3
    >>> [layer.type for layer in b.net().layers.values()]
    ['Parameter', 'Const', 'Multiply', 'Result']
    """

    def __init__(self, name: str, *, rt_info: Mapping[str, Any] | None = None, scope: str = "") -> None:
        self.name = name
        self.rt_info = dict(rt_info or {})
        self.scope = scope or name
        self.layers: dict[int, Layer] = {}
        self._names: set[str] = set()

    def parameter(
        self, name: str, dtype: torch.dtype, shape: Sequence[int], *, names: Sequence[str] = ()
    ) -> Out:
        """An input; -1 in `shape` is a dynamic dimension. `names`: the tensor's, else that of the layer.

        Raises:
            IRError: IR has no such dtype, or the net has another layer of this name.
        """
        if name in self._names:
            raise IRError(
                f"{self.scope}: Parameter '{shorten(name)}': the name is taken",
                expected="a name of its own for each Parameter",
                got=f"a second '{shorten(name)}'",
                remedy="another name",
            )
        kind, shape = self._type(dtype, name), tuple(int(d) for d in shape)
        port = Port(0, kind, shape, tuple(names) or (name,))
        layer = self._add(
            name, "Parameter", "opset1", {"shape": shape_text(shape), "element_type": kind.name}, (), [port]
        )
        return Out(self, layer.id, 0)

    def constant(self, value: Tensor, name: str | None = None) -> Out:
        """A constant. The tensor is kept, not copied: it is written as it is then.

        Raises:
            IRError: IR has no such dtype.
        """
        value = value.detach()
        kind = self._type(value.dtype, name or "Constant")
        attributes = {"element_type": kind.name, "shape": ", ".join(map(str, value.shape))}
        layer = self._add(
            name or f"Constant_{len(self.layers)}", "Const", "opset1", attributes, (),
            [Port(0, kind, tuple(value.shape))],
        )  # fmt: skip
        layer.value = value
        return Out(self, layer.id, 0)

    def layer(
        self, type: str, inputs: Sequence[Out], attributes: Mapping[str, Any] | None = None, *,
        version: str = "opset1", outputs: int | Sequence[Kind] = 1, name: str | None = None,
    ) -> Any:  # fmt: skip
        """A layer of a type that `stepnet.openvino.supported_types` lists.

        Args:
            type: as OpenVINO writes it: `MatMul`, `LSTMCell`.
            inputs: what feeds it, outputs of this net.
            attributes: numbers, truth values, words, dtypes, or sequences of them.
            version: the opset that the type is of.
            outputs: how many, or what each is.
            name: None makes one.

        Returns:
            Its output, or a tuple of them where there is not one.

        Raises:
            IRError: an input is of another net, or an attribute cannot be written.
        """
        name = name or f"{type}_{len(self.layers)}"
        where = f"{self.scope}: {type} '{shorten(name)}'"
        data = {key: _text(value, f"{where}: {key}") for key, value in (attributes or {}).items()}
        kinds = [None] * outputs if isinstance(outputs, int) else outputs
        ports = [self._port(i, kind, name) for i, kind in enumerate(kinds, len(inputs))]
        return self._outs(self._add(name, type, version, data, inputs, ports))

    def result(self, out: Out, names: Sequence[str] = (), *, name: str | None = None) -> int:
        """An output of the net; the id of its layer. `names` are of the tensor, too."""
        layer = self._add(name or f"Result_{len(self.layers)}", "Result", "opset1", {}, [out], [])
        source = self.layers[out.layer]
        united = _united(source.outputs[out.index].names, names)
        source.change_output(out.index, names=united)
        layer.output_names = tuple(names)
        if source.type == "Parameter":  # which OpenVINO would else know by the names of the Result alone
            layer.output_names = _united(names, united)
        for other in self.layers.values():  # OpenVINO gives all Results of a tensor the names of the last
            if other.type == "Result" and other.sources == layer.sources:
                other.output_names = _united(other.output_names, names)
                layer.output_names = _united(layer.output_names, other.output_names)
        return layer.id

    def body(self, name: str = "body") -> NetBuilder:
        """A net for the body of a loop of this one."""
        return NetBuilder(name, scope=f"{self.scope}: {name}")

    def tensor_iterator(
        self, body: NetBuilder, inputs: Sequence[In[Out]], outputs: Sequence[To],
        back_edges: Sequence[tuple[int, Out]], *, name: str | None = None,
    ) -> tuple[Out, ...]:  # fmt: skip
        """A TensorIterator: `back_edges` are (Result, Parameter) pairs. Its outputs, always a tuple."""
        layer = self._loop("TensorIterator", "opset1", body, [], inputs, outputs, back_edges, name)
        return tuple(Out(self, layer.id, i) for i in range(len(outputs)))

    def loop(
        self, body: NetBuilder, trip_count: Out, condition: Out, inputs: Sequence[In[Out]],
        outputs: Sequence[To], back_edges: Sequence[tuple[int, Out]], *,
        current_iteration: Out | None = None, execution_condition: int | None = None,
        name: str | None = None,
    ) -> tuple[Out, ...]:  # fmt: skip
        """A Loop-5. `current_iteration` is a Parameter of the body that gets the number of the step,
        `execution_condition` the Result that says whether to go on. Its outputs, always a tuple.
        """
        first = [trip_count, condition]
        layer = self._loop("Loop", "opset5", body, first, inputs, outputs, back_edges, name)
        rows = layer.maps[""]
        more_in, more_out = rows.inputs, rows.outputs
        if current_iteration is not None:
            more_in += (PortRow(-1, current_iteration.layer, None, 0, -1, 1, 1, "current_iteration"),)
        if execution_condition is not None:
            more_out += (PortRow(-1, execution_condition, None, 0, -1, 1, 1, "execution_condition"),)
        layer.maps[""] = PortMap(more_in, more_out)
        return tuple(Out(self, layer.id, i) for i in range(len(outputs)))

    def branch(
        self, condition: Out, bodies: tuple[NetBuilder, NetBuilder], inputs: tuple[Sequence[In[Out]], ...],
        results: Sequence[tuple[int, int]], kinds: Sequence[Kind], name: str | None = None,
    ) -> tuple[Out, ...]:  # fmt: skip
        """An If-8: `inputs` of the body where the condition is true, and of the other one; `results` are
        pairs of their Results. Its outputs, always a tuple."""
        given = list(dict.fromkeys(port.value for ports in inputs for port in ports))
        outputs = [self._port(1 + len(given) + i, kind, name or "If") for i, kind in enumerate(kinds)]
        layer = self._add(name or f"If_{len(self.layers)}", "If", "opset8", {}, [condition, *given], outputs)
        for k, prefix in enumerate(("then_", "else_")):
            layer.bodies[prefix] = bodies[k].records()
            ports = [(1 + given.index(port.value), port) for port in inputs[k]]
            layer.maps[prefix] = PortMap(
                tuple(_row(at, port.parameter.layer, port) for at, port in ports),
                tuple(
                    _row(port.id, pair[k], To(pair[k])) for port, pair in zip(outputs, results, strict=True)
                ),
            )
        return tuple(Out(self, layer.id, i) for i in range(len(outputs)))

    def net(self) -> Net:
        """The records, with types and shapes of all outputs filled in.

        Raises:
            IRError: layers of unknown types, or inputs of a layer that do not fit.
        """
        from .completion import complete

        return complete(self.records())

    def records(self) -> Net:
        """The records so far, ports as they were given. Ids grow, and a layer is made after what feeds it."""
        return Net(
            name=self.name,
            scope=self.scope,
            layers=dict(self.layers),
            order=tuple(self.layers),
            parameters=tuple(i for i, layer in self.layers.items() if layer.type == "Parameter"),
            results=tuple(i for i, layer in self.layers.items() if layer.type == "Result"),
            rt_info=self.rt_info,
        )

    def _loop(
        self, kind: str, version: str, body: NetBuilder, first: Sequence[Out], inputs: Sequence[In[Out]],
        outputs: Sequence[To], back_edges: Sequence[tuple[int, Out]], name: str | None,
    ) -> Layer:  # fmt: skip
        name = name or f"{kind}_{len(self.layers)}"
        before = len(first) + len(inputs)
        ports = [Port(before + i, None, None) for i in range(len(outputs))]
        layer = self._add(name, kind, version, {}, [*first, *(i.value for i in inputs)], ports)
        rows_in = []
        for at, given in enumerate(inputs, len(first)):
            _check_of(given.parameter, body, f"{layer.where}: the Parameter of input {at}")
            rows_in.append(_row(at, given.parameter.layer, given))
        layer.bodies[""] = body.records()
        layer.maps[""] = PortMap(
            tuple(rows_in), tuple(_row(before + i, out.result, out) for i, out in enumerate(outputs))
        )
        layer.back_edges = tuple((result, parameter.layer) for result, parameter in back_edges)
        return layer

    def _add(
        self, name: str, kind: str, version: str, attributes: Mapping[str, str], inputs: Sequence[Out],
        outputs: Sequence[Port],
    ) -> Layer:  # fmt: skip
        number, plain = len(self.layers), name
        for k in range(1, number + 2):
            if name not in self._names:
                break
            name = f"{plain}_{k}"
        where = f"{self.scope}: {kind} layer {number} '{shorten(name)}'"
        for i, out in enumerate(inputs):
            _check_of(out, self, f"{where}: input {i}")
        layer = Layer(
            id=number,
            name=name,
            type=kind,
            version=version,
            attributes=dict(attributes),
            inputs=tuple(Port(i, None, None) for i in range(len(inputs))),
            outputs=tuple(outputs),
            where=where,
            sources=tuple((out.layer, out.index) for out in inputs),
        )
        self._names.add(name)
        self.layers[number] = layer
        return layer

    def _outs(self, layer: Layer) -> Any:
        outs = tuple(Out(self, layer.id, i) for i in range(len(layer.outputs)))
        return outs[0] if len(outs) == 1 else outs

    def _port(self, number: int, kind: Kind | None, name: str) -> Port:
        if kind is None:
            return Port(number, None, None)
        if isinstance(kind, torch.dtype):
            return Port(number, self._type(kind, name), None)
        return Port(number, self._type(kind[0], name), tuple(int(d) for d in kind[1]))

    def _type(self, dtype: torch.dtype, name: str) -> ElementType:
        found = by_dtype(dtype)
        if found is None:
            raise IRError(
                f"{self.scope}: '{shorten(name)}': IR has no element type for {dtype}",
                got=str(dtype),
                expected="a type that IR has: float64 to float16, bfloat16, whole numbers, truth values",
                remedy="convert it, such as by .float()",
            )
        return found


def _check_of(out: Out, net: NetBuilder, what: str) -> None:
    if out.net is not net:
        raise IRError(
            f"{what} is of another net",
            got=f"layer {out.layer} of '{shorten(out.net.scope)}'",
            expected=f"an output in '{shorten(net.scope)}'; a body gets values through its Parameters",
            remedy="a Parameter of the body, fed by a port of the loop",
        )


def _united(names: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def _row(external: int, internal: int, cut: In[Out] | To) -> PortRow:
    return PortRow(external, internal, cut.axis, cut.start, cut.end, cut.stride, abs(cut.stride), None)


def _text(value: Any, where: str) -> str:
    """An attribute as IR writes it.

    >>> _text([1, 2], "x"), _text(True, "x"), _text(torch.float16, "x"), _text(1e-5, "x")
    ('1, 2', 'true', 'f16', '1e-05')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        found = by_dtype(value)
        if found is None:
            raise IRError(
                f"{where}: IR has no element type for {value}",
                got=str(value),
                expected="a type that IR has",
                remedy="another dtype",
            )
        return found.name
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, Sequence):
        return ", ".join(_text(part, where) for part in value)
    raise IRError(
        f"{where}: cannot be written as an attribute",
        got=type(value).__name__,
        expected="a number, a truth value, a word, a dtype, or a sequence of them",
        remedy="leave it out, or convert it",
    )
