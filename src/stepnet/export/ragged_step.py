"""A step over whole sequences, in the body of a loop over sequences of sequences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.trace.iteration import code_of, iteration
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LENGTHS, LoD
from stepnet.errors import IRError
from stepnet.watchers import during

from .aten import AtenNet, join_lead, split_lead
from .body_trace import BodyTrace
from .emit import Emit
from .graph import LoopInput, LoopOp, LoopOutput, Value
from .recurrence_call import RecurrenceCall
from .scans import StepAxis, mask_of, per_sequence
from .trace import Program, sizes_of


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
    x, state, _, lengths = nodes
    emit, grid = b.emit, b.out(lengths[1])
    trace, program = _traced(b, call, where, nodes)
    loop = _PaddedLoop(b, call, where, b.flat(lengths[0]))
    arguments = [
        loop.cut(
            split_lead(emit, b.out(node), grid), port.parameter, b.dtype(node), (-1, *b.open_shape(node)[1:])
        )
        for port, node in zip(call.loop.slices, x, strict=False)
    ]
    own_lengths = loop.cut(grid, "lengths", torch.int64, ())
    steps_of = emit.squeeze(mask_of(emit, loop.steps, grid), 2)
    running = loop.cut(steps_of, "running", torch.bool, ())
    old = [loop.carried(port.parameter, node) for port, node in zip(call.loop.merged, state, strict=False)]
    rest = trace.rest(loop.body, "shared_{}")
    loop.ins += rest
    inner, n_y = loop.inner, len(call.y)
    for node in program.inputs[: len(x)]:
        inner.ragged[str(node.meta["val"].shape[0])] = own_lengths
    out = inner.run(program, [*arguments, own_lengths, *old, *(i.parameter for i in rest)])
    shown = program.outputs[:n_y]
    made = loop.made(
        [loop.joined(value, node) for value, node in zip(out, shown, strict=False)],
        [
            loop.kept(running, value, before, node)
            for value, before, node in zip(out[n_y:], old, program.outputs[n_y:], strict=True)
        ],
        old,
    )
    ragged = [inner.is_ragged(node) for node in shown]
    tables = [join_lead(emit, v) if is_table else v for v, is_table in zip(made, ragged, strict=False)]
    return tables, made[n_y:]


def _traced(
    b: AtenNet, call: RecurrenceCall, where: str,
    nodes: tuple[Sequence[FxNode], Sequence[FxNode], Sequence[FxNode], Sequence[FxNode]],
) -> tuple[BodyTrace, Program]:  # fmt: skip
    """The step on the rows of one sequence of each; it takes x, its lengths, and the states."""
    x, state, weights, _ = nodes
    call.then.check(where)
    parts: list[LoDTensor] = call.parts
    (offsets,) = parts[0].structure.levels
    shapes: list[Any] = [[_OpenSize(), *_sizes(node)[1:]] for node in x]
    shapes += [[len(offsets) - 1], *map(_sizes, state)]
    examples = [*(part.values for part in parts), parts[0].structure.lengths(), *call.state]
    trace = BodyTrace(b, where, shapes, examples, weights, call.weights)
    count, calls = len(x), call.inner
    assert calls is not None  # noted of each step that may be written whole

    def run(leaves: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        rows = [LoDTensor.of(leaf, LoD.trusted((offsets,), leaf.shape[0])) for leaf in leaves[:count]]

        def own(level: Tensor) -> Tensor:
            if level is not offsets:
                raise IRError(
                    f"{where} cannot be written: its step runs over sequences that it makes itself",
                    got="lengths that the step computes",
                    expected="the sequences that the step is given",
                    remedy="run it before the outer recurrence",
                )
            return leaves[count]

        with warnings.catch_warnings(), calls.traced(own), during(LENGTHS, own):
            _spec, y, new = iteration(call.loop, rows, leaves[count + 1 :], ())
        found = []
        for leaf in y:
            if isinstance(leaf, LoDTensor) and leaf.structure.levels[-1] is not offsets:
                raise IRError(
                    f"{where} cannot be written: it gives sequences of other lengths",
                    got=f"{leaf.structure.lengths(0).tolist()} rows",
                    expected="as many rows as the step is given",
                    remedy="return the sequences that it was given, or one row for each of them",
                )
            found.append(leaf.values if isinstance(leaf, LoDTensor) else leaf)
        return [*found, *new]

    return trace, trace.traced(run, code_of(call.loop).function)


class _PaddedLoop:
    """A loop over the sequences of each sequence of sequences, as it is made.

    Attributes:
        body: the graph of its body.
        inner: nodes of the traced step, added to the body.
        steps: how its inputs are cut, and its results joined.
        ins: what comes in.
    """

    def __init__(self, b: AtenNet, call: RecurrenceCall, where: str, counts: Value) -> None:
        """`counts`: of sequences in each."""
        self._b, self._name = b, call.loop.body.name
        self.body = b.emit.graph.body(f"{self._name} body")
        self.steps = StepAxis(1, call.sweep.reverse, counts)
        self.inner = AtenNet(Emit(self.body), where)
        self.inner.numbers = b.numbers
        self.ins: list[LoopInput] = []

    def cut(self, value: Value, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        """In the body, the part of a value that one step gets."""
        part = self.body.parameter(name, dtype, (-1, 1, *shape))
        self.ins.append(LoopInput(value, part, **self.steps.cut()))
        return self.inner.emit.take(part, self.inner.emit.scalar(0), 1)

    def carried(self, name: str, node: FxNode) -> Value:
        """In the body, a state of the step before."""
        b = self._b
        old = self.body.parameter(name, b.dtype(node), (-1, *b.open_shape(node)[1:]))
        self.ins.append(LoopInput(b.flat(node), old))
        return old

    def joined(self, value: Value, node: FxNode) -> int:
        """A result of the body that is one step of y."""
        emit, ragged = self.inner.emit, [-1] if self.inner.is_ragged(node) else []
        shape = [-1, 1, *ragged, *self.inner.open_shape(node)[1:]]
        return self.body.result(emit.copied(emit.unsqueeze(value, 1)), shape=shape)

    def kept(self, running: Value, value: Value, before: Value, node: FxNode) -> int:
        """A result of the body that is a state: the new one of the sequences that still run."""
        emit = self.inner.emit
        going = per_sequence(emit, running, len(self.inner.shape(node)) - 1)
        return self.body.result(emit.copied(emit.call("where", going, value, before)))

    def made(self, y: Sequence[int], new: Sequence[int], old: Sequence[Value]) -> list[Value]:
        """The loop; what it gives for y, and the last states."""
        outs = [*(LoopOutput(r, **self.steps.cut()) for r in y), *map(LoopOutput, new)]
        back = tuple(zip(new, old, strict=True))
        loop = LoopOp(self.body, tuple(self.ins), tuple(outs), back)
        return list(self._b.emit.graph.loop(loop, self._name))


def _sizes(node: FxNode) -> list[Any]:
    return sizes_of(node.meta["val"])
