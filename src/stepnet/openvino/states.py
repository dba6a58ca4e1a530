"""Variables of a model, which keep their value from one inference to the next, as inputs and outputs.

    init -> ReadValue -> ... -> Assign     ->     init, NAME -> ReadValue -> ... -> Assign -> NAME_out

NAME is the variable. An input that a call leaves out begins with what the file computes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name, typed_shape
from stepnet.file_model import Broken, NotRead, shorten

from .attributes import Attributes
from .layers.row import Misfit, Row, plain
from .reader import declared_shape, declared_type, fits, shape_text
from .records import Layer, Net, Port

AFTER = "_out"


def open_states(net: Net) -> None:
    """Give each variable of a net an input and an output.

    Raises:
        IRError: a variable is read or written twice, written and not read, or is one of a body.
    """
    for layer in _with_bodies(net):
        if _kind(layer) is not None:
            raise NotRead(
                f"{layer.where}: a variable in a body is not read",
                got=f"a {layer.type} in a body",
                expected="ReadValue and Assign outside",
                remedy="a back edge in place of them, and both around the loop",
            )
    reads, writes = (_by_variable(net, kind) for kind in ("readvalue", "assign"))
    for name in writes.keys() - reads.keys():
        raise Broken(
            f"{writes[name].where}: nothing reads the variable '{shorten(name)}'",
            got=f"variables that are read: {', '.join(map(shorten, list(reads)[:8])) or 'none'}",
            expected=f'a ReadValue with variable_id="{shorten(name)}"',
        )
    free = max(net.layers, default=0) + 1
    for name, read in reads.items():
        write = writes.get(name, read)  # one that nothing writes stays what it is
        _check_alike(name, read, write)
        net.layers[free] = _parameter(free, name, read)
        net.layers[free + 1] = _result(free + 1, name + AFTER, write, net.scope)
        read.inputs += (Port(-1, read.outputs[0].type, None),)
        read.sources += ((free, 0),)
        net.states[name] = free, free + 1
        free += 2
    first, last = [p for p, _ in net.states.values()], [r for _, r in net.states.values()]
    net.order = (*first, *net.order, *last)
    net.parameters, net.results = (*net.parameters, *first), (*net.results, *last)


def closed_states(net: Net) -> Net:
    """A net with its variables as they were; layers of it are copies that may be changed."""
    gone = {i for pair in net.states.values() for i in pair}
    layers = {i: layer for i, layer in net.layers.items() if i not in gone}
    for layer in net.layers.values():
        if _kind(layer) == "readvalue":
            layers[layer.id] = replace(layer, inputs=layer.inputs[:-1], sources=layer.sources[:-1])
    return replace(
        net,
        layers=layers,
        order=tuple(i for i in net.order if i not in gone),
        parameters=tuple(i for i in net.parameters if i not in gone),
        results=tuple(i for i in net.results if i not in gone),
        states={},
    )


def read_value(layer: Layer, attributes: Attributes) -> Callable[..., Any]:
    """The function of a ReadValue: of what the file begins with, if it says that, and of the input."""
    declared = attributes.text("variable_shape", "")

    def read(*values: Tensor | None) -> Tensor:
        state = values[-1]
        if len(values) > 1 and values[0] is not None and values[0].is_meta:  # as the file is read
            _check_begin(values[0], layer)
        if state is not None:
            return state
        if len(values) > 1 and values[0] is not None:
            return values[0]
        sizes = declared_shape(layer, "variable_shape")
        if sizes is None or -1 in sizes:
            raise Misfit(
                "says nothing of what it begins with", expected="the variable as an input", got=declared
            )
        return torch.zeros(sizes, dtype=declared_type(layer, "variable_type").dtype)

    return read


def _check_begin(value: Tensor, read: Layer) -> None:
    """Refuse what a variable cannot begin with; of opset3 nothing is said of it."""
    if "variable_type" not in read.attributes:
        return
    kind, sizes = declared_type(read, "variable_type"), declared_shape(read, "variable_shape")
    other = value.dtype != kind.dtype
    if other or (sizes is not None and not fits(sizes, value.shape)):
        raise Misfit(
            "what its variable begins with does not fit it",
            got=typed_shape(value),
            expected=f"{dtype_name(kind.dtype)}[{shape_text(sizes)}]",
            dims=str(value.dtype) if other else str(tuple(value.shape)),
        )


def _check_alike(name: str, read: Layer, write: Layer) -> None:
    """Refuse an Assign that says of a variable what its ReadValue does not."""
    for key, declared in (("variable_type", declared_type), ("variable_shape", declared_shape)):
        if key not in read.attributes or key not in write.attributes:
            continue
        one, other = declared(read, key), declared(write, key)
        if one == other or (isinstance(one, tuple) and isinstance(other, tuple) and fits(one, other)):
            continue
        if key == "variable_shape" and None in (one, other):
            continue
        raise Broken(
            f"{write.where}: says another {key} of the variable '{shorten(name)}' than its ReadValue",
            got=shorten(write.attributes[key]),
            expected=f"{shorten(read.attributes[key])}, as layer {read.id} says",
        )


def _kind(layer: Layer) -> str | None:
    kind = layer.type.lower()
    return kind if kind in ("readvalue", "assign") else None


def _with_bodies(net: Net, inner: bool = False) -> Iterator[Layer]:
    """The layers of all bodies in a net."""
    for layer in net.layers.values():
        if inner:
            yield layer
        for body in layer.bodies.values():
            yield from _with_bodies(body, True)


def _by_variable(net: Net, kind: str) -> dict[str, Layer]:
    found: dict[str, Layer] = {}
    for i in net.order:
        layer = net.layers[i]
        if _kind(layer) != kind:
            continue
        name = layer.said.text("variable_id")
        if not name:
            raise Broken(f"{layer.where}: its variable_id is empty", got='variable_id=""', expected="a name")
        if name in found:
            raise Broken(
                f"{layer.where}: the variable '{shorten(name)}' has two layers of this type",
                got=f"layers {found[name].id} and {layer.id}",
                expected="one",
            )
        told = [key for key in ("variable_type", "variable_shape") if key in layer.attributes]
        if kind == "readvalue" and len(told) == 1:
            raise Broken(
                f"{layer.where}: says only one of the type and the shape of its variable",
                got=told[0],
                expected="variable_type and variable_shape, or, of opset3, neither",
            )
        if kind == "readvalue" and (len(layer.inputs) > 1 or len(layer.outputs) != 1):
            raise Broken(
                f"{layer.where}: takes one value and gives one",
                got=f"{len(layer.inputs)} inputs and {len(layer.outputs)} outputs",
                expected="one output, and what the variable begins with as the input",
            )
        found[name] = layer
    return found


def _result(number: int, name: str, write: Layer, scope: str) -> Layer:
    if not write.outputs:
        write.outputs = (replace(write.inputs[0], id=-1),)
    port, where = replace(write.outputs[0], names=()), f"{scope}: Result layer {number} '{shorten(name)}'"
    sources = ((write.id, 0),)
    return Layer(number, name, "Result", "opset1", {}, (port,), (), where, sources, output_names=(name,))


def _parameter(number: int, name: str, read: Layer) -> Layer:
    kind, sizes = declared_type(read, "variable_type"), declared_shape(read, "variable_shape")
    where = f"{read.where}: its variable '{shorten(name)}'"
    attributes = {"element_type": kind.name, "shape": shape_text(sizes)}
    return Layer(number, name, "Parameter", "opset1", attributes, (), (Port(0, kind, sizes),), where)


ROWS = (Row("ReadValue", read_value, (1, 2)), Row("Assign", plain(lambda value: value), (1, 1), (0, 1)))
