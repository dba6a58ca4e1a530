"""Layers that change shapes: reshape, squeeze, transpose, join, split, repeat."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepnet.data.in_graph import is_exporting
from stepnet.export.open_sizes import Sizes
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.reader import declared_type
from stepnet.openvino.records import Layer
from stepnet.watchers import instead

from .row import (
    NUMBERS,
    Function,
    Misfit,
    Row,
    axes_in,
    axis_in,
    by_data,
    check_size,
    differ,
    laid_out,
    laid_out_by,
    listed,
    named,
    number,
    plain,
    same_types,
    shape_text,
    together,
)


def _reshape(x: Tensor, pattern: Any, *, special_zero: bool = False) -> Tensor:
    wanted = listed(pattern)
    if by_data(wanted):
        return laid_out_by(x, wanted, special_zero)
    return laid_out(x, reshaped(x, wanted, special_zero))


def reshaped(x: Tensor, pattern: list[int], special_zero: bool) -> list[int]:
    """The shape that a pattern with 0 (as it is, if special) and -1 (what is left) asks of x.

    Raises:
        Misfit: x has no such shape.
    """
    if any(d < -1 for d in pattern) or pattern.count(-1) > 1:
        raise Misfit(
            f"cannot reshape to {pattern}", expected="sizes >= 0 and at most one -1", dims=str(pattern)
        )
    shape: list[Any] = []
    for i, d in enumerate(pattern):
        if d == 0 and special_zero:
            if i >= x.dim():
                raise Misfit(f"cannot keep dimension {i} of {shape_text(x)}", got=pattern, dims=(i, x.dim()))
            shape.append(x.shape[i])
        else:
            shape.append(d)
    if -1 not in pattern:
        return shape
    kept = [i for i, d in enumerate(pattern) if d == 0 and special_zero]
    given = [d for d in pattern if d > 0 or (d == 0 and not special_zero)]
    if kept or 0 in given:  # torch cannot tell -1 where there is nothing; what is kept does not count
        whole, fixed = math.prod(d for i, d in enumerate(x.shape) if i not in kept), math.prod(given)
        shape[pattern.index(-1)] = whole // fixed if fixed else 1
    return shape


def _squeeze(x: Tensor, axes: Any = None, *, allow_axis_skip: bool = False) -> Tensor:
    if axes is None or axes == []:
        return x.reshape([d for d in x.shape if d != 1])
    chosen = axes_in(listed(axes), x.dim())
    sizes = [x.shape[axis] for axis in chosen]
    if by_data(sizes) and not allow_axis_skip:
        return laid_out_by(x, [d for axis, d in enumerate(x.shape) if axis not in chosen], False)
    for axis in chosen:
        if x.shape[axis] != 1 and not allow_axis_skip:
            raise Misfit(
                f"cannot squeeze axis {axis} of {shape_text(x)}",
                got=x.shape[axis],
                expected="1",
                dims=x.shape[axis],
            )
    return x.squeeze(chosen)


def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    wanted = listed(axes)
    chosen = axes_in(wanted, x.dim() + len(wanted))
    if len(chosen) != len(wanted) or not wanted:
        what = "axes name one axis twice" if wanted else "axes name none"
        raise Misfit(what, got=wanted, expected="new axes, each once", dims=str(wanted))
    for axis in chosen:
        x = x.unsqueeze(axis)
    return x


def _transpose(x: Tensor, order: Any) -> Tensor:
    chosen = listed(order) or list(range(x.dim()))[::-1]
    if sorted(chosen) != list(range(x.dim())):
        every = f"each of 0 to {x.dim() - 1} once" if x.dim() else "none"
        what = f"order does not permute {x.dim()} axes"
        raise Misfit(what, got=chosen, expected=every, dims=(str(chosen), x.dim()))
    return x.permute(chosen)


def _concat(*parts: Tensor, axis: int) -> Tensor:
    same_types(parts)
    rank = parts[0].dim()
    at = axis_in(axis, rank)
    for part in parts[1:]:
        if part.dim() != rank:
            raise Misfit(
                f"cannot join {shape_text(parts[0])} and {shape_text(part)}", dims=(rank, part.dim())
            )
        for i in range(rank):
            if i != at and differ(part.shape[i], parts[0].shape[i]):
                raise Misfit(
                    f"cannot join {shape_text(parts[0])} and {shape_text(part)} along axis {at}",
                    got=f"{parts[0].shape[i]} and {part.shape[i]} along axis {i}",
                    dims=(parts[0].shape[i], part.shape[i]),
                )
    return torch.cat(parts, at)


def _split(layer: Layer, attributes: Attributes) -> Function:
    count = attributes.int("num_splits")
    if count < 1 or count != len(layer.outputs):
        raise Misfit(f"num_splits is {count}, but there are {len(layer.outputs)} outputs")

    def split(x: Tensor, axis: Any) -> tuple[Tensor, ...]:
        at = axis_in(number(axis, "axis"), x.dim())
        if x.shape[at] % count:
            raise Misfit(
                f"cannot split axis {at} of {shape_text(x)} into {count} equal parts",
                dims=(x.shape[at], count),
            )
        return x.split([x.shape[at] // count] * count, at)

    return split


def _variadic_split(layer: Layer, attributes: Attributes) -> Function:
    count = len(layer.outputs)

    def split(x: Tensor, axis: Any, lengths: Any) -> tuple[Tensor, ...]:
        at = axis_in(number(axis, "axis"), x.dim())
        parts = listed(lengths)
        if len(parts) != count:
            got, expected = f"{len(parts)} lengths", f"{count}, one for each output"
            raise Misfit("split_lengths does not fit the outputs", got, expected, dims=(len(parts), count))
        if by_data(parts):
            return x.split(parts, at)
        if -1 in parts:
            parts = [x.shape[at] - (sum(parts) + 1) if p == -1 else p for p in parts]
        if any(p < 0 for p in parts) or sum(parts) != x.shape[at]:
            raise Misfit(
                f"cannot split axis {at} of {shape_text(x)} into {listed(lengths)}",
                got=f"lengths {listed(lengths)}",
                expected=f"lengths of {x.shape[at]} in all, one of which may be -1",
                dims=(x.shape[at], sum(parts)),
            )
        return x.split(parts, at)

    return split


def _broadcast(layer: Layer, attributes: Attributes) -> Function:
    first, mapped = layer.opset < 3, len(layer.inputs) == 3
    mode = attributes.choice(
        "mode" if "mode" in attributes else "broadcast_spec",
        ("numpy", "explicit", "none", "bidirectional", "pdpd"),
        "explicit" if first and mapped else "numpy",
    )
    mode = "explicit" if mode == "none" else mode  # as OpenVINO writes it of opset1
    if mapped and not first and mode != "explicit":
        raise Misfit("axes_mapping is of the mode explicit", got=f"mode {mode}", expected="two inputs")

    def broadcast(x: Tensor, target: Any, mapping: Any = None) -> Tensor:
        shape = listed(target)
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise Misfit(f"cannot broadcast to {shape}", expected="sizes >= 0", dims=str(shape))
        if mode == "explicit":
            axes = list(range(x.dim())) if mapping is None else listed(mapping)
            if (
                len(axes) != x.dim()
                or sorted(set(axes)) != axes
                or any(not 0 <= a < len(shape) for a in axes)
            ):
                raise Misfit(f"axes_mapping {axes} does not fit {shape_text(x)} and {shape}", dims=str(axes))
            whole = [1] * len(shape)
            for i, a in enumerate(axes):
                whole[a] = x.shape[i]
            x = x.reshape(whole)
        if mode == "bidirectional":
            shape = together(x.shape, shape)
        for i in range(1, min(x.dim(), len(shape)) + 1):
            if isinstance(shape[-i], int) and x.shape[-i] not in (1, shape[-i]):
                raise Misfit(f"cannot broadcast {shape_text(x)} to {shape}", dims=(x.shape[-i], shape[-i]))
        if x.dim() > len(shape):
            raise Misfit(f"cannot broadcast {shape_text(x)} to {shape}", dims=(x.dim(), len(shape)))
        return x.expand(check_size(shape))

    return broadcast


def _tile(x: Tensor, repeats: Any) -> Tensor:
    counts = listed(repeats)
    if any(isinstance(c, int) and c < 0 for c in counts):
        raise Misfit(f"cannot repeat {counts} times", expected="numbers >= 0", dims=str(counts))
    rank = max(len(counts), x.dim())
    x, counts = x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)), [1] * (rank - len(counts)) + counts
    check_size([n * count for n, count in zip(x.shape, counts, strict=True)])
    return x.repeat(counts)


def _shape_of(layer: Layer, attributes: Attributes) -> Function:
    dtype = attributes.index_type("output_type", "i64").dtype if layer.opset >= 3 else torch.int64

    def shape_of(x: Tensor) -> Any:
        if is_exporting() or instead() is not None or not all(type(size) is int for size in x.shape):
            return Sizes(list(x.shape), dtype)
        return torch.tensor(list(x.shape), dtype=dtype)

    return shape_of


def _range(layer: Layer, attributes: Attributes) -> Function:
    said = "output_type" in attributes or layer.outputs[0].type is not None
    dtype = declared_type(layer, "output_type").dtype if said else torch.float32
    if dtype is torch.bool:
        raise Misfit("a range is of numbers", got="boolean", expected="a type of numbers, such as i64")

    def arange(start: Any, stop: Any, step: Any) -> Tensor:
        a, b, by = number(start, "start"), number(stop, "stop"), number(step, "step")
        if by > 0 and any(isinstance(v, torch.SymInt) for v in (a, b)):
            return torch.arange(a, b, by, dtype=dtype)
        if not dtype.is_floating_point and all(math.isfinite(v) for v in (a, b, by)):
            a, b, by = int(a), int(b), int(by)
        if by == 0 or not all(math.isfinite(v) for v in (a, b, by)):
            raise Misfit(
                "start, stop and step do not make a range", got=f"{a}, {b}, {by}", dims=str((a, b, by))
            )
        count = max(0, math.ceil((b - a) / by))
        check_size([count])
        return a + by * torch.arange(count, dtype=dtype if dtype.is_floating_point else torch.int64).to(dtype)

    return arange


ROWS = (
    Row("Reshape", named(_reshape), (2, 2), values=(1,)),
    Row("Squeeze", named(_squeeze), (1, 2), values=(1,)),
    Row("Unsqueeze", plain(_unsqueeze), (2, 2), values=(1,)),
    Row("Transpose", plain(_transpose), (2, 2), values=(1,)),
    Row("Concat", named(_concat), (1, 4096)),
    Row("Split", _split, (2, 2), (1, 4096), values=(1,)),
    Row("VariadicSplit", _variadic_split, (3, 3), (1, 4096), values=(1, 2)),
    Row("Broadcast", _broadcast, (2, 3), values=(1, 2)),
    Row("Tile", plain(_tile), (2, 2), values=(1,)),
    Row("ShapeOf", _shape_of, (1, 1)),
    Row("Range", _range, (3, 3), values=(0, 1, 2), kinds=dict.fromkeys((0, 1, 2), NUMBERS)),
)
