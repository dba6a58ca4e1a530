"""Whether tensors look as others did, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

try:  # what torch.compile asks before it runs what it compiled
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards: Any = None


def alike(tensors: Sequence[Tensor], *, any_rows: int = 0) -> Callable[..., bool]:
    """A function of as many tensors that tells whether they look as these: of the same types, dtypes and
    devices, laid out alike, in memory as they stand, and met by the same modes and transforms of torch. What
    is one tensor here is one there. Where gradients are off it may not see what needs one.

    Args:
        tensors: what they are to look like.
        any_rows: how many of the first may have any number of rows.

    >>> same = alike([torch.ones(2, 3), torch.ones(3)], any_rows=1)
    >>> same(torch.ones(5, 3), torch.ones(3)), same(torch.ones(2, 3), torch.ones(3).double())
    (True, False)
    """
    first = {id(t): k for k, t in reversed([*enumerate(tensors)])}
    if len(first) < len(tensors):  # torch's guards tell of tensors that are not the same
        places, same = [first[id(t)] for t in tensors], sorted(first.values())
        once = alike([tensors[k] for k in same], any_rows=sum(k < any_rows for k in same))
        again = [(k, place) for k, place in enumerate(places) if k != place]

        def check(*others: Tensor) -> bool:
            for k, place in again:
                if others[k] is not others[place]:
                    return False
            return once(*[others[k] for k in same])

        return check
    if TensorGuards is None:
        looks = _looks(tensors, any_rows)
        return lambda *others: (
            all(isinstance(t, Tensor) for t in others) and looks == _looks(others, any_rows)
        )
    sizes: list[Any] = [list(t.shape) for t in tensors]
    for size in sizes[:any_rows]:
        size[0] = None
    strides: list[Any] = [list(t.stride()) for t in tensors]
    dims: Any = {"dynamic_dims_sizes": sizes, "dynamic_dims_strides": strides}
    return TensorGuards(*tensors, **dims).check


def _looks(tensors: Sequence[Tensor], any_rows: int) -> Any:
    """The same, one after the other."""
    shapes = [tuple(t.shape[k < any_rows :]) for k, t in enumerate(tensors)]
    strides = [t.stride() if t.layout is torch.strided else None for t in tensors]
    kinds = [(type(t), t.dtype, t.device, t.layout, t.requires_grad) for t in tensors]
    kept = [(t.is_neg(), t.is_conj(), t.is_inference(), t._is_zerotensor()) for t in tensors]
    around = (
        torch.is_inference_mode_enabled(), torch._C._are_functorch_transforms_active(),
        torch._C._get_tracing_state() is None, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(),
    )  # fmt: skip
    return shapes, strides, kinds, kept, around
