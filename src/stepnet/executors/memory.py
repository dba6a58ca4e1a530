"""The memory of a run's inputs and results between forward and backward.

`.data = `, `.to()` and `.half()` replace it, unseen by what autograd saves. Ops of torch save views, which
keep what they read; so does a run, of weights and of what trains: those live as long as it does anyway.
Weights and rows that backward does not read may be written to in place, as in torch; so may results, which
the plain loop joins of what its steps gave: of those that were, backward makes what it reads once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.storage import memory_of
from stepnet.data.unpatched_torch import is_set_to
from stepnet.errors import WrittenError

from .saved_tensors import save

_NOTHING = torch.empty(0, device="cpu")


Counters = list[tuple[Tensor, int]]


def counters(results: Sequence[Tensor], read: Collection[int]) -> Counters:
    """Tensors without memory that count how often results are written to, which are saved for backward by
    another name; with the counts at first. `read`: the places of those that backward reads."""
    found: Counters = []
    for k in read:
        result = results[k]
        counter = result.detach()
        counter.data = _NOTHING
        found.append((counter, result._version))
    return found


def are_written(counted: Counters | tuple[()]) -> bool:
    """Whether something was written to any of the results."""
    return any([counter._version != count for counter, count in counted])  # noqa: C419  (a list is faster)


class Memory(NamedTuple):
    """The inputs of a run, and what names their memory as it was.

    Attributes:
        own: leaves that train, are weights, or are not read: the place, the tensor, and another name of its
            memory.
        unread: by place, those among them that backward does not read, and their versions.
        inert: the places of those that no derivative depends on.
        others: places and memory of all others but views; none where somebody else keeps what is saved, and
            gives copies.
    """

    own: list[tuple[int, Tensor, Tensor]]
    unread: dict[int, tuple[Tensor, int]]
    others: list[tuple[int, int]]
    inert: Collection[int] = ()

    @classmethod
    def of(
        cls, tensors: Sequence[Tensor | None], rows: int, not_read: Collection[int] = (),
        inert: Collection[int] = (),
    ) -> Memory:  # fmt: skip
        """`rows`: how many are no weights. `not_read`: places of those that backward does not read; `inert`:
        of those that no derivative depends on."""
        own: list[tuple[int, Tensor, Tensor]] = []
        others: list[tuple[int, int]] = []
        for k, t in enumerate(tensors):
            if t is None:
                continue
            if t.is_leaf and (k >= rows or t.requires_grad or k in not_read):
                own.append((k, t, t.data))
            elif not t._is_view():
                others.append((k, memory_of(t)))
        unread = {k: (t, t._version) for k, t, _ in own if k in not_read} if not_read else {}
        return cls(own, unread, others, inert)

    def save(self, ctx: Any, inputs: Sequence[Tensor | None], kept: Sequence[Tensor] = ()) -> None:
        """Save what backward reads, but those of the inputs that it does not; this goes with it."""
        unread = self.unread
        given = [None if k in unread else t for k, t in enumerate(inputs)] if unread else inputs
        save(ctx, (*given, *kept))
        ctx.memory = self._replace(others=[]) if ctx.looks else self

    def found(
        self, saved: Sequence[Tensor], differentiated: bool
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[int]]:
        """The inputs as they are by now; and in the memory that the run read; both with what else is saved.
        And the places where these are two.

        Raises:
            StepError: the gradient is `differentiated`, and a weight has other numbers; or an input that is
                no leaf has other memory.
        """
        for k, memory in self.others:
            if memory_of(saved[k]) != memory:
                raise changed("a gradient is asked for, but an input")
        now = saved
        if self.unread:
            now = list(saved)
            for k, (tensor, _) in self.unread.items():
                now[k] = tensor
        moved = [
            (k, was)
            for k, tensor, was in self.own
            if not is_set_to(tensor, was) and not _are_noted_alike(tensor, was)
        ]
        if differentiated and self._moves_a_derivative:
            raise changed("a gradient is differentiated, but a weight or x")
        if not moved:
            return now, now, ()
        were = list(now)
        for k, was in moved:
            were[k] = was
        return now, were, [k for k, _ in moved]

    @property
    def _moves_a_derivative(self) -> bool:
        """Whether something was written to that a derivative depends on."""
        written = (k for k, (t, version) in self.unread.items() if t._version != version)
        return any(k not in self.inert for k in written)

    @property
    def written(self) -> bool:
        """Whether something was written to that backward does not read."""
        return any(tensor._version != version for tensor, version in self.unread.values())


def _are_noted_alike(a: Tensor, b: Tensor) -> bool:
    """Whether two name one memory, and stand for the negative or the conjugate of what is in it, or for
    zeros: asked whether one is set to the other, torch compares copies of such."""
    first, second = (
        (t.is_neg(), t.is_conj(), t._is_zerotensor(), memory_of(t), t.storage_offset(), t.stride(), t.shape)
        for t in (a, b)
    )
    return any(first[:3]) and first == second


def changed(what: str) -> WrittenError:
    """What is raised where an input is not what it was, and that is not known."""
    return WrittenError(
        f"{what} got other memory (`.data = ...`, `.to()`) or was written to after the recurrence ran",
        remedy="call backward first",
    )
