"""Matrix products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.openvino.attributes import Attributes
from stepnet.openvino.element_types import by_name
from stepnet.openvino.records import Layer

from .row import Function, Misfit, Row, same_types, shape_text

_AUTO_PAD = ("explicit", "notset", "same_upper", "same_lower", "valid")


def _mat_mul(layer: Layer, attributes: Attributes) -> Function:
    left, right = attributes.bool("transpose_a", False), attributes.bool("transpose_b", False)

    def mat_mul(a: Tensor, b: Tensor) -> Tensor:
        same_types((a, b))
        if a.dim() == 0 or b.dim() == 0:
            raise Misfit(f"{shape_text(a)} x {shape_text(b)}: a number is no matrix", dims=(a.dim(), b.dim()))
        x = a.transpose(-1, -2) if left and a.dim() > 1 else a
        y = b.transpose(-1, -2) if right and b.dim() > 1 else b
        m, n = x.shape[-1], y.shape[-2 if y.dim() > 1 else 0]
        if m != n:
            raise Misfit(
                f"{shape_text(x)} x {shape_text(y)} do not match",
                got=f"{m} columns and {n} rows",
                expected="as many columns of the first as rows of the second",
                dims=(m, n),
            )
        return torch.matmul(x, y)

    return mat_mul


def _einsum(layer: Layer, attributes: Attributes) -> Function:
    equation = attributes.text("equation").replace(" ", "")

    def einsum(*operands: Tensor) -> Tensor:
        same_types(operands)
        return torch.einsum(equation, *operands)

    return einsum


def _inverse(layer: Layer, attributes: Attributes) -> Function:
    adjoint = attributes.bool("adjoint", False)

    def inverse(x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
            raise Misfit(f"{shape_text(x)} is no square matrix", dims=str(x.shape))
        return torch.linalg.inv(x) * (torch.linalg.det(x)[..., None, None] if adjoint else 1)

    return inverse


def _attention(layer: Layer, attributes: Attributes) -> Function:
    causal = attributes.bool("causal")

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: Tensor | None = None
    ) -> Tensor:
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.transpose(-1, -2) * factor
        if causal:
            after = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(after, -torch.inf)
        elif mask is not None and mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ value

    return attention


def _convolution(grouped: bool) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        strides, dilations = attributes.ints("strides"), attributes.ints("dilations")
        window = _Window(attributes, strides, dilations)

        def convolution(x: Tensor, weight: Tensor) -> Tensor:
            same_types((x, weight))
            groups = 1
            if grouped:
                groups = weight.shape[0]
                weight = weight.reshape(weight.shape[0] * weight.shape[1], *weight.shape[2:])
            rank = x.dim() - 2
            if rank not in (1, 2, 3) or weight.dim() != x.dim() or len(strides) != rank:
                raise Misfit(
                    f"data {shape_text(x)} and kernel {shape_text(weight)} do not fit",
                    expected="1 to 3 spatial axes, and strides and dilations for each",
                    dims=(x.dim(), weight.dim(), len(strides)),
                )
            if x.shape[1] != weight.shape[1] * groups:
                raise Misfit(
                    f"data {shape_text(x)} and kernel {shape_text(weight)} do not fit",
                    got=f"{x.shape[1]} channels, the kernel takes {weight.shape[1] * groups}",
                    dims=(x.shape[1], weight.shape[1], groups),
                )
            padded = window.pad(x, list(weight.shape[2:]), 0.0)
            run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
            return run(padded, weight, None, strides, 0, dilations, groups)

        return convolution

    return make


class _Window:
    """Strides, dilations and padding of a sliding window."""

    def __init__(self, attributes: Attributes, strides: list[int], dilations: list[int]) -> None:
        self.auto = attributes.choice("auto_pad", _AUTO_PAD, "explicit")
        self.strides, self.dilations = strides, dilations
        explicit = self.auto in ("explicit", "notset")
        self.begin = attributes.ints("pads_begin", None if explicit else [0] * len(strides))
        self.end = attributes.ints("pads_end", None if explicit else [0] * len(strides))
        if not len(strides) == len(dilations) == len(self.begin) == len(self.end):
            raise Misfit("strides, dilations and pads have different lengths")
        if any(s < 1 for s in (*strides, *dilations)):
            raise Misfit("strides and dilations must be at least 1", got=f"{strides}, {dilations}")
        if any(not 0 <= p < 2**31 for p in (*self.begin, *self.end)):
            raise Misfit("pads must be >= 0", got=f"{self.begin}, {self.end}")

    def pads(self, size: list[int], kernel: list[int]) -> list[tuple[int, int]]:
        if self.auto == "valid":
            return [(0, 0)] * len(kernel)
        if self.auto in ("explicit", "notset"):
            return list(zip(self.begin, self.end, strict=True))
        pads = []
        for s, k, stride, dilation in zip(size, kernel, self.strides, self.dilations, strict=True):
            reach = (k - 1) * dilation + 1
            total = max(0, (math.ceil(s / stride) - 1) * stride + reach - s)
            small, big = total // 2, total - total // 2
            pads.append((small, big) if self.auto == "same_upper" else (big, small))
        return pads

    def pad(self, x: Tensor, kernel: list[int], value: float, extra: list[int] | None = None) -> Tensor:
        flat: list[int] = []
        more = extra or [0] * len(kernel)
        for (a, b), c in zip(self.pads(list(x.shape[2:]), kernel)[::-1], more[::-1], strict=True):
            flat += [a, b + c]
        return F.pad(x, flat, value=value) if any(flat) else x


def _max_pool(layer: Layer, attributes: Attributes) -> Function:
    kernel, strides = attributes.ints("kernel"), attributes.ints("strides")
    window = _Window(attributes, strides, attributes.ints("dilations", [1] * len(kernel)))
    ceil = attributes.choice("rounding_type", ("floor", "ceil", "ceil_torch"), "floor")
    dtype = by_name(attributes.text("index_element_type", "i64"), layer.where, "index_element_type").dtype
    if len(kernel) != len(strides) or any(k < 1 for k in kernel):
        raise Misfit("kernel must be a size >= 1 for each stride", got=kernel)
    wants_index = len(layer.outputs) > 1

    def max_pool(x: Tensor) -> object:
        rank = _pool_rank(x, kernel)
        low = float("-inf") if x.dtype.is_floating_point else float(torch.iinfo(x.dtype).min)
        padded = window.pad(x, kernel, low, _ceil_extra(window, x, kernel, ceil))
        run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        if not wants_index:
            return run(padded, kernel, strides, 0, window.dilations)
        if padded.shape != x.shape:
            raise Misfit("indices of padded data are not supported", dims=str(window.begin))
        values, index = run(padded, kernel, strides, 0, window.dilations, return_indices=True)
        return values, index.to(dtype)

    return max_pool


def _avg_pool(layer: Layer, attributes: Attributes) -> Function:
    kernel, strides = attributes.ints("kernel"), attributes.ints("strides")
    window = _Window(attributes, strides, [1] * len(kernel))
    ceil = attributes.choice("rounding_type", ("floor", "ceil", "ceil_torch"), "floor")
    without_pad = attributes.bool("exclude-pad", True)
    if len(kernel) != len(strides) or any(k < 1 for k in kernel):
        raise Misfit("kernel must be a size >= 1 for each stride", got=kernel)

    def avg_pool(x: Tensor) -> Tensor:
        rank = _pool_rank(x, kernel)
        run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        extra = _ceil_extra(window, x, kernel, ceil)
        total = run(window.pad(x, kernel, 0.0, extra), kernel, strides)
        counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
        if not without_pad:  # pads count, what rounding up adds does not
            counted = window.pad(counted, kernel, 1.0)
            short = [a - b for a, b in zip(_sizes(window, x, kernel, extra), counted.shape[2:], strict=True)]
            counted = F.pad(counted, [n for s in short[::-1] for n in (0, s)])
        else:
            counted = window.pad(counted, kernel, 0.0, extra)
        return total / run(counted, kernel, strides)

    return avg_pool


def _sizes(window: _Window, x: Tensor, kernel: list[int], extra: list[int]) -> list[int]:
    pads = window.pads(list(x.shape[2:]), kernel)
    return [s + a + b + c for s, (a, b), c in zip(x.shape[2:], pads, extra, strict=True)]


def _pool_rank(x: Tensor, kernel: list[int]) -> int:
    rank = x.dim() - 2
    if rank not in (1, 2, 3) or len(kernel) != rank:
        raise Misfit(f"kernel {kernel} does not fit data {shape_text(x)}", dims=(x.dim(), len(kernel)))
    return rank


def _ceil_extra(window: _Window, x: Tensor, kernel: list[int], rounding: str) -> list[int]:
    """How much to pad at the end so that a last, incomplete window counts."""
    extra = []
    pads = window.pads(list(x.shape[2:]), kernel)
    for i, (size, (a, b)) in enumerate(zip(x.shape[2:], pads, strict=True)):
        stride = window.strides[i]
        rest = size + a + b - ((kernel[i] - 1) * window.dilations[i] + 1)
        add = -rest % stride if rounding != "floor" and rest >= 0 else 0
        if rounding == "ceil_torch" and add and (rest + add) // stride * stride >= size + a:
            add = 0  # the last window would start in the padding
        extra.append(add)
    return extra


ROWS = (
    Row("MatMul", _mat_mul, (2, 2)),
    Row("Einsum", _einsum, (1, 4096)),
    Row("Inverse", _inverse, (1, 1)),
    Row("ScaledDotProductAttention", _attention, (3, 5)),
    Row("Convolution", _convolution(grouped=False), (2, 2)),
    Row("GroupConvolution", _convolution(grouped=True), (2, 2)),
    Row("MaxPool", _max_pool, (1, 1), (1, 2)),
    Row("AvgPool", _avg_pool, (1, 1)),
)
