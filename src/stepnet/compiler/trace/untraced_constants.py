"""Tensors that a step makes where torch tells no mode of it, as torch.from_numpy does.

Where all that its Python reads is in its key, so is what they hold: they are constants of its plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

from stepnet.data.modes import is_wrapped, outside_modes
from stepnet.errors import Unsupported
from stepnet.watchers import during

from .sparse import is_sparse

_before: ContextVar[Sequence[Tensor] | None] = ContextVar("stepnet_unseen_are_constants", default=None)


def unseen_are_constants(closed: bool, before: Sequence[Tensor]) -> contextlib.AbstractContextManager[None]:
    """Whether what is met in here is a constant. `before`: what the step met in a run before, kept: what is
    there again it does not make."""
    return during(_before, before if closed else None)


def lost_tensor() -> Unsupported:
    """Why a step cannot be compiled that reads a tensor which its key does not tell."""
    return Unsupported(
        "the step reads a tensor that could not be found again from the step",
        remedy="keep it in a closure, an attribute or a module that the step refers to",
    )


def may_be_constant(tensor: Tensor) -> bool:
    """True for plain numbers in memory that numpy may know, too, and for matrices of few of them."""
    if (
        type(tensor) is not Tensor
        or is_wrapped(tensor)
        or tensor.device.type != "cpu"
        or tensor.requires_grad
    ):
        return False
    return is_sparse(tensor) or not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def constant_of(tensor: Tensor) -> Tensor:
    """What a trace has in the place of such a tensor; itself where it is none, or one of the trace.

    Raises:
        Unsupported: the step does not make it.
    """
    before = _before.get()
    if before is None or not may_be_constant(tensor) or is_sparse(tensor):
        return tensor
    if any(tensor is each for each in before):
        raise lost_tensor()
    return torch.ops.aten.lift_fresh.default(_copied(tensor))


@outside_modes
def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
