"""Put rows in another order, at the cost of one gather forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from stepnet.data.dtypes import typed_shape
from stepnet.data.modes import beside, outside_modes, transforms_active
from stepnet.errors import LoDError


class PermuteRows(torch.autograd.Function):
    """`x[order]` for a permutation `order`, of which `back` is the inverse.

    `index_select` adds its gradient row by row into zeros, because its index may repeat. A permutation never
    repeats, so its gradient is a gather by the inverse: several times faster, and the same on every run on
    every device.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, back: Tensor | None) -> Tensor:
        return x.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        _, order, back = inputs
        ctx.is_back = back is not None
        ctx.save_for_backward(order if back is None else back)
        ctx.save_for_forward(order)
        ctx.set_materialize_grads(False)  # no gradient stays none, as by indexing

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Any, None, None]:
        (grad,), (saved,) = grad_outputs, ctx.saved_tensors
        if saved.dtype is not torch.int64:
            raise LoDError(
                "a hook for saved tensors gave back something else than the order of rows that was saved",
                got=typed_shape(saved),
                expected="int64",
                remedy="the hook that unpacks must undo what the one that packs did: type, shape, device",
            )
        if grad is None:
            return None, None, None
        return permute_rows(grad, saved if ctx.is_back else invert(saved)), None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        (order,) = ctx.saved_tensors
        return PermuteRows.apply(grad_inputs[0], order, None)


def permute_rows(x: Tensor, order: Tensor, back: Tensor | None = None) -> Tensor:
    """Rows of x in another order: row j of the result is row `order[j]` of x.

    Args:
        x: [rows, ...]; gradients flow through, of any order.
        order: int64 [rows], a permutation (not checked).
        back: its inverse; found in backward if it is not at hand.

    >>> permute_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 1]))
    tensor([3., 1., 2.])
    """
    order = beside(order, x)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.index_select(0, order)  # the same rows without the cost of a Python autograd call
    inputs = x, order, beside(back, x) if back is not None and x.is_cpu else None  # a copy to a GPU waits
    if torch.compiler.is_dynamo_compiling() or transforms_active():
        permuted = PermuteRows.apply(*inputs)
    else:  # what torch does then, but for its look at the signature, which takes as long as all else
        node: Any = super(torch.autograd.Function, PermuteRows)
        permuted = node.apply(*unwrap_dead_wrappers(inputs))
    assert isinstance(permuted, Tensor)
    return permuted


@outside_modes
def invert(order: Tensor) -> Tensor:
    """The permutation that undoes `order`.

    >>> invert(torch.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    inverse = torch.empty_like(order)
    real = type(order) is Tensor
    places = torch.arange(len(order), device=order.device) if real else torch.ones_like(order).cumsum(0) - 1
    inverse[order] = places
    return inverse
