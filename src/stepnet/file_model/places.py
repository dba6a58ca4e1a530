"""Elements picked, put and cut by their places, as ops of files name them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name

from .by_data import by_data, largest_by, padded_by
from .misfit import Misfit, axis_in, shape_text
from .slices import sliced

REDUCED = {"sum": "sum", "prod": "prod", "min": "amin", "max": "amax", "mean": "mean"}


def integers(x: Tensor, what: str) -> Tensor:
    """Indices as int64.

    Raises:
        Misfit: they are no integers.
    """
    if x.dtype.is_floating_point or x.dtype is torch.bool:
        raise Misfit(f"{what} must be integers", got=dtype_name(x.dtype), dims=str(x.dtype))
    return x.long()


def from_front(indices: Tensor, size: int) -> Tensor:
    """Indices from the front; torch itself refuses those outside."""
    long = integers(indices, "indices")
    return torch.where(long < 0, long + size, long)


def within(numbers: Tensor, most: int, what: str, expected: str) -> Tensor:
    """Counts or places as int64, which lie in 0..most: a lookup, for it refuses others, also where what was
    recorded runs again.

    Raises:
        Misfit: one lies outside.
    """
    long = integers(numbers, what)
    try:
        return torch.arange(most + 1, device=long.device).gather(0, long)
    except (RuntimeError, IndexError) as error:
        got = long.tolist()[:8]
        raise Misfit(f"{what} must lie in 0..{most}", got=got, expected=expected, dims=most) from error


def _at(look: Callable[[], Tensor], indices: Tensor, size: int) -> Tensor:
    """What is found at indices, of which torch says in other words that one is outside."""
    try:
        return look()
    except (RuntimeError, IndexError) as error:
        if "out of" not in str(error):
            raise
        flat = indices.reshape(-1).tolist()
        wrong = [index for index in flat if not -size <= index < size]
        said = {"got": wrong[:8] or flat[:8], "expected": f"{-size} to {size - 1}" if size else "no indices"}
        raise Misfit(f"index out of range: the axis has {size} elements", **said) from error


def gather(x: Tensor, indices: Tensor, axis: int, shared: int = 0) -> Tensor:
    """The slices of x at the indices along an axis; the first `shared` axes go together."""
    at = axis_in(axis, x.dim())
    long = from_front(indices, x.shape[at])
    if not shared:
        picked = _at(lambda: x.index_select(at, long.reshape(-1)), indices, x.shape[at])
        return picked.reshape([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])
    if not 0 <= shared <= min(at, indices.dim()) or x.shape[:shared] != indices.shape[:shared]:
        raise _unshared(shared, x, indices)
    rows, outer = math.prod(x.shape[:shared]), math.prod(x.shape[shared:at])
    inner, count = math.prod(x.shape[at + 1 :]), math.prod(indices.shape[shared:])
    flat = x.reshape(rows, outer, x.shape[at], inner)
    index = long.reshape(rows, 1, count, 1).expand(rows, outer, count, inner)
    found = _at(lambda: flat.gather(2, index), indices, x.shape[at])
    return found.reshape(*x.shape[:at], *indices.shape[shared:], *x.shape[at + 1 :])


def _unshared(shared: int, x: Tensor, indices: Tensor) -> Misfit:
    return Misfit(
        f"batch_dims {shared} does not fit {shape_text(x)} and {shape_text(indices)}",
        dims=str((list(x.shape[:shared]), list(indices.shape[:shared]))),
    )


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The element of x at each index along an axis."""
    at = axis_in(axis, x.dim())
    long = from_front(indices, x.shape[at])
    return _at(lambda: x.gather(at, long), indices, x.shape[at])


def gather_nd(x: Tensor, indices: Tensor, shared: int = 0) -> Tensor:
    """What stands at places, which the last axis of `indices` says; the first `shared` axes go together."""
    lead = x.shape[:shared]
    if shared and (shared >= min(x.dim(), indices.dim()) or lead != indices.shape[:shared]):
        raise _unshared(shared, x, indices)
    count = math.prod(lead)
    rows, between = x.reshape(count, *x.shape[shared:]), indices.shape[shared:-1]
    places = [place.reshape(-1) for place in _places(x.shape[shared:], indices)]
    if shared:
        own = torch.arange(count, device=x.device).unsqueeze(1).expand(count, math.prod(between))
        found = rows[(own.reshape(-1), *places)]
    else:
        found = x[tuple(places)] if places else rows.expand(math.prod(between), *x.shape)
    return found.reshape([*lead, *between, *x.shape[shared + len(places) :]])


def _places(shape: Sequence[int], indices: Tensor) -> tuple[Tensor, ...]:
    """Places, which the last axis says, by axis; torch counts from the end where it looks them up."""
    if indices.dim() == 0 or indices.shape[-1] > len(shape):
        raise Misfit(f"indices {shape_text(indices)} do not fit {list(shape)}", dims=str(indices.shape))
    return integers(indices, "indices").unbind(-1)


def scatter(x: Tensor, indices: Tensor, new: Tensor, axis: int, how: str, *, with_old: bool = True) -> Tensor:
    """x with an element of `new` at each index along an axis; `how`: "none", or how it meets what stands
    there (see `REDUCED`)."""
    at = axis_in(axis, x.dim())
    long = from_front(indices, x.shape[at])
    if how == "none":
        return x.scatter(at, long, new)
    return _as_numbers(
        x, new, lambda x, new: x.scatter_reduce(at, long, new, REDUCED[how], include_self=with_old)
    )


def scatter_nd(x: Tensor, indices: Tensor, new: Tensor, how: str) -> Tensor:
    """x with `new` at places, which the last axis of `indices` says; `how` as of `scatter`, or "sub"."""
    places = _places(x.shape, indices)
    if not places:
        raise Misfit(f"indices {shape_text(indices)} name no place", dims=str(indices.shape))
    if how in ("none", "sum", "sub"):
        return x.index_put(places, -new if how == "sub" else new, accumulate=how != "none")
    lead = x.shape[: len(places)]
    # the number of each place: a lookup, for it refuses places outside
    rows = torch.arange(math.prod(lead), device=x.device).reshape(lead)[places].reshape(-1, 1)
    many, wide = math.prod(indices.shape[:-1]), math.prod(x.shape[len(places) :])
    table, part = x.reshape(math.prod(lead), wide), new.reshape(many, wide)
    out = _as_numbers(table, part, lambda x, new: x.scatter_reduce(0, rows.expand_as(new), new, REDUCED[how]))
    return out.reshape(x.shape)


def _as_numbers(x: Tensor, y: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A function of numbers, of truth values as 0 and 1."""
    if x.dtype is not torch.bool:
        return function(x, y)
    return function(x.to(torch.uint8), y.to(torch.uint8)) != 0


def one_hot(indices: Tensor, size: int, axis: int, on: Tensor, off: Tensor) -> Tensor:
    """`on` at each index along a new axis of this size, `off` elsewhere; of one that is outside, all over.

    Raises:
        Misfit: `on` or `off` is more than one number.
    """
    if on.numel() != 1 or off.numel() != 1:
        shown = f"{shape_text(on)} and {shape_text(off)}"
        raise Misfit(
            "the values on and off must be one number each", got=shown, expected="scalars", dims=shown
        )
    at = axis_in(axis, indices.dim() + 1)
    shape = [1] * (indices.dim() + 1)
    shape[at] = size
    places = torch.arange(size, device=indices.device).reshape(shape)
    return torch.where(indices.unsqueeze(at) == places, on.reshape(()), off.reshape(()))


def reversed_within(x: Tensor, lengths: Tensor, batch: int, time: int) -> Tensor:
    """The first steps of each sequence, as many as its length says, in reverse; the others as they are."""
    b, t = axis_in(batch, x.dim(), "batch_axis"), axis_in(time, x.dim(), "seq_axis")
    if b == t or lengths.shape != (x.shape[b],):
        raise Misfit(
            f"needs one length for each of {x.shape[b]} sequences",
            got=shape_text(lengths),
            dims=(b, t, str(lengths.shape), x.shape[b]),
        )
    steps = torch.arange(x.shape[t], device=x.device)
    long = lengths.long().unsqueeze(1)
    index = torch.where(steps < long, long - 1 - steps, steps)  # [batch, time]
    index = torch.where(long < 0, long, index)  # which is refused
    if b > t:
        index = index.t()
    shape = [1] * x.dim()
    shape[b], shape[t] = x.shape[b], x.shape[t]
    try:
        return x.gather(t, index.reshape(shape).expand(x.shape))
    except (RuntimeError, IndexError) as error:
        raise Misfit(
            f"lengths must lie in 0..{x.shape[t]}",
            got=lengths.tolist()[:8],
            expected=f"0 to {x.shape[t]}, the elements along axis {t} of {shape_text(x)}",
        ) from error


def cumulated(x: Tensor, axis: int, by: str, *, exclusive: bool, reverse: bool) -> Tensor:
    """The sums ("cumsum") or products ("cumprod") of the elements up to each along an axis; `exclusive`: up
    to the one before; `reverse`: from the last one on."""
    at = axis_in(axis, x.dim())
    y = x.flip(at) if reverse else x
    if exclusive:
        first = torch.full_like(sliced(y, at, 0, 1, 1), 1 if by == "cumprod" else 0)
        y = torch.cat([first, sliced(y, at, 0, -1, 1)], at)
    out = getattr(y, by)(at, dtype=x.dtype)
    return out.flip(at) if reverse else out


def padded(
    x: Tensor, before: Sequence[int], after: Sequence[int], mode: str, fill: Tensor | float | None
) -> Tensor:
    """x with so many elements more at both ends of each axis, or fewer: `fill` ("constant"), the last one
    again ("edge"), or those of x from the other end ("wrap"), or mirrored, with the last one ("symmetric") or
    without ("reflect"). What is cut off is not there to be mirrored."""
    if by_data((*before, *after)):
        return padded_by(x, before, after, mode, fill)
    for axis, (a, b) in enumerate(zip(before, after, strict=True)):
        if a < 0 or b < 0:
            cut, size = (max(0, -a), max(0, -b)), x.shape[axis]
            if isinstance(size, int) and sum(cut) > size:
                raise Misfit(
                    f"cuts more off axis {axis} of {shape_text(x)} than it has",
                    got=f"{cut[0]} and {cut[1]} elements",
                    expected=f"{size} at most",
                    dims=(cut, size),
                )
            x = x.narrow(axis, cut[0], size - sum(cut))
    more = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    if mode == "constant" and not isinstance(fill, Tensor):
        flat = [n for pair in reversed(more) for n in pair]
        return torch.constant_pad_nd(x, flat, 0 if fill is None else fill)
    for axis, (a, b) in enumerate(more):
        if a or b:
            x = _longer(x, axis, a, b, mode, fill)
    return x


def _longer(x: Tensor, axis: int, before: int, after: int, mode: str, fill: Tensor | float | None) -> Tensor:
    if isinstance(fill, Tensor) and mode == "constant":
        value = fill.to(x.dtype).reshape(())
        ends = [value.expand([*x.shape[:axis], n, *x.shape[axis + 1 :]]) for n in (before, after)]
        return torch.cat([ends[0], x, ends[1]], axis)
    size = x.shape[axis]
    widest = {"reflect": size - 1, "symmetric": size}.get(mode, 2**31)
    if max(before, after) > widest or size == 0:
        raise Misfit(
            f"cannot pad axis {axis} of {shape_text(x)} by {before} and {after} ({mode})", dims=(size, before)
        )
    index = torch.arange(-before, size + after, device=x.device)
    if mode in ("edge", "wrap"):
        index = index.clamp(0, size - 1) if mode == "edge" else index % size
    else:
        low, high = (0, 2 * size - 2) if mode == "reflect" else (-1, 2 * size - 1)
        index = torch.where(index < 0, low - index, torch.where(index >= size, high - index, index))
    return x.index_select(axis, index)


def largest(x: Tensor, count: int, axis: int, *, smallest: bool = False) -> tuple[Tensor, Tensor]:
    """The largest elements along an axis, in order, and where they are; of equal ones the first.

    Raises:
        Misfit: there are not as many.
    """
    at = axis_in(axis, x.dim())
    if by_data((count,)):
        return largest_by(x, count, at, smallest)
    if not 0 <= count <= x.shape[at]:
        raise Misfit(f"k is {count}, but axis {at} of {shape_text(x)} is shorter", dims=(count, x.shape[at]))
    values, index = torch.sort(x, dim=at, descending=not smallest, stable=True)
    return values.narrow(at, 0, count), index.narrow(at, 0, count)
