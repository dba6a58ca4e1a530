"""Matrix products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import Window, max_places, max_pool, mean_pool, transposed
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, Function, Misfit, Row, axis_in, differ, listed, named, same_types, shape_text

_AUTO_PAD = ("explicit", "notset", "same_upper", "same_lower", "valid")


def _of_fitting(x: Tensor, y: Tensor) -> list[Tensor] | None:
    """The shape of x times a matrix that has as many rows as x has columns, which else is y; None: it is not
    asked for, or batches may differ, too."""
    if not x.is_meta or min(x.dim(), y.dim()) > 2:
        return None
    rows = x.shape[-1]
    return [torch.matmul(x, y.new_empty((*y.shape[:-2], rows, y.shape[-1]) if y.dim() > 1 else (rows,)))]


def _mat_mul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    same_types((a, b))
    if a.dim() == 0 or b.dim() == 0:
        raise Misfit(f"{shape_text(a)} x {shape_text(b)}: a number is no matrix", dims=(a.dim(), b.dim()))
    x = a.transpose(-1, -2) if transpose_a and a.dim() > 1 else a
    y = b.transpose(-1, -2) if transpose_b and b.dim() > 1 else b
    m, n = x.shape[-1], y.shape[-2 if y.dim() > 1 else 0]
    if differ(m, n):
        raise Misfit(
            f"{shape_text(x)} x {shape_text(y)} do not match",
            got=f"{m} columns and {n} rows",
            expected="as many columns of the first as rows of the second",
            dims=(m, n),
            gives=_of_fitting(x, y),
        )
    return torch.matmul(x, y)


def _einsum(layer: Layer, attributes: Attributes) -> Function:
    equation = attributes.text("equation").replace(" ", "")

    def einsum(*operands: Tensor) -> Tensor:
        same_types(operands)
        return torch.einsum(equation, *operands)

    return einsum


def _inverse(x: Tensor, *, adjoint: bool = False) -> Tensor:
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        raise Misfit(f"{shape_text(x)} is no square matrix", dims=str(x.shape))
    turned = x.mT if adjoint else x
    if x.dtype in (torch.float16, torch.bfloat16):
        return torch.linalg.inv(turned.float()).to(x.dtype)
    return torch.linalg.inv(turned)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: Tensor | None = None, *,
    causal: bool = False,
) -> Tensor:  # fmt: skip
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


def _convolution(grouped: bool) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        shape = _window(attributes, None)

        def convolution(x: Tensor, weight: Tensor) -> Tensor:
            same_types((x, weight))
            groups = 1
            if grouped:
                groups = weight.shape[0]
                weight = weight.reshape(weight.shape[0] * weight.shape[1], *weight.shape[2:])
            rank = x.dim() - 2
            if rank not in (1, 2, 3) or weight.dim() != x.dim() or len(shape.strides) not in (0, rank):
                raise Misfit(
                    f"data {shape_text(x)} and kernel {shape_text(weight)} do not fit",
                    expected="1 to 3 spatial axes, and strides and dilations for each",
                    dims=(x.dim(), weight.dim(), len(shape.strides)),
                )
            if differ(x.shape[1], weight.shape[1] * groups):
                raise Misfit(
                    f"data {shape_text(x)} and kernel {shape_text(weight)} do not fit",
                    got=f"{x.shape[1]} channels, the kernel takes {weight.shape[1] * groups}",
                    dims=(x.shape[1], weight.shape[1], groups),
                )
            window = _of_kernel(shape, weight.shape[2:])
            run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
            strides, dilations = list(window.strides), list(window.dilations)
            return run(window.pad(x, 0.0), weight, None, strides, 0, dilations, groups)

        return convolution

    return make


def _backprop(grouped: bool) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        shape = _window(attributes, None)
        added = attributes.ints("output_padding", [])

        def backprop(x: Tensor, weight: Tensor, sizes: Any = None) -> Tensor:
            same_types((x, weight))
            groups = weight.shape[0] if grouped else 1
            weight = weight.flatten(0, 1) if grouped else weight
            window = _of_kernel(shape, weight.shape[2:])
            more = added or [0] * len(window.strides)
            if window.auto is not None:  # where sizes say what is cut off, the other way round than in ONNX
                none, other = [0] * len(more), {"same_upper": "same_lower", "same_lower": "same_upper"}
                window = replace(window, begin=none, end=none, auto=other.get(window.auto))
            wanted = None if sizes is None else listed(sizes)
            return transposed(window, x, weight, None, groups=groups, more=more, sizes=wanted)

        return backprop

    return make


def _window(attributes: Attributes, kernel: list[int] | None, rounding: str = "floor") -> Window:
    """Strides, dilations and padding of a sliding window; a kernel of None is known later."""
    names = ("strides", "dilations", "pads_begin", "pads_end")
    said = [attributes.ints(name, []) for name in names]
    auto = attributes.choice("auto_pad", _AUTO_PAD, "explicit")
    rank = max(map(len, (kernel or (), *said)))
    strides, dilations, begin, end = (part or [1 if k < 2 else 0] * rank for k, part in enumerate(said))
    sizes = [1] * rank if kernel is None else kernel
    fixed = auto in ("explicit", "notset")
    return Window(sizes, strides, dilations, begin, end, None if fixed else auto, rounding)


def _of_kernel(window: Window, kernel: Sequence[int]) -> Window:
    """A window of a kernel; where nothing is said of it, it steps by one and pads nothing."""
    if window.strides:
        return replace(window, kernel=kernel)
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    return replace(window, kernel=kernel, strides=ones, dilations=ones, begin=zeros, end=zeros)


def _max_pool(layer: Layer, attributes: Attributes) -> Function:
    window = _pool_window(attributes)
    dtype = attributes.element_type("index_element_type", "i64").dtype
    if len(layer.outputs) == 1:
        return lambda x: max_pool(window, x)
    axis = attributes.int("axis", 0)

    def pool(x: Tensor) -> tuple[Tensor, Tensor]:
        among = math.prod(x.shape[axis_in(axis, x.dim()) :])
        return max_pool(window, x), (max_places(window, x) % max(among, 1)).to(dtype)

    return pool


def _avg_pool(layer: Layer, attributes: Attributes) -> Function:
    window, without = _pool_window(attributes), attributes.bool("exclude-pad", True)
    pads = [max(pair) for pair in zip(window.begin, window.end, strict=True)]
    if without and window.auto is None and any(p >= k for p, k in zip(pads, window.kernel, strict=True)):
        what = "a window lies in the padding alone, which does not count"
        raise Misfit(
            what, got=f"pads of {pads}, a kernel of {list(window.kernel)}", expected="a wider kernel"
        )
    # As the reference code of OpenVINO has it, what ceil adds counts only where something is padded.
    # (same_upper that pads nothing leaves no window incomplete; ceil_torch counts as PyTorch does.)
    padded = any(pads) if window.auto is None else window.auto != "valid"
    return lambda x: mean_pool(window, x, with_padding=padded and not without)


_AVERAGES = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
_LARGEST = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


def _adaptive(kind: Sequence[Callable[..., Any]]) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        dtype = attributes.index_type("index_element_type", "i64").dtype

        def pool(x: Tensor, sizes: Any) -> Any:
            shape = listed(sizes)
            if x.dim() - 2 not in (1, 2, 3) or len(shape) != x.dim() - 2 or any(n < 1 for n in shape):
                raise Misfit(f"sizes {shape} do not fit data {shape_text(x)}", dims=(x.dim(), str(shape)))
            if kind is _AVERAGES:
                return kind[x.dim() - 3](x, shape)
            found, places = kind[x.dim() - 3](x, shape, return_indices=True)
            return found, places.to(dtype)

        return pool

    return make


def _pool_window(attributes: Attributes) -> Window:
    rounding = attributes.choice("rounding_type", ("floor", "ceil", "ceil_torch"), "floor")
    return _window(attributes, attributes.ints("kernel"), rounding)


ROWS = (
    Row("MatMul", named(_mat_mul), (2, 2)),
    Row("Einsum", _einsum, (1, 4096), takes=(NUMBERS,)),
    Row("Inverse", named(_inverse), (1, 1)),
    Row("ScaledDotProductAttention", named(_attention), (3, 5)),
    Row("Convolution", _convolution(grouped=False), (2, 2), takes=(NUMBERS,)),
    Row("GroupConvolution", _convolution(grouped=True), (2, 2), takes=(NUMBERS,)),
    Row("ConvolutionBackpropData", _backprop(grouped=False), (2, 3), values=(2,), takes=(NUMBERS,)),
    Row("GroupConvolutionBackpropData", _backprop(grouped=True), (2, 3), values=(2,), takes=(NUMBERS,)),
    Row("AdaptiveAvgPool", _adaptive(_AVERAGES), (2, 2), values=(1,)),
    Row("AdaptiveMaxPool", _adaptive(_LARGEST), (2, 2), (2, 2), values=(1,)),
    Row("MaxPool", _max_pool, (1, 1), (1, 2)),
    Row("AvgPool", _avg_pool, (1, 1)),
)
