"""Functions that are traced anew for the body of a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.compiler.capture import Replaced
from stepnet.errors import IRError
from stepnet.watchers import Instead

from .aten import AtenNet, is_known
from .graph import Graph, LoopInput, Value
from .trace import Program, program

Body = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


class BodyTrace:
    """A function as the body of a loop. Its arguments are inputs, the weights it reads that are computed by
    the graph around it, and sizes.

    Args:
        b: the graph around the loop.
        where: what is traced, for errors.
        shapes: of the inputs, as the trace around knows them.
        examples: of the inputs.
        weights: what the function reads, as nodes of the trace around.
        tensors: the tensors that these were when the function ran for real.
        sizes: nodes of sizes that are left open.
        size_examples: of these.
    """

    def __init__(
        self, b: AtenNet, where: str, shapes: Sequence[Sequence[Any]], examples: Sequence[Tensor],
        weights: Sequence[FxNode], tensors: Sequence[Tensor], sizes: Sequence[FxNode] = (),
        size_examples: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        computed = [i for i, node in enumerate(weights) if not b.is_constant(node)]
        self.b, self.where, self.count = b, where, len(examples)
        self.loose = [tensors[i] for i in computed]
        self.more = [*(weights[i] for i in computed), *sizes]  # what comes in besides the inputs
        self.examples = [*examples, *self.loose, *size_examples]
        self.shapes = [*shapes, *map(b.shape, self.more)]

    def traced(self, run: Body, owner: Any = None) -> Program:
        """The function, of inputs and sizes, with tensors of the trace in place of the weights.

        Raises:
            IRError: it cannot be traced.
        """

        def whole(*leaves: Tensor) -> Sequence[Tensor]:
            sizes = self.count + len(self.loose)
            swap = {id(t): leaf for t, leaf in zip(self.loose, leaves[self.count : sizes], strict=True)}
            with Replaced(swap):
                return run(leaves[: self.count], leaves[sizes:])

        dynamic = [
            {d: False for d, size in enumerate(shape) if not isinstance(size, int)} for shape in self.shapes
        ]
        return program(whole, owner, self.examples, dynamic, self.where, is_known)

    def parameter(self, graph: Graph, at: int, name: str, cut: int | None = None) -> Value:
        """A parameter of the body for one of the arguments; `cut`: an axis that slices keep."""
        shape = [size if isinstance(size, int) else -1 for size in self.shapes[at]]
        if cut is not None:
            shape.insert(cut, 1)
        return graph.parameter(name, self.examples[at].dtype, shape)

    def rest(self, graph: Graph, name: str) -> list[LoopInput]:
        """Parameters of the body for weights and sizes, and what feeds them."""
        return [
            LoopInput(self.b.out(node), self.parameter(graph, self.count + k, name.format(k)))
            for k, node in enumerate(self.more)
        ]


class Nested(Instead):
    """Answers for a recurrence inside a body: with an error."""

    def __init__(self, b: AtenNet, where: str) -> None:
        self.where, self.target = where, b.emit.graph.target

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise IRError(
            f"{self.where} cannot be written: its step runs a recurrence of its own",
            got=self.target.nested,
            remedy="move the inner recurrence in front of the outer one",
        )

    def loop(self, loop: Any, feeds: Any) -> Any:
        self()
