"""Sizes as numbers that stay open while a model is traced: what readers of files compute shapes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

SOME = 101  # sequences of an example, at least, that stand for any: more than is written by hand


class Sizes:
    """Whole numbers, some of which may be torch's symbols; or truths that follow from such.

    Args:
        numbers: an array of them, or what makes one.
        dtype: of the tensor.
        made: the tensor, where it is there.
    """

    def __init__(self, numbers: Any, dtype: torch.dtype = torch.int64, made: Tensor | None = None) -> None:
        self.array = numbers if isinstance(numbers, np.ndarray) else np.array(numbers, dtype=object)
        self.dtype, self.made = dtype, made

    def __repr__(self) -> str:
        """The numbers, for messages."""
        return str(self.tolist())

    def tolist(self) -> Any:
        """The numbers, as nested lists."""
        return self.array.tolist()

    def tensor(self) -> Tensor:
        """The numbers as a tensor."""
        if self.made is not None:
            return self.made
        if not any(isinstance(size, torch.SymInt) for size in self.array.flat):
            made = torch.tensor(self.array.tolist(), dtype=self.dtype)
            return made.reshape(self.array.shape)  # a list of no rows does not say how long they are
        sizes = [torch.scalar_tensor(size, dtype=self.dtype) for size in self.array.flat]
        return torch.stack(sizes).reshape(self.array.shape)  # torch.tensor of torch 2.6 makes sizes fixed


class Repeated:
    """One size, as often as a tensor of sizes has elements: the lengths of sequences that are all whole."""

    def __init__(self, size: Any, shape: list[Any], dtype: torch.dtype) -> None:
        self.size, self.shape, self.dtype = size, shape, dtype

    def tensor(self) -> Tensor:
        """The numbers as a tensor."""
        return torch.scalar_tensor(self.size, dtype=self.dtype).expand(self.shape)


def equal(x: Any, y: Any) -> Any:
    """Whether numbers are equal; no size is the -1 that stands for one as it is, which exporters look for."""
    for size, number in ((x, y), (y, x)):
        if isinstance(size, torch.SymInt) and isinstance(number, int) and number < 0:
            return False if size.node.expr.is_nonnegative else size == number
    return x == y


def open_count(value: Any) -> torch.SymInt | None:
    """The one size that a value holds, where it is open and no less than 0."""
    size = value.array.item() if isinstance(value, Sizes) and value.array.size == 1 else None
    return size if isinstance(size, torch.SymInt) and size.node.expr.is_nonnegative else None


def plain(value: Any) -> Any:
    """A tensor in place of sizes."""
    return value.tensor() if isinstance(value, (Sizes, Repeated)) else value


def plain_but_open(value: Any) -> Any:
    """A tensor in place of truths and of sizes that are all known: in a branch only open ones must be sizes.

    >>> plain_but_open(Sizes([2, 3]))
    tensor([2, 3])
    """
    is_open = isinstance(value, Sizes) and any(isinstance(size, torch.SymInt) for size in value.array.flat)
    return value if is_open else plain(value)


def settled(truth: torch.SymBool) -> bool:
    """A truth as it is for the example: the sizes that it follows from are no longer open."""
    settle(truth.node)
    return truth.node.bool_()


def settle(number: Any) -> None:
    """Let the sizes that a node of torch's follows from be those of the example."""
    environment: Any = number.shape_env
    for symbol in getattr(number.expr, "free_symbols", ()):
        if not environment.is_unbacked_symint(symbol):
            environment.evaluate_expr(symbol)
