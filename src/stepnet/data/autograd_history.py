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


def are_made_of(others: Iterable[Tensor], tensor: Tensor) -> bool:
    """Whether autograd leads back from one of some tensors to another one, or whether it is that.

    >>> import torch
    >>> h, c = torch.ones(2, 3, requires_grad=True).unbind()
    >>> are_made_of([c.tanh()], h), are_made_of([h.tanh(), c], h)
    (False, True)
    """
    if not tensor.requires_grad:
        return False
    others = list(others)
    nodes = list(history(t.grad_fn for t in others))
    if tensor.grad_fn is None:
        made = any(getattr(node, "variable", None) is tensor for node in nodes)
    else:
        ways = [(t.grad_fn, t.output_nr) for t in others]
        ways += [way for node in nodes for way in node.next_functions]
        made = (tensor.grad_fn, tensor.output_nr) in ways
    return made or any(t is tensor for t in others)


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
