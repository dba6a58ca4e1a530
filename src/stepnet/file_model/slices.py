"""Slices along an axis, with steps of either sign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .by_data import by_data, cut_by
from .misfit import Misfit, axis_in

_MOST = 2**62


def sliced(x: Tensor, axis: int, start: int | None, stop: int | None, step: int) -> Tensor:
    """`x[start:stop:step]` along an axis: Python's rules for what is outside; but a start before the first
    element is the first one, backwards, too. A size that a trace leaves open stays open.

    Raises:
        Misfit: the step is 0.

    >>> import torch
    >>> sliced(torch.arange(6), 0, 4, None, -2)
    tensor([4, 2, 0])
    """
    if by_data((start, stop, step)):
        return cut_by(x, axis_in(axis, x.dim()), start, stop, step)
    if step == 0:
        raise Misfit("step must not be 0", got="step 0", dims=0)
    before = (slice(None),) * axis_in(axis, x.dim())
    if step > 0:
        return x[(*before, slice(_within(start), _within(stop), step))]
    if start is not None and start < -1:
        start = max(start, -x.shape[axis])
    first, last = (None if place is None else -1 - place for place in (start, stop))  # from the end
    return x.flip(axis)[(*before, slice(_within(first), _within(last), min(-step, _MOST)))]


def slices(
    x: Tensor, starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[Any], axes: Sequence[int] | None
) -> Tensor:
    """`sliced` along several axes; None: along the first ones.

    Raises:
        Misfit: there are not as many numbers of each kind, or an axis is named twice.
    """
    chosen = range(len(starts)) if axes is None else axes
    counts = len(starts), len(stops), len(steps), len(chosen)
    if len({*counts}) > 1:
        got = ", ".join(map(str, counts))
        raise Misfit("start, stop, step and axes have different lengths", got=got, dims=str(counts))
    done: set[int] = set()
    for a, b, by, axis in zip(starts, stops, steps, chosen, strict=True):
        at = axis_in(axis, x.dim())
        if at in done:
            raise Misfit(f"axis {at} is sliced twice", dims=at)
        done.add(at)
        x = sliced(x, at, a, b, by)
    return x


def _within(place: int | None) -> int | None:
    """A place such that torch does not warn of it."""
    return min(max(place, -_MOST), _MOST) if isinstance(place, int) else place
