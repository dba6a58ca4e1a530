"""A plan held against the plain loop, once, on a few rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.rewritten.inner_loops import ENDED, TooFewSteps, is_guarded
from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.draws import kept
from stepnet.data.modes import draws_put_back
from stepnet.data.storage import versions
from stepnet.errors import Unsupported
from stepnet.executors.autograd import run_plan
from stepnet.executors.call import Call
from stepnet.executors.exactness import exact_products
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .plain import Results, plain_loop
from .rounding import (
    coarseness,
    looseness,
    nearer,
    nudged,
    of_16_bits,
    overflows,
    same,
    unexplained,
    widened,
)
from .rows import Noise, Sequences, few

_SAMPLE = (0, 2, 2, 5, 6)  # where four sequences of six rows begin and end, one of them empty

_OF_TWO = [0, 3, 6]


def sample_layout(offsets: Sequence[int] = _SAMPLE) -> Layout:
    """The sequences of the self-check."""
    return Layout.ragged(torch.tensor(offsets, device="cpu"), reverse=False)


class _Differs(Unsupported):
    """The numbers are not those of the plain loop."""


def sampled(table: Tensor, n: int, spread: float, generator: torch.Generator) -> Tensor:
    """n rows of a table, with noise."""
    rows = few(table, n)
    if table.shape[0]:
        chosen = torch.randint(table.shape[0], (n,), generator=generator, device="cpu")
        rows = table.detach()[chosen.to(table.device)].clone()
    if rows.dtype.is_floating_point:
        noise = torch.randn(rows.shape, generator=generator, dtype=torch.float64, device="cpu")
        rows = rows + spread * noise.to(rows)
    return rows


_MOST_CHECKS = 16  # while other threads train the same weights
APART = 0.1  # how far samples are moved from the numbers of a call


def moved_or_not(check: Callable[[float], None]) -> None:
    """Check on samples that are moved from the numbers of a call; on those as they are, where that fails by
    itself: what is moved need not be what the step takes, as a covariance.

    Raises:
        Unsupported: what the check found.
    """
    try:
        return check(APART)
    except Unsupported:
        raise
    except Exception as error:
        let_through(error)
    return check(0.0)


@exact_products()
def self_check(
    loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
    weights: Sequence[Tensor],
) -> None:  # fmt: skip
    """Compare one small batch with the plain loop: values and every gradient.

    Raises:
        Unsupported: they differ.
    """
    given = loop, ready, compiled, noise, sequences, weights
    if is_guarded(compiled.y_spec):  # what a check says holds of the states as they are
        _check(*given, 0.0)
    else:
        moved_or_not(lambda apart: _check(*given, apart))


def _check(
    loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
    weights: Sequence[Tensor], apart: float,
) -> None:  # fmt: skip
    """Compare; once more, if another thread changed the weights meanwhile."""
    given = loop, ready, compiled, noise, sequences, weights, apart
    for more in reversed(range(_MOST_CHECKS)):
        before = versions(weights)
        try:
            _compare(*given)
        except Exception as error:
            if not more or versions(weights) == before:
                if not isinstance(error, _Differs):
                    raise
                _compare(*given, _OF_TWO)
                if not _Sample(*given, _OF_TWO).asks_for_the_number_of_rows(looseness(compiled)):
                    raise
                raise Unsupported(
                    "the step depends on how many rows it is given: for one it gives other results than "
                    "for several",
                    remedy="treat one row like any number of rows",
                ) from None
        else:
            return


def holds(said: Tensor, layout: Layout) -> bool:
    """Whether a plan holds, by what it says of each row (see `inner_loops`)."""
    rows = said.detach().cpu().flatten()  # [T, B] where y is that, whose rows stand in that order
    return layout.agree(rows) if rows.dtype == torch.int64 else bool(rows.all())


class _Sample:
    """A few rows of a call, with noise, and what the plan and the plain loop make of them.

    Attributes:
        guarded: whether a result says that what was asked of all rows holds.
        boot: the initial states, moved `apart` by noise.
        own: the weights, as aliases: one may be made from another, and that history is the caller's.
        wanted: what gets a gradient.
    """

    def __init__(
        self, loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
        weights: Sequence[Tensor], apart: float, offsets: Sequence[int],
    ) -> None:  # fmt: skip
        self._ready, self._compiled, self._noise, self._weights = ready, compiled, noise, weights
        self._layout, self._generator = sample_layout(offsets), torch.Generator().manual_seed(20)
        self.guarded = is_guarded(compiled.y_spec)
        self.x = [self._part(t, 6, 0.0) for t in sequences.x_rows]
        self.boot = [self._part(t, self._layout.sequences, apart) for t in sequences.states]
        self.own = [w.view_as(w) if w.requires_grad else w for w in weights]
        self.wanted = [t for t in (*self.x, *self.boot, *self.own) if t.requires_grad]
        self._given = lambda layout: (loop, sequences._replace(layout=layout))
        self._plain = plain_loop(*self._given(self._layout), guarded=self.guarded)

    def _part(self, table: Tensor, n: int, spread: float) -> Tensor:
        rows = sampled(table, n, spread, self._generator)
        return rows.requires_grad_(table.requires_grad and self._ready.backward is not None)

    def runs(self) -> tuple[list[Tensor], list[Tensor]]:
        """y and final states by the plan, and by the plain loop, with the same noise."""
        noise = self._noise
        with draws_put_back():
            again = noise.drawn_again(self._by_loop)
            call = Call(self._ready, self._layout, self._compiled.constants, again, guarded=self.guarded)
            with kept(noise.generators):
                drawn = noise.tables(self._layout)
            ours = run_plan(call, [*self.x, *drawn], self.boot, self.own)
            return ours, self.plain()

    def _by_loop(
        self, x: Sequence[Tensor], states: Sequence[Tensor], own: Sequence[Tensor] | None = None
    ) -> Results:
        with Replaced.by(self._weights, self.own if own is None else own):
            return self._plain(x, states)

    def plain(self) -> list[Tensor]:
        """y and final states by the plain loop."""
        with draws_put_back(), kept(self._noise.generators):
            return _joined(self._by_loop(self.x, self.boot))

    def asks_for_the_number_of_rows(self, loose: float) -> bool:
        """Whether the first of two sequences of three steps by itself has other results by the plain loop."""
        alone = plain_loop(*self._given(sample_layout([0, 3])), guarded=self.guarded)
        with draws_put_back(), kept(self._noise.generators), Replaced.by(self._weights, self.own):
            y, states = self._plain(self.x, self.boot)
            of_one = _joined(alone([t[:3] for t in self.x], [t[:1] for t in self.boot]))
        of_two = [*(t[:3] for t in y), *(t[:1] for t in states)]
        pairs = zip(of_two, of_one, strict=True)
        return not all(same("a result", a, b, loose) for a, b in pairs)

    def seeds(self, results: Sequence[Tensor]) -> list[Tensor]:
        """What comes in for each result."""
        drawn = [
            torch.randn(t.shape, generator=self._generator, dtype=torch.float64, device="cpu")
            for t in results
        ]
        return [seed.to(t) for seed, t in zip(drawn, results, strict=True)]

    def with_gradients(
        self, results: list[Tensor], seeds: Sequence[Tensor], wanted: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Results, and the gradient of each input that gets one."""
        if self._ready.backward is None:
            return results
        return results + _gradients(results, seeds, self.wanted if wanted is None else wanted)

    def of(self, moved: Callable[[Tensor], Tensor], seeds: Sequence[Tensor]) -> list[Tensor]:
        """The plain loop's numbers for rows and weights each of which is `moved`."""
        given = [moved(t).requires_grad_(t.requires_grad) for t in (*self.x, *self.boot, *self.own)]
        x, states = len(self.x), len(self.x) + len(self.boot)
        with draws_put_back(), kept(self._noise.generators):
            results = _joined(self._by_loop(given[:x], given[x:states], given[states:]))
        return self.with_gradients(results, seeds, [t for t in given if t.requires_grad])


def _compare(
    loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
    weights: Sequence[Tensor], apart: float, offsets: Sequence[int] = _SAMPLE,
) -> None:  # fmt: skip
    sample = _Sample(loop, ready, compiled, noise, sequences, weights, apart, offsets)
    ours, theirs = sample.runs()
    n_y = len(theirs) - len(sample.boot)
    if sample.guarded and not holds(ours[n_y - 1], sample._layout):
        if ENDED in compiled.y_spec.keys:
            raise TooFewSteps("a while_loop in the step takes more steps on sample rows than were unrolled")
        raise Unsupported(
            "its Python asks whether something holds for all rows, and at some step it does not",
            remedy="torch.where(condition, a, b) with a condition for each row",
        )
    if sample.guarded:
        ours[n_y - 1] = theirs[n_y - 1]
    names = [*(f"y{i}" for i in range(n_y)), *loop.carried.values()]
    names += [f"gradient of a {tuple(t.shape)}" for t in sample.wanted]
    if ready.backward is not None and [a.requires_grad for a in ours] != [b.requires_grad for b in theirs]:
        raise Unsupported("self-check: other results carry gradients than those of the plain loop")
    seeds, loose = sample.seeds(theirs), looseness(compiled)
    found = (sample.with_gradients(results, seeds) for results in (ours, theirs))
    pairs = list(zip(*found, strict=False))
    far = [at for at, (a, b) in enumerate(pairs) if not same(names[at], a, b, loose)]
    coarse = coarseness(compiled)
    if far and of_16_bits(coarse):  # who of both is far from what nobody rounds?
        try:
            with torch.autocast("cpu", enabled=False):
                exact = sample.of(widened, seeds)
            far = [at for at in far if not nearer(*pairs[at], exact[at], loose)]
        except Exception as error:  # the step need not take what is wider
            let_through(error)
    if far:
        far = unexplained(
            far, pairs, lambda by: sample.of(lambda t: nudged(t, by, coarse), seeds), coarse, loose
        )
    if far and overflows(compiled, *pairs[far[0]]):
        raise Unsupported(
            f"{names[far[0]]} overflows float16 in the plain loop, which rounds after each call, not here",
            remedy="smaller numbers, bfloat16, or a loop in float32; backend='naive' rounds as torch does",
        )
    if far:
        raise _Differs(
            f"self-check: {names[far[0]]} differs from the plain loop", remedy="please report this step"
        )


def _joined(results: Results) -> list[Tensor]:
    return [*results[0], *results[1]]


def _gradients(results: Sequence[Tensor], seeds: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of results, each of which is given its seed; zeros for a tensor that gets none."""
    pairs = [(r, s.to(r.dtype)) for r, s in zip(results, seeds, strict=True) if r.requires_grad]
    if not pairs:
        return []
    with torch.autocast("cpu", enabled=False):  # as the trace has it: some gradients of torch fail in it
        found = torch.autograd.grad(_weighed(pairs), wanted, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def _weighed(asked: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One number whose gradient for each result is its seed. Differentiating tensors would make torch import
    what it traces with, which takes a second."""
    parts = [
        (torch.view_as_real(a) * torch.view_as_real(seed) if a.is_complex() else a * seed).sum()
        for a, seed in asked
    ]
    return torch.stack([part.float() for part in parts]).sum()
