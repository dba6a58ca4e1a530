"""Any loop as a sweep over rows, where every row of the batch is treated alike.

The record is written anew, with the batch first in all that a body gets; the compiler proves that its rows
do not mix, or refuses, and then the plain loop runs the record as it was.

    input cut along axis 0     [T, B, ...]: the batch follows the axis of time;
                               or [T * B, ...] with part_size B: each block is the batch
    along another axis         [B, ..., T, ...]: the batch is the first axis
    blocks of part_size p      T / p steps of p elements each
    invariant with B rows      a state that does not change; any other is shared by all rows
    state of one element       each row has its own, which are all alike
    number of the iteration    one more input, the numbers of the steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.engine import run
from stepnet.engine.walked_steps import note_closed, unchanged_step
from stepnet.errors import IRError, LoopError, StepError, Unsupported
from stepnet.executors.naive import number_of
from stepnet.executors.segment import iterations
from stepnet.ir.loop import Concat, Iteration, Loop, Slice
from stepnet.watchers import note_run, watched, watching

from .body import CallBody
from .leading_axes import Leads, possible
from .replay import Noting, Replay, kind_of
from .row_body import COUNTER, RowBody, RowLayout, Run, new_name, state_name, x_name, y_name

_MOST = 64  # kinds of calls that one loop remembers


@dataclass(frozen=True)
class RowCall:
    """A run of a loop as a sweep over rows, and what that is fed."""

    loop: Loop
    body: RowBody
    x: Mapping[str, Tensor]  # by the parameters of the loop as it was
    state: Mapping[str, Tensor]
    feeds: Mapping[str, Tensor]
    lone: Mapping[str, torch.Size]  # shapes of states of one element
    exact: bool  # whether its body is that of the loop, whatever the numbers of the body's constants


class RowLoop:
    """A loop, and how it runs as a sweep over rows.

    Args:
        loop: the loop; its ports have a part_size, and only the number of slices ends it.
        adapt: `adapt(batch, axis of time)` gives what runs the body on any number of rows, and whether that
            is the body itself; where it is not, it is held against the body first. None: the body.
    """

    def __init__(self, loop: Loop, adapt: Callable[[int, int], tuple[Run, bool]] | None = None) -> None:
        self.loop = loop
        self.adapt = adapt
        self._numbered = next((port for port in loop.inputs if isinstance(port, Iteration)), None)
        self._checked = Bounded[Any, bool](_MOST)
        self._ran = Bounded[Any, int](_MOST)  # which of the sweeps ran, by the kind of a call
        self._leads = Bounded[Any, list[Leads]](_MOST)  # by the shapes of what it is fed
        self._sweeps = Bounded[RowLayout, tuple[Loop, RowBody]](_MOST)
        # By the kind of a call; with what is kept of the step that a walk found, of bodies that are walked.
        self._replays = Bounded[Any, tuple[Any, Replay]](_MOST)

    def run(
        self, feeds: Mapping[str, Any], backend: str, *, steps: int | None = None,
        reads: Sequence[Tensor] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The outputs by name, as the plain loop gives them.

        Args:
            feeds: as for the plain loop.
            backend: which executors may run it.
            steps: how many iterations; None: as many as the slices say.
            reads: the tensors that the body reads besides what it is given; None: it may read anything.

        Raises:
            Unsupported: the loop is no sweep over rows, or does not compile.
        """
        body, known = self.loop.body, None
        if isinstance(body, CallBody) and not torch.is_grad_enabled():
            known = unchanged_step(body.function)
            reads = () if known is None else known[1]
        fed = () if reads is None else (*feeds.values(), *reads)
        like = None if reads is None or watching() is not None else kind_of(fed, backend, steps)
        whose, replay = self._replays.get(like, (None, None))
        if replay is not None and whose is (None if known is None else known[0].likes):
            out = replay.run(fed)
            if out is not None:
                return out
        shapes = [value.shape for value in feeds.values()]
        kind: Any = None  # in a trace, whose open sizes do not hash
        if not any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
            kind = backend, torch.is_grad_enabled(), *shapes, *(value.dtype for value in feeds.values())
        tried: list[tuple[RowCall, Unsupported]] = []
        for number, call in self._from(self._ran.get(kind, 0), self._shown(feeds, steps)):
            noting = Noting() if like is not None and call.exact else None
            try:
                out = self.outputs(call, run(call.loop, call.feeds, backend=backend, warn=False, note=noting))
            except StepError as error:
                tried.append((call, Unsupported(str(error.args[0]).splitlines()[0])))
            except Unsupported as error:
                tried.append((call, error.fresh()))  # its frames hold this one
            else:
                if noting is not None:
                    self._note(noting, like, fed, out, known)
                show(call.loop, call.feeds, backend)
                if kind is not None:
                    self._ran[kind] = number
                return out
        call, refusal = tried[0]
        show(call.loop, call.feeds, backend)
        raise refusal.fresh()

    def _note(self, noting: Noting, like: Any, fed: Sequence[Any], out: dict[str, Any], known: Any) -> None:
        """Keep a run for calls like it, of a body that stays what it is: of no Python, or as a walk told."""
        body, whose, replay = self.loop.body, None, None
        if not isinstance(body, CallBody):
            replay = noting.replay(fed, out)
        elif known is not None:
            whose, replay = known[0].likes, noting.replay(fed, out)
        elif noting.reads is not None:
            note_closed(body.function, noting.reads.reach)
        if replay is not None:
            self._replays[like] = whose, replay
        for each in noting.noted:
            note_run(*each)

    @staticmethod
    def _from(first: int, calls: Iterator[RowCall]) -> Iterator[tuple[int, RowCall]]:
        """The calls with their numbers, those before the one that ran last time at the end."""
        before: list[tuple[int, RowCall]] = []
        for number, call in enumerate(calls):
            if number < first:
                before.append((number, call))
            else:
                yield number, call
        yield from before

    def warn(self, feeds: Mapping[str, Any], backend: str, steps: int) -> None:
        """Give a SlowPathWarning of a body that `run` could not compile, once."""
        with suppress(Unsupported):
            call = next(self.calls(feeds, steps))
            run(call.loop, call.feeds, backend=backend)

    def _shown(self, feeds: Mapping[str, Any], steps: int | None) -> Iterator[RowCall]:
        """`calls`; that there are none is shown to what watches."""
        try:
            yield from self.calls(feeds, steps)
        except Unsupported as refusal:
            show_declined(self.loop, feeds, steps, refusal)
            raise

    def calls(self, feeds: Mapping[str, Any], steps: int | None = None) -> Iterator[RowCall]:
        """The sweeps over rows that the loop may be, one at least, best first.

        Raises:
            Unsupported: it is none.
        """
        if any(not isinstance(value, Tensor) or value.is_meta for value in feeds.values()):
            raise Unsupported("an input is no tensor with data")
        refused: list[Unsupported] = []
        found = False
        ways = [*((False, leads) for leads in self._leads_of(feeds)), (False, Leads()), (True, Leads())]
        for blocks, leads in ways:
            try:
                for call in self._calls(feeds, steps, blocks, leads):
                    found = True
                    yield call
            except Unsupported as refusal:
                refused.append(refusal.fresh())
        if not found:
            raise refused[0].fresh()

    def _leads_of(self, feeds: Mapping[str, Tensor]) -> list[Leads]:
        """Where axes of one element may stand before the batch, besides nowhere; of bodies that files hold,
        for such a body is run to find out."""
        cut = [*self.loop.slices, *(port for port in self.loop.outputs if isinstance(port, Concat))]
        single = all(port.axis == 0 and (port.part_size or 1) == 1 for port in cut)
        if self.adapt is None or not single or self._numbered is not None or torch.compiler.is_compiling():
            return []
        key = tuple(value.shape for value in feeds.values())
        if key not in self._leads:
            self._leads[key] = possible(self.loop, feeds)
        return self._leads[key]

    def _calls(
        self, feeds: Mapping[str, Any], steps: int | None, blocks: bool, leads: Leads
    ) -> Iterator[RowCall]:
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
        state = {p.parameter: feeds[p.source] for p in self.loop.merged}
        state |= {name: state[name].squeeze(0) for name in leads.states}
        x, reverse, batch = self._inputs(feeds, state, steps, axes, blocks, leads.cut)
        time = 0 if first == 0 else 1
        invariants = {port.parameter: feeds[port.source] for port in self.loop.invariants}
        run, exact = self.loop.body, True
        if self.adapt is not None:
            run, exact = self.adapt(batch, 0 if first == 0 and not blocks else 1)
        found = False
        for rows, lone, rank in self._ways(state, invariants, batch):
            carried = state | {name: state[name].reshape(1).expand(batch) for name in lone}
            own = carried | {name: invariants[name] for name in rows}
            layout = RowLayout(tuple(axes.values()), rows, tuple(lone), rank, blocks, time, reverse, leads)
            loop, body = self._sweep(layout, run)
            sources = {x_name(name): value for name, value in x.items()}
            sources |= {state_name(name): value for name, value in own.items()}
            sources |= {name: invariants[name] for name in body.shared}
            call = RowCall(loop, body, x, own, sources, lone, exact)
            free = self._numbered is not None or bool(lone)
            if (exact and not free) or self._known_to_fit(call, feeds):
                found = True
                yield call
        if not found:
            raise Unsupported("the body does not treat the rows of the batch alike")

    def _ways(
        self, state: Mapping[str, Tensor], invariants: Mapping[str, Tensor], batch: int
    ) -> Iterator[tuple[tuple[str, ...], dict[str, torch.Size], int]]:
        """What may be of rows, best first: which invariants are, which states are one element for all rows,
        and as values of how many dimensions the body is given those and the number of the iteration."""
        alike = [name for name, value in invariants.items() if value.dim() and value.shape[0] == batch]
        wide = [name for name in alike if invariants[name].dim() > 1]
        for lone in self._lone(state, batch):
            for rows in dict.fromkeys((tuple(alike), tuple(wide), ())):
                if self._numbered is None and not lone:
                    yield rows, lone, 1
                    continue
                ranks = [1 if name in lone else state[name].dim() for name in state]
                most = max((*ranks, *(invariants[name].dim() for name in rows)), default=1)
                for rank in range(most + 1, 0, -1):
                    yield rows, lone, rank

    def _sweep(self, layout: RowLayout, run: Run) -> tuple[Loop, RowBody]:
        """The loop over rows that lie so, and its body."""
        known = self._sweeps.get(layout)
        if known is None:
            body = RowBody(self.loop, run, layout)
            known = self._sweeps[layout] = body.sweep(), body
        loop, body = known
        if body.run is not run:
            body = body.around(run)
        return loop.around(body), body

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
        axes: Mapping[str, int], blocks: bool, led: bool,
    ) -> tuple[dict[str, Tensor], bool, int]:  # fmt: skip
        """What is cut, as tables of steps that all go in one direction; whether that is backwards; the size
        of the batch."""
        slices = self.loop.slices
        reverse = bool(slices) and slices[0].stride < 0
        time = 0 if slices and axes[slices[0].parameter] == 0 else 1
        found: dict[str, Tensor] = {}
        counts: list[int] = [] if steps is None else [steps]  # numbers that torch leaves open have no hash
        for port in slices:
            axis, part = axes[port.parameter], port.part_size or 1
            value, count = _steps_of(port, feeds[port.source], axis, steps, blocks)
            value = value.squeeze(1) if led else value
            counts.append(count)
            if (port.stride < 0) != reverse:
                value = value.flip(axis)
            if value.dim() < 3 and part != 1 and axis == 0 and not blocks:
                raise Unsupported("an input has no axis beside that of time")
            found[port.parameter] = value.movedim((axis, _batch_axis(axis, part, blocks)), (time, 1 - time))
        if any(count != counts[0] for count in counts[1:]):
            raise Unsupported("inputs have different numbers of steps")
        if not counts:
            raise Unsupported("no input is cut into steps")
        count = counts[0]
        if not count:
            raise Unsupported("it has no steps")
        sizes = [value.shape[1 - time] for value in found.values()]
        sizes += sorted((value.shape[0] for value in state.values() if value.dim()), reverse=True)
        if not sizes:
            raise Unsupported("no input is cut into steps, and nothing is carried")
        if not found or self._numbered is not None:
            if COUNTER in found:
                raise Unsupported(f"a parameter has the name '{COUNTER}'")
            numbers = torch.arange(count)
            numbers = (numbers.flip(0) if reverse else numbers).unsqueeze(1 - time)
            found[COUNTER] = numbers.expand((count, sizes[0]) if time == 0 else (sizes[0], count))
        return found, reverse, sizes[0]

    def _known_to_fit(self, call: RowCall, feeds: Mapping[str, Tensor]) -> bool:
        """Whether the new body gives what the body gives; found out once for the shapes of a call."""
        key = (call.body.layout, tuple(value.shape for value in feeds.values()))
        if key not in self._checked:
            self._checked[key] = self._fits(call)
        return self._checked[key]

    def _fits(self, call: RowCall) -> bool:
        body, time = call.body, call.body.layout.time
        shared = {name: call.feeds[name] for name in body.shared}
        for t in range(min(2, next(iter(call.x.values())).shape[time])):
            rows = {name: value.select(time, t) for name, value in call.x.items()}
            given = body.arguments({**rows, **call.state, **shared})
            real = dict(given)
            if self._numbered is not None:
                numbers = rows[COUNTER].tolist() or [t]
                real[self._numbered.parameter] = number_of(self._numbered, numbers[0])
            for name, shape in call.lone.items():
                real[name] = call.state[name][:1].reshape(shape)
            try:
                with torch.no_grad():
                    ours = body.run(*(given[name] for name in self.loop.body.parameters))
                    theirs = self.loop.body(*(real[name] for name in self.loop.body.parameters))
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

    def outputs(self, call: RowCall, out: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of the loop as it was."""
        layout = call.body.layout
        time, reverse, blocks = layout.time, layout.reverse, layout.blocks
        joined = {port.output for port in call.body.joined}
        outputs: dict[str, Any] = {}
        for port in self.loop.outputs:
            if isinstance(port, Concat):
                value, part = out[y_name(port.output)], port.part_size or 1
                axis = port.axis % (value.dim() - (part != 1 or (blocks and port.axis == 0)))
                value = value.movedim((time, 1 - time), (axis, _batch_axis(axis, part, blocks)))
                if (port.stride < 0) != reverse:
                    value = value.flip(axis)
                split = part != 1 or (blocks and axis == 0)
                value = value.unsqueeze(1) if port.output in layout.leads.rows else value
                outputs[port.output] = value.flatten(axis, axis + 1) if split else value
            elif port.output in joined:
                value = out[y_name(port.output)].select(time, 0 if reverse else -1)
                outputs[port.output] = value.unsqueeze(0) if port.output in layout.leads.rows else value
            else:
                parameter = next(p for p, r in self.loop.carried.items() if r == port.result)
                final = out[new_name(parameter)]
                if parameter in call.lone:
                    final = final[:1].reshape(call.lone[parameter])
                final = final.unsqueeze(0) if parameter in layout.leads.states else final
                outputs[port.output] = final
        return outputs


def show(loop: Loop, feeds: Mapping[str, Any], backend: str) -> None:
    """Let what watches loops see this one."""
    watch = watching()
    if watch is not None:
        with watched(None):
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


def _steps_of(port: Slice, value: Tensor, axis: int, steps: int | None, blocks: bool) -> tuple[Tensor, int]:
    """What a port cuts, its axis of time split in steps and their elements if they have several; and how many
    steps: no more than `steps`."""
    part = port.part_size or 1
    try:
        low, high, count = iterations(port, value.shape[axis])
    except LoopError as error:  # the plain loop meets it too, and tells it
        raise Unsupported("its slices lie outside an input") from error
    if steps is not None and steps < count:
        low, high = (low, low + steps * part) if port.stride > 0 else (high - steps * part, high)
        count = steps
    value = value.narrow(axis, low, high - low)
    if part != 1 or (blocks and axis == 0):
        return value.unflatten(axis, (count, part)), count
    if value.dim() < 2:
        raise Unsupported("an input has no axis beside that of time")
    return value, count


def _batch_axis(axis: int, part: int, blocks: bool) -> int:
    """Where the batch is, beside an axis of time that is split into steps and their elements."""
    return 0 if axis else 1 if part == 1 or blocks else 2


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
