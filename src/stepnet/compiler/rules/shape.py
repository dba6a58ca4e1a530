"""Aten calls that move elements: views, slices, joins, lookups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from stepnet.errors import Unsupported
from stepnet.ir.graph import Kind

from . import joined_rows
from .builder import Builder, Fold, Ref, rule
from .known_parts import slice_feature


@rule("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def _view(b: Builder, x: Ref, shape: Any) -> Any:
    value = b.values[x.name]
    at, times, target = b.shown()
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
    order = [d % b.rank(x) for d in dims]
    if x.bdim is None:
        return b.result(b.permute(x.name, order), None)
    bdim = order.index(x.bdim)
    own = [d - (d > x.bdim) + x.fold for d in order if d != x.bdim]
    return b.result(b.permute(x.name, [*range(x.fold), *own]), bdim, x.fold)


def swapped(b: Builder, name: str) -> str:
    """A value with its last two dimensions in each other's place."""
    rank = len(b.values[name].shape)
    return b.permute(name, [*range(rank - 2), rank - 1, rank - 2])


@rule("t", "transpose", "transpose_copy", "t_copy")
def _transpose(b: Builder, x: Ref, d0: int = 0, d1: int = 1) -> Any:
    dims = list(range(b.rank(x)))
    if len(dims) > 1:
        dims[d0], dims[d1] = dims[d1], dims[d0]
    return _permute(b, x, dims)


@rule("expand", "expand_copy")
def _expand(b: Builder, x: Ref, sizes: Any, implicit: bool = False) -> Any:
    at, times, shape = b.shown()
    rank, value = len(b.meta.shape), b.values[x.name]
    if x.fold and at == 0:
        lead = value.shape[: x.fold]
        name = b.aligned(x, rank, at)
        if b.values[name].shape != (*lead, *shape):
            name = b.emit("expand", (name,), (*lead, *shape), value.dtype, "row")
        return b.result(name, at, x.fold)
    if (at is None or times == 1) and not x.fold:
        name = b.aligned(x, rank, at) if at is not None else x.name
        if b.values[name].shape == shape and (at is None) == (x.bdim is None):
            return b.result(name, at)
        kind = "row" if at is not None else b.kind(name)
        return b.result(b.emit("expand", (name,), shape, value.dtype, kind), at)
    if x.bdim is None and at == 0:
        name = b.emit("expand", (b.aligned(x, rank, at),), (times, *shape), value.dtype, "row")
        return b.result(name, at, 1)
    raise Unsupported("expand on folded rows", line=b.line)


@rule("copy")
def _copy(b: Builder, x: Ref, source: Ref, non_blocking: bool = False) -> Any:
    return _expand(b, b.cast(source, b.meta_dtype()), None)


def feature_dim(b: Builder, x: Ref, dim: int) -> int:
    """A traced dimension as a dimension of the row; refuses the batch dimension."""
    dim %= max(b.rank(x), 1)
    if x.bdim is None:
        return dim
    if dim == x.bdim:
        raise Unsupported(
            "the step picks, joins or slices rows by number",
            remedy="torch.func.vmap(f)(x, h), for a function of one row, in place of a loop over rows",
            line=b.line,
        )
    return dim - (dim > x.bdim) + x.fold


@rule("squeeze", "unsqueeze", "squeeze_copy", "unsqueeze_copy")
def _squeeze(b: Builder, x: Ref, *dims: Any) -> Any:
    at, _, shape = b.shown()
    return b.result(b.reshape(x.name, b.values[x.name].shape[: x.fold] + shape), at, x.fold)


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(b: Builder, x: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    ends = joined_rows.bounds(b, x, dim, start, end, step)
    if ends is not None and (part := joined_rows.picked(b, x, *ends)):
        return part
    own = feature_dim(b, x, dim)
    size = b.values[x.name].shape[own]
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
    if x.bdim is not None and dim % b.rank(x) == x.bdim:
        return _of_parts(b, x, [joined_rows.times(b, size) for size in sizes])
    own = feature_dim(b, x, dim)
    out, start = [], 0
    for size in sizes:
        out.append(Ref(slice_feature(b, x.name, own, start, start + size), x.bdim, x.fold))
        start += size
    return out


@rule("split.Tensor")
def _split_evenly(b: Builder, x: Ref, size: Any, dim: int = 0) -> Any:
    count, step = prod(b.values[x.name].shape[: x.fold]), joined_rows.times(b, size)
    if x.bdim is None or dim % b.rank(x) != x.bdim or not step:
        return NotImplemented
    return _of_parts(b, x, [min(step, count - start) for start in range(0, count, step)])


def _of_parts(b: Builder, x: Ref, sizes: Sequence[int | None]) -> Any:
    """What is split along the rows: so many times all rows each."""
    out, start = [], 0
    for size in sizes:
        got = joined_rows.picked(b, x, start, start + size) if size else None
        if got is None or size is None:
            return NotImplemented
        out.append(got)
        start += size
    return out


@rule("cat")
def _cat(b: Builder, tensors: Sequence[Ref], dim: int = 0) -> Any:
    dtype, rank = b.meta_dtype(), len(b.meta.shape)
    at, times, shape = b.shown()
    # torch lets a plain empty [0] join anything
    refs = [b.cast(r, dtype) for r in tensors if not (r.bdim is None and b.values[r.name].shape == (0,))]
    own = dim % rank
    if at is not None and own == at:
        return joined_rows.joined(b, refs)
    if times != 1 or any(r.fold for r in refs):
        fold, lead = b.folded(refs, times)
    else:
        fold, lead = 0, ()
    if fold or at is not None:
        if at is None or any(r.bdim != at for r in refs):
            raise Unsupported("the step joins rows with other rows", line=b.line)
        own += len(lead) - (own > at)
    return b.result(b.emit("cat", [r.name for r in refs], (*lead, *shape), dtype, dim=own), at, fold)


@rule("constant_pad_nd")
def _pad(b: Builder, x: Ref, pad: Sequence[int], value: Any = 0) -> Any:
    name = x.name
    rank = b.rank(x)
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


def _every(b: Builder, x: Ref, source: Ref, own: int, places: range, checked: bool = True) -> Any:
    """x with some places of a feature dimension, a step apart, replaced by source."""

    def result(name: str, at: Ref) -> Ref:
        return b.result(name, at.bdim, at.fold) if checked else Ref(name, at.bdim, at.fold)

    value = b.values[x.name]
    shape = (*value.shape[:own], len(places), *value.shape[own + 1 :])
    src = b.reshape(b.cast(source, value.dtype).name, shape)
    if not b.is_full(x.name, 0):
        if x.bdim != source.bdim:
            return NotImplemented
        if places.step == 1:
            ends = (0, places.start), (places.stop, value.shape[own])
            before, after = ([slice_feature(b, x.name, own, *at)] if at[0] < at[1] else [] for at in ends)
            parts = [*before, src, *after]
            return result(
                src if len(parts) == 1 else b.emit("cat", parts, value.shape, value.dtype, dim=own), x
            )
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


def _beside_each_other(b: Builder, x: Ref, offset: int, *dims: int) -> tuple[str, list[int], range] | None:
    """Matrices of x flat, as its last dimension: the name, the order of dimensions then, and where the
    diagonal is; None of an empty one."""
    first, second = (feature_dim(b, x, dim) for dim in dims)
    shape = b.values[x.name].shape
    order = [*(d for d in range(len(shape)) if d not in (first, second)), first, second]
    n, m = shape[first], shape[second]
    size, start = min(n + min(offset, 0), m - max(offset, 0)), max(offset, 0) + max(-offset, 0) * m
    flat = b.reshape(b.permute(x.name, order), (*(shape[d] for d in order[:-2]), n * m))
    return (flat, order, range(start, start + (size - 1) * (m + 1) + 1, m + 1)) if size > 0 else None


@rule("diagonal", "diagonal_copy")
def _diagonal(b: Builder, x: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    found = _beside_each_other(b, x, offset, dim1, dim2)
    if found is None:
        return NotImplemented
    flat, order, at = found
    name = slice_feature(b, flat, len(order) - 2, at.start, at.stop, at.step)
    return b.result(name, _without(b, x, dim1, dim2), x.fold)


def _without(b: Builder, x: Ref, *dims: int) -> int | None:
    """Where the rows of x are when some of its dimensions have gone."""
    return None if x.bdim is None else x.bdim - sum(dim % b.rank(x) < x.bdim for dim in dims)


@rule("diagonal_scatter")
def _diagonal_scatter(b: Builder, x: Ref, source: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    found = _beside_each_other(b, x, offset, dim1, dim2)
    if found is None or source.bdim != _without(b, x, dim1, dim2) or source.fold != x.fold:
        return NotImplemented
    flat, order, places = found
    done = _every(b, Ref(flat, source.bdim, x.fold), source, len(order) - 2, places, checked=False)
    if done is NotImplemented:
        return done
    back = b.reshape(done.name, [b.values[x.name].shape[d] for d in order])
    return b.result(b.permute(back, [order.index(d) for d in range(len(order))]), x.bdim, x.fold)


@rule("slice_scatter")
def _slice_scatter(
    b: Builder, x: Ref, source: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    ends = joined_rows.bounds(b, x, dim, start, end, step)
    if ends is not None and (done := joined_rows.put(b, x, source, *ends)):
        return done
    if x.bdim is not None and dim % b.rank(x) == x.bdim:
        raise Unsupported("the step writes to rows by number", line=b.line)
    own = feature_dim(b, x, dim)
    size = b.values[x.name].shape[own]
    return _every(b, x, source, own, range(_clip(start, size, 0), _clip(end, size, size), step))


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
    if grad.bdim is None or (index.bdim, index.fold) != (grad.bdim, grad.fold) or scale:
        return NotImplemented
    value = b.values[grad.name]
    shape = (count, value.shape[-1])
    return Ref(b.emit("embed_grad", (grad.name, index.name), shape, value.dtype, "sum", padding=padding))
