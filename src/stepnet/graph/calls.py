"""What an op of a graph stands for: a table of calls, found by their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from stepnet.errors import StepError

from .flow import Flow
from .planned import Known


class Call(Protocol):
    """What is called where `stepnet::run` stands in a graph."""

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """The results for these inputs; autograd records them as any code that runs."""
        ...

    def by_plan(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool] | None
    ) -> Known | None:
        """A short way to the same results, which keeps what backward needs if it is told which tensors need a
        gradient; None where there is none."""
        ...

    def empty(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """New tensors of the shapes of the results, whatever numbers they hold."""
        ...

    def flow(self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]) -> Flow | None:
        """Which results carry a gradient, and which inputs one reaches; None where that is not known."""
        ...

    def draws(self, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]) -> bool:
        """Whether it may draw noise, so that another run of it gives something else."""
        ...

    @property
    def read_back(self) -> int:
        """How many of its results, the first ones, backward may read: nobody is to change them."""
        ...

    @property
    def transforms(self) -> bool:
        """Whether it calls transforms of torch.func, which refuse to run where hooks take what is saved."""
        ...


_CALLS: dict[str, Call] = {}
_KINDS: dict[str, Callable[[str], Call]] = {}


def add(text: str, call: Call) -> None:
    """Let a text stand for a call in graphs of this process."""
    _CALLS[text] = call


def add_kind(kind: str, load: Callable[[str], Call]) -> None:
    """Let `load` read texts that begin with a word: what follows it says all of the call."""
    _KINDS[kind] = load


def find(text: str) -> Call:
    """The call that a text stands for.

    Raises:
        StepError: it stands for none.
    """
    call = _CALLS.get(text)
    if call is None:
        kind, _, rest = text.partition(" ")
        load = _KINDS.get(kind)
        if load is None:
            raise unreadable(kind[:80])
        call = _CALLS[text] = load(rest)
    return call


def unreadable(said: str) -> StepError:
    """The error of a text that stands for nothing."""
    return StepError(
        "a graph holds a recurrence that this version cannot read",
        got=said[:200],
        remedy="export the module again by this version",
    )


def is_known(text: str) -> bool:
    """Whether a text was added."""
    return text in _CALLS
