"""Operators on each number: arithmetic, functions, comparisons, choices, casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.data.dtypes import dtype_name
from stepnet.file_model import UNSIGNED, quotient, same_types, sign, widened

from .info import Info, Misfit, Run, dtype_of, op

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil,
    "Cos": torch.cos, "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor,
    "HardSwish": F.hardswish, "Identity": lambda x: x, "IsNaN": torch.isnan, "Log": torch.log, "Mish": F.mish,
    "Neg": torch.neg, "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
    "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
    "Less": torch.lt, "LessOrEqual": torch.le, "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
}  # fmt: skip
MANY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}


def _on_numbers(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of numbers of one type, which the result has too, unless it is a truth value."""

    def run(*xs: Tensor) -> Tensor:
        same_types(xs)
        if xs[0].dtype not in UNSIGNED:
            return function(*xs)
        out = function(*widened(xs))
        return out if out.dtype is torch.bool else out.to(xs[0].dtype)

    return run


@op(*UNARY)
def _unary(node: Info) -> Run:
    function = UNARY[node.node.op_type]
    return _on_numbers(function) if node.node.op_type == "BitwiseNot" else function


@op(*BINARY, inputs=(2, 2))
def _binary(node: Info) -> Run:
    return _on_numbers(BINARY[node.node.op_type])


@op(*MANY, inputs=(1, 2**16))
def _many(node: Info) -> Run:
    function = MANY[node.node.op_type]
    return _on_numbers(lambda *xs: functools.reduce(function, xs))


@op("Mean", inputs=(1, 2**16))
def _mean(node: Info) -> Run:
    return lambda *xs: functools.reduce(torch.add, xs) / len(xs)


@op("Div", inputs=(2, 2))
def _div(node: Info) -> Run:
    return _on_numbers(lambda x, y: x / y if x.is_floating_point() else quotient(x, y))


@op("Pow", inputs=(2, 2))
def _pow(node: Info) -> Run:
    return lambda x, y: torch.pow(x, y).to(x.dtype)


@op("Mod", inputs=(2, 2))
def _mod(node: Info) -> Run:
    return _on_numbers(torch.fmod if node.get("fmod", 0) else torch.remainder)


@op("BitShift", inputs=(2, 2))
def _shift(node: Info) -> Run:
    left = node.get("direction", "LEFT") == "LEFT"
    return _on_numbers(torch.bitwise_left_shift if left else torch.bitwise_right_shift)


@op("Where", inputs=(3, 3))
def _where(node: Info) -> Run:
    return lambda condition, x, y: torch.where(condition.bool(), x, y)


@op("Clip", inputs=(1, 3))
def _clip(node: Info) -> Run:
    low, high = node.node.attributes.get("min"), node.node.attributes.get("max")

    def clip(x: Tensor, least: Any = None, most: Any = None) -> Tensor:
        least = low.value if low is not None else least
        most = high.value if high is not None else most
        if least is None and most is None:
            return x
        if isinstance(least, Tensor) or isinstance(most, Tensor):
            for bound in (least, most):
                if isinstance(bound, Tensor) and bound.numel() != 1:
                    raise Misfit("a bound must be one number", [*bound.shape], "a scalar")
            x = x if least is None else torch.maximum(x, torch.as_tensor(least))
            return x if most is None else torch.minimum(x, torch.as_tensor(most))
        return torch.clamp(x, least, most)

    return clip


@op("Cast")
def _cast(node: Info) -> Run:
    return functools.partial(cast, bool(node.get("saturate", 1)), dtype=dtype_of(node.get("to", 0)))


def cast(saturate: bool, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x of another type; what is beyond the numbers of one of eight bits, by ONNX's rule."""
    if x.dtype == dtype:
        return x
    if dtype.itemsize == 1 and dtype.is_floating_point:  # of which torch saturates some, by its version
        x, most = x.float(), torch.finfo(dtype).max
        if saturate:
            x = x.clamp(-most, most)
        elif dtype == torch.float8_e4m3fn:  # 464 is halfway to the next number, if there were one
            x = x.masked_fill(x.abs() > 464, torch.nan)
    return x.to(dtype)


@op("BitCast")
def _bit_cast(node: Info) -> Run:
    dtype = dtype_of(node.get("to", 0))
    return lambda x: x.view(dtype) if x.element_size() == dtype.itemsize else _of_other_size(x, dtype)


def _of_other_size(x: Tensor, dtype: torch.dtype) -> Tensor:
    raise Misfit("the types are of different sizes", f"{dtype_name(x.dtype)} and {dtype_name(dtype)}")


@op("CastLike", inputs=(2, 2))
def _cast_like(node: Info) -> Run:
    to = functools.partial(cast, bool(node.get("saturate", 1)))
    return lambda x, like: to(x, like.dtype)


@op("IsInf")
def _isinf(node: Info) -> Run:
    negative, positive = node.get("detect_negative", 1), node.get("detect_positive", 1)
    return lambda x: (
        (x.isneginf() if negative else x < -x.abs()) | (x.isposinf() if positive else x > x.abs())
    )


@op("Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Selu", "Gelu", "Swish", "Shrink")
def _with_numbers(node: Info) -> Run:
    return activation(node.node.op_type, node.get)


def activation(name: str, get: Callable[[str, Any], Any]) -> Callable[[Tensor], Tensor]:
    """An activation with the numbers that `get` gives for its attributes.

    Raises:
        Misfit: there is no such activation.
    """
    plain = UNARY.get(name)
    if plain is not None:
        return plain
    kinds: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        "Affine": lambda: _affine(get("alpha", 1.0), get("beta", 0.0)),
        "Celu": lambda: functools.partial(F.celu, alpha=get("alpha", 1.0)),
        "Elu": lambda: functools.partial(F.elu, alpha=get("alpha", 1.0)),
        "Gelu": lambda: functools.partial(F.gelu, approximate=get("approximate", "none")),
        "HardSigmoid": lambda: _hard_sigmoid(get("alpha", 0.2), get("beta", 0.5)),
        "LeakyRelu": lambda: functools.partial(F.leaky_relu, negative_slope=get("alpha", 0.01)),
        "ScaledTanh": lambda: _scaled_tanh(get("alpha", 1.0), get("beta", 1.0)),
        "Selu": lambda: _selu(
            get("alpha", 1.67326319217681884765625), get("gamma", 1.05070102214813232421875)
        ),
        "Shrink": lambda: _shrink(get("bias", 0.0), get("lambd", 0.5)),
        "Swish": lambda: _swish(get("alpha", 1.0)),
        "ThresholdedRelu": lambda: _thresholded(get("alpha", 1.0)),
    }
    if name not in kinds:
        raise Misfit("no such activation", name, ", ".join(sorted(kinds)))
    return kinds[name]()


def _affine(alpha: float, beta: float) -> Callable[[Tensor], Tensor]:
    return lambda x: alpha * x + beta


def _hard_sigmoid(alpha: float, beta: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.clamp(alpha * x + beta, 0, 1)


def _scaled_tanh(alpha: float, beta: float) -> Callable[[Tensor], Tensor]:
    return lambda x: alpha * torch.tanh(beta * x)


def _selu(alpha: float, gamma: float) -> Callable[[Tensor], Tensor]:
    return lambda x: gamma * F.elu(x, alpha)


def _shrink(bias: float, threshold: float) -> Callable[[Tensor], Tensor]:
    def shrink(x: Tensor) -> Tensor:
        inner = torch.where(x > threshold, x - bias, torch.zeros_like(x))
        return torch.where(x < -threshold, x + bias, inner)

    return shrink


def _swish(alpha: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * torch.sigmoid(alpha * x)


def _thresholded(alpha: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.where(x > alpha, x, torch.zeros_like(x))


@op("Dropout", inputs=(1, 3))
def _dropout(node: Info) -> Run:
    ratio, seen = node.number(1), node.number(2)

    def dropout(*inputs: Any) -> Any:
        x = inputs[0]
        if seen(inputs) and ratio(inputs) != 0:
            raise Misfit("dropout in training mode draws noise that ONNX leaves open")
        mask = torch.bool if node.opset >= 10 else x.dtype
        return (x, torch.ones_like(x, dtype=mask)) if node.count > 1 else x

    return dropout
