"""What is cut into steps side by side: tensors with the same steps and batch, or LoDTensors of the same
sequences."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.tree import LEAF, Spec, flatten


def inputs_of(x: Any) -> tuple[list[Any], Spec]:
    """The inputs of a call, and how they are nested; none if they do not stand side by side, or are of other
    kinds.

    >>> import torch
    >>> len(inputs_of((torch.ones(3, 2, 4), torch.ones(3, 2)))[0])
    2
    >>> inputs_of((torch.ones(3, 2, 4), torch.ones(2, 3)))[0]
    []
    """
    if type(x) is Tensor or type(x) is LoDTensor:
        return [x], LEAF
    leaves, spec = flatten(x)
    first: Any = leaves[0] if leaves else None
    if type(first) is LoDTensor:
        fit = all(map(_of_rows, leaves)) and all(of_same_sequences(first, leaf) for leaf in leaves[1:])
    else:
        fit = type(first) is Tensor and all(map(_of_steps, leaves))
        fit = fit and all(leaf.shape[:2] == first.shape[:2] for leaf in leaves[1:])
    return (leaves, spec) if fit else ([], spec)


def _of_rows(leaf: Any) -> bool:
    return type(leaf) is LoDTensor and type(leaf.values) is Tensor


def _of_steps(leaf: Any) -> bool:
    return type(leaf) is Tensor and not leaf.is_nested and leaf.dim() > 1


def of_same_sequences(one: LoDTensor, other: LoDTensor) -> bool:
    """Whether the sequences of the last of as many levels have the same lengths."""
    if one.structure is other.structure:
        return True
    return one.lod_level == other.lod_level and one.structure.content() == other.structure.content()
