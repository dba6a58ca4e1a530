"""Operators that torch computes by sizes which must be numbers, written anew for any number of rows.

Torch asks them for numbers where graphs are traced; steps are traced on rows of which nobody knows how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.in_graph import CAN_CAPTURE

_KEY = torch._C.DispatchKey.CompositeImplicitAutograd


def take_along_dim(values: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As `torch.take_along_dim`.

    >>> take_along_dim(torch.tensor([[3, 1, 2]]), torch.tensor([[1], [2]]), 1).tolist()
    [[1], [2]]
    """
    if dim is None:
        return values.reshape(-1).gather(0, indices.reshape(-1))
    dim %= values.dim()
    lead = torch.broadcast_shapes(*((*t.shape[:dim], *t.shape[dim + 1 :]) for t in (values, indices)))
    shapes = [(*lead[:dim], t.shape[dim], *lead[dim:]) for t in (values, indices)]
    return values.expand(shapes[0]).gather(dim, indices.expand(shapes[1]))


def tensordot(a: Tensor, b: Tensor, dims_a: Sequence[int], dims_b: Sequence[int]) -> Tensor:
    """As `torch.tensordot`, whose numbers of dimensions are made lists of them before.

    >>> tensordot(torch.ones(2, 3), torch.ones(4, 3), [1], [1]).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    over_a, over_b = [d % a.dim() for d in dims_a], [d % b.dim() for d in dims_b]
    free_a = [d for d in range(a.dim()) if d not in over_a]
    free_b = [d for d in range(b.dim()) if d not in over_b]
    depth, width = (math.prod(b.shape[d] for d in dims) for dims in (over_b, free_b))
    left = a.permute([*free_a, *over_a]).reshape([*(a.shape[d] for d in free_a), depth])
    out = left @ b.permute([*over_b, *free_b]).reshape(depth, width)
    return out.reshape([*(a.shape[d] for d in free_a), *(b.shape[d] for d in free_b)])


def inner(a: Tensor, b: Tensor) -> Tensor:
    """As `torch.inner`.

    >>> inner(torch.ones(3), torch.ones(2, 3)).tolist()
    [3.0, 3.0]
    """
    return a * b if not (a.dim() and b.dim()) else tensordot(a, b, [-1], [-1])


for _op, _function in (
    (torch.ops.aten.take_along_dim.default, take_along_dim),
    (torch.ops.aten.tensordot.default, tensordot),
    (torch.ops.aten.inner.default, inner),
):
    _known: Any = _op
    if CAN_CAPTURE and _KEY not in _known.py_kernels:
        _known.py_impl(_KEY)(_function)
