"""Layers of one operand: mathematical functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.file_model import sign
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, REAL, Function, Misfit, Row, differ, named, number, plain, same_types


def _kept(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that gives, of whole numbers, the nearest whole number."""

    def kept(x: Tensor) -> Tensor:
        y = function(x)
        whole = y.is_floating_point() and not x.is_floating_point() and x.dtype is not torch.bool
        return y.round().to(x.dtype) if whole else y

    return kept


def _one(name: str, function: Callable[[Tensor], Tensor], kind: str = NUMBERS) -> Row:
    return Row(name, plain(_kept(function)), (1, 1), takes=(kind,))


def _clamp(layer: Layer, attributes: Attributes) -> Function:
    low, high = attributes.float("min"), attributes.float("max")
    if not low <= high:
        raise Misfit("min must be <= max", got=f"min={low}, max={high}", expected="min <= max")

    def clamp(x: Tensor) -> Tensor:
        if x.dtype.is_floating_point:
            kind = torch.finfo(x.dtype)  # the largest number of float64 often stands for no bound
            most = kind.max
            return x.clamp(*(at if -most <= at <= most else at * math.inf for at in (low, high)))
        kind = torch.iinfo(x.dtype)
        least, most = max(kind.min, -(2**53)), min(kind.max, 2**53)
        return x.clamp(math.ceil(min(max(low, least), most)), math.floor(min(max(high, least), most)))

    return clamp


def _is_inf(x: Tensor, *, detect_negative: bool = True, detect_positive: bool = True) -> Tensor:
    return x.isinf() & ((x < 0) & detect_negative | (x > 0) & detect_positive)


def _elu(layer: Layer, attributes: Attributes) -> Function:
    alpha = attributes.float("alpha")
    return _kept(lambda x: torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0))))


def _gelu(layer: Layer, attributes: Attributes) -> Function:
    mode = attributes.choice("approximation_mode", ("erf", "tanh"), "erf")
    return lambda x: F.gelu(x, approximate="tanh" if mode == "tanh" else "none")


def _round(layer: Layer, attributes: Attributes) -> Function:
    if attributes.choice("mode", ("half_to_even", "half_away_from_zero"), "half_to_even") == "half_to_even":
        return torch.round
    return lambda x: torch.sign(x) * torch.floor(torch.abs(x) + 0.5) if x.dtype.is_floating_point else x


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    if slope.dim() == 1 and slope.shape[0] != 1 and x.dim() > 1 and not differ(slope.shape[0], x.shape[1]):
        slope = slope.reshape(-1, *(1,) * (x.dim() - 2))  # one slope a channel; others are broadcast
    return torch.where(x > 0, x, x * _number(slope))


def _number(parameter: Tensor) -> Tensor:
    """A parameter of one number without dimensions, for what it is given may have none."""
    return parameter.reshape(()) if all(size == 1 for size in parameter.shape) else parameter


def _swish(x: Tensor, beta: Any = 1.0) -> Tensor:
    return x * torch.sigmoid(x * number(beta, "beta"))


def _selu(x: Tensor, alpha: Tensor, scale: Tensor) -> Tensor:
    same_types((x, alpha, scale))
    return _number(scale) * torch.where(x > 0, x, _number(alpha) * torch.expm1(x.clamp(max=0)))


def _hard_sigmoid(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    same_types((x, alpha, beta))
    return (_number(alpha) * x + _number(beta)).clamp(0, 1)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _relu(x: Tensor) -> Tensor:
    return torch.relu(x) if x.dtype is not torch.uint8 else x


ROWS = (
    _one("Sigmoid", torch.sigmoid),
    _one("Tanh", torch.tanh),
    _one("ReLU", _relu),
    _one("Exp", torch.exp),
    _one("Log", torch.log),
    _one("Sqrt", torch.sqrt),
    _one("Abs", torch.abs),
    _one("Negative", torch.neg),
    _one("Sign", sign),
    _one("Floor", torch.floor),
    _one("Ceiling", torch.ceil),
    Row("Round", _round, (1, 1)),
    _one("Sin", torch.sin),
    _one("Cos", torch.cos),
    _one("Tan", torch.tan),
    _one("Asin", torch.asin),
    _one("Acos", torch.acos),
    _one("Atan", torch.atan),
    _one("Sinh", torch.sinh),
    _one("Cosh", torch.cosh),
    _one("Asinh", torch.asinh),
    _one("Acosh", torch.acosh),
    _one("Atanh", torch.atanh),
    _one("Erf", torch.erf),
    _one("ErfInv", torch.erfinv, REAL),
    _one("IsNaN", torch.isnan, REAL),
    _one("IsFinite", torch.isfinite, REAL),
    Row("IsInf", named(_is_inf), (1, 1), takes=(REAL,)),
    Row("Clamp", _clamp, (1, 1)),
    Row("Elu", _elu, (1, 1)),
    Row("Gelu", _gelu, (1, 1), takes=(REAL,)),
    Row("PReLU", plain(_prelu), (2, 2)),
    Row("Selu", plain(_selu), (3, 3), takes=(REAL,)),
    Row("Swish", plain(_swish), (1, 2), values=(1,), kinds={1: REAL}, takes=(REAL,)),
    Row("HardSigmoid", plain(_hard_sigmoid), (3, 3), takes=(REAL,)),
    _one("HSigmoid", lambda x: (x + 3).clamp(0, 6) / 6),
    _one("HSwish", lambda x: x * ((x + 3).clamp(0, 6) / 6)),
    _one("Mish", lambda x: x * torch.tanh(_softplus(x)), REAL),
    _one("SoftPlus", _softplus, REAL),
    _one("SoftSign", lambda x: x / (1 + torch.abs(x)), REAL),
)
