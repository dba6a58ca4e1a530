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

from .info import Info, Misfit, Run, dtype_of, functions, of_inputs, op, with_said

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


functions((1, 1), UNARY | {"BitwiseNot": _on_numbers(torch.bitwise_not)})
functions((2, 2), {name: _on_numbers(function) for name, function in BINARY.items()})


@op(*MANY, inputs=(1, 2**16))
def _many(node: Info) -> Run:
    function = MANY[node.node.op_type]
    return _on_numbers(lambda *xs: functools.reduce(function, xs))


functions(
    (2, 2),
    {
        "Div": _on_numbers(lambda x, y: x / y if x.is_floating_point() else quotient(x, y)),
        "Pow": lambda x, y: torch.pow(x, y).to(x.dtype),
    },
)
functions((1, 2**16), {"Mean": lambda *xs: functools.reduce(torch.add, xs) / len(xs)})
functions((3, 3), {"Where": lambda condition, x, y: torch.where(condition.bool(), x, y)})


@op("Mod", inputs=(2, 2))
def _mod(node: Info) -> Run:
    return _on_numbers(torch.fmod if node.get("fmod", 0) else torch.remainder)


@op("BitShift", inputs=(2, 2))
def _shift(node: Info) -> Run:
    left = node.get("direction", "LEFT") == "LEFT"
    return _on_numbers(torch.bitwise_left_shift if left else torch.bitwise_right_shift)


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


@of_inputs("IsInf")
def _isinf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    below = x.isneginf() if detect_negative else x < -x.abs()
    return below | (x.isposinf() if detect_positive else x > x.abs())


def _shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    inner = torch.where(x > lambd, x - bias, torch.zeros_like(x))
    return torch.where(x < -lambd, x + bias, inner)


_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
_NUMBERED: dict[str, Run] = {
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "ThresholdedRelu": lambda x, *, alpha=1.0: torch.where(x > alpha, x, torch.zeros_like(x)),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "Selu": lambda x, *, alpha=_ALPHA, gamma=_GAMMA: gamma * F.elu(x, alpha),
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Swish": lambda x, *, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Shrink": _shrink,
}  # fmt: skip
functions((1, 1), _NUMBERED)
_ACTIVATIONS = _NUMBERED | {
    "Affine": lambda x, *, alpha=1.0, beta=0.0: alpha * x + beta,
    "ScaledTanh": lambda x, *, alpha=1.0, beta=1.0: alpha * torch.tanh(beta * x),
}


def activation(name: str, get: Callable[[str, Any], Any]) -> Callable[[Tensor], Tensor]:
    """An activation with the numbers that `get` gives for its attributes.

    Raises:
        Misfit: there is no such activation.
    """
    plain = UNARY.get(name)
    if plain is not None:
        return plain
    if name not in _ACTIVATIONS:
        raise Misfit("no such activation", name, ", ".join(sorted(_ACTIVATIONS)))
    return with_said(_ACTIVATIONS[name], get)


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
