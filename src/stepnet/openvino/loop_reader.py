"""The parts that only TensorIterator, Loop and If have: bodies, port maps, back edges."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from stepnet.file_model import Broken, shorten

from .attributes import Attributes
from .known_names import check_children, check_names
from .order import OF_EDGES
from .records import Layer, Net, PortMap, PortRow
from .xml_tree import only

_OF_ROWS = (
    "external_port_id", "internal_layer_id", "axis", "start", "end", "stride", "part_size", "purpose",
)  # fmt: skip
PURPOSES = ("current_iteration", "execution_condition")
_SIDES = {  # what a row joins on each side, the purpose that it may have there, and the other side
    "input": ("Parameter", "current_iteration", "output"),
    "output": ("Result", "execution_condition", "input"),
}
BodyReader = Callable[[Any, str, str, int], Net]


def read_loop_parts(layer: Layer, element: Any, scope: str, depth: int, read_body: BodyReader) -> None:
    """Give a layer its bodies, port maps and back edges, and check that they fit.

    Raises:
        IRError: a part is missing or names what is not there.
    """
    branches = ("then_", "else_") if layer.type == "If" else ("",)
    for prefix in branches:
        port_map = only(element, f"{prefix}port_map", layer.where)
        if port_map is None:
            found = ", ".join(f"<{shorten(str(part.tag))}>" for part in list(element)[:12])
            raise Broken(
                f"{layer.where}: has no <{prefix}port_map>",
                got=found or "nothing in it",
                expected=f"<{prefix}port_map> with an entry for each port",
            )
        check_children(port_map, layer.where, ("input", "output"))
        body = only(element, f"{prefix}body", layer.where)
        if body is None or body.find("layers") is None or not body.find("layers").findall("layer"):
            raise Broken(
                f"{layer.where}: {prefix}body has no layers",
                got="no body" if body is None else "an empty one",
                expected=f"<{prefix}body> with <layers>",
            )
        inner = f"{scope}: {prefix}body of {layer.type} '{shorten(layer.name)}' (layer {layer.id})"
        net = read_body(body, inner, layer.name, depth + 1)
        rows = PortMap(
            tuple(_row(found, layer, "input") for found in port_map.findall("input")),
            tuple(_row(found, layer, "output") for found in port_map.findall("output")),
        )
        layer.bodies[prefix], layer.maps[prefix] = net, rows
        _check_inputs(layer, net, rows)
        _check_outputs(layer, net, rows)
    if layer.type != "If":
        _read_back_edges(layer, only(element, "back_edges", layer.where))


def _row(element: Any, layer: Layer, side: str) -> PortRow:
    keys = [k for k in ("external_port_id", "internal_layer_id") if element.get(k)]
    which = "".join(f" {key}={shorten(element.get(key))}" for key in keys)
    where = f"{layer.where}: port_map {side}{which}"
    attributes = Attributes(element.attrib, where)
    if "internal_port_id" in attributes:
        raise Broken(
            f"{where}: internal_port_id belongs to IR version 7 and older",
            got=f"internal_port_id={shorten(attributes.text('internal_port_id'))}",
            expected="internal_layer_id of a Parameter or Result",
            remedy="convert the model again with a current OpenVINO",
        )
    check_names(element.attrib, where, _OF_ROWS)
    check_children(element, where, ())
    purpose = element.get("purpose") or None
    if purpose is not None and (purpose not in PURPOSES or layer.type != "Loop"):
        known = (
            " or ".join(PURPOSES) if layer.type == "Loop" else f"none: ports of {layer.type} have no purpose"
        )
        raise Broken(f"{where}: purpose is not known", got=shorten(purpose), expected=known)
    external = attributes.int("external_port_id")
    internal = attributes.int("internal_layer_id")
    if purpose is None and external < 0:
        purposed = f', or purpose="{_SIDES[side][1]}"' if layer.type == "Loop" else ""
        raise Broken(f"{where}: names no port", got=external, expected=f"the id of a port{purposed}")
    if purpose == PURPOSES[0] and external >= 0:
        got, wanted = f"external_port_id={external}", 'external_port_id="-1", or no purpose'
        raise Broken(f"{where}: {purpose} comes from no port", got=got, expected=wanted)
    axis = attributes.int("axis") if "axis" in attributes else None
    stride, part = attributes.int("stride", 1), attributes.int("part_size", 1)
    row = PortRow(
        external, internal, axis, attributes.int("start", 0), attributes.int("end", -1), stride, part, purpose
    )
    if axis is not None:
        if purpose is not None and external < 0:
            raise Broken(
                f"{where}: {purpose} is one value and not sliced", got=f"axis={axis}", expected="no axis"
            )
        if layer.type == "If":
            raise Broken(f"{where}: a branch of If is not sliced", got=f"axis={axis}", expected="no axis")
        if stride == 0:
            raise Broken(
                f"{where}: stride must not be 0",
                got="stride=0",
                expected='stride="1", say, or -1 for backwards',
            )
        if part <= 0:
            raise Broken(
                f"{where}: part_size must be > 0",
                got=f"part_size={part}",
                expected=f'part_size="{max(abs(stride), 1)}", as far as the stride',
            )
        if part != abs(stride):
            raise Broken(
                f"{where}: part_size {part} and |stride| {abs(stride)} differ"
                " (overlapping slices are not defined)",
                got=f"part_size={part}, stride={stride}",
                expected="part_size equal to |stride|",
            )
    return row


def _check_number(net: Net, row: PortRow, where: str) -> None:
    kind = net.layers[row.internal].outputs[0].type
    if (
        row.purpose is not None
        and kind is not None
        and (kind.dtype.is_floating_point or kind.dtype is torch.bool)
    ):
        raise Broken(
            f"{where}: the number of the iteration is a whole number",
            got=f"the Parameter '{shorten(net.layers[row.internal].name)}' of {kind.name}",
            expected="i64 or i32",
        )


def _check_inputs(layer: Layer, net: Net, rows: PortMap) -> None:
    ports = dict.fromkeys(p.id for p in layer.inputs)
    fed: dict[int, int] = {}
    for row in rows.inputs:
        where = f"{layer.where}: port_map input internal_layer_id={row.internal}"
        _check_ends(layer, net, row, ports, "input", where)
        _check_number(net, row, where)
        if row.internal in fed:
            raise Broken(
                f"{where}: the Parameter is fed twice",
                got=f"input ports {fed[row.internal]} and {row.external}",
                expected="one port_map entry",
            )
        fed[row.internal] = row.external
    for parameter in net.parameters:
        if parameter not in fed:
            raise Broken(
                f"{net.layers[parameter].where}: no port_map input feeds this Parameter of the body",
                got=f"inputs with internal_layer_id {list(fed)[:8]}" if fed else "no inputs",
                expected=f"<input internal_layer_id={parameter} .../>",
            )


def _check_outputs(layer: Layer, net: Net, rows: PortMap) -> None:
    ports = dict.fromkeys(p.id for p in layer.outputs)
    seen: set[int] = set()
    conditions = 0
    for row in rows.outputs:
        where = f"{layer.where}: port_map output internal_layer_id={row.internal}"
        _check_ends(layer, net, row, ports, "output", where)
        conditions += row.purpose is not None
        if row.external < 0:
            continue
        if row.external in seen:
            raise Broken(
                f"{where}: output port {row.external} has two port_map entries",
                got=f"{sum(r.external == row.external for r in rows.outputs)} entries",
                expected="one entry",
            )
        seen.add(row.external)
    if layer.type == "Loop" and conditions != 1:
        raise Broken(
            f"{layer.where}: has {'two execution conditions' if conditions else 'no execution condition'}",
            got=f"{conditions} outputs of this purpose",
            expected='<output external_port_id="-1" internal_layer_id="..." purpose="execution_condition"/>',
        )
    for port in ports:
        if port not in seen:
            raise Broken(
                f"{layer.where}: output port {port} has no port_map entry",
                got=f"entries for output ports {list(seen)[:8]}" if seen else "no entries",
                expected=f"<output external_port_id={port} .../>",
            )


def _check_ends(layer: Layer, net: Net, row: PortRow, ports: Collection[int], side: str, where: str) -> None:
    """A row joins a layer of the body that is of its side with a port, or has the purpose of that side."""
    kind, purpose, other = _SIDES[side]
    found = net.layers.get(row.internal)
    if found is None:
        raise Broken(
            f"{where}: names no layer in the body",
            got=row.internal,
            expected=f"the id of a {kind} of the body",
        )
    if found.type != kind:
        raise Broken(
            f"{where}: maps to layer {row.internal} '{shorten(found.name)}',"
            f" which is a {shorten(found.type)}",
            got=found.type,
            expected=f"a {kind} of the body",
        )
    if row.purpose not in (None, purpose):
        raise Broken(
            f"{where}: {row.purpose} is the purpose of an {other}",
            got=f"a port_map {side}",
            expected=f'purpose="{purpose}", or none',
        )
    if row.external not in ports and (row.purpose is None or (side == "output" and row.external >= 0)):
        raise Broken(
            f"{where}: external_port_id={row.external} names no {side} port",
            got=row.external,
            expected=f"one of {list(ports)[:8]}" if ports else f"an {side} port, of which the layer has none",
        )


def _read_back_edges(layer: Layer, element: Any) -> None:
    net, rows = layer.bodies[""], layer.maps[""]
    fed = {row.internal: row for row in rows.inputs}
    edges: dict[int, int] = {}  # from, by to
    if element is not None:
        check_children(element, layer.where, ("edge",))
    for found in [] if element is None else element.findall("edge"):
        attributes = Attributes(found.attrib, f"{layer.where}: back edge")
        check_names(found.attrib, attributes.where, OF_EDGES)
        start, end = attributes.int("from-layer"), attributes.int("to-layer")
        where = f"{layer.where}: back edge from-layer={start} to-layer={end}"
        for i, kind in ((start, "Result"), (end, "Parameter")):
            at = net.layers.get(i)
            if at is None or at.type != kind:
                raise Broken(
                    f"{where}: layer {i} is no {kind} of the body",
                    got="no layer" if at is None else f"a {shorten(at.type)} '{shorten(at.name)}'",
                    expected=f"a {kind}",
                )
        if end in edges:
            raise Broken(
                f"{where}: Parameter {end} is the target of two back edges",
                got=f"from Results {edges[end]} and {start}",
                expected="one back edge for each Parameter",
            )
        if fed[end].axis is not None or fed[end].purpose is not None:
            cut = fed[end].axis is not None
            how, what = ("slices", "axis") if cut else ("the iteration number", "purpose")
            raise Broken(
                f"{where}: Parameter {end} gets {how} from its port_map and cannot be carried",
                got=f"{what}={getattr(fed[end], what)}",
                expected=f"a Parameter whose port_map entry has no {what}",
            )
        edges[end] = start
    layer.back_edges = tuple((start, end) for end, start in edges.items())
