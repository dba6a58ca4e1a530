"""Norms, torch's cells and embeddings written out in small steps.

torch differentiates norms twice by formulas that take their mean and spread for constants, so what is made by
differentiating those once more is wrong (layer_norm of torch 2.13 and before). Of cells and of weight_norm
`vmap` has no rule. Of embeddings under `vmap` it leaves out the gradient of the first one's padding alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepnet.compiler.rewritten.torch_cells import TORCH_CELLS


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    dims = tuple(range(-len(normalized_shape), 0))
    # as the step's own is computed; the mean is the same from wherever it is taken, so nothing flows there
    first = x.detach()[(..., *[slice(0, 1)] * len(dims))]
    centred = x - (first + (x - first).mean(dims, keepdim=True))
    return _scaled(centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt(), weight, bias)


def _group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *_: Any,
) -> Tensor:  # fmt: skip
    groups = x.reshape(x.shape[0], num_groups, -1)
    y = _layer_norm(groups, groups.shape[-1:], eps=eps).reshape(x.shape)
    each = (-1, *(1,) * (x.dim() - 2))
    return _scaled(y, *(None if t is None else t.reshape(each) for t in (weight, bias)))


def _embedding(
    index: Tensor, weight: Tensor, padding_idx: int | None = None, *rest: Any, **how: Any
) -> Tensor:
    rows = F.embedding(index, weight, None, *rest, **how)
    if padding_idx is None:
        return rows
    return torch.where((index == padding_idx % weight.shape[0]).unsqueeze(-1), rows.detach(), rows)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    dims = [d for d in range(v.dim()) if dim == -1 or d != dim]  # -1 is torch's word for all of them
    return v * (g / (torch.linalg.vector_norm(v, dim=dims, keepdim=True) if dims else v.abs()))


_WRITTEN_OUT: dict[Any, Any] = {
    torch._weight_norm: _weight_norm,  # pyright: ignore[reportPrivateImportUsage]
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    torch.group_norm: _group_norm,
    **TORCH_CELLS,
}


class _BySmallSteps(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def by_small_steps() -> Iterator[None]:
    """Where norms and cells are written out."""
    with _BySmallSteps():
        yield
