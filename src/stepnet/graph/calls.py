"""What an op of a graph stands for: a table of calls, found by their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Call(Protocol):
    """What is called where `stepnet::run` stands in a graph."""

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """The results for these inputs; autograd records them as any code that runs."""
        ...

    def empty(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """New tensors of the shapes of the results, whatever numbers they hold."""
        ...

    @property
    def random(self) -> bool:
        """Whether it draws noise, so that another run gives something else."""
        ...


_CALLS: dict[str, Call] = {}


def add(text: str, call: Call) -> None:
    """Let a text stand for a call in graphs of this process."""
    _CALLS[text] = call


def find(text: str) -> Call:
    """The call that a text stands for."""
    return _CALLS[text]


def is_known(text: str) -> bool:
    """Whether a text stands for a call by now."""
    return text in _CALLS
