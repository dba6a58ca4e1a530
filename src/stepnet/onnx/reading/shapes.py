"""Operators that move numbers: shapes, slices, joins, lookups."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import (
    axes_in,
    axis_in,
    by_data,
    from_front,
    gather,
    gather_elements,
    gather_nd,
    laid_out,
    laid_out_by,
    one_hot,
    padded,
    reversed_within,
    scatter,
    scatter_nd,
    slices,
    together,
)

from .info import Info, Misfit, Run, check_size, dtype_of, of_inputs, op, tensor_of


@op("Reshape", inputs=(1, 2))
def _reshape(node: Info) -> Run:
    sizes, zero = node.numbers(1, "shape"), node.get("allowzero", 0)

    def reshape(*inputs: Any) -> Tensor:
        x, wanted = inputs[0], sizes(inputs)
        if by_data(wanted):
            return laid_out_by(x, wanted, not zero)
        if not zero:
            if any(isinstance(size, int) and size == 0 for size in wanted[x.dim() :]):
                raise Misfit("a size of 0 keeps one that is not there", wanted, f"sizes for {list(x.shape)}")
            wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
        return laid_out(x, wanted)

    return reshape


@of_inputs("Flatten")
def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    at = axis if axis >= 0 else x.dim() + axis
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


@of_inputs("Transpose")
def _transpose(x: Tensor, *, perm: Any = None) -> Tensor:
    return x.permute(perm if perm is not None else list(range(x.dim()))[::-1])


@op("Squeeze", inputs=(1, 2))
def _squeeze(node: Info) -> Run:
    axes = node.listed(1, "axes")

    def squeeze(*inputs: Any) -> Tensor:
        x, wanted = inputs[0], axes(inputs)
        if wanted is None:
            return x.squeeze()
        gone = axes_in(wanted, x.dim())
        if by_data([x.shape[axis] for axis in gone]):
            return laid_out_by(x, [size for axis, size in enumerate(x.shape) if axis not in gone], False)
        for axis in gone:
            if x.shape[axis] != 1:
                raise Misfit("an axis that goes must have one element", x.shape[axis], 1)
        return x.squeeze(tuple(gone))

    return squeeze


@op("Unsqueeze", inputs=(1, 2))
def _unsqueeze(node: Info) -> Run:
    axes = node.listed(1, "axes")

    def unsqueeze(*inputs: Any) -> Tensor:
        x, wanted = inputs[0], axes(inputs) or []
        added = axes_in(wanted, x.dim() + len(wanted))
        if len(added) != len(wanted):
            raise Misfit("an axis is added twice", wanted, "axes, each once")
        for axis in added:
            x = x.unsqueeze(axis)
        return x

    return unsqueeze


@of_inputs("Concat", inputs=(1, 2**16))
def _concat(*xs: Tensor, axis: int = 0) -> Tensor:
    if any(x.dim() != xs[0].dim() for x in xs):  # torch would pass over some of one axis
        raise Misfit("all inputs must have as many axes", [list(x.shape) for x in xs])
    return torch.cat(xs, axis_in(axis, xs[0].dim()))


@op("Split", inputs=(1, 2))
def _split(node: Info) -> Run:
    axis, sizes, count = node.get("axis", 0), node.listed(1, "split"), node.count
    if node.get("num_outputs", count) != count:
        raise Misfit("num_outputs is not how many outputs there are", node.get("num_outputs"), count)

    def split(*inputs: Any) -> Any:
        x, wanted = inputs[0], sizes(inputs)
        at = axis_in(axis, x.dim())
        if wanted is None:
            size = -(-x.shape[at] // count)
            wanted = [max(min(size, x.shape[at] - k * size), 0) for k in range(count)]
        elif len(wanted) != count:
            raise Misfit("split does not fit the outputs", f"{len(wanted)} sizes", f"{count}, one for each")
        return x.split_with_sizes(wanted, at)

    return split


@op("Slice", inputs=(1, 5))
def _slice(node: Info) -> Run:
    starts, ends = node.listed(1, "starts"), node.listed(2, "ends")
    axes, steps = node.listed(3, "axes"), node.listed(4)
    empty = "axes" in node.node.attributes and not node.get("axes")  # which is none in an old file

    def cut(*inputs: Any) -> Tensor:
        low, high, by = starts(inputs) or [], ends(inputs) or [], steps(inputs)
        along = None if empty else axes(inputs)
        return slices(inputs[0], low, high, [1] * len(low) if by is None else by, along)

    return cut


@op("Gather", inputs=(2, 2))
def _gather(node: Info) -> Run:
    axis = node.get("axis", 0)
    known = node.known.get(1)

    if isinstance(known, int):
        return lambda x, index: x.select(axis, known)
    return lambda x, index: gather(x, index, axis)


@of_inputs("GatherElements", inputs=(2, 2))
def _gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return gather_elements(x, index, axis)


@of_inputs("GatherND", inputs=(2, 2))
def _gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    return gather_nd(x, index, batch_dims)


_REDUCTIONS = {"none": "none", "add": "sum", "mul": "prod", "max": "max", "min": "min"}


@op("ScatterElements", "Scatter", inputs=(3, 3))
def _scatter(node: Info) -> Run:
    axis, how = node.get("axis", 0), _REDUCTIONS[node.choice("reduction", _REDUCTIONS, "none")]
    return lambda x, index, updates: scatter(x, index, updates, axis, how)


@op("ScatterND", inputs=(3, 3))
def _scatter_nd(node: Info) -> Run:
    how = _REDUCTIONS[node.choice("reduction", _REDUCTIONS, "none")]
    return lambda x, index, updates: scatter_nd(x, index, updates, how)


@op("Expand", inputs=(2, 2))
def _expand(node: Info) -> Run:
    sizes = node.numbers(1)

    def expand(*inputs: Any) -> Tensor:
        x = inputs[0]
        return x.expand(check_size(together(x.shape, sizes(inputs))))

    return expand


@op("Tile", inputs=(2, 2))
def _tile(node: Info) -> Run:
    times = node.numbers(1)

    def tile(*inputs: Any) -> Tensor:
        x, wanted = inputs[0], times(inputs)
        check_size([size * n for size, n in zip(x.shape, wanted, strict=True)])
        return x.repeat(wanted)

    return tile


@op("Pad", inputs=(1, 4))
def _pad(node: Info) -> Run:
    mode, sizes, axes = node.get("mode", "constant"), node.numbers(1, "pads"), node.numbers(3)
    fill = node.number(2, "value")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise Misfit("no such padding runs", mode, "constant, reflect, edge, wrap")

    def pad(*inputs: Any) -> Tensor:
        x, wanted = inputs[0], sizes(inputs)
        number = fill(inputs)
        along = axes(inputs) or list(range(x.dim()))
        if len(wanted) != 2 * len(along):
            raise Misfit("there must be two sizes for each axis", wanted)
        before, after = [0] * x.dim(), [0] * x.dim()
        for k, axis in enumerate(along):
            before[axis], after[axis] = wanted[k], wanted[k + len(along)]
        check_size([torch.sym_max(a + n + b, 0) for a, n, b in zip(before, x.shape, after, strict=True)])
        return padded(x, before, after, mode, number)

    return pad


@op("ConstantOfShape")
def _constant_of_shape(node: Info) -> Run:
    sizes, content = node.numbers(0), node.get("value")
    value = torch.zeros(1) if content is None else tensor_of(content, node.where)
    # no tensor is held here: what writes a loop knows those alone that its body refers to
    number, dtype = value.item(), value.dtype
    return lambda *inputs: torch.full(check_size(sizes(inputs)), number, dtype=dtype)


@op("Range", inputs=(3, 3))
def _range(node: Info) -> Run:
    ends = [node.listed(k) for k in range(3)]

    def count(*inputs: Any) -> Tensor:
        low, high, step = ((end(inputs) or [0])[0] for end in ends)
        if step == 0:
            raise Misfit("the step of a range is 0")
        high = torch.sym_max(low, high) if step > 0 else torch.sym_min(low, high)  # data may decide them
        many = (high - low) // step
        check_size([int(many) if isinstance(many, float) else many])
        return torch.arange(low, high, step, dtype=inputs[0].dtype)

    return count


@op("OneHot", inputs=(3, 3))
def _one_hot(node: Info) -> Run:
    axis, depth = node.get("axis", -1), node.listed(1)

    def run(*inputs: Any) -> Tensor:
        index, _, values = inputs
        (size,) = depth(inputs) or [0]
        size = int(size) if isinstance(size, float) else size
        check_size([size, *index.shape])
        return one_hot(from_front(index.long(), size), size, axis, values[1], values[0])

    return run


@op("Trilu", inputs=(1, 2))
def _trilu(node: Info) -> Run:
    upper, shift = node.get("upper", 1), node.number(1)

    def trilu(*inputs: Any) -> Tensor:
        k = shift(inputs)
        k = 0 if k is None else k
        return torch.triu(inputs[0], k) if upper else torch.tril(inputs[0], k)

    return trilu


@op("NonZero")
def _nonzero(node: Info) -> Run:
    made = node.node.inputs[0]
    made = None if made is None else made.producer()
    if made is not None and made.op_type == "ConstantOfShape" and made.domain == node.node.domain:
        value = made.attributes.get("value")  # as torch writes arange for old sets of operators
        if value is not None and value.as_tensor().numpy().all():
            return _every_place
    return lambda x: x.nonzero().t()


def _every_place(x: Tensor) -> Tensor:
    """The places of all numbers, of which there are as many as the sizes say."""
    if x.dim() == 1:
        return torch.arange(x.shape[0], device=x.device)[None]
    grids = torch.meshgrid(*(torch.arange(size, device=x.device) for size in x.shape), indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids]) if grids else x.nonzero().t()


@of_inputs("Compress", inputs=(2, 2))
def _compress(x: Tensor, condition: Tensor, *, axis: Any = None) -> Tensor:
    x = x.reshape(-1) if axis is None else x
    return x.index_select(axis or 0, condition.nonzero()[:, 0])


@op("EyeLike")
def _eye_like(node: Info) -> Run:
    shift = node.get("k", 0)
    dtype = dtype_of(node.get("dtype")) if node.get("dtype") else None

    def eye(x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise Misfit("must have two dimensions", [*x.shape], "a matrix")
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
        return (columns - rows.unsqueeze(1) == shift).to(dtype or x.dtype)

    return eye


@of_inputs("ReverseSequence", inputs=(2, 2))
def _reverse_sequence(x: Tensor, lengths: Tensor, *, time_axis: int = 0, batch_axis: int = 1) -> Tensor:
    return reversed_within(x, lengths, batch_axis, time_axis)


@of_inputs("TensorScatter", inputs=(2, 3))
def _write_on(
    table: Tensor, update: Tensor, begins: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    at = axis_in(axis, table.dim())
    if not at:
        raise Misfit("writes along the axis of the batch", axis)
    begin = torch.zeros(len(table), dtype=torch.int64) if begins is None else begins
    places = begin[:, None] + torch.arange(update.shape[at])
    places = places % table.shape[at] if mode == "circular" else places
    shape = [size if k in (0, at) else 1 for k, size in enumerate(update.shape)]
    return table.scatter(at, places.reshape(shape).expand(update.shape), update)
