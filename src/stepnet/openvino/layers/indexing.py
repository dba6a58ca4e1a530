"""Layers that pick elements: gather, scatter, slices, padding, the largest ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import sliced
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import Function, Misfit, Row, axis_in, check_size, integers, listed, number, plain, shape_text


def _wrapped(indices: Tensor, size: Any) -> Tensor:
    """Indices from the front; torch itself refuses those outside."""
    long = integers(indices, "indices")
    return torch.where(long < 0, long + size, long)


def _gather(layer: Layer, attributes: Attributes) -> Function:
    batch_dims = attributes.int("batch_dims", 0)

    def gather(x: Tensor, indices: Tensor, axis: Any) -> Tensor:
        at = axis_in(number(axis, "axis"), x.dim())
        long = _wrapped(indices, x.shape[at])
        if batch_dims == 0:
            picked = x.index_select(at, long.reshape(-1))
            return picked.reshape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))
        shared = batch_dims + (indices.dim() if batch_dims < 0 else 0)
        if not 0 <= shared <= min(at, indices.dim()) or x.shape[:shared] != indices.shape[:shared]:
            raise Misfit(
                f"batch_dims {batch_dims} does not fit {shape_text(x)} and {shape_text(indices)}",
                dims=str((list(x.shape[:shared]), list(indices.shape[:shared]))),
            )
        rows, outer = math.prod(x.shape[:shared]), math.prod(x.shape[shared:at])
        inner, count = math.prod(x.shape[at + 1 :]), math.prod(indices.shape[shared:])
        flat = x.reshape(rows, outer, x.shape[at], inner)
        index = long.reshape(rows, 1, count, 1).expand(rows, outer, count, inner)
        shape = (*x.shape[:at], *indices.shape[shared:], *x.shape[at + 1 :])
        return flat.gather(2, index).reshape(shape)

    return gather


def _gather_elements(layer: Layer, attributes: Attributes) -> Function:
    axis = attributes.int("axis")
    return lambda x, indices: x.gather(at := axis_in(axis, x.dim()), _wrapped(indices, x.shape[at]))


def _slice(x: Tensor, start: Any, stop: Any, step: Any, axes: Any = None) -> Tensor:
    starts, stops, steps = listed(start), listed(stop), listed(step)
    chosen = list(range(len(starts))) if axes is None else listed(axes)
    if not len(starts) == len(stops) == len(steps) == len(chosen):
        raise Misfit(
            "start, stop, step and axes have different lengths",
            got=f"{len(starts)}, {len(stops)}, {len(steps)}, {len(chosen)}",
            dims=str((len(starts), len(stops), len(steps), len(chosen))),
        )
    done: set[int] = set()
    for a, b, by, axis in zip(starts, stops, steps, chosen, strict=True):
        at = axis_in(axis, x.dim())
        if at in done:
            raise Misfit(f"axis {at} is sliced twice", dims=at)
        done.add(at)
        x = sliced(x, at, a, b, by)
    return x


def _strided_slice(layer: Layer, attributes: Attributes) -> Function:
    masks = [
        attributes.ints(f"{name}_mask", [])
        for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    ]

    def bit(mask: list[int], i: int) -> bool:
        return i < len(mask) and mask[i] != 0

    def strided_slice(x: Tensor, begin: Any, end: Any, strides: Any = None) -> Tensor:
        begins, ends = listed(begin), listed(end)
        steps = [1] * len(begins) if strides is None else listed(strides)
        if not len(begins) == len(ends) == len(steps):
            raise Misfit(
                "begin, end and strides have different lengths",
                dims=str((len(begins), len(ends), len(steps))),
            )
        no_begin, no_end, new_axis, shrink, ellipsis = masks
        used = sum(not bit(new_axis, i) and not bit(ellipsis, i) for i in range(len(begins)))
        axis = 0
        for i in range(len(begins)):
            if bit(ellipsis, i):
                axis += x.dim() - axis - sum(not bit(new_axis, j) for j in range(i + 1, len(begins)))
            elif bit(new_axis, i):
                x = x.unsqueeze(axis)
                axis += 1
            elif axis >= x.dim() or used > x.dim() + len(begins):
                raise Misfit(f"slices more axes than {shape_text(x)} has", dims=(axis, x.dim()))
            elif bit(shrink, i):
                at = 0 if bit(no_begin, i) else begins[i]
                x = x.select(axis, at)
            else:
                a = None if bit(no_begin, i) else begins[i]
                b = None if bit(no_end, i) else ends[i]
                x = sliced(x, axis, a, b, steps[i])
                axis += 1
        return x

    return strided_slice


def _pad(layer: Layer, attributes: Attributes) -> Function:
    mode = attributes.choice("pad_mode", ("constant", "edge", "reflect", "symmetric"))

    def pad(x: Tensor, begin: Any, end: Any, value: Tensor | None = None) -> Tensor:
        before, after = listed(begin), listed(end)
        if len(before) != x.dim() or len(after) != x.dim():
            raise Misfit(
                f"needs one pad for each axis of {shape_text(x)}",
                got=f"{len(before)} and {len(after)}",
                dims=(len(before), len(after), x.dim()),
            )
        for axis, (a, b) in enumerate(zip(before, after, strict=True)):
            if a < 0 or b < 0:
                x = x.narrow(axis, max(0, -a), x.shape[axis] - max(0, -a) - max(0, -b))
            if a > 0 or b > 0:
                check_size([*x.shape[:axis], x.shape[axis] + max(0, a) + max(0, b), *x.shape[axis + 1 :]])
                x = _padded(x, axis, max(0, a), max(0, b), mode, value)
        return x

    return pad


def _padded(x: Tensor, axis: int, before: int, after: int, mode: str, value: Tensor | None) -> Tensor:
    if mode == "constant":
        fill = x.new_zeros(()) if value is None else value.to(x.dtype).reshape(())
        ends = [fill.expand([*x.shape[:axis], n, *x.shape[axis + 1 :]]) for n in (before, after)]
        return torch.cat([ends[0], x, ends[1]], axis)
    size = x.shape[axis]
    widest = {"edge": 2**31, "reflect": size - 1, "symmetric": size}[mode]
    if max(before, after) > widest or size == 0:
        raise Misfit(
            f"cannot pad axis {axis} of {shape_text(x)} by {before} and {after} ({mode})", dims=(size, before)
        )
    index = torch.arange(-before, size + after, device=x.device)
    if mode == "edge":
        index = index.clamp(0, size - 1)
    else:
        low, high = (0, 2 * size - 2) if mode == "reflect" else (-1, 2 * size - 1)
        index = torch.where(index < 0, low - index, torch.where(index >= size, high - index, index))
    return x.index_select(axis, index)


def _reverse_sequence(layer: Layer, attributes: Attributes) -> Function:
    batch_axis, seq_axis = attributes.int("batch_axis", 0), attributes.int("seq_axis", 1)

    def reverse_sequence(x: Tensor, lengths: Tensor) -> Tensor:
        b, t = axis_in(batch_axis, x.dim(), "batch_axis"), axis_in(seq_axis, x.dim(), "seq_axis")
        if b == t or lengths.shape != (x.shape[b],):
            raise Misfit(
                f"needs one length for each of {x.shape[b]} sequences",
                got=shape_text(lengths),
                dims=(b, t, str(lengths.shape), x.shape[b]),
            )
        steps = torch.arange(x.shape[t], device=x.device)
        long = lengths.long().unsqueeze(1)
        index = torch.where(steps < long, long - 1 - steps, steps)  # [batch, time]
        if b > t:
            index = index.t()
        shape = [1] * x.dim()
        shape[b], shape[t] = x.shape[b], x.shape[t]
        return x.gather(t, index.reshape(shape).expand(x.shape))

    return reverse_sequence


def _top_k(layer: Layer, attributes: Attributes) -> Function:
    axis = attributes.int("axis")
    largest = attributes.choice("mode", ("max", "min")) == "max"
    by_index = attributes.choice("sort", ("value", "index", "none"), "value") == "index"
    dtype = attributes.element_type("index_element_type", "i32").dtype

    def top_k(x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
        at, count = axis_in(axis, x.dim()), number(k, "k")
        if not 0 <= count <= x.shape[at]:
            raise Misfit(
                f"k is {count}, but axis {at} of {shape_text(x)} is shorter", dims=(count, x.shape[at])
            )
        values, index = torch.sort(x, dim=at, descending=largest, stable=True)
        values, index = values.narrow(at, 0, count), index.narrow(at, 0, count)
        if by_index:
            index, order = torch.sort(index, at)
            values = values.gather(at, order)
        return values, index.to(dtype)

    return top_k


def _scatter_update(x: Tensor, indices: Tensor, updates: Tensor, axis: Any) -> Tensor:
    at = axis_in(number(axis, "axis"), x.dim())
    flat = _wrapped(indices, x.shape[at]).reshape(-1)
    part = updates.reshape(*x.shape[:at], flat.shape[0], *x.shape[at + 1 :])
    return x.index_copy(at, flat, part.to(x.dtype))


_REDUCED = {"sum": "sum", "prod": "prod", "min": "amin", "max": "amax", "mean": "mean"}


def _scatter_elements(layer: Layer, attributes: Attributes) -> Function:
    how = attributes.choice("reduction", ("none", *_REDUCED), "none")
    with_old = attributes.bool("use_init_val", True)

    def scatter(x: Tensor, indices: Tensor, updates: Tensor, axis: Any) -> Tensor:
        at = axis_in(number(axis, "axis"), x.dim())
        long, new = _wrapped(indices, x.shape[at]), updates.to(x.dtype)
        if how == "none":
            return x.scatter(at, long, new)
        return _as_numbers(
            x, new, lambda x, new: x.scatter_reduce(at, long, new, _REDUCED[how], include_self=with_old)
        )

    return scatter


def _as_numbers(x: Tensor, y: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A function of numbers, of truth values as 0 and 1."""
    if x.dtype is not torch.bool:
        return function(x, y)
    return function(x.to(torch.uint8), y.to(torch.uint8)) != 0


def _places(shape: Sequence[int], indices: Tensor) -> tuple[Tensor, ...]:
    if indices.dim() == 0 or indices.shape[-1] > len(shape):
        raise Misfit(f"indices {shape_text(indices)} do not fit {list(shape)}", dims=str(indices.shape))
    return tuple(_wrapped(part, shape[i]) for i, part in enumerate(indices.unbind(-1)))


def _scatter_nd(layer: Layer, attributes: Attributes) -> Function:
    how = attributes.choice("reduction", ("none", "sum", "sub", "prod", "min", "max"), "none")

    def scatter(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        places, new = _places(x.shape, indices), updates.to(x.dtype)
        if how == "none":
            return x.index_put(places, new)
        if how == "sub":
            return x.index_put(places, -new, accumulate=True)
        lead = x.shape[: len(places)]
        rows = torch.zeros((), dtype=torch.int64, device=x.device)
        for size, place in zip(lead, places, strict=True):
            rows = rows * size + place
        table, rows = x.reshape(math.prod(lead), -1), rows.reshape(-1, 1)
        part = new.reshape(rows.shape[0], table.shape[1])
        out = _as_numbers(
            table, part, lambda x, new: x.scatter_reduce(0, rows.expand_as(new), new, _REDUCED[how])
        )
        return out.reshape(x.shape)

    return scatter


def _gather_nd(layer: Layer, attributes: Attributes) -> Function:
    shared, joins = attributes.size("batch_dims", 0), layer.version == "opset5"

    def gather_nd(x: Tensor, indices: Tensor) -> Tensor:
        if shared == 0:
            places = _places(x.shape, indices)
            if indices.dim() == 1:  # one place, which torch would read as a number
                return x[tuple(place.reshape(1) for place in places)].squeeze(0)
            return x[places]
        lead = x.shape[:shared]
        if shared >= min(x.dim(), indices.dim()) or lead != indices.shape[:shared]:
            raise Misfit(
                f"batch_dims {shared} does not fit {shape_text(x)} and {shape_text(indices)}",
                dims=str((lead, indices.shape[:shared])),
            )
        count = math.prod(lead)
        rows, places = x.reshape(count, *x.shape[shared:]), indices.reshape(count, *indices.shape[shared:])
        own = torch.arange(count, device=x.device).reshape(-1, *(1,) * (places.dim() - 2))
        found = rows[(own.expand(places.shape[:-1]), *_places(x.shape[shared:], places))]
        return found if joins else found.reshape(*lead, *found.shape[1:])  # the first version joins them

    return gather_nd


def _one_hot(layer: Layer, attributes: Attributes) -> Function:
    axis = attributes.int("axis")
    modes = ("ignore_negative", "normalize")
    from_end = attributes.choice("negative_indices_mode", modes, modes[0]) == modes[1]

    def one_hot(indices: Tensor, depth: Any, on: Tensor, off: Tensor) -> Tensor:
        at = axis_in(axis, indices.dim() + 1)
        size = check_size([*indices.shape, number(depth, "depth")])[-1]
        shape = [1] * (indices.dim() + 1)
        shape[at] = size
        places = torch.arange(size, device=indices.device).reshape(shape)
        found = _wrapped(indices, size) if from_end else indices
        return torch.where(found.unsqueeze(at) == places, on.reshape(()), off.reshape(()))

    return one_hot


def _non_zero(layer: Layer, attributes: Attributes) -> Function:
    dtype = attributes.element_type("output_type", "i64").dtype
    return lambda x: torch.nonzero(x).t().to(dtype)


ROWS = (
    Row("Gather", _gather, (3, 3), values=(2,)),
    Row("GatherElements", _gather_elements, (2, 2)),
    Row("GatherND", _gather_nd, (2, 2)),
    Row("Slice", plain(_slice), (4, 5), values=(1, 2, 3, 4)),
    Row("StridedSlice", _strided_slice, (3, 4), values=(1, 2, 3)),
    Row("Pad", _pad, (3, 4), values=(1, 2)),
    Row("ReverseSequence", _reverse_sequence, (2, 2)),
    Row("TopK", _top_k, (2, 2), (1, 2), values=(1,)),
    Row("ScatterUpdate", plain(_scatter_update), (4, 4), values=(3,)),
    Row("ScatterElementsUpdate", _scatter_elements, (4, 4), values=(3,)),
    Row("ScatterNDUpdate", _scatter_nd, (3, 3)),
    Row("OneHot", _one_hot, (4, 4), values=(1,)),
    Row("NonZero", _non_zero, (1, 1)),
)
