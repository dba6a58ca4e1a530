"""Aten calls that pick, put, sort and add up along a feature dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.ir.agreement import INTEGERS
from stepnet.ir.op_rules import broadcast
from stepnet.ir.ops import FLOATS, SCATTERS

from .builder import Builder, Ref, RowNumbers, row_numbers, rule, rules
from .known_parts import slice_feature
from .shape import beside, feature_dim


def _together(b: Builder, *refs: Ref) -> bool:
    """Whether values of rows, or of none, stand with their rows at one place."""
    return len({(r.bdim, r.fold) for r in refs}) == 1


def _index(b: Builder, index: Ref) -> str:
    return b.cast(index, "int64").name


def gathered(b: Builder, name: str, index: str, dim: int) -> str:
    """Elements of a row value along one of its dimensions."""
    return b.emit("gather", (name, index), b.values[index].shape, b.values[name].dtype, dim=dim)


@rule("gather")
def _gather(b: Builder, x: Ref, dim: int, index: Ref, sparse_grad: bool = False) -> Any:
    if not b.values[x.name].shape or not _together(b, x, index):
        return NotImplemented
    return b.result(gathered(b, x.name, _index(b, index), feature_dim(b, x, dim)), x.bdim, x.fold)


def _put(op: str, b: Builder, x: Ref, dim: int, index: Ref, source: Any) -> Any:
    value = b.values[x.name]
    if not value.shape or not _together(b, x, index) or (op == "scatter_add" and value.dtype == "bool"):
        return NotImplemented
    own, places = feature_dim(b, x, dim), _index(b, index)
    if isinstance(source, Ref):
        if not _together(b, x, source):
            return NotImplemented
        source = _read_of(b, source, x, places)
    return b.result(_scattered(b, op, x.name, places, source, own), x.bdim, x.fold)


def _read_of(b: Builder, source: Ref, x: Ref, places: str) -> str:
    """The part of a source that goes to places of x."""
    name = b.cast(source, b.values[x.name].dtype).name
    for d, size in enumerate(b.values[places].shape):
        name = slice_feature(b, name, d, 0, size)
    return name


def _scattered(b: Builder, op: str, name: str, places: str, source: Any, dim: int) -> str:
    """A value with others put into it, or one number."""
    value, shape = b.values[name], b.values[places].shape
    if not isinstance(source, str):
        source = b.full(source, shape, value.dtype, beside(value.kind))
    return b.emit(op, (name, places, source), value.shape, value.dtype, dim=dim)


rules(_put, {"scatter.src": "scatter", "scatter.value": "scatter", "scatter_add": "scatter_add"})


@rule("scatter_reduce.two")
def _scatter_reduce(
    b: Builder, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, *, include_self: bool = True
) -> Any:
    value = b.values[x.name]
    if not value.shape or not _is_reduced(value.dtype, reduce) or not _together(b, x, index, source):
        return NotImplemented
    own, places = feature_dim(b, x, dim), _index(b, index)
    name = _read_of(b, source, x, places)
    return b.result(_reduced(b, x.name, places, name, own, reduce, include_self), x.bdim, x.fold)


@rule("index_reduce")
def _index_reduce(
    b: Builder, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, *, include_self: bool = True
) -> Any:
    value = b.values[x.name]
    if not value.shape or not _is_reduced(value.dtype, reduce):
        return NotImplemented
    if index.bdim is not None or not _together(b, x, source):
        return NotImplemented
    own = feature_dim(b, x, dim)
    places = _at_all_others(b, _index(b, index), x.name, own)
    name = b.cast(source, value.dtype).name
    return b.result(_reduced(b, x.name, places, name, own, reduce, include_self), x.bdim, x.fold)


def _is_reduced(dtype: str, reduce: str) -> bool:
    """Whether numbers are made one so by ops of the list: a quotient of whole ones is torch's."""
    return dtype in FLOATS or (dtype in INTEGERS and reduce != "mean")


def _reduced(
    b: Builder, name: str, places: str, source: str, dim: int, reduce: str, include_self: bool
) -> str:
    """What is at some places of a value, made one with all that goes there; without the value itself where
    it is not to be included."""
    value = b.values[name]
    mean = reduce == "mean"
    op = "scatter_add" if mean else next(op for op, how in SCATTERS.items() if how == reduce)
    if not include_self:
        name = _scattered(b, "scatter", name, places, _nothing(reduce, value.dtype), dim)
    total = _scattered(b, op, name, places, source, dim)
    if not mean:
        return total
    count = b.full(1, value.shape, value.dtype, beside(value.kind))
    if not include_self:
        count = _scattered(b, "scatter", count, places, 0, dim)
    count = _scattered(b, "scatter_add", count, places, 1, dim)
    return b.like(total, "div", total, count)


def _nothing(reduce: str, dtype: str) -> float | int:
    """What leaves all else as it is."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    most = reduce == "amin"
    if dtype in INTEGERS:
        limits = torch.iinfo(dtype_of(dtype))
        return limits.max if most else limits.min
    return float("inf") if most else -float("inf")


# -- by tensors of indices ----------------------------------------------------------------------------------


def _wrapped(b: Builder, name: str, size: int) -> str:
    """Indices that count from the end count from the front."""
    negative = b.like(name, "lt", name, 0, dtype="bool")
    return b.like(name, "where", negative, b.like(name, "add", name, size), name)


def _places(
    b: Builder, x: Ref, indices: Sequence[Any]
) -> tuple[str, tuple[int, ...], tuple[int, ...], str | None] | None:
    """What `x[indices]` picks by: x with the dimensions picked from at their place merged into one, what
    stands before and after it; the index into it, of the shape that it has for one row, None for indices that
    do not broadcast. None for what is none of ours."""
    if x.bdim not in (None, 0) or not indices:
        return None
    value = b.values[x.name]
    rows = isinstance(indices[0], RowNumbers)
    lead = int(x.bdim is not None)
    taken = [i for i, index in enumerate(indices) if isinstance(index, Ref)]
    if not taken or (lead and 0 in taken) or (rows and (x.bdim is None or x.fold)):
        return None
    if rows and (indices[0].bdim or (indices[0].times > 1 and not _several(b, indices))):
        return None
    if taken != list(range(taken[0], taken[0] + len(taken))) or (rows and taken[0] != 1):
        return None
    dims = [at - lead + x.fold for at in taken]
    several = _several(b, indices)
    refs = [Ref(r.name, 0) if several and r.fold == several else r for r in map(indices.__getitem__, taken)]
    if any(b.values[r.name].dtype not in INTEGERS or r.fold or r.bdim not in (None, 0) for r in refs):
        return None
    if not rows and any(r.bdim is not None for r in refs):
        return None  # the rows of x with the rows of an index: all pairs
    names = []
    for ref, dim in zip(refs, dims, strict=True):
        name = _index(b, ref)
        if rows and ref.bdim is None and b.values[name].shape[:1] == (1,):  # [1, ..] beside the row numbers
            name = b.reshape(name, b.values[name].shape[1:])
        names.append(_wrapped(b, name, value.shape[dim]))
    sizes = value.shape[dims[0] : dims[-1] + 1]
    before, after = value.shape[: dims[0]], value.shape[dims[-1] + 1 :]
    return b.reshape(x.name, (*before, prod(sizes), *after)), before, after, _one_index(b, names, sizes)


def _several(b: Builder, indices: Sequence[Any]) -> int:
    """How many leading dimensions of indices, and of what they pick, are merged with the rows: beside
    numbers of rows that stand several to a row."""
    numbers = row_numbers(indices)
    if numbers is None or numbers.times == 1:
        return 0
    folded = [ref for ref in indices if isinstance(ref, Ref) and ref.bdim == 0 and type(ref.fold) is int]
    fits = [r.fold for r in folded if prod(b.values[r.name].shape[: r.fold]) == numbers.times]
    return fits[0] if fits else 0


def _one_index(b: Builder, names: list[str], sizes: Sequence[int]) -> str | None:
    """Indices of several dimensions as one into them merged."""
    total = names[0]
    for name, size in zip(names[1:], sizes[1:], strict=True):
        shape = broadcast([b.values[total].shape, b.values[name].shape])
        if shape is None:
            return None
        total = b.emit("add", (b.like(total, "mul", total, size), name), shape, "int64")
    return total


def _at_all_others(b: Builder, index: str, name: str, dim: int) -> str:
    """An index into one dimension of a value with all its others, its own merged into one."""
    count, shape, kind = b.values[index].size, b.values[name].shape, b.values[name].kind
    before, after = shape[:dim], shape[dim + 1 :]
    thin = b.reshape(index, (*(1 for _ in before), count, *(1 for _ in after)))
    return b.emit("expand", (thin,), (*before, count, *after), "int64", beside(kind))


@dataclass(frozen=True)
class _Picked:
    """What is picked from, its rows first, by what, and where the rows of what is picked stand."""

    x: Ref
    indices: Sequence[Any]
    order: Sequence[int] | None = None  # of the dimensions of a row; None: as they were
    at: Callable[[int], int] = lambda dims: 0  # of how many dimensions the index has

    def back(self, b: Builder, name: str) -> str:
        """A value like `x` with its dimensions where they were."""
        if self.order is None:
            return name
        return b.permute(name, [*map(self.order.index, range(len(self.order)))])


def _rows_first(b: Builder, x: Ref, indices: Sequence[Any]) -> _Picked:
    """`x[indices]` with the rows of x first and what is picked from side by side, where that can be said."""
    taken, as_it_is = [i for i, index in enumerate(indices) if index is not None], _Picked(x, indices)
    if x.bdim is None or x.fold or not taken:
        return as_it_is
    whole, place = b.rank(x), x.bdim
    full = [*indices, *[None] * (whole - len(indices))]
    numbered, together = isinstance(full[place], RowNumbers), taken[-1] - taken[0] == len(taken) - 1
    if (full[place] is not None and not (numbered and together)) or (together and place == 0):
        return as_it_is
    others = [d for d in range(whole) if d != place]
    if together:
        order, ahead = others, place < taken[0]

        def at(dims: int) -> int:
            if numbered:
                return taken[0]
            return place if ahead else place - len(taken) + dims
    else:  # dimensions of the index come first
        picked = [d for d in others if full[d] is not None]
        left = [d for d in others if full[d] is None]
        order = picked + left

        def at(dims: int) -> int:
            return dims + sum(d < place for d in left)

    own = [*map(others.index, order)]
    return _Picked(Ref(b.permute(x.name, own), 0), [full[place], *map(full.__getitem__, order)], own, at)


@rule("index.Tensor")
def _index_tensor(b: Builder, x: Ref, indices: Sequence[Any]) -> Any:
    moved = _rows_first(b, x, indices)
    x, indices = moved.x, moved.indices
    found = _places(b, x, indices)
    if found is None:
        return _refused(b, indices)
    flat, before, after, index = found
    if index is None:
        return NotImplemented
    picked = gathered(b, flat, _at_all_others(b, index, flat, len(before)), len(before))
    whole = b.reshape(picked, (*before, *b.values[index].shape, *after))
    place = x.bdim if moved.order is None else moved.at(len(b.values[index].shape))
    return b.result(whole, place, x.fold or _several(b, indices))


@rule("index_put")
def _index_put(
    b: Builder, x: Ref, indices: Sequence[Any], source: Ref, accumulate: bool = False, unsafe: bool = False
) -> Any:
    if len(indices) == 1 and not accumulate and isinstance(indices[0], Ref):
        mask = b.values[indices[0].name]
        if mask.dtype == "bool" and _together(b, x, indices[0]):
            return _masked(b, x, indices[0], source)
    moved, rows_at = _rows_first(b, x, indices), x.bdim
    x, indices = moved.x, moved.indices
    found, fold = _places(b, x, indices), x.fold or _several(b, indices)
    if found is None:
        return _refused(b, indices)
    flat, before, after, index = found
    if index is None or (accumulate and b.values[flat].dtype == "bool"):
        return NotImplemented
    if moved.order is not None and not source.fold:
        dims = len(b.values[index].shape)
        name = b.aligned(source, len(before) + dims + len(after) + 1, moved.at(dims))
        source = Ref(name, None if source.bdim is None else 0)
    if source.bdim not in (None, 0) or source.fold != (fold if source.bdim == 0 else 0):
        return _refused(b, indices)
    value, spread = b.values[x.name], _at_all_others(b, index, flat, len(before))
    put = b.cast(source, value.dtype).name
    own = b.values[put].shape
    whole = (*before, *b.values[index].shape, *after)
    if source.bdim is None and x.bdim is not None and moved.order is None and len(own) > len(whole) - x.fold:
        put = b.reshape(put, own[1:])
    if broadcast([b.values[put].shape, whole]) != whole:
        return NotImplemented
    put = b.emit("expand", (put,), whole, value.dtype, b.kind(flat, put))
    put = b.reshape(put, b.values[spread].shape)
    op = "scatter_add" if accumulate else "scatter"
    done = b.emit(op, (flat, spread, put), b.values[flat].shape, value.dtype, dim=len(before))
    return b.result(moved.back(b, b.reshape(done, value.shape)), rows_at, x.fold)


def _masked(b: Builder, x: Ref, mask: Ref, source: Ref) -> Any:
    """One number where a mask says so."""
    value, chosen, put = b.values[x.name], b.values[mask.name], b.cast(source, b.values[x.name].dtype)
    number = b.values[put.name]
    if put.bdim is not None or number.size != 1:
        return NotImplemented  # as many numbers as the mask has places
    wide = (*chosen.shape, *(1 for _ in value.shape[len(chosen.shape) :]))
    told = b.reshape(mask.name, wide)
    return b.result(b.like(x.name, "where", told, b.reshape(put.name, ()), x.name), x.bdim, x.fold)


def _refused(b: Builder, indices: Sequence[Any]) -> Any:
    if row_numbers(indices) is not None:
        raise Unsupported("the step numbers its rows (arange over the batch)", line=b.line)
    return NotImplemented


# -- totals, orders -----------------------------------------------------------------------------------------


def _running(op: str, b: Builder, x: Ref, dim: int, *, dtype: Any = None) -> Any:
    x = b.cast(x, b.meta_dtype())
    if not b.values[x.name].shape and x.bdim is None:
        return x if op != "logcumsumexp" else NotImplemented
    return b.result(b.like(x.name, op, x.name, dim=feature_dim(b, x, dim)), x.bdim, x.fold)


rules(_running, {name: name for name in ("cumsum", "cumprod", "logcumsumexp")})


def _picked(op: str, b: Builder, x: Ref, dim: int, size: int | None = None, **how: Any) -> Any:
    """The elements that an op finds the places of, and these places."""
    value = b.values[x.name]
    if not value.shape:
        return NotImplemented
    own = feature_dim(b, x, dim)
    shape = value.shape if size is None else (*value.shape[:own], size, *value.shape[own + 1 :])
    index = b.emit(op, (x.name,), shape, "int64", dim=own, **how)
    return [Ref(gathered(b, x.name, index, own), x.bdim, x.fold), Ref(index, x.bdim, x.fold)]


rules(_picked, {"cummax": "cumargmax", "cummin": "cumargmin"})


@rule("sort.default")
def _sort(b: Builder, x: Ref, dim: int = -1, descending: bool = False) -> Any:
    return _picked("argsort", b, x, dim, descending=descending, stable=False)


@rule("sort.stable")
def _sort_stable(
    b: Builder, x: Ref, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> Any:
    return _picked("argsort", b, x, dim, descending=descending, stable=bool(stable))


@rule("topk")
def _topk(b: Builder, x: Ref, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    return _picked("topk", b, x, dim, int(k), largest=largest, sorted=ordered)


@rule("kthvalue")
def _kthvalue(b: Builder, x: Ref, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    found = _ordered(b, x, dim)
    if found is None:
        return NotImplemented
    index, own = found
    return _at_place(b, x, slice_feature(b, index, own, k - 1, k), own, keepdim)


@rule("median.dim")
def _median(b: Builder, x: Ref, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower of two; the first NaN, where there is one."""
    found = _ordered(b, x, dim)
    if found is None:
        return NotImplemented
    index, own = found
    size = b.values[x.name].shape[own]
    middle = slice_feature(b, index, own, (size - 1) // 2, (size - 1) // 2 + 1)
    shape, dtype = b.values[middle].shape, b.values[x.name].dtype
    if dtype in FLOATS:  # NaN stands last
        last = gathered(b, x.name, slice_feature(b, index, own, size - 1, size), own)
        first = b.emit("argmax", (x.name,), shape, "int64", dim=own)
        middle = b.emit("where", (b.emit("isnan", (last,), shape, "bool"), first, middle), shape, "int64")
    return _at_place(b, x, middle, own, keepdim)


def _ordered(b: Builder, x: Ref, dim: int) -> tuple[str, int] | None:
    """The places of the elements in their order along a dimension, and which that is; None if it is empty."""
    value = b.values[x.name]
    own = feature_dim(b, x, dim) if value.shape else 0
    if not value.shape or not value.shape[own]:
        return None
    return b.like(x.name, "argsort", x.name, dtype="int64", dim=own, descending=False, stable=True), own


def _extreme(op: str, b: Builder, x: Ref, dim: int, keepdim: bool = False) -> Any:
    """The largest or the smallest, and where the first of them is."""
    value = b.values[x.name]
    if not value.shape:
        return NotImplemented
    own = feature_dim(b, x, dim)
    shape = (*value.shape[:own], 1, *value.shape[own + 1 :])
    counted = b.cast(x, "int64") if value.dtype == "bool" else x
    index = b.emit(f"arg{op}", (counted.name,), shape, "int64", dim=own)
    return _at_place(b, x, index, own, keepdim)


def _at_place(b: Builder, x: Ref, index: str, own: int, keepdim: bool) -> Any:
    """The element at one place of a dimension, and its place."""
    meta, shape = b.meta, b.values[index].shape
    most = gathered(b, x.name, index, own)
    small = shape if keepdim else (*shape[:own], *shape[own + 1 :])
    bdim = x.bdim
    if bdim is not None and not keepdim:
        bdim -= own - x.fold < bdim
    out = []
    for b.meta, name in zip(meta, (most, index), strict=True):
        out.append(b.result(b.reshape(name, small), bdim, x.fold))
    return out


rules(_extreme, {"max.dim": "max", "min.dim": "min"})


@rule("index_select")
def _index_select(b: Builder, x: Ref, dim: int, index: Ref) -> Any:
    if index.bdim is not None or not b.values[x.name].shape or len(b.values[index.name].shape) != 1:
        return NotImplemented
    own = feature_dim(b, x, dim)
    places = _at_all_others(b, _index(b, index), x.name, own)
    return b.result(gathered(b, x.name, places, own), x.bdim, x.fold)


@rule("unfold")
def _unfold(b: Builder, x: Ref, dim: int, size: int, step: int) -> Any:
    """Windows side by side: what each of them shows, picked."""
    shape = b.values[x.name].shape
    if not shape or not size:
        return NotImplemented
    own = feature_dim(b, x, dim)
    count = (shape[own] - size) // step + 1
    first = b.emit("iota", (), (count,), "int64", "shared", start=0, step=step)
    inner = b.emit("iota", (), (size,), "int64", "shared", start=0, step=1)
    index = b.emit("add", (b.reshape(first, (count, 1)), inner), (count, size), "int64")
    places = _at_all_others(b, index, x.name, own)
    wide = b.reshape(gathered(b, x.name, places, own), (*shape[:own], count, size, *shape[own + 1 :]))
    order = [d for d in range(len(shape) + 1) if d != own + 1]
    return b.result(b.permute(wide, [*order, own + 1]), x.bdim, x.fold)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    b: Builder, edges: Ref, x: Ref, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Ref | None = None,
) -> Any:  # fmt: skip
    if sorter is not None or not isinstance(x, Ref):
        return NotImplemented
    return _counted(b, edges, x, right or side == "right")


@rule("bucketize.Tensor")
def _bucketize(b: Builder, x: Ref, edges: Ref, *, out_int32: bool = False, right: bool = False) -> Any:
    return _counted(b, edges, x, right)


def _counted(b: Builder, edges: Ref, x: Ref, right: bool) -> Any:
    """How many edges are not above each number (`right`), or not as large."""
    ev, xv = b.values[edges.name], b.values[x.name]
    if x.bdim not in (None, 0) or edges.bdim not in (None, 0) or ev.dtype != xv.dtype:
        return NotImplemented
    if edges.bdim is not None and (not _together(b, edges, x) or ev.shape[:-1] != xv.shape[:-1]):
        return NotImplemented
    if edges.bdim is None and len(ev.shape) != 1:
        return NotImplemented
    line = edges.name if edges.bdim is None else b.reshape(edges.name, (*ev.shape[:-1], 1, ev.shape[-1]))
    lone = b.reshape(x.name, (*xv.shape, 1))
    shape = (*xv.shape, ev.shape[-1])
    above = b.emit("gt" if right else "ge", (line, lone), shape, "bool")
    below = b.emit("cast", (b.emit("not", (above,), shape, "bool"),), shape, "int64")
    total = b.emit("sum", (below,), (*xv.shape, 1), "int64", dims=(len(xv.shape),))
    return b.cast(b.result(b.reshape(total, xv.shape), x.bdim, x.fold), b.meta_dtype())
