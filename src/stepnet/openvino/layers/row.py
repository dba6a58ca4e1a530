"""One row of the table of layers, and what its functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stepnet.file_model import Misfit
from stepnet.file_model import axes_in as axes_in
from stepnet.file_model import axis_in as axis_in
from stepnet.file_model import by_data as by_data
from stepnet.file_model import check_size as check_size
from stepnet.file_model import differ as differ
from stepnet.file_model import integers as integers
from stepnet.file_model import laid_out as laid_out
from stepnet.file_model import laid_out_by as laid_out_by
from stepnet.file_model import same_types as same_types
from stepnet.file_model import shape_text as shape_text
from stepnet.file_model import together as together
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

Function = Callable[..., Any]  # of the inputs; gives a tensor, or a tuple of them for several outputs
Maker = Callable[[Layer, Attributes], Function]
KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "floating-point numbers": lambda dtype: dtype.is_floating_point,
    "numbers": lambda dtype: dtype is not torch.bool,
    "whole numbers": lambda dtype: not dtype.is_floating_point and dtype is not torch.bool,
    "whole numbers or truth values": lambda dtype: not dtype.is_floating_point,
    "truth values": lambda dtype: dtype is torch.bool,
    "int32 or int64": lambda dtype: dtype in (torch.int32, torch.int64),
}
REAL, NUMBERS, WHOLE, BITS, TRUTH, PLACES = KINDS


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
        kinds: which element types those of `values` may be of that need not be whole numbers.
        takes: which element types (see `KINDS`) each input may be of, but those of `values`, and at last all
            behind it; "" for any.
    """

    type: str
    make: Maker
    inputs: tuple[int, int]
    outputs: tuple[int, int] = (1, 1)
    values: tuple[int, ...] = ()
    kinds: Mapping[int, str] = field(default_factory=dict)
    takes: tuple[str, ...] = ()

    def refused(self, index: int, dtype: torch.dtype) -> str | None:
        """What an input must be of, where it is of an element type that the layer does not take."""
        if index in self.values:
            kind = self.kinds.get(index, WHOLE)
        else:
            kind = self.takes[min(index, len(self.takes) - 1)] if self.takes else ""
        return None if not kind or KINDS[kind](dtype) else kind


def plain(function: Function) -> Maker:
    """A row's maker for a function without attributes."""
    return lambda layer, attributes: function


def named(function: Function) -> Maker:
    """A row's maker for a function that takes attributes by name, of the types and defaults that it says."""
    defaults = function.__kwdefaults__ or {}
    kinds = {
        name: kind for name, kind in function.__annotations__.items() if kind in ("bool", "int", "float")
    }

    def make(layer: Layer, attributes: Attributes) -> Function:
        said = {name: getattr(attributes, kind)(name, defaults.get(name)) for name, kind in kinds.items()}
        return functools.partial(function, **said)

    return make


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
