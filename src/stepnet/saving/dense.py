"""A topology as a module of plain tensors: sequences come in padded, with their lengths, and go out so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stepnet.data.tree import leaves
from stepnet.errors import TapeError
from stepnet.tape.creation import UNKNOWN, Creation, Ref
from stepnet.tape.evaluator import Evaluator
from stepnet.tape.topology import Feed, Topology

from .padded import PaddedLoD
from .play import refusal, run_padded


@dataclass(frozen=True)
class Leaf:
    """A value that comes in or goes out: padded sequences and a tensor of lengths for each level of them."""

    name: str
    level: int

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors: `words`, `words.lengths_0`, `words.lengths_1`."""
        return (self.name, *(f"{self.name}.lengths_{i}" for i in range(self.level)))


class DenseTopology(nn.Module):
    """The layers of a topology that its outputs need, on padded sequences.

    Called with the tensors of `inputs` in order, it gives those of `outputs` in order. Padding changes no
    number that is not padding itself.

    Raises:
        TapeError: an output is an evaluator, or one of the layers has no meaning on padded sequences.

    >>> import torch
    >>> from stepnet.layers import Dense, Sequence, data, pooling
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     total = pooling(data("x", Sequence(Dense(1))), "sum")
    >>> dense = DenseTopology(tape.topology(total))
    >>> [leaf.tensors for leaf in dense.inputs]
    [('x', 'x.lengths_0')]
    >>> dense(torch.tensor([[[1.0], [2.0]], [[3.0], [9.0]]]), torch.tensor([2, 1]))
    (tensor([[3.],
            [3.]]),)
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.structure = topology.structure
        played = topology.played
        self.ends = ends = list(dict.fromkeys(ref.index for ref in leaves(self.structure, Ref)))
        made = dict(played)
        for end in ends:
            if isinstance(made[end].function, Evaluator):
                raise refusal(made[end], "an evaluator is no output of a saved topology; it is written about")
        needed = set(ends)
        for i, creation in reversed(played):
            if i in needed:
                needed.update(creation.inputs)
        self.played = [(i, c) for i, c in played if i in needed]
        self.types = {c.name: c.function.type for _, c in self.played if isinstance(c.function, Feed)}
        self.inputs = [Leaf(name, type.level) for name, type in self.types.items()]
        self.outputs = [Leaf(made[end].name, _level(made[end])) for end in ends]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        feeds: dict[str, Any] = {}
        for leaf in self.inputs:
            grid, *lengths = (next(given) for _ in leaf.tensors)
            feeds[leaf.name] = PaddedLoD(grid, tuple(lengths)) if lengths else grid
        values = self.values(feeds)
        found: list[Tensor] = []
        for end in self.ends:
            value = values[end]
            found += (value.grid, *value.lengths) if isinstance(value, PaddedLoD) else (value,)
        return tuple(found)

    def values(self, feeds: Mapping[str, Any]) -> dict[int, Any]:
        """What each creation gives, for data by name."""
        values: dict[int, Any] = {}
        for i, creation in self.played:
            is_data = isinstance(creation.function, Feed)
            values[i] = feeds[creation.name] if is_data else run_padded(creation, values)
        return values


def _level(creation: Creation) -> int:
    """How many levels of sequences an output has."""
    example = creation.example
    if not hasattr(example, "shape"):
        raise TapeError(
            f"{creation.place} cannot be an output of a saved topology: it is no tensor",
            got="not known" if example is UNKNOWN else type(example).__name__,
            remedy="take the tensors in it as outputs",
            expected="a tensor",
        )
    return getattr(example, "lod_level", 0)
