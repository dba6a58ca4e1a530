"""A compiled loop inside torch.func's grad, vjp and vmap.

Each transform calls what is below it with its own wrappers taken off, and at the bottom the plan runs on
plain tensors. What a node keeps for its gradient is among its results, so that transforms see it; a batch of
calls is one call after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd import Call, forward, gradients, has_gradient
from .flow import carry_gradients


def run_transformed(
    call: Call, x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Run a plan. Returns the rows of each y leaf, then the last value of each state."""
    out = _PlanCall.apply(call, *x, *states, *weights)
    return list(out[: len(call.ready.plan.y) + len(states)])  # pyright: ignore


class _PlanCall(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        plain = [t.detach().contiguous() for t in tensors]
        out, values = forward(call, plain)
        return (*out, *(values[name].detach() for name in call.ready.extra))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *tensors = inputs
        plan = call.ready.plan
        results = output[: len(plan.y) + len(plan.states)]
        ctx.call, ctx.count = call, len(tensors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[: len(plan.y)], *output[len(results) :])
        carry = carry_gradients(plan, call.layout, ctx.needs_input_grad[1:])
        still = (t for t, carries in zip(results, carry, strict=True) if not carries)
        ctx.mark_non_differentiable(*still, *output[len(results) :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        call = ctx.call
        needed = tuple(ctx.needs_input_grad[1:])
        plan = call.ready.plan
        grads = grads[: len(plan.y) + len(plan.states)]
        given = tuple(grad is not None for grad in grads)
        has = has_gradient(call, given, needed)
        saved = ctx.saved_tensors
        parts = iter(())
        if any(has):
            parts = iter(
                _Gradient.apply(call, ctx.count, needed, given, *saved, *(g for g in grads if g is not None))
            )
        return (None, *(next(parts) if has_one else None for has_one in has))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Tensor) -> Any:  # pyright: ignore
        return _one_by_one(_PlanCall, info, in_dims[1:], (call,), tensors)


class _Gradient(torch.autograd.Function):
    """The gradients that there are, of (tensors, what was kept, gradients of results)."""

    @staticmethod
    def forward(  # pyright: ignore
        call: Call, count: int, needed: tuple[bool, ...], given: tuple[bool, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        plain = [t.detach().contiguous() for t in tensors]
        n = len(plain) - sum(given)
        grads = iter(plain[n:])
        of_results = [next(grads) if g else None for g in given]
        found = gradients(call, plain[:count], plain[count:n], of_results, needed)
        return tuple(g for g in found if g is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, ctx.count, ctx.needed, ctx.given, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        """By the plain loop, differentiated twice."""
        tensors = ctx.saved_tensors
        n = len(tensors) - sum(ctx.given)
        wanted = ctx.needs_input_grad[4:]
        grads, moves = iter(tensors[n:]), iter(directions)
        of_results = [next(grads) if g else None for g in ctx.given]
        along = [next(moves) if has else None for has in has_gradient(ctx.call, ctx.given, ctx.needed)]
        want = iter(wanted[n:])
        asked = [*wanted[: ctx.count], *(next(want) if g else False for g in ctx.given)]
        found = _twice(ctx.call, tensors[: ctx.count], of_results, ctx.needed, along, asked)
        of_grads = [m for m, g in zip(found[ctx.count :], ctx.given, strict=True) if g]
        return (None, None, None, None, *found[: ctx.count], *(None,) * (n - ctx.count), *of_grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """They are linear in the gradients of results, which alone have tangents here."""
        tensors = ctx.saved_tensors
        n = len(tensors) - sum(ctx.given)
        along = [
            torch.zeros_like(t) if v is None else v
            for t, v in zip(tensors[n:], tangents[4 + n :], strict=True)
        ]
        return _Gradient.apply(ctx.call, ctx.count, ctx.needed, ctx.given, *tensors[:n], *along)  # pyright: ignore

    @staticmethod
    def vmap(  # pyright: ignore
        info: Any, in_dims: Any, call: Call, count: int, needed: Any, given: Any, *tensors: Tensor
    ) -> Any:
        return _one_by_one(_Gradient, info, in_dims[4:], (call, count, needed, given), tensors)


def _twice(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None], wanted: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the gradient, of each tensor and each of `grads`, by the plain loop."""
    from torch.func import vjp

    n_x, n_s = len(call.ready.plan.x), len(call.ready.plan.states)
    held = [*own, *grads]
    asked = [i for i, w in enumerate(wanted) if w]
    wants = [i for i, need in enumerate(needed) if need]

    def gradient(*moving: Tensor) -> tuple[Tensor, ...]:
        at = list(held)
        for i, tensor in zip(asked, moving, strict=True):
            at[i] = tensor

        def results(*inputs: Tensor) -> tuple[Tensor, ...]:
            all_of: Any = at[: len(own)]
            for i, tensor in zip(wants, inputs, strict=True):
                all_of[i] = tensor
            y, finals = call.plain(all_of[:n_x], all_of[n_x : n_x + n_s], all_of[n_x + n_s :])
            return tuple(t for t, g in zip((*y, *finals), grads, strict=True) if g is not None)

        pull = vjp(results, *(at[i] for i in wants))[1]
        found = pull(tuple(g for g in at[len(own) :] if g is not None))
        return tuple(g for i, g in zip(wants, found, strict=True) if directions[i] is not None)

    pull = vjp(gradient, *(held[i] for i in asked))[1]
    found = iter(pull(tuple(v for v in directions if v is not None)))
    return [next(found) if w else None for w in wanted]


def _one_by_one(
    function: Any, info: Any, in_dims: Sequence[int | None], fixed: tuple[Any, ...], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    rows = [
        function.apply(
            *fixed, *(t if d is None else t.select(d, k) for t, d in zip(tensors, in_dims, strict=True))
        )
        for k in range(info.batch_size)
    ]
    out = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    return out, (0,) * len(out)
