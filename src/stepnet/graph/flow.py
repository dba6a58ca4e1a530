"""Which results of a recurrence in a graph carry a gradient, and which inputs one reaches.

A graph is to say so before it runs, for any lengths. It is what autograd says of the plain loop over tensors
without numbers: over sequences of all the lengths at which the answer may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor

from stepnet.compiler.trace.set_aside import without_hooks
from stepnet.data.autograd_history import history
from stepnet.data.modes import outside_modes
from stepnet.errors import StepError
from stepnet.executors.base import Backend

from .planned import KINDS
from .sizes import row_shape

_INSIDE = 2  # entries of a step that is a sequence
_ANY = 3  # in the place of a size that is not known before the graph runs


@dataclass(frozen=True)
class Way:
    """How a recurrence runs: the arguments of `recurrent`, and what was around its call.

    Attributes:
        levels: how many levels of offsets x has; 0 for tensors of equal lengths.
        inside: how many of them the steps have, which are sequences then.
        autocast: the type that autocast gives on each kind of device, where it is on. None in an exported
            program: it is the one around the run, as for torch's operators there.
        rounded: which results, leaves of y and then of the state, get the type of that autocast; see
            `Rounding`.
        resets: which marks restart it, and whether a reset state is handed in: "", "is_init", "done".
        checkpoint, detach_every: its windows of steps.
    """

    name: str
    reverse: bool = False
    axis: int = 0
    levels: int = 0
    inside: int = 0
    backend: Backend | None = None
    autocast: tuple[tuple[str, str], ...] | None = ()
    rounded: tuple[bool, ...] = ()
    resets: str = ""
    checkpoint: int | bool | None = None
    detach_every: int | None = None

    @property
    def in_windows(self) -> bool:
        """Whether it is cut into windows of steps."""
        return bool(self.checkpoint or self.detach_every)


class Rounding:
    """A step some of whose results an exported program gives in the type of the autocast around it.

    Attributes:
        rounded: which, the leaves of y and then those of the state.
    """

    rounded: tuple[bool, ...] = ()


class Flow(NamedTuple):
    """For each result, whether it carries a gradient, and which inputs that reaches."""

    carries: list[bool]
    inputs: list[set[int]]
    draws: bool  # noise

    def reached(self, results: Sequence[int]) -> set[int]:
        """The inputs that gradients of these results get to."""
        return set().union(*[self.inputs[k] for k in results])


@outside_modes
def flow_of(
    way: Way, counts: tuple[int, int, int, int], plainly: Callable[..., list[Tensor]], drawn: Any,
    tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool], *, read: bool,
) -> Flow | None:  # fmt: skip
    """The flow of gradients in a recurrence; None where its shapes do not tell.

    Args:
        way, counts: of the recurrence.
        plainly: runs it by the plain loop: another way, other counts, tensors and sizes.
        drawn: `noise.Drawn`.
        tensors, sizes: as for `Recurrence.run`, with numbers or without.
        needs: which tensors need a gradient.
        read: whether the step may read single numbers, so that the answer holds for these alone.
    """
    from torch._guards import tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    n_x, n_state, n_static, n_fresh = counts
    # ends that no step changes; then one more step for each state that a gradient may pass on its way
    lengths = [0, 0] if no_rows(way, tensors[0]) else range(0 if way.levels else 1, n_state + 2)
    n, rows, begin = len(lengths), sum(lengths), n_x + n_state + n_static
    fresh = begin + n_x * way.levels + bool(way.resets)
    flags = [*needs]
    for i, need in enumerate(needs[fresh : fresh + n_fresh], n_x):
        flags[i] |= need
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def like(i: int, shape: Sequence[Any]) -> Tensor:
        with fake:
            made = torch.empty(numbers(shape), dtype=tensors[i].dtype, device=tensors[i].device)
        return made.requires_grad_(flags[i])

    many = rows * (_INSIDE if way.inside else 1)
    given = [
        like(i, (many, *row_shape(t, way.axis, way.levels)) if i < n_x else (n, *t.shape[1:]))
        for i, t in enumerate(tensors[:begin])
    ]
    reads = [
        t.detach() if read and not t.dim() and type(t) in KINDS else like(i, t.shape)
        for i, t in enumerate(tensors[fresh + n_fresh :], fresh + n_fresh)
    ]
    levels = [[0, *accumulate(lengths)]]
    for k in range(way.inside):
        levels.append([*range(0, _INSIDE * rows + 1, 1 if k else _INSIDE)])
    offsets = [torch.tensor(level) for _ in range(n_x) for level in levels]
    flat = replace(way, axis=0, levels=len(levels), resets="", checkpoint=None, detach_every=None)
    try:
        with torch.enable_grad(), tracing(None), without_hooks(), drawn:
            results = plainly(flat, (n_x, n_state, n_static, 0), [*given, *offsets, *reads], numbers(sizes))
    except (RuntimeError, StepError):  # what it does depends on numbers
        return None
    places = [*zip(given, range(begin), strict=True)]
    places += zip(given[n_x:], range(fresh, fresh + n_fresh), strict=False)
    places += zip(reads, range(fresh + n_fresh, len(tensors)), strict=True)
    return Flow([t.requires_grad for t in results], [_reached(t, places) for t in results], drawn.any)


def no_rows(way: Way, x: Tensor) -> bool:
    """Whether a graph is for no steps at all: torch makes one for this size alone."""
    rows = x.shape[0] if way.levels else x.shape[way.axis]
    return not way.inside and isinstance(rows, int) and rows == 0


def _reached(result: Tensor, places: Sequence[tuple[Tensor, int]]) -> set[int]:
    """The places of the inputs that autograd leads to from a result."""
    found = {id(result), *(id(getattr(node, "variable", None)) for node in history([result.grad_fn]))}
    return {place for tensor, place in places if id(tensor) in found}


def numbers(sizes: Sequence[Any]) -> list[int]:
    """Sizes as they are in the example that is traced, if they are known there."""
    found = [n.node.hint if isinstance(n, SymInt) else n for n in sizes]
    return [_ANY if n is None else n for n in found]
