"""Sums of rows of a table: bags of words; a bag without words is the row of the default index, or zeros. And
the largest of segments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import not_in_recordings, within
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, PLACES, Function, Misfit, Row, integers, number, same_types, shape_text

_EMPTY = 2**20  # bags more than there are words: a file says how many there are


def _summed(
    table: Tensor, index: Tensor, bag: Tensor, count: int, default: Any, weights: Tensor | None, mean: bool
) -> Tensor:
    """The rows `index` of a table, each times its weight, added to the bags that they are in."""
    if not 0 <= count <= len(index) + _EMPTY:
        most = f"0 to {len(index) + _EMPTY}: one for each of {len(index)} words, and {_EMPTY} empty ones"
        raise Misfit("the number of bags does not fit", got=count, expected=most, dims=count)
    if weights is not None and mean:
        raise Misfit("per_sample_weights are of sums only", got='reduction="mean"', expected='"sum"')
    rows = table.index_select(0, integers(index, "indices"))
    if weights is not None:
        rows = rows * weights.reshape(-1, *[1] * (rows.dim() - 1))
    out = table.new_zeros(count, *table.shape[1:]).index_add(0, bag, rows)
    size = torch.zeros(count, dtype=torch.int64, device=table.device)
    size = size.index_add(0, bag, torch.ones_like(bag)).reshape(-1, *[1] * (table.dim() - 1))
    if mean:
        out = out / size.clamp(min=1).to(out.dtype)
    row = -1 if default is None else number(default, "default_index")
    if not -1 <= row < len(table):
        rows = f"a row of {len(table)}, or -1 for zeros"
        raise Misfit("default_index names no row", got=row, expected=rows, dims=(row, len(table)))
    return out if row < 0 else torch.where(size == 0, table[row], out)


def _means(attributes: Attributes) -> bool:
    return attributes.choice("reduction", ("sum", "mean"), "sum") == "mean"


def _offsets(layer: Layer, attributes: Attributes) -> Function:
    mean = _means(attributes)

    def bags(
        table: Tensor, index: Tensor, starts: Tensor, default: Any = None, weights: Any = None
    ) -> Tensor:
        if index.dim() != 1 or starts.dim() != 1:
            shapes = f"{shape_text(index)} and {shape_text(starts)}"
            raise Misfit(f"indices and offsets of {shapes} are no lists", dims=shapes)
        same_types((index, starts))
        most, places = len(index), torch.arange(len(index), device=index.device)
        first = within(starts[:1], 0, "the first of offsets", "0")
        ascending = f"0 at first, and then none below the one before, up to {most}"
        sizes = torch.diff(torch.cat([first, starts[1:].long(), starts.new_full((1,), most).long()]))
        sizes = within(sizes, most, "the sizes of bags, which offsets say,", ascending)
        bag = torch.searchsorted(sizes.cumsum(0) - sizes, places, right=True) - 1
        return _summed(table, index, bag, len(starts), default, weights, mean)

    return bags


def _packed(layer: Layer, attributes: Attributes) -> Function:
    mean = _means(attributes)

    def bags(table: Tensor, index: Tensor, weights: Any = None) -> Tensor:
        if index.dim() != 2:
            raise Misfit(
                f"indices of {shape_text(index)} are no bags", expected="[bags, size]", dims=index.dim()
            )
        bag = torch.arange(len(index), device=index.device).repeat_interleave(index.shape[1])
        return _summed(table, index.reshape(-1), bag, len(index), None, weights, mean)

    return bags


def _segments(layer: Layer, attributes: Attributes) -> Function:
    def bags(
        table: Tensor, index: Tensor, bag: Tensor, count: Any, default: Any = None, weights: Any = None
    ) -> Tensor:
        same_types((index, bag))
        return _summed(table, index, integers(bag, "segment_ids"), number(count, "num_segments"), default,
                       weights, mean=False)  # fmt: skip

    return bags


def _segment_max(layer: Layer, attributes: Attributes) -> Function:
    lowest = attributes.choice("fill_mode", ("zero", "lowest")) == "lowest"

    def largest(x: Tensor, index: Tensor, count: Any = None) -> Tensor:
        if not x.dim() or index.shape != x.shape[:1]:
            shapes = f"{shape_text(index)} and {shape_text(x)}"
            raise Misfit("needs the number of a segment for each row", shapes, "[rows]", dims=shapes)
        segment = integers(index, "segment_ids")
        if count is None:
            not_in_recordings()
            if segment.is_meta:
                raise NotImplementedError("how many segments there are, the numbers say")
            most = int(segment.max()) + 1 if len(segment) else 0
        else:
            most = number(count, "num_segments")
        if not 0 <= most <= len(index) + _EMPTY:
            raise Misfit(
                "the number of segments does not fit", most, f"0 to {len(index) + _EMPTY}", dims=most
            )
        kind = torch.finfo if x.dtype.is_floating_point else torch.iinfo
        out = x.new_full((most + 1, *x.shape[1:]), kind(x.dtype).min if lowest else 0)
        rows = segment.clamp(max=most)  # those behind the last segment are left out
        rows = rows.reshape(-1, *[1] * (x.dim() - 1)).expand(x.shape)
        return out.scatter_reduce(0, rows, x, "amax", include_self=False)[:most]

    return largest


ROWS = (
    Row("EmbeddingBagOffsetsSum", _offsets, (3, 5), values=(3,), takes=("", PLACES, PLACES, "")),
    Row("EmbeddingBagOffsets", _offsets, (3, 5), values=(3,), takes=("", PLACES, PLACES, "")),
    Row("EmbeddingBagPackedSum", _packed, (2, 3), takes=("", PLACES, "")),
    Row("EmbeddingBagPacked", _packed, (2, 3), takes=("", PLACES, "")),
    Row("EmbeddingSegmentsSum", _segments, (4, 6), values=(3, 4), takes=("", PLACES, PLACES, "")),
    Row("SegmentMax", _segment_max, (2, 3), values=(2,), takes=(NUMBERS, PLACES)),
)
