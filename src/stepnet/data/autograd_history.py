"""The graph that autograd records as functions run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any


def history(nodes: Iterable[Any], until: Collection[Any] = ()) -> Iterator[Any]:
    """All nodes from which autograd leads back from some, these first; None stands for no node. What is
    before one of `until` is left out.

    >>> import torch
    >>> x = torch.ones(1, requires_grad=True)
    >>> [node.name() for node in history([(x * x).exp().grad_fn])]
    ['ExpBackward0', 'MulBackward0', 'torch::autograd::AccumulateGrad']
    """
    todo = [node for node in dict.fromkeys(nodes) if node is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        for other, _ in () if node in until else node.next_functions:
            if other is not None and other not in seen:
                seen.add(other)
                todo.append(other)
