"""What each aten call means in the closed op list. One rule a target; the last one wraps the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stepnet.errors import Refusal
from stepnet.ir.graph import Node

from .normal import BATCH, Builder, Ref, dtype_name, rule

_UNARY = {
    "neg": "neg", "abs": "abs", "sign": "sign", "sgn": "sign", "relu": "relu", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "reciprocal": "reciprocal", "exp": "exp",
    "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin",
    "cos": "cos", "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf",
}  # fmt: skip
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_LOGIC = {
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}  # fmt: skip


def _register_unary(target: str, op: str) -> None:
    @rule(target)
    def _(b: Builder, x: Ref) -> Any:
        return b.pointwise(op, [x])


for _target, _op in _UNARY.items():
    _register_unary(_target, _op)


def _promoted(b: Builder, x: Any, y: Any) -> str:
    """The dtype two operands are compared in, by torch's promotion."""

    def stand_in(o: Any) -> Any:
        if not isinstance(o, Ref):
            return o
        value = b.values[o.name]
        rank = len(value.shape) + (o.bdim is not None)
        return torch.empty([1] * rank, dtype=getattr(torch, value.dtype), device="meta")

    return dtype_name(torch.result_type(stand_in(x), stand_in(y)))


def _register_compare(target: str, op: str) -> None:
    @rule(target)
    def _(b: Builder, x: Any, y: Any) -> Any:
        return b.pointwise(op, [x, y], _promoted(b, x, y))


for _target, _op in _COMPARE.items():
    _register_compare(_target, _op)


def _register_logic(target: str, op: str) -> None:
    @rule(target)
    def _(b: Builder, x: Any, y: Any) -> Any:
        if target.startswith("bitwise") and b.meta_dtype() != "bool":
            return NotImplemented
        return b.pointwise(op, [x, y], "bool")


for _target, _op in _LOGIC.items():
    _register_logic(_target, _op)


@rule("logical_not", "bitwise_not")
def _not(b: Builder, x: Ref) -> Any:
    if b.meta_dtype() != "bool" or b.values[x.name].dtype != "bool":
        return NotImplemented
    return b.pointwise("not", [x], "bool")


@rule("isnan")
def _isnan(b: Builder, x: Ref) -> Any:
    return b.pointwise("isnan", [x], b.values[x.name].dtype)


@rule("round.default")
def _round(b: Builder, x: Ref) -> Any:
    return b.pointwise("round", [x])


def _scaled(b: Builder, y: Any, alpha: Any) -> Any:
    if alpha == 1:
        return y
    if not isinstance(y, Ref):
        return y * alpha
    value = b.values[y.name]
    number = b.full(alpha, (), value.dtype)
    return Ref(b.emit("mul", (y.name, number), value.shape, value.dtype), y.bdim, y.fold)


@rule("add")
def _add(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return b.pointwise("add", [x, _scaled(b, y, alpha)])


@rule("sub")
def _sub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return b.pointwise("sub", [x, _scaled(b, y, alpha)])


@rule("mul")
def _mul(b: Builder, x: Any, y: Any) -> Any:
    if y is BATCH or x is BATCH:
        raise Refusal("the step computes with the number of rows", line=b.line)
    if b.meta_dtype() == "bool":
        return b.pointwise("and", [x, y], "bool")
    return b.pointwise("mul", [x, y])


@rule("div.Tensor", "div.Scalar", "true_divide")
def _div(b: Builder, x: Any, y: Any) -> Any:
    if not isinstance(x, (Ref, int, float)) or not isinstance(y, (Ref, int, float)):
        raise Refusal("the step divides by the number of rows (a mean over the batch)", line=b.line)
    return b.pointwise("div", [x, y])


@rule("maximum")
def _maximum(b: Builder, x: Any, y: Any) -> Any:
    return b.pointwise("maximum", [x, y])


@rule("minimum")
def _minimum(b: Builder, x: Any, y: Any) -> Any:
    return b.pointwise("minimum", [x, y])


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(b: Builder, x: Any, low: Any = None, high: Any = None) -> Any:
    out = x
    if low is not None:
        out = b.pointwise("maximum", [out, low])
    return out if high is None else b.pointwise("minimum", [out, high])


@rule("pow")
def _pow(b: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, (int, float)):
        if y == 1:
            return x
        if y == 2:
            return b.pointwise("mul", [x, x])
        if y == 0.5:
            return b.pointwise("sqrt", [x])
        if y == -0.5:
            return b.pointwise("rsqrt", [x])
        if y == -1:
            return b.pointwise("reciprocal", [x])
        if y == 3:
            return b.pointwise("mul", [b.pointwise("mul", [x, x]), x])
    return b.pointwise("pow", [x, y])


@rule("remainder")
def _remainder(b: Builder, x: Any, y: Any) -> Any:
    return b.pointwise("remainder", [x, y])


@rule("atan2")
def _atan2(b: Builder, x: Any, y: Any) -> Any:
    return b.pointwise("atan2", [x, y])


@rule("where.self")
def _where(b: Builder, condition: Ref, x: Any, y: Any) -> Any:
    if b.values[condition.name].dtype != "bool":
        return NotImplemented
    meta = b.meta
    bdim, times = b.batch_at(meta.shape)
    refs = [r for r in (condition, x, y) if isinstance(r, Ref)]
    fold = max((r.fold for r in refs), default=0)
    if times != 1 or fold:
        raise Refusal("where on folded rows", line=b.line)
    dtype = b.meta_dtype()
    names = [b._aligned(condition, len(meta.shape), bdim, 0)]
    for operand in (x, y):
        if isinstance(operand, Ref):
            names.append(b._aligned(b.cast(operand, dtype), len(meta.shape), bdim, 0))
        else:
            names.append(b.full(operand, (), dtype))
    return b.result(b.emit("where", names, b.row_shape(meta.shape, bdim), dtype), bdim)


@rule("_to_copy", "convert_element_type")
def _to_copy(b: Builder, x: Ref, dtype: Any = None, **rest: Any) -> Any:
    return b.cast(x, b.meta_dtype())


@rule("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "positive", "conj", "_conj")
def _same(b: Builder, x: Ref, **rest: Any) -> Any:
    return x


# -- reductions --------------------------------------------------------------------------------------


def _reduce(b: Builder, op: str, x: Ref, dims: Sequence[int] | int | None, keepdim: bool) -> Any:
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    wanted = [dims] if isinstance(dims, int) else list(dims or range(rank))
    wanted = sorted({d % rank for d in wanted} if rank else set())
    over_rows = x.bdim is not None and x.bdim in wanted
    own = [d - (x.bdim is not None and d > x.bdim) + x.fold for d in wanted if d != x.bdim]
    if over_rows:
        own = list(range(x.fold)) + own
    dtype = b.meta_dtype() if op == "sum" else value.dtype
    name = b.cast(x, dtype).name
    if own:
        kept = [1 if i in own else s for i, s in enumerate(value.shape)]
        name = b.emit(op, (name,), kept, dtype, dims=tuple(own))
    if over_rows:
        if op != "sum":
            raise Refusal(f"'{op}' over the rows: the step mixes rows", line=b.line)
        name = b.emit("sum_rows", (name,), b.values[name].shape, dtype, "sum")
    meta = b.meta
    shape = b.row_shape(meta.shape, b.batch_at(meta.shape)[0])
    if over_rows:
        return Ref(b.reshape(name, shape))
    if x.fold:
        shape = b.values[x.name].shape[: x.fold] + shape
    bdim = x.bdim
    if bdim is not None and not keepdim:
        bdim -= sum(d < bdim for d in wanted)
    return b.result(b.reshape(name, shape), bdim, x.fold)


@rule("sum.dim_IntList", "sum.default")
def _sum(b: Builder, x: Ref, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _reduce(b, "sum", x, dims, keepdim)


@rule("mean.dim", "mean.default")
def _mean(b: Builder, x: Ref, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    out = _reduce(b, "sum", x, dims, keepdim)
    if b.values[out.name].kind == "sum":
        raise Refusal("a mean over the rows: the step mixes rows", line=b.line)
    value = b.values[x.name]
    count = value.size // max(b.values[out.name].size, 1)
    number = b.full(1.0 / count, (), b.values[out.name].dtype)
    done = b.values[out.name]
    return Ref(b.emit("mul", (out.name, number), done.shape, done.dtype), out.bdim, out.fold)


@rule("var.correction", "var_mean.correction")
def _var(b: Builder, x: Ref, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    meta = b.meta
    pair = isinstance(meta, (tuple, list))
    value = b.values[x.name]
    rank = len(value.shape) + (x.bdim is not None)
    wanted = [dims] if isinstance(dims, int) else list(dims or range(rank))
    if x.fold or (x.bdim is not None and x.bdim in [d % rank for d in wanted]):
        raise Refusal("a variance over the rows: the step mixes rows", line=b.line)
    b.meta = meta[0] if pair else meta
    own = tuple(sorted(_feature_dim(b, x, d) for d in wanted))
    kept = [1 if i in own else s for i, s in enumerate(value.shape)]
    count = value.size // max(_product(kept), 1)

    def scaled(name: str, number: float) -> str:
        return b.emit("mul", (name, b.full(number, (), value.dtype)), b.values[name].shape, value.dtype)

    mean = scaled(b.emit("sum", (x.name,), kept, value.dtype, dims=own), 1.0 / count)
    centred = b.emit("sub", (x.name, mean), value.shape, value.dtype)
    squares = b.emit("mul", (centred, centred), value.shape, value.dtype)
    free = count - (1 if correction is None else correction)
    var = scaled(
        b.emit("sum", (squares,), kept, value.dtype, dims=own), 1.0 / free if free > 0 else float("nan")
    )
    shape = b.row_shape(b.meta.shape, b.batch_at(b.meta.shape)[0])
    at = x.bdim
    if at is not None and not keepdim:
        at -= sum(d % rank < at for d in wanted)
    refs = [b.result(b.reshape(name, shape), at) for name in (var, mean)]
    return refs if pair else refs[0]


@rule("amax")
def _amax(b: Builder, x: Ref, dims: Any = None, keepdim: bool = False) -> Any:
    return _reduce(b, "amax", x, dims, keepdim)


@rule("amin")
def _amin(b: Builder, x: Ref, dims: Any = None, keepdim: bool = False) -> Any:
    return _reduce(b, "amin", x, dims, keepdim)


@rule("argmax", "argmin")
def _argmax(b: Builder, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented  # opaque: integers are not for compiled cores


# -- shapes ------------------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def _view(b: Builder, x: Ref, shape: Any) -> Any:
    value = b.values[x.name]
    meta = b.meta
    at, times = b.batch_at(meta.shape)
    target = b.row_shape(meta.shape, at)
    if x.bdim is None:
        return b.result(b.reshape(x.name, target), None)
    if at is None:
        raise Refusal("a reshape loses the batch dimension", line=b.line)
    if times == 1:
        before = _product(target[:at])
        ahead = _product(value.shape[: x.bdim]) if x.fold == 0 else 1
        if ahead != before or (x.fold and x.bdim != 0):
            raise Refusal("a reshape moves values between rows", line=b.line)
        return b.result(b.reshape(x.name, target), at)
    if at != 0 or x.bdim != 0:
        raise Refusal("a reshape merges rows that are not first", line=b.line)
    # merge leading row dimensions into the batch; they stay dimensions of the row here
    whole = b.reshape(x.name, (times, *target))
    return b.result(whole, 0, 1)


def _product(sizes: Sequence[int]) -> int:
    out = 1
    for size in sizes:
        out *= size
    return out


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
    if at is None or times == 1:
        if x.fold:
            raise Refusal("expand on folded rows", line=b.line)
        name = b._aligned(x, len(meta.shape), at, 0) if at is not None else x.name
        if b.values[name].shape == shape and (at is None) == (x.bdim is None):
            return b.result(name, at)
        kind = "row" if at is not None else b.kind(name)
        return b.result(b.emit("expand", (name,), shape, value.dtype, kind), at)
    raise Refusal("expand on folded rows", line=b.line)


def _feature_dim(b: Builder, x: Ref, dim: int) -> int:
    """A traced dimension as a dimension of the row; refuses the batch dimension."""
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    dim %= max(rank, 1)
    if x.bdim is None:
        return dim
    if dim == x.bdim:
        raise Refusal("the step picks, joins or slices rows by number", line=b.line)
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
    own = _feature_dim(b, x, dim)
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
    own = _feature_dim(b, x, dim)
    value = b.values[x.name]
    index %= value.shape[own]
    part = slice_feature(b, x.name, own, index, index + 1)
    at, _ = b.batch_at(b.meta.shape)
    return b.result(b.reshape(part, value.shape[:own] + value.shape[own + 1 :]), at, x.fold)


@rule("split_with_sizes", "split_with_sizes_copy")
def _split(b: Builder, x: Ref, sizes: Sequence[int], dim: int = 0) -> Any:
    own = _feature_dim(b, x, dim)
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
        raise Refusal("cat on folded rows", line=b.line)
    if at is None:
        shape = b.row_shape(meta.shape, None)
        return b.result(b.emit("cat", [r.name for r in refs], shape, dtype, dim=dim % len(shape)), None)
    rank = len(meta.shape)
    if dim % rank == at or any(r.bdim != at for r in refs):
        raise Refusal("the step joins rows with other rows", line=b.line)
    own = dim % rank
    own -= own > at
    shape = b.row_shape(meta.shape, at)
    return b.result(b.emit("cat", [r.name for r in refs], shape, dtype, dim=own), at)


@rule("constant_pad_nd")
def _pad(b: Builder, x: Ref, pad: Sequence[int], value: Any = 0) -> Any:
    name = x.name
    rank = len(b.values[name].shape) - x.fold + (x.bdim is not None)
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        if before == after == 0:
            continue
        own = _feature_dim(b, Ref(name, x.bdim, x.fold), rank - 1 - k)
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
            parts.append(b.full(number, shape, value.dtype, value.kind if value.kind == "row" else "shared"))
    if len(parts) == 1:
        return name
    shape = [*value.shape[:dim], value.shape[dim] + before + after, *value.shape[dim + 1 :]]
    return b.emit("cat", parts, shape, value.dtype, dim=dim)


def _replaced(b: Builder, x: Ref, source: Ref, dim: int, start: int, end: int) -> Any:
    """x with [start, end) of a feature dimension replaced by source."""
    value = b.values[x.name]
    own = _feature_dim(b, x, dim)
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


@rule("slice_scatter")
def _slice_scatter(
    b: Builder, x: Ref, source: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    value = b.values[x.name]
    rank = len(value.shape) - x.fold + (x.bdim is not None)
    if x.bdim is not None and dim % rank == x.bdim:
        if start in (None, 0) and (not isinstance(end, int) or end >= 2**62) and step == 1:
            return source
        raise Refusal("the step writes to rows by number", line=b.line)
    if step != 1:
        return NotImplemented
    size = value.shape[_feature_dim(b, x, dim)]
    return _replaced(b, x, source, dim, _clip(start, size, 0), _clip(end, size, size))


@rule("select_scatter")
def _select_scatter(b: Builder, x: Ref, source: Ref, dim: int, index: int) -> Any:
    size = b.values[x.name].shape[_feature_dim(b, x, dim)]
    return _replaced(b, x, source, dim, index % size, index % size + 1)


@rule("flip")
def _flip(b: Builder, x: Ref, dims: Sequence[int]) -> Any:
    own = tuple(_feature_dim(b, x, d) for d in dims)
    value = b.values[x.name]
    return b.result(b.emit("flip", (x.name,), value.shape, value.dtype, dims=own), x.bdim, x.fold)


@rule("gather")
def _gather(b: Builder, x: Ref, dim: int, index: Ref, sparse_grad: bool = False) -> Any:
    if x.bdim != 0 or index.bdim != 0 or x.fold or index.fold:
        return NotImplemented
    own = _feature_dim(b, x, dim)
    value, at = b.values[x.name], b.values[index.name]
    return b.result(b.emit("gather", (x.name, index.name), at.shape, value.dtype, dim=own), 0)


@rule("embedding")
def _embedding(b: Builder, table: Ref, index: Ref, *_: Any, **__: Any) -> Any:
    if table.bdim is not None or index.bdim not in (None, 0) or index.fold:
        return NotImplemented
    rows, at = b.values[table.name], b.values[index.name]
    name = b.emit("embed", (table.name, index.name), (*at.shape, *rows.shape[1:]), rows.dtype)
    return b.result(name, index.bdim)


@rule("embedding_dense_backward")
def _embedding_grad(b: Builder, grad: Ref, index: Ref, count: int, padding: int, scale: bool) -> Any:
    if grad.bdim != 0 or index.bdim != 0 or scale or grad.fold or index.fold:
        return NotImplemented
    value = b.values[grad.name]
    shape = (count, value.shape[-1])
    return Ref(b.emit("embed_grad", (grad.name, index.name), shape, value.dtype, "sum", padding=padding))


# -- matmul ------------------------------------------------------------------------------------------


def _swapped(b: Builder, name: str) -> str:
    rank = len(b.values[name].shape)
    return b.permute(name, [*range(rank - 2), rank - 1, rank - 2])


@rule("mm")
def _mm(b: Builder, x: Ref, y: Ref) -> Any:
    xv, yv, dtype = b.values[x.name], b.values[y.name], b.meta_dtype()
    if x.bdim is None and y.bdim is None:
        return b.result(b.emit("matmul", (x.name, y.name), (xv.shape[0], yv.shape[1]), dtype), None)
    if x.bdim == 0 and y.bdim is None:
        shape = (*xv.shape[:-1], yv.shape[1])
        return b.result(b.emit("matmul", (x.name, y.name), shape, dtype), 0, x.fold)
    if x.bdim is None and y.bdim == 1:
        shape = (*yv.shape[:-1], xv.shape[0])
        return b.result(b.emit("matmul", (y.name, _swapped(b, x.name)), shape, dtype), 1, y.fold)
    if x.bdim == 1 and y.bdim == 0 and x.fold == y.fold:
        shape = (xv.shape[-1], yv.shape[-1])
        return Ref(b.emit("matmul_tn", (x.name, y.name), shape, dtype, "sum", batch=0))
    raise Refusal("a matmul of rows with rows: the step mixes rows", line=b.line)


@rule("bmm")
def _bmm(b: Builder, x: Ref, y: Ref) -> Any:
    xv, yv, dtype = b.values[x.name], b.values[y.name], b.meta_dtype()
    if x.fold or y.fold:
        # [B*k, n, m]: as many products for each row
        if x.bdim != 0 or y.bdim != 0 or x.fold != y.fold:
            return NotImplemented
        shape = (*xv.shape[:-1], yv.shape[-1])
        return b.result(b.emit("matmul", (x.name, y.name), shape, dtype), 0, x.fold)
    pair = (x.bdim, y.bdim)
    if pair == (None, None):
        shape = (*xv.shape[:-1], yv.shape[-1])
        return b.result(b.emit("matmul", (x.name, y.name), shape, dtype), None)
    if pair == (0, 0):
        shape = (xv.shape[0], yv.shape[1])
        return b.result(b.emit("matmul", (x.name, y.name), shape, dtype), 0)
    if pair == (1, None):  # [h, B, m] x [h, m, p]
        heads, m = xv.shape
        lone = b.reshape(x.name, (heads, 1, m))
        out = b.emit("matmul", (lone, y.name), (heads, 1, yv.shape[2]), dtype)
        return b.result(b.reshape(out, (heads, yv.shape[2])), 1)
    if pair == (None, 2):  # [h, n, m] x [h, m, B]
        heads, m = yv.shape
        lone = b.reshape(y.name, (heads, 1, m))
        out = b.emit("matmul", (lone, _swapped(b, x.name)), (heads, 1, xv.shape[1]), dtype)
        return b.result(b.reshape(out, (heads, xv.shape[1])), 2)
    if pair == (2, 1):  # [h, n, B] x [h, B, p]: a gradient
        shape = (xv.shape[0], xv.shape[1], yv.shape[1])
        return Ref(b.emit("matmul_tn", (x.name, y.name), shape, dtype, "sum", batch=1))
    raise Refusal("a batched matmul of rows with rows: the step mixes rows", line=b.line)


# -- sources -----------------------------------------------------------------------------------------


@rule("full", "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "zeros", "ones",
      "scalar_tensor", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")  # fmt: skip
def _full(b: Builder, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _register_full(target: str, number_at: int | float, is_argument: bool) -> None:
    @rule(target)
    def _(b: Builder, *args: Any, **kwargs: Any) -> Any:
        number = args[int(number_at)] if is_argument else number_at
        at, times = b.batch_at(b.meta.shape)
        if times != 1 or isinstance(number, Ref):
            raise Refusal("a constant on folded rows", line=b.line)
        kind = "shared" if at is None else "row"
        return b.result(b.full(number, b.row_shape(b.meta.shape, at), b.meta_dtype(), kind), at)


for _target in ("full", "full_like"):
    _register_full(_target, 1, True)
_register_full("new_full", 2, True)
_register_full("scalar_tensor", 0, True)
for _target in ("zeros_like", "new_zeros", "zeros", "empty", "empty_like", "new_empty", "empty_strided"):
    _register_full(_target, 0, False)
for _target in ("ones_like", "new_ones", "ones"):
    _register_full(_target, 1, False)


@rule("arange", "iota")
def _arange(b: Builder, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented


@rule("arange.start_step")
def _arange_step(b: Builder, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    at, _times = b.batch_at(b.meta.shape)
    if at is not None:
        raise Refusal("the step numbers its rows (arange over the batch)", line=b.line)
    shape = b.row_shape(b.meta.shape, None)
    return b.result(b.emit("iota", (), shape, b.meta_dtype(), "shared", start=start, step=step), None)


def _noise(b: Builder, op: str) -> Any:
    at, times = b.batch_at(b.meta.shape)
    if at is None or times != 1:
        raise Refusal("noise that is shared by all rows of a step cannot be drawn for all steps", line=b.line)
    return b.result(b.emit(op, (), b.row_shape(b.meta.shape, at), b.meta_dtype(), "row"), at)


@rule("rand", "rand_like")
def _rand(b: Builder, *_: Any, **__: Any) -> Any:
    return _noise(b, "rand")


@rule("randn", "randn_like", "normal_functional")
def _randn(b: Builder, *args: Any, **__: Any) -> Any:
    if len(args) > 1 and args[1:3] not in ((), (0, 1), (0.0, 1.0)) and not isinstance(args[0], list):
        return NotImplemented
    return _noise(b, "randn")


@rule("bernoulli.p", "bernoulli.default")
def _bernoulli(b: Builder, x: Ref, p: Any = None, **_: Any) -> Any:
    noise = _noise(b, "rand")
    keep = b.pointwise("lt", [noise, x if p is None else p], b.values[noise.name].dtype)
    return b.cast(keep, b.meta_dtype())


# -- the rest ----------------------------------------------------------------------------------------


@rule("opaque")
def _opaque(b: Builder, node: Any, args: Any, kwargs: Any) -> Any:
    """Any other call: one op that calls torch, if rows come first in all it takes and gives."""
    target = str(node.target)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Refusal(f"'{target}' is no plain torch call", line=b.line)
    metas = node.meta.get("val")
    if metas is None:  # no result: an assertion, or a note of the profiler
        return None  # an assertion on values, no result
    many = isinstance(metas, (tuple, list))
    inputs: list[str] = []

    def place(arg: Any) -> Any:
        if isinstance(arg, Ref):
            if arg.fold or arg.bdim not in (None, 0):
                raise Refusal(f"{target} on values whose rows are not first", line=b.line)
            inputs.append(arg.name)
            return ("input", len(inputs) - 1)
        if isinstance(arg, list):
            return ("list", tuple(place(a) for a in arg))
        if arg is BATCH or hasattr(arg, "node"):
            raise Refusal(f"{target} is given the number of rows", line=b.line)
        return ("value", arg)

    template = tuple(place(a) for a in args)
    named = tuple((k, place(v)) for k, v in kwargs.items())
    kind = b.kind(*inputs) if inputs else None  # a call on sums is proved to be linear later
    if getattr(node.target, "_schema", None) is not None and node.target._schema.is_mutable:
        raise Refusal(f"{target} changes a tensor in place", line=b.line)
    outputs, refs = [], []
    for meta in metas if many else [metas]:
        if not hasattr(meta, "shape"):
            refs.append(None)
            outputs.append("")
            continue
        at, times = b.batch_at(meta.shape)
        if at not in (None, 0) or times != 1:
            raise Refusal(f"{target} does not give its rows first", line=b.line)
        is_row = kind == "row" if inputs else at is not None
        if is_row != (at is not None):
            raise Refusal(f"{target} makes one value of all rows: the step mixes rows", line=b.line)
        made = "row" if at is not None else ("sum" if kind == "sum" else "shared")
        name = b.fresh(made, b.row_shape(meta.shape, at), dtype_name(meta.dtype))
        outputs.append(name)
        refs.append(Ref(name, at))
    attrs = (("target", target), ("args", template), ("kwargs", named))
    b.nodes.append(Node("opaque", tuple(inputs), tuple(outputs), attrs, b.line))
    return refs if many else refs[0]
