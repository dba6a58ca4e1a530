"""A recurrence as layers: maps before and after, and a TensorIterator around what turns.

What a TensorIterator is given are the forms that OpenVINO runs right: slices from the first step to the last
or back, no Squeeze in a body of primitives, operands that carry the state first, and no Parameter that is a
Result: back edges are copied there one after the other, not at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.executors.torch_ops.ops import bind
from stepnet.ir.graph import Node
from stepnet.ir.plan import Carry, LoopPlan, Plan, Region

from .builder import In, NetBuilder, Out, To
from .ops_body import LEAD, RowNet
from .ops_emit import Emit
from .recognise import Cell, recognise

END = 2**63 - 1


@dataclass(frozen=True)
class Steps:
    """How the steps of a loop lie in its inputs: `time` is their axis, 0 or 1, and the batch the other.

    `lengths` [batch], of sequences that are padded at their end; then `time` is 1.
    """

    time: int
    reverse: bool
    lengths: Out | None = None

    @property
    def batch(self) -> int:
        """The axis of the batch."""
        return 1 - self.time

    def cut(self) -> dict[str, int]:
        """The axis and range of an input or output that is cut into steps."""
        if self.reverse:
            return {"axis": self.time, "start": -1, "end": 0, "stride": -1}
        return {"axis": self.time, "start": 0, "end": -1, "stride": 1}

    def step_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a row value inside a body."""
        return ((1, -1) if self.time == 0 else (-1, 1)) + tuple(shape)


def mask_of(emit: Emit, steps: Steps, like: Out) -> Out:
    """[batch, time, 1], true where a sequence still runs; `like` is [batch, time, ...]."""
    assert steps.lengths is not None
    size = emit.squeeze(emit.size(like, 1), 0)
    numbers = emit.call("Range", emit.scalar(0), size, emit.scalar(1), output_type="i64")
    inside = emit.call("Less", emit.unsqueeze(numbers, 0), emit.unsqueeze(steps.lengths, 1))
    return emit.unsqueeze(inside, 2)


def write_plan(
    emit: Emit, plan: Plan, constants: Mapping[str, Tensor], x: Sequence[Out], states: Sequence[Out],
    weights: Sequence[Tensor | Out], steps: Steps,
) -> tuple[list[Out], list[Out]]:  # fmt: skip
    """The layers of one recurrence.

    Args:
        emit: the net around it.
        plan: of the step.
        constants: tensors that the step made from Python values, by name.
        x: the leaves of x, time and batch first.
        states: the leaves of the initial state, [batch, ...].
        weights: what the step reads besides: constants, or values of the net.
        steps: how the steps lie in x.

    Returns:
        The leaves of y, time and batch first as in x, and those of the final state, [batch, ...].

    Raises:
        Unsupported: an op has no layer.
    """
    return _Recurrence(emit, plan, constants, x, states, weights, steps).write()


class _Recurrence:
    def __init__(
        self, emit: Emit, plan: Plan, constants: Mapping[str, Tensor], x: Sequence[Out],
        states: Sequence[Out], weights: Sequence[Tensor | Out], steps: Steps,
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
        shared = {n: v for n, v in given.items() if isinstance(v, Out)}
        self.constants = {n: v for n, v in given.items() if isinstance(v, Tensor)} | dict(constants)
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
        self._mask: Out | None = None

    def write(self) -> tuple[list[Out], list[Out]]:
        finals: dict[str, Out] = {}
        for region in self.loop.regions:
            if region.kind != "scan":
                continue
            # a mask in the body undoes the fusion that the layer of a cell is for
            cell = recognise(self.loop, self.constants) if self.steps.lengths is None else None
            finals |= self._scan(region) if cell is None else self._cell(region, cell)
        for carry in self.loop.carries:
            if carry.parameter == carry.result:
                finals[carry.parameter] = self.states[carry.parameter]
            elif carry.parameter not in finals:
                finals[carry.parameter] = self._last(carry)
        ys = [self.outer.full(name) for name in self.plan.y]
        return ys, [finals[name] for name in self.plan.states]

    @property
    def mask(self) -> Out:
        if self._mask is None:
            self._mask = mask_of(self.emit, self.steps, self.reference)
        return self._mask

    def _outside(self, name: str) -> Out:
        raise AssertionError(f"{name} is made nowhere")  # a plan's regions make what they read

    # values of the net around the loop

    def _boot(self, name: str) -> Out:
        return self.emit.unsqueeze(self.states[name], self.steps.time)

    def _spread(self, b: RowNet, node: Node) -> Out:
        if node.inputs:
            return b.known[node.inputs[0]]
        b.thin.add(node.output)
        return self._boot(node.output)

    def _shift(self, b: RowNet, node: Node) -> Out:
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
        return emit.call("Select", _with_rank(emit, going, rank), later, boot)

    def _last(self, carry: Carry) -> Out:
        """The last of the rows of a carry that turns in no scan."""
        emit, steps = self.emit, self.steps
        rows = self.outer.full(carry.result)
        if steps.lengths is None:
            return emit.gather(rows, emit.scalar(0 if steps.reverse else -1), steps.time)
        rank = len(self.body.values[carry.result].shape)
        if steps.reverse:
            last = emit.gather(rows, emit.scalar(0), 1)
        else:
            at = emit.call("Maximum", emit.call("Subtract", steps.lengths, emit.scalar(1)), emit.scalar(0))
            picked = emit.call("Gather", rows, emit.unsqueeze(at, 1), emit.scalar(1), batch_dims=1)
            last = emit.squeeze(picked, 1)
        some = emit.call("Greater", steps.lengths, emit.scalar(0))
        if rank:
            some = emit.unsqueeze(some, *range(1, rank + 1))
        return emit.call("Select", some, last, self.states[carry.parameter])

    # loops

    def _scan(self, region: Region) -> dict[str, Out]:
        scan = _Scan(self, region)
        outputs = self.loop.outputs(region)
        made = scan.write(outputs)
        self.outer.known |= dict(zip(outputs, made, strict=False))
        carried = made[len(outputs) :]
        turning = [c.parameter for c in region.carries if c.parameter != c.result]
        return {n: self.emit.squeeze(out, self.steps.time) for n, out in zip(turning, carried, strict=True)}

    def _cell(self, region: Region, cell: Cell) -> dict[str, Out]:
        """A TensorIterator around one cell, in the form that OpenVINO fuses to a sequence."""
        emit, steps = self.emit, self.steps
        x = emit.concat([self.outer.full(n) for n in cell.inputs], LEAD)
        dtype = cell.w.dtype
        body = emit.net.body(f"{cell.type} body")
        inner = Emit(body)
        size = int(cell.r.shape[1])
        part = body.parameter("x", dtype, steps.step_shape([cell.w.shape[1]]))
        carried = [body.parameter(f"state_{i}", dtype, (-1, size)) for i in range(len(cell.states))]
        weights = [inner.tensor(t) for t in (cell.w, cell.r, cell.b)]
        made = inner.call(
            cell.type, inner.squeeze(part, steps.time), *carried, *weights, outputs=len(carried),
            **cell.attributes,
        )  # fmt: skip
        new = [made] if len(carried) == 1 else list(made)
        result_of = dict(zip(cell.states, [body.result(out) for out in new], strict=True))
        by_result = {c.result: c.parameter for c in region.carries}
        outputs = self.loop.outputs(region)
        outs: list[To] = []
        for name in outputs:
            at = cell.states.index(by_result[name])
            outs.append(To(body.result(inner.unsqueeze(new[at], steps.time)), **steps.cut()))
        outs += [To(result_of[n]) for n in cell.states]
        ins = [In(x, part, **steps.cut())]
        ins += [In(self.states[n], p) for n, p in zip(cell.states, carried, strict=True)]
        edges = [(result_of[n], p) for n, p in zip(cell.states, carried, strict=True)]
        found = emit.net.tensor_iterator(body, ins, outs, edges, name=self.plan.name)
        self.outer.known |= dict(zip(outputs, found, strict=False))
        return dict(zip(cell.states, found[len(outputs) :], strict=True))


class _Scan:
    """The TensorIterator of one scan, being made."""

    def __init__(self, around: _Recurrence, region: Region) -> None:
        self.around, self.region, self.steps = around, region, around.steps
        self.body: NetBuilder = around.emit.net.body(f"{around.plan.name} body")
        self.emit = Emit(self.body)
        self.ins: list[In] = []
        self.turning = [c for c in region.carries if c.parameter != c.result]
        self.held = {c.parameter for c in region.carries if c.parameter == c.result}
        self.rows = RowNet(
            self.emit, around.body, region.nodes, around.constants, self._outside, _late(region)
        )
        self.parameters: dict[str, Out] = {}

    def write(self, outputs: Sequence[str]) -> tuple[Out, ...]:
        """Joined `outputs`, then the last value of each carry that turns."""
        net = self.around.emit.net
        for carry in self.turning:
            name = carry.parameter
            self.parameters[name] = self._parameter(name)
            self.rows.known[name] = self.parameters[name]
            self.ins.append(In(self.around._boot(name), self.parameters[name]))
        if self.turning:
            self.rows.reference = next(iter(self.parameters.values()))
        mask = None
        if self.steps.lengths is not None:
            mask = self.body.parameter("running", torch.bool, self.steps.step_shape([1]))
            self.ins.append(In(self.around.mask, mask, **self.steps.cut()))
        new = {c.parameter: self.rows.full(c.result) for c in self.turning}
        shown = [self.rows.full(name) for name in outputs]
        if not any(i.axis is not None for i in self.ins):
            new[self.turning[0].parameter] = self._counted(self.turning[0], new[self.turning[0].parameter])
        if mask is not None:
            for name, out in new.items():
                rank = len(self.around.body.values[name].shape)
                running = _with_rank(self.emit, mask, rank)
                new[name] = self.emit.call("Select", running, out, self.parameters[name])
        new = {name: self._apart(name, out) for name, out in new.items()}
        shown = [self._apart(name, out) for name, out in zip(outputs, shown, strict=True)]
        results = {name: self.body.result(out) for name, out in new.items()}
        joined = [self.body.result(out) for out in shown]
        outs = [To(result, **self.steps.cut()) for result in joined]
        outs += [To(results[c.parameter]) for c in self.turning]
        edges = [(results[c.parameter], self.parameters[c.parameter]) for c in self.turning]
        return net.tensor_iterator(self.body, self.ins, outs, edges, name=self.around.plan.name)

    def _counted(self, carry: Carry, out: Out) -> Out:
        """The new state plus a slice of zeros: a body that reads no slice would run once, and OpenVINO drops
        a slice that nothing depends on."""
        value, outer, time = self.around.body.values[carry.parameter], self.around.emit, self.steps.time
        dtype, rank = dtype_of(value.dtype), LEAD + len(value.shape)
        sizes = [outer.ints([1])] * rank
        sizes[time] = outer.size(self.around.reference, time)
        zeros = outer.broadcast(outer.number(0, dtype), outer.concat(sizes, 0))
        part = self.body.parameter("step", dtype, (1,) * rank)
        self._slice(part, zeros)
        return self.emit.call("LogicalOr" if dtype == torch.bool else "Add", out, part)

    def _apart(self, name: str, out: Out) -> Out:
        return self.emit.apart(out, dtype_of(self.around.body.values[name].dtype))

    def _parameter(self, name: str) -> Out:
        value = self.around.body.values[name]
        return self.body.parameter(name, dtype_of(value.dtype), self.steps.step_shape(value.shape))

    def _slice(self, parameter: Out, source: Out) -> None:
        self.ins.append(In(source, parameter, **self.steps.cut()))

    def _outside(self, name: str) -> Out:
        """A Parameter for what the body reads and does not make."""
        around, value = self.around, self.around.body.values[name]
        if value.kind != "row":
            parameter = self.body.parameter(name, dtype_of(value.dtype), value.shape)
            self.ins.append(In(around.outer.get(name), parameter))
            return parameter
        parameter = self._parameter(name)
        if name in self.held:
            self.ins.append(In(around._boot(name), parameter))
            return parameter
        source = around.outer.get(name)
        if name in around.outer.thin:
            self.ins.append(In(source, parameter))
            self.rows.thin.add(name)
        else:
            self._slice(parameter, source)
        return parameter


def _with_rank(emit: Emit, mask: Out, rank: int) -> Out:
    """A mask [d0, d1, 1] for row values of `rank` dimensions."""
    if rank == 1:
        return mask
    return emit.reshape(mask, (0, 0, *(1,) * rank))


def _late(region: Region) -> frozenset[str]:
    """What depends on the carried values."""
    late = {c.parameter for c in region.carries if c.parameter != c.result}
    for node in region.nodes:
        if late.intersection(node.inputs):
            late.update(node.outputs)
    return frozenset(late)


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
