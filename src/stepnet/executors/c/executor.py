"""Generated C as an executor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from stepnet.executors.base import Executor, Run
from stepnet.executors.line import Line
from stepnet.executors.line import Run as RunLine
from stepnet.executors.loop import Bound, Scan
from stepnet.executors.schedule.adopt import adopt
from stepnet.executors.schedule.one_scan import in_one_scan
from stepnet.executors.schedule.wide import gather_wide
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import LoopPlan, Plan, Region
from stepnet.ir.tables import is_table

from .kept_products import KeptProduct
from .limits import DTYPES, check, fits
from .on_rows import product_on_rows
from .over_rows import joined, product_over_rows
from .scan import CScan, build_all
from .small_calls import line_in_c

_CALL = 2e-6  # seconds, the least that a call of torch takes
_NUMBER = 1e-9  # seconds, the most that generated code takes for one number of an op, and new memory for one
_COSTLY = 10  # numbers of cheap ops in the time of one of exp, tanh and the like


class GeneratedC(Executor):
    """C, compiled once and kept on disk."""

    name = "c"
    label = "generated C"
    form = "fused"
    devices = ("cpu",)
    dtypes = DTYPES

    def check(self, loop: LoopPlan, region: Region) -> None:
        check(loop, region)

    def is_surely_faster(self, plan: Plan, sequences: int) -> bool:
        """True if on each step of so many sequences a call of torch for each op, at its fastest, takes longer
        than all arithmetic of generated code at its slowest, and than what leaves the cache since maps run on
        all rows at once: counted, not timed."""
        calls, numbers = 0, 0
        loops = [loop for loop in (plan.forward, plan.backward) if loop is not None]
        # scans on their own, too: other executors run maps as this one does
        for kind, count in (("scan", _numbers), ("map", _leaves)):
            regions = [
                (loop.body, region) for loop in loops for region in loop.regions if region.kind == kind
            ]
            for graph, node in ((graph, node) for graph, region in regions for node in region.nodes):
                counted = count(graph, node)
                calls += counted is not None
                numbers += counted or 0
            if sequences * numbers * _NUMBER > calls * _CALL:
                return False
        return True

    def prepare(self, loop: LoopPlan) -> LoopPlan:
        return adopt(gather_wide(loop, functools.partial(fits, loop)))

    def for_one_step(self, loop: LoopPlan) -> LoopPlan | None:
        return in_one_scan(loop)

    def scan(self, loop: LoopPlan, region: Region) -> CScan:
        return CScan(loop, region)

    def build(self, scans: Sequence[Scan]) -> None:
        build_all([scan for scan in scans if isinstance(scan, CScan)])

    def on_all_rows(self, graph: Graph, node: Node, by_torch: Run) -> Run:
        if is_table(graph, node):
            return KeptProduct(by_torch)
        own = {"matmul": product_on_rows, "matmul_tn": product_over_rows}.get(node.op)
        return by_torch if own is None else own(graph, node, by_torch)

    def joined(self, graph: Graph, nodes: Sequence[Bound]) -> list[Bound]:
        return joined(graph, nodes)

    def for_few(self, scan: Scan) -> Literal["turns", "features"] | None:
        return scan.placements.for_few if isinstance(scan, CScan) else None

    def line(self, line: Line) -> RunLine:
        return line_in_c(line)

    def source(self, scan: Scan) -> str | None:
        return scan.source.text if isinstance(scan, CScan) else None


def _numbers(graph: Graph, node: Node) -> int | None:
    """How many numbers of cheap ops a node of a scan takes as long as; None: nothing is computed."""
    op, values = OPS[node.op], graph.values
    if op.stage in (Stage.SHAPE, Stage.SOURCE):
        return None
    if op.stage is Stage.MATMUL:
        return values[node.output].size * values[node.inputs[0]].shape[-1]
    size = max(values[name].size for name in (*node.inputs[:1], *node.outputs))
    return size * (_COSTLY if op.costly else 1)


def _leaves(graph: Graph, node: Node) -> int | None:
    """How many numbers a node of a map writes, which the next op of a step would find in the cache; None:
    nothing is computed, or it is as fast on all rows whatever it writes."""
    op, values = OPS[node.op], graph.values
    of_vectors = op.stage is Stage.MATMUL and len(values[node.inputs[0]].shape) == 1
    if of_vectors or op.stage in (Stage.SHAPE, Stage.SOURCE, Stage.ROWS):
        return None
    return sum(values[name].size for name in node.outputs if name)


GENERATED_C = GeneratedC()
