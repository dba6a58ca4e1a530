"""Names of dtypes, as users write them and graphs hold them."""

from __future__ import annotations

import torch
from torch import Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype in a word.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name; the inverse of `dtype_name`."""
    return getattr(torch, name)


def typed_shape(tensor: Tensor) -> str:
    """Dtype and shape of a tensor, for messages.

    >>> typed_shape(torch.zeros(2, 3))
    'float32[2, 3]'
    """
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
