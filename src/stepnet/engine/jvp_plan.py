"""The derivative of a run along directions of its inputs, by a plan of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from stepnet.compiler.reads.put_back import Held, put_back
from stepnet.compiler.rewritten.inner_loops import is_guarded
from stepnet.compiler.trace.unseen_calls import applied
from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import Around, draws_put_back
from stepnet.data.tensor_guards import alike
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import StepError, Unsupported
from stepnet.executors.autograd import run_plan
from stepnet.executors.call import Call, KeptRows, Moving
from stepnet.executors.forward_mode import GoesOn, pushed
from stepnet.executors.higher_order import (
    Moves,
    by_along,
    by_plain_loop,
    leads_to,
    of_plain_loop,
    refuse_bent,
    total,
)
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .cached_parametrizations import cached_again
from .entries import Entry
from .executor_choice import about_as_many
from .jvp_loop import differs, loop_along
from .jvp_on_saved_rows import SharedRows, SharedRun
from .plain import plain_loop, read_again, read_as_then
from .reads import Reads, looks, looks_of_rows, read, settings
from .repeated_runs import Repeats, Unrecorded
from .rounding import close, looseness
from .rows import Sequences
from .self_check import APART, holds, sample_layout, sampled
from .trial import apart

T = TypeVar("T")
P = ParamSpec("P")
_MOST_KINDS = 64  # of derivatives, that one plan remembers
Find = Callable[..., Entry]  # of a loop, of what it reads, and of its rows


class Moved(NamedTuple):
    """The loop of a derivative, and what it is fed: x and their directions, states and theirs, weights and
    theirs. It gives the derivatives of y leaves that have one, the last states, and their derivatives."""

    call: Call
    x: list[Tensor]
    states: list[Tensor]
    weights: list[Tensor]
    repeats: Repeats
    shared: SharedRows

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All that it is fed."""
        return (*self.x, *self.states, *self.weights)

    def run(self) -> list[Tensor]:
        """What it gives: the rows of each y leaf, then the last value of each state."""
        out = self.repeats.run(self.call, self.inputs)
        return run_plan(*self[:4]) if out is None else out


class _Derivative(NamedTuple):
    """How derivatives of a plan along directions of a kind run. `sources`: see `_Twin`."""

    entry: Entry
    sources: list[int | None]
    repeats: Repeats
    shared: SharedRows


def _pull(
    run: Unrecorded | SharedRun, places: Sequence[int | None], came: Sequence[tuple[Tensor, Tensor]],
    wanted: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """The gradients that are wanted of the inputs at some places, of what came in for its results."""
    at = {id(t): k for k, t in enumerate(run.out)}
    grads: list[Tensor | None] = [None] * len(run.out)
    for result, grad in came:
        grads[at[id(result)]] = grad
    asked = {place for place, want in zip(places, wanted, strict=True) if want}
    found = run.gradients(grads, [k in asked for k in range(len(run.inputs))])
    return [found[k] if want and k is not None else None for k, want in zip(places, wanted, strict=True)]


def _as_called(method: Callable[Concatenate[RunsAlong, P], T]) -> Callable[Concatenate[RunsAlong, P], T]:
    """Let the step be looked at, recorded and run as its call was set: backward is elsewhere."""

    @functools.wraps(method)
    def run(self: RunsAlong, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_as_called:  # small calls wait for this
            return method(self, *args, **kwargs)
        with self.as_called():
            return method(self, *args, **kwargs)

    return run


@dataclass(frozen=True, eq=False)
class RunsAlong:
    """Runs the derivative of a loop on rows that lie as those of a call.

    Attributes:
        record: gives the loop, which calls like one before do not ask for.
        ready, sequences, reads: of the call.
        places: which of the tensors that were found are the plan's weights.
        find: gives the entry of a loop, of what it reads and of its rows.
        check: whether second derivatives by a new plan are held against those of the plain loop.
        reader: tells what a loop reads.
        unchanged: tells what the step reads now, where that is known to be what it read; else None.
        fill: gives what it holds numbers.
        guarded: whether its plan has one more result, which says of each row whether the plan holds.
        seen: what the step read when it was last what it had been: when its gradient was taken, say.
        held: where numbers that it reads are others by now, with those that it read.
    """

    record: Callable[[], Loop]
    ready: Ready
    sequences: Sequences
    reads: Reads
    places: Sequence[int]
    find: Find
    check: bool = True
    reader: Callable[..., Reads] = read
    unchanged: Callable[[], Reads | None] = lambda: None
    fill: Callable[[], None] = lambda: None
    guarded: bool = False
    seen: list[Reads] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    @cached_property
    def loop(self) -> Loop:
        """The loop of the call."""
        return self.record()

    @property
    def is_as_called(self) -> bool:
        """Whether all around is set as at the call."""
        return not self.held and not self.reads.cached and self.ready.around == Around.now()

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """In here, all around is set as at the call, and numbers are what the step read."""
        with self.ready.around.again(), cached_again(self.reads.cached), put_back(self.held):
            yield

    @_as_called
    def same_step(self, tensors: Sequence[Tensor]) -> Reads:
        """What the step reads now.

        Raises:
            StepError: it is something else than at the call.
        """
        now = self.unchanged()
        how = self.loop, self.sequences, self.reads, self.reader
        if now is None and self.ready.plan.own_backward:  # such code finds the numbers of now
            now = read_again(*how)
        elif now is None:
            now, held = read_as_then(*how)
            self.held.extend(held)
        self.seen[:] = [now]
        return now

    def same_backward(self) -> None:
        """Nothing, where hooks and Functions of the step read what they read when its gradient was traced.

        Raises:
            StepError: they may read something else.
        """
        # with a gradient, as the call has; and by the numbers of now
        with self.ready.around.again(), cached_again(self.reads.cached), torch.enable_grad():
            if self.unchanged() is not None:
                return
            why = "and its hooks or custom Functions may read it in backward"
            read_again(self.loop, self.sequences, self.reads, self.reader, why)

    def expect(self, tensors: Sequence[Tensor], asked: Sequence[bool], whole: bool) -> None:
        """Make the plan of the derivative along the gradients of weights, once for all that are alike: after
        `fast = {k: w - rate * g, ...}` a step reads something else, and then these are differentiated."""
        kind = *asked, whole
        plan, known = self.ready.plan, self.ready.expected
        if not self.check or kind in known or plan.random or not any(plan.parted(asked)[2]):
            return
        known.add(kind)
        moved = [torch.zeros_like(t) if ask else None for t, ask in zip(tensors, asked, strict=True)]
        try:
            self.of(tensors, moved, whole=whole)
        except Exception as error:  # told where somebody differentiates them
            let_through(error)

    @_as_called
    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[bool, ...]:
        """For each gradient, whether the plain loop's depends on what is live; found on a few rows.

        Args:
            given: for each result, whether something comes in for it.
            needed: of x, states and weights, which get a gradient.
            live: of those, and of what comes in for each result, which are to be differentiated by.
        """
        key = self.ready.history_key(self.sequences.layout, given, needed, live)
        known = self.ready.histories.get(key)
        if known is None:
            self.fill()
            with apart(self.reads):
                known = self.ready.histories[key] = self._histories(*key)
        return known

    def _histories(
        self, lengths: Sequence[int], given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[bool, ...]:
        layout = sample_layout([0, *accumulate(lengths)])
        weights = [self.reads.tensors[place] for place in self.places]
        few = self._on_few_rows(layout, weights, self.reads, seed=22)
        wanted = zip(few.inputs, needed, live, strict=False)
        own = [t.requires_grad_(need or moves) for t, need, moves in wanted]
        with torch.enable_grad(), draws_put_back():
            results = few.results(own)
            seeds = [
                torch.ones_like(t).requires_grad_(moves) if given_ else None
                for t, given_, moves in zip(results, given, live[len(own) :], strict=True)
            ]
            call = Call(self.ready, few.sequences.layout, {}, few.plain, lambda: self)
            found = of_plain_loop(call, own, seeds, needed, create_graph=True)
        sources = {id(t) for t, moves in zip((*own, *seeds), live, strict=True) if moves}
        return tuple(g is not None and leads_to(g, sources) for g in found)

    def __call__(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None],
        noise: Sequence[Tensor] | None = None, whole: bool = False, once: bool = False,
        kept: KeptRows | None = None,
    ) -> Moving:  # fmt: skip
        """The derivative of each result: y leaves, then last states; None for what has none. And the results;
        and what gives gradients of both.

        Args:
            tensors: x, states and weights.
            directions: one for each; None where it stays.
            noise: of the call, in the order in which the step draws it.
            whole: whether the results are asked for.
            once: whether nobody differentiates the gradients.
            kept: what the run of the loop kept; then last states may be but names for their gradients.

        Raises:
            StepError: the step reads something else than at the call.
            Unsupported: there is no plan for it, or the plan is not right.
        """
        moved = self.of(tensors, directions, noise=noise, whole=whole)
        alone = None
        if once:
            alone = None if kept is None else moved.shared.run(moved.call, moved.inputs, kept)
            alone = moved.repeats.unrecorded(moved.call, moved.inputs) if alone is None else alone
        out = moved.run() if alone is None else alone.out
        n = len(moved.call.ready.plan.y)
        if moved.call.guarded and not holds(out[n - 1], moved.call.layout):
            raise Unsupported("what was asked of all rows is answered in another way by its derivative")
        n_y, n_s = len(self.ready.plan.y), len(self.ready.plan.states)
        results = [*out[n - n_y : n], *out[n : n + n_s]] if whole else []
        pull = None if alone is None else functools.partial(_pull, alone, self._places(moved, tensors))
        return self.derivatives(out, n), results, pull

    def _places(self, moved: Moved, tensors: Sequence[Tensor]) -> list[int | None]:
        """Where x, states and weights are among what the loop of a derivative is fed."""
        x, states, weights = self.ready.plan.parted(tensors)
        begin = len(moved.x) + len(moved.states)
        at = {id(t): begin + k for k, t in enumerate(moved.weights)}
        begin = len(moved.x)
        return [*range(len(x)), *range(begin, begin + len(states)), *(at.get(id(t)) for t in weights)]

    def derivatives(self, out: Sequence[Tensor], n_y: int) -> list[Tensor | None]:
        """Of what the loop of a derivative gives, so many y leaves first, the derivative of each result; see
        `__call__`."""
        plan, kinds = self.ready.plan, self.ready.plan.forward.body.values
        floats = [dtype_of(kinds[name].dtype).is_floating_point for name in plan.y]
        of_y, of_states = iter(out[: sum(floats)]), iter(out[n_y + len(plan.states) :])
        return [
            *(next(of_y) if has else None for has in floats),
            *(next(of_states) if differs(t) else None for t in self.sequences.states),
        ]

    def _now(self, tensors: Sequence[Tensor]) -> tuple[Reads, StepError | None]:
        """What the step reads; or what it read when its gradient was taken, and that it no longer does."""
        try:
            return self.same_step(tensors), None
        except StepError as error:
            if not self.seen:
                raise
            return self.seen[0], error.fresh()

    @_as_called
    def of(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None], *, forward_mode: bool = False,
        noise: Sequence[Tensor] | None = None, whole: bool = False,
    ) -> Moved:  # fmt: skip
        """The loop of the derivative; see `__call__`. `forward_mode`: as torch's forward mode has it, which
        does not stop where gradients do."""
        x, states, weights = self.ready.plan.parted(tensors)
        _, of_states, of_weights = self.ready.plan.parted(directions)
        now, changed = self._now(tensors)
        own = [now.tensors[place] for place in self.places]
        # along a weight itself, as `autograd.grad(g, w, w)` asks: each of both has a gradient of its own
        read = {id(t) for t in now.tensors}
        of_weights = [v.view_as(v) if v is not None and id(v) in read else v for v in of_weights]
        x_along = [v for v in directions[: len(x)] if v is not None]
        of_floats = [(t, v) for t, v in zip(states, of_states, strict=True) if differs(t)]
        states_along = [torch.zeros_like(t) if v is None else v for t, v in of_floats]
        beside = self.sequences._replace(
            x_rows=[contiguous(t) for t in (*x, *x_along)],
            states=[contiguous(t) for t in (*states, *states_along)],
        )
        twin = functools.cache(
            lambda: _Twin(self, beside, directions, own, of_weights, noise is not None, whole)
        )
        size = about_as_many(beside.layout.sequences)
        # numbers may be inputs by now, which the call had none of: another thread ran a step with others
        n_read = len(now.tensors)
        ways = tuple([v is None for v in directions])
        kind = ways, n_read, noise is None, whole, forward_mode, size, settings()
        given = *beside.x_rows, *beside.states, *now.tensors, *(v for v in of_weights if v is not None)
        is_like, known = self.ready.along_lately.get(kind, (None, None))
        if known is None or is_like is None or not is_like(*given):
            known, is_kept = self._known(twin(), own, now, changed, directions, noise, forward_mode)
            if is_kept and torch.is_grad_enabled():  # without them `alike` does not see what needs one
                if len(self.ready.along_lately) >= _MOST_KINDS:
                    self.ready.along_lately.clear()
                self.ready.along_lately[kind] = alike(given, any_rows=len(beside.x_rows)), known
        ready, compiled, places = known.entry.ready, known.entry.compiled, known.entry.weights
        assert ready is not None
        assert compiled is not None
        guarded, both = is_guarded(known.entry.y_spec), (*weights, *of_weights)
        used: list[Any] = [
            twin().found.tensors[place] if k is None else both[k]
            for k, place in zip(known.sources, places, strict=True)
        ]

        @functools.cache
        def further() -> RunsAlong:
            rows = ready, beside, twin().found, places, self.find
            return RunsAlong(lambda: twin().loop, *rows, reader=self.reader, guarded=guarded)

        def plain(*tables: Any) -> Any:
            return twin().plain(places, *tables)

        call = Call(ready, beside.layout, compiled.constants, plain, further, guarded, noise=noise)
        return Moved(call, beside.x_rows, beside.states, used, known.repeats, known.shared)

    def _known(
        self, twin: _Twin, own: Sequence[Tensor], now: Reads, changed: StepError | None,
        directions: Sequence[Tensor | None], noise: Sequence[Tensor] | None, forward_mode: bool,
    ) -> tuple[_Derivative, bool]:  # fmt: skip
        """How it runs, and whether that is kept. Raises as `__call__`; `changed`: not without it."""
        signature = twin.looks(now), forward_mode
        known: _Derivative | None = self.ready.along.get(signature)
        entry = None if known is None else known.entry.of_size(about_as_many(twin.sequences.layout.sequences))
        if known is not None and entry is not None:
            return known._replace(entry=entry), True
        if changed is not None:
            raise changed.fresh()
        entry = self._found(twin, own, now, directions, noise, forward_mode)
        assert entry.ready is not None
        sources = twin.sources(entry.weights)
        known = _Derivative(entry, sources, Repeats(), SharedRows(self.ready, entry.ready, sources))
        numbers = self.reads.inputs is not None  # of which the looks of what is read do not tell
        is_kept = self.check and None not in sources and not (entry.unsure or numbers)
        if is_kept:
            if len(self.ready.along) >= _MOST_KINDS:
                self.ready.along.clear()
            self.ready.along[signature] = known
        return known, is_kept

    def _found(
        self, twin: _Twin, own: Sequence[Tensor], now: Reads, directions: Sequence[Tensor | None],
        noise: Sequence[Tensor] | None, forward_mode: bool,
    ) -> Entry:  # fmt: skip
        """The entry of a derivative, which is right. Raises Unsupported: there is none; StepError."""
        if self.check and not forward_mode:
            with apart(now), torch.enable_grad(), draws_put_back():
                self._refuse_bent(own, now)
        entry = self.find(twin.loop, twin.found, twin.sequences)
        ready, compiled = entry.ready, entry.compiled
        if ready is None or compiled is None or is_guarded(entry.y_spec) != self.guarded:
            raise Unsupported("no plan runs its derivative")
        if noise is not None and len(ready.forward.noise) != len(noise):
            raise Unsupported("its derivative leaves out some of its noise")
        if self.check and noise is None and entry.twice is None:
            with apart(now):
                entry.twice = self._agrees(own, now, directions, looseness(compiled), twin.whole)
        if self.check and noise is None and not entry.twice:
            raise Unsupported("self-check: its second derivatives differ from those of the plain loop")
        if self.check and forward_mode:
            if entry.forward_mode is None:
                with apart(now):
                    entry.forward_mode = self._agrees_forward(own, now, directions, looseness(compiled))
            if not entry.forward_mode:
                raise Unsupported("self-check: its derivatives differ from those of the plain loop")
        return entry

    def _refuse_bent(self, weights: Sequence[Tensor], now: Reads) -> None:
        """Raises StepError: the step's gradient is not linear in what comes in."""
        few = self._on_few_rows(sample_layout(), weights, now, seed=24)
        like = (*self.sequences.x_rows, *self.sequences.states, *weights)
        # the others stay: of means that a norm keeps torch has no derivative
        own = [t.requires_grad_() for t, of in zip(few.inputs, like, strict=True) if of.requires_grad]
        refuse_bent(self.ready.plan, [(t, few.noise(t)) for t in few.results(few.inputs) if differs(t)], own)

    def _agrees(
        self, weights: Sequence[Tensor], now: Reads, directions: Sequence[Tensor | None], loose: float,
        whole: bool,
    ) -> bool:  # fmt: skip
        """Whether second derivatives along directions like these are the plain loop's, on a few rows."""
        few = self._on_few_rows(sample_layout(), weights, now, seed=21)
        like = (*self.sequences.x_rows, *self.sequences.states, *weights)
        own = [t.requires_grad_(of.requires_grad) for t, of in zip(few.inputs, like, strict=True)]
        moved = [
            None if v is None else few.noise(t).requires_grad_(v.requires_grad)
            for t, v in zip(own, directions, strict=True)
        ]
        along = replace(self, sequences=few.sequences, reads=now, check=False)
        call = Call(self.ready, few.sequences.layout, {}, few.plain, lambda: along)
        results = few.results(own)
        seeds = [few.noise(t).requires_grad_() if differs(t) and t.requires_grad else None for t in results]
        needed = [t.requires_grad for t in own]
        how = (call, own, seeds, needed, moved, [*needed, *(seed is not None for seed in seeds)], False)
        if whole:  # together with the gradient of the results
            beside = [None if g is None else few.noise(g) for g in seeds]
            moves = Moves.of(call, own, seeds, moved, whole)
            ours = [*moves.gradients(needed, beside), *moves.along]
            first = of_plain_loop(call, own, beside, needed, create_graph=False)
            plain = [
                total(both) for both in zip(by_plain_loop(*how), [*first, *[None] * len(seeds)], strict=True)
            ]
        else:
            ours, plain = by_along(*how), by_plain_loop(*how)
        for a, b in zip(ours, plain, strict=True):
            if a is None and b is None:
                continue
            a, b = (torch.zeros_like(other) if t is None else t for t, other in ((a, b), (b, a)))  # pyright: ignore
            if not close(a, b, 10 * loose):
                return False
        return True

    def _agrees_forward(
        self, weights: Sequence[Tensor], now: Reads, directions: Sequence[Tensor | None], loose: float
    ) -> bool:
        """Whether derivatives along directions like these are those of the plain loop in forward mode, which
        goes its own way through some things: custom Functions have a derivative for it."""
        few = self._on_few_rows(sample_layout(), weights, now, seed=23)
        moved = [None if v is None else few.noise(t) for t, v in zip(few.inputs, directions, strict=True)]
        at = [i for i, v in enumerate(moved) if v is not None]

        def results(*moving: Tensor) -> tuple[Tensor, ...]:
            given = list(few.inputs)
            for i, tensor in zip(at, moving, strict=True):
                given[i] = tensor
            return tuple(few.results(given))

        own = list[Any]()
        try:
            with GoesOn() as goes_on, applied(lambda *given: given, lambda *call: own.append(call)):
                by_plain = pushed(results, [few.inputs[i] for i in at], [v for v in moved if v is not None])
        except Exception as error:  # the plain loop tells it
            let_through(error)
            return False
        if goes_on.found or own:
            return False
        found, *_ = replace(self, sequences=few.sequences, reads=now, check=False)(few.inputs, moved)
        return all(a is None or close(a, b, 10 * loose) for a, b in zip(found, by_plain, strict=True))

    def _on_few_rows(self, layout: Layout, weights: Sequence[Tensor], now: Reads, seed: int) -> _Few:
        few = self._sampled(layout, weights, now, seed, APART)
        try:
            with torch.no_grad(), draws_put_back():
                few.results(few.inputs)
        except Exception as error:  # with noise it need not be what the step takes
            let_through(error)
            return self._sampled(layout, weights, now, seed, 0.0)
        return few

    def _sampled(
        self, layout: Layout, weights: Sequence[Tensor], now: Reads, seed: int, spread: float
    ) -> _Few:
        generator = torch.Generator().manual_seed(seed)
        sequences = self.sequences._replace(layout=layout)
        rows = [sampled(t, layout.rows, spread, generator) for t in sequences.x_rows]
        boot = [sampled(t, layout.sequences, spread, generator) for t in sequences.states]
        how = sequences, now, self.places, self.reader
        plain = plain_loop(self.loop, *how, guarded=self.guarded)

        def results(inputs: Sequence[Tensor]) -> list[Tensor]:
            y, finals = plain(*self.ready.plan.parted(inputs))
            return [*y, *finals]

        return _Few(sequences, [t.detach() for t in (*rows, *boot, *weights)], plain, results, generator)


@dataclass(frozen=True, eq=False)
class _Twin:
    """The loop of a derivative, made when it is asked for.

    Attributes:
        of: runs it.
        sequences: what it is given.
        ways: a direction for each of x, states and weights; None for one that stays.
        weights, directions: of the plan's weights; None for one that stays.
        noisy, whole: see `loop_along`.
    """

    of: RunsAlong
    sequences: Sequences
    ways: Sequence[Tensor | None]
    weights: Sequence[Tensor]
    directions: Sequence[Tensor | None]
    noisy: bool
    whole: bool

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Those of the loop's cut and carried parameters that move."""
        loop, n = self.of.loop, len(self.of.ready.plan.x)
        cut = [p.parameter for p, v in zip(loop.slices, self.ways[:n], strict=False) if v is not None]
        carried = zip(loop.merged, self.sequences.states, strict=False)
        return *cut, *(p.parameter for p, t in carried if differs(t))

    def looks(self, now: Reads) -> Any:
        """What tells its plan from those of other derivatives of the same plan. `now`: what that reads."""
        tensors = (*now.tensors, *self.directions)
        first: dict[int, int] = {}
        tables = (*self.sequences.x_rows, *self.sequences.states)
        same = tuple([first.setdefault(id(t), i) for i, t in enumerate(tensors)])
        return (
            self.names, self.noisy, self.whole, same, looks([t for t in tensors if t is not None]),
            tuple([t is None for t in self.directions]),
            looks_of_rows(tables), settings(),
        )  # fmt: skip

    @cached_property
    def loop(self) -> Loop:
        moving = [(w, v) for w, v in zip(self.weights, self.directions, strict=True) if v is not None]
        ways = [w for w, _ in moving], [v for _, v in moving]
        return loop_along(self.of.loop, self.names, *ways, self.noisy, self.whole)

    @cached_property
    def found(self) -> Reads:
        """What it reads."""
        rows = self.sequences
        with self.of.as_called():
            return self.of.reader(self.loop, rows.x_rows, rows.states, rows.shared)

    def sources(self, places: Sequence[int]) -> list[int | None]:
        """Where each of what it reads at some places is among the weights and their directions."""
        both = [*enumerate((*self.weights, *self.directions))]
        at = {id(t): k for k, t in reversed(both) if t is not None}
        return [at.get(id(self.found.tensors[place])) for place in places]

    def plain(self, places: Sequence[int], *tables: Any) -> Any:
        """The plain loop."""
        how = self.sequences, self.found, places, self.of.reader
        return plain_loop(self.loop, *how, guarded=self.of.guarded)(*tables)


class _Few(NamedTuple):
    """Inputs like those of a call, on a few rows, and the plain loop over such rows.

    Attributes:
        inputs: x, the states and the weights.
        results: of such inputs, y leaves and last states, by the plain loop.
    """

    sequences: Sequences
    inputs: list[Tensor]
    plain: Callable[..., Any]
    results: Callable[[Sequence[Tensor]], list[Tensor]]
    generator: torch.Generator

    def noise(self, like: Tensor) -> Tensor:
        """Numbers by chance."""
        drawn = torch.randn(like.shape, generator=self.generator, dtype=torch.float64, device="cpu")
        return drawn.to(like)
