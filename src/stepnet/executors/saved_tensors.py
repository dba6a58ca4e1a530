"""What a node saves for its backward, and gets back as it was, or an error says that it is not.

Hooks for saved tensors are the caller's. Generated C would read past the end of a shorter tensor, and take
numbers of another type for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet.data.dtypes import typed_shape
from stepnet.data.modes import sees_saved_tensors
from stepnet.errors import StepError, WrittenError

if TYPE_CHECKING:
    from .ready import Ready


def save(ctx: Any, tensors: Sequence[Tensor | None]) -> None:
    """Save tensors; and how they look, where a hook takes them."""
    ctx.looks = [t if t is None else _look(t) for t in tensors] if sees_saved_tensors() else ()
    ctx.save_for_backward(*tensors)


def as_saved(ctx: Any, ready: Ready) -> Sequence[Tensor]:
    """What was saved. `ready`: the plan that ran.

    Raises:
        WrittenError: it was written to.
        StepError: a hook gave back something else.
    """
    try:
        found = ctx.saved_tensors
    except RuntimeError as error:
        _, _, which = str(error).partition(" has been modified by an inplace operation: ")
        if not which:  # it is gone, or a hook fails
            raise
        raise WrittenError(
            f"x, a state, a weight or a result of step '{ready.plan.name}' has been modified by an inplace "
            "operation after the recurrence ran, and a gradient is asked for that reads it",
            got=which.partition(" Hint:")[0],
            remedy="make a new tensor of it (`x = x * 2`), or call backward first",
        ) from error
    looks = ctx.looks
    for tensor, look in zip(found, looks, strict=False) if looks else ():
        if look is not None and _look(tensor) != look:
            dtype, shape, device = look
            raise StepError(
                f"a hook for saved tensors gave back something else than step '{ready.plan.name}' saved",
                got=f"{typed_shape(tensor)} on {tensor.device}",
                expected=f"{typed_shape(torch.empty(shape, dtype=dtype, device='meta'))} on {device}",
                remedy="the hook that unpacks must undo what the one that packs did: type, shape, device",
            )
    return found


def _look(tensor: Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    return tensor.dtype, tensor.shape, tensor.device
