"""What every step sees whole: one value for each sequence, such as the outputs of an encoder to attend to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.arguments import check_dense
from stepnet.data.convert import rows_to_padded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LENGTHS, longest_of, told
from stepnet.data.tree import Spec, flatten, names, unflatten
from stepnet.errors import StepError
from stepnet.watchers import SEQUENCES, said

from .step import WithStatic, describe_leaf

_FEW = 8


class Padded(NamedTuple):
    """Sequences of rows side by side, as a step sees those of a ragged memory.

    Attributes:
        rows: [n, L, ...], zeros behind the end of each sequence.
        mask: bool [n, L], true where a sequence has a row.
    """

    rows: Tensor
    mask: Tensor


def with_static(state: Any, static: Any, n: int, name: str) -> WithStatic:
    """The state of a step and what it sees at every step, checked: a row for each of n sequences.

    Raises:
        StepError: a leaf has not one row, or one sequence of rows, for each sequence; names it.
    """
    leaves, spec = flatten(static)
    labels = names(spec, "static")
    found = [
        memory_of(leaf, n, f"{label} of step '{name}'") for leaf, label in zip(leaves, labels, strict=True)
    ]
    return WithStatic(state, unflatten(spec, found))


def memory_of(leaf: Any, n: int, what: str) -> Tensor | Padded:
    """What a step sees of a memory of each of n sequences. `what`: its name in errors.

    Raises:
        StepError: it has not one row, or one sequence of rows, for each sequence.
    """
    if isinstance(leaf, PackedSequence):
        leaf = LoDTensor.from_packed(leaf)
    ragged = isinstance(leaf, LoDTensor)
    if not isinstance(leaf, (Tensor, LoDTensor)):
        raise StepError(
            f"{what} must be a tensor or a LoDTensor",
            got=describe_leaf(leaf),
            remedy="a step reads what is the same for all sequences from its closure or its module",
        )
    if not ragged:
        check_dense(what, leaf)
    if ragged and leaf.lod_level != 1:
        raise StepError(
            f"{what} has {leaf.lod_level} levels of sequences",
            got=describe_leaf(leaf),
            remedy="give one sequence of rows for each sequence; two such memories as a tuple",
        )
    entries = len(leaf.lengths()) if ragged else leaf.shape[0] if leaf.dim() else 0
    if entries != n:
        raise StepError(
            f"{what} must have one {'sequence of rows' if ragged else 'row'} per sequence",
            got=f"{describe_leaf(leaf)}, {entries} of them",
            expected=f"{n} {'sequences' if ragged else 'rows'}",
            remedy="a step reads what is the same for all sequences from its closure or its module",
        )
    return padded(leaf) if ragged else leaf


def padded(memory: LoDTensor) -> Padded:
    """Sequences side by side, to a length that few batches do not share: each makes a plan of its own."""
    instead = said(SEQUENCES) if said(LENGTHS) is not None else None
    if instead is not None:  # of a module that is saved, for any length
        return Padded(*(instead(kind, memory, memory.values, 0.0) for kind in ("padded", "mask")))
    told(memory.structure.levels[-1])
    lengths = memory.lengths()
    size = length_of_padded(longest_of(lengths))
    rows = rows_to_padded(memory.values, lengths, 0, longest=size)
    return Padded(rows, beside(_within(lengths, size), rows))


@outside_modes
def _within(lengths: Tensor, size: int) -> Tensor:
    return torch.arange(size) < lengths[:, None]


def has_padded(spec: Spec) -> bool:
    """Whether there is a `Padded` in a nesting."""
    return spec.kind is Padded or any(map(has_padded, spec.children))


def length_of_padded(longest: int) -> int:
    """The dimension L of a `Padded`: the next of 8, 16, 24, .., 64, 80, 96, 112, 128, 160, ..

    >>> [length_of_padded(n) for n in (0, 1, 8, 9, 60, 65, 100, 129)]
    [8, 8, 8, 16, 64, 80, 112, 160]
    """
    step = max(_FEW, 1 << max(longest - 1, 0).bit_length() >> 3)
    return max(-(-longest // step), 1) * step
