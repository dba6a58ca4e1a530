"""The derivative of a run along directions of its inputs, by a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from stepnet.data.as_imported import contiguous
from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.executors.autograd import Call, Ready
from stepnet.executors.autograd import run as run_plan
from stepnet.executors.layout import Layout
from stepnet.executors.twice import by_along, by_plain_loop, leads_to, of_plain_loop
from stepnet.ir.loop import Loop

from .along import differs, loop_along
from .check import close, looseness, plain_loop, read_again, sample_layout, sampled
from .make import Entry, apart
from .reads import Reads, read
from .rows import Sequences

T = TypeVar("T")
Find = Callable[[Loop, Reads, Sequences], Entry]


class Moved(NamedTuple):
    """The loop of a derivative, and what it is fed: x and their directions, states and theirs, weights and
    theirs. It gives the derivatives of y leaves that have one, the last states, and their derivatives."""

    call: Call
    x: list[Tensor]
    states: list[Tensor]
    weights: list[Tensor]


@dataclass(frozen=True, eq=False)
class RunsAlong:
    """Runs the derivative of a loop on rows that lie as those of a call.

    Attributes:
        loop, ready, sequences, reads: of the call.
        places: which of the tensors that were found are the plan's weights.
        find: gives the entry of a loop, of what it reads and of its rows.
        check: whether second derivatives by a new plan are held against those of the plain loop.
        reader: tells what a loop reads.
    """

    loop: Loop
    ready: Ready
    sequences: Sequences
    reads: Reads
    places: Sequence[int]
    find: Find
    check: bool = True
    reader: Callable[..., Reads] = read

    def same_step(self, tensors: Sequence[Tensor]) -> Reads:
        """What the step reads now.

        Raises:
            StepError: it is something else than at the call.
        """
        x, states, _ = self._split(tensors)
        return read_again(self.loop, self.sequences, self.reads, x, states, self.reader)

    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[bool, ...]:
        """For each gradient, whether the plain loop's depends on what is live; found on a few rows.

        Args:
            given: for each result, whether something comes in for it.
            needed: of x, states and weights, which get a gradient.
            live: of those, and of what comes in for each result, which are to be differentiated by.
        """
        # there through every state and back: a longer sequence has no other ways from one step to another
        enough = 2 * (len(self.sequences.states) + 1)
        lengths = tuple(sorted({min(n, enough) for n in self.sequences.layout.ends}))
        key = (lengths, tuple(given), tuple(needed), tuple(live))
        known = self.ready.histories.get(key)
        if known is None:
            with apart(self.reads):
                known = self.ready.histories[key] = self._histories(*key)
        return known

    def _histories(
        self, lengths: Sequence[int], given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[bool, ...]:
        layout = Layout.ragged(torch.tensor([0, *lengths]).cumsum(0), reverse=False)
        weights = [self.reads.tensors[place] for place in self.places]
        few = self._on_few_rows(layout, weights, self.reads, seed=22)
        wanted = zip(few.inputs, needed, live, strict=False)
        own = [t.requires_grad_(need or moves) for t, need, moves in wanted]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            results = few.results(own)
            seeds = [
                torch.ones_like(t).requires_grad_(moves) if given_ else None
                for t, given_, moves in zip(results, given, live[len(own) :], strict=True)
            ]
            call = Call(self.ready, few.sequences.layout, {}, few.plain, self)
            found = of_plain_loop(call, own, seeds, needed, create_graph=True)
        sources = {id(t) for t, moves in zip((*own, *seeds), live, strict=True) if moves}
        return tuple(g is not None and leads_to(g, sources) for g in found)

    def __call__(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None],
        noise: Sequence[Tensor] | None = None,
    ) -> list[Tensor | None]:  # fmt: skip
        """The derivative of each result: y leaves, then last states; None for what has none.

        Args:
            tensors: x, states and weights.
            directions: one for each; None where it stays.
            noise: of the call, in the order in which the step draws it.

        Raises:
            StepError: the step reads something else than at the call.
            Unsupported: there is no plan for it, or the plan is not right.
        """
        moved = self.of(tensors, directions, noise=noise)
        return self.derivatives(run_plan(*moved))

    def derivatives(self, out: Sequence[Tensor]) -> list[Tensor | None]:
        """Of what the loop of a derivative gives, the derivative of each result; see `__call__`."""
        plan, kinds = self.ready.plan, self.ready.plan.forward.body.values
        floats = [dtype_of(kinds[name].dtype).is_floating_point for name in plan.y]
        of_y, of_states = iter(out[: sum(floats)]), iter(out[sum(floats) + len(plan.states) :])
        return [
            *(next(of_y) if has else None for has in floats),
            *(next(of_states) if differs(t) else None for t in self.sequences.states),
        ]

    def of(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None], *, forward_mode: bool = False,
        noise: Sequence[Tensor] | None = None,
    ) -> Moved:  # fmt: skip
        """The loop of the derivative; see `__call__`. `forward_mode`: as torch's forward mode has it, which
        does not stop where gradients do."""
        x, states, weights = self._split(tensors)
        _, of_states, of_weights = self._split(directions)
        now = self.same_step(tensors)
        own = [now.tensors[place] for place in self.places]
        cut = [(p.parameter, v) for p, v in zip(self.loop.slices, directions, strict=False) if v is not None]
        carried = [
            (p.parameter, torch.zeros_like(t) if v is None else v)
            for p, t, v in zip(self.loop.merged, states, of_states, strict=False)
            if differs(t)
        ]
        moving = [(w, v) for w, v in zip(own, of_weights, strict=True) if v is not None]
        names = [name for name, _ in (*cut, *carried)]
        twin = loop_along(self.loop, names, [w for w, _ in moving], [v for _, v in moving], noise is not None)
        beside = self.sequences._replace(
            x_rows=[contiguous(t) for t in (*x, *(v for _, v in cut))],
            states=[contiguous(t) for t in (*states, *(v for _, v in carried))],
        )
        found = self.reader(twin, beside.x_rows, beside.states, beside.shared)
        entry = self.find(twin, found, beside)
        ready, compiled = entry.ready, entry.compiled
        if ready is None or compiled is None:
            raise Unsupported("no plan runs its derivative")
        if noise is not None and len(ready.forward.noise) != len(noise):
            raise Unsupported("its derivative leaves out some of its noise")
        if self.check and noise is None and entry.twice is None:
            with apart(now):
                entry.twice = self._agrees(own, now, directions, looseness(compiled))
        if self.check and noise is None and not entry.twice:
            raise Unsupported("self-check: its second derivatives differ from those of the plain loop")
        if self.check and forward_mode:
            if entry.forward_mode is None:
                with apart(now):
                    entry.forward_mode = self._agrees_forward(own, now, directions, looseness(compiled))
            if not entry.forward_mode:
                raise Unsupported("self-check: its derivatives differ from those of the plain loop")
        plain = plain_loop(twin, beside, found, entry.weights, self.reader)
        further = RunsAlong(twin, ready, beside, found, entry.weights, self.find, reader=self.reader)
        call = Call(ready, beside.layout, compiled.constants, plain, further, noise=noise)
        alias = {id(w): t for w, t in zip(own, weights, strict=True)}
        used = [found.tensors[place] for place in entry.weights]
        return Moved(call, beside.x_rows, beside.states, [alias.get(id(t), t) for t in used])

    def _agrees(
        self, weights: Sequence[Tensor], now: Reads, directions: Sequence[Tensor | None], loose: float
    ) -> bool:
        """Whether second derivatives along directions like these are the plain loop's, on a few rows."""
        few = self._on_few_rows(sample_layout(), weights, now, seed=21)
        like = (*self.sequences.x_rows, *self.sequences.states, *weights)
        own = [t.requires_grad_(of.requires_grad) for t, of in zip(few.inputs, like, strict=True)]
        moved = [
            None if v is None else few.noise(t).requires_grad_(v.requires_grad)
            for t, v in zip(own, directions, strict=True)
        ]
        along = replace(self, sequences=few.sequences, reads=now, check=False)
        call = Call(self.ready, few.sequences.layout, {}, few.plain, along)
        seeds = [
            few.noise(t).requires_grad_() if differs(t) and t.requires_grad else None
            for t in few.results(own)
        ]
        needed = [t.requires_grad for t in own]
        how = (call, own, seeds, needed, moved, [*needed, *(seed is not None for seed in seeds)], False)
        for a, b in zip(by_along(*how), by_plain_loop(*how), strict=True):
            if a is None and b is None:
                continue
            a, b = (torch.zeros_like(other) if t is None else t for t, other in ((a, b), (b, a)))  # pyright: ignore
            if not close(a, b, 10 * loose):
                return False
        return True

    def _agrees_forward(
        self, weights: Sequence[Tensor], now: Reads, directions: Sequence[Tensor | None], loose: float
    ) -> bool:
        """Whether derivatives along directions like these are those of the plain loop in forward mode."""
        from torch.func import jvp

        few = self._on_few_rows(sample_layout(), weights, now, seed=23)
        moved = [None if v is None else few.noise(t) for t, v in zip(few.inputs, directions, strict=True)]
        at = [i for i, v in enumerate(moved) if v is not None]

        def results(*moving: Tensor) -> tuple[Tensor, ...]:
            given = list(few.inputs)
            for i, tensor in zip(at, moving, strict=True):
                given[i] = tensor
            return tuple(few.results(given))

        try:
            pushed: Any = jvp(results, tuple(few.inputs[i] for i in at), tuple(moved[i] for i in at))
        except Exception:  # whatever it is, the plain loop tells it
            return False
        found = replace(self, sequences=few.sequences, reads=now, check=False)(few.inputs, moved)
        return all(a is None or close(a, b, 10 * loose) for a, b in zip(found, pushed[1], strict=True))

    def _split(self, values: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """What is of x, of the states and of the weights."""
        n_x = len(self.sequences.x_rows)
        n = n_x + len(self.sequences.states)
        return values[:n_x], values[n_x:n], values[n:]

    def _on_few_rows(self, layout: Layout, weights: Sequence[Tensor], now: Reads, seed: int) -> _Few:
        generator = torch.Generator().manual_seed(seed)
        sequences = self.sequences._replace(layout=layout)
        rows = [sampled(t, layout.rows, 0.1, generator) for t in sequences.x_rows]
        boot = [sampled(t, layout.sequences, 0.1, generator) for t in sequences.states]
        plain = plain_loop(self.loop, sequences, now, self.places, self.reader)

        def results(inputs: Sequence[Tensor]) -> list[Tensor]:
            y, finals = plain(*self._split(inputs))
            return [*y, *finals]

        return _Few(sequences, [t.detach() for t in (*rows, *boot, *weights)], plain, results, generator)


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
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like)


@dataclass(frozen=True, eq=False)
class MadeLater:
    """What runs the derivative of a loop, made when it is asked for: most calls have no second derivative."""

    make: Callable[[], RunsAlong]

    def same_step(self, tensors: Sequence[Tensor]) -> Reads:
        return self.make().same_step(tensors)

    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[bool, ...]:
        return self.make().has_history(given, needed, live)

    def __call__(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None],
        noise: Sequence[Tensor] | None = None,
    ) -> list[Tensor | None]:  # fmt: skip
        return self.make()(tensors, directions, noise)
