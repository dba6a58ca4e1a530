"""From ports and back edges as a user writes them to the record of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepnet.data.arguments import listed
from stepnet.errors import LoopError
from stepnet.front.step import step_name
from stepnet.ir import loop as ir

from .body import CallBody, Signature, result_name, signature_of
from .ports import BackEdge, InputPort, OutputPort, Port, cut_of

_NUMBERS = ("start", "end", "stride", "part_size")


def check_ports(body: Any, port_map: Sequence[Port], back_edges: Sequence[BackEdge]) -> None:
    """Hold a port map against the body's signature.

    Raises:
        LoopError: names every port and back edge that does not fit, as it was written.
    """
    port_map = listed("TensorIterator: 'port_map'", port_map, object, error=LoopError)
    back_edges = listed("TensorIterator: 'back_edges'", back_edges, object, error=LoopError)
    signature = signature_of(body)
    wrong = list(_wrong(signature, port_map, back_edges))
    if wrong:
        raise does_not_fit(step_name(body), wrong, f"parameters of the body: {', '.join(signature.names)}")


def does_not_fit(name: str, wrong: Sequence[str], expected: str | None = None) -> LoopError:
    """An error that lists all that is wrong, a line each."""
    count = "1 thing does" if len(wrong) == 1 else f"{len(wrong)} things do"
    lines = "".join(f"\n  - {line}" for line in wrong)
    return LoopError(f"TensorIterator over '{name}': {count} not fit{lines}", expected=expected)


def _wrong(signature: Signature, port_map: Sequence[Port], back_edges: Sequence[BackEdge]) -> Iterator[str]:
    inputs = [port for port in port_map if isinstance(port, InputPort)]
    outputs = [port for port in port_map if isinstance(port, OutputPort)]
    unnamed = [port for port in inputs if not isinstance(port.internal, str)]
    unnamed += [
        edge for edge in back_edges if isinstance(edge, BackEdge) and not isinstance(edge.to_parameter, str)
    ]
    for one in unnamed:
        yield f"{one!r}: the name of a parameter must be a str"
    for port in port_map:
        if isinstance(port, (InputPort, OutputPort)):
            yield from _wrong_port(port)
        else:
            instead = "; it belongs in back_edges" if isinstance(port, BackEdge) else ""
            yield f"port_map holds {port!r}, which is neither an InputPort nor an OutputPort{instead}"
    for edge in back_edges:
        if not isinstance(edge, BackEdge):
            yield f"back_edges holds {edge!r}, which is no BackEdge"
    edges = [edge for edge in back_edges if isinstance(edge, BackEdge)]
    if unnamed or not all(isinstance(port.external, str) for port in outputs):
        return
    if not outputs:
        yield "port_map has no OutputPort: the loop would return nothing"
    yield from _wrong_feeds(signature, inputs)
    yield from _wrong_edges(signature, inputs, edges)
    made: dict[Any, OutputPort] = {}
    for port in outputs:
        if port.external in made:
            yield f"{port!r}: {made[port.external]!r} already is output {port.external!r}"
        made.setdefault(port.external, port)
    keys = [(port, port.internal) for port in outputs] + [(edge, edge.from_result) for edge in edges]
    for place, key in keys:
        if isinstance(key, bool) or not isinstance(key, (int, str)) or (isinstance(key, int) and key < 0):
            yield f"{place!r}: result {key!r} is neither a position from 0 nor a name"
    if {type(key) for _, key in keys} >= {int, str}:
        yield "results are read by position and by name: a body returns a tuple or a dict, not both"


def _wrong_port(port: Port) -> Iterator[str]:
    if not isinstance(port.external, str):
        yield f"{port!r}: the external name must be a str, not {type(port.external).__name__}"
    numbers = {name: getattr(port, name) for name in _NUMBERS}
    strange = [n for n, v in numbers.items() if isinstance(v, bool) or not isinstance(v, int)]
    if port.axis is not None and (isinstance(port.axis, bool) or not isinstance(port.axis, int)):
        strange.insert(0, "axis")
    for name in strange:
        yield f"{port!r}: {name} must be an int"
    if strange:
        return
    if port.axis is None:
        given = [f"{name}={value}" for name, value in numbers.items() if value != getattr(type(port), name)]
        if given:
            yield f"{port!r}: {', '.join(given)} cuts nothing without an axis"
        return
    if port.stride == 0:
        yield f"{port!r}: stride must not be 0"
    if port.part_size < 1:
        yield f"{port!r}: part_size must be 1 or more"
    if port.stride and port.part_size > 0 and port.part_size != abs(port.stride):
        yield (
            f"{port!r}: part_size {port.part_size} and stride {port.stride} differ in size"
            f" (slices would overlap, or leave elements out; give part_size={abs(port.stride)})"
        )


def _wrong_feeds(signature: Signature, inputs: Sequence[InputPort]) -> Iterator[str]:
    fed: dict[str, InputPort] = {}
    for port in inputs:
        if port.internal not in signature.names:
            yield f"{port!r}: the body has no parameter {port.internal!r}"
        elif port.internal in fed:
            yield f"{port!r}: {fed[port.internal]!r} already feeds parameter {port.internal!r}"
        else:
            fed[port.internal] = port
    for name in signature.needed:
        if name not in fed:
            yield f"no InputPort feeds parameter {name!r} of the body"


def _wrong_edges(
    signature: Signature, inputs: Sequence[InputPort], edges: Sequence[BackEdge]
) -> Iterator[str]:
    fed = {port.internal: port for port in inputs}
    ends: dict[str, BackEdge] = {}
    for edge in edges:
        port = fed.get(edge.to_parameter)
        if edge.to_parameter not in signature.names:
            yield f"{edge!r}: the body has no parameter {edge.to_parameter!r}"
        elif edge.to_parameter in ends:
            yield f"{edge!r}: {ends[edge.to_parameter]!r} already ends at parameter {edge.to_parameter!r}"
        elif port is None and edge.to_parameter not in signature.needed:
            yield f"{edge!r}: no InputPort gives parameter {edge.to_parameter!r} its first value"
        elif port is not None and port.axis is not None:
            yield f"{edge!r}: {port!r} cuts slices for this parameter; it cannot be carried as well"
        ends.setdefault(edge.to_parameter, edge)


def record(body: Callable[..., Any], port_map: Sequence[Port], back_edges: Sequence[BackEdge]) -> ir.Loop:
    """The record of a loop whose ports were checked."""
    signature = signature_of(body)
    fed = {port.internal for port in port_map if isinstance(port, InputPort)}
    keys = [port.internal for port in port_map if isinstance(port, OutputPort)]
    keys += [edge.from_result for edge in back_edges]
    parameters = [name for name in signature.names if name in fed]
    call = CallBody(
        body, parameters, [name for name in signature.positional if name in fed], list(dict.fromkeys(keys))
    )
    carried = {edge.to_parameter for edge in back_edges}
    inputs: list[ir.InputPort] = []
    outputs: list[ir.OutputPort] = []
    for port in port_map:
        if isinstance(port, OutputPort):
            result = result_name(port.internal)
            joined = ir.Last(result, port.external)
            if port.axis is not None:
                joined = ir.Concat(result, port.external, **cut_of(port))
            outputs.append(joined)
        elif port.axis is not None:
            inputs.append(ir.Slice(port.external, port.internal, **cut_of(port)))
        else:
            kind = ir.Merged if port.internal in carried else ir.Invariant
            inputs.append(kind(port.external, port.internal))
    edges = [ir.BackEdge(result_name(edge.from_result), edge.to_parameter) for edge in back_edges]
    return ir.Loop(call, inputs, outputs, edges)
