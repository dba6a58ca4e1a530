"""A plan made ready for an executor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stepnet.ir.plan import LoopPlan, Plan, Region

from .autograd import Ready
from .base import Executor
from .loop import PreparedLoop, Scan


def make_ready(executor: Executor, plan: Plan) -> Ready:
    """Make a plan's loops ready to run.

    Raises:
        Unsupported: the executor declines the plan.
    """

    def scan(loop: LoopPlan, region: Region) -> Scan:
        executor.check(loop, region)
        return executor.scan(loop, region)

    def loop(part: LoopPlan | None) -> PreparedLoop | None:
        return None if part is None else PreparedLoop(executor.prepare(part), scan, executor.on_all_rows)

    with ThreadPoolExecutor(max_workers=2) as both:  # a build takes about a second, outside of Python
        backward, forward = both.map(loop, (plan.backward, plan.forward))
    assert forward is not None
    ready = Ready(plan, forward, backward, executor)
    forward.hide(ready.extra)
    return ready
