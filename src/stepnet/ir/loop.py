"""The one loop: a body, a port map, back edges, and perhaps a condition.

Meaning, for a body with parameters p and results r (OpenVINO TensorIterator-1 and Loop-5)::

    for i in range(N):
        if the carried condition does not hold: break
        for port in inputs:   p[port.parameter] = slice i | carried value | invariant | i
        r = body(p)
        for edge in back_edges: carried[edge.parameter] = r[edge.result]   # all at once
    outputs = concat of the slices of every iteration, or the last value

N is how many slices there are. Whatever a user writes, a step, a TensorIterator, an RNN op, a frame or a
condition and a body, becomes this record; `compiler` and `engine` take it, and the plain loop is its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from stepnet.errors import LoopError


class Body(Protocol):
    """What a loop runs at each iteration: named parameters in, named results out, both positional.

    A result that is joined may be a nesting of tensors; one that is carried is a single value.
    """

    name: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]: ...


class Code(Body, Protocol):
    """A body that can be compiled: all that it reads besides its parameters is found from `function`."""

    form: Any  # hashable: whatever else than names tells two bodies of one function apart

    @property
    def function(self) -> Any: ...

    def fresh(self) -> Body:
        """The same body as before its first iteration: what it remembers of others is forgotten."""
        ...


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
class Iteration:
    """The number of the iteration, from 0: an integer tensor of one element; `dtype=None`: a Python int."""

    parameter: str
    dtype: str | None = None
    rank: int = 0


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


InputPort = Slice | Merged | Invariant | Iteration
OutputPort = Concat | Last


class Sweep(NamedTuple):
    """One pass over the steps of all sequences: along `axis` of tensors, or by `level` of LoDTensors."""

    axis: int
    level: int | None
    reverse: bool


class Wiring(NamedTuple):
    """Which of the values of a step, in the order of the body's, is what, by its place and its name."""

    cut: tuple[tuple[int, str], ...]  # parameters
    merged: tuple[tuple[int, str], ...]
    joined: tuple[tuple[str, int], ...]  # results
    edges: tuple[tuple[int, int], ...]  # of parameters, and of the results that come there next
    numbers: tuple[tuple[int, Iteration], ...]


@dataclass(frozen=True)
class Loop:
    """A loop over steps. Checked when made; every broken rule is reported, not only the first.

    Attributes:
        condition: a carried parameter; the loop goes on as long as its value holds. One boolean; or, where
            nothing is cut or joined, one for each row of what is carried: each row runs until its own is
            False, and the body sees the rows that still run.
        limit: the source of a number: no more iterations than that, -1 for any number. With it, or with a
            condition, inputs may have more slices than there are iterations.

    Raises:
        LoopError: a port or back edge names what the body does not have, a parameter is fed twice or
            not at all, or a carried parameter has no back edge.

    >>> class Sum:
    ...     name, parameters, results = "sum", ("x", "s"), ("s_new",)
    ...     def __call__(self, x, s): return (s + x,)
    >>> loop = Loop(Sum(), inputs=(Slice("xs", "x"), Merged("zero", "s")),
    ...             outputs=(Last("s_new", "total"),), back_edges=(BackEdge("s_new", "s"),))
    >>> loop.carried, loop.sweep
    ({'s': 's_new'}, Sweep(axis=0, level=None, reverse=False))
    """

    body: Body
    inputs: Sequence[InputPort]
    outputs: Sequence[OutputPort]
    back_edges: Sequence[BackEdge] = ()
    condition: str | None = None
    limit: str | None = None
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
        if self.condition is not None and self.condition not in merged:
            yield f"the condition is '{self.condition}', which is no carried parameter"

    def settled(self) -> Loop:
        """Itself, with what follows from its ports and calls look up: they leave it as it is."""
        _ = self.sources, self.sweep, self.finals, self.wiring
        return self

    def around(self, body: Body) -> Loop:
        """The same loop around another body with the same parameters and results."""
        self.settled()
        twin = object.__new__(Loop)
        twin.__dict__.update(self.__dict__)
        twin.__dict__["body"] = body
        return twin

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The input ports that are cut into steps."""
        return tuple(port for port in self.inputs if isinstance(port, Slice))

    @cached_property
    def merged(self) -> tuple[Merged, ...]:
        """The input ports of carried values."""
        return tuple(port for port in self.inputs if isinstance(port, Merged))

    @cached_property
    def invariants(self) -> tuple[Invariant, ...]:
        """The input ports of what is the same at every iteration."""
        return tuple(port for port in self.inputs if isinstance(port, Invariant))

    @cached_property
    def joined(self) -> tuple[Concat, ...]:
        """The output ports that join a result of every iteration."""
        return tuple(port for port in self.outputs if isinstance(port, Concat))

    @cached_property
    def sources(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Where what is cut, what is carried and what stays the same comes from."""
        slices, merged = (p.source for p in self.slices), (p.source for p in self.merged)
        return tuple(slices), tuple(merged), tuple(p.source for p in self.invariants)

    @cached_property
    def wiring(self) -> Wiring:
        """Where values go from step to step."""
        of, made = ({name: k for k, name in enumerate(n)} for n in (self.body.parameters, self.body.results))
        joined = dict.fromkeys(port.result for port in self.joined)
        return Wiring(
            tuple((of[port.parameter], port.parameter) for port in self.slices),
            tuple((of[port.parameter], port.parameter) for port in self.merged),
            tuple((result, made[result]) for result in joined),
            tuple((of[parameter], made[result]) for parameter, result in self.carried.items()),
            tuple((of[port.parameter], port) for port in self.inputs if isinstance(port, Iteration)),
        )

    @cached_property
    def finals(self) -> tuple[tuple[str, int], ...]:
        """The outputs that are last values of what is carried, each with its place in `merged`."""
        place = {self.carried[port.parameter]: i for i, port in reversed([*enumerate(self.merged)])}
        last = (port for port in self.outputs if isinstance(port, Last))
        return tuple((port.output, place[port.result]) for port in last if port.result in place)

    @cached_property
    def sweep(self) -> Sweep | None:
        """How the loop goes over its rows; None where it is no such pass, because its ports cut in different
        ways or in blocks, or something else than the number of slices ends it."""
        cut = (*self.slices, *self.joined)
        ways = {(p.axis, p.level, p.start, p.end, p.stride, p.part_size) for p in cut}
        counted = any(isinstance(port, Iteration) for port in self.inputs)
        if len(ways) != 1 or not self.slices or counted or self.condition or self.limit:
            return None
        if len(self.joined) + len(self.finals) < len(self.outputs):  # the last of what is not carried
            return None
        ((axis, level, *way),) = ways
        if way not in ([0, -1, 1, None], [-1, 0, -1, None]):
            return None
        return Sweep(axis, level, reverse=way[0] == -1)

    @cached_property
    def ragged(self) -> Loop:
        """The same loop, which is a sweep, over the rows of LoDTensors in their order; every carried value is
        an output, by its parameter."""
        inputs = [Slice(p.source, p.parameter, level=-1) if isinstance(p, Slice) else p for p in self.inputs]
        joined = [Concat(port.result, port.output, level=-1) for port in self.joined]
        last = [Last(self.carried[port.parameter], f"last {port.parameter}") for port in self.merged]
        return Loop(self.body, inputs, (*joined, *last), self.back_edges)
