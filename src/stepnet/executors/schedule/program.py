"""A scan region brought into the form that code is written from: stages of row functions and matmuls.

every result that is kept, carried or joined is made by an op of its own (copies are added)
slices move up through pointwise ops, so that gates are computed where they are used
stage k = a row function (pointwise ops and reductions, row by row), then the matmuls that read it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, SCATTERS, TOTALS, Stage
from stepnet.ir.plan import Carry, LoopPlan, Region

from .over_steps import OverSteps, of_vectors, sums_of_products
from .row_products import in_memory_order, over_last
from .slices import split_by_slices
from .views import VIEWS, Access, contiguous, view

_LOOPED = (Stage.POINTWISE, Stage.REDUCE)
_FAULTS = frozenset({"embed", "gather", *SCATTERS, "lu", "cholesky"})


@dataclass
class Program:
    """What a writer of code needs to know of a scan.

    Attributes:
        graph: the body, with values of added nodes.
        nodes: pointwise ops, reductions, `cat`, `matmul` and `sum_rows`, in order; no views.
        access: how each name is read: a base value, offset and strides.
        carries: those that change; `held` ones never do.
        row_inputs, whole, shared, matrices: values read from outside, of each row, of each sequence, and the
            same for all; matrices only by matmuls.
        by_row: the small ones of the matrices, which are multiplied element by element, and whose they are.
        places: of these each element is its place along the one dimension, which C counts anyway.
        constants: the number of each value that `full` makes in the scan, which is written where it is read.
        outputs: row values written to tables.
        sums, totals: results of `sum_rows`, of `sum_steps`.
        early, late: matmuls of rows from outside, and of rows for outside: done for some steps at a time.
        over: totals that are made once all steps are done.
        level: the stage of each other node.
        real: the type of its numbers.
    """

    graph: Graph
    nodes: list[Node]
    access: dict[str, Access]
    carries: list[Carry]
    held: list[str]
    row_inputs: list[str]
    whole: list[str]
    shared: list[str]
    matrices: list[str]
    outputs: list[str]
    sums: list[str]
    totals: list[str]
    real: str
    renamed: dict[str, str] = field(default_factory=dict)
    early: list[Node] = field(default_factory=list)
    late: list[Node] = field(default_factory=list)
    over: list[OverSteps] = field(default_factory=list)
    level: dict[int, int] = field(default_factory=dict)
    by_row: dict[str, str] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    constants: dict[str, float] = field(default_factory=dict)

    @property
    def faults(self) -> list[Node]:
        """What may fail on some values: an index that names nothing, a matrix without a factor."""
        return [node for node in self.nodes if node.op in _FAULTS]

    @property
    def stages(self) -> list[tuple[list[Node], list[Node]]]:
        """The nodes of each row function, and the matmuls after it."""
        count = max(self.level.values(), default=0) + 1
        levels = [[n for n in self.nodes if self.level[id(n)] == level] for level in range(count)]
        return [
            ([n for n in nodes if n.op != "matmul"], [n for n in nodes if n.op == "matmul"])
            for nodes in levels
        ]

    def base(self, name: str) -> str:
        """The stored value that a name is read from."""
        return self.access[name].base if name in self.access else name

    def value(self, name: str) -> Value:
        """A value by name."""
        return self.graph.values[name]

    def seen(self, name: str) -> Access:
        """How the elements of a value lie in memory."""
        return self.access.get(name) or Access.of(name, self.value(name).shape)


def operands(node: Node) -> Sequence[str]:
    """What a node reads in a row function: the matrix of a product is read apart."""
    return node.inputs[:1] if node.op == "matmul" else node.inputs


def program(loop: LoopPlan, region: Region, real: str) -> Program:
    """Prepare a scan whose numbers are of the type `real`."""
    return _Maker(loop, region, real).make()


class _Maker:
    def __init__(self, loop: LoopPlan, region: Region, real: str) -> None:
        self.loop, self.region, self.real = loop, region, real
        self.values = dict(loop.body.values)
        self.graph = loop.body
        self.nodes: list[Node] = []
        self.access: dict[str, Access] = {}
        self.made: dict[str, Node] = {}
        self.constants: dict[str, float] = {}

    def make(self) -> Program:
        region, loop = self.region, self.loop
        outputs = loop.outputs(region)
        wanted = {*outputs, *(c.result for c in region.carries)}
        nodes, by_row, places = in_memory_order(region, self.values, outputs)
        nodes = split_by_slices(nodes, self.values, wanted)
        self.graph = Graph("scan", (), tuple(nodes), (), self.values)
        for node in nodes:
            self._add(node)
        held = [c.parameter for c in region.carries if c.parameter == c.result]
        taken: set[str] = set()
        carries = [self._carried(c, taken) for c in region.carries if c.parameter != c.result]
        rows_out, sums, totals, renamed = [], [], [], {}
        for name in outputs:
            kind = self.values[name].kind
            if kind != "row":
                (sums if kind == "sum" else totals).append(name)
                continue
            source = name
            node = self.made.get(name)
            if node is None or self._has_no_table(node, taken) or name in {*rows_out, *self.constants}:
                source = self._copy(name)
            renamed[name] = source
            rows_out.append(source)
        over = self._over_steps(wanted, rows_out)
        graph = Graph("scan", (), tuple(self.nodes), (), self.values)
        outside = self._read_from_outside(over)
        matrices = [node.inputs[1] for node in self.nodes if node.op == "matmul"]
        matrices = list(dict.fromkeys([*matrices, *(n for n in outside if n in by_row)]))
        of_kind = {
            kind: [n for n in outside if self.values[n].kind == kind]
            for kind in ("row", "sequence", "shared")
        }
        made_apart = {*by_row, *places}
        result = Program(
            graph=graph,
            nodes=self.nodes,
            access=self.access,
            carries=carries,
            held=held,
            row_inputs=of_kind["row"],
            whole=of_kind["sequence"],
            shared=[n for n in of_kind["shared"] if n not in made_apart and self._constant(n) is None],
            matrices=matrices,
            by_row=by_row,
            places=places,
            constants=self.constants,
            outputs=rows_out,
            sums=sums,
            totals=totals,
            real=self.real,
            renamed=renamed,
            over=over,
        )
        self._set_apart(result)
        _set_levels(result)
        return result

    def _read_from_outside(self, over: Sequence[OverSteps]) -> list[str]:
        """What the nodes and the sums over steps read and the scan does not make, in order."""
        read = [self.access_of(n).base for node in self.nodes for n in operands(node)]
        read += [seen.base for each in over for seen in (each.left, each.right)]
        inside = {*self.made, *(c.parameter for c in self.region.carries)}
        return [n for n in dict.fromkeys(read) if n not in inside]

    def _over_steps(self, wanted: set[str], tables: list[str]) -> list[OverSteps]:
        """Sums over steps that need not be made in the loop: their nodes go, and the rows that they are made
        of have tables."""
        found: list[OverSteps] = []
        copies: dict[str, str] = {}
        for total, products, nodes in list(
            sums_of_products(self.nodes, self.values, self.access_of, self.real)
        ):
            gone = [*products, *nodes]
            read = [[self._in_table(n, tables) for n in node.inputs] for node in products]
            sums = [
                of_vectors(total, self.values[node.output].shape, seen)
                for node, seen in zip(products, read, strict=True)
            ]
            if None in sums or wanted.intersection(n.output for n in gone if n.op != "sum_steps"):
                continue
            self.nodes = [node for node in self.nodes if all(node is not other for other in gone)]
            for name in [seen.base for each in read for seen in each]:
                if not (name in copies or name in tables or self._is_outside(self.access_of(name).base)):
                    copies[name] = self._copy(name)
                    tables.append(copies[name])
            for each in filter(None, sums):
                left, right = (replace(v, base=copies.get(v.base, v.base)) for v in (each.left, each.right))
                found.append(replace(each, left=left, right=right))
        return found

    def _in_table(self, name: str, tables: list[str]) -> Access:
        """How a value is read that has a table, or will have: its own, or that of what it is spread from."""
        seen = self.access_of(name)
        spread = any(n > 1 and not step for n, step in zip(seen.shape, seen.strides, strict=True))
        is_all = seen.is_whole and prod(seen.shape) == self.values[seen.base].size
        if spread or is_all or self._is_outside(seen.base) or seen.base in tables:
            return seen
        return Access(name, 0, seen.shape, contiguous(seen.shape))

    def _is_outside(self, base: str) -> bool:
        """Whether a value is one of each row that the scan is given."""
        inside = base in self.made or base in {c.parameter for c in self.region.carries}
        return not inside and self.values[base].kind == "row"

    def _has_no_table(self, node: Node, taken: set[str]) -> bool:
        """Whether a product is written elsewhere: to a carry, or to rows of a few steps."""
        return node.op == "matmul" and (node.output in taken or self._is_early(node))

    def _is_early(self, node: Node) -> bool:
        """Whether a product is one of rows from outside."""
        return self._is_outside(self.access_of(node.inputs[0]).base) and (
            len(self.values[node.inputs[0]].shape) == 1
        )

    def _set_apart(self, p: Program) -> None:
        """Matmuls that need not wait for the step they belong to."""
        read = {p.base(n) for node in p.nodes for n in operands(node)}
        for at, node in enumerate(p.nodes):
            if node.op != "matmul" or len(p.value(node.inputs[0]).shape) != 1:
                continue
            if node.output in p.outputs and node.output not in read and node.inputs[0] in p.renamed:
                rows = (p.renamed[node.inputs[0]], node.inputs[1])  # a copy of it for all rows
                node = p.nodes[at] = Node("matmul", rows, node.outputs, node.attrs, node.line)
                self.made[node.output] = node
            base = p.base(node.inputs[0])
            if base in p.row_inputs and node.output not in p.outputs:
                p.early.append(node)
            elif base in p.outputs and node.output in p.outputs and node.output not in read:
                p.late.append(node)
        apart = {id(node) for node in (*p.early, *p.late)}
        p.nodes = [node for node in p.nodes if id(node) not in apart]

    def _constant(self, name: str) -> float | None:
        if name in self.constants:
            return self.constants[name]
        producer = self.loop.body.producers.get(name)
        return producer.attr("value") if producer is not None and producer.op == "full" else None

    def access_of(self, name: str) -> Access:
        """How a name is read."""
        if name not in self.access:
            self.access[name] = Access.of(name, self.values[name].shape)
        return self.access[name]

    def _add(self, node: Node) -> None:
        if node.op in VIEWS:
            seen = view(node, self.values[node.output].shape, self.access_of(node.inputs[0]))
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
                looped = part is not None and OPS[part.op].stage in _LOOPED and name not in parts
                fit = part is not None and looped and over_last(part, self.values)
                parts.append(name if fit else self._copy(name))
            node = Node("cat", tuple(parts), node.outputs, node.attrs, node.line)
        if node.op == "matmul":
            node = Node(
                "matmul", (self._row_operand(node), node.inputs[1]), node.outputs, node.attrs, node.line
            )
        if OPS[node.op].stage is Stage.WHOLE:
            inputs = tuple(map(self._whole_operand, node.inputs))
            node = Node(node.op, inputs, node.outputs, node.attrs, node.line)
        if node.op == "full":
            self.constants[node.output] = node.attr("value")
        else:
            self.nodes.append(node)
        self.made.update((name, node) for name in node.outputs)

    def _whole_operand(self, name: str) -> str:
        """A value whose elements stand in memory one after the other."""
        seen = self.access_of(name)
        return name if seen.is_whole and self._constant(seen.base) is None else self._copy(name)

    def _row_operand(self, node: Node) -> str:
        name = node.inputs[0]
        seen = self.access_of(name)
        lone = len([n for n in seen.shape[:-1] if n != 1]) == 0
        simple = seen.is_whole or (lone and (seen.strides[-1] == 1 or seen.shape[-1] == 1))
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

    def _carried(self, carry: Carry, taken: set[str]) -> Carry:
        node = self.made.get(carry.result)
        if node is None or node.op in ("cat", "full") or (node.op == "matmul" and carry.result in taken):
            carry = Carry(carry.parameter, self._copy(carry.result))
        taken.add(carry.result)  # a product is written to one place
        return carry


def _set_levels(p: Program) -> None:
    """Stages: a matmul belongs to the stage of what it reads, what reads a matmul to the next one."""
    ready: dict[str, int] = {}
    base = p.base
    for node in p.nodes:
        level = max((ready.get(base(n), 0) for n in operands(node)), default=0)
        p.level[id(node)] = level
        for name in node.outputs:
            ready[name] = level + (node.op == "matmul")
    # as late as its readers allow: then what one reads stays in registers
    readers: dict[str, list[Node]] = {}
    for node in p.nodes:
        for name in operands(node):
            readers.setdefault(base(name), []).append(node)
    for node in p.nodes:  # a copy that nobody reads is made where its source is read anyway
        if node.op == "copy" and node.output not in readers:
            near = [p.level[id(r)] for r in readers[base(node.inputs[0])] if r.op != "matmul"]
            p.level[id(node)] = max(near)
    fixed = {*p.outputs, *(c.result for c in p.carries)}
    for node in reversed(p.nodes):
        if node.op == "matmul" or fixed.intersection(node.outputs) or node.op in TOTALS:
            continue
        uses = [p.level[id(r)] for name in node.outputs for r in readers.get(name, [])]
        if uses and (OPS[node.op].stage in _LOOPED or node.op == "embed"):  # rows of a table lie there anyway
            p.level[id(node)] = max(p.level[id(node)], min(uses))
