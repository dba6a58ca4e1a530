"""Whether what a step gives depends on how its rows and weights lie in memory.

Some calls of torch, such as `contiguous` and `reshape`, give a tensor itself where it lies in one piece, and
a copy where it does not. Numbers and gradients are the same, unless the copy is cut off (under `no_grad`) or
one of both is written into. Noise is drawn in the order of memory where it is drawn into a tensor like rows.
A plan knows nothing of memory, so such a step has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.draws import kept
from stepnet.compiler.trace.iteration import iteration
from stepnet.data.modes import draws_put_back
from stepnet.errors import Unsupported
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .entries import Weights
from .rounding import looseness, same
from .rows import Sequences
from .self_check import moved_or_not, sampled


class _Given(NamedTuple):
    x: list[Tensor]
    states: list[Tensor]
    weights: list[Tensor]


class _Gives(NamedTuple):
    results: list[Tensor]
    gradients: list[Tensor | None]


def check_strided(
    loop: Loop, compiled: Compiled, sequences: Sequences, weights: Weights,
    generators: Sequence[torch.Generator],
) -> None:  # fmt: skip
    """Run a step on rows and weights that lie in one piece, and on the same numbers that lie otherwise.

    Raises:
        Unsupported: it gives others, or other gradients.
    """
    moved_or_not(lambda spread: _check_strided(loop, compiled, sequences, weights, generators, spread))


def _check_strided(
    loop: Loop, compiled: Compiled, sequences: Sequences, weights: Weights,
    generators: Sequence[torch.Generator], spread: float,
) -> None:  # fmt: skip
    draw = torch.Generator().manual_seed(21)
    x, states = (
        [sampled(t, ROWS, spread, draw) for t in tables] for tables in (sequences.x_rows, sequences.states)
    )
    read = [t for _, t, _ in weights]
    grad = torch.is_grad_enabled()
    wanting = [grad and t.requires_grad for t in (*sequences.x_rows, *sequences.states, *read)]

    # torch's own noise lies as what it is drawn like, and is another one in a plan
    loose = 10 * looseness(compiled) if compiled.is_compared else None

    def gives(lying: Callable[[Tensor], Tensor]) -> _Gives:
        own = [
            lying(t.detach()).requires_grad_(w) for t, w in zip((*x, *states, *read), wanting, strict=True)
        ]
        first, last = len(x), len(x) + len(states)
        given = _Given(own[:first], own[first:last], own[last:])
        with draws_put_back(), kept(generators):
            return _run(loop, sequences, given, read)

    expected = gives(torch.clone)
    flat = all(t.dim() < 3 for t in (*x, *states, *read))  # channels last is one piece then
    for lying in (_apart, _turned) if flat else (_apart, _turned, _channels_last):
        try:
            found = gives(lying)
        except Exception as error:  # as of x.view(...): the plain loop fails there, too
            let_through(error)
            continue
        if not _alike(found, expected, loose):
            raise Unsupported(
                "what the step gives depends on how its rows or weights lie in memory, by which a call of "
                "torch gives a tensor itself or a copy (one that no_grad cuts off, or that is written into), "
                "and draws noise in one order or another",
                remedy=".clone() or .detach() in the place of .contiguous(), .reshape() or .to(); "
                "torch.rand(x.shape, generator=g) in the place of torch.empty_like(x).uniform_(generator=g)",
            )


def _run(loop: Loop, sequences: Sequences, given: _Given, read: Sequence[Tensor]) -> _Gives:
    with Replaced.by(read, given.weights):
        _, y, new = iteration(loop, given.x, given.states, sequences.shared)
    results = [t for t in (*y, *new) if isinstance(t, Tensor)]
    wanted = [t for t in (*given.x, *given.states, *given.weights) if t.requires_grad]
    total = [_weighed(t) for t in results if t.requires_grad]
    if not total or not wanted:
        return _Gives(results, [])
    with torch.autocast("cpu", enabled=False):  # some gradients of torch fail in it
        return _Gives(results, list(torch.autograd.grad(torch.stack(total).sum(), wanted, allow_unused=True)))


def _weighed(t: Tensor) -> Tensor:
    """A number whose gradient is another one for each of t's."""
    real = torch.view_as_real(t) if t.is_complex() else t
    weights = (
        torch.arange(1, real.numel() + 1, device=real.device, dtype=torch.float64).sin().reshape(real.shape)
    )
    return (real * weights.to(real.dtype)).sum().double()


def _alike(found: _Gives, expected: _Gives, loose: float | None) -> bool:
    """`loose`: how far numbers may be apart; None: they are noise."""
    if [t.requires_grad for t in found.results] != [t.requires_grad for t in expected.results]:
        return False
    if [t is None for t in found.gradients] != [t is None for t in expected.gradients]:
        return False
    return loose is None or all(
        same("what the step gives", a.detach(), b.detach(), loose) for a, b in _pairs(found, expected)
    )


def _pairs(found: _Gives, expected: _Gives) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(found.results, expected.results, strict=True)
    for a, b in zip(found.gradients, expected.gradients, strict=True):
        if a is not None and b is not None:
            yield a, b


def _strided(t: Tensor, order: Iterable[int], apart: int) -> Tensor:
    """The numbers of t, `apart` from each other, the dimensions in this order from the last; no view of
    anything."""
    strides, step = [0] * t.dim(), apart
    for at in order:
        strides[at], step = step, step * t.shape[at]
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)


def _apart(t: Tensor) -> Tensor:
    return _strided(t, reversed(range(t.dim())), 2)


def _turned(t: Tensor) -> Tensor:
    return _strided(t, range(t.dim()), 1)


def _channels_last(t: Tensor) -> Tensor:
    order = (1, *range(t.dim() - 1, 1, -1), 0)
    return _strided(t, [at for at in order if at < t.dim()], 1)
