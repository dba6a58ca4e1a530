"""Aten calls that contract: reductions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from stepnet.errors import Unsupported

from .builder import Builder, Ref, rule, rules
from .known_parts import slice_feature
from .shape import feature_dim, swapped


def _reduce(
    op: str, b: Builder, x: Ref, dims: Sequence[int] | int | None = None, keepdim: bool = False,
    dtype: Any = None,
) -> Any:  # fmt: skip
    value, rank = b.values[x.name], b.rank(x)
    wanted = [dims] if isinstance(dims, int) else list(dims or range(rank))
    wanted = sorted({d % rank for d in wanted} if rank else set())
    over_rows = x.bdim is not None and x.bdim in wanted
    own = [d - (x.bdim is not None and d > x.bdim) + x.fold for d in wanted if d != x.bdim]
    if over_rows:
        own = list(range(x.fold)) + own
    dtype = b.meta_dtype() if op == "sum" else value.dtype
    if op == "sum" and dtype == "bool":
        return NotImplemented
    name = b.cast(x, dtype).name
    if own:
        kept = [1 if i in own else s for i, s in enumerate(value.shape)]
        name = b.emit(op, (name,), kept, dtype, dims=tuple(own))
    if over_rows:
        if op != "sum":
            raise Unsupported(f"'{op}' over the rows: the step mixes rows", line=b.line)
        name = b.emit("sum_rows", (name,), b.values[name].shape, dtype, "sum")
    *_, shape = b.shown()
    if over_rows:
        return Ref(b.reshape(name, shape))
    name = b.reshape(name, value.shape[: x.fold] + shape)
    return b.result(name, _left(x.bdim, wanted, keepdim), x.fold)


def _left(bdim: int | None, dims: Sequence[int], keepdim: bool) -> int | None:
    """Where the batch is without these dimensions, if they are not kept."""
    return bdim if bdim is None or keepdim else bdim - sum(d < bdim for d in dims)


rules(_reduce, {"sum.dim_IntList": "sum", "sum.default": "sum", "amax": "amax", "amin": "amin"})


@rule("mean.dim", "mean.default")
def _mean(b: Builder, x: Ref, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    out = _reduce("sum", b, x, dims, keepdim)
    if b.values[out.name].kind == "sum":
        raise Unsupported("a mean over the rows: the step mixes rows", line=b.line)
    count = b.values[x.name].size // max(b.values[out.name].size, 1)
    return Ref(b.like(out.name, "div", out.name, count), out.bdim, out.fold)


def _var(
    is_std: bool, b: Builder, x: Ref, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    meta = b.meta
    pair = isinstance(meta, (tuple, list))
    value = b.values[x.name]
    rank = b.rank(x)
    wanted = [dims] if isinstance(dims, int) else list(dims or range(rank))
    if x.bdim is not None and x.bdim in [d % rank for d in wanted]:
        raise Unsupported("a variance over the rows: the step mixes rows", line=b.line)
    b.meta = meta[0] if pair else meta
    own = tuple(sorted(feature_dim(b, x, d) for d in wanted))
    kept = [1 if i in own else s for i, s in enumerate(value.shape)]
    count = value.size // max(prod(kept), 1)
    free = max(count - (1 if correction is None else correction), 0)

    def average(name: str, number: float) -> str:
        total = b.emit("sum", (name,), kept, value.dtype, dims=own)
        return b.like(total, "div", total, number)

    # from the first element: equal numbers then have no variance at all, and huge ones a finite mean
    first = x.name
    for dim in own:
        shape = [1 if i == dim else s for i, s in enumerate(b.values[first].shape)]
        first = b.emit("slice", (first,), shape, value.dtype, dim=dim, start=0, end=1, step=1)
    shifted = b.like(x.name, "sub", x.name, first)
    scale: str | None = None
    mean = first
    if value.dtype == "float32" and not pair and value.size:  # torch squares such numbers as doubles
        scale = _largest(b, shifted, own, kept)
        shifted = b.like(shifted, "div", shifted, scale)
        around = (shifted, average(shifted, count))
    else:
        mean = b.emit("add", (first, average(shifted, count)), kept, value.dtype)
        around = (x.name, mean)
    centred = b.like(x.name, "sub", *around)
    out = average(b.like(centred, "mul", centred, centred), free)
    if is_std:
        out = b.like(out, "sqrt", out)
    for factor in [] if scale is None else [scale] if is_std else [scale, scale]:
        out = b.like(out, "mul", out, factor)
    (*_, shape), at = b.shown(), _left(x.bdim, [d % rank for d in wanted], keepdim)
    shape = value.shape[: x.fold] + shape
    found = b.result(b.reshape(out, shape), at, x.fold)
    return [found, b.result(b.reshape(mean, shape), at, x.fold)] if pair else found


rules(_var, {"std.correction": True, "var.correction": False, "var_mean.correction": False})


def _largest(b: Builder, name: str, dims: tuple[int, ...], kept: list[int]) -> str:
    """The largest magnitude over some dimensions; 1 where all is zero."""
    most = b.emit("amax", (b.like(name, "abs", name),), kept, b.values[name].dtype, dims=dims)
    hit = b.like(most, "eq", most, 0.0, dtype="bool")
    return b.like(most, "where", hit, 1.0, most)


@rule("prod.default", "prod.dim_int")
def _prod(b: Builder, x: Ref, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """The last of running products."""
    x = b.cast(x, b.meta_dtype())
    value = b.values[x.name]
    if dim is None and x.bdim is not None:
        raise Unsupported("'prod' over the rows: the step mixes rows", line=b.line)
    if not value.size or (dim is None and x.fold):
        return NotImplemented
    own = 0 if dim is None else feature_dim(b, x, dim)
    name = b.reshape(x.name, (value.size,)) if dim is None else x.name
    shape = b.values[name].shape
    total = b.emit("cumprod", (name,), shape, value.dtype, dim=own)
    last = slice_feature(b, total, own, shape[own] - 1, shape[own])
    at, _, kept = b.shown()
    return b.result(b.reshape(last, (*value.shape[: x.fold], *kept)), at, x.fold)


def _truths(op: str, b: Builder, x: Ref, dims: Any = None, keepdim: bool = False) -> Any:
    """The largest or the smallest of truth values, counted as 1 and 0."""
    if b.values[x.name].dtype != "bool":
        x = Ref(b.like(x.name, "ne", x.name, 0, dtype="bool"), x.bdim, x.fold)
    found = _reduce(op, b, b.cast(x, "int64"), dims, keepdim)
    return Ref(b.like(found.name, "ne", found.name, 0, dtype="bool"), found.bdim, found.fold)


rules(_truths, {f"any.{dims}": "amax" for dims in ("default", "dim", "dims")})
rules(_truths, {f"all.{dims}": "amin" for dims in ("default", "dim", "dims")})


def _arg(op: str, b: Builder, x: Ref, dim: int | None = None, keepdim: bool = False) -> Any:
    value = b.values[x.name]
    if (dim is None and x.bdim is not None) or not value.shape:
        return NotImplemented
    if value.dtype == "bool":
        x = b.cast(x, "int64")
    own = None if dim is None else feature_dim(b, x, dim)
    shape = tuple(1 if own in (None, i) else size for i, size in enumerate(value.shape))
    name = b.emit(op, (x.name,), shape, b.meta_dtype(), dim=own)
    at, _, shape = b.shown()
    return b.result(b.reshape(name, value.shape[: x.fold] + shape), at, x.fold)


rules(_arg, {"argmax": "argmax", "argmin": "argmin"})


def _times(b: Builder, x: str, y: str) -> str:
    shape = (*b.values[x].shape[:-1], b.values[y].shape[-1])
    return b.emit("matmul", (x, y), shape, b.meta_dtype())


@rule("mm")
def _mm(b: Builder, x: Ref, y: Ref) -> Any:
    xv, yv, dtype = b.values[x.name], b.values[y.name], b.meta_dtype()
    if x.bdim in (None, 0) and y.bdim is None:
        return b.result(_times(b, x.name, y.name), x.bdim, x.fold)
    if x.bdim is None and y.bdim == 1:
        return b.result(_times(b, y.name, swapped(b, x.name)), 1, y.fold)
    same = x.fold == y.fold and xv.shape[: x.fold] == yv.shape[: y.fold]
    if x.bdim == 1 and y.bdim == 0 and same:
        shape = (xv.shape[-1], yv.shape[-1])
        return Ref(b.emit("matmul_tn", (x.name, y.name), shape, dtype, "sum", batch=0))
    raise Unsupported("a matmul of rows with rows: the step mixes rows", line=b.line)


@rule("addmm")
def _addmm(b: Builder, bias: Ref, x: Ref, y: Ref) -> Any:
    return b.pointwise("add", [_mm(b, x, y), bias])


@rule("bmm")
def _bmm(b: Builder, x: Ref, y: Ref) -> Any:
    xv, yv = b.values[x.name], b.values[y.name]
    if x.fold or y.fold:
        # [B*k, n, m]: as many products for each row
        if x.bdim != 0 or y.bdim != 0 or x.fold != y.fold:
            return NotImplemented
        return b.result(_times(b, x.name, y.name), 0, x.fold)
    pair = (x.bdim, y.bdim)
    if pair in ((None, None), (0, 0)):
        return b.result(_times(b, x.name, y.name), x.bdim)
    if pair == (1, None):  # [h, B, m] x [h, m, p]
        heads, m = xv.shape
        out = _times(b, b.reshape(x.name, (heads, 1, m)), y.name)
        return b.result(b.reshape(out, (heads, yv.shape[2])), 1)
    if pair == (None, 2):  # [h, n, m] x [h, m, B]
        heads, m = yv.shape
        out = _times(b, b.reshape(y.name, (heads, 1, m)), swapped(b, x.name))
        return b.result(b.reshape(out, (heads, xv.shape[1])), 2)
    if pair == (2, 1):  # [h, n, B] x [h, B, p]: a gradient
        shape = (xv.shape[0], xv.shape[1], yv.shape[1])
        return Ref(b.emit("matmul_tn", (x.name, y.name), shape, b.meta_dtype(), "sum", batch=1))
    raise Unsupported("a batched matmul of rows with rows: the step mixes rows", line=b.line)
