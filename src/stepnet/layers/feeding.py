"""What may be fed to a data layer besides tensors and LoDTensors: lists, arrays, packed and nested."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.lod import LoDTensor
from stepnet.errors import Unsupported


def as_value(value: Any, level: int, size: int | None, like: Tensor | None) -> Any:
    """A tensor, or a LoDTensor of so many levels, of what was fed; what is one already stays as it is.

    Args:
        value: lists, tuples, or arrays and what becomes one, as the columns of pandas do: of rows, or, below
            each level, of sequences; a PackedSequence or a jagged NestedTensor of one level.
        level: levels of sequences.
        size: features of a row; None: integers.
        like: whose dtype and device floating point numbers take on; None: torch's defaults.

    Raises:
        Unsupported: it is none of these.

    >>> as_value([[4, 2], [], [7]], 1, None, None)
    LoDTensor(3 sequences, lengths [[2, 0, 1]], values [3] int64)
    >>> as_value(np.ones((2, 3)), 0, 3, None).dtype
    torch.float32
    """
    if isinstance(value, PackedSequence) and level == 1:
        return LoDTensor.from_packed(value)
    if isinstance(value, Tensor) and value.is_nested and level == 1:
        return LoDTensor.from_nested(value)
    if isinstance(value, (Tensor, LoDTensor, PackedSequence)):
        return value
    if not level:
        return _rows(value, size, like)
    lengths: list[list[int]] = []
    found = [value]
    for _ in range(level):
        found = [_as_array(part) for part in found]
        if any(not _is_list(part) for part in found):
            wrong = next(part for part in found if not _is_list(part))
            raise Unsupported(f"{type(wrong).__name__} in the place of a list of sequences")
        lengths.append([len(part) for part in found])
        found = [inner for part in found for inner in part]
    rows = [_rows(part, size, like) for part in found]
    if any(not part.dim() for part in rows):
        raise Unsupported("a number in the place of a sequence")
    whole = _joined(torch.cat, rows) if rows else _rows([], size, like)
    return LoDTensor.from_lengths(whole, [*lengths[1:], [len(part) for part in rows]])


def _as_array(value: Any) -> Any:
    """The array of what has one, such as a column of pandas; iterating over a DataFrame gives names."""
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, Tensor) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _rows(value: Any, size: int | None, like: Tensor | None) -> Tensor:
    """Rows [n, size], or integers [n]."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(part, Tensor) for part in value):
        return _joined(torch.stack, [_row(part) for part in value])
    try:
        array = np.array(value)
    except ValueError as error:
        raise Unsupported("lists of different lengths where rows are") from error
    if array.shape == (0,):
        array = np.empty((0,) if size is None else (0, size), np.int64)
    if array.dtype.kind not in ("iu" if size is None else "iuf"):
        raise Unsupported(f"an array of {array.dtype}")
    if size is None:
        return torch.from_numpy(array.astype(np.int64))
    exact = array if array.dtype in (np.float16, np.float32) else array.astype(np.float64)
    dtype = torch.get_default_dtype() if like is None else like.dtype
    return torch.from_numpy(exact).to(dtype=dtype, device=None if like is None else like.device)


def _joined(join: Any, parts: list[Tensor]) -> Tensor:
    shapes = {tuple(part.shape[join is torch.cat :]) for part in parts}
    if len(shapes) > 1:
        raise Unsupported(f"rows of shapes {sorted(shapes)}")
    return join(parts)


def _row(part: Any) -> Tensor:
    if not isinstance(part, Tensor):
        raise Unsupported(f"{type(part).__name__} among tensors")
    return part
