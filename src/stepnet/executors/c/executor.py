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
from stepnet.executors.schedule.wide import gather_wide
from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import LoopPlan, Plan, Region
from stepnet.ir.tables import is_table

from .kept_products import KeptProduct
from .limits import DTYPES, check, fits
from .operation_counts import is_surely_faster
from .over_rows import joined, product_over_rows
from .scan import CScan, build_all
from .small_calls import line_in_c


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
        return is_surely_faster(plan, sequences)

    def prepare(self, loop: LoopPlan) -> LoopPlan:
        return adopt(gather_wide(loop, functools.partial(fits, loop)))

    def scan(self, loop: LoopPlan, region: Region) -> CScan:
        return CScan(loop, region)

    def build(self, scans: Sequence[Scan]) -> None:
        build_all([scan for scan in scans if isinstance(scan, CScan)])

    def on_all_rows(self, graph: Graph, node: Node, by_torch: Run) -> Run:
        if is_table(graph, node):
            return KeptProduct(by_torch)
        return product_over_rows(graph, node, by_torch) if node.op == "matmul_tn" else by_torch

    def joined(self, graph: Graph, nodes: Sequence[Bound]) -> list[Bound]:
        return joined(graph, nodes)

    def for_few(self, scan: Scan) -> Literal["turns", "features"] | None:
        return scan.for_few if isinstance(scan, CScan) else None

    def line(self, line: Line) -> RunLine:
        return line_in_c(line)

    def source(self, scan: Scan) -> str | None:
        return scan.source.text if isinstance(scan, CScan) else None


GENERATED_C = GeneratedC()
