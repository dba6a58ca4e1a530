"""Functions that are traced anew for the body of a loop."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from stepnet.compiler.trace.capture import Replaced
from stepnet.errors import IRError

from .aten import AtenNet, is_known
from .graph import Graph, LoopInput, Value
from .size_inputs import Referred, examples
from .trace import Program, of_python, program, repeated_along, sizes_of, unsaid

_MORE = 8
BY_SIZES = (
    "compute with the size (x.shape[0]) by + - * / // %, math.sqrt and such, and torch, "
    "not by range, int() or if"
)
Body = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


class FixedSize(IRError):
    """A body is for one number where the graph around it leaves a size open."""


class BodyTrace:
    """A function as the body of a loop. Its arguments are inputs, the weights it reads that are computed by
    the graph around it, and sizes.

    Args:
        b: the graph around the loop.
        where: what is traced, for errors.
        shapes: of the inputs, as the trace around knows them.
        given: examples of the inputs.
        weights: what the function reads, as nodes of the trace around.
        tensors: the tensors that these were when the function ran for real.
        sizes: nodes of sizes that are left open.
        referred: the same sizes, for the example.

    Attributes:
        numbers: the sizes, for the example: tensors, and numbers where they follow from sizes of inputs.
    """

    def __init__(
        self, b: AtenNet, where: str, shapes: Sequence[Sequence[Any]], given: Sequence[Tensor],
        weights: Sequence[FxNode], tensors: Sequence[Tensor], sizes: Sequence[FxNode] = (),
        referred: Referred | None = None,
    ) -> None:  # fmt: skip
        computed = [i for i, node in enumerate(weights) if not b.is_constant(node)]
        self.b, self.where, self.count = b, where, len(given)
        self.loose = [tensors[i] for i in computed]
        self.known = [_known(node, shapes) for node in sizes]
        fed = [known is None for known in self.known]
        # what comes in besides the inputs
        self.more = [*(weights[i] for i in computed), *itertools.compress(sizes, fed)]
        self.numbers = [
            int(size) if known else size
            for size, known in zip(examples(referred or {}), self.known, strict=True)
        ]
        self.examples = [*given, *self.loose, *itertools.compress(self.numbers, fed)]
        self.shapes = [*shapes, *map(b.shape, self.more)]

    def traced(self, run: Body, owner: Any = None) -> Program:
        """The function, of inputs and sizes, with tensors of the trace in place of the weights.

        A size that comes to 1 in the example, as half of 2 does, is 1 for good to torch: then the example is
        made larger.

        Raises:
            IRError: it cannot be traced.
        """
        made, size = self._traced(run, owner, self.examples)
        if size is None:
            return made
        larger = self._larger()
        if larger is None and size < 2:  # of what follows from data there is no other example
            return made
        if larger is not None:
            with contextlib.suppress(IRError), unsaid("torch._subclasses.fake_tensor"):
                again, still = self._traced(run, owner, larger)
                if still is None:
                    return again
        line = made.fixed.get(size)
        raise FixedSize(
            f"{self.where} cannot be written for any size of what it is given: it became {size} in the trace",
            got="Python that decides by a size, or counts by it"
            + (f" ({line.short})" if line else "")
            + f": it is {size} in the example",
            expected="calls of torch that are the same for all sizes",
            remedy=BY_SIZES,
        )

    def _larger(self) -> list[Tensor] | None:
        """The examples again and again, so that each open size is larger; None: some follow from no size."""
        nodes = [[getattr(size, "node", None) for size in shape] for shape in self.shapes]
        opened = [
            (node, size)
            for example, shape in zip(self.examples, nodes, strict=True)
            for node, size in zip(shape, example.shape, strict=True)
            if node is not None
        ]
        symbols = {symbol for node, _ in opened for symbol in node.expr.free_symbols}
        envs = [env for node, _ in opened if (env := getattr(node, "shape_env", None)) is not None]
        if any(env.is_unbacked_symint(symbol) for env in envs for symbol in symbols):
            return None
        most = max((size for _, size in opened), default=0)
        sizes = dict.fromkeys(symbols, most + _MORE) | {
            node.expr: size + _MORE for node, size in opened if node.expr in symbols
        }
        out = []
        for example, shape in zip(self.examples, nodes, strict=True):
            for d, node in enumerate(shape):
                if node is not None:
                    size = int(sympy_interp(PythonReferenceAnalysis, sizes, node.expr))
                    example = repeated_along(example, d, size)
            out.append(example)
        return out

    def _traced(self, run: Body, owner: Any, given: Sequence[Tensor]) -> tuple[Program, int | None]:
        """The function by an example, and the largest size that was to be open and is not; None: all are."""

        def whole(*leaves: Tensor) -> Sequence[Tensor]:
            sizes = self.count + len(self.loose)
            if any(t.dtype == torch.float64 for t in self.examples[: self.count]):
                for size in leaves[sizes:]:
                    of_python(size)
            more = iter(leaves[sizes:])
            numbers = [next(more) if of is None else of(leaves) for of in self.known]
            with Replaced.by(self.loose, leaves[self.count : sizes]) as fed:
                return fed.results(run(leaves[: self.count], numbers))

        dynamic = [
            {d: False for d, size in enumerate(shape) if not isinstance(size, int)} for shape in self.shapes
        ]
        made = program(whole, owner, given, dynamic, self.where, is_known)
        sizes = [
            size
            for node, dims in zip(made.inputs, dynamic, strict=True)
            for d, size in enumerate(sizes_of(node.meta["val"]))
            if d in dims and isinstance(size, int)
        ]
        return made, max(sizes, default=None)

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


def _known(node: FxNode, shapes: Sequence[Sequence[Any]]) -> Callable[[Sequence[Tensor]], Any] | None:
    """How a size follows from those of the arguments of a body, if it does: what is cut at a number
    from elsewhere has a size of its own to torch, which it cannot hold against another."""
    size = next((arg.meta.get("val") for arg in node.args if isinstance(arg, FxNode)), None)
    if not isinstance(size, torch.SymInt):
        return None
    of: Any = size.node.expr
    at = {
        open_.node.expr: (i, d)
        for i, shape in enumerate(shapes)
        for d, open_ in enumerate(shape)
        if isinstance(open_, torch.SymInt)
    }
    if of in at:
        i, d = at[of]
        return lambda leaves: leaves[i].shape[d]
    if not of.free_symbols <= at.keys():
        return None

    def computed(leaves: Sequence[Tensor]) -> Any:
        sizes = {symbol: leaves[at[symbol][0]].shape[at[symbol][1]] for symbol in of.free_symbols}
        return sympy_interp(PythonReferenceAnalysis, sizes, of)

    return computed


def no_lengths(_: Any) -> Any:
    """Refuse sequences that are not those of the loop around."""
    raise IRError(
        "a recurrence runs over sequences that its step makes itself, and cannot be written",
        got="sequences of lengths that the step computes",
        expected="sequences of the loop around",
        remedy="run the recurrence before the outer one, or over the sequences that its step is given",
    )
