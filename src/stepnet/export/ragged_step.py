"""A step over whole sequences, in the body of a loop over sequences of sequences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.iteration import code_of, iteration
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.errors import IRError

from .aten import AtenNet, join_lead, split_lead
from .body_trace import BodyTrace, inside
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Value
from .recurrence_call import RecurrenceCall
from .scans import StepAxis, mask_of, per_sequence
from .trace import sizes_of


class _OpenSize:
    """A size that a trace is to leave open."""


def write_ragged_step(
    b: AtenNet, call: RecurrenceCall, where: str,
    nodes: tuple[Sequence[FxNode], Sequence[FxNode], Sequence[FxNode], Sequence[FxNode]],
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """A loop whose steps are sequences, padded: it takes x, and gives y, as [batch * time, ...].

    `nodes` are those of x, the states, the weights, and the lengths of either level.

    Raises:
        IRError: the step cannot be traced, or calls what cannot be written.
    """
    x, state, weights, lengths = nodes
    emit, outer, grid = b.emit, b.flat(lengths[0]), b.out(lengths[1])
    parts: list[LoDTensor] = call.parts
    (offsets,) = parts[0].structure.levels
    shapes: list[Any] = [[_OpenSize(), *_sizes(node)[1:]] for node in x]
    shapes += [[len(offsets) - 1], *map(_sizes, state)]
    examples = [*(part.values for part in parts), parts[0].structure.lengths(), *call.state]
    trace = BodyTrace(b, where, shapes, examples, weights, call.weights)
    count = len(x)

    def run(leaves: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        rows = [LoDTensor.of(leaf, LoD.trusted((offsets,), leaf.shape[0])) for leaf in leaves[:count]]

        def own(level: Tensor) -> Tensor:
            if level is not offsets:
                raise IRError(f"{where} cannot be written: its step runs over sequences that it makes itself")
            return leaves[count]

        with warnings.catch_warnings(), inside(b, where, call.inner, lengths=own):
            _spec, y, new = iteration(call.loop, rows, leaves[count + 1 :], ())
        found = []
        for leaf in y:
            if isinstance(leaf, LoDTensor) and leaf.structure.levels[-1] is not offsets:
                raise IRError(f"{where} cannot be written: it gives sequences of other lengths")
            found.append(leaf.values if isinstance(leaf, LoDTensor) else leaf)
        return [*found, *new]

    program = trace.traced(run, code_of(call.loop).function)
    name = call.loop.body.name
    body = emit.graph.body(f"{name} body")
    steps, inner = StepAxis(1, call.sweep.reverse, outer), AtenNet(Emit(body), where)
    inner.numbers = b.numbers
    ins: list[LoopInput] = []
    arguments: list[Value] = []

    def cut(value: Value, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        part = body.parameter(name, dtype, (-1, 1, *shape))
        ins.append(LoopInput(value, part, **steps.cut()))
        return inner.emit.take(part, inner.emit.scalar(0), 1)

    for i, node in enumerate(x):
        table = split_lead(emit, b.out(node), grid)
        arguments.append(cut(table, call.loop.slices[i].parameter, b.dtype(node), (-1, *_open(b, node)[1:])))
    arguments.append(cut(grid, "lengths", torch.int64, ()))
    running = cut(emit.squeeze(mask_of(emit, steps, grid), 2), "running", torch.bool, ())
    old = []
    for i, node in enumerate(state):
        old.append(body.parameter(call.loop.merged[i].parameter, b.dtype(node), (-1, *_open(b, node)[1:])))
        ins.append(LoopInput(b.flat(node), old[-1]))
    rest = trace.rest(body, "shared_{}")
    ins += rest
    for node in program.inputs[:count]:
        inner.ragged[str(node.meta["val"].shape[0])] = arguments[count]
    out = inner.run(program, [*arguments, *old, *(i.parameter for i in rest)])
    shown = program.outputs[: len(call.y)]
    joined = []
    for value, node in zip(out, shown, strict=False):
        shape = [-1, 1, *([-1] if inner.is_ragged(node) else []), *_open(inner, node)[1:]]
        joined.append(body.result(inner.emit.copied(inner.emit.unsqueeze(value, 1)), shape=shape))
    results = []
    for value, before, node in zip(out[len(shown) :], old, program.outputs[len(shown) :], strict=True):
        going = per_sequence(inner.emit, running, len(inner.shape(node)) - 1)
        results.append(body.result(inner.emit.copied(inner.emit.call("where", going, value, before))))
    outs = [*(LoopOutput(r, **steps.cut()) for r in joined), *map(LoopOutput, results)]
    loop = LoopOp(body, tuple(ins), tuple(outs), tuple(zip(results, old, strict=True)))
    made = emit.graph.loop(loop, name)
    tables = [
        join_lead(emit, value) if inner.is_ragged(node) else value
        for value, node in zip(made, shown, strict=False)
    ]
    return tables, list(made[len(shown) :])


def _sizes(node: FxNode) -> list[Any]:
    return sizes_of(node.meta["val"])


def _open(b: AtenNet, node: FxNode) -> list[int]:
    """The shape of a traced tensor, -1 where it is open."""
    return [size if isinstance(size, int) else -1 for size in b.shape(node)]
