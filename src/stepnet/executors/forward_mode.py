"""Derivatives along directions by torch's forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from stepnet.data.modes import has_tangent
from stepnet.data.tree import leaves


def is_at_own_level() -> bool:
    """Whether directions are carried along by a level of autograd's own: there is one at a time."""
    return forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING


def pushed(
    function: Callable[..., Sequence[Tensor]], points: Sequence[Tensor], directions: Sequence[Tensor],
    still: list[int] | None = None,
) -> Sequence[Tensor]:  # fmt: skip
    """The derivative of each result. Inside a level of autograd's own, where `torch.func.jvp` would open
    another one, which torch does not have: at that level. `still`: gets the places of the results that have
    no tangent there, and so zeros.

    >>> with forward_ad.dual_level():
    ...     pushed(lambda t: (t * t,), [torch.tensor(3.0)], [torch.tensor(2.0)])
    (tensor(12.),)
    """
    if not is_at_own_level():
        found: Any = torch.func.jvp(
            lambda *moving: tuple(function(*moving)), tuple(points), tuple(directions)
        )
        return found[1]
    with forward_ad._set_fwd_grad_enabled(True):
        own = [
            forward_ad.make_dual(forward_ad.unpack_dual(t).primal, v)
            for t, v in zip(points, directions, strict=True)
        ]
        parts = [forward_ad.unpack_dual(t) for t in function(*own)]
    if still is not None:
        still[:] = [k for k, part in enumerate(parts) if part.tangent is None]
    return tuple(torch.zeros_like(p) if v is None else v for p, v in parts)


class GoesOn(TorchFunctionMode):
    """Notes what forward mode goes through and gradients do not, or otherwise: what is computed under
    `no_grad`, hooks on gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is Tensor.register_hook:
            self.found = True
        elif not (self.found or torch.is_grad_enabled()):
            self.found = any(map(has_tangent, leaves(result, Tensor)))
        return result
