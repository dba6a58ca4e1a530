"""A scan region brought into the form that C is written from: stages of matmuls and of row functions.

every result that is kept, carried or joined is made by an op of its own (copies are added)
slices move up through pointwise ops, so that gates are computed where they are used
stage k = a row function (pointwise ops and reductions, row by row), then the matmuls that read it
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepnet.errors import Refusal
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import Carry, LoopPlan, Region

from .c_views import VIEWS, Access, contiguous, view

_LOOPED = (Stage.POINTWISE, Stage.REDUCE)
UNSUPPORTED = {
    "gather": "a gather by index",
    "shift": "a value carried outside the scan",
}
# Every op that no loop of generated C holds, and why. Outside of loops torch runs it.
REFUSED = {
    **dict.fromkeys(("remainder", "atan2"), "`sn_math.h` has no function for it"),
    "gather": "each row reads other features",
    **dict.fromkeys(("shift", "spread"), "it moves values between steps, so it never stands inside a loop"),
    **dict.fromkeys(("matmul_tn", "embed_grad"), "it runs once for all steps, by torch"),
    **dict.fromkeys(("rand", "randn"), "noise is torch's, drawn for all steps before the loop"),
    "iota": "it is made once, before the loop",
    "opaque": "it is a call of torch",
}
# What generated C does with whole numbers. Products and quotients of them are torch's to define.
INTEGER_OPS = VIEWS | {
    "copy", "add", "sub", "neg", "eq", "ne", "lt", "le", "gt", "ge", "where", "cast", "full", "cat", "embed",
    "argmax", "argmin",
}  # fmt: skip


@dataclass
class Program:
    """What the C writer needs to know of a scan.

    Attributes:
        graph: the body, with values of added nodes.
        nodes: pointwise ops, reductions, `cat`, `matmul` and `sum_rows`, in order; no views.
        access: how each name is read: a base value, offset and strides.
        carries: those that change; `held` ones never do.
        row_inputs, shared, matrices: values read from outside; matrices only by matmuls.
        outputs: row values written to tables.
        sums: results of `sum_rows`.
        early, late: matmuls of rows from outside, and of rows for outside: done for some steps at a time.
        level: the stage of each other node.
        real: 'float32' or 'float64'.
    """

    graph: Graph
    nodes: list[Node]
    access: dict[str, Access]
    carries: list[Carry]
    held: list[str]
    row_inputs: list[str]
    shared: list[str]
    matrices: list[str]
    outputs: list[str]
    sums: list[str]
    real: str
    renamed: dict[str, str] = field(default_factory=dict)
    early: list[Node] = field(default_factory=list)
    late: list[Node] = field(default_factory=list)
    level: dict[int, int] = field(default_factory=dict)

    @property
    def lookups(self) -> list[Node]:
        """Rows of tables that an index names, which may name none."""
        return [node for node in self.nodes if node.op == "embed"]

    def value(self, name: str) -> Value:
        """A value by name."""
        return self.graph.values[name]


def program(loop: LoopPlan, region: Region) -> Program:
    """Prepare a scan.

    Raises:
        Refusal: it holds an op or a dtype that generated C does not do.
    """
    maker = _Maker(loop, region)
    return maker.make()


class _Maker:
    def __init__(self, loop: LoopPlan, region: Region) -> None:
        self.loop, self.region = loop, region
        self.values = dict(loop.body.values)
        self.graph = loop.body
        self.nodes: list[Node] = []
        self.access: dict[str, Access] = {}
        self.made: dict[str, Node] = {}

    def make(self) -> Program:
        region, loop = self.region, self.loop
        outputs = loop.outputs(region)
        real = self._check(region, outputs)
        nodes = _split_by_slices(
            self.graph, list(region.nodes), self.values, {*outputs, *(c.result for c in region.carries)}
        )
        self.graph = Graph("scan", (), tuple(nodes), (), self.values)
        for node in nodes:
            self._add(node)
        held = [c.parameter for c in region.carries if c.parameter == c.result]
        carries = [self._carried(c) for c in region.carries if c.parameter != c.result]
        rows_out, sums, renamed = [], [], {}
        taken = {c.result for c in carries}
        for name in outputs:
            if self.values[name].kind == "sum":
                sums.append(name)
                continue
            source = name
            node = self.made.get(name)
            if node is None or (node.op == "matmul" and name in taken) or name in rows_out:
                source = self._copy(name)
            renamed[name] = source
            rows_out.append(source)
        graph = Graph("scan", (), tuple(self.nodes), (), self.values)
        inside = set(self.made) | {c.parameter for c in region.carries}
        read = list(
            dict.fromkeys(self.access_of(n).base for node in self.nodes for n in self._operands(node))
        )
        outside = [n for n in read if n not in inside]
        matrices = list(dict.fromkeys(node.inputs[1] for node in self.nodes if node.op == "matmul"))
        result = Program(
            graph=graph,
            nodes=self.nodes,
            access=self.access,
            carries=carries,
            held=held,
            row_inputs=[n for n in outside if self.values[n].kind == "row"],
            shared=[n for n in outside if self.values[n].kind != "row" and self._constant(n) is None],
            matrices=matrices,
            outputs=rows_out,
            sums=sums,
            real=real,
            renamed=renamed,
        )
        self._set_apart(result)
        _levels(result)
        return result

    def _set_apart(self, p: Program) -> None:
        """Matmuls that need not wait for the step they belong to."""
        read = {p.access[n].base if n in p.access else n for node in p.nodes for n in self._operands(node)}
        for node in p.nodes:
            if node.op != "matmul" or len(p.value(node.inputs[0]).shape) != 1:
                continue
            seen = p.access.get(node.inputs[0])
            base = node.inputs[0] if seen is None else seen.base
            if base in p.row_inputs and node.output not in p.outputs:
                p.early.append(node)
            elif base in p.outputs and node.output in p.outputs and node.output not in read:
                p.late.append(node)
        apart = {id(node) for node in (*p.early, *p.late)}
        p.nodes = [node for node in p.nodes if id(node) not in apart]

    def _operands(self, node: Node) -> Sequence[str]:
        return node.inputs[:1] if node.op == "matmul" else node.inputs

    def _constant(self, name: str) -> float | None:
        producer = self.loop.body.producers.get(name)
        return producer.attr("value") if producer is not None and producer.op == "full" else None

    def access_of(self, name: str) -> Access:
        """How a name is read."""
        if name not in self.access:
            value = self.values[name]
            self.access[name] = Access(name, 0, value.shape, contiguous(value.shape))
        return self.access[name]

    def _check(self, region: Region, outputs: Sequence[str]) -> str:
        names = {n for node in region.nodes for n in (*node.inputs, *node.outputs) if n}
        names |= {c.parameter for c in region.carries} | {c.result for c in region.carries} | set(outputs)
        dtypes = {self.values[n].dtype for n in names} - {"bool", "int64"}
        for node in region.nodes:
            stage = OPS[node.op].stage
            if node.op in UNSUPPORTED or stage is Stage.OPAQUE:
                what = UNSUPPORTED.get(node.op) or f"the torch call {node.attr('target')}"
                raise Refusal(f"the loop holds {what}, which generated C does not do", line=node.line)
            if stage is Stage.MATMUL and self.values[node.inputs[1]].kind == "row":
                raise Refusal("the loop holds a matmul of two row values", line=node.line)
            if stage is Stage.SOURCE and node.op != "full":
                raise Refusal(f"the loop holds '{node.op}'", line=node.line)
            if node.op in ("matmul_tn", "embed_grad"):
                raise Refusal(f"the loop holds '{node.op}'", line=node.line)
            self._check_integers(node)
        if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
            raise Refusal(
                f"the loop computes in {', '.join(sorted(dtypes))}; generated C does one of float32, float64"
            )
        return dtypes.pop() if dtypes else "float32"

    def _check_integers(self, node: Node) -> None:
        whole = any(self.values[n].dtype == "int64" for n in (*node.inputs, *node.outputs))
        if whole and node.op not in INTEGER_OPS:
            raise Refusal(f"the loop does '{node.op}' with whole numbers", line=node.line)
        if node.op in ("argmax", "argmin", "embed"):
            source = self.values[node.inputs[0]]
            if source.dtype in ("int64", "bool") or not source.size:
                what = source.dtype if source.size else "nothing"
                raise Refusal(f"the loop holds an {node.op} of {what}", line=node.line)

    def _add(self, node: Node) -> None:
        if node.op in VIEWS:
            seen = view(self.graph, node, self.access_of(node.inputs[0]))
            if seen is not None:
                self.access[node.output] = seen
                return
            inner = self._copy(node.inputs[0])
            self._add(Node(node.op, (inner,), node.outputs, node.attrs, node.line))
            return
        if node.op == "cat":
            parts = []
            for name in node.inputs:
                part = self.made.get(name)
                fit = part is not None and OPS[part.op].stage in _LOOPED and name not in parts
                parts.append(name if fit else self._copy(name))
            node = Node("cat", tuple(parts), node.outputs, node.attrs, node.line)
        if node.op == "matmul":
            node = Node(
                "matmul", (self._row_operand(node), node.inputs[1]), node.outputs, node.attrs, node.line
            )
        self.nodes.append(node)
        self.made.update((name, node) for name in node.outputs)

    def _row_operand(self, node: Node) -> str:
        name = node.inputs[0]
        seen = self.access_of(name)
        lone = len([n for n in seen.shape[:-1] if n != 1]) == 0
        simple = seen.is_whole or (lone and seen.strides[-1:] in ((1,), (0,)))
        known = seen.base in self.made or self.values[seen.base].kind == "row"
        return name if simple and known and self._constant(seen.base) is None else self._copy(name)

    def _copy(self, name: str) -> str:
        value = self.values[name]
        number = sum(n.startswith(name + "_copy") for n in self.values)
        while (fresh := f"{name}_copy{number}") in self.values:  # a user's name may look like one of these
            number += 1
        self.values[fresh] = Value(fresh, "row", value.shape, value.dtype)
        node = Node("copy", (name,), (fresh,))
        self.nodes.append(node)
        self.made[fresh] = node
        return fresh

    def _carried(self, carry: Carry) -> Carry:
        if carry.result in self.made and self.made[carry.result].op != "cat":
            return carry
        return Carry(carry.parameter, self._copy(carry.result))


def _split_by_slices(
    graph: Graph, nodes: list[Node], values: dict[str, Value], wanted: set[str]
) -> list[Node]:
    """slice(f(a, b)) -> f(slice(a), slice(b)), where every reader of f slices the last dimension."""
    out = list(nodes)
    changed = True
    while changed:
        changed = False
        readers: dict[str, list[Node]] = {}
        for node in out:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        for node in out:
            if OPS[node.op].stage is not Stage.POINTWISE or node.output in wanted:
                continue
            last = len(values[node.output].shape) - 1
            use = readers.get(node.output, [])
            if len(use) < 2 or not all(
                u.op == "slice" and u.attr("dim") == last and u.attr("step") == 1 for u in use
            ):
                continue
            spans = sorted((u.attr("start"), u.attr("end")) for u in use)
            if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
                continue  # overlapping: work would be done twice
            for u in use:
                at = out.index(u)
                start, end = u.attr("start"), u.attr("end")
                pieces, inputs = [], []
                for name in node.inputs:
                    value = values[name]
                    if not value.shape or value.shape[-1] == 1:
                        inputs.append(name)
                        continue
                    part = f"{name}_{start}_{end}"
                    if part not in values:
                        shape = (*value.shape[:-1], end - start)
                        values[part] = Value(part, value.kind, shape, value.dtype)
                    dim = len(value.shape) - 1
                    attrs = (("dim", dim), ("start", start), ("end", end), ("step", 1))
                    if not any(part in n.outputs for n in (*out, *pieces)):
                        pieces.append(Node("slice", (name,), (part,), attrs, node.line))
                    inputs.append(part)
                out[at : at + 1] = [*pieces, Node(node.op, tuple(inputs), u.outputs, node.attrs, node.line)]
            out.remove(node)
            changed = True
            break
    return _in_order(out)


def _in_order(nodes: list[Node]) -> list[Node]:
    """Nodes so that a slice made for several readers comes before all of them."""
    makers = {name: node for node in nodes for name in node.outputs}
    done: set[int] = set()
    out: list[Node] = []
    for root in nodes:
        work = [(root, False)]
        while work:
            node, ready = work.pop()
            if id(node) in done:
                continue
            if ready:
                done.add(id(node))
                out.append(node)
                continue
            work.append((node, True))
            work.extend((makers[n], False) for n in reversed(node.inputs) if n in makers)
    return out


def _levels(p: Program) -> None:
    """Stages: a matmul belongs to the stage of what it reads, what reads a matmul to the next one."""
    ready: dict[str, int] = {}

    def base(name: str) -> str:
        return p.access[name].base if name in p.access else name

    for node in p.nodes:
        operands = node.inputs[:1] if node.op == "matmul" else node.inputs
        level = max((ready.get(base(n), 0) for n in operands), default=0)
        p.level[id(node)] = level
        for name in node.outputs:
            ready[name] = level + (node.op == "matmul")
    # as late as its readers allow: then what one reads stays in registers
    readers: dict[str, list[Node]] = {}
    for node in p.nodes:
        for name in node.inputs[:1] if node.op == "matmul" else node.inputs:
            readers.setdefault(base(name), []).append(node)
    for node in p.nodes:  # a copy that nobody reads is made where its source is read anyway
        if node.op == "copy" and node.output not in readers:
            near = [p.level[id(r)] for r in readers[base(node.inputs[0])] if r.op != "matmul"]
            p.level[id(node)] = max(near)
    fixed = {*p.outputs, *(c.result for c in p.carries)}
    for node in reversed(p.nodes):
        if node.op == "matmul" or fixed.intersection(node.outputs) or node.op == "sum_rows":
            continue
        uses = [p.level[id(r)] for name in node.outputs for r in readers.get(name, [])]
        if uses and OPS[node.op].stage in _LOOPED:
            p.level[id(node)] = max(p.level[id(node)], min(uses))
