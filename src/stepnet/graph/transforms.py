"""Steps that call transforms of torch.func, for a trace of what lies below these and below autograd.

torch notes there which operators are called, and not where gradients were off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.errors import StepError


def with_no_grad_noted(
    step: Callable[..., Sequence[Tensor]], refusal: Callable[[str], StepError]
) -> Callable[..., Sequence[Tensor]]:
    """A step of which the trace tells what no gradient passes: what is computed under `torch.no_grad` is
    detached.

    Args:
        step: the step.
        refusal: makes the error of one that cannot be written so.
    """

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if torch.is_grad_enabled():
                return out
            if func._schema.is_mutable:
                raise refusal(
                    f"it writes in place ({func}) under no_grad, and calls transforms of torch.func"
                )
            return _pytree.tree_map_only(Tensor, torch.ops.aten.detach.default, out)

    def noted(*rows: Any) -> Sequence[Tensor]:
        with Noted():
            return step(*rows)

    return noted
