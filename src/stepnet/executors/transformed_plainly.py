"""Derivatives of a run inside torch.func's transforms by the plain loop, where no plan makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import vjp

from .call import Call
from .forward_mode import is_at_own_level, pushed
from .higher_order import at_places


def along(
    call: Call, tensors: Sequence[Tensor], directions: Sequence[Tensor | None], still: list[int]
) -> list[Tensor | None]:
    """The derivative of each result along directions, by the plain loop. `still`: see `pushed`."""
    places = [i for i, v in enumerate(directions) if v is not None]

    def results(*moving: Tensor) -> tuple[Tensor, ...]:
        return tuple(call.by_loop(_with(tensors, places, moving)))

    along = [v for v in directions if v is not None]
    moved = pushed(results, [tensors[i] for i in places], along, still)
    return [m if m.is_floating_point() else None for m in moved]


def _gradient(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    asked: Sequence[int],
) -> Callable[..., tuple[Tensor, ...]]:  # fmt: skip
    """The gradients of the plain loop, as a function of some of its inputs and of `grads`."""
    wants = [i for i, need in enumerate(needed) if need]

    def gradient(*moving: Tensor) -> tuple[Tensor, ...]:
        at = _with([*own, *grads], asked, moving)

        def results(*inputs: Tensor) -> tuple[Tensor, ...]:
            out = call.by_loop(_with(at[: len(own)], wants, inputs))
            return tuple(t for t, g in zip(out, grads, strict=True) if g is not None)

        pull = vjp(results, *(at[i] for i in wants))[1]
        return pull(tuple(g for g in at[len(own) :] if g is not None))

    return gradient


def second(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None], wanted: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the gradient, of each tensor and each of `grads`, by the plain loop."""
    held = [*own, *grads]
    asked = [i for i, w in enumerate(wanted) if w]
    gradient = _gradient(call, own, grads, needed, asked)
    pulled: Any = vjp(gradient, *(held[i] for i in asked))
    found, pull = pulled
    along = [directions[i] for i, need in enumerate(needed) if need]
    seeds = tuple(torch.zeros_like(f) if v is None else v for f, v in zip(found, along, strict=True))
    return at_places(pull(seeds), wanted)


def moved_gradient(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None],
) -> list[Tensor | None]:  # fmt: skip
    """The derivative of the gradients along directions of the inputs, by the plain loop."""
    asked = [i for i, v in enumerate(directions) if v is not None]
    if is_at_own_level():  # where what came in has directions, too, along which another one answers
        grads = [None if g is None else forward_ad.unpack_dual(g).primal for g in grads]
    gradient = _gradient(call, own, grads, needed, asked)
    moved = pushed(gradient, [own[i] for i in asked], [v for v in directions if v is not None])
    return at_places(moved, needed)


def _with(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Values with others at some places."""
    own = list(values)
    for i, value in zip(places, others, strict=True):
        own[i] = value
    return own
