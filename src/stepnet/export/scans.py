"""A recurrence as nodes: maps before and after, and a loop around what depends on the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.executors.torch_ops.ops import bind
from stepnet.ir.graph import Node
from stepnet.ir.plan import Carry, LoopPlan, Plan, Region

from .emit import END, Emit
from .graph import Cell, Graph, LoopInput, LoopOp, LoopOutput, Value
from .recognise import KnownCell, recognise
from .rows import LEAD, RowNet


@dataclass(frozen=True)
class StepAxis:
    """How the steps of a loop lie in its inputs: `time` is their axis, 0 or 1, and the batch the other.

    `lengths` [batch], of sequences that are padded at their end; then `time` is 1.
    """

    time: int
    reverse: bool
    lengths: Value | None = None

    def cut(self) -> dict[str, int]:
        """The axis and range of an input or output that is cut into steps."""
        if self.reverse:
            return {"axis": self.time, "start": -1, "end": 0, "stride": -1}
        return {"axis": self.time, "start": 0, "end": -1, "stride": 1}

    def step_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a row value inside a body."""
        return ((1, -1) if self.time == 0 else (-1, 1)) + tuple(shape)


def mask_of(emit: Emit, steps: StepAxis, like: Value, rank: int = 1) -> Value:
    """[batch, time, 1 ...], true where a sequence still runs; `like` is [batch, time, ...], `rank` the number
    of dimensions behind these."""
    assert steps.lengths is not None
    numbers = emit.range(emit.squeeze(emit.size(like, 1), 0))
    inside = emit.call("lt", emit.unsqueeze(numbers, 0), emit.unsqueeze(steps.lengths, 1))
    return with_rank(emit, emit.unsqueeze(inside, 2), rank)


def with_rank(emit: Emit, mask: Value, rank: int) -> Value:
    """A mask [d0, d1, 1] for values of `rank` dimensions behind d0 and d1."""
    return mask if rank == 1 else emit.reshape(mask, (0, 0, *(1,) * rank))


def last_row(emit: Emit, rows: Value, lengths: Value) -> Value:
    """The last row of each sequence of [batch, time, ...]; the first of an empty one."""
    at = emit.call("maximum", emit.call("sub", lengths, emit.scalar(1)), emit.scalar(0))
    return emit.squeeze(emit.take(rows, emit.unsqueeze(at, 1), 1, batch_dims=1), 1)


def per_sequence(emit: Emit, x: Value, rank: int) -> Value:
    """[batch] for values of `rank` dimensions behind that of the batch."""
    return emit.unsqueeze(x, *range(1, rank + 1)) if rank else x


class PlanWriter:
    """The nodes of one recurrence.

    Args:
        emit: the graph around it.
        plan: of the step.
        constants: tensors that the step made from Python values, by name.
        x: the leaves of x, time and batch first.
        states: the leaves of the initial state, [batch, ...].
        weights: what the step reads besides: constants, or values of the graph.
        steps: how the steps lie in x.
    """

    def __init__(
        self, emit: Emit, plan: Plan, constants: Mapping[str, Tensor], x: Sequence[Value],
        states: Sequence[Value], weights: Sequence[Tensor | Value], steps: StepAxis,
    ) -> None:  # fmt: skip
        self.emit, self.plan, self.steps = emit, plan, steps
        values = plan.forward.body.values
        whole = [name for name, value in values.items() if value.kind == "sequence"]
        as_rows = {name: replace(values[name], kind="row") for name in whole}  # the same at every step
        self.body = replace(plan.forward.body, values={**values, **as_rows})
        self.loop: LoopPlan = replace(plan.forward, body=self.body)
        self.states = dict(zip(plan.states, states, strict=True))
        self.reference = x[0]
        given = dict(zip(plan.weights, weights, strict=False))
        shared = {n: v for n, v in given.items() if isinstance(v, Value)}
        fixed = {n: v for n, v in given.items() if isinstance(v, Tensor)}
        self.constants = {
            n: torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for n, v in fixed.items()
        } | {n: v.cpu() for n, v in constants.items()}
        nodes = [n for region in self.loop.regions if region.kind != "scan" for n in region.nodes]
        self.constants |= _computed(self.loop, nodes, self.constants)
        self.outer = RowNet(
            emit, self.body, nodes, self.constants, self._outside,
            hooks={"shift": self._shift, "spread": self._spread},
        )  # fmt: skip
        self.outer.known |= dict(zip(plan.x, x, strict=True)) | shared
        self.outer.known |= {name: self._boot(name) for name in self.states if name in whole}
        self.outer.thin.update(whole)
        self.outer.reference = x[0]
        self._mask: Value | None = None

    def write(self) -> tuple[list[Value], list[Value]]:
        """The leaves of y, time and batch first as in x, and those of the final state, [batch, ...].

        Raises:
            Unsupported: an op cannot be written.
        """
        finals: dict[str, Value] = {}
        for region in self.loop.regions:
            if region.kind != "scan":
                continue
            known = recognise(self.loop, self.constants)
            cell = None if known is None else self._known(region, known)
            if known is not None and cell is not None and self.emit.graph.target.takes(cell):
                finals |= self._cell(region, known, cell)
            else:
                finals |= self._scan(region)
        for carry in self.loop.carries:
            if carry.parameter == carry.result:
                finals[carry.parameter] = self.states[carry.parameter]
            elif carry.parameter not in finals:
                finals[carry.parameter] = self._last(carry)
        ys = [self.outer.full(name) for name in self.plan.y]
        return ys, [finals[name] for name in self.plan.states]

    @property
    def mask(self) -> Value:
        if self._mask is None:
            self._mask = mask_of(self.emit, self.steps, self.reference)
        return self._mask

    def _outside(self, name: str) -> Value:
        raise AssertionError(f"{name} is made nowhere")  # a plan's regions make what they read

    # values of the graph around the loop

    def _boot(self, name: str) -> Value:
        return self.emit.unsqueeze(self.states[name], self.steps.time)

    def _spread(self, b: RowNet, node: Node) -> Value:
        if node.inputs:
            return b.known[node.inputs[0]]
        b.thin.add(node.output)
        return self._boot(node.output)

    def _shift(self, b: RowNet, node: Node) -> Value:
        """The rows one step earlier; the initial state at the first step."""
        emit, time = self.emit, self.steps.time
        rows, boot = b.full(node.inputs[0]), self._boot(node.output)
        b.thin.discard(node.output)
        if not self.steps.reverse:
            return emit.concat([boot, emit.slice(rows, time, 0, -1)], time)
        later = emit.concat([emit.slice(rows, time, 1, END), boot], time)
        if self.steps.lengths is None:
            return later
        inside = emit.slice(self.mask, 1, 1, END)
        ended = emit.broadcast(emit.number(False, torch.bool), emit.shape(emit.slice(self.mask, 1, 0, 1)))
        going = emit.concat([inside, ended], 1)
        rank = len(b.value(node.output).shape)
        return emit.call("where", with_rank(emit, going, rank), later, boot)

    def _last(self, carry: Carry) -> Value:
        """The last of the rows of a carry that turns in no scan."""
        emit, steps = self.emit, self.steps
        rows = self.outer.full(carry.result)
        if steps.lengths is None:
            first = self._boot(carry.parameter)  # where there is no step
            if steps.reverse:
                ends = [emit.slice(rows, steps.time, 0, 1), first]
            else:
                ends = [first, emit.slice(rows, steps.time, -1, END)]
            at = emit.scalar(0 if steps.reverse else -1)
            return emit.take(emit.concat(ends, steps.time), at, steps.time)
        last = emit.take(rows, emit.scalar(0), 1) if steps.reverse else last_row(emit, rows, steps.lengths)
        some = emit.call("gt", steps.lengths, emit.scalar(0))
        some = per_sequence(emit, some, len(self.body.values[carry.result].shape))
        return emit.call("where", some, last, self.states[carry.parameter])

    # loops

    def _scan(self, region: Region) -> dict[str, Value]:
        scan = _Scan(self, region)
        outputs = self.loop.outputs(region)
        made = scan.write(outputs)
        self.outer.known |= dict(zip(outputs, made, strict=False))
        carried = made[len(outputs) :]
        turning = [c.parameter for c in region.carries if c.parameter != c.result]
        return {n: self.emit.squeeze(out, self.steps.time) for n, out in zip(turning, carried, strict=True)}

    def _known(self, region: Region, known: KnownCell) -> Cell:
        """A recognised cell with the steps of this recurrence."""
        by_result = {c.result: c.parameter for c in region.carries}
        joined = tuple(known.states.index(by_result[name]) for name in self.loop.outputs(region))
        time, reverse, lengths = self.steps.time, self.steps.reverse, self.steps.lengths
        return Cell(time=time, reverse=reverse, joined=joined, ragged=lengths is not None, **known.weights)

    def _cell(self, region: Region, known: KnownCell, cell: Cell) -> dict[str, Value]:
        """A loop around one cell."""
        x = self.emit.concat([self.outer.full(n) for n in known.inputs], LEAD)
        outputs = self.loop.outputs(region)
        states = [self.states[name] for name in known.states]
        made = self.emit.graph.cell(cell, x, states, self.steps.lengths, self.plan.name)
        self.outer.known |= dict(zip(outputs, made, strict=False))
        return dict(zip(known.states, made[len(outputs) :], strict=True))


class _Scan:
    """The loop of one scan, being made. Its values keep the axis of the steps, with size 1."""

    def __init__(self, around: PlanWriter, region: Region) -> None:
        self.around, self.region, self.steps = around, region, around.steps
        self.body: Graph = around.emit.graph.body(f"{around.plan.name} body")
        self.emit = Emit(self.body)
        self.ins: list[LoopInput] = []
        self.turning = [c for c in region.carries if c.parameter != c.result]
        self.held = {c.parameter for c in region.carries if c.parameter == c.result}
        self.rows = RowNet(self.emit, around.body, region.nodes, around.constants, self._outside)
        self.parameters: dict[str, Value] = {}

    def write(self, outputs: Sequence[str]) -> tuple[Value, ...]:
        """Joined `outputs`, then the last value of each carry that turns."""
        for carry in self.turning:
            name = carry.parameter
            self.parameters[name] = self._parameter(name)
            self.rows.known[name] = self.parameters[name]
            self.ins.append(LoopInput(self.around._boot(name), self.parameters[name]))
        if self.turning:
            self.rows.reference = next(iter(self.parameters.values()))
        mask = None
        if self.steps.lengths is not None:
            mask = self.body.parameter("running", torch.bool, self.steps.step_shape([1]))
            self.ins.append(LoopInput(self.around.mask, mask, **self.steps.cut()))
        new = {c.parameter: self.rows.full(c.result) for c in self.turning}
        shown = [self.rows.full(name) for name in outputs]
        if mask is not None:
            for name, out in new.items():
                running = with_rank(self.emit, mask, len(self.around.body.values[name].shape))
                new[name] = self.emit.call("where", running, out, self.parameters[name])
        new = {name: self.emit.copied(out) for name, out in new.items()}
        shown = [self.emit.copied(out) for out in shown]
        results = {name: self.body.result(out) for name, out in new.items()}
        shapes = [self.steps.step_shape(self.around.body.values[name].shape) for name in outputs]
        joined = [self.body.result(out, shape=shape) for out, shape in zip(shown, shapes, strict=True)]
        outs = [LoopOutput(result, **self.steps.cut()) for result in joined]
        outs += [LoopOutput(results[c.parameter]) for c in self.turning]
        edges = tuple((results[c.parameter], self.parameters[c.parameter]) for c in self.turning)
        count = None
        if not any(i.axis is not None for i in self.ins):
            count = (self.around.reference, self.steps.time)
        loop = LoopOp(self.body, tuple(self.ins), tuple(outs), edges, count)
        return self.around.emit.graph.loop(loop, self.around.plan.name)

    def _parameter(self, name: str) -> Value:
        value = self.around.body.values[name]
        return self.body.parameter(name, dtype_of(value.dtype), self.steps.step_shape(value.shape))

    def _outside(self, name: str) -> Value:
        """A parameter for what the body reads and does not make."""
        around, value = self.around, self.around.body.values[name]
        if value.kind != "row":
            parameter = self.body.parameter(name, dtype_of(value.dtype), value.shape)
            self.ins.append(LoopInput(around.outer.get(name), parameter))
            return parameter
        parameter = self._parameter(name)
        if name in self.held:
            self.ins.append(LoopInput(around._boot(name), parameter))
            return parameter
        source = around.outer.get(name)
        if name in around.outer.thin:
            self.ins.append(LoopInput(source, parameter))
            self.rows.thin.add(name)
        else:
            self.ins.append(LoopInput(source, parameter, **self.steps.cut()))
        return parameter


def _computed(loop: LoopPlan, nodes: Sequence[Node], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shared values that follow from constants alone."""
    known = dict(constants)
    made: dict[str, Tensor] = {}
    with torch.no_grad():
        for node in nodes:
            if any(loop.body.values[n].kind != "shared" for n in node.outputs if n):
                continue
            if node.op == "opaque" or not all(n in known for n in node.inputs):
                continue
            made[node.output] = known[node.output] = bind(loop.body, node)(
                *[known[n] for n in node.inputs], rows=0
            )
    return made
