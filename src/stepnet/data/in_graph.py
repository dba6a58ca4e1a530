"""Functions of sequences in what torch compiles or exports: each is one operator, which runs the function.

The offsets of sequences are numbers that no graph knows. The operator `stepnet::run` is given its function
as text; `stepnet.graph` says what runs, and of which shapes its results are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.offsets import LoD
from stepnet.watchers import instead

_VERSION: Any = torch.__version__
CAN_CAPTURE: bool = _VERSION >= (2, 13)  # what the nodes stand on is private to torch, and changes


def is_followed() -> bool:
    """Whether torch compiles or exports what runs, so that a call is to be made by `call`."""
    if torch.compiler.is_dynamo_compiling():
        return CAN_CAPTURE
    return CAN_CAPTURE and torch.compiler.is_exporting() and instead() is None


def is_exported() -> bool:
    """Whether it goes into a program for other processes, where a call stays one operator that can be known by
    name. What is compiled for this process joins torch's operators with what is around them."""
    return is_followed() and torch.compiler.is_exporting()


def structure(function: str, levels: Sequence[Tensor], rows: int) -> LoD:
    """Offsets that a graph is given, checked as it runs.

    Args:
        function: "offsets" or "lengths", which is what `levels` hold.
        levels: outermost first.
        rows: how many rows there are.
    """
    own = call(function, levels, [], sizes=[rows])
    return LoD.trusted(tuple(own), rows)


def are_levels(lod: object) -> bool:
    """Whether they are tensors of a graph."""
    return is_followed() and isinstance(lod, (list, tuple)) and all(isinstance(t, Tensor) for t in lod)


def unpacked(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The rows of a PackedSequence sequence after sequence, and their offsets."""
    rows, offsets = call("unpack", _parts(packed.data, packed), [])
    return rows, offsets


def packed_like(packed: PackedSequence, rows: Tensor) -> Tensor:
    """The data of a PackedSequence like another, of rows that stand sequence after sequence."""
    (data,) = call("pack", _parts(rows, packed), [])
    return data


def _parts(data: Tensor, packed: PackedSequence) -> list[Tensor]:
    order = packed.unsorted_indices
    return [data, packed.batch_sizes] if order is None else [data, packed.batch_sizes, order]


def call(
    function: str, values: Sequence[Tensor], lods: Sequence[LoD], *options: object, sizes: Sequence[int] = ()
) -> list[Tensor]:
    """A call of a function in the graph: its rows, then its offsets if they are new ones.

    Args:
        function: its name.
        values: its tensors, and the rows of its LoDTensors.
        lods: the offsets of its LoDTensors.
        options: plain values.
        sizes: numbers that the graph may leave open.
    """
    counts = tuple([len(lod.levels) for lod in lods])
    what = f"sequence {function} {counts!r} {options!r}"
    offsets = [level for lod in lods for level in lod.levels]
    return torch.ops.stepnet.run([*values, *offsets], [*sizes], what)
