"""Gradients where a leaf has got other memory since the loop ran (`p.data = ...`, `.to()`).

Ops of torch save a leaf itself, and read what it has by then; of its views, as a Linear saves one, they keep
the memory. Which of them is seen as the plain loop saves, anew each time: a first step from a state without a
gradient saves no weight, the second does. Where leaves are saved, the plain loop's gradients are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from stepnet.data.in_graph import not_followed
from stepnet.errors import StepError

from .call import Call
from .higher_order import of_plain_loop
from .memory import changed


class Moved(NamedTuple):
    """A run, leaves of which have got other memory since.

    Attributes:
        call: the run.
        were, now: its inputs in the memory that it read, and by now.
        grads, needed: what came in for each result; which inputs get a gradient.
        places: of the inputs that are not the same.
    """

    call: Call
    were: Sequence[Tensor]
    now: Sequence[Tensor]
    grads: Sequence[Tensor | None]
    needed: Sequence[bool]
    places: Sequence[int]

    def by_saved_leaves(self) -> list[Tensor | None] | None:
        """The plain loop's gradients; None where it saves none of the leaves, so that they are the plan's.

        Raises:
            StepError: the plain loop would draw other noise.
        """
        ready, were, now = self.call.ready, self.were, self.now
        x = len(ready.plan.x)  # which is cut: views
        other = self._replace(places=[k for k in self.places if k >= x and not _is_same(were[k], now[k])])
        if other.has_whole_state:
            raise _refusal("an initial state")
        other = other._replace(places=[k for k in other.places if k not in ready.state_places])
        if not other.places:
            return None
        if ready.plan.random:
            raise _refusal("a weight of a step that draws noise")
        found, saves = other.of_plain_loop()
        return found if saves else None

    def as_they_were(self) -> list[Tensor]:
        """The inputs as the run read them, with the history that they have by now: gradients that are to be
        differentiated are functions of these.

        Raises:
            StepError: the plain loop saves a leaf, whose numbers may be others at each derivative, or would
                draw other noise; or its gradient does not fit the leaf any more.
        """
        were, now = self.were, self.now
        fit = all(_looks(were[k]) == _looks(now[k]) for k in self.places)
        if not fit or self.call.ready.plan.random or self.has_whole_state or self.of_plain_loop()[1]:
            raise changed("a gradient is differentiated, but a weight or x")
        found = [*were]
        for k in self.places:
            if now[k].requires_grad:
                found[k] = _AsItWas.apply(now[k], were[k])  # pyright: ignore[reportCallIssue]
        return found

    @property
    def has_whole_state(self) -> bool:
        """Whether one of them is a state that a first step reads as it is given: a dense one is not cut."""
        states = self.call.ready.state_places
        return len(self.call.layout.ends) < 2 and any(k in states for k in self.places)

    def of_plain_loop(self) -> tuple[list[Tensor | None], bool]:
        """The plain loop's gradients, and whether it saves any of the leaves that moved."""
        with torch.enable_grad():
            own = [t.detach().requires_grad_(t.requires_grad or need)
                   for t, need in zip(self.were, self.needed, strict=True)]  # fmt: skip
        places, now = {id(own[k]): k for k in self.places}, self.now
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
            found = of_plain_loop(self.call, own, self.grads, self.needed, create_graph=False)
        return found, bool(saved)


class _AsItWas(torch.autograd.Function):
    """A leaf in the memory that it had."""

    @staticmethod
    @not_followed
    def forward(ctx: Any, leaf: Tensor, was: Tensor) -> Tensor:  # pyright: ignore
        return was.detach()

    @staticmethod
    @not_followed
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        return grad, None


def _looks(tensor: Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    return tensor.dtype, tensor.shape, tensor.device


def _is_same(was: Tensor, now: Tensor) -> bool:
    """Whether the numbers are the same in both."""
    return was.dtype is now.dtype and was.shape == now.shape and torch.equal(was, now)


def _refusal(what: str) -> StepError:
    return StepError(
        f"{what} got other memory (`.data = ...`, `.to()`) after the recurrence ran",
        remedy="call backward first; or backend='naive'",
    )
