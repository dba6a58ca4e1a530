"""Operators on axes of space: pooling, transposed convolution; and numbers in few bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import Misfit, Window, axis_in, blocks, max_places, max_pool, mean_pool, transposed

from .elementwise import cast
from .info import Info, Run, dtype_of, functions, of_inputs, op


def _window(node: Info) -> Window:
    kernel = node.get("kernel_shape", [])
    rank = len(kernel)
    auto = node.get("auto_pad", "NOTSET").lower()
    if auto not in ("notset", "valid", "same_upper", "same_lower"):
        raise Misfit("no such padding", auto, "NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    pads = node.get("pads", [0] * 2 * rank)
    if len(pads) != 2 * rank:
        raise Misfit("there must be two pads for each axis", pads, f"{2 * rank} numbers")
    return Window(
        kernel, node.get("strides", [1] * rank), node.get("dilations", [1] * rank), pads[:rank], pads[rank:],
        None if auto == "notset" else auto, "ceil_torch" if node.get("ceil_mode", 0) else "floor",
    )  # fmt: skip


@op("MaxPool")
def _max_pool(node: Info) -> Run:
    window, turned = _window(node), node.get("storage_order", 0)
    if node.count == 1:
        return lambda x: max_pool(window, x)

    def pool(x: Tensor) -> tuple[Tensor, Tensor]:
        if not turned:
            return max_pool(window, x), max_places(window, x)
        places = max_places(window, x)  # with the first axis of space as the innermost
        first, inner, rest = 0, 1, places
        for size in reversed(x.shape[2:]):
            first, rest = first + rest % size * (math.prod(x.shape[2:]) // (inner * size)), rest // size
            inner *= size
        return max_pool(window, x), first + rest * inner

    return pool


@op("AveragePool")
def _average_pool(node: Info) -> Run:
    window, with_padding = _window(node), bool(node.get("count_include_pad", 0))
    return lambda x: mean_pool(window, x, with_padding=with_padding)


@op("LpPool")
def _lp_pool(node: Info) -> Run:
    window, p = _window(node), node.get("p", 2)

    def pool(x: Tensor) -> Tensor:
        window.check(x)
        return window.parts(window.pad(x.abs() ** p, 0.0)).sum(-1) ** (1 / p)

    return pool


@op("ConvTranspose", inputs=(2, 3))
def _transposed(node: Info) -> Run:
    strides, dilations, pads = node.get("strides"), node.get("dilations"), node.get("pads")
    group, auto = node.get("group", 1), node.get("auto_pad", "NOTSET").lower()
    wanted, more = node.get("output_shape"), node.get("output_padding")

    def conv(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        rank = x.dim() - 2
        same = "same_upper" if auto == "same_upper" else "same_lower" if wanted or "same" in auto else None
        window = Window(
            w.shape[2:], strides or [1] * rank, dilations or [1] * rank, (pads or [0] * 2 * rank)[:rank],
            (pads or [0] * 2 * rank)[rank:], same,
        )  # fmt: skip
        sizes = wanted[-rank:] if wanted else None
        if sizes is None and same:
            sizes = [n * s for n, s in zip(x.shape[2:], window.strides, strict=True)]
        return transposed(window, x, w, b, groups=group, more=more or [0] * rank, sizes=sizes)

    return conv


@of_inputs("LRN")
def _lrn(x: Tensor, *, size: int = 1, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    around = [(size - 1) // 2, size // 2]
    squares = F.pad((x * x).movedim(1, -1), around).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * squares) ** beta


functions(
    (1, 1), {"GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.dim())), True), "Det": torch.linalg.det}
)


def each(part: Tensor, x: Tensor, axis: int, block: int = 0) -> Tensor:
    """A scale or a zero point, for the numbers of x that it is of."""
    if part.dim() == 0 or part.numel() == 1:
        return part.reshape(())
    axis = axis_in(axis, x.dim())
    axes, must = (x.dim(), "have as many axes as what they are of") if block else (1, "be in one row")
    if part.dim() != axes:
        raise Misfit(f"scales, or zero points, must {must}", [*part.shape], f"{axes} axes")
    if not block and part.numel() != x.shape[axis]:
        what = f"there must be one scale, or zero point, for each of axis {axis}"
        raise Misfit(what, [*part.shape], [x.shape[axis]])
    if block:
        return part.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = part.numel()
    return part.reshape(shape)


@op("DequantizeLinear", inputs=(2, 3))
def _dequantize(node: Info) -> Run:
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    fixed = dtype_of(node.get("output_dtype")) if node.get("output_dtype", 0) else None

    def dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        dtype = fixed or scale.dtype
        out = x.to(scale.dtype)
        out = out if zero is None else out - each(zero, x, axis, block).to(scale.dtype)
        return (out * each(scale, x, axis, block)).to(dtype)

    return dequantize


@op("QuantizeLinear", inputs=(2, 3))
def _quantize(node: Info) -> Run:
    saturate = bool(node.get("saturate", 1))
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    fixed = dtype_of(node.get("output_dtype")) if node.get("output_dtype", 0) else None

    def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        dtype = fixed or (torch.uint8 if zero is None else zero.dtype)
        out = x / each(scale, x, axis, block).to(x.dtype)
        if dtype.is_floating_point:
            out = out if zero is None else out + each(zero, x, axis, block).to(x.dtype)
            return cast(saturate, out, dtype)
        real = torch.float32 if dtype.itemsize < 3 else torch.float64  # which hold its numbers
        out = out.round().to(real)
        out = out if zero is None else out + each(zero, x, axis, block).to(real)
        return out.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)

    return quantize


@of_inputs("DepthToSpace", "SpaceToDepth")
def _blocks(x: Tensor, *, blocksize: int = 1, mode: str = "DCR", kind: str) -> Tensor:
    to_space = kind == "DepthToSpace"
    _check_blocks(x, blocksize, channels=to_space)
    return (blocks.depth_to_space if to_space else blocks.space_to_depth)(x, blocksize, mode == "DCR")


def _check_blocks(x: Tensor, k: int, *, channels: bool) -> None:
    """Refuse images whose channels, or whose axes of space, are no blocks."""
    if x.dim() != 4 or k < 1:
        raise Misfit("needs [batch, channels, rows, columns] and a block of one at least", [*x.shape], k)
    _, depth, rows, columns = x.shape
    parts = (depth % (k * k),) if channels else (rows % k, columns % k)
    if any(parts):
        raise Misfit(f"does not fall into blocks of {k} by {k}", [*x.shape])
