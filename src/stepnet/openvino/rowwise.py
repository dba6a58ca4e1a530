"""Run a loop read from a file through the compiler, where every row of the batch is treated alike.

Such a loop is a step function: x_t and the state in, with the batch first, results out. The compiler
proves that its rows do not mix, or refuses, and then the plain loop runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepnet.api import checked
from stepnet.backends import check_backend
from stepnet.data.tree import unflatten
from stepnet.engine import run_compiled
from stepnet.errors import IRError, Refusal, StepError
from stepnet.ir.tensor_iterator import Concat, Invariant, Merged, Slice, TensorIterator
from stepnet.run.segment import iterations

if TYPE_CHECKING:
    from .graph import Graph


class RowStep:
    """A body as `step(x_t, state) -> (y_t, new_state)`, one row for each element of the batch.

    The program itself hides behind a weak reference, so that what a call reaches is short: `serial` says
    which program, and `tensors` are its constants.
    """

    def __init__(self, graph: Graph, loop: TensorIterator, kept: Mapping[str, Tensor], batch: int) -> None:
        self.serial = graph.serial
        self.tensors = [*graph.tensors(), *kept.values()]
        self.names = tuple(kept)
        self.batch = batch
        self._program = weakref.ref(graph)
        self._loop = weakref.ref(loop)

    def __call__(
        self, x: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        graph, loop = self._program(), self._loop()
        assert graph is not None
        assert loop is not None
        values = (
            dict(zip(self.names, self.tensors[len(self.tensors) - len(self.names) :], strict=True)) | state
        )
        axis = 0
        for port in loop.slices():
            axis = port.axis
            rows = x[port.parameter]
            values[port.parameter] = rows.unsqueeze(axis) if port.part_size == 1 else rows
        named = dict(zip(loop.body.results, self._run(graph, loop, values, axis), strict=True))
        y = {}
        for port in loop.outputs:
            value = named[port.result]
            if isinstance(port, Concat):
                y[port.output] = value.squeeze(port.axis) if port.part_size == 1 else value
            elif port.result not in loop.carried.values():
                y[port.output] = value
        return y, state | {parameter: named[result] for parameter, result in loop.carried.items()}

    def _run(
        self, graph: Graph, loop: TensorIterator, values: Mapping[str, Tensor], axis: int
    ) -> list[Tensor]:
        slots = graph.start([values[name] for name in loop.body.parameters])
        try:
            for node in graph.nodes:
                arguments = node.arguments(slots)
                if self.batch and node.layer.type.lower() == "reshape" and 1 in node.fixed:
                    arguments[1] = rows_pattern(arguments[1], self.batch, axis, arguments[0].dim())
                results = node.call(arguments)
                for slot, result in zip(node.outputs, results, strict=False):
                    slots[slot] = result
        except IRError as error:
            raise Refusal(
                f"the body does not run on another number of rows: {str(error).splitlines()[0]}"
            ) from error
        return [slots[slot] for slot in graph.result_slots]


def rows_pattern(pattern: list[int], batch: int, axis: int, rank: int) -> list[int]:
    """A Reshape's pattern with the batch size it was written for replaced by "as many as there are".

    The batch is the first dimension; in a loop along axis 0 it follows that axis.

    >>> rows_pattern([2, 512], 2, 1, 3), rows_pattern([1, 2, 256], 2, 0, 2)
    ([-1, 512], [1, -1, 256])
    """
    if not isinstance(pattern, list) or -1 in pattern or not pattern:
        return pattern
    at = 0
    if axis == 0 and len(pattern) > 1 and pattern[0] == 1 and (batch != 1 or len(pattern) > rank):
        at = 1
    return [-1 if i == at and d == batch else d for i, d in enumerate(pattern)]


class Rowwise:
    """A loop, and whether its ports have the form of a step over rows."""

    def __init__(self, loop: TensorIterator, graph: Graph) -> None:
        self.loop = loop
        self.graph = graph
        self.reason = self._shape_refusal()
        fixed = [n.fixed[1] for n in graph.nodes if n.layer.type.lower() == "reshape" and 1 in n.fixed]
        self.patterns = [p for p in fixed if isinstance(p, list) and -1 not in p]

    def _shape_refusal(self) -> str | None:
        slices = self.loop.slices()
        if not slices:
            return "no input is cut into steps"
        if any(node.layer.bodies or hasattr(node.run, "reports") for node in self.graph.nodes):
            return "its body holds a loop or a branch"
        if len({port.axis for port in slices}) > 1 or slices[0].axis < 0:
            return "its inputs are cut along different axes"
        cuts = [*slices, *(port for port in self.loop.outputs if isinstance(port, Concat))]
        if any(port.part_size != 1 and port.axis == 0 for port in cuts):
            return "it takes blocks along the first axis"
        if any(port.axis < 0 for port in cuts):
            return "an output is joined along a negative axis"
        return None

    def run(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
        """The outputs by name, or None and why the loop is not compiled."""
        if self.reason is not None:
            return None, self.reason
        backend = check_backend(None)
        if backend == "naive":
            return None, "the backend is 'naive'"
        if any(not isinstance(v, Tensor) or v.device.type != "cpu" for v in feeds.values()):
            return None, "not on the CPU"
        try:
            x, reverse, axis, steps, batch = self._inputs(feeds)
            if steps == 0:
                return None, "it has no steps"
            invariants = {p.parameter: feeds[p.source] for p in self.loop.inputs if isinstance(p, Invariant)}
            alike = {name for name, value in invariants.items() if value.dim() and value.shape[0] == batch}
            try:
                return self._compiled(feeds, x, invariants, alike, reverse, axis, batch), None
            except Refusal:
                if not alike:
                    raise
                return self._compiled(feeds, x, invariants, set(), reverse, axis, batch), None
        except (Refusal, StepError) as refusal:
            return None, str(refusal.args[0]).splitlines()[0]

    def _inputs(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Tensor], bool, int, int, int]:
        """Sliced inputs as tables of steps along axis 0 or 1, all in one direction."""
        slices = self.loop.slices()
        reverse = slices[0].stride < 0
        found: dict[str, Tensor] = {}
        counts = set()
        time = 0 if slices[0].axis == 0 else 1
        for port in slices:
            value = feeds[port.source]
            if port.axis >= value.dim() or value.dim() < 2:
                raise Refusal("an input has no axis beside that of time")
            low, high, steps = _window(port, value.shape[port.axis])
            counts.add(steps)
            value = value.narrow(port.axis, low, high - low)
            if port.part_size != 1:
                value = value.unflatten(port.axis, (steps, port.part_size or 1))
            if (port.stride < 0) != reverse:
                value = value.flip(port.axis)
            found[port.parameter] = value.movedim(port.axis, time)
        if len(counts) > 1:
            raise Refusal("inputs have different numbers of steps")
        batch = next(iter(found.values())).shape[1 - time]
        return found, reverse, time, counts.pop(), batch

    def _compiled(
        self, feeds: Mapping[str, Any], x: dict[str, Tensor], invariants: Mapping[str, Tensor],
        alike: set[str], reverse: bool, time: int, batch: int,
    ) -> dict[str, Any]:  # fmt: skip
        kept = {name: value for name, value in invariants.items() if name not in alike}
        state = {p.parameter: feeds[p.source] for p in self.loop.inputs if isinstance(p, Merged)}
        state |= {name: invariants[name] for name in sorted(alike)}
        fixed = batch if any(batch in pattern[:2] for pattern in self.patterns) else 0
        step = RowStep(self.graph, self.loop, kept, fixed)
        y, finals = run_step(step, x, state, reverse=reverse, axis=time)
        outputs: dict[str, Any] = {}
        for port in self.loop.outputs:
            if isinstance(port, Concat):
                value = y[port.output]
                if (port.stride < 0) != reverse:
                    value = value.flip(time)
                value = value.movedim(time, port.axis)
                outputs[port.output] = (
                    value if port.part_size == 1 else value.flatten(port.axis, port.axis + 1)
                )
            elif port.output in y:
                outputs[port.output] = y[port.output].select(time, 0 if reverse else -1)
            else:
                parameter = next(p for p, r in self.loop.carried.items() if r == port.result)
                outputs[port.output] = finals[parameter]
        return outputs


def _window(port: Slice, size: int) -> tuple[int, int, int]:
    try:
        return iterations(port, size)
    except ValueError as error:  # the plain loop meets it too, and tells it
        raise Refusal("its slices lie outside an input") from error


def run_step(step: Any, x: Any, state: Any, *, reverse: bool, axis: int) -> tuple[Any, Any]:
    """Run a step by a plan: y, and the final state.

    Raises:
        Refusal: no plan can be made. Unlike `recurrent`, no warning is given.
    """
    body, x_leaves, state_leaves = checked(step, x, state, axis=axis)
    backend = check_backend(None)
    y, finals = run_compiled(
        body, x_leaves, state_leaves, reverse=reverse, level=-1, axis=axis, backend=backend, warn=False
    )
    return y, unflatten(body.state_spec, finals)
