"""Functions of sequences as Dynamo meets them: each is one operator, which runs the function itself.

The offsets of sequences are numbers that no graph knows. The operator `stepnet::run` is given its function
as text; `stepnet.graph` says what runs, and of which shapes its results are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepnet.data.offsets import LoD


def is_followed() -> bool:
    """Whether Dynamo follows what runs, so that a call is to be made by `call`."""
    return torch.compiler.is_dynamo_compiling()


def call(function: str, values: Sequence[Tensor], lods: Sequence[LoD], *options: object) -> list[Tensor]:
    """A call of a function in the graph: its rows, then its offsets if they are new ones.

    Args:
        function: its name.
        values: its tensors, and the rows of its LoDTensors.
        lods: the offsets of its LoDTensors.
        options: plain values.
    """
    counts = tuple([len(lod.levels) for lod in lods])
    what = f"sequence {function} {counts!r} {options!r}"
    offsets = [level for lod in lods for level in lod.levels]
    return torch.ops.stepnet.run([*values, *offsets], [], what)
