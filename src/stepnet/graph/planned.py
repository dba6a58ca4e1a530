"""A recurrence of a graph by its plan alone: without the record of its loop, and without autograd.

The step of a graph is a function of tensors and nothing else, so tensors of the same kind have the same plan.
The first call of a kind goes the long way, which makes the plan and tells what there is to tell.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stepnet.data.modes import nothing_around
from stepnet.data.unpatched_torch import contiguous
from stepnet.executors.autograd import forward
from stepnet.executors.call import Call, not_asked_for
from stepnet.executors.direct import Direct, Lately
from stepnet.executors.gradients import gradients
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.watchers import nobody_else

from .dispatch import from_the_top
from .memory import Place, laid_out, leave_alone, places, taken

KINDS = frozenset((Tensor, nn.Parameter))
_on_cpu = operator.attrgetter("is_cpu")


class Planned(NamedTuple):
    """The plan of a step.

    Attributes:
        weights: for each, its place among the tensors of a call; or itself, a constant of the step.
        apart: whether what backward needs has memory of its own.
    """

    ready: Ready
    constants: dict[str, Tensor]
    weights: list[int | Tensor]
    apart: bool


class Shape(NamedTuple):
    """How the tensors of a call begin.

    Attributes:
        x, states: how many leaves of x there are, and then of the state.
        begin: how many there are before offsets and weights; between are those that no step changes.
        lead: how many dimensions of a leaf of x count rows: 1 of a ragged one, 2 of a dense one.
    """

    x: int
    states: int
    begin: int
    lead: int


class Ran(NamedTuple):
    """A run by a plan, and what backward needs beside its inputs and results; by places, if it went so."""

    results: list[Tensor]
    call: Call
    weights: list[int | Tensor]
    shape: Shape
    kept: list[Tensor | Place]
    direct: Direct | None

    def gradients(
        self, memory: Sequence[Tensor], grads: Sequence[Tensor], at: Sequence[int], needs: Sequence[bool]
    ) -> list[Tensor]:
        """The gradient of each input that needs one.

        Args:
            memory: the inputs, and the results that are leaves of y.
            grads, at: the gradients of results, and of which.
            needs: which inputs need one.
        """
        n_x, _, begin, lead = self.shape
        n_in, n_y = len(needs), len(self.call.ready.plan.y)
        of_results: list[Tensor | None] = [None] * (n_y + begin - n_x)
        for place, grad in zip(at, grads, strict=True):
            of_results[place] = grad
        needed = needed_of(self.shape, self.weights, needs)
        inputs, y = inputs_of(self.shape, self.weights, memory), memory[n_in : n_in + n_y]
        kept, found = taken(self.kept, memory), None
        if self.direct is not None:
            saved = [*inputs, *y, *kept]
            found = self.direct.gradients(saved, of_results, needed, self.call.layout)
            kept = kept if found else self.direct.by_names(saved, self.call.layout)[len(inputs) + n_y :]
        if found is None:
            found = self._by_names(inputs, y, kept, of_results, needed)
        if lead == 2:
            found[:n_x] = [
                None if g is None else g.view(t.shape) for g, t in zip(found[:n_x], memory, strict=False)
            ]
        of = dict(zip([*range(begin), *self.weights], found, strict=True))
        of = {i: g for i, g in of.items() if g is not None}
        return [
            of[i] if i in of else memory[i].new_zeros(memory[i].shape) for i, need in enumerate(needs) if need
        ]

    @from_the_top
    @torch.no_grad()
    def _by_names(
        self, inputs: Sequence[Tensor], y: Sequence[Tensor], kept: Sequence[Tensor],
        of_results: Sequence[Tensor | None], needed: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        rows, lead = [_rows(t, self.shape.lead) for t in y], self.shape.lead
        grads = [
            g if g is None else _rows(g, lead) if k < len(y) else contiguous(g)
            for k, g in enumerate(of_results)
        ]
        found = gradients(self.call, inputs, [*rows, *kept], grads, needed)
        return [g if g is None else laid_out(g) for g in found]


def inputs_of(shape: Shape, weights: Sequence[int | Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a plan takes, of the tensors of a call."""
    return [
        *[_rows(t, shape.lead) for t in tensors[: shape.x]],
        *[contiguous(t) for t in tensors[shape.x : shape.begin]],
        *[tensors[w] if isinstance(w, int) else w for w in weights],
    ]


def needed_of(shape: Shape, weights: Sequence[int | Tensor], needs: Sequence[bool]) -> tuple[bool, ...]:
    """Of what a plan takes, what needs a gradient. `needs`: which tensors of the call do."""
    return *needs[: shape.begin], *[isinstance(w, int) and needs[w] for w in weights]


class Like(NamedTuple):
    """What calls have in common that run by a plan, and whose tensors look alike.

    Attributes:
        needed: which of the inputs of the plan need a gradient; () where nobody asks for gradients.
        as_it_is: see `Call`.
        lately: the runs that went before.
    """

    planned: Planned
    shape: Shape
    needed: tuple[bool, ...]
    as_it_is: bool
    lately: Lately


class Known(NamedTuple):
    """A call that has a plan, and where its rows stand."""

    like: Like
    layout: Layout

    def by_places(self, tensors: Sequence[Tensor]) -> Ran | None:
        """Run it without a word to torch; None: not this time."""
        planned, shape, needed, as_it_is, lately = self.like
        if not as_it_is or planned.constants:
            return None
        steps = tuple(tensors[0].shape[:2]) if shape.lead == 2 else ()
        inputs = inputs_of(shape, planned.weights, tensors)
        direct = lately.direct(planned.ready, self.layout, inputs, steps, any(needed), needed)
        found = None if direct is None else direct.forward(inputs, self.layout)
        if found is None:
            return None
        out, kept = found
        return Ran(out, self._call(), planned.weights, shape, [*kept[len(planned.ready.plan.y) :]], direct)

    def by_names(self, tensors: Sequence[Tensor], keep: bool) -> Ran:
        """Run it. `keep`: what backward needs, too."""
        (planned, shape, *_), ready = self.like, self.like.planned.ready
        call, n_y = self._call(), len(ready.plan.y)
        out, values = forward(call, inputs_of(shape, planned.weights, tensors))
        kept = [values[name] for name in ready.extra] if keep else []
        if shape.lead == 2:
            lead = tensors[0].shape[:2]
            # no views, which autograd lets nobody write to where there are several
            out[:n_y] = [t.view(*lead, *t.shape[1:]).data for t in out[:n_y]]
        results = out[: n_y + shape.states]
        if not kept or planned.apart:
            return Ran(results, call, planned.weights, shape, [*kept], None)
        held = places(kept, (*tensors, *results[:n_y]))
        leave_alone(results, n_y, held)
        return Ran(results, call, planned.weights, shape, held, None)

    def _call(self) -> Call:
        planned, _, _, as_it_is, _ = self.like
        return Call(planned.ready, self.layout, planned.constants, not_asked_for, as_it_is=as_it_is)


def all_on_cpu(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are such, of no other class, and on the CPU."""
    return KINDS.issuperset(map(type, tensors)) and all(map(_on_cpu, tensors))


def is_watched() -> bool:
    """Whether a call may not be run by a plan alone, for somebody looks on."""
    return not (nothing_around() and nobody_else())


def _rows(tensor: Tensor, lead: int) -> Tensor:
    """A table with one row for each row and step."""
    tensor = contiguous(tensor)
    return tensor if lead == 1 else tensor.view(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])
