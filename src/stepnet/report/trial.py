"""What the compiler does with a loop: a run on zeros, with torch's ops so that no C is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import IRError
from stepnet.executors.setting import get_backend, set_backend
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.file_model import LoopReport
from stepnet.openvino.graph import Node
from stepnet.watchers import watched

from .cost import SEQUENCES
from .explain import explain_loop
from .explanation import Explanation
from .records import Cost

MOST_STEPS = 4096
MOST_NUMBERS = 2**26


@dataclass(frozen=True)
class Trial:
    """Whether a loop is compiled (None: not tried), why not, and its plan's cost: once, and of each step."""

    compiled: bool | None
    reason: str | None = None
    once: Cost | None = None
    step: Cost | None = None


def trial(node: Node, inputs: Sequence[Any], steps: int | None) -> Trial:
    """Try the loop of a layer.

    Args:
        node: a layer whose runner reports how it ran.
        inputs: values, or meta tensors, which zeros stand for.
        steps: how many it takes, None if that is not known.
    """
    if not inputs or not all(isinstance(value, Tensor) for value in inputs):
        return Trial(None, "the shapes of its inputs are not known")
    inner = [layer for body in node.layer.bodies.values() for layer in body.layers.values()]
    if any(layer.bodies or layer.type.lower() in SEQUENCES for layer in inner):
        return Trial(False, "its body holds a loop or a branch")  # which zeros might never end
    if steps is None:
        return Trial(False, "only the run tells its number of steps")
    if steps > MOST_STEPS or steps * sum(value.numel() for value in inputs) > MOST_NUMBERS:
        return Trial(None, "it is too large to be tried; --shape can give smaller inputs")
    values = [torch.zeros(value.shape, dtype=value.dtype) if value.is_meta else value for value in inputs]
    plans: list[Explanation] = []

    def watch(loop: Any, *feeds: Any, **_: Any) -> None:
        if not isinstance(loop, str):
            plans.append(explain_loop(loop, *feeds, scopes=False, backend=TORCH_OPS.name))

    before = get_backend()
    set_backend(TORCH_OPS.name)
    try:
        with torch.no_grad(), watched(watch):
            node.call(values)
    except IRError as error:
        return Trial(None, f"it does not run on zeros: {str(error).splitlines()[0]}")
    finally:
        set_backend(before)
    report: LoopReport = node.run.reports  # pyright: ignore[reportFunctionMemberAccess]
    if not report.compiled:
        return Trial(False, report.reason)
    if not plans or any(plan.executor != TORCH_OPS.name for plan in plans) or not steps:
        return Trial(True)
    once, each = Cost(), Cost()
    for plan in plans:
        for region in plan.regions:
            once += Cost() if region.per_step else region.cost
            each += region.cost if region.per_step else Cost()
    return Trial(True, None, once, Cost(each.flops // steps, each.bytes // steps))
