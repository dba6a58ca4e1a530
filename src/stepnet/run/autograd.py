"""A compiled loop as one node of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import StepError
from stepnet.ir.plan import Plan

from .layout import Layout
from .loop import Loop, last, shift


@dataclass(frozen=True)
class Ready:
    """A plan whose loops can run."""

    plan: Plan
    forward: Loop
    backward: Loop | None
    executor: str


@dataclass(frozen=True)
class Call:
    """One run: the plan, where the rows stand, constants, and the plain loop on the same inputs."""

    ready: Ready
    layout: Layout
    constants: dict[str, Tensor]
    plain: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]


def run(call: Call, x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Run a plan. Returns the rows of each y leaf, then the last value of each state."""
    if call.ready.backward is None:
        out, _ = _forward(call, (*x, *states, *weights))
        return out
    return list(_Loop.apply(call, *x, *states, *weights))  # pyright: ignore[reportReturnType]


def _forward(call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    plan = call.ready.plan
    names = (*plan.x, *plan.states, *plan.weights)
    at_hand = {**dict(zip(names, tensors, strict=False)), **call.constants}
    states = {name: at_hand.pop(name) for name in plan.states}
    values, finals = call.ready.forward.run(at_hand, states, call.layout)
    out = distinct([*(values[n] for n in plan.y), *(finals[n] for n in plan.states)], tensors)
    return out, values


def distinct(out: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results as tensors that callers may write to: none is an input, another result, or a view of one."""
    seen = {id(t) for t in inputs}
    own = []
    for tensor in out:
        if id(tensor) in seen or tensor._base is not None:
            tensor = tensor.clone()
        seen.add(id(tensor))
        own.append(tensor)
    return own


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        plan = call.ready.plan
        out, values = _forward(call, tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        inputs = {*plan.x, *plan.states, *plan.weights}
        own = [n for n in plan.kept if n not in inputs and n not in plan.y and n not in plan.shifted]
        own += [n for n in plan.kept if n in plan.states and n not in plan.shifted]
        ctx.own = own
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *out[: len(plan.y)], *(values[n] for n in own))
        # a state that the step detaches still passes the gradient of sequences of no steps
        y_cut = [t for t, name in zip(out[: len(plan.y)], plan.tangents, strict=False) if name is None]
        ctx.mark_non_differentiable(*y_cut, *(t for t in out[len(plan.y) :] if not t.is_floating_point()))
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        call: Call = ctx.call
        plan = call.ready.plan
        saved = ctx.saved_tensors
        tensors = saved[: ctx.count]
        if torch.is_grad_enabled():
            return (None, *_again(call, tensors, grads))
        assert call.ready.backward is not None
        assert plan.backward is not None
        layout = call.layout
        y = saved[ctx.count : ctx.count + len(plan.y)]
        extra = dict(zip(ctx.own, saved[ctx.count + len(plan.y) :], strict=True))
        names = (*plan.x, *plan.states, *plan.weights)
        inputs = dict(zip(names, tensors, strict=False)) | call.constants
        results = dict(zip(plan.y, y, strict=True))
        values = {name: inputs[name] for name in plan.weights}
        for name in plan.kept:
            if name in extra:
                values[name] = extra[name]
            elif name in plan.shifted:
                result = plan.new_states[plan.states.index(name)]
                values[name] = shift(results[result], inputs[name], layout)
            else:
                values[name] = results[name] if name in results else inputs[name]
        states = {}
        for name, grad, like in zip(plan.tangents, grads, (*y, *tensors[len(plan.x) :]), strict=False):
            if name is None:
                continue
            tangent = torch.zeros_like(like) if grad is None else grad.contiguous()
            if name in {c.parameter for c in plan.backward.carries}:
                states[name] = tangent
            else:
                values[name] = tangent
        done, finals = call.ready.backward.run(values, states, layout.backward)
        out: list[Tensor | None] = []
        for k, name in enumerate(plan.gradients):
            if not ctx.needs_input_grad[k + 1]:
                out.append(None)
            elif len(plan.x) <= k < len(plan.x) + len(plan.states):
                place = k - len(plan.x)
                own = grads[len(plan.y) + place]
                out.append(_state_gradient(plan, place, done, finals, layout, tensors[k], own))
            elif name is None:
                out.append(None)
            else:
                out.append(done[name].reshape(tensors[k].shape))
        return (None, *out, *(None,) * (ctx.count - len(out)))


def _state_gradient(
    plan: Plan, place: int, done: dict[str, Tensor], finals: dict[str, Tensor], layout: Layout,
    like: Tensor, of_final: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of a boot state: what the backward loop carries past the first step; or, where the step
    cuts the gradient between steps, what the first step alone gives."""
    tangent = plan.tangents[len(plan.y) + place]
    if tangent is not None:
        return finals[tangent]
    passed = torch.zeros_like(like) if of_final is None else of_final
    name = plan.gradients[len(plan.x) + place]
    rows = done[name] if name is not None else like.new_zeros((layout.rows, *like.shape[1:]))
    return last(rows, passed, layout.backward)


def _again(call: Call, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients that can be differentiated again: the plain loop, recorded by autograd."""
    plan = call.ready.plan
    if plan.random:
        raise StepError(
            f"step '{plan.name}' draws noise, so its gradient cannot be differentiated again",
            remedy="backend='naive' keeps the noise for double backward",
        )
    n_x, n_s = len(plan.x), len(plan.states)
    with torch.enable_grad():
        y, finals = call.plain(tensors[:n_x], tensors[n_x : n_x + n_s])
        pairs = [
            (o, g) for o, g in zip((*y, *finals), grads, strict=True) if g is not None and o.requires_grad
        ]
        wanted = [i for i, t in enumerate(tensors) if t.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in pairs],
            [tensors[i] for i in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    out: list[Tensor | None] = [None] * len(tensors)
    for i, gradient in zip(wanted, found, strict=True):
        out[i] = gradient
    return out
