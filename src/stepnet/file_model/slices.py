"""Slices along an axis, with steps of either sign."""

from __future__ import annotations

from torch import Tensor

from .misfit import Misfit

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
    if step == 0:
        raise Misfit("step must not be 0", got="step 0", dims=0)
    before = (slice(None),) * (axis % max(x.dim(), 1))
    if step > 0:
        return x[(*before, slice(_within(start), _within(stop), step))]
    if start is not None and start < -1:
        start = max(start, -x.shape[axis])
    first, last = (None if place is None else -1 - place for place in (start, stop))  # from the end
    return x.flip(axis)[(*before, slice(_within(first), _within(last), min(-step, _MOST)))]


def _within(place: int | None) -> int | None:
    """A place such that torch does not warn of it."""
    return min(max(place, -_MOST), _MOST) if isinstance(place, int) else place
