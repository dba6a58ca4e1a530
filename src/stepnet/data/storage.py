"""Which tensors share memory."""

from __future__ import annotations

import torch
from torch import Tensor


def memory_of(tensor: Tensor) -> int:
    """What two tensors that share memory have in common; a tensor without any has only itself.

    >>> a = torch.ones(3)
    >>> memory_of(a) == memory_of(a[1:]), memory_of(a) == memory_of(a.clone())
    (True, False)
    """
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else id(tensor)
