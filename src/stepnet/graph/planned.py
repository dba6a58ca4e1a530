"""A recurrence of a graph by its plan alone: without the record of its loop, and without autograd.

The step of a graph is a function of tensors and nothing else, so tensors of the same kind have the same plan.
The first call of a kind goes the long way, which makes the plan and tells what there is to tell.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepnet.data.as_imported import contiguous
from stepnet.executors.autograd import forward
from stepnet.executors.call import Call
from stepnet.executors.gradients import gradients
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.watchers import instead, is_kept, watching

from .memory import Place, leave_alone, places, taken

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
    """A run by a plan, and what backward needs beside its inputs and results."""

    results: list[Tensor]
    call: Call
    weights: list[int | Tensor]
    shape: Shape
    kept: list[Tensor | Place]

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
            of_results[place] = _rows(grad, lead) if place < n_y else contiguous(grad)
        needed = [*needs[:begin], *[isinstance(w, int) and needs[w] for w in self.weights]]
        y = [_rows(t, lead) for t in memory[n_in : n_in + n_y]]
        inputs = inputs_of(self.shape, self.weights, memory)
        found = gradients(self.call, inputs, [*y, *taken(self.kept, memory)], of_results, needed)
        if lead == 2:
            found[:n_x] = [
                None if g is None else g.view(t.shape) for g, t in zip(found[:n_x], memory, strict=False)
            ]
        of = dict(zip([*range(begin), *self.weights], found, strict=True))
        of = {i: g for i, g in of.items() if g is not None}
        return [of[i] if i in of else torch.zeros_like(memory[i]) for i, need in enumerate(needs) if need]


def inputs_of(shape: Shape, weights: Sequence[int | Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a plan takes, of the tensors of a call."""
    return [
        *[_rows(t, shape.lead) for t in tensors[: shape.x]],
        *[contiguous(t) for t in tensors[shape.x : shape.begin]],
        *[tensors[w] if isinstance(w, int) else w for w in weights],
    ]


def run(
    planned: Planned, layout: Layout, shape: Shape, tensors: Sequence[Tensor], keep: bool,
    as_it_is: bool = False,
) -> Ran:  # fmt: skip
    """Run a plan. `keep`: what backward needs, too. `as_it_is`: see `Call`."""
    ready = planned.ready
    call = Call(ready, layout, planned.constants, _no_plain_loop, as_it_is=as_it_is)
    out, values = forward(call, inputs_of(shape, planned.weights, tensors))
    n_y = len(ready.plan.y)
    if shape.lead == 2:
        lead = tensors[0].shape[:2]
        out[:n_y] = [t.view(*lead, *t.shape[1:]) for t in out[:n_y]]
    results = out[: n_y + shape.states]
    kept: list[Any] = [values[n] for n in ready.extra] if keep else []
    if kept and not planned.apart:
        kept = places(kept, (*tensors, *results[:n_y]))
        leave_alone(results, n_y, kept)
    return Ran(results, call, planned.weights, shape, kept)


def all_on_cpu(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are such, of no other class, and on the CPU."""
    return KINDS.issuperset(map(type, tensors)) and all(map(_on_cpu, tensors))


def is_watched() -> bool:
    """Whether a call may not be run by a plan alone, for somebody looks on."""
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch.is_anomaly_enabled()
        or instead() is not None
        or watching() is not None
        or is_kept()
    )


def _rows(tensor: Tensor, lead: int) -> Tensor:
    """A table with one row for each row and step."""
    tensor = contiguous(tensor)
    return tensor if lead == 1 else tensor.view(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])


def _no_plain_loop(*_: Any) -> Any:
    raise AssertionError("a gradient in a graph is not differentiated again")
