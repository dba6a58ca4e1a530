"""The operators of TensorArray as functions, by the names of Paddle's Python API design.

There, an operator's last argument is the variable it writes its result to. Here, each returns its result; the
docstrings say which argument that was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.values import Value


def tensor_array_stack(ta: TensorArray, axis: int = 0) -> Tensor:
    """Join the values into a tensor with rank one higher; the paper's `tensor_array_stack(ta, tensor)`.

    Args:
        ta: all values written, of equal shape and dtype.
        axis: the axis of the steps in the result.

    Returns:
        The paper's `tensor`.

    Raises:
        ArrayError: as `TensorArray.stack`.

    >>> tensor_array_stack(tensor_array_unstack(torch.arange(3)))
    tensor([0, 1, 2])
    """
    return ta.stack(axis)


def tensor_array_unstack(tensor: Tensor, axis: int = 0) -> TensorArray:
    """Cut a tensor into a new array of views; the paper's `tensor_array_unstack(tensor, ta)`.

    Args:
        tensor: rank 1 or more.
        axis: the axis to cut.

    Returns:
        The paper's `ta`.

    Raises:
        ArrayError: as `TensorArray.unstack`.

    >>> len(tensor_array_unstack(torch.zeros(5, 2)))
    5
    """
    return TensorArray.unstack(tensor, axis)


def tensor_array_write(
    ta: TensorArray, index: int | Tensor, tensor: Value, data_shared: bool = True
) -> TensorArray:
    """Write `tensor` at `index`; the paper's `tensor_array_write(ta, index, tensor, data_shared)`.

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
    ta.write(index, tensor, data_shared)
    return ta


def tensor_array_read(ta: TensorArray, index: int | Tensor, default: Value | None = None) -> Any:
    """Read the value at `index`, by reference; the paper's `tensor_array_read(ta, index, tensor)`.

    Args:
        ta: the array.
        index: an int or a scalar tensor.
        default: given back where there is no value; the paper has none.

    Returns:
        The paper's `tensor`.

    Raises:
        ArrayError: as `TensorArray.read`.
    """
    return ta.read(index, default)


def tensor_array_size(ta: TensorArray) -> Tensor:
    """The number of places as an int64 scalar tensor; the paper's `tensor_array_size(ta, tensor)`.

    Returns:
        The paper's `tensor`: usable as an index or as the bound of a loop.

    >>> tensor_array_size(TensorArray(size=4))
    tensor(4)
    """
    return torch.tensor(ta.size(), dtype=torch.int64)
