"""Layers that work element by element: arithmetic, comparisons, logic, conversions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.file_model import quotient
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import (
    BITS,
    NUMBERS,
    TRUTH,
    WHOLE,
    Function,
    Maker,
    Misfit,
    Row,
    differ,
    plain,
    same_types,
    shape_text,
)

BROADCASTS = ("numpy", "none", "pdpd")


def broadcast_together(a: Tensor, b: Tensor, mode: str, axis: int) -> tuple[Tensor, Tensor]:
    """Two operands made fit for each other by a layer's `auto_broadcast`.

    Raises:
        Misfit: their shapes do not fit together.
    """
    if mode == "pdpd":
        return a, _along(a, b, axis)
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


def _along(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """b with its dimensions where a has them, from an axis on (-1: the last ones); ones at its end do not
    count."""
    shape = list(b.shape)
    at = a.dim() - b.dim() if axis == -1 else axis
    if a.dim() == b.dim() and not any(map(differ, a.shape, shape)):
        return b
    while shape and shape[-1] == 1:
        shape.pop()
    inside = a.shape[max(at, 0) :][: len(shape)]
    if (
        at < 0
        or b.dim() > a.dim()
        or len(inside) < len(shape)
        or any(n != 1 and differ(m, n) for m, n in zip(inside, shape, strict=True))
    ):
        raise Misfit(
            f"shapes {shape_text(a)} and {shape_text(b)} do not fit together (pdpd)",
            got=f"{shape_text(b)} at axis {at}",
            expected=f"dimensions that {shape_text(a)} has from that axis on",
            dims=str((a.shape, b.shape)),
        )
    return b.reshape([*shape, *[1] * (a.dim() - at - len(shape))])


def _differ(a: Tensor, b: Tensor, dims: tuple[int, int]) -> Misfit:
    return Misfit(
        f"shapes {shape_text(a)} and {shape_text(b)} do not fit together",
        got=f"{dims[0]} and {dims[1]}",
        expected="equal numbers, or 1 where the layer broadcasts",
        dims=dims,
    )


def start_axis(attributes: Attributes) -> int:
    """The axis that pdpd begins at; OpenVINO takes the first where a file does not say it."""
    return attributes.int("axis", 0)


def binary(function: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    """A maker for two operands of one type, broadcast."""

    def make(layer: Layer, attributes: Attributes) -> Function:
        mode = attributes.choice("auto_broadcast", (*BROADCASTS, "explicit"), "numpy")
        axis = start_axis(attributes)

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


def _select(layer: Layer, attributes: Attributes) -> Function:
    mode = attributes.choice("auto_broadcast", BROADCASTS, "numpy")
    axis = start_axis(attributes)

    def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        same_types((a, b))
        a, b = broadcast_together(a, b, mode, axis)
        a, condition = broadcast_together(a, condition, mode, axis)
        return torch.where(condition, a, b)

    return select


def _convert(layer: Layer, attributes: Attributes) -> Function:
    kind = attributes.element_type("destination_type")
    if kind.of_constants:
        raise Misfit(
            f"only constants are of {kind.name}", got=kind.name, expected="another type, such as f16"
        )
    return lambda x: convert(x, kind.dtype)


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Another element type; a truth value is whether the number is not zero."""
    return x != 0 if dtype is torch.bool and x.dtype is not torch.bool else x.to(dtype)


def _promoted(a: torch.dtype, b: torch.dtype, target: torch.dtype) -> tuple[torch.dtype, bool]:
    """The element type of both, and whether it keeps all their numbers; `target`: that of any signed whole
    numbers with unsigned ones of 64 bits."""
    if a == b or torch.bool in (a, b):
        return (b if a is torch.bool else a), True
    large, small = (a, b) if a.itemsize > b.itemsize else (b, a)
    if a.is_floating_point and b.is_floating_point:
        return (large, True) if large.itemsize > small.itemsize else (torch.float32, False)
    if a.is_floating_point or b.is_floating_point:
        real, whole = (a, b) if a.is_floating_point else (b, a)
        return real, whole.itemsize < real.itemsize
    if a.is_signed == b.is_signed:
        return large, True
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed, True
    wider = {1: torch.int16, 2: torch.int32, 4: torch.int64}.get(unsigned.itemsize)
    return target if wider is None else wider, False


def _promote(layer: Layer, attributes: Attributes) -> Function:
    scalars = attributes.bool("pytorch_scalar_promotion", False)
    unsafe = attributes.bool("promote_unsafe", False)
    target = attributes.element_type("u64_integer_promotion_target", "f32").dtype

    def common(a: Tensor, b: Tensor) -> torch.dtype:
        if scalars and (a.dim() == 0) != (b.dim() == 0):
            one, many = (a.dtype, b.dtype) if a.dim() == 0 else (b.dtype, a.dtype)
            orders = [(kind.is_floating_point, kind is not torch.bool) for kind in (one, many)]
            return one if orders[0] > orders[1] else many
        found, safe = _promoted(a.dtype, b.dtype, target)
        if not safe and not unsafe:
            shown = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
            wanted = 'types that one holds all numbers of, or promote_unsafe="true"'
            raise Misfit("no element type holds the numbers of both", got=shown, expected=wanted, dims=shown)
        return found

    def promote(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dtype = common(a, b)
        return convert(a, dtype), convert(b, dtype)

    return promote


def _two(name: str, function: Callable[[Tensor, Tensor], Tensor], kind: str = NUMBERS) -> Row:
    return Row(name, binary(function), (2, 2), takes=(kind,))


ROWS = (
    _two("Add", torch.add),
    _two("Subtract", torch.sub),
    _two("Multiply", torch.mul),
    Row("Divide", _divide, (2, 2), takes=(NUMBERS,)),
    _two("Power", _power),
    _two("Maximum", torch.maximum),
    _two("Minimum", torch.minimum),
    _two("Mod", torch.fmod),
    _two("FloorMod", torch.remainder),
    _two("SquaredDifference", lambda a, b: (a - b) * (a - b)),
    _two("Equal", torch.eq, ""),
    _two("NotEqual", torch.ne, ""),
    _two("Greater", torch.gt, ""),
    _two("GreaterEqual", torch.ge, ""),
    _two("Less", torch.lt, ""),
    _two("LessEqual", torch.le, ""),
    _two("BitwiseAnd", torch.bitwise_and, BITS),
    _two("BitwiseOr", torch.bitwise_or, BITS),
    _two("BitwiseXor", torch.bitwise_xor, BITS),
    _two("BitwiseLeftShift", torch.bitwise_left_shift, WHOLE),
    _two("BitwiseRightShift", torch.bitwise_right_shift, WHOLE),
    Row("BitwiseNot", plain(torch.bitwise_not), (1, 1), takes=(BITS,)),
    _two("LogicalAnd", torch.logical_and, TRUTH),
    _two("LogicalOr", torch.logical_or, TRUTH),
    _two("LogicalXor", torch.logical_xor, TRUTH),
    Row("LogicalNot", plain(lambda x: torch.logical_not(x.bool()).to(x.dtype)), (1, 1)),
    Row("Select", _select, (3, 3), takes=(TRUTH, "")),
    Row("Convert", _convert, (1, 1)),
    Row("ConvertLike", plain(lambda x, like: convert(x, like.dtype)), (2, 2)),
    Row("ConvertPromoteTypes", _promote, (2, 2), (2, 2)),
)
