"""The memory of a run's inputs between forward and backward.

`.data = `, `.to()` and `.half()` replace it, unseen by what autograd saves. Ops of torch save views, which
keep what they read; so does a run, of weights and of what trains: those live as long as it does anyway.
Weights that backward does not read may be written to in place, as in torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor

from stepnet.data.as_imported import is_set_to
from stepnet.data.modes import sees_saved_tensors
from stepnet.data.storage import memory_of
from stepnet.errors import StepError


class Memory(NamedTuple):
    """The inputs of a run, and what names their memory as it was.

    Attributes:
        own: leaves that train, or are weights; by place, with another name of the same memory.
        unread: those among them that backward does not read, with how often they had been written to.
        others: the memory of all others; empty where somebody else keeps what is saved, and gives copies.
    """

    own: dict[int, tuple[Tensor, Tensor]]
    unread: dict[int, int]
    others: dict[int, int]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], rows: int, unread: Collection[int] = ()) -> Memory:
        """`rows`: how many are no weights. `unread`: places of weights that backward does not read."""
        own = {
            k: (t, t.data)
            for k, t in enumerate(tensors)
            if t is not None and t.is_leaf and (k >= rows or t.requires_grad)
        }
        others = {k: memory_of(t) for k, t in enumerate(tensors) if t is not None and k not in own}
        versions = {k: own[k][0]._version for k in unread if k in own}
        return cls(own, versions, {} if sees_saved_tensors() else others)

    def to_save(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        """Those of the inputs that autograd is to see to."""
        return [None if k in self.unread else t for k, t in enumerate(tensors)]

    def given(self, saved: Sequence[Tensor]) -> list[Tensor]:
        """The inputs as they are by now, and what else is saved."""
        return [self.own[k][0] if k in self.unread else t for k, t in enumerate(saved)]

    def as_it_was(self, saved: Sequence[Tensor], differentiated: bool) -> list[Tensor]:
        """The inputs in the memory that the run read, and what else is saved.

        Raises:
            StepError: the gradient is `differentiated`, and a weight has other memory, or other numbers; or
                another input has other memory.
        """
        found = list(saved)
        for k, (tensor, was) in self.own.items():
            if k in self.unread or not is_set_to(tensor, was):
                if differentiated and not (is_set_to(tensor, was) and self.as_written(k)):
                    raise _changed("a gradient is differentiated, but a weight")
                found[k] = tensor if differentiated else was
        if any(memory_of(saved[k]) != memory for k, memory in self.others.items()):
            raise _changed("a gradient is asked for, but an input")
        return found

    def as_written(self, k: int) -> bool:
        """Whether an input that backward does not read has the numbers that the run read."""
        return k not in self.unread or self.own[k][0]._version == self.unread[k]

    def are_as_written(self) -> bool:
        """Whether all have."""
        return all(map(self.as_written, self.unread))


def _changed(what: str) -> StepError:
    return StepError(
        f"{what} got other memory (`.data = ...`, `.to()`) or was written to after the recurrence ran",
        remedy="call backward before",
    )
