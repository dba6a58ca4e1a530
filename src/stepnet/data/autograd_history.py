"""The graph that autograd records as functions run, and one way back through it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import _engine_run_backward  # pyright: ignore[reportPrivateUsage]


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


def gradients_from(
    ends: Sequence[Tensor], seeds: Sequence[Tensor], read: Sequence[Tensor], *, again: bool = False
) -> tuple[Tensor | None, ...]:
    """What `torch.autograd.grad(ends, read, seeds, allow_unused=True)` gives; that imports what torch traces
    with, to compare shapes. `again`: the graph is kept.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> gradients_from([x * 3], [torch.tensor([1.0, 2.0])], [x])
    (tensor([3., 6.]),)
    """
    return _engine_run_backward(
        tuple(ends), tuple(seeds), again, False, tuple(read), True, accumulate_grad=False
    )
