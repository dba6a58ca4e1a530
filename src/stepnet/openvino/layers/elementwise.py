"""Layers that work element by element: arithmetic, comparisons, logic, conversions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepnet.file_model import quotient
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import Function, Maker, Misfit, Row, plain, same_types, shape_text


def broadcast_together(a: Tensor, b: Tensor, mode: str, axis: int) -> tuple[Tensor, Tensor]:
    """Two operands made fit for each other by a layer's `auto_broadcast`.

    Raises:
        Misfit: their shapes do not fit together.
    """
    if mode == "pdpd" and b.dim() < a.dim():
        at = a.dim() - b.dim() if axis == -1 else axis
        if not 0 <= at <= a.dim() - b.dim():
            raise Misfit(f"axis {axis} does not align {shape_text(b)} with {shape_text(a)}", dims=axis)
        b = b.reshape(*b.shape, *(1,) * (a.dim() - at - b.dim()))
    loose = mode != "none"
    for i in range(1, max(a.dim(), b.dim()) + 1):
        if i > min(a.dim(), b.dim()):
            if loose:
                break
            raise _differ(a, b, (a.dim(), b.dim()))
        m, n = a.shape[-i], b.shape[-i]
        if isinstance(m, int) and isinstance(n, int) and m != n and not (loose and 1 in (m, n)):
            raise _differ(a, b, (m, n))
    return a, b


def _differ(a: Tensor, b: Tensor, dims: tuple[int, int]) -> Misfit:
    return Misfit(
        f"shapes {shape_text(a)} and {shape_text(b)} do not fit together",
        got=f"{dims[0]} and {dims[1]}",
        expected="equal numbers, or 1 where the layer broadcasts",
        dims=dims,
    )


def binary(function: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    """A maker for two operands of one type, broadcast."""

    def make(layer: Layer, attributes: Attributes) -> Function:
        mode = attributes.choice("auto_broadcast", ("numpy", "none", "pdpd", "explicit"), "numpy")
        axis = attributes.int("axis", -1)

        def run(a: Tensor, b: Tensor) -> Tensor:
            same_types((a, b))
            return function(*broadcast_together(a, b, "none" if mode == "explicit" else mode, axis))

        return run

    return make


def _divide(layer: Layer, attributes: Attributes) -> Function:
    whole = torch.floor_divide if attributes.bool("m_pythondiv", True) else quotient

    def divide(a: Tensor, b: Tensor) -> Tensor:
        return a / b if a.dtype.is_floating_point else whole(a, b)

    return binary(divide)(layer, attributes)


def _power(a: Tensor, b: Tensor) -> Tensor:
    if not a.dtype.is_floating_point:  # torch refuses negative powers of integers
        return torch.pow(a.double(), b.double()).to(a.dtype)
    return torch.pow(a, b)


def _on_truth(function: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    return binary(lambda a, b: function(a.bool(), b.bool()))


def _select(layer: Layer, attributes: Attributes) -> Function:
    mode = attributes.choice("auto_broadcast", ("numpy", "none", "pdpd"), "numpy")

    def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        same_types((a, b))
        broadcast_together(a, b, mode, -1)
        broadcast_together(condition, a, mode, -1)
        return torch.where(condition.bool(), a, b)

    return select


def _convert(layer: Layer, attributes: Attributes) -> Function:
    kind = attributes.element_type("destination_type")
    if kind.bits < 8:
        raise Misfit("only constants are of less than a byte", got=kind.name)
    return lambda x: convert(x, kind.dtype)


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Another element type; a truth value is whether the number is not zero."""
    return x != 0 if dtype is torch.bool and x.dtype is not torch.bool else x.to(dtype)


def _promote(layer: Layer, attributes: Attributes) -> Function:
    scalars = attributes.bool("pytorch_scalar_promotion", False)

    def promote(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.result_type(a, b) if scalars else torch.promote_types(a.dtype, b.dtype)
        return convert(a, dtype), convert(b, dtype)

    return promote


def _two(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Row:
    return Row(name, binary(function), (2, 2))


ROWS = (
    _two("Add", torch.add),
    _two("Subtract", torch.sub),
    _two("Multiply", torch.mul),
    Row("Divide", _divide, (2, 2)),
    _two("Power", _power),
    _two("Maximum", torch.maximum),
    _two("Minimum", torch.minimum),
    _two("Mod", torch.fmod),
    _two("FloorMod", torch.remainder),
    _two("SquaredDifference", lambda a, b: (a - b) * (a - b)),
    _two("Equal", torch.eq),
    _two("NotEqual", torch.ne),
    _two("Greater", torch.gt),
    _two("GreaterEqual", torch.ge),
    _two("Less", torch.lt),
    _two("LessEqual", torch.le),
    _two("BitwiseAnd", torch.bitwise_and),
    _two("BitwiseOr", torch.bitwise_or),
    _two("BitwiseXor", torch.bitwise_xor),
    _two("BitwiseLeftShift", torch.bitwise_left_shift),
    _two("BitwiseRightShift", torch.bitwise_right_shift),
    Row("BitwiseNot", plain(torch.bitwise_not), (1, 1)),
    Row("LogicalAnd", _on_truth(torch.logical_and), (2, 2)),
    Row("LogicalOr", _on_truth(torch.logical_or), (2, 2)),
    Row("LogicalXor", _on_truth(torch.logical_xor), (2, 2)),
    Row("LogicalNot", plain(lambda x: torch.logical_not(x.bool())), (1, 1)),
    Row("Select", _select, (3, 3)),
    Row("Convert", _convert, (1, 1)),
    Row("ConvertLike", plain(lambda x, like: convert(x, like.dtype)), (2, 2)),
    Row("ConvertPromoteTypes", _promote, (2, 2), (2, 2)),
)
