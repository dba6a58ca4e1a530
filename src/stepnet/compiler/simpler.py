"""Functions that keep rows apart, though torch's own trace of them does not show it, in simpler ones.

Each takes what torch's function takes, and gives NotImplemented for what it does not know: then torch's own
is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.modes import autocast_dtype

_MOST_TAPS = 128  # of a convolution that is written out


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """By statistics that are kept: a scale and a shift of each channel."""
    if training or running_mean is None or running_var is None:
        return NotImplemented  # it mixes rows

    def channels(value: Tensor) -> Tensor:
        return value.reshape(-1, *(1,) * (input.dim() - 2))

    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    result = (input - channels(running_mean)) * channels(scale)
    return result if bias is None else result + channels(bias)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """A layer norm of each group."""
    channels = input.shape[1]
    if channels % num_groups:
        return NotImplemented
    size = channels // num_groups
    for n in input.shape[2:]:
        size *= n
    groups = F.layer_norm(input.reshape(input.shape[0], num_groups, size), [size], eps=eps)
    result = groups.reshape(input.shape)
    wide = (-1, *(1,) * (input.dim() - 2))
    result = result if weight is None else result * weight.reshape(wide)
    return result if bias is None else result + bias.reshape(wide)


def _rows_of_a_table(table: Tensor, index: Any) -> Any:
    """An embedding."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or not index.dim():
        return NotImplemented
    if not table.dim() or not table.is_floating_point():
        return NotImplemented
    if not all(type(n) is int for n in table.shape) or type(index.shape[0]) is int:
        return NotImplemented  # a row of values, or an index that is the same for all rows
    count = table.shape[0]
    index = torch.where(index < 0, index + count, index)
    return F.embedding(index, table.reshape(count, -1)).reshape(*index.shape, *table.shape[1:])


def _index_select(input: Tensor, dim: int, index: Tensor) -> Any:
    return _rows_of_a_table(input, index) if dim % max(input.dim(), 1) == 0 else NotImplemented


def one_hot(real: torch.dtype, input: Tensor, num_classes: int = -1) -> Any:
    """A row of the unit matrix in the step's numbers: an index that is none is an error, as for any table."""
    if num_classes <= 0:
        return NotImplemented  # as many as the largest index of all rows says
    return F.embedding(input, torch.eye(num_classes, dtype=real)).to(torch.int64)


def _repeat(input: Tensor, *sizes: Any) -> Any:
    """Copies side by side."""
    counts = [*sizes[0]] if len(sizes) == 1 and not isinstance(sizes[0], int) else [*sizes]
    fits = len(counts) == input.dim() and all(isinstance(n, int) and 0 < n <= _MOST_TAPS for n in counts)
    if not fits or counts[0] != 1:
        return NotImplemented
    for dim, count in enumerate(counts):
        if count > 1:
            input = torch.cat([input] * count, dim)
    return input


def _roll(input: Tensor, shifts: Any, dims: Any = None) -> Any:
    """Two slices, joined the other way round."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    dims = [d % input.dim() for d in dims]
    if not dims or 0 in dims or len(dims) != len(shifts):
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        size = input.shape[dim]
        at = (-shift) % size if size else 0
        if at:
            parts = input.narrow(dim, at, size - at), input.narrow(dim, 0, at)
            input = torch.cat(parts, dim)
    return input


def _pair(value: Any, count: int) -> list[int]:
    return [value] * count if isinstance(value, int) else [*value] * (count if len(value) == 1 else 1)


def _convolution(dims: int) -> Callable[..., Any]:
    def convolution(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        """The taps side by side, times the weights: a product of each row and a matrix."""
        taps = weight.shape[2:]
        if groups != 1 or input.dim() != dims + 2 or taps.numel() > _MOST_TAPS or isinstance(padding, str):
            return NotImplemented
        steps, dilations, pads = _pair(stride, dims), _pair(dilation, dims), _pair(padding, dims)
        widths: Sequence[int] = [p for pad in reversed(pads) for p in (pad, pad)]
        x = F.pad(input, widths) if any(pads) else input
        sizes = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(x.shape[2:], taps, steps, dilations, strict=True)
        ]
        if min(sizes, default=0) <= 0:
            return NotImplemented  # torch says what does not fit
        patches = []
        for tap in itertools.product(*(range(k) for k in taps)):
            patch = x
            for axis, (at, n, s, d) in enumerate(zip(tap, sizes, steps, dilations, strict=True)):
                end = at * d + (n - 1) * s + 1
                patch = patch[(slice(None),) * (axis + 2) + (slice(at * d, end, s),)]
            patches.append(patch.flatten(2))
        columns = torch.cat(patches, 1).transpose(1, 2)  # [rows, places, taps * channels]
        matrix = weight.flatten(2).permute(2, 1, 0).reshape(-1, weight.shape[0])
        result = columns @ matrix
        result = result if bias is None else result + bias
        return result.transpose(1, 2).reshape(-1, weight.shape[0], *sizes)

    return convolution


SIMPLER: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    Tensor.__getitem__: _rows_of_a_table,
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
    Tensor.repeat: _repeat,
    Tensor.tile: _repeat,
    torch.roll: _roll,
    Tensor.roll: _roll,
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.conv3d: _convolution(3),
}

_MULTIPLIED = {torch.conv1d, torch.conv2d, torch.conv3d}
_NORMS = {F.batch_norm, F.group_norm}


def under_autocast(function: Any, first: Tensor) -> torch.dtype | None:
    """What autocast makes of the result of one of these, given its first argument; None: what comes of it."""
    dtype = autocast_dtype("cpu")
    if dtype is None or first.dtype == torch.float64:
        return None
    return dtype if function in _MULTIPLIED else first.dtype if function in _NORMS else None
