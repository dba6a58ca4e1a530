"""A plan as records: its regions with their ops, what enters and leaves, what is kept and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from stepnet.data.tree import Spec, names
from stepnet.executors.autograd import Ready
from stepnet.front.step import StepBody
from stepnet.ir import plan as ir
from stepnet.ir.graph import Node, Value
from stepnet.ir.ops import OPS, RANDOM, Stage

from .cost import border, border_bytes, contracts, flops, weight
from .names import SourceLines, tensor_names
from .records import Direction, Loop, Op, Port, Region, Role, Saved, by_line


def describe_plan(
    ready: Ready, body: StepBody, y_spec: Spec, weights: Sequence[Tensor], counts: Sequence[int],
    code: SourceLines, device: str,
) -> tuple[tuple[Loop, ...], tuple[Saved, ...], tuple[str, ...]]:  # fmt: skip
    """Describe a plan.

    Args:
        ready: the plan, and its loops as an executor runs them.
        body: the step as its user gave it.
        y_spec: the structure of y.
        weights: the tensors that the plan's first weights are; constants follow.
        counts: how many steps each sequence takes.
        code: the text of the user's lines.
        device: the type of device that the rows are on.

    Returns:
        The loops, what is kept between them, and the states that are linear recurrences.
    """
    plan = ready.plan
    named = tensor_names(body.step, weights)
    y_names = names(y_spec, "y")
    weight_labels = (*named, *plan.weights[len(named) :])
    inputs = (*plan.x, *plan.states, *weight_labels)
    labels = dict(zip((*plan.x, *plan.states, *plan.weights), inputs, strict=True))
    known = {**_first(plan.new_states, body.new_state_names), **_first(plan.y, y_names), **labels}
    make = _Maker(ready, sum(counts), len(counts), max(counts, default=0), code, device)
    loops = [make.forward(ready.forward.plan, known, y_names)]
    if ready.backward is not None:
        loops.append(make.backward(ready.backward.plan, known, y_names, body.new_state_names))
    linear = tuple(name for region in plan.forward.regions for name in region.linear)
    return tuple(loops), _saved(plan, y_names, sum(counts)), linear


@dataclass(frozen=True)
class _Maker:
    ready: Ready
    rows: int
    sequences: int
    steps: int
    code: SourceLines
    device: str

    def forward(self, loop: ir.LoopPlan, known: dict[str, str], y_names: Sequence[str]) -> Loop:
        plan, values = self.ready.plan, loop.body.values
        enters = [
            *(_port(n, values[n], "x") for n in plan.x),
            *(_port(n, values[n], "state") for n in plan.states),
            *(_port(known[n], values[n], "weight") for n in plan.weights),
        ]
        leaves = [_port(label, values[n], "y") for label, n in zip(y_names, plan.y, strict=True)]
        sources = {label: known[n] for label, n in zip(y_names, plan.y, strict=True)}
        return self._loop("forward", loop, known, enters, leaves, sources)

    def backward(
        self, loop: ir.LoopPlan, known: dict[str, str], y_names: Sequence[str], new_states: Sequence[str]
    ) -> Loop:
        plan, values = self.ready.plan, loop.body.values
        tangents = [
            (name, f"gradient of {label}")
            for name, label in zip(plan.tangents, (*y_names, *new_states), strict=True)
            if name is not None
        ]
        pairs = zip((*plan.x, *plan.states, *plan.weights), plan.gradients, strict=False)
        found = [(f"gradient of {known[n]}", gradient) for n, gradient in pairs if gradient is not None]
        first = _first([gradient for _, gradient in found], [label for label, _ in found])
        known = {**first, **known, **dict(tangents)}
        carried = {c.parameter: c.result for c in loop.carries}
        for state, tangent in zip(plan.states, plan.tangents[len(plan.y) :], strict=True):
            if tangent in carried:
                known.setdefault(carried[tangent], f"gradient of {state}")
        enters = [
            *(_port(label, values[n], "gradient") for n, label in tangents if n not in carried),
            *(_port(known.get(n, n), values[n], "kept", named=n in known) for n in plan.kept),
            *(_port(known[n], values[n], "weight") for n in plan.weights),
        ]
        leaves = [_port(label, values[gradient], "gradient") for label, gradient in found]
        return self._loop(
            "backward", loop, known, enters, leaves, {label: known[gradient] for label, gradient in found}
        )

    def _loop(
        self, direction: Direction, loop: ir.LoopPlan, known: dict[str, str], enters: list[Port],
        leaves: list[Port], sources: dict[str, str],
    ) -> Loop:  # fmt: skip
        regions = tuple(
            made for region in loop.regions for made in self.regions(loop, region, direction, known)
        )
        return Loop(direction, tuple(enters), regions, tuple(leaves), sources)

    def regions(
        self, loop: ir.LoopPlan, region: ir.Region, direction: Direction, known: dict[str, str]
    ) -> Iterator[Region]:
        """A region as it is told: matmuls that C took into a scan stand beside it, as the maps they are."""
        plans = (self.ready.plan.forward, self.ready.plan.backward)
        planned = {
            id(n) for p in plans if p is not None for r in p.regions if r.kind == "scan" for n in r.nodes
        }
        scan = region.kind == "scan"
        own = [k for k, n in enumerate(region.nodes) if not scan or id(n) in planned]
        first, last = (own[0], own[-1] + 1) if own else (0, 0)
        reads, writes = border(loop, region)
        scans_own = {name for n in region.nodes[first:last] for name in n.inputs}
        for part in (region.nodes[:first], region.nodes[first:last], region.nodes[last:]):
            adopted = scan and part != region.nodes[first:last]
            if not part and (adopted or not region.carries):
                continue
            mine = {name for node in part for name in node.inputs}
            made = {name for node in part for name in node.outputs}
            if adopted:
                read = [name for name in reads if name in mine - scans_own]
                written = [name for name in writes if name in made]
            else:
                made |= {c.parameter for c in region.carries}
                read = [name for name in reads if name in scans_own | {c.result for c in region.carries}]
                written = [name for name in writes if name in made]
            yield self._region(loop, region, part, direction, known, (read, written), adopted)

    def _region(
        self, loop: ir.LoopPlan, region: ir.Region, nodes: Sequence[Node], direction: Direction,
        known: dict[str, str], crossing: tuple[list[str], list[str]], adopted: bool,
    ) -> Region:  # fmt: skip
        ops = tuple(self.op(loop, node, known) for node in nodes)
        reads, writes = crossing
        turning = () if adopted else region.carries
        in_passes = self.passes(region) if turning else 0
        executor = self.ready.executor
        in_torch = executor.in_torch or region.kind != "scan"
        boots = sum(loop.body.values[c.parameter].bytes for c in turning) * self.sequences

        def label(name: str) -> str:
            return known.get(name, name)

        return Region(
            direction=direction,
            kind="map" if adopted else region.kind,
            executor="torch" if in_torch else executor.name,
            label="torch" if in_torch else executor.label,
            runs=in_passes or (self.steps if turning else 1),
            ops=ops,
            lines=by_line(ops, {op.line: self.code.at(op.line) for op in ops}),
            reads=tuple(map(label, reads)),
            writes=tuple(map(label, writes)),
            bytes_read=border_bytes(reads, loop.body, self.rows) + boots,
            bytes_written=border_bytes(writes, loop.body, self.rows) + boots,
            carries=tuple((label(c.parameter), label(c.result)) for c in turning),
            linear=() if adopted else tuple(map(label, region.linear)),
            in_blocks=adopted,
            passes=in_passes,
        )

    def passes(self, region: ir.Region) -> int:
        """How many passes over all rows a scan of linear recurrences makes; 0 if it goes step by step."""
        loops = [loop for loop in (self.ready.forward, self.ready.backward) if loop is not None]
        (scan,) = [scan for loop in loops for known, scan, _ in loop.regions if known is region]
        assert scan is not None
        return self.ready.executor.passes(scan, self.device, self.steps, self.sequences)

    def op(self, loop: ir.LoopPlan, node: Node, known: dict[str, str]) -> Op:
        made = tuple(name for name in node.outputs if name)
        value = loop.body.values[made[0]]
        return Op(
            name=_op_name(node),
            inputs=tuple(known.get(n, n) for n in node.inputs),
            outputs=tuple(known.get(n, n) for n in made),
            kind=value.kind,
            shape=value.shape,
            contracts=contracts(node, loop.body),
            weight=weight(node),
            line=node.line,
            flops=flops(node, loop.body, self.rows),
        )


def _first(names: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The label of each name; of a name that has several, the first."""
    return dict(zip(reversed(names), reversed(labels), strict=True))


def _port(label: str, value: Value, role: Role, named: bool = True) -> Port:
    return Port(label, role, value.kind, value.shape, value.dtype, named)


def _saved(plan: ir.Plan, y_names: Sequence[str], rows: int) -> tuple[Saved, ...]:
    """What the backward loop needs of the forward one: each value, what it costs, and why it is kept."""
    found = []
    makers = plan.forward.body.producers
    y_of = dict(zip(plan.y, y_names, strict=True))
    for name in plan.kept:
        value = plan.forward.body.values[name]
        node, extra = makers.get(name), False
        if name in plan.x:
            label, why = name, "the caller's own tensor"
        elif name in y_of:
            label, why = y_of[name], "the result itself"
        elif name in plan.shifted:
            y = y_of[plan.new_states[plan.states.index(name)]]
            label, why = f"{name} before each step", f"the rows of {y}, one step earlier"
        else:
            extra = True
            label = f"{name} before each step" if node is None else _op_name(node)
            why = _why(node)
        total = value.bytes * rows if extra else 0
        found.append(Saved(name, label, node and node.line, value.shape, value.bytes, total, extra, why))
    return tuple(found)


def _op_name(node: Node) -> str:
    """The op's name; of a torch call the function's: aten.linalg_solve.default -> linalg_solve."""
    return str(node.attr("target")).split(".")[1] if node.op == "opaque" else node.op


def _why(node: Node | None) -> str:
    if node is None:
        return "backward reads it at every step"
    if node.op in RANDOM:
        return "noise must be the same in both directions"
    if OPS[node.op].stage is Stage.MATMUL:
        return "a matmul is never computed twice"
    if OPS[node.op].stage is Stage.OPAQUE or node.op == "embed":
        return f"'{_op_name(node)}' is never computed twice"
    return "the rest is cheap to compute from it"
