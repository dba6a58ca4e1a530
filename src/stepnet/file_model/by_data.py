"""What is laid out, cut or padded by numbers that data decide, where a model is traced to be written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from stepnet.watchers import nobody_answers


def by_data(numbers: Iterable[Any]) -> bool:
    """Whether data decide one of the numbers, in a trace that a file is written from.

    >>> by_data([3, None, 0.5])
    False
    """
    open_ones = [n for n in numbers if isinstance(n, (torch.SymInt, torch.SymFloat))]
    return bool(open_ones) and not nobody_answers() and any(map(_is_by_data, open_ones))


def differ(one: Any, other: Any) -> bool:
    """Whether sizes differ; where data decide one of them, what runs the file finds out.

    >>> differ(3, 4), differ(3, 3)
    (True, False)
    """
    return not by_data((one, other)) and one != other


def _is_by_data(number: Any) -> bool:
    # a record of ours writes sizes as text, and knows them all
    return hasattr(number.node.expr, "free_symbols") and bool(free_unbacked_symbols(number))


def in_a_tensor(numbers: Sequence[Any]) -> Tensor:
    """The numbers as int64, those that are open, too."""
    return torch.stack([torch.scalar_tensor(number, dtype=torch.int64) for number in numbers])


def laid_out_by(x: Tensor, sizes: Sequence[Any], zero_keeps: bool) -> Tensor:
    """x in sizes as a file says them: -1 is what is left, 0 may keep a size."""
    known = [
        x.shape[k] if zero_keeps and isinstance(size, int) and size == 0 else -1 if by_data([size]) else size
        for k, size in enumerate(sizes)
    ]
    return torch.ops.stepnet.laid_out_by(x, in_a_tensor(sizes), known, zero_keeps)


def cut_by(x: Tensor, axis: int, start: Any, stop: Any, step: Any) -> Tensor:
    """`sliced` by such numbers; None is the end of the axis."""
    first, last = (0, 2**63 - 1) if isinstance(step, int) and step > 0 else (2**63 - 1, -(2**63) + 1)
    start, stop = first if start is None else start, last if stop is None else stop
    return torch.ops.stepnet.cut_by(x, axis, *(in_a_tensor([number]) for number in (start, stop, step)))


def padded_by(x: Tensor, before: Sequence[Any], after: Sequence[Any], mode: str, fill: Any) -> Tensor:
    """`padded` by such numbers."""
    if mode == "constant":
        fill = 0 if fill is None else fill
        fill = fill.to(x.dtype) if isinstance(fill, Tensor) else torch.scalar_tensor(fill, dtype=x.dtype)
        new = [-1 if by_data((a, b)) else a + n + b for a, n, b in zip(before, x.shape, after, strict=True)]
        ends = in_a_tensor(before), in_a_tensor(after)
        return torch.ops.stepnet.padded_by(x, *ends, fill.reshape(()), new)
    for axis, (a, b) in enumerate(zip(before, after, strict=True)):
        if not by_data((a, b)) and a == b == 0:
            continue
        size = x.shape[axis]
        whole, low, high = (torch.scalar_tensor(n, dtype=torch.int64) for n in (size, a, b))
        cut = (-low).clamp(min=0)  # what is cut off is not there to be given again
        count = whole - cut - (-high).clamp(min=0)
        places = torch.arange(a + size + b, device=x.device) - low.clamp(min=0)
        if mode == "edge":
            places = torch.minimum(places.clamp(min=0), count - 1)
        elif mode == "wrap":
            places = places % count
        else:  # there and back, once: further out is no place, which what runs the file refuses
            turn = 1 if mode == "reflect" else 0
            back = torch.where(places < 0, turn - 1 - places, 2 * count - 1 - turn - places)
            back = torch.where((back < 0) | (back >= count), whole, back)
            places = torch.where((places < 0) | (places >= count), back, places)
        x = x.index_select(axis, places + cut)
    return x


def largest_by(x: Tensor, count: Any, axis: int, smallest: bool) -> tuple[Tensor, Tensor]:
    """`largest`, of such a count."""
    return torch.ops.stepnet.largest_by(x, in_a_tensor([count]).reshape(()), axis, smallest)
