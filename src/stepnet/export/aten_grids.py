"""Aten calls over grids of space or time, with channels beside: convolutions, pools, norms, edges."""

from __future__ import annotations

import math
from typing import Any

import torch

from .aten import AtenNet, rule
from .emit import END
from .graph import Value

_MOST = 64  # parts that an axis is cut into


def _each(v: Any, count: int) -> list[int]:
    """A number for each axis of space, of one or of all."""
    v = [v] if isinstance(v, int) else list(v)
    return v * count if len(v) == 1 else v


@rule("conv1d", "conv2d", "conv3d")
def _conv(
    b: AtenNet, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    dilation: Any = (1,), groups: int = 1,
) -> Any:  # fmt: skip
    spatial = len(b.shape(weight)) - 2
    if b.is_ragged(x):
        return NotImplemented

    def each(v: Any) -> list[int]:
        return _each(v, spatial)

    if isinstance(padding, str):
        total = [0] * spatial
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(each(dilation), b.shape(weight)[2:], strict=True)]
        begin = [size // 2 for size in total]
        end = [size - front for size, front in zip(total, begin, strict=True)]
    else:
        begin = end = each(padding)
    return _slid(
        b, "conv", x, weight, bias, strides=each(stride), dilations=each(dilation), pads_begin=begin,
        pads_end=end, groups=groups,
    )  # fmt: skip


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    b: AtenNet, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    output_padding: Any = (0,), groups: int = 1, dilation: Any = (1,),
) -> Any:  # fmt: skip
    if b.is_ragged(x):
        return NotImplemented
    spatial = len(b.shape(weight)) - 2
    pads = _each(padding, spatial)
    return _slid(
        b, "conv_transpose", x, weight, bias, strides=_each(stride, spatial),
        dilations=_each(dilation, spatial), pads_begin=pads, pads_end=pads, groups=groups,
        output_padding=_each(output_padding, spatial),
    )  # fmt: skip


def _slid(b: AtenNet, op: str, x: Any, weight: Any, bias: Any, **how: Any) -> Value:
    """A kernel over a batch, or over one thing without."""
    spatial = len(b.shape(weight)) - 2
    alone = len(b.shape(x)) == spatial + 1
    given = b.emit.unsqueeze(b.out(x), 0) if alone else b.out(x)
    out = b.emit.call(op, given, b.out(weight), kernel=b.shape(weight), **how)
    if bias is not None:
        out = b.emit.call("add", out, b.emit.reshape(b.out(bias), [1, -1, *[1] * spatial]))
    return b.emit.squeeze(out, 0) if alone else out


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    b: AtenNet, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    several = b.name.endswith("_with_indices")
    if several and _indices_are_read(b):
        return NotImplemented
    out = _pooled(b, "max_pool", x, kernel, stride, padding, dilation, ceil)
    return (out,) if several and out is not NotImplemented else out


def _indices_are_read(b: AtenNet) -> bool:
    """Whether the second result is, of where the largest stood."""
    return b.node is not None and any(user.args[1] and user.users for user in b.node.users)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _mean_pool(
    b: AtenNet, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    with_padding: bool = True, divisor: int | None = None,
) -> Any:  # fmt: skip
    if divisor is not None:
        return NotImplemented
    return _pooled(b, "mean_pool", x, kernel, stride, padding, 1, ceil, with_padding=bool(with_padding))


def _pooled(
    b: AtenNet, op: str, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    **more: bool,
) -> Any:  # fmt: skip
    count = int(b.name.split("_pool")[1][0])
    if b.is_ragged(x) or len(b.shape(x)) != count + 2:
        return NotImplemented
    kernel, pads = _each(kernel, count), _each(padding, count)
    strides, dilations = _each(stride, count) or kernel, _each(dilation, count)

    def pooled(value: Value) -> Value:
        return b.emit.call(
            op, value, kernel=kernel, strides=strides, dilations=dilations, pads=pads, **more
        )  # fmt: skip

    value = b.out(x)
    if not ceil or all(step == 1 for step in strides):
        return pooled(value)
    wide = [(size - 1) * d + 1 for size, d in zip(kernel, dilations, strict=True)]
    if any(p + step > size for p, step, size in zip(pads, strides, wide, strict=True)):
        return NotImplemented  # the last window may begin where there is nothing
    if more.get("with_padding"):  # zeros that count, other than those of a last window, below
        beside = b.emit.ints([0, 0, *pads])
        value, pads = b.emit.call("pad", value, beside, beside, b.emit.number(0.0, b.dtype(x))), [0] * count
    after = b.emit.ints([0, 0, *(step - 1 for step in strides)])
    none = b.emit.ints([0] * (count + 2))
    fill = -math.inf if op == "max_pool" else 0.0
    out = pooled(b.emit.call("pad", value, none, after, b.emit.number(fill, b.dtype(x))))
    if op == "max_pool":
        return out
    ones = b.emit.broadcast(b.emit.number(1.0, b.dtype(x)), b.emit.shape(value))
    return b.emit.call(
        "div", out, pooled(b.emit.call("pad", ones, none, after, b.emit.number(0.0, b.dtype(x))))
    )


@rule("grid_sampler", "grid_sampler_2d")
def _grid_sample(b: AtenNet, x: Any, grid: Any, mode: int, padding: int, corners: bool) -> Any:
    if b.is_ragged(x) or b.is_ragged(grid) or len(b.shape(x)) != 4:
        return NotImplemented
    return b.emit.call(
        "grid_sample", b.out(x), b.out(grid), mode=("bilinear", "nearest", "bicubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding], align_corners=bool(corners),
    )  # fmt: skip


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _parts_mean(b: AtenNet, x: Any, sizes: Any) -> Any:
    return _in_parts(b, "mean", x, sizes)


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _parts_most(b: AtenNet, x: Any, sizes: Any) -> Any:
    if _indices_are_read(b):
        return NotImplemented
    out = _in_parts(b, "amax", x, sizes)
    return out if out is NotImplemented else (out,)


def _in_parts(b: AtenNet, op: str, x: Any, sizes: Any) -> Any:
    """Each axis of space cut into so many parts, which may share an entry, and each part as one."""
    count, rank, value = int(b.name.split("_pool")[1][0]), len(b.shape(x)), b.out(x)
    wanted: list[Any] = _each(sizes, count)
    for dim, size in zip(range(rank - count, rank), wanted, strict=True):
        size = size.meta["val"] if hasattr(size, "meta") else size
        length, axis = b.shape(x)[dim], b.axis(x, dim)
        if str(size) == str(length):
            continue
        if not isinstance(size, int) or size > _MOST:
            return NotImplemented
        parts = []
        for i in range(size):
            first, last = (i * length) // size, ((i + 1) * length + size - 1) // size
            begin, end = (v if isinstance(v, int) else b.size(v) for v in (first, last))
            part = value if size == 1 else b.emit.slice(value, axis, begin, end)
            parts.append(b.emit.call(op, part, b.emit.ints([axis]), keepdim=True))
        value = b.emit.concat(parts, axis)
    return value


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest(b: AtenNet, x: Any, _: Any, factors: Any = None) -> Any:
    """Entries by their places, which no runtime is to find by a quotient: some give 0.99999 for 1."""
    if b.is_ragged(x):
        return NotImplemented
    value = b.out(x)
    for dim in range(2, len(b.shape(x))):
        length, wanted = b.number(b.shape(x)[dim]), b.number(b.shape()[dim])
        places = b.emit.range(wanted)
        if factors:
            by = b.emit.number(1 / factors[dim - 2], torch.float32)
            moved = b.emit.call("floor", b.emit.call("mul", b.emit.cast(places, torch.float32), by))
            last = b.emit.call("sub", length, b.emit.scalar(1))
            places = b.emit.call("minimum", b.emit.cast(moved, torch.int64), last)
        else:
            places = b.emit.call("floor_divide", b.emit.call("mul", places, length), wanted)
        value = b.emit.take(value, places, dim)
    return value


@rule("group_norm")
def _group_norm(
    b: AtenNet, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    value, lead = b.out(x), 1 + b.is_ragged(x)
    parts = b.emit.reshape(value, [*[0] * lead, groups, -1])
    out = b.emit.call("normalize", parts, b.emit.ints([lead + 1]), eps=float(eps), sizes=())
    return _scaled(b, b.emit.reshape_to(out, b.emit.shape(value)), x, weight, bias)


@rule("instance_norm")
def _instance_norm(
    b: AtenNet, x: Any, weight: Any, bias: Any, mean: Any, var: Any, from_input: bool, momentum: float,
    eps: float, *_: Any,
) -> Any:  # fmt: skip
    if not from_input:
        return _batch_norm(b, x, weight, bias, mean, var, False, momentum, eps)
    if mean is not None:  # it would change them
        return NotImplemented
    axes = [b.axis(x, d) for d in range(2, len(b.shape(x)))]
    out = b.emit.call("normalize", b.out(x), b.emit.ints(axes), eps=float(eps), sizes=())
    return _scaled(b, out, x, weight, bias)


def _scaled(b: AtenNet, out: Value, x: Any, weight: Any, bias: Any) -> Value:
    """A weight and a bias for each channel."""
    shape = [-1] + [1] * (len(b.shape(x)) - 2)
    if weight is not None:
        out = b.emit.call("mul", out, b.emit.reshape(b.out(weight), shape))
    return out if bias is None else b.emit.call("add", out, b.emit.reshape(b.out(bias), shape))


@rule("batch_norm")
def _batch_norm(
    b: AtenNet, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float, *_: Any,
) -> Any:  # fmt: skip
    if training:
        return NotImplemented
    if not all(b.is_constant(part) for part in (weight, bias, mean, var)):
        shape = [-1] + [1] * (len(b.shape(x)) - 2)
        middle, spread = (b.emit.reshape(b.out(part), shape) for part in (mean, var))
        wide = b.emit.call("sqrt", b.emit.call("add", spread, b.emit.number(eps, b.dtype(var))))
        return _scaled(b, b.emit.call("div", b.emit.call("sub", b.out(x), middle), wide), x, weight, bias)
    scale = torch.rsqrt(b.constant(var) + eps)
    if weight is not None:
        scale = scale * b.constant(weight)
    shift = -b.constant(mean) * scale
    if bias is not None:
        shift = shift + b.constant(bias)
    shape = [-1] + [1] * (len(b.shape(x)) - 2)
    product = b.emit.call("mul", b.out(x), b.emit.tensor(scale.detach().reshape(shape)))
    return b.emit.call("add", product, b.emit.tensor(shift.detach().reshape(shape)))


@rule("_native_batch_norm_legit_no_training")  # as which torch takes it apart
def _batch_norm_apart(
    b: AtenNet, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    return (_batch_norm(b, x, weight, bias, mean, var, False, momentum, eps),)


def edged(b: AtenNet, x: Any, pad: list[int], mode: str) -> Any:
    """A tensor with entries of its own beyond its ends, of the last dimension first."""
    rank, value = len(b.shape(x)), b.out(x)
    if not all(isinstance(size, int) and size >= 0 for size in pad):
        return NotImplemented
    for k, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = b.axis(x, rank - 1 - k)
        if mode == "reflect":
            first = b.emit.slice(value, axis, before, 0, -1)
            last = b.emit.slice(value, axis, -2, -2 - after, -1)
        elif mode == "circular":
            first, last = b.emit.slice(value, axis, -before), b.emit.slice(value, axis, 0, after)
        else:  # replicate
            first = b.emit.take(value, b.emit.ints([0] * before), axis)
            last = b.emit.take(b.emit.slice(value, axis, -1, END), b.emit.ints([0] * after), axis)
        parts = [first] * bool(before) + [value] + [last] * bool(after)
        value = b.emit.concat(parts, axis)
    return value
