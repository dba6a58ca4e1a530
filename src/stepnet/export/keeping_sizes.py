"""Functions of torch that fix an open size as they are, by others that leave it open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .open_sizes import SOME, settle


def _max_pool(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool1d`, of which torch would fix the size of what it slides over."""
    if return_indices or all(isinstance(size, int) for size in x.shape):
        return F.max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    more = [
        (least, *(part if isinstance(part, Sequence) else (part,)))
        for least, part in ((1, kernel_size), (1, stride or kernel_size), (0, padding), (1, dilation))
    ]
    return F.max_pool2d(x.unsqueeze(-2), *more, ceil_mode=ceil_mode).squeeze(-2)


def _tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> Any:
    """`tensor_split`, of which torch would ask how many parts are longer by one."""
    size, count = x.shape[dim], indices_or_sections
    if isinstance(size, int) or not isinstance(count, int) or count < 1:
        return torch.tensor_split(x, count, dim)
    return torch.split(x, [(size + count - 1 - i) // count for i in range(count)], dim)


def _split(x: Tensor, split_size_or_sections: Any, dim: int = 0) -> Any:
    """`split`, of which it is the size that says how many parts there are."""
    size: Any = x.shape[dim]
    if isinstance(size, torch.SymInt) and isinstance(split_size_or_sections, (int, torch.SymInt)):
        settle(size.node)
    split: Any = torch.functional.split
    return split(x, split_size_or_sections, dim)


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """`embedding_bag` of bags of one size: of others no file has what torch makes of them."""
    if input.dim() != 2 or max_norm is not None:
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    kept = torch.ones_like(input) if padding_idx is None else (input != padding_idx).to(input.dtype)
    count, kept = kept.sum(1, keepdim=True), kept.unsqueeze(-1).bool()
    if mode == "max":
        return torch.where(count > 0, rows.masked_fill(~kept, -torch.inf).amax(1), 0.0)
    total = rows.masked_fill(~kept, 0.0).sum(1)
    return total if mode == "sum" else total / count.clamp(min=1)


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """`linspace`, of which torch would fix how many numbers there are."""
    if isinstance(steps, int) or isinstance(start, Tensor) or isinstance(end, Tensor):
        return torch.linspace(start, end, steps, **options)
    parts = torch.arange(steps) / (torch.scalar_tensor(steps) - 1).clamp(min=1)
    return (start + (end - start) * parts).to(
        **{k: v for k, v in options.items() if k in ("dtype", "device")}
    )


def _one_hot(tensor: Tensor, num_classes: Any = -1) -> Tensor:
    """`one_hot`, of which torch would fix the number of classes."""
    if isinstance(num_classes, int):
        return F.one_hot(tensor, num_classes)
    classes: Any = torch.arange(num_classes)
    return (tensor.unsqueeze(-1) == classes).long()


def _as_asked(x: Tensor, asked: Sequence[Any]) -> Tensor:
    """A view with the sizes that it was asked for: torch may say `n // (n // 2)` in the place of 2."""
    for d, size in enumerate(asked):
        known: Any = x.shape[d]
        opened = isinstance(known, torch.SymInt) and not known.node.expr.is_Integer
        if opened and isinstance(size, int) and size >= 0:
            x = x.narrow(d, 0, size)
    return x


def _reshaped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reshaped(input: Tensor, *shape: Any, **named: Any) -> Tensor:
        out = function(input, *shape, **named)
        asked = shape or tuple(named.values())
        asked = asked[0] if len(asked) == 1 and isinstance(asked[0], Sequence) else asked
        return _as_asked(out, asked) if len(asked) == out.dim() else out  # else it is a dtype

    return reshaped


def _unflatten(input: Tensor, dim: Any, sizes: Any) -> Tensor:
    out = torch.unflatten(input, dim, sizes)
    return out if isinstance(dim, str) else _as_asked(out, [None] * (dim % input.dim()) + list(sizes))


class ToldByNumbers(Exception):
    """Python, or torch, was to know what only numbers in tensors decide."""


def _squeezed(input: Tensor, *dim: Any, **named: Any) -> Tensor:
    """`squeeze` of dimensions of which it is known whether they are 1: torch takes the others for larger."""
    asked = dim or tuple(named.values())
    asked = asked[0] if asked and isinstance(asked[0], Sequence) else asked
    if any(type(d) is int and free_unbacked_symbols(input.shape[d]) for d in asked):
        raise ToldByNumbers
    return torch.squeeze(input, *dim, **named)


def _cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """`cross` of a dimension that is known: torch takes the first that is 3, which an open one may be."""
    first = next((n for n in input.shape if isinstance(n, torch.SymInt) or n == 3 or n >= SOME), 3)
    if dim is None and not (isinstance(first, int) and first == 3):
        raise ToldByNumbers
    return torch.cross(input, other, dim)


KEEPING_SIZES: dict[Any, Callable[..., Any]] = {
    torch.linspace: _linspace,
    F.one_hot: _one_hot,
    F.embedding_bag: _embedding_bag,
    Tensor.data.__get__: Tensor.detach,  # pyright: ignore[reportAttributeAccessIssue]
    **dict.fromkeys((torch.max_pool1d, F.max_pool1d), _max_pool),
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), _tensor_split),
    **{function: _reshaped(function) for function in (torch.reshape, Tensor.reshape, Tensor.view)},
    **dict.fromkeys((torch.unflatten, Tensor.unflatten), _unflatten),
    **dict.fromkeys((torch.split, Tensor.split), _split),
    **dict.fromkeys((torch.squeeze, Tensor.squeeze), _squeezed),
    **dict.fromkeys((torch.cross, Tensor.cross), _cross),
}


class KeepingSizes(TorchFunctionMode):
    """Leaves sizes open that torch would fix, where nobody asks for more of a call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keeping: Any = KEEPING_SIZES.get(func, func)
        return keeping(*args, **(kwargs or {}))
