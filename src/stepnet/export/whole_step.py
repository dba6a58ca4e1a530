"""A step that cannot be cut, whole in the body of a loop."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.trace.iteration import code_of, iteration

from .aten import AtenNet
from .body_trace import BodyTrace, no_lengths
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Value
from .questions import Iteration, Ways
from .recurrence_call import RecurrenceCall
from .scans import StepAxis, mask_of, per_sequence
from .trace import Program


def write_step(
    b: AtenNet, call: RecurrenceCall, where: str, x: Sequence[Value], states: Sequence[Value],
    nodes: tuple[Sequence[FxNode], ...], steps: StepAxis,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """A loop around the whole step; takes and gives what a `PlanWriter` does. `nodes` are those of x, the
    states, the weights, the sizes that the step refers to, and the lengths, in the trace around.

    Raises:
        IRError: the step cannot be traced, or calls what cannot be written.
    """
    call.then.check(where)
    x_nodes, state_nodes, weight_nodes, size_nodes, lengths = nodes
    if call.ragged:
        batch = b.shape((*state_nodes, *lengths)[0])[0]
        shapes = [[batch, *b.shape(n)[1:]] for n in x_nodes]
    else:
        shapes = [[s for i, s in enumerate(b.shape(n)) if i != steps.time] for n in x_nodes]
    shapes += [b.shape(n) for n in state_nodes]
    examples = [*call.parts, *call.state]
    trace = BodyTrace(b, where, shapes, examples, weight_nodes, call.weights, size_nodes, call.sizes)
    program = _traced(trace, call, len(x), where)
    name = call.loop.body.name
    body = b.emit.graph.body(f"{name} body")
    inner = AtenNet(Emit(body), where)
    inputs: list[LoopInput] = []
    arguments: list[Value] = []
    for i, value in enumerate(x):
        part = trace.parameter(body, i, call.loop.slices[i].parameter, steps.time)
        inputs.append(LoopInput(value, part, **steps.cut()))
        # not a squeeze: a runtime may let it share memory with the slice, and write the next state there
        arguments.append(inner.emit.take(part, inner.emit.scalar(0), steps.time))
    carried = []
    for i, value in enumerate(states):
        carried.append(trace.parameter(body, len(x) + i, call.loop.merged[i].parameter))
        inputs.append(LoopInput(value, carried[-1]))
    inputs += trace.rest(body, "shared_{}")
    arguments += [i.parameter for i in inputs[len(x) :]]
    out = inner.run(program, arguments)
    new, ends = out[len(call.y) :], program.outputs[len(call.y) :]
    # What the step hands on as it came is the same for all steps.
    moves = [end is not own for end, own in zip(ends, program.inputs[len(x) :], strict=False)]
    if steps.lengths is not None:
        mask = b.emit.squeeze(mask_of(b.emit, steps, x[0]), 2)
        part = body.parameter("running", torch.bool, (-1, 1))
        inputs.append(LoopInput(mask, part, **steps.cut()))
        running = inner.emit.take(part, inner.emit.scalar(0), 1)
        new = [
            _while(inner, running, node, now, before) if moving else now
            for node, now, before, moving in zip(ends, new, carried, moves, strict=True)
        ]
    results = [body.result(inner.emit.copied(value)) for value in compress(new, moves)]
    out = [inner.emit.copied(value) for value in out[: len(call.y)]]
    joined = []
    for value, node in zip(out, program.outputs, strict=False):
        shape = inner.open_shape(node)
        shape.insert(steps.time, 1)
        joined.append(body.result(inner.emit.unsqueeze(value, steps.time), shape=shape))
    outputs = [*(LoopOutput(r, **steps.cut()) for r in joined), *(LoopOutput(r) for r in results)]
    edges = tuple(zip(results, compress(carried, moves), strict=True))
    made = b.emit.graph.loop(LoopOp(body, tuple(inputs), tuple(outputs), edges), name)
    last = iter(made[len(call.y) :])
    return list(made[: len(call.y)]), [
        next(last) if moving else first for moving, first in zip(moves, states, strict=True)
    ]


def _traced(trace: BodyTrace, call: RecurrenceCall, n: int, where: str) -> Program:
    """The step, of so many parts of x; both ways of what it asks all rows."""
    calls = call.calls_with(trace.numbers)
    assert calls is not None  # noted of each step that may be written whole

    def run(leaves: Sequence[Tensor], sizes: Sequence[Any]) -> list[Tensor]:
        loop = call.loop_with(sizes)

        def once(own: Sequence[Tensor]) -> Iteration:
            with warnings.catch_warnings(), calls.traced(no_lengths):
                return iteration(loop, own[:n], own[n:], ())

        _spec, y, new = Ways(once, where).run(leaves) if call.asks else once(leaves)
        return [*y, *new]

    return trace.traced(run, code_of(call.loop).function)


def _while(net: AtenNet, running: Value, node: FxNode, now: Value, before: Value) -> Value:
    """A new state of the sequences that go on; the state before of those that have ended."""
    go = per_sequence(net.emit, running, len(net.shape(node)) - 1)
    return net.emit.call("where", go, now, before)
