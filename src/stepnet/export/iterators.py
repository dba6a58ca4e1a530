"""TensorIterators built by hand, in a module that is traced: one node each, and a loop by its ports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.capture import Replaced
from stepnet.compiler.reach import reach
from stepnet.data.outputs import Outputs
from stepnet.front.step import step_name
from stepnet.iterator.body import CallBody
from stepnet.iterator.ports import InputPort, OutputPort, Port
from stepnet.iterator.tensor_iterator import INSTEAD, TensorIterator
from stepnet.user_line import user_line
from stepnet.watchers import replaced

from .aten import AtenNet, rule
from .body_trace import BodyTrace, inside, no_lengths
from .calls import (
    KINDS,
    Calls,
    Kind,
    Recorder,
    Tracer,
    answered,
    call_of,
    inner_calls,
    places_of,
    traced_op,
    unanswered,
)
from .emit import Emit
from .graph import Loop, LoopInput, LoopOutput, Value
from .reads import tensors_read


@dataclass
class LoopCall:
    """A TensorIterator as it was run for real. `parts` are what its body was given at one iteration."""

    loop: TensorIterator
    body: CallBody
    parts: list[Tensor]
    places: list[int]  # of the tensors the body uses, among those it reaches
    weights: list[Tensor]
    where: str
    inner: Calls | None = None  # those that one iteration makes
    known: list[Any] = field(default_factory=list)  # sizes of time, in its trace

    @property
    def ports(self) -> list[InputPort]:
        """The input port of each parameter of the body."""
        fed = {port.internal: port for port in self.loop.port_map if isinstance(port, InputPort)}
        return [fed[name] for name in self.body.parameters]


def part_of(port: InputPort, value: Tensor) -> Tensor:
    """A slice of an input, as the body gets it."""
    return value if port.axis is None else value.narrow(port.axis, 0, port.part_size)


def iterations(port: Port, size: Any) -> Any:
    """How often a port that is cut lets the loop run; `size` may be symbolic."""
    start = port.start + (size + 1 if port.start < 0 else 0)
    end = port.end + (size + 1 if port.end < 0 else 0)
    return (end - start if port.stride > 0 else start - end) // abs(port.stride)


@traced_op
def iterator(call: int, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    made: LoopCall = call_of(call)
    feeds = dict(zip(made.loop.inputs, inputs, strict=True))
    swap = {id(t): fake for t, fake in zip(made.weights, weights, strict=True)}
    with Replaced(swap), unanswered() if made.inner is None else made.inner.traced(no_lengths):
        results = made.body(*(part_of(port, feeds[port.external]) for port in made.ports))
    by_key = dict(zip(made.body.keys, results, strict=True))
    cut = [port for port in made.ports if port.axis is not None]
    made.known += [feeds[port.external].shape[port.axis or 0] for port in cut]
    out = []
    for port in made.loop.port_map:
        if not isinstance(port, OutputPort):
            continue
        result = by_key[port.internal]
        shape = list(result.shape)
        if port.axis is not None:
            first = cut[0] if cut else None
            size = 0 if first is None or first.axis is None else feeds[first.external].shape[first.axis]
            count = iterations(first or port, size) if first or min(port.start, port.end) >= 0 else 1
            shape[port.axis] = shape[port.axis] * count
        out.append(result.new_empty(shape))
    return out


class LoopRecorder(Recorder):
    """Answers for a TensorIterator by running it, and keeps what it was given."""

    def __call__(self, loop: TensorIterator, feeds: Mapping[str, Tensor]) -> Outputs:
        where = f"the TensorIterator over '{step_name(loop.body)}' ({user_line().short})"
        with unanswered():
            body = loop.loop.body
            assert isinstance(body, CallBody)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = loop(**feeds)
            made = LoopCall(loop, body, [], [], [], where)
            made.parts = [part_of(port, feeds[port.external]).detach().clone() for port in made.ports]
            used = tensors_read(lambda: body(*made.parts), made.parts)
            made.inner = inner_calls(self.target, lambda: body(*made.parts))
        made.places = places_of(used, loop.body, where, "its body")
        made.weights = list(used)
        self.keep(made)
        return out


class LoopTracer(Tracer):
    """Answers for a TensorIterator by one node of the graph that is being traced."""

    what = "runs another number of TensorIterators"

    def __call__(self, loop: TensorIterator, feeds: Mapping[str, Tensor]) -> Outputs:
        number, call = self.next()
        tensors = reach(loop.body, everything=True).tensors
        weights = [tensors[p] for p in call.places]
        out = torch.ops.stepnet.iterator(number, [feeds[name] for name in loop.inputs], weights)
        return Outputs(loop.outputs, tuple(out))


def _answered(instead: Any) -> Any:
    return answered(INSTEAD, instead)


KINDS.append(Kind(_answered, LoopRecorder, lambda calls, _: LoopTracer(calls)))


@rule("stepnet.iterator")
def _written(
    b: AtenNet, number: int, inputs: Sequence[FxNode], weights: Sequence[FxNode]
) -> tuple[Value, ...]:
    call: LoopCall = call_of(number)
    fed = dict(zip(call.loop.inputs, inputs, strict=True))
    shapes = [_part(b.shape(fed[port.external]), port) for port in call.ports]
    trace = BodyTrace(b, call.where, shapes, call.parts, weights, call.weights)

    def run(leaves: Sequence[Tensor], _: Sequence[Tensor]) -> Sequence[Tensor]:
        with inside(b, call.where, call.inner, replaced, _answered):
            return call.body(*leaves)

    program = trace.traced(run, call.loop.body)
    body = b.emit.graph.body(f"{call.body.name} body")
    by_name = {name: trace.parameter(body, i, name) for i, name in enumerate(call.body.parameters)}
    ins = [
        LoopInput(b.out(fed[port.external]), parameter, **_cut(port, len(b.shape(fed[port.external]))))
        for port, parameter in zip(call.ports, by_name.values(), strict=True)
    ]
    ins += trace.rest(body, "shared_{}")
    net = AtenNet(Emit(body), call.where)
    out = net.run(program, [i.parameter for i in ins])
    results = {}
    for key, value, node in zip(call.body.keys, out, program.outputs, strict=True):
        shape = [size if isinstance(size, int) else -1 for size in net.shape(node)]
        results[key] = body.result(value, shape=shape)
    ranks = {key: node.meta["val"].dim() for key, node in zip(call.body.keys, program.outputs, strict=True)}
    outs = [
        LoopOutput(results[port.internal], **_cut(port, ranks[port.internal]))
        for port in call.loop.port_map
        if isinstance(port, OutputPort)
    ]
    edges = tuple((results[edge.from_result], by_name[edge.to_parameter]) for edge in call.loop.back_edges)
    return b.emit.graph.loop(Loop(body, tuple(ins), tuple(outs), edges), call.body.name)


def _part(shape: list[Any], port: Port) -> list[Any]:
    """The shape of a slice."""
    if port.axis is not None:
        shape[port.axis] = port.part_size
    return shape


def _cut(port: Port, rank: int) -> dict[str, Any]:
    if port.axis is None:
        return {}
    return {"axis": port.axis % rank, "start": port.start, "end": port.end, "stride": port.stride}
