"""A plan: a loop cut into regions, forward and backward.

prologue   what depends on shared values alone         once per call
sequences  what depends on values per sequence alone   once per call, on a row for each sequence
map        on no cycle through a carried value         once, on all rows
scan       on such a cycle                             step after step
epilogue   what follows from sums over all rows        once per call
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from .graph import Graph, Node

_T = TypeVar("_T")
RegionKind = Literal["prologue", "sequences", "map", "scan", "epilogue"]


@dataclass(frozen=True)
class Carry:
    """A carried value: `result` of one step is `parameter` of the next."""

    parameter: str
    result: str


@dataclass(frozen=True)
class Region:
    """Nodes that run together. `carries` turn in a scan; a map has none (it may hold `shift` nodes).

    `linear` names the carries of a scan of the form h = a * h + b with a and b free of carried values.
    """

    kind: RegionKind
    nodes: tuple[Node, ...]
    carries: tuple[Carry, ...] = ()
    linear: tuple[str, ...] = ()

    @property
    def made(self) -> set[str]:
        """The values the region makes."""
        return {name for node in self.nodes for name in node.outputs}

    @property
    def read(self) -> list[str]:
        """The values the region reads and does not make, carried parameters left out."""
        own = self.made | {carry.parameter for carry in self.carries}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs)
        read.update(dict.fromkeys(carry.result for carry in self.carries))
        return [name for name in read if name not in own]


@dataclass(frozen=True)
class LoopPlan:
    """One loop: its body, its carries, and the regions in the order they run.

    `wanted` are the row and sum values asked for; of a carried value the last one is always given.
    """

    body: Graph
    carries: tuple[Carry, ...]
    regions: tuple[Region, ...]
    wanted: tuple[str, ...] = ()

    def rows_of_carries(self) -> set[str]:
        """Results of carries that turn in no scan: their last value is found among their rows."""
        turning = {c.parameter for region in self.regions for c in region.carries}
        return {c.result for c in self.carries if c.parameter not in turning and c.parameter != c.result}

    def outputs(self, region: Region) -> list[str]:
        """Values of a region that are read after it, in another region or by the caller."""
        at = self.regions.index(region)
        later: set[str] = set(self.wanted) | self.rows_of_carries()
        for other in self.regions[at + 1 :]:
            later.update(other.read)
        own = region.made | {carry.parameter for carry in region.carries}
        return [name for name in self.body.values if name in own and name in later]


@dataclass(frozen=True)
class Plan:
    """The compiled form of a loop.

    Forward body: parameters x leaves, states, weights; results y leaves and new states.
    Backward body: parameters kept values, weights, gradients of y and (carried) of the new states;
    results gradients of x and of the states, and sums for the weights.

    Attributes:
        x, states, weights, y: value names of the forward loop.
        kept: forward values that the backward loop reads as rows.
        shifted: kept carried parameters, derived from the rows of their result instead of being kept.
        tangents: for each y leaf and each state, the name of its gradient in the backward body, or None.
        gradients: for each x leaf, state and weight, the result of the backward body, or None.
        random: True if the step draws noise.
        own_backward: True if its gradient was traced of code of the step's own, which reads as it runs what
            may be something else by then: hooks, custom Functions.
        flow: for each y leaf and new state, the inputs (numbered x, states, weights) of the same step that
            it carries gradients to, be they zero.
        requires: likewise, the inputs that make it require a gradient: those, and what only views made under
            no_grad are of.
        paired: the y leaves and new states (numbered) that are complex: here pairs of real numbers, as
            complex inputs are.
        as_numbers: the inputs (numbered x, states, weights) that the step reads by `.item()` alone: numbers
            of its own from then on, whatever is written to the tensors.
        again: the forward loop, run once more for what backward reads, where leaves of y that are new states
            are known.
    """

    name: str
    forward: LoopPlan
    backward: LoopPlan | None
    x: tuple[str, ...]
    states: tuple[str, ...]
    weights: tuple[str, ...]
    y: tuple[str, ...]
    new_states: tuple[str, ...]
    kept: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()
    tangents: tuple[str | None, ...] = ()
    gradients: tuple[str | None, ...] = ()
    random: bool = False
    own_backward: bool = False
    flow: tuple[tuple[int, ...], ...] = ()
    requires: tuple[tuple[int, ...], ...] = ()
    paired: tuple[int, ...] = ()
    as_numbers: tuple[int, ...] = ()
    again: LoopPlan | None = None

    def parted(self, inputs: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T], Sequence[_T]]:
        """What there is for x, for states and for weights, of what there is for all of them."""
        n, m = len(self.x), len(self.x) + len(self.states)
        return inputs[:n], inputs[n:m], inputs[m:]
