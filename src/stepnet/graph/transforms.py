"""Steps that call transforms of torch.func, for a trace of what lies below these and below autograd.

torch notes there which operators are called, and not where gradients were off; from 2.14 on a detached tensor
is an alias there like any other, and one that is detached in place never was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.errors import StepError


def with_no_grad_noted(
    step: Callable[..., Sequence[Tensor]], refusal: Callable[[str], StepError]
) -> Callable[..., Sequence[Tensor]]:
    """A step of which the trace tells what no gradient passes: what is computed under `torch.no_grad` is
    detached, too.

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
            return _pytree.tree_map_only(Tensor, _detached, out)

    class Asked(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is Tensor.detach_:
                raise refusal("it detaches in place, and calls transforms of torch.func: .detach()")
            out = func(*args, **(kwargs or {}))
            if func in _DETACHES:
                _note_detached()
            return out

    def noted(*rows: Any) -> Sequence[Tensor]:
        with Noted(), Asked():
            return step(*rows)

    return noted


_DETACHES = (Tensor.detach, torch.detach, Tensor.data.__get__)  # pyright: ignore[reportAttributeAccessIssue]


def _detached(tensor: Tensor) -> Tensor:
    found = torch.ops.aten.detach.default(tensor)
    _note_detached()
    return found


def _note_detached() -> None:
    """The trace calls what it noted last by its name."""
    mode = get_proxy_mode()
    assert mode is not None
    last = next(iter(reversed(mode.tracer.graph.nodes)))
    if last.target is torch.ops.aten.alias.default:
        last.target = torch.ops.aten.detach.default
