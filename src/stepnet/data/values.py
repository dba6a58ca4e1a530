"""What a place of a TensorArray may hold, what its index and axis arguments may be; what a loop is fed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.arguments import brief
from stepnet.data.convert import pack_like, packed_to_rows
from stepnet.data.dtypes import typed_shape
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import unrecorded
from stepnet.data.offsets import LoD
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import ArrayError

Value = Tensor | LoDTensor
_SIZE = "_stepnet_size"  # the attribute of a tensor that a trace made from a size


def rows_of(value: Value) -> Tensor:
    """The tensor behind a value."""
    return value.values if isinstance(value, LoDTensor) else value


def unpacked(x: Any) -> tuple[list[Any], Spec]:
    """The leaves of x, packed ones as LoDTensors, and their nesting."""
    leaves, spec = flatten(x)
    return [LoDTensor.from_packed(v) if isinstance(v, PackedSequence) else v for v in leaves], spec


def without_packed(x: Any) -> tuple[Any, Callable[[LoDTensor], PackedSequence] | None]:
    """x with its PackedSequences as LoDTensors, and what packs a result like the first of them; None if there
    is none."""
    leaves, spec = flatten(x)
    at = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, PackedSequence)), None)
    if at is None:
        return x, None
    first = leaves[at]
    values, offsets, packing = packed_to_rows(first)
    leaves[at] = LoDTensor.of(values, LoD.trusted((offsets,), values.shape[0]))
    tables = [LoDTensor.from_packed(v) if isinstance(v, PackedSequence) else v for v in leaves]
    return unflatten(spec, tables), lambda y: pack_like(first, y.values, packing)


def copy(value: Value) -> Value:
    """A value of its own memory, which gradients flow through."""
    return value.with_values(value.values.clone()) if isinstance(value, LoDTensor) else value.clone()


def describe(value: Any) -> str:
    """A value's kind, dtype and shape, for an error's text.

    >>> describe(torch.zeros(2, 3))
    'Tensor float32[2, 3]'
    """
    if isinstance(value, LoDTensor):
        levels = value.lod_level
        kind = f"LoDTensor of {levels} level{'' if levels == 1 else 's'},"
    elif isinstance(value, Tensor):
        kind = "Tensor"
    else:
        return type(value).__name__
    tensor = rows_of(value)
    device = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{kind} {typed_shape(tensor)}{device}"


def note_size(value: Tensor, number: Any) -> None:
    """Note the number in a tensor, which a trace does not know, until the tensor is changed in place."""
    setattr(value, _SIZE, (number, value._version))


def size_in(value: Any) -> Any:
    """The number that was noted of a tensor; None if there is none."""
    number, version = getattr(value, _SIZE, (None, None))
    return number if number is not None and value._version == version else None


def whole_number(value: Tensor) -> int:
    """The integer in a tensor, also while a module is traced, where the tensor was made from a size, or is no
    part of the trace."""
    size = size_in(value)
    if size is not None:
        return size
    return unrecorded(int)(value) if type(value) is Tensor else int(value)


def integer(number: Any, where: str) -> int:
    """An int, or the one integer in a tensor.

    Raises:
        ArrayError: anything else; `where` names it.

    >>> integer(torch.tensor([3]), "index")
    3
    """
    if isinstance(number, Tensor):
        whole = number.dtype != torch.bool and not (number.is_floating_point() or number.is_complex())
        known = not number.is_meta or size_in(number) is not None
        if whole and known and number.numel() == 1:
            return whole_number(number)
    elif isinstance(number, torch.SymInt):  # of a module that is traced with sizes left open
        return number  # pyright: ignore[reportReturnType]
    elif not isinstance(number, bool) and hasattr(number, "__index__"):
        with contextlib.suppress(TypeError):  # of an array of several, or of a class
            return operator.index(number)
    raise ArrayError(
        f"{where} must be an int or a scalar integer tensor",
        got=describe(number) if isinstance(number, Tensor) else brief(number),
        remedy="int(number) of a float that is whole" if isinstance(number, float) else None,
    )


def axis_of(axis: Any, rank: int, where: str, what: str) -> int:
    """An axis of something of this rank, counted from 0.

    Raises:
        ArrayError: there is no such axis.
    """
    place = integer(axis, f"{where}: axis")
    if not -rank <= place < rank:
        raise ArrayError(
            f"{where}: there is no axis {place}", got=what, expected=f"an axis from {-rank} to {rank - 1}"
        )
    return place % rank


def check_fit(values: Sequence[Value], where: str, free: int | None = None) -> None:
    """Refuse values that cannot be joined: all need the shape, dtype, device and levels of the first.

    Args:
        values: one or more.
        where: the call that joins them.
        free: an axis along which shapes may differ.

    Raises:
        ArrayError: the text names the two indices.
    """
    first = values[0]
    wanted = _signature(first, free)
    for place, value in enumerate(values):
        if _signature(value, free) != wanted:
            raise ArrayError(
                f"{where}: the values at index 0 and index {place} do not fit together",
                got=f"{describe(first)} and {describe(value)}",
                expected="the same number of levels, dtype, device and shape"
                + ("" if free is None else f" (along axis {free} it may differ)"),
                remedy="array.concat(axis) joins values that differ along an axis"
                if free is None
                else "array.read(index) one by one",
            )


def _signature(value: Value, free: int | None) -> tuple[Any, ...]:
    tensor = rows_of(value)
    shape = list(tensor.shape)
    if free is not None and free < len(shape):
        shape[free] = -1
    levels = value.lod_level if isinstance(value, LoDTensor) else 0
    return levels, shape, tensor.dtype, tensor.device
