"""Functions of autograd that Dynamo took apart, put together once. torch does it at each call: a step would
call another class each time, as one that does not do the same twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function


def put_together(
    forth: Callable[..., Any], back: Callable[..., Any], how: Mapping[str, Any]
) -> Callable[..., Any]:
    """What applies a Function.

    Args:
        forth: from its arguments to its results, and what is kept for backward.
        back: from gradients of its results, and what was kept, to those of its arguments.
        how: what Dynamo notes: "non_differentiable_idx", the places of results without a gradient. It refuses
            Functions in a step that mark what they write.
    """
    cut = how["non_differentiable_idx"]

    class Applied(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            results, kept = forth(*args)
            ctx.save_for_backward(*[t if isinstance(t, Tensor) else None for t in kept])
            ctx.others = [None if isinstance(t, Tensor) else t for t in kept]
            every = results if isinstance(results, Sequence) else [results]
            ctx.mark_non_differentiable(*[every[i] for i in cut])
            return results

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            kept = [a if b is None else b for a, b in zip(ctx.saved_tensors, ctx.others, strict=True)]
            return back(*grads, *kept)

    def applied(*args: Any) -> Any:
        return Applied.apply(*args)

    return applied
