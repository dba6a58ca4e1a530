"""Whether values are the rows of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from torch import Tensor

from stepnet.data.arguments import brief, check_dense
from stepnet.data.in_graph import differ
from stepnet.data.offsets import LoD
from stepnet.errors import LoDError


def check_values(values: Any, lod: LoD, *, lengths: bool = False) -> None:
    """Refuse values that are not the rows of a structure, which was given by `lengths` or by offsets."""
    if not isinstance(values, Tensor) or values.is_nested:
        raise LoDError(
            "LoDTensor 'values' must be a tensor of shape [rows, ...]",
            got=brief(values),
            remedy="LoDTensor.from_sequences takes lists and arrays, from_nested nested tensors",
        )
    check_dense("LoDTensor 'values'", values, LoDError)
    if values.ndim == 0:
        raise LoDError(
            "LoDTensor 'values' must have a dimension for rows",
            got="a tensor of shape []",
            remedy="values[None]",
        )
    if not differ(values.shape[0], lod.rows):
        return
    if lengths:
        raise LoDError(
            "LoDTensor.from_lengths: the lengths of the last level must add up to the number of rows",
            got=lod.rows,
            expected=f"{values.shape[0]} (values have shape {list(values.shape)})",
            remedy="LoDTensor.from_padded(values, lengths) takes values that are padded",
        )
    raise LoDError(
        f"LoDTensor 'lod' level {len(lod.levels) - 1} must end at the number of rows",
        got=f"{lod.rows}, at index {len(lod.levels[-1]) - 1}",
        expected=f"{values.shape[0]} (values have shape {list(values.shape)})",
        remedy="these are offsets; lengths go to LoDTensor.from_lengths, padded values to from_padded",
    )


def are_rows(sequences: Any) -> TypeGuard[Sequence[Tensor]]:
    """Whether it is a list of tensors that differ in length alone."""
    if not isinstance(sequences, list) or not sequences or not isinstance(sequences[0], Tensor):
        return False
    first = sequences[0]
    return first.ndim > 0 and all(
        isinstance(t, Tensor)
        and (t.ndim, t.shape[1:], t.dtype, t.device)
        == (first.ndim, first.shape[1:], first.dtype, first.device)
        for t in sequences
    )
