"""What tells the numbers of arrays and of sparse matrices from others: a trace bakes them in."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data.modes import outside_modes

SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc))
_MOST = 4096  # bytes that are part of a key as they are
_MOST_HASHED = 1 << 23  # those of which a hash is, in some milliseconds


def content(value: np.ndarray[Any, Any] | np.generic) -> bytes | None:
    """What tells the numbers of an array; None of a large one.

    >>> content(np.array([1, 2], np.int8)), len(content(np.zeros(5000)) or b"")
    (b'\\x01\\x02', 32)
    """
    if value.nbytes <= _MOST:
        return value.tobytes()
    if value.nbytes > _MOST_HASHED:
        return None
    return hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=32).digest()


@outside_modes
def entries(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """The places of the entries of a sparse matrix, and their numbers; None where these are no key."""
    if matrix.device.type != "cpu" or matrix.dtype is torch.bfloat16 or matrix.dtype.is_complex:
        return None
    whole = matrix.detach() if matrix.layout is torch.sparse_coo else matrix.detach().to_sparse_coo()
    return (whole._indices(), whole._values()) if whole.dense_dim() == 0 else None
