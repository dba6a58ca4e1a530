"""Aten calls that move elements, and those that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode

from .aten import AtenNet, is_size, rule
from .aten_grids import edged
from .emit import END
from .graph import Value


def _as_asked(b: AtenNet, node: Any) -> list[Any]:
    """The shape of a traced tensor; of a view, with the sizes that it was asked for: torch may say
    `n // (n // 2)` in the place of 2."""
    shape, asked, first = b.shape(node), [], 0
    if str(node.target) in _VIEWS:
        *axis, asked = node.args[1:]
        first = axis[0] % len(b.shape(node.args[0])) if axis else 0
    for d, size in enumerate(asked, first):
        if isinstance(size, int) and size >= 0 and isinstance(shape[d], torch.SymInt):
            shape[d] = size
    return shape


_VIEWS = {"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unflatten.int"}


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def _reshape(b: AtenNet, x: Any, *_: Any, **__: Any) -> Value:
    return b.reshape(x, _as_asked(b, b.node))


@rule("squeeze")
def _squeeze(b: AtenNet, x: Any, dim: Any = None) -> Value:
    """By the axes that are asked for: shapes do not say which of two that have one element goes."""
    shape, dims = b.shape(x), [dim] if isinstance(dim, int) else dim or []
    axes = sorted({d % len(shape) for d in dims if shape and str(shape[d]) == "1"})
    if b.is_ragged(x) or not axes or len(b.shape()) != len(shape) - len(axes):
        return _reshape(b, x)
    return b.emit.squeeze(b.out(x), *axes)


@rule("unsqueeze")
def _unsqueeze(b: AtenNet, x: Any, dim: int) -> Value:
    return _reshape(b, x) if b.is_ragged(x) else b.emit.unsqueeze(b.out(x), dim % len(b.shape()))


@rule("permute")
def _permute(b: AtenNet, x: Any, dims: Sequence[int]) -> Value:
    rank = len(b.shape(x))
    order = [d % rank for d in dims]
    if b.is_ragged(x):
        if order[0] != 0:
            raise b.refuse("it moves the rows of ragged sequences")
        order = [0, 1, *(d + 1 for d in order[1:])]
    return b.emit.transpose(b.out(x), order)


@rule("transpose", "t", "swapaxes", "mT", "numpy_T", "adjoint")
def _transpose(b: AtenNet, x: Any, first: int = -2, second: int = -1) -> Value:
    order = list(range(len(b.shape(x))))
    if len(order) > 1:
        order[first], order[second] = order[second], order[first]
    return _permute(b, x, order)


@rule("movedim", "moveaxis")
def _movedim(b: AtenNet, x: Any, source: Any, target: Any) -> Value:
    meta = torch.empty([1] * len(b.shape(x)), device="meta")
    names = list(range(meta.dim()))
    source = [source] if isinstance(source, int) else list(source)
    target = [target] if isinstance(target, int) else list(target)
    rank = len(names)
    moved = {t % rank: s % rank for s, t in zip(source, target, strict=True)}
    rest = iter(n for n in names if n not in moved.values())
    return _permute(b, x, [moved[i] if i in moved else next(rest) for i in range(rank)])


@rule("expand", "broadcast_to", "expand_as")
def _expand(b: AtenNet, x: Any, *_: Any, **__: Any) -> Value:
    return b.broadcast(x, b.shape())


def _number(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, FxNode) else value


def _bound(b: AtenNet, value: Any) -> Any:
    return b.size(value) if isinstance(value, FxNode) else value


@rule("slice.Tensor")
def _slice(b: AtenNet, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    start, end = 0 if start is None else start, END if end is None else end
    if start == 0 and step == 1 and isinstance(end, int) and end >= 2**62:
        return b.out(x)
    value, axis = b.out(x), b.axis(x, dim)
    return b.emit.slice(value, axis, _bound(b, start), _bound(b, end), step)


@rule("narrow")
def _narrow(b: AtenNet, x: Any, dim: int, start: Any, length: Any) -> Any:
    if isinstance(start, int) and start < 0:
        return NotImplemented
    if start == 0 and isinstance(length, int) and _as_asked(b, x)[dim] == length:
        return b.out(x)  # where a view has the sizes that it was asked for
    value, axis = b.out(x), b.axis(x, dim)
    if isinstance(start, int) and isinstance(length, int):
        part = b.emit.slice(value, axis, start, start + length)
        if isinstance(b.shape(x)[dim], int):
            return part
        # of fewer rows a slice gives what there is, where torch raises; a split raises, too
        return b.emit.split(part, axis, b.emit.ints([length, 0]), 2)[0]
    end = b.emit.call("add", b.size(start), b.size(length))
    return b.emit.slice(value, axis, _bound(b, start), end)


@rule("select.int")
def _select(b: AtenNet, x: Any, dim: int, index: Any) -> Any:
    at = b.out(index) if isinstance(index, FxNode) else b.emit.scalar(index)
    return b.emit.take(b.out(x), at, b.axis(x, dim))


@rule("index_select")
def _index_select(b: AtenNet, x: Any, dim: int, index: Any) -> Value:
    return b.emit.take(b.out(x), b.out(index), b.axis(x, dim))


@rule("gather")
def _gather(b: AtenNet, x: Any, dim: int, index: Any, **_: Any) -> Any:
    table = first_of(b, b.out(x), x, index, dim % max(len(b.shape(x)), 1))
    if table is None:
        return NotImplemented
    return b.emit.call("gather", table, b.out(index), axis=b.axis(x, dim))


def first_of(b: AtenNet, value: Value, x: Any, index: Any, but: int | None = None) -> Value | None:
    """A tensor cut to the sizes of an index, in all axes but one; None: one is of ragged sequences."""
    for axis, (size, least) in enumerate(zip(b.shape(x), b.shape(index), strict=False)):
        if str(size) != str(least) and axis != but:
            if b.is_ragged(x) or b.is_ragged(index):
                return None
            value = b.emit.slice(value, axis, 0, b.size(least))
    return value


@rule("embedding")
def _embedding(b: AtenNet, table: Any, index: Any, *_: Any, **__: Any) -> Value:
    return b.emit.take(b.out(table), b.out(index), 0)


@rule("cat")
def _cat(b: AtenNet, tensors: Sequence[Any], dim: int = 0) -> Value:
    ragged = [b.is_ragged(t) for t in tensors]
    if any(ragged) and not all(ragged):
        raise b.refuse("it mixes rows of ragged sequences")
    kept = [t for t in tensors if b.shape(t) != [0]]
    return b.emit.concat([b.out(t, b.dtype()) for t in kept], b.axis(kept[0], dim))


@rule("stack")
def _stack(b: AtenNet, tensors: Sequence[Any], dim: int = 0) -> Value:
    rank = len(b.shape(tensors[0])) + 1
    at = dim % rank
    if b.is_ragged(tensors[0]):
        if at == 0:
            raise b.refuse("it mixes rows of ragged sequences")
        at += 1
    return b.emit.concat([b.emit.unsqueeze(b.out(t, b.dtype()), at) for t in tensors], at)


@rule("chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split")
def _split(b: AtenNet, x: Any, parts: Any, dim: int = 0) -> Any:
    sizes = b.sizes([b.open_sizes(meta)[dim] for meta in b.meta])
    return b.emit.split(b.out(x), b.axis(x, dim), sizes, len(b.meta))


@rule("unbind")
def _unbind(b: AtenNet, x: Any, dim: int = 0) -> Any:
    axis, count = b.axis(x, dim), len(b.meta)
    return [b.emit.take(b.out(x), b.emit.scalar(i), axis) for i in range(count)]


@rule("flip")
def _flip(b: AtenNet, x: Any, dims: Sequence[int]) -> Value:
    out = b.out(x)
    for dim in dims:
        out = b.emit.slice(out, b.axis(x, dim), -1, -END - 1, -1)
    return out


@rule("unfold")
def _unfold(b: AtenNet, x: Any, dim: int, size: int, step: int) -> Value:
    """Windows over an axis, their entries in a last axis of their own."""
    axis, count = b.axis(x, dim), b.shape()[dim % len(b.shape(x))]
    begins = b.emit.call("mul", b.emit.range(b.number(count)), b.emit.scalar(step))
    places = b.emit.call("add", b.emit.unsqueeze(begins, 1), b.emit.ints(list(range(size))))
    rank = len(b.shape()) + b.is_ragged(x)
    order = [d for d in range(rank) if d != axis + 1] + [axis + 1]
    return b.emit.transpose(b.emit.take(b.out(x), places, axis), order)


@rule("diagonal")
def _diagonal(b: AtenNet, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if b.is_ragged(x):
        return NotImplemented
    rank = len(b.shape(x))
    ends = [dim1 % rank, dim2 % rank]
    lead = [d for d in range(rank) if d not in ends]
    width = b.shape(x)[ends[1]]
    count = b.emit.range(b.number(b.shape()[-1]))
    places = b.emit.call("mul", count, b.number(width + 1))
    begin = b.number(offset if offset >= 0 else -offset * width)
    flat = b.emit.reshape(b.emit.transpose(b.out(x), lead + ends), [*[0] * len(lead), -1])
    return b.emit.take(flat, b.emit.call("add", places, begin), len(lead))


@rule("repeat")
def _repeat(b: AtenNet, x: Any, repeats: Sequence[Any]) -> Any:
    if b.is_ragged(x):
        return NotImplemented
    value, more = b.out(x), range(len(repeats) - len(b.shape(x)))
    times = b.sizes([b.open_size(n) for n in repeats])
    return b.emit.call("tile", b.emit.unsqueeze(value, *more) if more else value, times)


@rule("constant_pad_nd", "pad")
def _pad(b: AtenNet, x: Any, pad: Sequence[Any], *rest: Any) -> Any:
    mode, value = "constant", 0.0
    for item in rest:
        mode, value = (item, value) if isinstance(item, str) else (mode, item or 0.0)
    if mode != "constant":
        return edged(b, x, list(pad), mode)
    rank = len(b.shape(x)) + b.is_ragged(x)
    begin, end = list[Any]([0] * rank), list[Any]([0] * rank)
    for k in range(len(pad) // 2):
        axis = b.axis(x, len(b.shape(x)) - 1 - k)
        begin[axis], end[axis] = pad[2 * k], pad[2 * k + 1]
    return b.emit.call("pad", b.out(x), b.sizes(begin), b.sizes(end), b.out(value, b.dtype()))


# from nothing


@rule("zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like")
@rule("empty", "new_empty", "empty_like", "empty_permuted")
def _zeros_or_ones(b: AtenNet, *_: Any, **__: Any) -> Value:
    return _filled_as(b, int("ones" in b.name))


@rule("full", "full_like", "new_full")
def _full(b: AtenNet, _: Any, *numbers: Any, **__: Any) -> Any:
    return _filled_as(b, numbers[-1])


def _filled_as(b: AtenNet, number: Any) -> Value:
    shape, filling = b.shape(), b.out(number, b.dtype())
    symbol = str(shape[0]) if shape else None
    if symbol in b.ragged and symbol not in b.grids:
        # one number everywhere, as many rows as the tensor it is like
        sources = b.node.all_input_nodes if b.node is not None else []
        like = next((node for node in sources if not is_size(node) and b.is_ragged(node)), None)
        if like is None:
            raise b.refuse("it makes rows of ragged sequences from nothing")
        target = b.emit.concat([b.emit.slice(b.emit.shape(b.out(like)), 0, 0, 2), b.sizes(shape[1:])], 0)
        return b.emit.broadcast(filling, target)
    if all(isinstance(s, int) for s in shape) and not isinstance(number, FxNode):
        return b.emit.tensor(torch.full(list(shape), number, dtype=b.dtype()))
    return b.emit.broadcast(filling, b.sizes(shape))


@rule("scalar_tensor")
def _scalar(b: AtenNet, number: Any, **_: Any) -> Value:
    return b.out(number, b.dtype())


@rule("arange")
def _arange(b: AtenNet, *ends: Any, **_: Any) -> Any:
    start, end, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]

    def scalar(value: Any) -> Value:
        return b.emit.squeeze(b.size(value), 0) if isinstance(value, FxNode) else b.emit.scalar(value)

    if any(isinstance(_number(v), (float, torch.SymFloat)) for v in (start, end, step)):
        first, last, by = (b.number(_number(v), torch.float64) for v in (start, end, step))
        ratio = b.emit.call("div", b.emit.call("sub", last, first), by)
        places = b.emit.range(b.emit.cast(b.emit.call("ceil", ratio), torch.int64))
        steps = b.emit.call("mul", b.emit.cast(places, torch.float64), by)
        return b.emit.cast(b.emit.call("add", steps, first), b.dtype())
    first, last = scalar(start), scalar(end)
    if isinstance(step, int) and step < 0:  # some runtimes make of a range that ends at -1 a slice that does
        least = b.emit.call("add", b.emit.call("sub", first, last), scalar(-step - 1))
        count = b.emit.call("maximum", b.emit.floored(least, scalar(-step)), scalar(0))
        back = b.emit.range(b.emit.call("mul", count, scalar(step)), None, scalar(step))
        return b.emit.cast(b.emit.call("add", back, first), b.dtype())
    return b.emit.cast(b.emit.range(last, first, scalar(step)), b.dtype())
