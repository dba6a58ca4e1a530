"""What every evaluator is: it sees every batch, and has one value for all of them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn


class Evaluator(nn.Module):
    """Accumulates over batches: `update` takes the values of a batch, `compute` gives the value so far,
    `reset` forgets all batches. It has no parameters, and nothing is its input to.

    >>> class Count(Evaluator):
    ...     def reset(self):
    ...         self.seen = 0
    ...     def update(self, x):
    ...         self.seen += len(x)
    ...     def compute(self):
    ...         return self.seen
    >>> count = Count()
    >>> count.update([1, 2, 3])
    >>> count.compute()
    3
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    update: Callable[..., None]
    """Take in the values of a batch."""

    @abstractmethod
    def compute(self) -> Any:
        """The value for all batches since the last reset."""

    def forward(self, *values: Any) -> Any:
        """The value of one batch alone."""
        alone = copy.deepcopy(self)
        alone.reset()
        alone.update(*values)
        return alone.compute()
