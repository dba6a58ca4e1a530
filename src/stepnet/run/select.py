"""Executors in order of preference, and a plan made ready for one of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stepnet.ir.plan import LoopPlan, Plan, Region

from .autograd import Ready
from .c_adopt import adopt
from .c_scan import CScan
from .linear_scan import eager_scan
from .loop import Loop, Scan


def executors(backend: str) -> tuple[str, ...]:
    """Which executors a backend tries, best first; the plain loop is what is left when all refuse."""
    return {"auto": ("c", "eager"), "c": ("c",), "eager": ("eager",), "naive": ()}[backend]


def make_ready(executor: str, plan: Plan) -> Ready:
    """Make a plan's loops ready to run.

    Raises:
        Unsupported: the executor declines the plan.
    """

    def scan(loop: LoopPlan, region: Region) -> Scan:
        return CScan(loop, region) if executor == "c" else eager_scan(loop, region)

    def loop(part: LoopPlan | None) -> Loop | None:
        return None if part is None else Loop(adopt(part) if executor == "c" else part, scan)

    with ThreadPoolExecutor(max_workers=2) as both:  # a build takes about a second, outside of Python
        backward, forward = both.map(loop, (plan.backward, plan.forward))
    assert forward is not None
    return Ready(plan, forward, backward, executor)
