"""What is told of a model, as plain records. -1 in a shape is a dynamic dimension; None is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

When = Literal["once", "rows", "step"]
Way = Literal["slice", "state", "whole", "iteration", "given", "joined", "last", "condition", "result"]


@dataclass(frozen=True)
class Value:
    """A tensor: its type as torch names it, and its shape."""

    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Socket:
    """An input or output of the model."""

    name: str
    value: Value


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes read and written; `unknown`: layers whose cost is not known."""

    flops: int = 0
    bytes: int = 0
    unknown: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.unknown + other.unknown)

    def times(self, count: int) -> Cost:
        """The cost of doing it so many times."""
        return Cost(self.flops * count, self.bytes * count, self.unknown)


@dataclass(frozen=True)
class Port:
    """How a value enters or leaves a body.

    Attributes:
        outer: the layer that feeds the port; of an output, the name of what it feeds (the model's output or a
            layer), empty if it feeds nothing.
        inner: name of the Parameter or Result of the body.
        way: "slice": a part at each step; "state": at first this, then what the back edge brings; "whole":
            the same at each step; "iteration": the number of the step; "joined": the parts of all steps;
            "last": of the last step; "condition": whether to go on; "given" to and "result" of a branch.
        axis, start, end, stride, part_size: of what is cut or joined.
        inner_id: its layer's id.
        source: (layer id, output) of what enters.
        output: the loop's output that leaves, by number.
    """

    outer: str
    inner: str
    way: Way
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1
    inner_id: int = -1
    source: tuple[int, int] | None = None
    output: int | None = None


@dataclass(frozen=True)
class BackEdge:
    """The value of a Result is that of a Parameter at the next step; both by name and by layer id."""

    result: str
    parameter: str
    result_id: int
    parameter_id: int


@dataclass(frozen=True)
class Layer:
    """A layer that is no constant.

    Attributes:
        reads: (layer id, output) of what feeds it, constants left out.
        constants: names of the constants that it reads.
        outputs: what it gives.
        parameters: numbers in the constants that it computes with.
        cost: of running it once, as often as `when` says.
        when: in a body: "once" for the whole loop; on all "rows" at once; at each "step". None outside.
    """

    id: int
    name: str
    type: str
    reads: tuple[tuple[int, int], ...]
    constants: tuple[str, ...]
    outputs: tuple[Value, ...]
    parameters: int
    cost: Cost
    when: When | None = None
    loop: Loop | None = None

    @property
    def computes(self) -> bool:
        """False for the ends of a net."""
        return self.type not in ("Parameter", "Result")


@dataclass(frozen=True)
class Net:
    """The model or a body: its layers in an order in which they can run, constants left out."""

    layers: tuple[Layer, ...]
    parameters: int

    def all_layers(self) -> Iterator[Layer]:
        """The layers of it and of the bodies in it."""
        for layer in self.layers:
            yield layer
            for body in layer.loop.bodies.values() if layer.loop else ():
                yield from body.all_layers()


@dataclass(frozen=True)
class Loop:
    """What is special of a TensorIterator, Loop or If; or of a sequence layer, which has no bodies.

    Attributes:
        path: names of the loops around it, and its own.
        steps: how many at the sizes that are counted; None if only the run tells.
        static: the number of steps holds for every size of the dynamic dimensions.
        counted_by: what the number of steps comes from, in words.
        takes, gives: by body; an If has the bodies "then" and "else", others "body".
        compiled: whether the compiler takes it; None if that was not tried.
        reason: why not.
        once, step: the cost of what runs once for all steps, and of each step.
        hoisted: cells of the body of which the product with the input runs for all rows at once.
    """

    path: tuple[str, ...]
    kind: str
    steps: int | None
    static: bool
    counted_by: str
    takes: dict[str, tuple[Port, ...]]
    gives: dict[str, tuple[Port, ...]]
    back_edges: tuple[BackEdge, ...]
    bodies: dict[str, Net]
    compiled: bool | None
    reason: str | None
    once: Cost
    step: Cost
    hoisted: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        """Of all steps; one is counted where their number is not known."""
        return self.once + self.step.times(1 if self.steps is None else self.steps)


@dataclass(frozen=True)
class Inspection:
    """What `stepnet inspect` tells of a model.

    Attributes:
        counted_at: the sizes of the inputs for which costs and steps are counted.
        weight_bytes: of constants, each place in the file once.
        cost: of a run.
    """

    name: str
    file: str
    version: int
    inputs: tuple[Socket, ...]
    outputs: tuple[Socket, ...]
    counted_at: dict[str, tuple[int, ...]]
    net: Net
    parameters: int
    weight_bytes: int
    cost: Cost

    def loops(self) -> tuple[tuple[Layer, Loop], ...]:
        """All loops and sequences, those of bodies after the loop that they are in."""
        return tuple((layer, layer.loop) for layer in self.net.all_layers() if layer.loop is not None)
