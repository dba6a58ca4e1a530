"""Operators over many numbers: reductions, products, norms, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import (
    axes_in,
    axis_in,
    cumulated,
    differ,
    extreme,
    is_recorded,
    largest,
    mean,
    widened,
)

from .info import Info, Misfit, Run, functions, of_inputs, op

Axes = list[int]
REDUCTIONS: dict[str, Callable[[Tensor, Axes, bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype),
    "ReduceMean": lambda x, axes, keep: mean(x, axes, keep),
    "ReduceMax": lambda x, axes, keep: extreme(x, axes, keep, "amax"),
    "ReduceMin": lambda x, axes, keep: extreme(x, axes, keep, "amin"),
    "ReduceProd": lambda x, axes, keep: _product(x, axes, keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: (x * x).sum(axes, keep, dtype=x.dtype).sqrt().to(x.dtype),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log().to(x.dtype),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keep).to(x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep, dtype=x.dtype),
}


def _product(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    for axis in reversed(axes_in(axes, x.dim())):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


@op(*REDUCTIONS, inputs=(1, 2))
def _reduction(node: Info) -> Run:
    axes, keep = node.listed(1, "axes"), bool(node.get("keepdims", 1))
    none, reduce = node.get("noop_with_empty_axes", 0), REDUCTIONS[node.node.op_type]

    def run(*inputs: Any) -> Tensor:
        x, along = inputs[0], axes(inputs)
        if not x.dim() or (none and not along):  # over no axis: what is left is to square, say
            return over(x.unsqueeze(-1), [-1], False)
        return over(x, along or list(range(x.dim())), keep)

    def over(x: Tensor, along: Axes, keep: bool) -> Tensor:
        if x.dtype == torch.bool:
            return x.all(tuple(along), keep) if "Min" in node.node.op_type else x.any(tuple(along), keep)
        return reduce(x, along, keep)

    return run


@of_inputs("ArgMax", "ArgMin")
def _arg(
    x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False, kind: str
) -> Tensor:
    y = x.flip(axis) if select_last_index else x
    found = y.argmax(axis, keepdims) if kind == "ArgMax" else y.argmin(axis, keepdims)
    return x.shape[axis] - 1 - found if select_last_index else found


@op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Info) -> Run:
    kind, old = node.node.op_type, node.opset < 13
    axis = node.get("axis", 1 if old else -1)

    def along(x: Tensor, at: int) -> Tensor:
        if kind == "Hardmax":
            return F.one_hot(x.argmax(at), x.shape[at]).movedim(-1, at).to(x.dtype)
        return x.softmax(at) if kind == "Softmax" else x.log_softmax(at)

    def softmax(x: Tensor) -> Tensor:
        if not old:
            return along(x, axis)
        return along(x.flatten(axis_in(axis, x.dim())), -1).reshape(x.shape)  # over all axes from this one on

    return softmax


@op("CumSum", "CumProd", inputs=(2, 2))
def _cumulated(node: Info) -> Run:
    how = {"exclusive": bool(node.get("exclusive", 0)), "reverse": bool(node.get("reverse", 0))}
    by, axis = node.node.op_type.lower(), node.number(1)
    return lambda *inputs: cumulated(inputs[0], axis(inputs), by, **how)


@op("TopK", inputs=(1, 2))
def _topk(node: Info) -> Run:
    axis, smallest, count = node.get("axis", -1), not node.get("largest", 1), node.number(1, "k")

    def topk(*inputs: Any) -> tuple[Tensor, Tensor]:
        (x,), k = widened(inputs[:1]), count(inputs)
        values, index = largest(x, k, axis, smallest=smallest)
        return values.to(inputs[0].dtype), index

    return topk


functions((2, 2), {"MatMul": torch.matmul})


@op("Gemm", inputs=(2, 3))
def gemm(node: Info) -> Run:
    """The function of a product of matrices, of both and of what is added."""
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    turn_a, turn_b = node.get("transA", 0), node.get("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = a.t() if turn_a else a, b if turn_b else b.t()
        if alpha == beta == 1 and (c is None or c.shape == b.shape[:1]):
            return F.linear(a, b, c)  # which adds c as it multiplies
        out = a @ b.t()
        out = out if alpha == 1 else out * alpha
        return out if c is None else _as_wide_as(out, out + (c if beta == 1 else c * beta))

    return run


@of_inputs("Einsum", inputs=(1, 2**16))
def _einsum(*xs: Tensor, equation: str = "") -> Tensor:
    return torch.einsum(equation, *xs)


@op("Conv", inputs=(2, 3))
def convolution(node: Info) -> Run:
    """The function of a convolution, of x, its weights and a bias."""
    strides, dilations, pads = node.get("strides"), node.get("dilations"), node.get("pads")
    group, auto, kernel = node.get("group", 1), node.get("auto_pad", "NOTSET"), node.get("kernel_shape")

    def conv(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        rank = x.dim() - 2
        if not 1 <= rank <= 3:
            raise Misfit("a convolution has one to three axes of space", list(x.shape))
        stride, dilation = strides or [1] * rank, dilations or [1] * rank
        sizes = pads or [0] * 2 * rank
        if len(sizes) != 2 * rank or len(stride) != rank or len(dilation) != rank:
            said = f"{len(stride)} strides, {len(dilation)} dilations, {len(sizes)} pads"
            raise Misfit(
                "strides, dilations and pads do not fit the axes of space",
                said,
                f"{rank} of each, and as many pads again",
            )
        if kernel is not None and kernel != list(w.shape[2:]):
            raise Misfit("kernel_shape is not that of the weights", kernel, list(w.shape[2:]))
        if auto.startswith("SAME"):
            sizes = _same(x.shape[2:], w.shape[2:], stride, dilation, auto == "SAME_LOWER")
        around = sizes[:rank]
        known = all(isinstance(size, int) for size in sizes)
        if not known or around != sizes[rank:] or min(around) < 0:
            x = F.pad(x, [size for k in reversed(range(rank)) for size in (sizes[k], sizes[k + rank])])
            around = [0] * rank
        if rank == group == dilation[0] == 1 and is_recorded():
            out = _as_product(x, w, b, stride[0], around[0])
            if out is not None:
                return out
        run: Any = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        return run(x, w, b, stride, around, dilation, group)

    return conv


def _as_product(x: Tensor, w: Tensor, b: Tensor | None, stride: int, around: int) -> Tensor | None:
    """A convolution along one axis as a product of matrices, where that is faster: at few places, with many
    weights, which torch's convolution would put in another order in each call, or with one that meets x.
    Weights that meet nothing but padding are left out."""
    size, wide = x.shape[2], w.shape[2]
    places = (size + 2 * around - wide) // stride + 1
    if places < 1 or x.shape[0] * places > 8:
        return None
    first, last = max(0, around - (places - 1) * stride), min(wide, size + around)
    if last <= first or (w.numel() < 8_000 and last - first > 1):
        return None
    before, after = around - first, (places - 1) * stride + last - around - size
    w = w[:, :, first:last]
    if before > 0 or after > 0:
        x = torch.constant_pad_nd(x, [before, max(after, 0)])
    elif before < 0:
        x = x.narrow(2, -before, size + before)
    rows = x.unfold(2, last - first, stride).transpose(1, 2)[:, :places]
    return F.linear(rows.flatten(2), w.flatten(1), b).transpose(1, 2)


def _same(sizes: Any, kernel: Any, stride: Any, dilation: Any, lower: bool) -> list[int]:
    before, after = [], []
    for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        small, large = total // 2, total - total // 2
        before.append(large if lower else small)
        after.append(small if lower else large)
    return before + after


def _as_wide_as(x: Tensor, made: Tensor) -> Tensor:
    """What is made of x and of parts that are spread over x."""
    if made.dim() != x.dim() or any(map(differ, made.shape, x.shape)):
        raise Misfit("a part is wider than what it is spread over", [*made.shape], [*x.shape])
    return made


@of_inputs("LayerNormalization", inputs=(2, 3))
def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-05,
    count: int,
) -> Any:  # fmt: skip
    along = list(range(axis_in(axis, x.dim()), x.dim()))
    if count == 1 and scale.shape == x.shape[along[0] :] and (bias is None or bias.shape == scale.shape):
        return F.layer_norm(x, scale.shape, scale, bias, epsilon)
    mean = x.mean(along, True)
    inverse = ((x - mean).square().mean(along, True) + epsilon).rsqrt()
    y = (x - mean) * inverse * scale
    y = _as_wide_as(x, y if bias is None else y + bias)
    return (y, mean, inverse)[:count] if count > 1 else y


def by_root(x: Tensor, along: list[int], eps: float) -> Tensor:
    """x over the root of the mean of its squares."""
    return x * (x.square().mean(along, True) + eps).rsqrt()


@of_inputs("RMSNormalization", "SimplifiedLayerNormalization", inputs=(2, 2))
def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-05) -> Tensor:
    along = list(range(axis_in(axis, x.dim()), x.dim()))
    return _as_wide_as(x, by_root(x, along, epsilon) * scale)


@of_inputs("BatchNormalization", inputs=(5, 5))
def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-05,
    momentum: float = 0.9, training_mode: int = 0, count: int,
) -> Any:  # fmt: skip
    if not training_mode:
        if torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad):
            each = (-1, *(1,) * (x.dim() - 2))  # torch's own has no gradients by these
            by = scale * (var + epsilon).rsqrt()
            return x * by.reshape(each) + (bias - mean * by).reshape(each)
        return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)
    along = [k for k in range(x.dim()) if k != 1]
    now = x.mean(along), x.var(along, correction=0)
    running = (a.lerp(b.to(a.dtype), 1 - momentum) for a, b in zip((mean, var), now, strict=True))
    return (F.batch_norm(x, *now, scale, bias, eps=epsilon), *running)[:count]


@of_inputs("InstanceNormalization", inputs=(3, 3))
def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-05) -> Tensor:
    along = list(range(2, x.dim()))
    scale, bias = (one.reshape(-1, *(1,) * len(along)) for one in (scale, bias))
    centred = x - x.mean(along, True)
    return centred * (centred.square().mean(along, True) + epsilon).rsqrt() * scale + bias


functions((1, 1), {"GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), True)})


@of_inputs("GlobalLpPool")
def _lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return x.norm(p, tuple(range(2, x.dim())), True)


@of_inputs("LpNormalization")
def _lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = x.norm(p, axis, True)
    return torch.where(size == 0, torch.zeros_like(x), x / size)
