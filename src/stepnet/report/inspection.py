"""The records of a model read from a file: its nets, layers and loops, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .explanation import Report
from .records import Cost, Value, total

When = Literal["once", "rows", "step"]
Way = Literal["slice", "state", "whole", "iteration", "given", "joined", "last", "condition", "result"]


@dataclass(frozen=True)
class Socket:
    """An input or output of the model."""

    name: str
    value: Value


@dataclass(frozen=True)
class PortMapping:
    """One row of a loop's port map: how a value enters or leaves a body.

    Attributes:
        outer: the layer that feeds the port; of an output, the names of what it feeds (model outputs or
            layers), empty if it feeds nothing.
        inner: name of the Parameter or Result of the body.
        way: "slice": a part at each step; "state": the initial value, then that of the back edge; "whole":
            the same at each step; "iteration": the number of the step; "joined": the parts of all steps;
            "last": of the last step; "condition": whether to go on; "given" to and "result" of a branch.
        axis, start, end, stride, part_size: of a slice or concatenation.
        inner_id: its layer's id.
        source: (layer id, output) of a value that enters.
        output: the index of the loop's output that leaves.
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
    """A Result whose value is that of a Parameter at the next step; both by name and by layer id."""

    result: str
    parameter: str
    result_id: int
    parameter_id: int


@dataclass(frozen=True)
class Layer:
    """A layer, constants excepted.

    Attributes:
        reads: (layer id, output) of its inputs, constants left out.
        constants: names of its constant inputs.
        outputs: types and shapes of its results.
        parameters: how many numbers its constants hold; integers, which are positions, left out.
        cost: of running it as often as `when` says.
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
    loop: LayerLoop | None = None

    @property
    def computes(self) -> bool:
        """False for inputs and outputs of a net."""
        return self.type not in ("Parameter", "Result")


@dataclass(frozen=True)
class Net:
    """The model or a body: its layers in topological order, constants left out."""

    layers: tuple[Layer, ...]
    parameters: int

    @property
    def cost(self) -> Cost:
        """Of all its layers."""
        return total(layer.cost for layer in self.layers)

    def cost_by_step(self, steps: int) -> tuple[Cost, Cost]:
        """Of a body: the cost of what runs once for all steps, and of each step."""
        each = [layer.cost for layer in self.layers if layer.when == "step"]
        others = [layer for layer in self.layers if layer.when != "step"]
        once = total(layer.cost.times(1 if layer.when == "once" else steps) for layer in others)
        return once, total(each)

    def all_layers(self) -> Iterator[Layer]:
        """Its layers and, after each loop, those of the loop's bodies."""
        for layer in self.layers:
            yield layer
            for body in layer.loop.bodies.values() if layer.loop else ():
                yield from body.all_layers()


@dataclass(frozen=True)
class LayerLoop:
    """The loop that a layer is: a TensorIterator, Loop or If; or a sequence layer, which has no bodies.

    Attributes:
        path: names of the enclosing loops, and its own.
        steps: their number at the sizes that are counted; None if only a run determines it.
        static: the number of steps is the same for every size of the dynamic dimensions.
        counted_by: what determines the number of steps, in words.
        takes, gives: the port map by body; an If has the bodies "then" and "else", others "body".
        compiled: whether the compiler accepts it; None if that was not tried.
        reason: why not.
        once, step: the cost of what runs once for all steps, and of each step.
        hoisted: cells of the body whose product with the input runs once for all steps.
    """

    path: tuple[str, ...]
    kind: str
    steps: int | None
    static: bool
    counted_by: str
    takes: dict[str, tuple[PortMapping, ...]]
    gives: dict[str, tuple[PortMapping, ...]]
    back_edges: tuple[BackEdge, ...]
    bodies: dict[str, Net]
    compiled: bool | None
    reason: str | None
    once: Cost
    step: Cost
    hoisted: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        """Of all steps; of one where their number is not known."""
        return self.once + self.step.times(1 if self.steps is None else self.steps)


@dataclass(frozen=True, repr=False)
class Inspection(Report):
    """What `stepnet inspect` reports of a model.

    Attributes:
        counted_at: the sizes of the inputs for which costs and steps are counted.
        weight_bytes: of constants, each place in the file once.
        cost: of a run.
        defaults: constants that a call may give otherwise, by name.
    """

    kind = "inspection"

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
    defaults: tuple[Socket, ...] = ()

    def loops(self) -> tuple[tuple[Layer, LayerLoop], ...]:
        """All loops and sequence layers, those of a body after the loop that contains them."""
        return tuple((layer, layer.loop) for layer in self.net.all_layers() if layer.loop is not None)
