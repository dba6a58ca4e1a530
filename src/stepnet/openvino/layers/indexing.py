"""Layers that pick elements: gather, scatter, slices, padding, the largest ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import (
    from_front,
    gather,
    gather_elements,
    gather_nd,
    largest,
    one_hot,
    padded,
    reversed_within,
    scatter,
    scatter_nd,
    sliced,
    slices,
)
from stepnet.file_model.places import REDUCED
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import (
    NUMBERS,
    PLACES,
    WHOLE,
    Function,
    Misfit,
    Row,
    axis_in,
    check_size,
    differ,
    listed,
    named,
    number,
    plain,
    same_types,
    shape_text,
)


def _gather(layer: Layer, attributes: Attributes) -> Function:
    batch_dims = attributes.int("batch_dims", 0) if layer.opset >= 7 else 0

    def run(x: Tensor, indices: Tensor, axis: Any) -> Tensor:
        shared = batch_dims + (indices.dim() if batch_dims < 0 else 0)
        return gather(x, indices, number(axis, "axis"), shared)

    return run


def _gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    at = axis_in(axis, x.dim())
    others = (k for k in range(x.dim()) if k != at)
    if indices.dim() != x.dim() or any(differ(x.shape[k], indices.shape[k]) for k in others):
        raise Misfit(
            f"indices {shape_text(indices)} do not fit {shape_text(x)}",
            expected=f"the sizes of {shape_text(x)}, but for axis {at}",
            dims=str((x.shape, indices.shape)),
        )
    return gather_elements(x, indices, axis)


def _slice(x: Tensor, start: Any, stop: Any, step: Any, axes: Any = None) -> Tensor:
    return slices(x, listed(start), listed(stop), listed(step), None if axes is None else listed(axes))


def _strided_slice(layer: Layer, attributes: Attributes) -> Function:
    names = [f"{name}_mask" for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")]
    masks = [attributes.bits(name) for name in names]
    long = {name: len(mask) for name, mask in zip(names, masks, strict=True) if mask}
    if len(set(long.values())) > 1:
        raise Misfit(
            "its masks have different lengths",
            got=", ".join(f"{name} of {count}" for name, count in long.items()),
            expected="a bit for each element of begin, or none",
        )
    if sum(masks[-1]) > 1:
        raise Misfit("has two ellipses", got=f"ellipsis_mask={masks[-1]}", expected="one bit of it at most")

    def bit(mask: list[int], i: int) -> bool:
        return i < len(mask) and mask[i] == 1

    def strided_slice(x: Tensor, begin: Any, end: Any, strides: Any = None) -> Tensor:
        begins, ends = listed(begin), listed(end)
        steps = [1] * len(begins) if strides is None else listed(strides)
        if not len(begins) == len(ends) == len(steps):
            raise Misfit(
                "begin, end and strides have different lengths",
                dims=str((len(begins), len(ends), len(steps))),
            )
        no_begin, no_end, new_axis, shrink, ellipsis = masks
        axis = 0
        for i, step in enumerate(steps):
            first = None if bit(no_begin, i) else begins[i]
            last = None if bit(no_end, i) else ends[i]
            if bit(ellipsis, i):
                axis += x.dim() - axis - sum(not bit(new_axis, j) for j in range(i + 1, len(steps)))
            elif bit(new_axis, i):
                x = x.unsqueeze(axis)
                axis += 1
            elif axis >= x.dim():
                raise Misfit(f"slices more axes than {shape_text(x)} has", dims=(axis, x.dim()))
            elif bit(shrink, i):
                x = x.select(axis, 0 if first is None else first)
            else:
                x = sliced(x, axis, first, last, step)
                axis += 1
        return x

    return strided_slice


def _pad(layer: Layer, attributes: Attributes) -> Function:
    mode = attributes.choice("pad_mode", ("constant", "edge", "reflect", "symmetric"), "constant")

    def pad(x: Tensor, begin: Any, end: Any, value: Tensor | None = None) -> Tensor:
        before, after = listed(begin), listed(end)
        if len(before) != x.dim() or len(after) != x.dim():
            raise Misfit(
                f"needs one pad for each axis of {shape_text(x)}",
                got=f"{len(before)} and {len(after)}",
                dims=(len(before), len(after), x.dim()),
            )
        check_size([torch.sym_max(a + n + b, 0) for a, n, b in zip(before, x.shape, after, strict=True)])
        return padded(x, before, after, mode, value)

    return pad


def _reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 0, seq_axis: int = 1) -> Tensor:
    return reversed_within(x, lengths, batch_axis, seq_axis)


def _top_k(layer: Layer, attributes: Attributes) -> Function:
    axis = attributes.int("axis")
    smallest = attributes.choice("mode", ("max", "min")) == "min"
    by_index = attributes.choice("sort", ("value", "index", "none"), "value") == "index"
    dtype = attributes.index_type("index_element_type", "i32").dtype

    def top_k(x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
        values, index = largest(x, number(k, "k"), axis, smallest=smallest)
        if by_index:
            index, order = torch.sort(index, axis)
            values = values.gather(axis, order)
        return values, index.to(dtype)

    return top_k


def _check_updates(x: Tensor, updates: Tensor, shape: Sequence[Any]) -> None:
    """Refuse updates of another type or shape: torch reads some of these in another order, or in part."""
    same_types((x, updates))
    if updates.dim() != len(shape) or any(map(differ, updates.shape, shape)):
        wanted = list(shape)
        raise Misfit(
            f"updates {shape_text(updates)} do not fit the indices",
            got=shape_text(updates),
            expected=wanted,
            dims=str((updates.shape, wanted)),
        )


def _scatter_update(x: Tensor, indices: Tensor, updates: Tensor, axis: Any) -> Tensor:
    at = axis_in(number(axis, "axis"), x.dim())
    _check_updates(x, updates, [*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])
    flat = from_front(indices, x.shape[at]).reshape(-1)
    part = updates.reshape(*x.shape[:at], flat.shape[0], *x.shape[at + 1 :])
    return x.index_copy(at, flat, part.to(x.dtype))


def _scatter_elements(layer: Layer, attributes: Attributes) -> Function:
    how = attributes.choice("reduction", ("none", *REDUCED), "none") if layer.opset >= 12 else "none"
    with_old = attributes.bool("use_init_val", True)

    def run(x: Tensor, indices: Tensor, updates: Tensor, axis: Any) -> Tensor:
        _check_updates(x, updates, indices.shape)
        at = number(axis, "axis")
        return scatter(x, indices, updates.to(x.dtype), at, how, with_old=with_old)

    return run


def _scatter_nd(layer: Layer, attributes: Attributes) -> Function:
    ways = ("none", "sum", "sub", "prod", "min", "max")
    how = attributes.choice("reduction", ways, "none") if layer.opset >= 15 else "none"

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        if indices.dim() and isinstance(indices.shape[-1], int) and indices.shape[-1] <= x.dim():
            _check_updates(x, updates, [*indices.shape[:-1], *x.shape[indices.shape[-1] :]])
        return scatter_nd(x, indices, updates.to(x.dtype), how)

    return run


def _gather_nd(layer: Layer, attributes: Attributes) -> Function:
    shared, joins = attributes.size("batch_dims", 0), layer.opset < 8

    def run(x: Tensor, indices: Tensor) -> Tensor:
        found = gather_nd(x, indices, shared)
        return found.flatten(0, shared - 1) if joins and shared > 1 else found  # as the first version does

    return run


def _one_hot(layer: Layer, attributes: Attributes) -> Function:
    axis = attributes.int("axis")
    modes = ("ignore_negative", "normalize")
    said = attributes.choice("negative_indices_mode", modes, modes[0])
    from_end = said == modes[1] and layer.opset >= 16

    def run(indices: Tensor, depth: Any, on: Tensor, off: Tensor) -> Tensor:
        same_types((on, off))
        size = check_size([*indices.shape, number(depth, "depth")])[-1]
        return one_hot(from_front(indices, size) if from_end else indices, size, axis, on, off)

    return run


def _non_zero(layer: Layer, attributes: Attributes) -> Function:
    dtype = attributes.index_type("output_type", "i64").dtype
    return lambda x: torch.nonzero(x if x.dim() else x.reshape(1)).t().to(dtype)


ROWS = (
    Row("Gather", _gather, (3, 3), values=(2,)),
    Row("GatherElements", named(_gather_elements), (2, 2), takes=("", PLACES)),
    Row("GatherND", _gather_nd, (2, 2)),
    Row("Slice", plain(_slice), (4, 5), values=(1, 2, 3, 4)),
    Row("StridedSlice", _strided_slice, (3, 4), values=(1, 2, 3)),
    Row("Pad", _pad, (3, 4), values=(1, 2)),
    Row("ReverseSequence", named(_reverse_sequence), (2, 2), takes=("", NUMBERS)),
    Row("TopK", _top_k, (2, 2), (1, 2), values=(1,)),
    Row("ScatterUpdate", plain(_scatter_update), (4, 4), values=(3,)),
    Row("ScatterElementsUpdate", _scatter_elements, (4, 4), values=(3,)),
    Row("ScatterNDUpdate", _scatter_nd, (3, 3), takes=("", PLACES, "")),
    Row("OneHot", _one_hot, (4, 4), values=(1,), takes=(WHOLE, "")),
    Row("NonZero", _non_zero, (1, 1)),
)
