"""Aten calls that put entries into tensors, sort them, or run over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .aten import AtenNet, rule
from .aten_shape import first_of
from .emit import END
from .graph import Value

_HOW = {
    "sum": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "add": "add",
    "multiply": "mul",
}


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add")
def _scatter(b: AtenNet, x: Any, dim: int, index: Any, source: Any, *, reduce: str | None = None) -> Any:
    how = "add" if b.name == "scatter_add" else _HOW[reduce] if reduce else "none"
    entries = _entries(b, index, source)
    if entries is None:
        return NotImplemented
    return b.emit.call("scatter", b.out(x, b.dtype()), b.out(index), entries, axis=b.axis(x, dim), how=how)


@rule("scatter_reduce")
def _scatter_reduce(
    b: AtenNet, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    entries, places, value = _entries(b, index, source), b.out(index), b.out(x, b.dtype())
    whole = not b.dtype().is_floating_point
    if entries is None or (whole and (reduce == "mean" or not include_self or b.dtype() == torch.bool)):
        return NotImplemented

    def put(into: Value, new: Value, how: str) -> Value:
        return b.emit.call("scatter", into, places, new, axis=b.axis(x, dim), how=how)

    def filled(number: float) -> Value:
        return b.emit.broadcast(b.emit.number(number, b.dtype()), b.emit.shape(places))

    if not include_self:  # what changes nothing in the places of what is written
        first = {"prod": 1.0, "amax": -math.inf, "amin": math.inf}.get(reduce, 0.0)
        value = put(value, filled(first), "none")
    out = put(value, entries, _HOW[reduce])
    if reduce != "mean":
        return out
    one = b.emit.broadcast(b.emit.number(1.0, b.dtype()), b.emit.shape(value))
    one = one if include_self else put(one, filled(0.0), "none")
    return b.emit.call("div", out, put(one, filled(1.0), "add"))


def _entries(b: AtenNet, index: Any, source: Any) -> Value | None:
    """What is put into the places of an index, the first of more; None: it is of ragged sequences."""
    if not hasattr(source, "meta"):
        return b.emit.broadcast(b.emit.number(source, b.dtype()), b.emit.shape(b.out(index)))
    return first_of(b, b.out(source, b.dtype()), source, index)


@rule("searchsorted", "bucketize")
def _search(
    b: AtenNet, table: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    """How many come before each: all are compared."""
    table, x = (x, table) if b.name == "bucketize" else (table, x)
    if sorter is not None or b.is_ragged(table):
        return NotImplemented
    dtype = torch.promote_types(b.dtype(table), b.dtype(x)) if hasattr(x, "meta") else b.dtype(table)
    rank = len(b.shape(x)) + b.is_ragged(x) if hasattr(x, "meta") else 0
    row = b.out(table, dtype)
    if len(b.shape(table)) > 1:
        row = b.emit.unsqueeze(row, rank - 1)
    each = b.emit.unsqueeze(b.out(x, dtype), rank)
    behind = b.emit.call("gt" if right or side == "right" else "ge", row, each)
    before = b.emit.cast(b.emit.call("not", behind), torch.int64)
    return b.emit.cast(b.emit.call("sum", before, b.emit.ints([rank]), keepdim=False), b.dtype())


@rule("copy")
def _copy(b: AtenNet, _: Any, source: Any, non_blocking: bool = False) -> Value:
    """In the place of all entries."""
    value = b.broadcast(source, b.shape()) if list(b.shape(source)) != b.shape() else b.out(source)
    return b.emit.cast(value, b.dtype())


@rule("slice_scatter")
def _slice_scatter(
    b: AtenNet, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    first, last = 0 if start is None else start, END if end is None else end
    size = b.shape(x)[dim]
    if not isinstance(first, int) or not isinstance(last, int) or (step != 1 and not isinstance(size, int)):
        return NotImplemented
    if isinstance(size, int):
        first, last, step = slice(first, last, step).indices(size)
    if step != 1:
        places = torch.arange(size)
        places[first:last:step] = torch.arange(size, size + len(range(first, last, step)))
        both = b.emit.concat([b.out(x), b.out(source, b.dtype())], b.axis(x, dim))
        return b.emit.take(both, b.emit.tensor(places), b.axis(x, dim))
    return _put_part(b, x, b.out(source, b.dtype()), b.axis(x, dim), first, last)


@rule("select_scatter")
def _select_scatter(b: AtenNet, x: Any, source: Any, dim: int, index: Any) -> Any:
    axis, size = b.axis(x, dim), b.shape(x)[dim]
    if not isinstance(index, int):
        return NotImplemented
    first = index % size if isinstance(size, int) else index
    return _put_part(b, x, b.emit.unsqueeze(b.out(source, b.dtype()), axis), axis, first, first + 1 or END)


def _put_part(b: AtenNet, x: Any, part: Value, axis: int, first: int, last: int) -> Value:
    """A tensor with a part of an axis in place of its own."""
    whole = b.out(x)
    parts = [part]
    if first != 0:
        parts = [b.emit.slice(whole, axis, 0, first), *parts]
    if last < 2**62 and last != b.shape(x)[axis - b.is_ragged(x)]:
        parts = [*parts, b.emit.slice(whole, axis, last)]
    return b.emit.concat(parts, axis)


@rule("index.Tensor")
def _index(b: AtenNet, x: Any, indices: Sequence[Any]) -> Any:
    dims = _dims(indices)
    tables = [indices[d] for d in dims]
    if any(b.dtype(t) == torch.bool for t in tables):  # as many as there are true ones
        if dims != [0] or b.is_ragged(x):
            return NotImplemented
        return b.emit.call("gather_nd", b.out(x), _nonzero(b, tables[0]))
    if len(dims) == 1:
        return b.emit.take(b.out(x), b.out(tables[0], torch.int64), b.axis(x, dims[0]))
    if b.is_ragged(x):
        return NotImplemented
    rest = [d for d in range(len(b.shape(x))) if d not in dims]
    out = b.emit.call("gather_nd", b.emit.transpose(b.out(x), dims + rest), _places(b, tables))
    lead, front = len(_joint([b.shape(t) for t in tables])), _front(dims)
    order = [*range(lead, lead + front), *range(lead), *range(lead + front, lead + len(rest))]
    return b.emit.transpose(out, order)


@rule("masked_select")
def _masked_select(b: AtenNet, x: Any, mask: Any) -> Any:
    if b.is_ragged(x) or list(map(str, b.shape(x))) != list(map(str, b.shape(mask))):
        return NotImplemented
    return b.emit.call("gather_nd", b.out(x), _nonzero(b, mask))


@rule("nonzero")
def _nonzero(b: AtenNet, x: Any) -> Any:
    """Where the entries are that are not zero: [entries, dimensions]."""
    if b.is_ragged(x) or not b.shape(x):
        return NotImplemented
    return b.emit.transpose(b.emit.call("nonzero", b.out(x)), [1, 0])


def _dims(indices: Sequence[Any]) -> list[int]:
    return [d for d, index in enumerate(indices) if index is not None]


def _front(dims: Sequence[int]) -> int:
    """How many dimensions torch has before those of the tables: none if they do not stand side by side."""
    return dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0


def _places(b: AtenNet, tables: Sequence[Any]) -> Value:
    """Indices beside one another, in a last axis of their own."""
    lead = _joint([b.shape(t) for t in tables])
    shape = b.sizes(lead)
    columns = [b.emit.unsqueeze(b.emit.broadcast(b.out(t, torch.int64), shape), len(lead)) for t in tables]
    return b.emit.concat(columns, len(lead))


@rule("index_put")
def _index_put(b: AtenNet, x: Any, indices: Sequence[Any], source: Any, accumulate: bool = False) -> Any:
    dims = _dims(indices)
    if b.is_ragged(x) or (accumulate and (len(dims) > 1 or b.dtype(indices[dims[0]]) == torch.bool)):
        return NotImplemented
    tables, rank = [indices[d] for d in dims], len(b.shape(x))
    lone = math.prod(size if isinstance(size, int) else 2 for size in b.shape(source)) == 1
    if any(b.dtype(t) == torch.bool for t in tables):
        return _put_where(b, x, tables[0], source) if lone and indices[0] is tables[0] else NotImplemented
    order = dims + [d for d in range(rank) if d not in dims]
    lead, front = _joint([b.shape(t) for t in tables]), _front(dims)
    rest = [b.shape(x)[d] for d in order[len(dims) :]]
    entries = b.out(source, b.dtype())
    if lone:
        entries = b.emit.reshape_to(entries, b.emit.ints([]))
    entries = b.emit.broadcast(entries, b.sizes([*rest[:front], *lead, *rest[front:]]))
    if accumulate:
        places = b.emit.reshape(b.out(tables[0], torch.int64), [-1, *[1] * (rank - 1 - dims[0])])
        places = b.emit.broadcast(places, b.emit.shape(entries))
        if len(lead) > 1:
            return NotImplemented
        return b.emit.call("scatter", b.out(x), places, entries, axis=dims[0], how="add")
    middle = range(front, front + len(lead))
    around = [d for d in range(len(lead) + len(rest)) if d not in middle]
    entries = b.emit.transpose(entries, [*middle, *around])
    out = b.emit.call("scatter_nd", b.emit.transpose(b.out(x), order), _places(b, tables), entries)
    return b.emit.transpose(out, [order.index(d) for d in range(rank)])


def _put_where(b: AtenNet, x: Any, mask: Any, source: Any) -> Value:
    """One number where a mask over the first dimensions is true."""
    more = range(len(b.shape(mask)), len(b.shape(x)))
    condition = b.emit.unsqueeze(b.out(mask), *more) if more else b.out(mask)
    number = b.emit.reshape_to(b.out(source, b.dtype()), b.emit.ints([]))
    return b.emit.call("where", condition, number, b.out(x))


def _joint(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that some broadcast to."""
    joint: list[Any] = [1] * max(map(len, shapes))
    for shape in shapes:
        for k, size in enumerate(reversed(shape), 1):
            joint[-k] = size if isinstance(joint[-k], int) and joint[-k] == 1 else joint[-k]
    return joint


@rule("sort.default")
def _sort(b: AtenNet, x: Any, dim: int = -1, descending: bool = False) -> Any:
    if not b.shape(x) or b.dtype(x) == torch.bool or b.is_ragged(x):
        return NotImplemented
    return b.emit.top(b.out(x), b.count(b.shape(x)[dim]), b.axis(x, dim), "max" if descending else "min")


@rule("sort.stable")
def _stable(b: AtenNet, x: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(b, x, dim, descending)  # where entries are equal, the first comes first


@rule("argsort.default")
def _argsort(b: AtenNet, x: Any, dim: int = -1, descending: bool = False) -> Any:
    made = _sort(b, x, dim, descending)
    return made if made is NotImplemented else made[1]


@rule("median.dim")
def _median(b: AtenNet, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; nan, where there is one."""
    made = _sort(b, x, dim)
    if made is NotImplemented:
        return made
    axis, middle = b.axis(x, dim), b.size((b.shape(x)[dim] - 1) // 2)
    value, place = (b.emit.take(part, middle, axis) for part in made)
    if b.dtype(x).is_floating_point:
        nans = b.emit.cast(b.emit.call("isnan", b.out(x)), b.dtype(x))
        some = b.emit.call(
            "gt", b.emit.call("amax", nans, b.emit.ints([axis]), keepdim=True), b.emit.number(0.0, b.dtype(x))
        )
        value = b.emit.call("where", some, b.emit.number(math.nan, b.dtype(x)), value)
    return (value, place) if keepdim else (b.emit.squeeze(value, axis), b.emit.squeeze(place, axis))


@rule("kthvalue")
def _kth(b: AtenNet, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    made = _sort(b, x, dim)
    if made is NotImplemented:
        return made
    axis = b.axis(x, dim)
    parts = [b.emit.take(part, b.emit.ints([k - 1]), axis) for part in made]
    return parts if keepdim else [b.emit.squeeze(part, axis) for part in parts]


def _each_before(b: AtenNet, value: Value, x: Any, dim: int) -> tuple[Value, Value, list[int]]:
    """An axis twice, moved to the end: for each entry the whole axis; where that is not after it; and the
    order of the dimensions then."""
    rank = len(b.shape(x)) + b.is_ragged(x)
    order = [d for d in range(rank) if d != b.axis(x, dim)] + [b.axis(x, dim)]
    rows = b.emit.unsqueeze(b.emit.transpose(value, order), rank - 1)
    places = b.emit.range(b.number(b.shape(x)[dim]))
    before = b.emit.call("le", b.emit.unsqueeze(places, 0), b.emit.unsqueeze(places, 1))
    return rows, before, order


@rule("cummax", "cummin")
def _running_end(b: AtenNet, x: Any, dim: int) -> Any:
    """By a matrix of all that come before: the last one that is as large, or as small."""
    dtype = b.dtype(x)
    if not b.shape(x) or not dtype.is_floating_point:
        return NotImplemented
    most, kind = b.name == "cummax", "amax" if b.name == "cummax" else "amin"
    rows, before, order = _each_before(b, b.out(x), x, dim)
    rank, back = len(order), [order.index(d) for d in range(len(order))]
    last = b.emit.ints([rank])
    kept = b.emit.call("where", before, rows, b.emit.number(-math.inf if most else math.inf, dtype))
    end = b.emit.call(kind, kept, last, keepdim=True)
    found = b.emit.call("and", before, b.emit.call("eq", rows, end))
    place = b.emit.call("where", found, b.emit.range(b.number(b.shape(x)[dim])), b.emit.scalar(-1))
    place = b.emit.call("amax", place, last, keepdim=False)
    return [b.emit.transpose(part, back) for part in (b.emit.squeeze(end, rank), place)]


@rule("cumprod", "logcumsumexp")
def _running(b: AtenNet, x: Any, dim: int, **_: Any) -> Any:
    """Each entry of all that come before it, as a matrix: no format has these over an axis."""
    if not b.shape(x) or not b.dtype().is_floating_point:
        return NotImplemented
    rows, before, order = _each_before(b, b.out(x, b.dtype()), x, dim)
    rank = len(order)
    last = b.emit.ints([rank])
    if b.name == "cumprod":
        kept = b.emit.call("where", before, rows, b.emit.number(1.0, b.dtype()))
        out = b.emit.call("prod", kept, last, keepdim=False)
    else:
        kept = b.emit.call("where", before, rows, b.emit.number(-math.inf, b.dtype()))
        most = b.emit.call("amax", kept, last, keepdim=True)
        finite = b.emit.call("lt", b.emit.call("abs", most), b.emit.number(math.inf, b.dtype()))
        most = b.emit.call("where", finite, most, b.emit.number(0.0, b.dtype()))
        total = b.emit.call("sum", b.emit.call("exp", b.emit.call("sub", kept, most)), last, keepdim=False)
        out = b.emit.call("add", b.emit.call("log", total), b.emit.squeeze(most, rank))
    return b.emit.transpose(out, [order.index(d) for d in range(rank)])
