"""The operators of TensorArray as functions, as Paddle's Python API design (2017) names them.

An operator of that design fills its last argument. Here that argument may be left out: each returns what it
fills. A tensor to be filled has the shape, dtype and device of what goes there; one of no elements, such as
`torch.empty(0)`, stands for a variable without a value yet, and takes them on. Gradients flow through it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.values import Value, describe
from stepnet.errors import ArrayError


def tensor_array_stack(ta: TensorArray, tensor: Tensor | None = None, *, axis: int = 0) -> Tensor:
    """Join the values into a tensor with rank one higher.

    Args:
        ta: all values written, of equal shape and dtype.
        tensor: filled, if given.
        axis: the axis of the steps in the result.

    Returns:
        `tensor`, or a new one.

    Raises:
        ArrayError: as `TensorArray.stack`, or `tensor` cannot hold the result.

    >>> out = torch.empty(0, dtype=torch.int64)
    >>> tensor_array_stack(tensor_array_unstack(torch.arange(3)), out) is out, out
    (True, tensor([0, 1, 2]))
    """
    return _filled("tensor_array_stack", tensor, _array("tensor_array_stack", ta).stack(axis))


def tensor_array_unstack(tensor: Tensor, ta: TensorArray | None = None, *, axis: int = 0) -> TensorArray:
    """Cut a tensor into views, one per place of an array.

    Args:
        tensor: rank 1 or more.
        ta: filled, over all that it held, if given.
        axis: the axis to cut.

    Returns:
        `ta`, or a new array.

    Raises:
        ArrayError: as `TensorArray.unstack`, or `ta` is no array.

    >>> ta = TensorArray()
    >>> tensor_array_unstack(torch.zeros(5, 2), ta) is ta, len(ta)
    (True, 5)
    """
    if ta is None:
        return TensorArray.unstack(tensor, axis)
    return _array("tensor_array_unstack", ta).unstack(tensor, axis)


def tensor_array_write(
    ta: TensorArray, index: int | Tensor, tensor: Value, data_shared: bool = True
) -> TensorArray:
    """Write `tensor` at `index`.

    Args:
        ta: the array to change.
        index: an int or a scalar tensor, 0 or more; the array grows to it.
        tensor: a tensor or a LoDTensor.
        data_shared: True keeps a reference, False a copy.

    Returns:
        `ta` itself.

    Raises:
        ArrayError: as `TensorArray.write`.

    >>> ta = tensor_array_write(TensorArray(), torch.tensor(0), torch.ones(1))
    >>> tensor_array_read(ta, 0)
    tensor([1.])
    """
    _array("tensor_array_write", ta).write(index, tensor, data_shared)
    return ta


def tensor_array_read(
    ta: TensorArray, index: int | Tensor, tensor: Tensor | None = None, *, default: Value | None = None
) -> Any:
    """Read the value at `index`: by reference, or into a tensor.

    Args:
        ta: the array.
        index: an int or a scalar tensor.
        tensor: filled with a copy of the value, if given.
        default: stands in where there is no value; the paper has none.

    Returns:
        `tensor`, or the value itself.

    Raises:
        ArrayError: as `TensorArray.read`, or `tensor` cannot hold the value.

    >>> array = TensorArray()
    >>> array.write(0, torch.ones(2))
    >>> tensor_array_read(array, 0)
    tensor([1., 1.])
    """
    return _filled("tensor_array_read", tensor, _array("tensor_array_read", ta).read(index, default))


def tensor_array_size(ta: TensorArray, tensor: Tensor | None = None) -> Tensor:
    """The number of places as a scalar tensor: usable as an index or as the bound of a loop.

    Args:
        ta: the array.
        tensor: an int64 scalar, filled, if given.

    Returns:
        `tensor`, or a new one.

    Raises:
        ArrayError: `tensor` cannot hold it.

    >>> tensor_array_size(TensorArray(size=4))
    tensor(4)
    """
    size: Any = _array("tensor_array_size", ta).size()
    if isinstance(size, int):
        size = torch.tensor(size, dtype=torch.int64)
    return _filled("tensor_array_size", tensor, size)


def _array(where: str, ta: Any) -> TensorArray:
    if not isinstance(ta, TensorArray):
        raise ArrayError(
            f"{where}: 'ta' must be a TensorArray",
            got=describe(ta),
            remedy="stepnet.TensorArray() is one without values",
        )
    return ta


def _filled(where: str, out: Tensor | None, value: Any) -> Any:
    """The value, or the tensor that it was put into."""
    if out is None:
        return value
    remedy = f"leave 'tensor' out, and take what {where} returns"
    if type(value) is LoDTensor or not isinstance(value, Tensor):
        raise ArrayError(
            f"{where}: this value cannot be put into a tensor", got=describe(value), remedy=remedy
        )
    if not isinstance(out, Tensor):
        raise ArrayError(f"{where}: 'tensor' is the tensor to fill", got=describe(out), remedy=remedy)
    if out.requires_grad and (out.is_leaf or not out.numel()):
        raise ArrayError(f"{where}: 'tensor' has a gradient of its own", got=describe(out), remedy=remedy)
    if not out.numel():
        out.data = torch.empty_like(value)
    elif (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
        raise ArrayError(
            f"{where}: 'tensor' does not fit the result",
            got=describe(out),
            expected=describe(value),
            remedy="torch.empty(0), which takes on shape and dtype",
        )
    return out.copy_(value)
