"""All rows joined behind all rows, several times as many: `cat([a, b], 0)` through one layer, heads joined in
the batch. Such a value has its parts as a first dimension of each row, merged into the batch ahead of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from stepnet.errors import Unsupported

from .builder import BATCH, Builder, Fold, Ref

_WHOLE = 2**62  # torch's own end of what has none


def parts(b: Builder, x: Ref) -> tuple[str, int] | None:
    """A value with its parts as the first dimension of a row, and how many there are; None: copies of one
    row stand beside each other in it, or it has no rows."""
    if x.bdim is None:
        return None
    shape = b.values[x.name].shape
    count = prod(shape[: x.fold])
    if getattr(x.fold, "ahead", 0) != int(x.fold) and not b.is_alike(x):
        return None
    return b.reshape(x.name, (count, *shape[x.fold :])), count


def joined(b: Builder, refs: Sequence[Ref]) -> Ref:
    """What `cat` makes of rows along the rows themselves."""
    at, times, shape = b.shown()
    found = [parts(b, ref) for ref in refs]
    names = [part[0] for part in found if part is not None]
    if at is None or len(names) < len(refs) or any(ref.bdim != at for ref in refs):
        raise Unsupported("the step joins rows with other rows", line=b.line)
    return _several(b, b.emit("cat", names, (times, *shape), b.meta_dtype(), dim=0), at)


def picked(b: Builder, x: Ref, start: int, end: int) -> Ref | None:
    """Some of the parts of x, as `slice` and `split` pick them; None: x has none."""
    found = parts(b, x)
    if start == 0 and end == prod(b.values[x.name].shape[: x.fold]):
        return x
    if found is None:
        return None
    return Ref(_part(b, found[0], start, end), x.bdim, 0 if end - start == 1 else Fold(1, 1))


def put(b: Builder, x: Ref, source: Ref, start: int, end: int) -> Ref | None:
    """x with some of its parts replaced, as `slice_scatter` does; None: it has none."""
    whole, new = parts(b, x), parts(b, source := b.cast(source, b.meta_dtype()))
    if start == 0 and end == prod(b.values[x.name].shape[: x.fold]) and x.bdim == source.bdim:
        return source
    if whole is None or new is None or x.bdim is None or x.bdim != source.bdim or new[1] != end - start:
        return None
    (name, count), value = whole, b.values[x.name]
    kept = [_part(b, name, *ends, flat=False) for ends in ((0, start), (end, count)) if ends[0] < ends[1]]
    sides = [*kept[: start > 0], new[0], *kept[start > 0 :]]
    return _several(b, b.emit("cat", sides, b.values[name].shape, value.dtype, dim=0), x.bdim)


def bounds(b: Builder, x: Ref, dim: int, start: Any, end: Any, step: int) -> tuple[int, int] | None:
    """Which parts of x a slice takes; None: it is none of whole parts."""
    if x.bdim is None or dim % b.rank(x) != x.bdim or step != 1:
        return None
    count = prod(b.values[x.name].shape[: x.fold])
    first = 0 if start is None else times(b, start)
    last = count if end is None or (isinstance(end, int) and end >= _WHOLE) else times(b, end)
    if first is None or last is None:
        return None
    first, last = (min(max(n + count if n < 0 else n, 0), count) for n in (first, last))
    return (first, last) if first < last else None


def times(b: Builder, size: Any) -> int | None:
    """How many times the number of rows a size is; None: it is another number."""
    if size is BATCH:
        return 1
    if isinstance(size, int):
        return None if size else 0
    found = re.fullmatch(rf"(-?\d*)\*?{re.escape(b.batch)}", str(size.node.expr))
    return None if found is None else int(found[1] + "1" * (found[1] in ("", "-")))


def _part(b: Builder, name: str, start: int, end: int, flat: bool = True) -> str:
    """Some of the parts; one alone without the dimension of parts, where it is to be `flat`."""
    count, *shape = (value := b.values[name]).shape
    made = b.maker(name)
    if made is not None and made.op == "full":
        name = b.full(made.attr("value"), (end - start, *shape), value.dtype, "row")
    elif (start, end) != (0, count):
        whole = (end - start, *shape)
        name = b.emit("slice", (name,), whole, value.dtype, dim=0, start=start, end=end, step=1)
    return b.reshape(name, shape) if flat and end - start == 1 else name


def _several(b: Builder, name: str, at: int) -> Ref:
    (count, *shape) = b.values[name].shape
    return b.result(b.reshape(name, shape), at) if count == 1 else b.result(name, at, Fold(1, 1))
