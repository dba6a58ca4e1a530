"""A plan as records: its loops, their regions and ops, and what is saved for backward and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from stepnet.compiler.passes.fission import linear_states
from stepnet.compiler.trace.iteration import code_of
from stepnet.data.tree import Spec, names
from stepnet.executors.loop import Scan
from stepnet.executors.ready import Ready
from stepnet.ir import plan as ir
from stepnet.ir.graph import Node, Value
from stepnet.ir.loop import Loop
from stepnet.ir.ops import OPS, RANDOM, Stage

from .cost import border_bytes, contracts, node_flops, region_border, weight
from .names import SourceLines, tensor_names
from .records import Direction, LoopSummary, Op, Port, Region, Role, Saved, by_line

_STATES: dict[str, Role] = {"sequence": "static"}  # by kind: one that no step changes is no state
Labels = Mapping[str, str]  # the user's name of a value, where there is one


def describe_plan(
    ready: Ready, record: Loop, y_spec: Spec, weights: Sequence[Tensor], counts: Sequence[int],
    code: SourceLines, device: str,
) -> tuple[tuple[LoopSummary, ...], tuple[Saved, ...], tuple[str, ...]]:  # fmt: skip
    """Describe a plan.

    Args:
        ready: the plan, and its loops as an executor runs them.
        record: the loop.
        y_spec: the structure of what is joined, by output.
        weights: the tensors that the plan's first weights are; constants follow.
        counts: how many steps each sequence takes.
        code: the text of the user's lines.
        device: the type of device that the rows are on.

    Returns:
        The loops, what is saved between them, and the states that are linear recurrences.
    """
    plan = ready.plan
    named = tensor_names(code_of(record).function, weights)
    y_names = [n for key, tree in zip(y_spec.keys, y_spec.children, strict=True) for n in names(tree, key)]
    new_states = tuple(record.carried[port.parameter] for port in record.merged)
    inputs = (*plan.x, *plan.states, *named, *plan.weights[len(named) :])
    labels = _labels(plan.new_states, new_states) | _labels(plan.y, y_names)
    labels |= dict(zip((*plan.x, *plan.states, *plan.weights), inputs, strict=True))
    describer = _Describer(ready, sum(counts), len(counts), max(counts, default=0), code, device)
    loops = [describer.forward(ready.forward.plan, labels, y_names)]
    if ready.backward is not None:
        loops.append(describer.backward(ready.backward.plan, labels, y_names, new_states))
    forward = plan.forward
    linear = tuple(name for region in forward.regions for name in linear_states(forward.body, region))
    return tuple(loops), _saved(plan, y_names, sum(counts), len(counts)), linear


def generated_source(ready: Ready | None) -> str | None:
    """The generated code of a plan, scan after scan."""
    if ready is None:
        return None
    texts: list[str] = []
    for loop in (ready.forward, ready.backward):
        scans = [scan for _, scan, _ in loop.regions if scan is not None] if loop is not None else []
        texts += [text for scan in scans if (text := ready.executor.source(scan)) is not None]
    return "\n".join(texts) or None


@dataclass(frozen=True)
class _Describer:
    ready: Ready
    rows: int
    sequences: int
    steps: int
    code: SourceLines
    device: str

    def forward(self, loop: ir.LoopPlan, labels: Labels, y_names: Sequence[str]) -> LoopSummary:
        plan, values = self.ready.plan, loop.body.values
        enters = [
            *(_port(n, values[n], "x") for n in plan.x),
            *(_port(n, values[n], _STATES.get(values[n].kind, "state")) for n in plan.states),
            *(_port(labels[n], values[n], "weight") for n in plan.weights),
        ]
        leaves = [_port(label, values[n], "y") for label, n in zip(y_names, plan.y, strict=True)]
        sources = {label: labels[n] for label, n in zip(y_names, plan.y, strict=True)}
        regions = tuple(self.regions(loop, "forward", labels))
        return LoopSummary("forward", tuple(enters), regions, tuple(leaves), sources)

    def backward(
        self, loop: ir.LoopPlan, labels: Labels, y_names: Sequence[str], new_states: Sequence[str]
    ) -> LoopSummary:
        plan, values = self.ready.plan, loop.body.values
        tangents = {
            name: f"gradient of {label}"
            for name, label in zip(plan.tangents, (*y_names, *new_states), strict=True)
            if name is not None
        }
        pairs = zip((*plan.x, *plan.states, *plan.weights), plan.gradients, strict=False)
        gradients = [(f"gradient of {labels[n]}", name) for n, name in pairs if name is not None]
        first = _labels([name for _, name in gradients], [label for label, _ in gradients])
        labels = {**first, **labels, **tangents}
        carried = {c.parameter: c.result for c in loop.carries}
        for state, tangent in zip(plan.states, plan.tangents[len(plan.y) :], strict=True):
            if tangent in carried:
                labels.setdefault(carried[tangent], f"gradient of {state}")
        enters = [
            *(_port(label, values[n], "gradient") for n, label in tangents.items() if n not in carried),
            *(_port(labels.get(n, n), values[n], "kept", named=n in labels) for n in plan.kept),
            *(_port(labels[n], values[n], "weight") for n in plan.weights),
        ]
        leaves = [_port(label, values[name], "gradient") for label, name in gradients]
        sources = {label: labels[name] for label, name in gradients}
        regions = tuple(self.regions(loop, "backward", labels))
        return LoopSummary("backward", tuple(enters), regions, tuple(leaves), sources)

    def regions(self, loop: ir.LoopPlan, direction: Direction, labels: Labels) -> Iterator[Region]:
        """The regions of a loop.

        A scan to which generated C adds matmuls on all rows, before and after its own ops, is three regions:
        the matmuls are maps, which run in blocks.
        """
        for region in loop.regions:
            first, last = self._own(loop, region)
            own = region.nodes[first:last]
            own_reads = {name for node in own for name in node.inputs}
            inputs, outputs = region_border(loop, region)
            for nodes in (region.nodes[:first], own, region.nodes[last:]):
                adopted = region.kind == "scan" and nodes != own
                if not nodes and (adopted or not region.carries):
                    continue
                made = {name for node in nodes for name in node.outputs}
                if adopted:  # what the scan reads anyhow is drawn there
                    reads = {name for node in nodes for name in node.inputs} - own_reads
                else:
                    reads = own_reads | {c.result for c in region.carries}
                    made |= {c.parameter for c in region.carries}
                border = [n for n in inputs if n in reads], [n for n in outputs if n in made]
                yield self._region(loop, region, nodes, direction, labels, border, adopted)

    def _own(self, loop: ir.LoopPlan, region: ir.Region) -> tuple[int, int]:
        """Where a region's own nodes begin and end; around those of a scan stand matmuls that generated C
        took into it."""
        if region.kind != "scan":
            return 0, len(region.nodes)
        plans = [plan for plan in (self.ready.plan.forward, self.ready.plan.backward) if plan is not None]
        planned = {id(n) for p in plans for r in p.regions if r.kind == "scan" for n in r.nodes}
        own = [
            k
            for k, node in enumerate(region.nodes)
            if id(node) in planned or node.op != "matmul" or loop.body.values[node.inputs[1]].kind == "row"
        ]
        return (own[0], own[-1] + 1) if own else (0, 0)

    def _region(
        self, loop: ir.LoopPlan, region: ir.Region, nodes: Sequence[Node], direction: Direction,
        labels: Labels, border: tuple[list[str], list[str]], adopted: bool,
    ) -> Region:  # fmt: skip
        ops = tuple(self._op(loop, node, labels) for node in nodes)
        carries = () if adopted else region.carries
        executor = self.ready.executor
        scan = self._scan(region) if carries else None
        rounds = 0 if scan is None else executor.passes(scan, self.device, self.steps, self.sequences)
        in_torch = executor.in_torch or region.kind != "scan"
        state_bytes = sum(loop.body.values[c.parameter].bytes for c in carries) * self.sequences
        reads, writes = (tuple(labels.get(name, name) for name in names) for names in border)
        bytes_read, bytes_written = (
            border_bytes(names, loop.body, self.rows, self.sequences) for names in border
        )
        return Region(
            direction=direction,
            kind="map" if adopted else region.kind,
            executor="torch" if in_torch else executor.name,
            label="torch" if in_torch else executor.label,
            runs=rounds or (self.steps if carries else 1),
            ops=ops,
            lines=by_line(ops, {op.line: self.code.at(op.line) for op in ops}),
            reads=reads,
            writes=writes,
            bytes_read=bytes_read + state_bytes,
            bytes_written=bytes_written + state_bytes,
            carries=tuple(
                (labels.get(c.parameter, c.parameter), labels.get(c.result, c.result)) for c in carries
            ),
            linear=() if adopted else tuple(labels.get(n, n) for n in linear_states(loop.body, region)),
            in_blocks=adopted,
            passes=rounds,
            for_few=None if scan is None else executor.for_few(scan),
        )

    def _scan(self, region: ir.Region) -> Scan:
        """What runs the steps of a region."""
        loops = [loop for loop in (self.ready.forward, self.ready.backward) if loop is not None]
        (scan,) = [scan for loop in loops for known, scan, _ in loop.regions if known is region]
        assert scan is not None
        return scan

    def _op(self, loop: ir.LoopPlan, node: Node, labels: Labels) -> Op:
        outputs = tuple(name for name in node.outputs if name)
        value = loop.body.values[outputs[0]]
        return Op(
            name=_op_name(node),
            inputs=tuple(labels.get(n, n) for n in node.inputs),
            outputs=tuple(labels.get(n, n) for n in outputs),
            kind=value.kind,
            shape=value.shape,
            contracts=contracts(node, loop.body),
            weight=weight(node),
            line=node.line,
            flops=node_flops(node, loop.body, self.rows, self.sequences),
        )


def _labels(names: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The label of each name; of a name that has several, the first."""
    return dict(zip(reversed(names), reversed(labels), strict=True))


def _port(label: str, value: Value, role: Role, named: bool = True) -> Port:
    return Port(label, role, value.kind, value.shape, value.dtype, named)


def _saved(plan: ir.Plan, y_names: Sequence[str], rows: int, sequences: int) -> tuple[Saved, ...]:
    """What the backward loop needs of the forward one: each value, what it costs, and why it is saved."""
    records = []
    producers = plan.forward.body.producers
    y_of = dict(zip(plan.y, y_names, strict=True))
    for name in plan.kept:
        value = plan.forward.body.values[name]
        node, extra = producers.get(name), False
        if name in plan.x or (name in plan.states and value.kind == "sequence"):
            label, why = name, "the caller's own tensor"
        elif name in y_of:
            label, why = y_of[name], "the result itself"
        elif name in plan.shifted:
            y = y_of[plan.new_states[plan.states.index(name)]]
            label, why = f"{name} before each step", f"the rows of {y}, one step earlier"
        else:
            extra = True
            label = f"{name} before each step" if node is None else _op_name(node)
            why = _why(node, value)
        total = value.bytes * (rows if value.kind == "row" else sequences) if extra else 0
        records.append(Saved(name, label, node and node.line, value.shape, value.bytes, total, extra, why))
    return tuple(records)


def _op_name(node: Node) -> str:
    """The op's name; of a torch call the function's: aten.linalg_solve.default -> linalg_solve."""
    return str(node.attr("target")).split(".")[1] if node.op == "opaque" else node.op


def _why(node: Node | None, value: Value) -> str:
    if value.kind == "sequence":
        return "once for each sequence"
    if node is None:
        return "backward reads it at every step"
    if node.op in RANDOM:
        return "noise must be the same in both directions"
    if OPS[node.op].stage is Stage.MATMUL:
        return "a matmul is never computed twice"
    if OPS[node.op].stage in (Stage.OPAQUE, Stage.WHOLE) or node.op == "embed":
        return f"'{_op_name(node)}' is never computed twice"
    return "the rest is cheap to compute from it"
