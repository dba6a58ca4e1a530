"""From records to the two files of an OpenVINO IR, version 11."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stepnet.errors import IRError
from stepnet.file_model import shorten
from stepnet.openvino.element_types import by_dtype
from stepnet.openvino.reader import DEEPEST
from stepnet.openvino.records import Layer, Net, Port, PortRow
from stepnet.openvino.table import is_constant
from stepnet.openvino.workarounds import worked_around

from .bin_writer import Constants
from .files import replace_pair

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_XML_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
)


def write(net: Net, path: Path) -> None:
    """Write a net to `path`, and its constants to the .bin beside it.

    Ports are numbered anew: inputs from 0, outputs after them. What OpenVINO would run wrongly is written in
    a form that means the same (see `workarounds`). Both files are complete before either takes the place of
    an older one.

    Raises:
        IRError: the path has another ending than .xml or cannot be written, or IR cannot hold the net: a
            name with control characters, a constant without data.
    """
    if path.suffix != ".xml":
        raise IRError(
            f"{path.name or path}: the name must end in .xml",
            got=str(path),
            expected="NAME.xml",
            remedy="another name; the weights go beside it, into NAME.bin",
        )
    if not net.layers:
        raise IRError(
            f"{net.scope}: has no layers",
            expected="at least one layer",
            got="none",
            remedy="add an input and a result",
        )
    constants = Constants()
    text = '<?xml version="1.0" encoding="utf-8"?>\n' + "\n".join(_net(worked_around(net), constants)) + "\n"
    replace_pair(path, text.encode(), path.with_suffix(".bin"), constants.chunks())


def _net(net: Net, constants: Constants) -> Iterator[str]:
    yield f"<net{_attributes({'name': net.name, 'version': '11'}, net.scope)}>"
    yield from _layers(net, constants, 0)
    if net.rt_info:
        yield "<rt_info>"
        yield from _model_info(net.rt_info, f"{net.scope}: rt_info", 0)
        yield "</rt_info>"
    yield "</net>"


def _layers(net: Net, constants: Constants, depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        raise IRError(
            f"{net.scope}: bodies are nested too deeply",
            got=f"more than {DEEPEST} levels",
            expected=f"{DEEPEST} at most",
            remedy="run inner loops before the outer ones",
        )
    yield "<layers>"
    for layer in net.layers.values():
        yield from _layer(net, layer, constants, depth)
    yield "</layers>"
    yield "<edges>"
    for i, layer in net.layers.items():
        for port, (source, index) in enumerate(layer.sources):
            start = len(net.layers[source].inputs) + index
            yield f'<edge from-layer="{source}" from-port="{start}" to-layer="{i}" to-port="{port}"/>'
    yield "</edges>"


def _layer(net: Net, layer: Layer, constants: Constants, depth: int) -> Iterator[str]:
    head = {"id": str(layer.id), "name": layer.name, "type": layer.type, "version": layer.version}
    data: Mapping[str, str] = layer.attributes
    if is_constant(layer):
        head["type"], data = "Const", _place(layer, constants)
    if layer.output_names:
        head["output_names"] = _names(layer.output_names, layer.where)
    yield f"<layer{_attributes(head, layer.where)}>"
    if data:
        yield f"<data{_attributes(data, layer.where)}/>"
    if layer.bodies:
        yield from _maps(layer)
    if layer.rt_info:
        yield "<rt_info>"
        for tag, attributes in layer.rt_info:
            yield f"<{tag}{_attributes(attributes, f'{layer.where}: rt_info')}/>"
        yield "</rt_info>"
    if layer.inputs:
        sources = [net.layers[source].outputs[index] for source, index in layer.sources]
        yield "<input>"
        for i, port in enumerate(sources):
            yield from _port(i, port, (), layer)
        yield "</input>"
    if layer.outputs:
        yield "<output>"
        for i, port in enumerate(layer.outputs, len(layer.inputs)):
            yield from _port(i, port, port.names, layer)
        yield "</output>"
    for prefix, body in layer.bodies.items():
        yield f"<{prefix}body>"
        yield from _layers(body, constants, depth + 1)
        yield f"</{prefix}body>"
    yield "</layer>"


def _place(layer: Layer, constants: Constants) -> dict[str, str]:
    value = layer.value
    if value is None or value.is_meta:
        raise IRError(
            f"{layer.where}: the constant has no data",
            expected="a tensor with values",
            got="a tensor on the meta device, or none",
            remedy="load the weights before the model is saved",
        )
    if value.layout is not torch.strided or by_dtype(value.dtype) is None:
        raise IRError(
            f"{layer.where}: the constant cannot be written",
            got=f"{value.dtype}, {value.layout}",
            expected="a dense tensor of an element type of IR",
            remedy="convert it: .to_dense(), .float()",
        )
    offset, size = constants.place(value)
    kind = by_dtype(value.dtype)
    assert kind is not None
    shape = ", ".join(map(str, value.shape))
    return {"element_type": kind.name, "shape": shape, "offset": str(offset), "size": str(size)}


def _maps(layer: Layer) -> Iterator[str]:
    """Port maps and back edges. A port is its place among the layer's ports."""
    inputs = {port.id: i for i, port in enumerate(layer.inputs)}
    outputs = {port.id: i for i, port in enumerate(layer.outputs, len(layer.inputs))}
    for prefix, rows in layer.maps.items():
        yield f"<{prefix}port_map>"
        for row in rows.inputs:
            yield _row("input", row, inputs)
        for row in rows.outputs:
            yield _row("output", row, outputs)
        yield f"</{prefix}port_map>"
    if layer.type != "If":
        yield "<back_edges>"
        for start, end in layer.back_edges:
            yield f'<edge from-layer="{start}" to-layer="{end}"/>'
        yield "</back_edges>"


def _row(tag: str, row: PortRow, places: Mapping[int, int]) -> str:
    external = -1 if row.external < 0 else places[row.external]
    ends = f'external_port_id="{external}" internal_layer_id="{row.internal}"'
    if row.purpose is not None:
        return f'<{tag} {ends} purpose="{row.purpose}"/>'
    if row.axis is None:
        return f"<{tag} {ends}/>"
    cut = f'start="{row.start}" end="{row.end}" stride="{row.stride}" part_size="{row.part_size}"'
    return f'<{tag} axis="{row.axis}" {ends} {cut}/>'


def _port(number: int, port: Port, names: Sequence[str], layer: Layer) -> Iterator[str]:
    if port.type is None:
        raise IRError(
            f"{layer.where}: port {number} has no element type",
            expected="a type for each port",
            got="none",
            remedy="name its dtype where the layer is made",
        )
    head = {"id": str(number), "precision": port.type.precision}
    if names:
        head["names"] = _names(names, layer.where)
    text = f"<port{_attributes(head, layer.where)}"
    if not port.shape:
        yield f"{text}/>"
    else:
        yield f"{text}>{''.join(f'<dim>{d}</dim>' for d in port.shape)}</port>"


def _names(names: Sequence[str], where: str) -> str:
    """Between commas; a comma in a name is written with a backslash."""
    for i, name in enumerate(names):
        if not name.strip() or (name.endswith("\\") and i + 1 < len(names)):
            raise IRError(
                f"{where}: IR cannot hold the tensor name '{shorten(name)}'",
                got="an empty name" if not name.strip() else "a backslash before a comma",
                expected="a name with characters that IR can hold",
                remedy="give it another name",
            )
    return ",".join(name.replace(",", "\\,") for name in names)


def _model_info(info: Mapping[str, Any], where: str, depth: int) -> Iterator[str]:
    """A key that is no XML name, or is `info`, stands in an attribute, as OpenVINO does it."""
    if depth > DEEPEST:
        raise IRError(
            f"{where}: is nested too deeply",
            got=f"more than {DEEPEST} levels",
            expected=f"{DEEPEST} at most",
            remedy="less deep notes",
        )
    for key, value in info.items():
        if not isinstance(key, str) or not isinstance(value, (str, Mapping)):
            raise IRError(
                f"{where}: '{shorten(str(key))}' cannot be written",
                got=f"{type(key).__name__}: {type(value).__name__}",
                expected="text, or a dict of text",
                remedy="text of it, such as json.dumps gives",
            )
        plain = _XML_NAME.fullmatch(key) and key != "info"
        tag, head = (key, {}) if plain else ("info", {"name": key})
        if isinstance(value, str):
            yield f"<{tag}{_attributes({**head, 'value': value}, where)}/>"
        else:
            yield f"<{tag}{_attributes(head, where)}>"
            yield from _model_info(value, where, depth + 1)
            yield f"</{tag}>"


def _attributes(values: Mapping[str, str], where: str) -> str:
    return "".join(f' {key}="{_escaped(value, f"{where}: {key}")}"' for key, value in values.items())


def _escaped(text: str, where: str) -> str:
    illegal = _ILLEGAL.search(text)
    if illegal is not None:
        raise IRError(
            f"{where}: XML cannot hold the character {shorten(illegal.group())}",
            got=f"'{shorten(text)}'",
            remedy="give it another name",
            expected="text without control characters",
        )
    return text.translate(_ESCAPES)
