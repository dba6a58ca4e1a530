"""From an IR file to records: nets, layers and ports, every rule of the format checked.

Versions 10 and 11, layers and child elements in any order, any port numbers. What a layer computes is
not known here; `table` knows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepnet.file_model import Broken, NotRead, Unreadable, shorten

from .attributes import Attributes
from .element_types import ElementType, by_name, by_precision
from .fed_types import take_types
from .known_names import check_children, check_names
from .loop_reader import read_loop_parts
from .opset_versions import SINCE
from .order import connect
from .records import Layer, Net, Port, Shape
from .xml_tree import only, parse

DEEPEST = 16  # bodies in bodies
_DIM = re.compile(r"-1|\?|[0-9]{1,19}|([0-9]{1,19})?\.\.([0-9]{1,19})?", re.ASCII)
_OPSETS = tuple(f"opset{number}" for number in range(1, 18))  # to that of OpenVINO 2026.4
_WITH_BODIES = {"tensoriterator": "TensorIterator", "loop": "Loop", "if": "If"}
_OF_LOOPS = ("port_map", "back_edges", "body")
_IN_LAYERS = {
    "TensorIterator": _OF_LOOPS,
    "Loop": _OF_LOOPS,
    "If": tuple(f"{prefix}_{part}" for prefix in ("then", "else") for part in ("port_map", "body")),
}
_OF_PORTS = ("id", "precision", "names")
_OF_LAYERS = ("id", "name", "type", "version", "output_names")


def read_net(path: Path) -> Net:
    """Read and check a whole IR file.

    Raises:
        IRError: it breaks a rule of the format; says file, layer id and name, what was found and expected.
    """
    root = parse(path)
    where = path.name
    if root.tag != "net":
        raise Unreadable(
            f"{where}: not an OpenVINO IR", got=f"<{shorten(str(root.tag))}>", expected="<net ...> at the top"
        )
    attributes = Attributes(root.attrib, f"{where}: <net>")
    if "version" not in attributes:
        raise Broken(
            f"{where}: <net> has no version attribute",
            got=f"attributes {', '.join(map(shorten, list(root.attrib)[:12])) or 'none'}",
            expected='version="10" or "11"',
        )
    version = attributes.int("version")
    if version not in (10, 11):
        raise NotRead(
            f"{where}: IR version {version} is not read",
            got=version,
            expected="10 or 11",
        )
    net = read_body(root, where, attributes.text("name", ""), depth=0)
    take_types(net)
    net.version = version
    net.rt_info = _model_info(root.find("rt_info"), where)
    return net


def read_body(element: Any, scope: str, name: str, depth: int) -> Net:
    """Read `<layers>` and `<edges>` of a net or of a loop's body.

    Raises:
        IRError: a rule is broken.
    """
    if depth > DEEPEST:
        raise Broken(
            f"{scope}: bodies are nested too deeply", got=depth, expected=f"{DEEPEST} levels at most"
        )
    check_children(element, scope, ("layers", "edges"), notes=depth == 0)
    holder = only(element, "layers", scope)
    if holder is not None:
        check_children(holder, scope, ("layer",))
    elements = [] if holder is None else holder.findall("layer")
    if not elements:
        found = "no <layers>" if holder is None else "<layers> without any"
        raise Broken(f"{scope}: has no layers", got=found, expected="<layers> with at least one <layer>")
    layers: dict[int, Layer] = {}
    for found in elements:
        layer = _read_layer(found, scope, depth)
        if layer.id in layers:
            raise Broken(
                f"{scope}: layer id {layer.id} is used twice",
                got=f"'{shorten(layers[layer.id].name)}' and '{shorten(layer.name)}'",
                expected="an id of its own for each layer",
            )
        layers[layer.id] = layer
    edges = only(element, "edges", scope)
    if edges is not None:
        check_children(edges, scope, ("edge",))
    order = connect(layers, [] if edges is None else edges.findall("edge"), scope)
    return Net(
        name=name,
        scope=scope,
        layers=layers,
        order=order,
        parameters=tuple(i for i, layer in layers.items() if layer.type == "Parameter"),
        results=tuple(i for i, layer in layers.items() if layer.type == "Result"),
    )


def _layer_of(element: Any, scope: str) -> Layer:
    """A layer as it is written, with its ports."""
    called = shorten(element.get("name", ""))
    attributes = Attributes(element.attrib, f"{scope}: <layer> '{called}'")
    if "id" not in attributes:
        raise Broken(f"{scope}: a <layer> has no id", got=f"name '{called}'", expected='id="..."')
    layer_id = attributes.size("id")
    attributes.where = f"{scope}: layer {layer_id}"
    name = attributes.text("name")
    attributes.where = f"{scope}: layer {layer_id} '{shorten(name)}'"
    kind = attributes.text("type").strip()
    if not kind:
        raise Broken(
            f"{attributes.where}: its type is empty", got='type=""', expected='type="Add" or another'
        )
    kind = {"parameter": "Parameter", "result": "Result"}.get(kind.lower(), kind)
    kind = _WITH_BODIES.get(kind.lower(), kind)
    where = f"{scope}: {shorten(kind)} layer {layer_id} '{shorten(name)}'"
    attributes.where = where
    version = attributes.text("version").strip()
    if kind not in _IN_LAYERS and element.find("body") is not None:
        raise NotRead(
            f"{where}: its type is not read, and it has a body",
            got=shorten(kind),
            expected=", ".join(_IN_LAYERS),
        )
    check_children(element, where, ("data", "input", "output", *_IN_LAYERS.get(kind, ())))
    check_names(element.attrib, where, _OF_LAYERS, asked=_OF_LAYERS)
    data = only(element, "data", where)
    inputs = _ports(only(element, "input", where), where, output=False)
    outputs = _ports(only(element, "output", where), where, output=True)
    return Layer(
        id=layer_id,
        name=name,
        type=kind,
        version=version,
        attributes={} if data is None else dict(data.attrib),
        inputs=inputs,
        outputs=outputs,
        where=where,
        rt_info=_layer_info(element.find("rt_info")),
        output_names=_names(element.get("output_names")),
    )


def _read_layer(element: Any, scope: str, depth: int) -> Layer:
    layer = _layer_of(element, scope)
    where, kind, version = layer.where, layer.type, layer.version
    inputs, outputs = layer.inputs, layer.outputs
    clash = {p.id for p in inputs} & {p.id for p in outputs}
    if clash and kind in _WITH_BODIES.values():
        raise Broken(
            f"{where}: port id {min(clash)} names an input and an output",
            got=f"inputs {[p.id for p in inputs][:8]}, outputs {[p.id for p in outputs][:8]}",
            expected="an id of its own for each port",
        )
    if kind == "Result" and len(inputs) != 1:
        raise Broken(f"{where}: must have one input", got=f"{len(inputs)} inputs", expected="1 input")
    if kind == "Result" and outputs:
        raise Broken(f"{where}: must have no output", got=f"{len(outputs)} outputs", expected="none")
    if kind == "Parameter" and (inputs or len(outputs) != 1):
        raise Broken(
            f"{where}: must have one output and no input",
            got=f"{len(inputs)} inputs, {len(outputs)} outputs",
            expected="no inputs, 1 output",
        )
    port = outputs[0].type if outputs else None
    if kind.lower() in ("parameter", "const") and "element_type" in layer.attributes and port is not None:
        declared = by_name(layer.attributes["element_type"], where)
        if port != declared:
            raise Broken(
                f"{where}: its element_type and the precision of its port differ",
                got=f"{declared.name}, {port.precision}",
                expected=f"{declared.name}, {declared.precision}",
            )
    if version not in _OPSETS and version != "extension":
        known = f"{_OPSETS[0]} to {_OPSETS[-1]}"
        raise NotRead(f"{where}: version is not known", got=shorten(version), expected=known)
    first = SINCE.get(layer.type.lower(), 1)
    if version != "extension" and layer.opset < first:
        raise Broken(
            f"{where}: its version has no such layer", got=version, expected=f"opset{first} or later"
        )
    if kind in _WITH_BODIES.values():
        read_loop_parts(layer, element, scope, depth, read_body)
    return layer


def _layer_info(element: Any) -> tuple[tuple[str, dict[str, str]], ...]:
    return () if element is None else tuple((str(found.tag), dict(found.attrib)) for found in element)


def _model_info(element: Any, where: str, depth: int = 0) -> dict[str, Any]:
    """Keys and values; a key that is no XML name stands in the attribute `name`."""
    if depth > DEEPEST:
        raise Broken(
            f"{where}: rt_info is nested too deeply", got=depth, expected=f"{DEEPEST} levels at most"
        )
    found: dict[str, Any] = {}
    for child in [] if element is None else element:
        value = child.get("value")
        found[child.get("name", str(child.tag))] = (
            _model_info(child, where, depth + 1) if value is None else value
        )
    return found


def _ports(element: Any, where: str, *, output: bool) -> tuple[Port, ...]:
    ports: dict[int, Port] = {}
    kind = "output" if output else "input"
    if element is not None:
        check_children(element, where, ("port",))
    for found in [] if element is None else element.findall("port"):
        attributes = Attributes(found.attrib, f"{where}, {kind} port")
        number = attributes.size("id")
        here = f"{where}, {kind} port {number}"
        if number in ports:
            raise Broken(
                f"{here}: the port id is used twice",
                got=f'two times id="{number}"',
                expected="an id of its own for each port",
            )
        attributes.where = here
        check_children(found, here, ("dim",))
        check_names(found.attrib, here, _OF_PORTS, asked=_OF_PORTS)
        precision = attributes.text("precision") if output else found.get("precision")
        if precision is not None and precision.strip().upper() == "UNSPECIFIED":
            precision = None  # it follows from what the layer gives
        element_type = None if precision is None else by_precision(precision, here)
        shape = tuple(_dim(d.text or "", here) for d in found.findall("dim"))
        ports[number] = Port(number, element_type, shape, _names(found.get("names")))
    return tuple(ports.values())


def _names(text: str | None) -> tuple[str, ...]:
    """Tensor names between commas; a comma in a name is written with a backslash."""
    if not text:
        return ()
    parts = re.split(r"(?<!\\),", text)
    return tuple(part.replace("\\,", ",") for part in parts if part.strip())


def _dim(text: str, where: str) -> int:
    text = text.strip()
    if not _DIM.fullmatch(text):
        raise Broken(
            f"{where}: dim {shorten(text) or '(empty)'} is not allowed (-1 is dynamic)",
            got=shorten(text),
            expected="a size >= 0, or -1 for a dynamic one",
        )
    numbers = [int(part) for part in text.split("..") if part not in ("?", "-1", "")]
    if any(number >= 2**63 for number in numbers):
        raise Broken(f"{where}: dim {text} does not fit in 64 bits", got=text, expected="less")
    if numbers != sorted(numbers):
        raise Broken(f"{where}: dim {text} ends before it begins", got=text, expected="such as 1..8")
    return numbers[0] if numbers and ".." not in text else -1


def declared_type(layer: Layer, key: str = "element_type") -> ElementType:
    """The element type of what a layer gives: an attribute, or that of its port, as in early files of
    version 10.

    Raises:
        IRError: it is unknown, or there is none.
    """
    port = layer.outputs[0].type
    return layer.said.element_type(key) if port is None or key in layer.attributes else port


def declared_shape(layer: Layer, key: str = "shape") -> Shape | None:
    """The shape of what a layer gives, as an attribute or its port says it; None: of any rank.

    Raises:
        IRError: it is malformed.
    """
    text = layer.attributes.get(key)
    return layer.outputs[0].shape if text is None else shape_from_text(text, layer.where)


def fits(declared: Shape, shape: Sequence[int]) -> bool:
    """Whether a tensor can have both shapes.

    >>> fits((-1, 3), (2, 3)), fits((2, 3), (2, 4))
    (True, False)
    """
    return len(declared) == len(shape) and all(
        m == n or -1 in (m, n) for m, n in zip(declared, shape, strict=True)
    )


def shape_text(shape: Shape | None) -> str:
    """A shape as attributes say it.

    >>> shape_text((-1, 1, 3)), shape_text(None)
    ('?,1,3', '...')
    """
    return "..." if shape is None else ",".join("?" if size < 0 else str(size) for size in shape)


def shown(shape: Shape | None) -> str:
    """A shape as errors say it.

    >>> shown((-1, 3)), shown(())
    ('?,3', 'a scalar')
    """
    return shape_text(shape) or "a scalar"


def shape_from_text(text: str, where: str) -> Shape | None:
    """The shape that an attribute such as `"?,1,3"` gives; "" is a scalar, "..." any rank (None).

    >>> shape_from_text("?, 1, 3", "layer 0")
    (-1, 1, 3)
    """
    text = text.strip().removeprefix("[").removesuffix("]").strip()
    if text == "...":
        return None
    return tuple(_dim(part, f"{where}, shape") for part in text.split(",")) if text else ()
