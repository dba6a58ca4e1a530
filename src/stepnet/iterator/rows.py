"""Run a TensorIterator through the compiler, where every row of the batch is treated alike.

Such a loop is a step function: the slices of an iteration and the state in, with the batch first, results
out. The compiler proves that its rows do not mix, or refuses; then the plain loop runs.

    input cut along axis 0     [T, B, ...]: the batch follows the axis of time;
                               or [T * B, ...] with part_size B: each block is the batch
    along another axis         [B, ..., T, ...]: the batch is the first axis
    blocks of part_size p      T / p steps of p elements each
    invariant with B rows      a state that does not change; any other is shared by all rows
    state of one element       each row has its own, which are all alike
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepnet.api import watched, watching
from stepnet.data.tree import flatten, unflatten
from stepnet.engine import run
from stepnet.errors import IRError, LoopError, StepError, Unsupported
from stepnet.executors.segment import iterations
from stepnet.front.step import StepBody, as_loop
from stepnet.ir.loop import Concat, Invariant, Loop, Merged

from .row_step import COUNTER, RowStep, Run

_MOST_CHECKED = 64  # sizes of a batch that one loop remembers


@dataclass(frozen=True)
class RowCall:
    """A run of a loop as a call of `recurrent`; the axis of time is 0 or 1."""

    step: Any
    x: Any
    state: Any
    reverse: bool
    time: int
    lone: Mapping[str, torch.Size] = field(default_factory=dict)  # shapes of states of one element


class RowLoop:
    """A TensorIterator, and how it runs as a step over rows.

    Args:
        loop: the loop; its ports have a part_size.
        adapt: `adapt(batch, axis of time)` gives what runs the body on any number of rows, and whether that
            is the body itself; where it is not, it is held against the body first. None: the body.
        counter: a parameter that gets the number of the iteration. Its invariant port says shape and dtype.
    """

    def __init__(
        self, loop: Loop, adapt: Callable[[int, int], tuple[Run, bool]] | None = None,
        counter: str | None = None,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.adapt = adapt
        self.counter = counter
        self._checked: dict[Any, bool] = {}

    def run(self, feeds: Mapping[str, Any], backend: str, *, steps: int | None = None) -> dict[str, Any]:
        """The outputs by name, as the plain loop gives them.

        Args:
            feeds: as for the plain loop.
            backend: which executors may run it.
            steps: how many iterations; None: as many as the slices say.

        Raises:
            Unsupported: the loop has not the form of a step over rows, or does not compile.
        """
        tried: list[tuple[RowCall, Unsupported]] = []
        for call in self._shown(feeds, steps):
            try:
                out = self._outputs(call, *run_step(call, backend))
            except StepError as error:
                tried.append((call, Unsupported(str(error.args[0]).splitlines()[0])))
            except Unsupported as error:
                tried.append((call, error))
            else:
                show(call, backend)
                return out
        call, refusal = tried[0]
        show(call, backend)
        raise refusal

    def warn(self, feeds: Mapping[str, Any], backend: str, steps: int) -> None:
        """Give a SlowPathWarning of a body that `run` could not compile, once."""
        with suppress(Unsupported):
            run_step(next(self.calls(feeds, steps)), backend, warn=True)

    def _shown(self, feeds: Mapping[str, Any], steps: int | None) -> Iterator[RowCall]:
        """`calls`; that there are none is shown to what watches."""
        try:
            yield from self.calls(feeds, steps)
        except Unsupported as refusal:
            show_declined(self.loop, feeds, steps, refusal)
            raise

    def calls(self, feeds: Mapping[str, Any], steps: int | None = None) -> Iterator[RowCall]:
        """The calls of `recurrent` that the loop may be, one at least, best first.

        Raises:
            Unsupported: it is none.
        """
        if any(not isinstance(value, Tensor) or value.is_meta for value in feeds.values()):
            raise Unsupported("an input is no tensor with data")
        refused: list[Unsupported] = []
        found = False
        for blocks in (False, True):
            try:
                for call in self._calls(feeds, steps, blocks):
                    found = True
                    yield call
            except Unsupported as refusal:
                refused.append(refusal)
        if not found:
            raise refused[0]

    def _calls(self, feeds: Mapping[str, Any], steps: int | None, blocks: bool) -> Iterator[RowCall]:
        axes: dict[str, int] = {}
        for port in self.loop.slices:
            rank = feeds[port.source].dim()
            if not -rank <= port.axis < rank:  # the plain loop meets it too, and tells it
                raise Unsupported(f"'{port.parameter}' has no axis {port.axis}")
            axes[port.parameter] = port.axis % rank
        first = next(iter(axes.values()), 1)
        cut = [*axes.values(), *(port.axis for port in self.loop.outputs if isinstance(port, Concat))]
        if blocks and (0 not in cut or min(cut) < 0):
            return
        state = {p.parameter: feeds[p.source] for p in self.loop.inputs if isinstance(p, Merged)}
        x, reverse, batch = self._inputs(feeds, state, steps, axes, blocks)
        time = 0 if first == 0 else 1
        invariants = {
            p.parameter: feeds[p.source]
            for p in self.loop.inputs
            if isinstance(p, Invariant) and p.parameter != self.counter
        }
        alike = [name for name, value in invariants.items() if value.dim() and value.shape[0] == batch]
        wide = [name for name in alike if invariants[name].dim() > 1]
        run, exact = self.loop.body, True
        if self.adapt is not None:
            run, exact = self.adapt(batch, 0 if first == 0 and not blocks else 1)
        found = False
        for lone in self._lone(state, batch):
            free = self.counter is not None or bool(lone)
            carried = state | {name: state[name].reshape(1).expand(batch) for name in lone}
            for rows in dict.fromkeys((tuple(alike), tuple(wide), ())):
                shared = {name: value for name, value in invariants.items() if name not in rows}
                own = carried | {name: invariants[name] for name in rows}
                most = max((value.dim() for value in own.values()), default=1)
                for rank in range(most + 1, 0, -1) if free else (1,):
                    step = RowStep(self.loop, run, axes, shared, self.counter, tuple(lone), rank, blocks)
                    call = RowCall(step, x, own, reverse, time, lone)
                    if (exact and not free) or self._known_to_fit(call, feeds):
                        found = True
                        yield call
        if not found:
            raise Unsupported("the body does not treat the rows of the batch alike")

    def _lone(self, state: Mapping[str, Tensor], batch: int) -> list[dict[str, torch.Size]]:
        """Which states may be one element for all rows, with their shapes; a batch of one leaves a choice.

        Raises:
            Unsupported: a state is neither that nor one of rows.
        """
        joined = {port.result for port in self.loop.outputs if isinstance(port, Concat)}
        one = {
            name: value.shape
            for name, value in state.items()
            if value.numel() == 1 and self.loop.carried[name] not in joined
        }
        rows = [name for name, value in state.items() if value.dim() and value.shape[0] == batch]
        for name in state:
            if name not in rows and name not in one:
                raise Unsupported(f"'{name}' does not have one row for each of the {batch} of the batch")
        least = {name: shape for name, shape in one.items() if name not in rows}
        most = {name: shape for name, shape in one.items() if len(shape) < 2 or name in least}
        return [least] if least == most else [least, most]

    def _inputs(
        self, feeds: Mapping[str, Any], state: Mapping[str, Tensor], steps: int | None,
        axes: Mapping[str, int], blocks: bool,
    ) -> tuple[dict[str, Tensor], bool, int]:  # fmt: skip
        """What is cut, as tables of steps that all go in one direction; whether that is backwards; the size
        of the batch."""
        slices = self.loop.slices
        reverse = bool(slices) and slices[0].stride < 0
        time = 0 if slices and axes[slices[0].parameter] == 0 else 1
        found: dict[str, Tensor] = {}
        counts: set[int] = set() if steps is None else {steps}
        for port in slices:
            value, axis, part = feeds[port.source], axes[port.parameter], port.part_size or 1
            try:
                low, high, count = iterations(port, value.shape[axis])
            except LoopError as error:  # the plain loop meets it too, and tells it
                raise Unsupported("its slices lie outside an input") from error
            if steps is not None and steps < count:
                low, high = (low, low + steps * part) if port.stride > 0 else (high - steps * part, high)
                count = steps
            counts.add(count)
            value = value.narrow(axis, low, high - low)
            if part != 1 or (blocks and axis == 0):
                value = value.unflatten(axis, (count, part))
            elif value.dim() < 2:
                raise Unsupported("an input has no axis beside that of time")
            if (port.stride < 0) != reverse:
                value = value.flip(axis)
            if value.dim() < 3 and part != 1 and axis == 0 and not blocks:
                raise Unsupported("an input has no axis beside that of time")
            found[port.parameter] = value.movedim((axis, _batch_axis(axis, part, blocks)), (time, 1 - time))
        if len(counts) > 1:
            raise Unsupported("inputs have different numbers of steps")
        if not counts:
            raise Unsupported("no input is cut into steps")
        (count,) = counts
        if not count:
            raise Unsupported("it has no steps")
        sizes = [value.shape[1 - time] for value in found.values()]
        sizes += sorted((value.shape[0] for value in state.values() if value.dim()), reverse=True)
        if not sizes:
            raise Unsupported("no input is cut into steps, and nothing is carried")
        if not found or self.counter is not None:
            if COUNTER in found:
                raise Unsupported(f"a parameter has the name '{COUNTER}'")
            numbers = torch.arange(count)
            numbers = (numbers.flip(0) if reverse else numbers).unsqueeze(1 - time)
            found[COUNTER] = numbers.expand((count, sizes[0]) if time == 0 else (sizes[0], count))
        return found, reverse, sizes[0]

    def _known_to_fit(self, call: RowCall, feeds: Mapping[str, Tensor]) -> bool:
        """Whether a step gives what the body gives; found out once for the shapes of a call."""
        key = (
            call.step.text,
            tuple(v.shape for v in feeds.values()),
        )
        if key not in self._checked:
            while len(self._checked) >= _MOST_CHECKED:
                del self._checked[next(iter(self._checked))]
            self._checked[key] = self._fits(call, feeds)
        return self._checked[key]

    def _fits(self, call: RowCall, feeds: Mapping[str, Tensor]) -> bool:
        step, time = call.step, call.time
        for t in range(min(2, next(iter(call.x.values())).shape[time])):
            rows = {name: value.select(time, t) for name, value in call.x.items()}
            given = step.arguments(rows, call.state)
            real = dict(given)
            for port in self.loop.inputs:
                if port.parameter == self.counter:
                    like = feeds[port.source]
                    real[port.parameter] = torch.full_like(like, int(rows[COUNTER][0]))
            for name, shape in call.lone.items():
                real[name] = call.state[name][:1].reshape(shape)
            try:
                with torch.no_grad():
                    ours = step.run(*(given[name] for name in step.form.parameters))
                    theirs = self.loop.body(*(real[name] for name in step.form.parameters))
            except (IRError, LoopError, Unsupported, RuntimeError):  # the plain loop tells it, if it meets it
                return False
            one = {self.loop.carried[name] for name in call.lone}
            for name, a, b in zip(self.loop.body.results, ours, theirs, strict=True):
                if not (
                    _alike(a.flatten(), b.reshape(-1).expand(a.numel()))
                    if name in one and b.numel() == 1
                    else _alike(a, b)
                ):
                    return False
        return True

    def _outputs(self, call: RowCall, y: Any, finals: Any) -> dict[str, Any]:
        time, reverse = call.time, call.reverse
        outputs: dict[str, Any] = {}
        for port in self.loop.outputs:
            if isinstance(port, Concat):
                value, part, blocks = y[port.output], port.part_size or 1, call.step.form.blocks
                axis = port.axis % (value.dim() - (part != 1 or (blocks and port.axis == 0)))
                value = value.movedim((time, 1 - time), (axis, _batch_axis(axis, part, blocks)))
                if (port.stride < 0) != reverse:
                    value = value.flip(axis)
                split = part != 1 or (blocks and axis == 0)
                outputs[port.output] = value.flatten(axis, axis + 1) if split else value
            elif port.output in y:
                outputs[port.output] = y[port.output].select(time, 0 if reverse else -1)
            else:
                parameter = next(p for p, r in self.loop.carried.items() if r == port.result)
                final = finals[parameter]
                if parameter in call.lone:
                    final = final[:1].reshape(call.lone[parameter])
                outputs[port.output] = final
        return outputs


def show(call: RowCall, backend: str) -> None:
    """Let what watches calls of `recurrent` see this one."""
    watch = watching()
    if watch is not None:
        with watched(None):
            loop, feeds, _ = record_of(call)
            watch(loop, feeds, scopes=False, backend=backend)


def show_declined(loop: Loop, feeds: Mapping[str, Any], steps: int | None, refusal: Unsupported) -> None:
    """Let what watches calls of `recurrent` see that a loop is none."""
    watch = watching()
    if watch is not None:
        first = next((feeds[port.source] for port in loop.slices), None)
        if steps is None and first is not None:
            port = loop.slices[0]
            steps = iterations(port, first.shape[port.axis])[2]
        dtypes = [value.dtype for value in (first, *feeds.values()) if isinstance(value, Tensor)]
        watch(loop.body.name, steps=steps, dtype=dtypes[0], refusal=refusal)


def _batch_axis(axis: int, part: int, blocks: bool) -> int:
    """Where the batch is, beside an axis of time that is split into steps and their elements."""
    return 0 if axis else 1 if part == 1 or blocks else 2


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def record_of(call: RowCall) -> tuple[Loop, dict[str, Any], StepBody]:
    """A call as a loop, and what it is fed."""
    x_leaves, x_spec = flatten(call.x)
    state_leaves, state_spec = flatten(call.state)
    body = StepBody(call.step, x_spec, state_spec)
    loop, feeds = as_loop(body, x_leaves, state_leaves, reverse=call.reverse, level=-1, axis=call.time)
    return loop, feeds, body


def run_step(call: RowCall, backend: str, *, warn: bool = False) -> tuple[Any, Any]:
    """Run a call by a plan: y, and the final state.

    Raises:
        Unsupported: no plan can be made. Unlike in `recurrent`, a warning is given only if asked for.
    """
    loop, feeds, body = record_of(call)
    out = run(loop, feeds, backend=backend, warn=7 if warn else 0)
    return out["y"], unflatten(body.state_spec, [out[name] for name in body.new_state_names])
