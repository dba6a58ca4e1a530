"""What the commonest calls make of outlines, without asking torch.

Torch tells the shape of a result by functions in Python, some of which import what it compiles with: a
second for the first, a quarter of a millisecond for each. A rule here gives shape and dtype of a result whose
memory is in order, or None for what it does not cover.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten: Any = torch.ops.aten
Shape = Sequence[int]


class Made(NamedTuple):
    """A result: its shape on few rows and on many, and its dtype."""

    few: Shape
    many: Shape
    dtype: torch.dtype


def made_by(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Made | tuple[Made, ...] | None:
    """What a call gives, if a rule covers it; tensors are outlines."""
    rule = _RULES.get(func)
    if rule is not None:
        return rule(*args, **kwargs)
    return _pointwise(func, args, kwargs) if _is_pointwise(func) else None


@functools.cache
def _is_pointwise(func: OpOverload) -> bool:
    schema = func._schema
    alone = [str(result.type) for result in schema.returns] == ["Tensor"]
    return (
        torch.Tag.pointwise in func.tags
        and alone
        and not schema.is_mutable
        and func is not _aten.clone.default
    )


def _pointwise(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Made | None:
    tensors: list[Any] = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if not tensors or not all(map(_in_order, tensors)):
        return None
    sizes: list[tuple[int, int]] = []
    each = [list(zip(t.few.shape, t.many.shape, strict=True))[::-1] for t in tensors]
    for places in itertools.zip_longest(*each, fillvalue=(1, 1)):
        wide = {size for size in places if size != (1, 1)}
        if len(wide) > 1:
            return None
        sizes.append(wide.pop() if wide else (1, 1))
    sizes.reverse()
    known = (func, torch.get_default_dtype(), *map(_kind, args), *[(k, _kind(a)) for k, a in kwargs.items()])
    dtype = _dtypes.get(known)
    if dtype is None:
        dtype = _dtypes[known] = func(*map(_one, args), **{k: _one(a) for k, a in kwargs.items()}).dtype
    return Made([few for few, _ in sizes], [many for _, many in sizes], dtype)


_dtypes: dict[Any, torch.dtype] = {}


def _in_order(tensor: Any) -> bool:
    """Whether its elements stand in memory in the order of its dimensions; some left out, or repeated."""
    few = tensor.few
    if few.is_contiguous():
        return True
    steps = [step for size, step in zip(few.shape, few.stride(), strict=True) if size != 1 and step]
    return all(a > b for a, b in itertools.pairwise(steps))


def _kind(arg: Any) -> Any:
    """What the dtype of a result depends on."""
    if isinstance(arg, Tensor):
        return arg.dtype, not arg.dim()
    return type(arg) if isinstance(arg, (bool, int, float, complex)) else arg


def _one(arg: Any) -> Any:
    """An argument as one number."""
    return torch.ones((1,) * min(arg.dim(), 1), dtype=arg.dtype) if isinstance(arg, Tensor) else arg


# ---- others


def _mm(a: Any, b: Any) -> Made | None:
    if a.dtype != b.dtype or a.dim() != 2 or b.dim() != 2 or not _meet(a, 1, b, 0):
        return None
    return Made((a.few.shape[0], b.few.shape[1]), (a.many.shape[0], b.many.shape[1]), a.dtype)


def _addmm(c: Any, a: Any, b: Any, **numbers: Any) -> Made | None:
    made = _mm(a, b)
    if made is None or c.dtype != made.dtype or c.dim() > 2:
        return None
    for mine, whole in ((c.few.shape, made.few), (c.many.shape, made.many)):
        if any(size not in (1, wide) for size, wide in zip(mine[::-1], whole[::-1], strict=False)):
            return None
    return made


def _bmm(a: Any, b: Any) -> Made | None:
    if a.dtype != b.dtype or a.dim() != 3 or b.dim() != 3 or not (_meet(a, 2, b, 1) and _meet(a, 0, b, 0)):
        return None
    return Made((*a.few.shape[:2], b.few.shape[2]), (*a.many.shape[:2], b.many.shape[2]), a.dtype)


def _meet(a: Any, at: int, b: Any, where: int) -> bool:
    return a.few.shape[at] == b.few.shape[where] and a.many.shape[at] == b.many.shape[where]


def _sum(x: Any, dims: Sequence[int] | None = None, keep: bool = False, *, dtype: Any = None) -> Made | None:
    if not _in_order(x):
        return None
    floats = x.dtype.is_floating_point or x.dtype.is_complex
    return _reduced(x, dims, keep, dtype or (x.dtype if floats else torch.int64))


def _most(x: Any, dims: Sequence[int] = (), keep: bool = False) -> Made | None:
    return _reduced(x, dims, keep, x.dtype) if _in_order(x) and x.few.numel() else None


def _reduced(x: Any, dims: Sequence[int] | None, keep: bool, dtype: torch.dtype) -> Made:
    n = x.dim()
    gone = {d % max(n, 1) for d in dims} if dims else set(range(n))

    def left(shape: Shape) -> Shape:
        return [1 if d in gone else size for d, size in enumerate(shape) if keep or d not in gone]

    return Made(left(x.few.shape), left(x.many.shape), dtype)


def _mean(x: Any, dims: Sequence[int] | None, keep: bool = False, *, dtype: Any = None) -> Made | None:
    return _most(x, dims or (), keep) if x.dtype.is_floating_point and dtype is None else None


def _spread(
    x: Any, dims: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> Made | None:
    return _mean(x, dims, keepdim)


def _spread_and_mean(x: Any, *dims: Any, **how: Any) -> tuple[Made, Made] | None:
    made = _spread(x, *dims, **how)
    return None if made is None else (made, made)


def _running(x: Any, dim: int, *, dtype: Any = None) -> Made | None:
    if not x.dtype.is_floating_point or dtype is not None or not -x.dim() <= dim < x.dim():
        return None
    return _like(x)


def _cat(parts: Sequence[Any], dim: int = 0) -> Made | None:
    first = parts[0]
    n = first.dim()
    if not all(
        (n < 4 or p.few.is_contiguous()) and p.dtype == first.dtype and p.dim() == n > 0 for p in parts
    ):
        return None
    dim %= n
    shapes: list[Shape] = []
    for each in ([p.few.shape for p in parts], [p.many.shape for p in parts]):
        if any(
            a != b for shape in each for d, (a, b) in enumerate(zip(shape, each[0], strict=True)) if d != dim
        ):
            return None
        shapes.append([sum(shape[dim] for shape in each) if d == dim else s for d, s in enumerate(each[0])])
    return Made(shapes[0], shapes[1], first.dtype)


def _like(x: Any, *number: Any, dtype: Any = None, **where: Any) -> Made | None:
    if not x.few.is_contiguous() or any(where.values()):
        return None
    return Made(x.few.shape, x.many.shape, dtype or x.dtype)


def _embedding(table: Any, index: Any, *_: Any) -> Made | None:
    if table.dim() != 2 or not table.few.is_contiguous() or index.dtype not in (torch.int32, torch.int64):
        return None
    size = table.few.shape[1]
    return Made((*index.few.shape, size), (*index.many.shape, size), table.dtype)


def _multinomial(x: Any, count: int, replacement: bool = False, **how: Any) -> Made | None:
    if x.dim() not in (1, 2) or type(count) is not int:
        return None
    return Made((*x.few.shape[:-1], count), (*x.many.shape[:-1], count), torch.int64)


_RULES: dict[Any, Callable[..., Made | tuple[Made, ...] | None]] = {
    _aten.mm.default: _mm,
    _aten.addmm.default: _addmm,
    _aten.bmm.default: _bmm,
    _aten.sum.dim_IntList: _sum,
    _aten.amax.default: _most,
    _aten.amin.default: _most,
    _aten.mean.dim: _mean,
    _aten.var.correction: _spread,
    _aten.std.correction: _spread,
    _aten.var_mean.correction: _spread_and_mean,
    _aten.cumsum.default: _running,
    _aten.cumprod.default: _running,
    _aten.cat.default: _cat,
    _aten.embedding.default: _embedding,
    _aten.full_like.default: _like,
    _aten.zeros_like.default: _like,
    _aten.ones_like.default: _like,
    _aten.empty_like.default: _like,
    _aten.bernoulli.p: _like,
    _aten.cauchy.default: _like,
    _aten.exponential.default: _like,
    _aten.geometric.default: _like,
    _aten.log_normal.default: _like,
    _aten.multinomial.default: _multinomial,
    _aten.normal.Tensor_float: _like,
    _aten.normal_functional.default: _like,
    _aten.rand_like.default: _like,
    _aten.randn_like.default: _like,
    _aten.uniform.default: _like,
}
