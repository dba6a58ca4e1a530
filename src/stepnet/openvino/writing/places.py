"""Where the tensors that code reads stand among all that it reaches: a trace finds them there again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from stepnet.compiler.reach import reach
from stepnet.errors import IRError


def places_of(
    read: Sequence[Tensor], code: Callable[..., Any], what: str, reader: str = "it", owner: str = "body"
) -> list[int]:
    """The place of each tensor in the walk over `code`; the other words are what a user calls that.

    Raises:
        IRError: one of them is not found from `code`.

    >>> import torch
    >>> a, b = torch.ones(1), torch.ones(1)
    >>> places_of([b], lambda x: x * a + b, "the step")
    [1]
    """
    place = {id(t): i for i, t in enumerate(reach(code, everything=True).tensors)}
    if any(id(t) not in place for t in read):
        raise IRError(
            f"{what} cannot be written: {reader} reads a tensor that was not found again",
            remedy=f"keep it in a closure, an attribute or a module that the {owner} refers to",
        )
    return [place[id(t)] for t in read]
