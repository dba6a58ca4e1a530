"""Gradients where a leaf has got other memory since the loop ran (`p.data = ...`, `.to()`).

Ops of torch save a leaf itself, and read what it has by then; of its views, as a Linear saves one, they keep
the memory. Which of them is seen as the plain loop saves, anew each time: a first step from a state without a
gradient saves no weight, the second does. Where leaves are saved, the plain loop's gradients are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from stepnet.errors import StepError

from .call import Call
from .higher_order import of_plain_loop


def by_saved_leaves(
    call: Call, were: Sequence[Tensor], now: Sequence[Tensor], moved: Sequence[int],
    grads: Sequence[Tensor | None], needed: Sequence[bool],
) -> list[Tensor | None] | None:  # fmt: skip
    """The plain loop's gradients; None where it saves none of the leaves, so that they are the plan's.

    Args:
        call: the call.
        were, now: its inputs in the memory that it read, and by now.
        moved: the places of those that are not the same.
        grads, needed: what came in for each result; which inputs get a gradient.

    Raises:
        StepError: the plain loop would draw other noise.
    """
    plan = call.ready.plan
    moved = [k for k in moved if k >= len(plan.x) and not _is_same(were[k], now[k])]  # x is cut: views
    states = call.ready.state_places
    if any(k in states for k in moved) and len(call.layout.ends) < 2:  # a dense one is not cut
        raise _refusal("an initial state")
    moved = [k for k in moved if k not in states]
    if not moved:
        return None
    if plan.random:
        raise _refusal("a weight of a step that draws noise")
    with torch.enable_grad():
        own = [t.detach().requires_grad_(t.requires_grad or need)
               for t, need in zip(were, needed, strict=True)]  # fmt: skip
    places = {id(own[k]): k for k in moved}
    saved = set[int]()

    def pack(t: Tensor) -> Tensor | int:
        k = places.get(id(t))
        if k is None:
            return t
        saved.add(k)
        return k

    def unpack(kept: Tensor | int) -> Tensor:
        if not isinstance(kept, int):
            return kept
        return now[kept].clone() if now[kept].is_inference() else now[kept].detach()

    with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
        found = of_plain_loop(call, own, grads, needed, create_graph=False)
    return found if saved else None


def _is_same(was: Tensor, now: Tensor) -> bool:
    """Whether the numbers are the same in both."""
    return was.dtype is now.dtype and was.shape == now.shape and torch.equal(was, now)


def _refusal(what: str) -> StepError:
    return StepError(
        f"{what} got other memory (`.data = ...`, `.to()`) after the recurrence ran",
        remedy="call backward before, or backend='naive'",
    )
