"""Torch's ops as an executor."""

from __future__ import annotations

from stepnet.executors.base import Executor
from stepnet.executors.loop import Scan
from stepnet.ir.plan import LoopPlan, Region

from .eager_scan import EagerScan
from .linear_scan import LinearScan, is_linear, passes


class TorchOps(Executor):
    """Torch's ops, step after step: any device, any type."""

    name = "eager"
    label = "torch ops"
    form = "hoisted"
    in_torch = True

    def scan(self, loop: LoopPlan, region: Region) -> Scan:
        """In passes over all rows where every state is linear, else step by step."""
        return LinearScan(loop, region) if is_linear(loop, region) else EagerScan(loop, region)

    def passes(self, scan: Scan, device: str, steps: int, sequences: int) -> int:
        by_passes = isinstance(scan, LinearScan) and scan.in_passes(device, steps, sequences)
        return passes(steps) if by_passes else 0


TORCH_OPS = TorchOps()
