"""Layers that put elements elsewhere: rolled, reversed, shuffled, into space, looked up in order."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import blocks, sliced
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import (
    BITS,
    NUMBERS,
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


def _roll(x: Tensor, shift: Any, axes: Any) -> Tensor:
    along = [axis_in(axis, x.dim(), "axes:") for axis in listed(axes)]
    by = listed(shift) * (1 if isinstance(shift, list) and len(shift) != 1 else len(along))
    if len(by) != len(along):
        raise Misfit("needs one shift for each axis", got=len(by), expected=len(along), dims=str((by, along)))
    for axis, places in zip(along, by, strict=True):
        x = x.roll(places % max(x.shape[axis], 1), axis)
    return x


def _reverse(layer: Layer, attributes: Attributes) -> Function:
    by_mask = attributes.choice("mode", ("index", "mask")) == "mask"

    def reverse(x: Tensor, axes: Any) -> Tensor:
        said = listed(axes)
        if by_mask and len(said) != x.dim():
            raise Misfit("needs a truth for each axis", got=len(said), expected=x.dim(), dims=len(said))
        along = [axis for axis, chosen in enumerate(said) if chosen] if by_mask else said
        return x.flip([*{axis_in(axis, x.dim(), "axes:") for axis in along}])

    return reverse


def _space(layer: Layer, attributes: Attributes) -> tuple[bool, int]:
    """Whether blocks come first among the channels, and how wide they are."""
    first = attributes.choice("mode", ("blocks_first", "depth_first")) == "blocks_first"
    block = attributes.int("block_size", 1)
    if block < 1:
        raise Misfit("block_size must be at least 1", got=block)
    return first, block


def _depth_to_space(layer: Layer, attributes: Attributes) -> Function:
    first, block = _space(layer, attributes)

    def depth_to_space(x: Tensor) -> Tensor:
        _, channels, *space = _of_space(x)
        rank = len(space)
        if channels % block**rank:
            raise Misfit(
                f"{channels} channels are no blocks of {block}^{rank}", dims=(channels, block), got=channels
            )
        return blocks.depth_to_space(x, block, first)

    return depth_to_space


def _space_to_depth(layer: Layer, attributes: Attributes) -> Function:
    first, block = _space(layer, attributes)

    def space_to_depth(x: Tensor) -> Tensor:
        _, _, *space = _of_space(x)
        if any(size % block for size in space):
            raise Misfit(f"the sizes of {shape_text(x)} are no blocks of {block}", dims=(str(space), block))
        return blocks.space_to_depth(x, block, first)

    return space_to_depth


def _paired(x: Tensor, *lists: Any) -> list[list[int]]:
    """Block sizes, and what is put in front and behind: a number for each dimension."""
    found = [[int(v) for v in listed(values)] for values in lists]
    fits = all(len(values) == x.dim() for values in found) and min(found[0], default=0) >= 1
    if not fits or any(v < 0 for values in found for v in values):
        raise Misfit(f"needs a block, a front and an end for each axis of {shape_text(x)}", dims=str(found))
    return found


def _space_to_batch(x: Tensor, block: Any, begin: Any, end: Any) -> Tensor:
    sizes, front, behind = _paired(x, block, begin, end)
    x = torch.nn.functional.pad(x, [n for pair in zip(front[::-1], behind[::-1], strict=True) for n in pair])
    if sizes[0] != 1 or any(n % size for n, size in zip(x.shape, sizes, strict=True)):
        raise Misfit(f"{shape_text(x)} does not divide into blocks", got=sizes, dims=str((x.shape, sizes)))
    rank = x.dim()
    x = x.reshape([n for d, size in zip(x.shape, sizes, strict=True) for n in (d // size, size)])
    shape = [math.prod(sizes) * x.shape[0], *x.shape[2::2]]
    return x.permute([*range(3, 2 * rank, 2), 1, *range(0, 2 * rank, 2)]).reshape(shape)


def _batch_to_space(x: Tensor, block: Any, begin: Any, end: Any) -> Tensor:
    sizes, front, behind = _paired(x, block, begin, end)
    if sizes[0] != 1 or x.shape[0] % math.prod(sizes):
        raise Misfit(f"a batch of {x.shape[0]} is no blocks", got=sizes, dims=str((x.shape, sizes)))
    rank = x.dim()
    x = x.reshape([*sizes[1:], x.shape[0] // math.prod(sizes), *x.shape[1:]])
    order = [rank - 1, *(place for k in range(rank - 1) for place in (rank + k, k))]
    x = x.permute(order)
    x = x.reshape([x.shape[0], *(x.shape[1 + 2 * k] * x.shape[2 + 2 * k] for k in range(rank - 1))])
    for axis, (low, high) in enumerate(zip(front, behind, strict=True)):
        if low + high > x.shape[axis]:
            raise Misfit(f"cuts more than there is off {shape_text(x)}", got=[low, high], dims=str(x.shape))
        x = x.narrow(axis, low, x.shape[axis] - low - high)
    return x


def _of_space(x: Tensor) -> list[int]:
    if x.dim() < 3:
        raise Misfit(
            f"{shape_text(x)} has no axes of space", expected="[batch, channels, space...]", dims=x.dim()
        )
    return list(x.shape)


def _shuffle_channels(x: Tensor, *, axis: int = 1, group: int = 1) -> Tensor:
    at = axis_in(axis, x.dim())
    if group < 1 or x.shape[at] % group:
        raise Misfit(
            f"axis {at} of {shape_text(x)} is not {group} groups", got=group, dims=(x.shape[at], group)
        )
    parts = x.unflatten(at, (group, x.shape[at] // group))
    return parts.transpose(at, at + 1).flatten(at, at + 1)


def _slice_scatter(x: Tensor, updates: Tensor, start: Any, stop: Any, step: Any, axes: Any = None) -> Tensor:
    places = torch.arange(math.prod(x.shape), device=x.device).reshape(x.shape)
    starts, stops, steps = listed(start), listed(stop), listed(step)
    along = list(range(len(starts))) if axes is None else listed(axes)
    if not len(starts) == len(stops) == len(steps) == len(along):
        raise Misfit(
            "start, stop, step and axes have different lengths",
            dims=str((len(starts), len(stops), len(steps), len(along))),
        )
    for axis, a, b, by in zip(along, starts, stops, steps, strict=True):
        places = sliced(places, axis_in(axis, x.dim()), a, b, by)
    if updates.dim() != places.dim() or any(map(differ, updates.shape, places.shape)):
        raise Misfit(
            f"updates {shape_text(updates)} do not fit the slice {shape_text(places)}",
            dims=str((updates.shape, places.shape)),
        )
    new = updates.to(x.dtype).reshape(-1)
    return x.reshape(-1).index_put((places.reshape(-1),), new).reshape(x.shape)


def _eye(layer: Layer, attributes: Attributes) -> Function:
    dtype = attributes.element_type("output_type").dtype

    def eye(rows: Any, columns: Any, diagonal: Any, batch: Any = ()) -> Tensor:
        high, wide, shift = number(rows, "rows"), number(columns, "columns"), number(diagonal, "diagonal")
        lead = listed(list(batch)) if batch else []
        check_size([*lead, high, wide])
        places = torch.arange(wide) - torch.arange(high).unsqueeze(1)
        return (places == shift).to(dtype).expand(*lead, high, wide)

    return eye


def _places_in(attributes: Attributes, right: bool, sequence: Tensor, x: Tensor) -> Tensor:
    dtype = attributes.index_type("output_type", "i64").dtype
    kind = torch.promote_types(sequence.dtype, x.dtype)
    found = torch.searchsorted(sequence.to(kind).contiguous(), x.to(kind).contiguous(), right=right)
    return found.to(dtype)


def _bucketize(layer: Layer, attributes: Attributes) -> Function:
    right = not attributes.bool("with_right_bound", True)

    def bucketize(x: Tensor, edges: Tensor) -> Tensor:
        if edges.dim() != 1:
            raise Misfit("buckets must have one axis", got=shape_text(edges), dims=edges.dim())
        return _places_in(attributes, right, edges, x)

    return bucketize


def _search_sorted(layer: Layer, attributes: Attributes) -> Function:
    right = attributes.bool("right_mode", False)

    def search(sequence: Tensor, x: Tensor) -> Tensor:
        same_types((sequence, x))
        if sequence.dim() != 1 and sequence.shape[:-1] != x.shape[:-1]:
            raise Misfit(
                f"{shape_text(sequence)} and {shape_text(x)} do not fit",
                expected="one sequence, or one for each row",
                dims=str((sequence.shape, x.shape)),
            )
        return _places_in(attributes, right, sequence, x)

    return search


ROWS = (
    Row("Roll", plain(_roll), (3, 3), values=(1, 2)),
    Row("Reverse", _reverse, (2, 2), values=(1,), kinds={1: BITS}),
    Row("SpaceToBatch", plain(_space_to_batch), (4, 4), values=(1, 2, 3)),
    Row("BatchToSpace", plain(_batch_to_space), (4, 4), values=(1, 2, 3)),
    Row("DepthToSpace", _depth_to_space, (1, 1)),
    Row("SpaceToDepth", _space_to_depth, (1, 1)),
    Row("ShuffleChannels", named(_shuffle_channels), (1, 1)),
    Row("SliceScatter", plain(_slice_scatter), (5, 6), values=(2, 3, 4, 5)),
    Row("Eye", _eye, (3, 4), values=(0, 1, 2, 3)),
    Row("Bucketize", _bucketize, (2, 2), takes=(NUMBERS,)),
    Row("SearchSorted", _search_sorted, (2, 2)),
    Row("Identity", plain(lambda x: x), (1, 1)),
)
