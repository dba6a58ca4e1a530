"""Loops over slices in a module that is traced: one node each, and a loop by its ports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.iteration import code_of
from stepnet.errors import IRError
from stepnet.ir import loop as ir
from stepnet.user_line import user_line
from stepnet.watchers import ITERATORS, during

from .aten import AtenNet, rule
from .body_trace import BodyTrace, no_lengths
from .calls import (
    KINDS,
    Calls,
    Kind,
    Places,
    Recorder,
    Tracer,
    at_places,
    call_of,
    noted_calls,
    places_of,
    traced_op,
    unanswered,
)
from .captured_state import AsCalled, loop_as_called
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Value
from .keeping_sizes import KeepingSizes
from .size_inputs import Referred, as_tensors, plain_values, with_sizes
from .tensors_read import tensors_read


@dataclass
class IteratorCall:
    """A loop over slices as it was run for real. `parts` are what its body was given at one iteration."""

    loop: ir.Loop
    parts: list[Tensor]
    places: Places  # of the tensors the body uses, among those it reaches
    weights: list[Tensor]
    where: str
    then: AsCalled  # what its body read
    inner: Calls = field(init=False)  # those that one iteration makes
    known: list[Any] = field(default_factory=list)  # sizes of time, in its trace
    sizes: Referred = field(default_factory=dict)  # that are left open, and the body refers to
    again: tuple[Calls, ...] = ()  # those that one iteration makes with tensors in place of sizes
    read: list[Any] = field(default_factory=list)  # the plain values that it reads, when it was traced

    def body(self, sizes: Sequence[Any]) -> Any:
        """The body with these in place of the sizes that it refers to."""
        body: Any = self.loop.body
        new = dict(zip(self.sizes, sizes, strict=True))
        return body.over(with_sizes(body.function, new)) if new else body

    @property
    def ports(self) -> list[Any]:
        """The input port of each parameter of the body."""
        fed = {port.parameter: port for port in self.loop.inputs}
        return [fed[name] for name in self.loop.body.parameters]

    @property
    def sources(self) -> list[str]:
        """What the loop is fed, each once."""
        return list(dict.fromkeys(port.source for port in self.ports))


def part_of(port: Any, value: Tensor) -> Tensor:
    """A slice of an input, as the body gets it."""
    return value.narrow(port.axis, 0, port.part_size or 1) if isinstance(port, ir.Slice) else value


def iterations(port: ir.Slice | ir.Concat, size: Any) -> Any:
    """How often a port that is cut lets the loop run; `size` may be symbolic."""
    start = port.start + (size + 1 if port.start < 0 else 0)
    end = port.end + (size + 1 if port.end < 0 else 0)
    return (end - start if port.stride > 0 else start - end) // abs(port.stride)


@traced_op("(int call, Tensor[] inputs, Tensor[] weights, Tensor[] sizes) -> Tensor[]")
def iterator(call: int, inputs: list[Tensor], weights: list[Tensor], sizes: list[Tensor]) -> list[Tensor]:
    made: IteratorCall = call_of(call)
    feeds = dict(zip(made.sources, inputs, strict=True))
    body = made.loop.body
    with Replaced.by(made.weights, weights) as fed, KeepingSizes(), made.inner.traced(no_lengths):
        results = fed.results(body(*(part_of(port, feeds[port.source]) for port in made.ports)))
    named = dict(zip(body.results, results, strict=True))
    made.known += [feeds[port.source].shape[port.axis] for port in made.loop.slices]
    first = next(iter(made.loop.slices), None)
    out = []
    for port in made.loop.outputs:
        result = named[port.result]
        shape = list(result.shape)
        if isinstance(port, ir.Concat):
            size = 0 if first is None else feeds[first.source].shape[first.axis]
            count = iterations(first or port, size) if first or min(port.start, port.end) >= 0 else 1
            shape[port.axis] = shape[port.axis] * count
        out.append(result.new_empty(shape))
    return out


class LoopRecorder(Recorder):
    """Answers for a loop over slices by running it, and keeps what it was given."""

    def __call__(
        self, loop: ir.Loop, feeds: Mapping[str, Tensor], run: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        where = f"the TensorIterator over '{loop.body.name}' ({user_line().short})"
        with unanswered():
            own = loop_as_called(loop)
            made = IteratorCall(own, [], Places([], []), [], where, AsCalled(code_of(own).function))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = run()
            for port in loop.slices:
                shape = feeds[port.source].shape
                if shape[port.axis] < (port.part_size or 1):
                    raise IRError(
                        f"{where} cannot be written: the example of its input '{port.source}' holds no slice",
                        got=list(shape),
                        expected=f"{port.part_size or 1} or more along axis {port.axis}",
                        remedy="an example with a slice at least",
                    )
            made.parts = [part_of(port, feeds[port.source]).detach().clone() for port in made.ports]
            used = tensors_read(lambda: own.body(*made.parts), made.parts)
            made.inner = noted_calls(self.target, lambda: own.body(*made.parts))
        made.places = places_of(used, code_of(own).function, where, "its body")
        made.weights = list(used)
        self.keep(made)
        return out


class LoopTracer(Tracer):
    """Answers for a loop over slices by one node of the graph that is being traced."""

    what = "runs another number of TensorIterators"

    def __call__(self, loop: ir.Loop, feeds: Mapping[str, Tensor], run: Any) -> dict[str, Tensor]:
        number, call = self.next()
        code = code_of(loop).function
        weights = at_places(call.places, code, call.where, "its body")
        call.sizes, sizes = as_tensors(code, call.where, feeds.values())
        call.read = plain_values(code)
        out = torch.ops.stepnet.iterator(number, [feeds[name] for name in call.sources], weights, sizes)
        return dict(zip((port.output for port in loop.outputs), out, strict=True))


KINDS.append(Kind(partial(during, ITERATORS), LoopRecorder, lambda calls, _: LoopTracer(calls)))


@rule("stepnet.iterator")
def _written(
    b: AtenNet, number: int, inputs: Sequence[FxNode], weights: Sequence[FxNode], sizes: Sequence[FxNode]
) -> tuple[Value, ...]:
    call: IteratorCall = call_of(number)
    call.then.check(call.where)
    b.refuse_rows([*inputs, *weights], call.where)
    loop, body = call.loop, call.loop.body
    fed = dict(zip(call.sources, inputs, strict=True))
    shapes = [_part(b.shape(fed[port.source]), port) for port in call.ports]
    trace = BodyTrace(b, call.where, shapes, call.parts, weights, call.weights, sizes, call.sizes)
    calls = call.inner
    if sizes and calls.numbers():
        calls = noted_calls(calls.target, lambda: call.body(trace.numbers)(*call.parts))
        call.again += (calls,)

    def run(leaves: Sequence[Tensor], sizes: Sequence[Any]) -> Sequence[Tensor]:
        with calls.traced(no_lengths):
            return call.body(sizes)(*leaves)

    program = trace.traced(run, code_of(loop).function)
    graph = b.emit.graph.body(f"{body.name} body")
    by_name = {name: trace.parameter(graph, i, name) for i, name in enumerate(body.parameters)}
    ins = [
        LoopInput(b.out(fed[port.source]), parameter, **_cut(port, len(b.shape(fed[port.source]))))
        for port, parameter in zip(call.ports, by_name.values(), strict=True)
    ]
    ins += trace.rest(graph, "shared_{}")
    net = AtenNet(Emit(graph), call.where)
    out = net.run(program, [i.parameter for i in ins])
    results = {}
    for name, value, node in zip(body.results, out, program.outputs, strict=True):
        results[name] = graph.result(value, shape=net.open_shape(node))
    ranks = {name: node.meta["val"].dim() for name, node in zip(body.results, program.outputs, strict=True)}
    outs = [LoopOutput(results[port.result], **_cut(port, ranks[port.result])) for port in loop.outputs]
    before = {name: node.meta["val"] for name, node in zip(body.parameters, program.inputs, strict=False)}
    after = {name: node.meta["val"] for name, node in zip(body.results, program.outputs, strict=True)}
    for edge in loop.back_edges:
        _check_carried(call, edge.parameter, before[edge.parameter], after[edge.result])
    edges = tuple((results[edge.result], by_name[edge.parameter]) for edge in loop.back_edges)
    made = b.emit.graph.loop(LoopOp(graph, tuple(ins), tuple(outs), edges), body.name)
    if all({i.start, i.end} == {0, -1} for i in ins if i.axis is not None):  # each piece would be cut, too
        whole = {i.parameter: i.value for i in ins if i.axis is None}
        initial = {result: whole[parameter] for result, parameter in edges}
        finals = [(value, out.result) for value, out in zip(made, outs, strict=True) if out.axis is None]
        b.emit.graph.carried |= {value: initial[result] for value, result in finals if result in initial}
    return made


def _part(shape: list[Any], port: Any) -> list[Any]:
    """The shape of a slice."""
    if isinstance(port, ir.Slice):
        shape[port.axis] = port.part_size
    return shape


def _check_carried(call: IteratorCall, name: str, before: Tensor, after: Tensor) -> None:
    """Refuse a state that changes its shape: the body is traced for one, and formats have loops of one."""
    sizes = [[getattr(getattr(n, "node", None), "hint", n) for n in t.shape] for t in (before, after)]
    if sizes[0] != sizes[1]:
        raise IRError(
            f"{call.where} cannot be written: its state '{name}' changes its shape from step to step",
            got=f"{sizes[0]}, then {sizes[1]}",
            expected="states of one shape",
            remedy="give what grows as an output with an axis, which joins the results of all steps",
        )


def _cut(port: Any, rank: int) -> dict[str, Any]:
    if not isinstance(port, (ir.Slice, ir.Concat)):
        return {}
    return {"axis": port.axis % rank, "start": port.start, "end": port.end, "stride": port.stride}
