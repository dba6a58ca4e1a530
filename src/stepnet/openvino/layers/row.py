"""One row of the table of layers, and what its functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.file_model import Misfit
from stepnet.file_model import check_size as check_size
from stepnet.file_model import same_types as same_types
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

Function = Callable[..., Any]  # of the inputs; gives a tensor, or a tuple of them for several outputs
Maker = Callable[[Layer, Attributes], Function]


@dataclass(frozen=True)
class Row:
    """How layers of one type run.

    Args:
        type: the type as OpenVINO writes it; files are matched in any case.
        make: reads the attributes once, and gives the function that runs.
        inputs: the fewest and the most inputs.
        outputs: the fewest and the most outputs.
        values: inputs that say a shape, an axis or another plain number: the function gets Python
            numbers or lists for them, not tensors.
    """

    type: str
    make: Maker
    inputs: tuple[int, int]
    outputs: tuple[int, int] = (1, 1)
    values: tuple[int, ...] = ()


def plain(function: Function) -> Maker:
    """A row's maker for a function without attributes."""
    return lambda layer, attributes: function


def listed(value: Any) -> list[Any]:
    """A value input as a flat list: one number counts as a list of one."""
    if not isinstance(value, list):
        return [value]
    return (
        [item for part in value for item in listed(part)]
        if any(isinstance(v, list) for v in value)
        else value
    )


def number(value: Any, name: str) -> Any:
    """A value input that must be one number."""
    flat = listed(value)
    if len(flat) != 1:
        raise Misfit(f"{name} must be one number", got=f"{len(flat)} numbers", expected="1", dims=len(flat))
    return flat[0]


def axis_in(axis: int, rank: int, name: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        Misfit: it lies outside the tensor.
    """
    if not -rank <= axis < rank:
        raise Misfit(
            f"{name} {axis} lies outside a tensor of {rank} dimensions",
            got=axis,
            expected=f"{-rank} to {rank - 1}" if rank else "a tensor with axes",
            dims=(axis, rank),
        )
    return axis % rank


def axes_in(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, in order, each once."""
    return sorted({axis_in(a, rank, "axes:") for a in axes})


def shape_text(x: Tensor) -> str:
    """`[2, 3]`, for messages."""
    return str(list(x.shape))


def integers(x: Tensor, what: str) -> Tensor:
    """Indices as int64.

    Raises:
        Misfit: they are no integers.
    """
    if x.dtype.is_floating_point or x.dtype is torch.bool:
        raise Misfit(f"{what} must be integers", got=dtype_name(x.dtype), dims=str(x.dtype))
    return x.long()
