"""Aten calls that move elements: views, slices, joins, lookups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from stepnet.errors import Unsupported
from stepnet.ir.graph import Kind

from .builder import Builder, Fold, Ref, rule


@rule("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def _view(b: Builder, x: Ref, shape: Any) -> Any:
    value = b.values[x.name]
    meta = b.meta
    at, times = b.batch_at(meta.shape)
    target = b.row_shape(meta.shape, at)
    if x.bdim is None:
        return b.result(b.reshape(x.name, target), None)
    if at is None:
        raise Unsupported("a reshape loses the batch dimension", line=b.line)
    # in the order of memory: what is ahead of the rows, the rows, what is within each
    lead, own = value.shape[: x.fold], value.shape[x.fold :]
    ahead = getattr(x.fold, "ahead", 0)
    before = prod(own[: x.bdim]) * prod(lead[:ahead])
    left, right = prod(target[:at]), prod(target[at:])
    outer = before // left if left else 1
    inner = times // outer if outer else 0
    size = prod(value.shape)
    if outer * left != before or outer * inner != times or (size and before * inner * right != size):
        raise Unsupported("a reshape moves values between rows", line=b.line)
    dims = range(len(value.shape))
    named = [*dims[x.fold : x.fold + x.bdim], *dims[: x.fold], *dims[x.fold + x.bdim :]]
    merged = [n for n in (outer, inner) if n != 1]
    name = b.reshape(b.permute(x.name, named), (*target[:at], *merged, *target[at:]))
    order = [*range(at, at + len(merged)), *range(at), *range(at + len(merged), len(merged) + len(target))]
    fold = len(merged) if outer == 1 else Fold(len(merged), 1)
    return b.result(b.permute(name, order), at, fold)


@rule("permute", "permute_copy")
def _permute(b: Builder, x: Ref, dims: Sequence[int]) -> Any:
    value = b.values[x.name]
    if x.bdim is None:
        rank = len(value.shape)
        return b.result(b.permute(x.name, [d % rank for d in dims]), None)
    rank = len(value.shape) - x.fold + 1
    order = [d % rank for d in dims]
    bdim = order.index(x.bdim)
    own = [d - (d > x.bdim) + x.fold for d in order if d != x.bdim]
    return b.result(b.permute(x.name, [*range(x.fold), *own]), bdim, x.fold)


def swapped(b: Builder, name: str) -> str:
    """A value with its last two dimensions in each other's place."""
    rank = len(b.values[name].shape)
    return b.permute(name, [*range(rank - 2), rank - 1, rank - 2])


@rule("t", "transpose", "transpose_copy", "t_copy")
def _transpose(b: Builder, x: Ref, d0: int = 0, d1: int = 1) -> Any:
    rank = len(b.values[x.name].shape) - x.fold + (x.bdim is not None)
    dims = list(range(rank))
    if rank > 1:
        dims[d0], dims[d1] = dims[d1], dims[d0]
    return _permute(b, x, dims)


@rule("expand", "expand_copy")
def _expand(b: Builder, x: Ref, sizes: Any, implicit: bool = False) -> Any:
    meta = b.meta
    at, times = b.batch_at(meta.shape)
    shape = b.row_shape(meta.shape, at)
    value = b.values[x.name]
    if x.fold and at == 0:
        lead = value.shape[: x.fold]
        name = b.aligned(x, len(meta.shape), at)
        if b.values[name].shape != (*lead, *shape):
            name = b.emit("expand", (name,), (*lead, *shape), value.dtype, "row")
        return b.result(name, at, x.fold)
    if (at is None or times == 1) and not x.fold:
        name = b.aligned(x, len(meta.shape), at) if at is not None else x.name
        if b.values[name].shape == shape and (at is None) == (x.bdim is None):
            return b.result(name, at)
        kind = "row" if at is not None else b.kind(name)
        return b.result(b.emit("expand", (name,), shape, value.dtype, kind), at)
    raise Unsupported("expand on folded rows", line=b.line)


@rule("copy")
def _copy(b: Builder, x: Ref, source: Ref, non_blocking: bool = False) -> Any:
    return _expand(b, b.cast(source, b.meta_dtype()), None)


def feature_dim(b: Builder, x: Ref, dim: int) -> int:
    """A traced dimension as a dimension of the row; refuses the batch dimension."""
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    dim %= max(rank, 1)
    if x.bdim is None:
        return dim
    if dim == x.bdim:
        raise Unsupported("the step picks, joins or slices rows by number", line=b.line)
    return dim - (dim > x.bdim) + x.fold


@rule("squeeze", "unsqueeze", "squeeze_copy", "unsqueeze_copy")
def _squeeze(b: Builder, x: Ref, *dims: Any) -> Any:
    meta = b.meta
    at, _ = b.batch_at(meta.shape)
    shape = b.row_shape(meta.shape, at)
    if x.fold:
        shape = b.values[x.name].shape[: x.fold] + shape
    return b.result(b.reshape(x.name, shape), at, x.fold)


def slice_feature(b: Builder, name: str, dim: int, start: int, end: int, step: int = 1) -> str:
    """Part of a row value along one of its dimensions."""
    value = b.values[name]
    if start == 0 and end >= value.shape[dim] and step == 1:
        return name
    shape = list(value.shape)
    shape[dim] = max(0, -(-(min(end, shape[dim]) - start) // step))
    return b.emit("slice", (name,), shape, value.dtype, dim=dim, start=start, end=end, step=step)


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(b: Builder, x: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    if x.bdim is not None and dim % rank == x.bdim:
        whole = (start in (None, 0)) and (not isinstance(end, int) or end >= 2**62) and step == 1
        if whole:
            return x
    own = feature_dim(b, x, dim)
    size = value.shape[own]
    first = _clip(start, size, 0)
    last = _clip(end, size, size)
    return b.result(slice_feature(b, x.name, own, first, max(first, last), step), x.bdim, x.fold)


def _clip(index: Any, size: int, default: int) -> int:
    if index is None:
        return default
    index = int(index)
    return min(max(index + size if index < 0 else index, 0), size)


@rule("select.int", "select_copy.int")
def _select(b: Builder, x: Ref, dim: int, index: int) -> Any:
    own = feature_dim(b, x, dim)
    value = b.values[x.name]
    index %= value.shape[own]
    part = slice_feature(b, x.name, own, index, index + 1)
    at, _ = b.batch_at(b.meta.shape)
    return b.result(b.reshape(part, value.shape[:own] + value.shape[own + 1 :]), at, x.fold)


@rule("split_with_sizes", "split_with_sizes_copy")
def _split(b: Builder, x: Ref, sizes: Sequence[int], dim: int = 0) -> Any:
    own = feature_dim(b, x, dim)
    out, start = [], 0
    for size in sizes:
        out.append(Ref(slice_feature(b, x.name, own, start, start + size), x.bdim, x.fold))
        start += size
    return out


@rule("cat")
def _cat(b: Builder, tensors: Sequence[Ref], dim: int = 0) -> Any:
    meta = b.meta
    dtype = b.meta_dtype()
    at, times = b.batch_at(meta.shape)
    # torch lets a plain empty [0] join anything
    refs = [b.cast(r, dtype) for r in tensors if not (r.bdim is None and b.values[r.name].shape == (0,))]
    if times != 1 or any(r.fold for r in refs):
        return _cat_folded(b, refs, dim % len(meta.shape))
    if at is None:
        shape = b.row_shape(meta.shape, None)
        return b.result(b.emit("cat", [r.name for r in refs], shape, dtype, dim=dim % len(shape)), None)
    rank = len(meta.shape)
    if dim % rank == at or any(r.bdim != at for r in refs):
        raise Unsupported("the step joins rows with other rows", line=b.line)
    own = dim % rank
    own -= own > at
    shape = b.row_shape(meta.shape, at)
    return b.result(b.emit("cat", [r.name for r in refs], shape, dtype, dim=own), at)


def _cat_folded(b: Builder, refs: Sequence[Ref], dim: int) -> Any:
    at, times = b.batch_at(b.meta.shape)
    fold, lead = b.folded(refs, times)
    if at is None or dim == at or any(r.bdim != at for r in refs):
        raise Unsupported("the step joins rows with other rows", line=b.line)
    shape = (*lead, *b.row_shape(b.meta.shape, at))
    own = len(lead) + dim - (dim > at)
    return b.result(b.emit("cat", [r.name for r in refs], shape, b.meta_dtype(), dim=own), at, fold)


@rule("constant_pad_nd")
def _pad(b: Builder, x: Ref, pad: Sequence[int], value: Any = 0) -> Any:
    name = x.name
    rank = len(b.values[name].shape) - x.fold + (x.bdim is not None)
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        if before == after == 0:
            continue
        own = feature_dim(b, Ref(name, x.bdim, x.fold), rank - 1 - k)
        if before < 0 or after < 0:
            size = b.values[name].shape[own]
            name = slice_feature(b, name, own, max(-before, 0), size - max(-after, 0))
        name = _padded(b, name, own, max(before, 0), max(after, 0), value)
    return b.result(name, x.bdim, x.fold)


def _padded(b: Builder, name: str, dim: int, before: int, after: int, number: Any = 0) -> str:
    value = b.values[name]
    parts = []
    for size in (before, None, after):
        if size is None:
            parts.append(name)
        elif size:
            shape = [*value.shape[:dim], size, *value.shape[dim + 1 :]]
            parts.append(b.full(number, shape, value.dtype, beside(value.kind)))
    if len(parts) == 1:
        return name
    shape = [*value.shape[:dim], value.shape[dim] + before + after, *value.shape[dim + 1 :]]
    return b.emit("cat", parts, shape, value.dtype, dim=dim)


def _replaced(b: Builder, x: Ref, source: Ref, dim: int, start: int, end: int) -> Any:
    """x with [start, end) of a feature dimension replaced by source."""
    value = b.values[x.name]
    own = feature_dim(b, x, dim)
    src = b.cast(source, value.dtype).name
    shape = list(value.shape)
    shape[own] = end - start
    if b.values[src].shape != tuple(shape):
        src = b.reshape(src, shape)
    if b.is_full(x.name, 0):
        return b.result(_padded(b, src, own, start, value.shape[own] - end), source.bdim, x.fold)
    if x.bdim != source.bdim:
        return NotImplemented
    parts = []
    if start > 0:
        parts.append(slice_feature(b, x.name, own, 0, start))
    parts.append(src)
    if end < value.shape[own]:
        parts.append(slice_feature(b, x.name, own, end, value.shape[own]))
    name = src if len(parts) == 1 else b.emit("cat", parts, value.shape, value.dtype, dim=own)
    return b.result(name, x.bdim, x.fold)


def _every(b: Builder, x: Ref, source: Ref, own: int, places: range, checked: bool = True) -> Any:
    """x with some places of a feature dimension replaced by source, a step apart."""

    def result(name: str, at: Ref) -> Ref:
        return b.result(name, at.bdim, at.fold) if checked else Ref(name, at.bdim, at.fold)

    value = b.values[x.name]
    src = b.cast(source, value.dtype).name
    shape = b.values[src].shape
    if not b.is_full(x.name, 0):
        if x.bdim != source.bdim:
            return NotImplemented
        index = along(b, places, value.shape[:own], value.shape[own + 1 :], source)
        return result(b.emit("scatter", (x.name, index, src), value.shape, value.dtype, dim=own), x)
    # zeros between: [.., n, 1] beside [.., n, step - 1]
    lone = b.reshape(src, (*shape[: own + 1], 1, *shape[own + 1 :]))
    wide = _padded(b, lone, own + 1, 0, places.step - 1)
    flat = b.reshape(wide, (*shape[:own], shape[own] * places.step, *shape[own + 1 :]))
    flat = slice_feature(b, flat, own, 0, min(shape[own] * places.step, value.shape[own] - places.start))
    after = value.shape[own] - places.start - b.values[flat].shape[own]
    return result(_padded(b, flat, own, places.start, after), source)


def beside(kind: Kind) -> Kind:
    """What a constant or an index beside a value is: of no sum over rows, though the value be one."""
    return "row" if kind == "row" else "shared"


def along(b: Builder, places: range, before: Sequence[int], after: Sequence[int], like: Ref) -> str:
    """Places along a dimension as an index: the same at all others."""
    count = b.emit("iota", (), (len(places),), "int64", "shared", start=places.start, step=places.step)
    thin = b.reshape(count, (*(1 for _ in before), len(places), *(1 for _ in after)))
    kind = beside(b.values[like.name].kind)
    return b.emit("expand", (thin,), (*before, len(places), *after), "int64", kind)


@rule("diagonal", "diagonal_copy")
def _diagonal(b: Builder, x: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = feature_dim(b, x, dim1), feature_dim(b, x, dim2)
    shape = b.values[x.name].shape
    rest = [d for d in range(len(shape)) if d not in (first, second)]
    if x.bdim is not None and (x.bdim != 0 or x.fold):
        return NotImplemented
    n, m = shape[first], shape[second]
    size = max(min(n + min(offset, 0), m - max(offset, 0)), 0)
    if not size:
        return NotImplemented
    turned = b.permute(x.name, [*rest, first, second])
    flat = b.reshape(turned, (*(shape[d] for d in rest), n * m))
    start = max(offset, 0) + max(-offset, 0) * m
    part = slice_feature(b, flat, len(rest), start, start + (size - 1) * (m + 1) + 1, m + 1)
    return b.result(part, x.bdim)


@rule("diagonal_scatter")
def _diagonal_scatter(b: Builder, x: Ref, source: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = feature_dim(b, x, dim1), feature_dim(b, x, dim2)
    shape = b.values[x.name].shape
    rest = [d for d in range(len(shape)) if d not in (first, second)]
    size = b.values[source.name].shape[-1] if b.values[source.name].shape else 0
    if x.bdim not in (None, 0) or x.fold or source.bdim != x.bdim or not size:
        return NotImplemented
    order = [*rest, first, second]
    n, m = shape[first], shape[second]
    turned = b.permute(x.name, order)
    flat_shape = (*(shape[d] for d in rest), n * m)
    flat = b.reshape(turned, flat_shape)
    start = max(offset, 0) + max(-offset, 0) * m
    meta, places = b.meta, range(start, start + (size - 1) * (m + 1) + 1, m + 1)
    done = _every(b, Ref(flat, x.bdim), source, len(rest), places, checked=False)
    if done is NotImplemented:
        return done
    b.meta = meta
    back = b.reshape(done.name, [shape[d] for d in order])
    return b.result(b.permute(back, [order.index(d) for d in range(len(order))]), x.bdim)


@rule("slice_scatter")
def _slice_scatter(
    b: Builder, x: Ref, source: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    if x.bdim is not None and dim % rank == x.bdim:
        if start in (None, 0) and (not isinstance(end, int) or end >= 2**62) and step == 1:
            return source
        raise Unsupported("the step writes to rows by number", line=b.line)
    own = feature_dim(b, x, dim)
    size = value.shape[own]
    if step != 1:
        return _every(b, x, source, own, range(_clip(start, size, 0), _clip(end, size, size), step))
    return _replaced(b, x, source, dim, _clip(start, size, 0), _clip(end, size, size))


@rule("select_scatter")
def _select_scatter(b: Builder, x: Ref, source: Ref, dim: int, index: int) -> Any:
    size = b.values[x.name].shape[feature_dim(b, x, dim)]
    return _replaced(b, x, source, dim, index % size, index % size + 1)


@rule("flip")
def _flip(b: Builder, x: Ref, dims: Sequence[int]) -> Any:
    own = tuple(feature_dim(b, x, d) for d in dims)
    return b.result(b.like(x.name, "flip", x.name, dims=own), x.bdim, x.fold)


@rule("embedding")
def _embedding(b: Builder, table: Ref, index: Ref, *_: Any, **__: Any) -> Any:
    if table.bdim is not None:
        return NotImplemented
    rows, at = b.values[table.name], b.values[index.name]
    name = b.emit("embed", (table.name, index.name), (*at.shape, *rows.shape[1:]), rows.dtype)
    return b.result(name, index.bdim, index.fold)


@rule("embedding_dense_backward")
def _embedding_grad(b: Builder, grad: Ref, index: Ref, count: int, padding: int, scale: bool) -> Any:
    if grad.bdim is None or index.bdim != grad.bdim or scale or grad.fold or index.fold:
        return NotImplemented
    value = b.values[grad.name]
    shape = (count, value.shape[-1])
    return Ref(b.emit("embed_grad", (grad.name, index.name), shape, value.dtype, "sum", padding=padding))
