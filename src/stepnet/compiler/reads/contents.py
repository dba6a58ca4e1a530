"""What tells the numbers of lists, arrays and sparse matrices from others: a trace bakes them in."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence, Set
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


def at_once(items: Sequence[Any], plain: Set[type]) -> tuple[Any, Any] | None:
    """Plain values, or floats by their bits, as one part of a key; None for others."""
    kinds = set(map(type, items))
    if kinds == {float}:
        return float, array.array("d", items).tobytes()
    if kinds <= plain:
        return tuple(items), kinds.pop() if len(kinds) == 1 else tuple(map(type, items))
    return None


@outside_modes
def entries(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """The places of the entries of a sparse matrix, and their numbers; None where these are no key."""
    if matrix.device.type != "cpu" or matrix.dtype is torch.bfloat16 or matrix.dtype.is_complex:
        return None
    whole = matrix.detach() if matrix.layout is torch.sparse_coo else matrix.detach().to_sparse_coo()
    return (whole._indices(), whole._values()) if whole.dense_dim() == 0 else None
