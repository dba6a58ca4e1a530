"""Layers that sum, compare or normalise along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import cumulated, extreme, mean
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .elementwise import BROADCASTS, broadcast_together, start_axis
from .row import (
    NUMBERS,
    REAL,
    TRUTH,
    Function,
    Misfit,
    Row,
    axes_in,
    axis_in,
    listed,
    named,
    number,
    same_types,
    shape_text,
)

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(name: str, function: Reduction) -> Row:
    def make(layer: Layer, attributes: Attributes) -> Function:
        keep = attributes.bool("keep_dims", False)

        def reduce(x: Tensor, axes: Any) -> Tensor:
            chosen = axes_in(listed(axes), x.dim()) if x.dim() else _of_number(listed(axes))
            if not chosen:  # over no axis: what is left is to take an amount, say
                return function(x.unsqueeze(-1), [x.dim()], False).to(x.dtype)
            return function(x, chosen, keep).to(x.dtype)

        return reduce

    kind = TRUTH if "Logical" in name else NUMBERS
    return Row(name, make, (2, 2), values=(1,), takes=(kind,))


def _of_number(axes: list[int]) -> list[int]:
    """The axes of a number, which has none: 0 and -1 stand for all that it has."""
    axes_in(axes, 1)
    return []


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The mean; of nothing, 0."""
    if any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
        return torch.sum(x, axes, keep)
    return mean(x, axes, keep)


def _one_by_one(function: Callable[[Tensor, int, bool], Tensor]) -> Reduction:
    def reduce(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
        for axis in reversed(axes):
            x = function(x, axis, keep)
        return x

    return reduce


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sqrt(torch.sum(x * x, axes, keep))


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        axis = attributes.int("axis", 1)
        if axis < 0 and layer.opset < 8 and layer.type.lower() == "softmax":
            raise Misfit("axis is not negative in the first version", got=axis, expected="0, 1, ...")
        return lambda x: function(x, axis_in(axis, x.dim() or 1))

    return make


def _cum_sum(x: Tensor, axis: Any = 0, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    return cumulated(x, number(axis, "axis"), "cumsum", exclusive=exclusive, reverse=reverse)


def _mvn(layer: Layer, attributes: Attributes) -> Function:
    said = None if layer.opset >= 6 else True
    with_variance, eps = attributes.bool("normalize_variance", said), attributes.float("eps")
    inside = True
    if "eps_mode" in attributes:
        modes = ("inside_sqrt", "outside_sqrt", "inside", "outside")
        inside = attributes.choice("eps_mode", modes).startswith("inside")
    across = attributes.bool("across_channels", False)

    def mvn(x: Tensor, axes: Any = None) -> Tensor:
        chosen = list(range(1 if across else 2, x.dim())) if axes is None else axes_in(listed(axes), x.dim())
        centred = x - (x.mean(chosen, keepdim=True) if chosen else x)
        if not with_variance:
            return centred
        variance = (centred * centred).mean(chosen, keepdim=True) if chosen else centred
        return centred / (torch.sqrt(variance + eps) if inside else torch.sqrt(variance) + eps)

    return mvn


def _normalize_l2(layer: Layer, attributes: Attributes) -> Function:
    eps, mode = attributes.float("eps"), attributes.choice("eps_mode", ("add", "max"))

    def normalize(x: Tensor, axes: Any) -> Tensor:
        chosen = axes_in(listed(axes), x.dim())
        if not chosen:  # each number by itself
            return x / torch.where(x == 0, 1, x)
        squares = (x * x).sum(chosen, keepdim=True)
        return x / torch.sqrt(squares + eps if mode == "add" else squares.clamp(min=eps))

    return normalize


def _batch_norm(layer: Layer, attributes: Attributes) -> Function:
    eps = attributes.float("epsilon")
    early = layer.opset < 5
    if not eps >= 0:
        raise Misfit("epsilon must be >= 0", got=eps, expected="a small number, such as 1e-5")

    def batch_norm(*inputs: Tensor) -> Tensor:
        same_types(inputs)
        x, gamma, beta, mean, variance = inputs
        if early:  # version 1 has the data in third place
            gamma, beta, x = x, gamma, beta
        if x.dim() < 2:
            raise Misfit("the data has no channel axis", got=shape_text(x), dims=x.dim())
        for part in (gamma, beta, mean, variance):
            if part.shape != (x.shape[1],):
                raise Misfit(
                    f"gamma, beta, mean and variance must be [{x.shape[1]}]",
                    got=shape_text(part),
                    dims=(x.shape[1], str(part.shape)),
                )
        shape = (-1, *(1,) * (x.dim() - 2))
        scale = gamma / torch.sqrt(variance + eps)
        return x * scale.reshape(shape) + (beta - mean * scale).reshape(shape)

    return batch_norm


def _lrn(layer: Layer, attributes: Attributes) -> Function:
    alpha, beta, bias = (attributes.float(name) for name in ("alpha", "beta", "bias"))
    size = attributes.int("size")
    if size < 1:
        raise Misfit("size must be at least 1", got=size)
    reach = (size - 1) // 2

    def lrn(x: Tensor, axes: Any) -> Tensor:
        squares, chosen = x * x, axes_in(listed(axes), x.dim())
        for axis in chosen:  # sums of windows, as differences of sums from the start
            whole = F.pad(squares.cumsum(axis), [*[0, 0] * (x.dim() - 1 - axis), 1, 0])
            place = torch.arange(x.shape[axis], device=x.device)
            ends, starts = (place + reach + 1).clamp(max=x.shape[axis]), (place - reach).clamp(min=0)
            squares = whole.index_select(axis, ends) - whole.index_select(axis, starts)
        return x / (bias + alpha / size ** len(chosen) * squares) ** beta

    return lrn


def _grn(x: Tensor, *, bias: float) -> Tensor:
    return x / torch.sqrt((x * x).sum(1, keepdim=True) + bias)


def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float) -> Tensor:
    fits = x.dim() > 1 and {scale.shape, bias.shape} == {x.shape[1:2]}
    if not fits or num_groups < 1 or x.shape[1] % num_groups:
        raise Misfit(
            f"{num_groups} groups, scale {shape_text(scale)} and bias {shape_text(bias)} do not fit"
            f" {shape_text(x)}",
            dims=str((x.shape, num_groups, scale.shape, bias.shape)),
        )
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def _fake_quantize(layer: Layer, attributes: Attributes) -> Function:
    steps = attributes.int("levels") - 1
    if steps < 1:
        raise Misfit("levels must be at least 2", got=steps + 1)

    mode, axis = attributes.choice("auto_broadcast", BROADCASTS, "numpy"), start_axis(attributes)

    def fake_quantize(x: Tensor, *limits: Tensor) -> Tensor:
        low, high, out_low, out_high = (broadcast_together(x, each, mode, axis)[1] for each in limits)
        step = torch.round((x - low) / (high - low) * steps)
        inside = step / steps * (out_high - out_low) + out_low
        below, above = x <= torch.minimum(low, high), x > torch.maximum(low, high)
        return torch.where(below, out_low, torch.where(above, out_high, inside))

    return fake_quantize


ROWS = (
    _reduce("ReduceSum", lambda x, axes, keep: torch.sum(x, axes, keep)),
    _reduce("ReduceMean", _mean),
    _reduce("ReduceMax", lambda x, axes, keep: extreme(x, axes, keep, "amax")),
    _reduce("ReduceMin", lambda x, axes, keep: extreme(x, axes, keep, "amin")),
    _reduce("ReduceProd", _one_by_one(lambda x, axis, keep: torch.prod(x, axis, keep))),
    _reduce("ReduceL1", lambda x, axes, keep: torch.sum(torch.abs(x), axes, keep)),
    _reduce("ReduceL2", _l2),
    _reduce("ReduceLogicalAnd", _one_by_one(lambda x, axis, keep: torch.all(x, axis, keep))),
    _reduce("ReduceLogicalOr", _one_by_one(lambda x, axis, keep: torch.any(x, axis, keep))),
    Row("SoftMax", _softmax(torch.softmax), (1, 1)),
    Row("LogSoftmax", _softmax(torch.log_softmax), (1, 1)),
    Row("CumSum", named(_cum_sum), (1, 2), values=(1,)),
    Row("MVN", _mvn, (1, 2), values=(1,)),
    Row("NormalizeL2", _normalize_l2, (2, 2), values=(1,)),
    Row("BatchNormInference", _batch_norm, (5, 5), takes=(REAL,)),
    Row("LRN", _lrn, (2, 2), values=(1,)),
    Row("GRN", named(_grn), (1, 1)),
    Row("GroupNormalization", named(_group_norm), (3, 3)),
    Row("FakeQuantize", _fake_quantize, (5, 5)),
)
