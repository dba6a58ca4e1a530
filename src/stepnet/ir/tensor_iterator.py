"""The one loop: a body, a port map, and back edges.

Meaning, for N iterations of a body with parameters p and results r (OpenVINO TensorIterator-1)::

    for i in range(N):
        for port in inputs:   p[port.parameter] = slice i | carried value | invariant
        r = body(p)
        for edge in back_edges: carried[edge.parameter] = r[edge.result]   # all at once
    outputs = concat of the slices of every iteration, or the last value
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepnet.errors import LoopError


class Body(Protocol):
    """What a loop runs at each iteration: named parameters in, named results out, both positional."""

    name: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Slice:
    """An outer value cut into steps: along `axis`, or by LoD `level` when that is given.

    `part_size=None` takes single elements and drops the axis; a number keeps the axis with that many
    elements. `stride=-1` with `start=-1, end=0` runs backwards.
    """

    source: str
    parameter: str
    axis: int = 0
    level: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int | None = None


@dataclass(frozen=True)
class Merged:
    """A carried value: `source` boots the first iteration, a back edge feeds the later ones."""

    source: str
    parameter: str


@dataclass(frozen=True)
class Invariant:
    """A value that is the same at every iteration."""

    source: str
    parameter: str


@dataclass(frozen=True)
class Concat:
    """A result of every iteration joined, as `Slice` cuts."""

    result: str
    output: str
    axis: int = 0
    level: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int | None = None


@dataclass(frozen=True)
class Last:
    """The value of a result after the last iteration, of each sequence for itself."""

    result: str
    output: str


@dataclass(frozen=True)
class BackEdge:
    """A result becomes a parameter of the next iteration."""

    result: str
    parameter: str


InputPort = Slice | Merged | Invariant
OutputPort = Concat | Last


@dataclass(frozen=True)
class TensorIterator:
    """A loop over steps. Checked when made; every broken rule is reported, not only the first.

    Raises:
        LoopError: a port or back edge names what the body does not have, a parameter is fed twice or
            not at all, or a carried parameter has no back edge.

    >>> class Sum:
    ...     name, parameters, results = "sum", ("x", "s"), ("s_new",)
    ...     def __call__(self, x, s): return (s + x,)
    >>> loop = TensorIterator(Sum(), inputs=(Slice("xs", "x"), Merged("zero", "s")),
    ...                       outputs=(Last("s_new", "total"),), back_edges=(BackEdge("s_new", "s"),))
    >>> loop.carried
    {'s': 's_new'}
    """

    body: Body
    inputs: Sequence[InputPort]
    outputs: Sequence[OutputPort]
    back_edges: Sequence[BackEdge] = ()
    carried: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "back_edges", tuple(self.back_edges))
        object.__setattr__(self, "carried", {e.parameter: e.result for e in self.back_edges})
        broken = list(self._broken_rules())
        if broken:
            raise LoopError(
                f"the loop over '{self.body.name}' does not fit together",
                got="; ".join(broken),
                expected=f"parameters {list(self.body.parameters)}, results {list(self.body.results)}",
            )

    def _broken_rules(self):
        parameters, results = set(self.body.parameters), set(self.body.results)
        fed = Counter(port.parameter for port in self.inputs)
        merged = {port.parameter for port in self.inputs if isinstance(port, Merged)}
        targets = Counter(edge.parameter for edge in self.back_edges)
        for name in fed:
            if name not in parameters:
                yield f"an input port feeds '{name}', which is no parameter of the body"
        for name in sorted(n for n in fed if fed[n] > 1):
            yield f"parameter '{name}' is fed by two input ports"
        for name in self.body.parameters:
            if name not in fed:
                yield f"parameter '{name}' is fed by no input port"
        for port in self.outputs:
            if port.result not in results:
                yield f"output '{port.output}' reads '{port.result}', which is no result of the body"
        for edge in self.back_edges:
            if edge.result not in results:
                yield f"a back edge starts at '{edge.result}', which is no result of the body"
            if edge.parameter not in merged:
                yield f"a back edge ends at '{edge.parameter}', which has no initial value (Merged port)"
        for name in sorted(n for n in targets if targets[n] > 1):
            yield f"two back edges end at '{name}'"
        for name in sorted(merged - set(targets)):
            yield f"carried parameter '{name}' has an initial value but no back edge"

    def slices(self) -> tuple[Slice, ...]:
        """The input ports that are cut into steps."""
        return tuple(port for port in self.inputs if isinstance(port, Slice))
