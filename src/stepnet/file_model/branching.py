"""A branch of a model: one of two graphs; or both, where each row of a compiled loop takes its own, and in
what is traced."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from stepnet.data.recording import LeftByRuns
from stepnet.errors import StepnetError
from stepnet.repeat import while_joined
from stepnet.watchers import instead

from .body_ended_loops import BOTH, both_run, chosen
from .misfit import Misfit
from .recording import decided

Results = Callable[[bool], Sequence[Any]]
Dims = tuple[frozenset[int], ...]  # of each result, those in which the graphs differ


class Reading:
    """A function of an owner's with the tensors that it reads, where what writes a model finds these again:
    they would be lost among what the owner remembers of its calls.

    Args:
        owner: what is run.
        read: the tensors.
        run: is given the owner, those, and what the call is given.
    """

    def __init__(self, owner: Any, read: Sequence[Tensor], run: Callable[..., Sequence[Any]]) -> None:
        self._owner, self._read, self._run = weakref.ref(owner), read, run

    def __call__(self, *values: Any) -> Any:
        owner = self._owner()
        assert owner is not None
        return self._run(owner, self._read, *values)


class Branching(LeftByRuns):
    """What runs a branch, and remembers which of its graphs fit the example of a model that is written.

    Args:
        unanswered: a block of code in which nothing notes what runs.
    """

    asked_by = frozenset()  # what it computes is what the graphs do

    def __init__(self, unanswered: Callable[[], AbstractContextManager[None]]) -> None:
        self._unanswered = unanswered
        # what notes that model, and what is told of its example
        self._told: tuple[Any, set[bool], Dims | None] = None, set(), None

    def run(self, which: Tensor, results: Results, alone: Callable[[], Results]) -> Sequence[Any]:
        """What the graph gives that a condition says.

        Args:
            which: the condition, a scalar.
            results: what the graph of a truth gives; it holds all tensors that these read.
            alone: gives the same for a loop of its own, where open sizes that it reads are tensors.
        """
        noted = instead()
        if both_run(which):
            of, fit, dims = self._told
            if noted is None or of is None or BOTH.get():
                return tuple(chosen(which, *pair) for pair in zip(results(True), results(False), strict=True))
            if dims is not None:
                return self._one_of(which, alone(), dims)
            if len(fit) > 1:
                return tuple(chosen(which, *pair) for pair in zip(results(True), results(False), strict=True))
            (way,) = fit
            return tuple(_certain(x, which, way) for x in results(way))
        way = bool(decided(which))
        if noted is None:
            return results(way)
        made = {w: self._made(results, w, needed=w == way) for w in (True, False)}
        fit, dims = {w for w, found in made.items() if found is not None}, _differing(made[True], made[False])
        if self._told[0] is noted:
            fit, dims = fit | self._told[1], self._told[2] or dims
        self._told = noted, fit, dims
        if dims is not None:
            return self._one_of(which, alone(), dims)
        # it traces both, with the loops in them
        taken = {w: results(w) for w in (True, False) if made[w] is not None}[way]
        # what a graph gives as it is is in the trace no other tensor
        return tuple(x.clone() if isinstance(x, Tensor) else x for x in taken)

    def _made(self, results: Results, way: bool, *, needed: bool = True) -> Sequence[Any] | None:
        """What a graph gives for these sizes, and nothing notes; None where it is not needed and does not run
        on them: one that the example does not take may be for others."""
        answering = instead()
        try:
            # run otherwise, it would read other tensors than it will where it is traced
            with self._unanswered() if answering is None or answering.keeps else nullcontext():
                return results(way)
        except (StepnetError, Misfit):
            if needed:
                raise
            return None

    def _one_of(self, which: Tensor, results: Results, dims: Dims) -> Sequence[Tensor]:
        """What one of two graphs gives that differ in these dimensions, as two loops of at most one turn."""
        found = results(True)  # for its sizes: of what is traced they are not numbers
        sizes = (
            [1 if d in of else n for d, n in enumerate(x.shape)] for x, of in zip(found, dims, strict=True)
        )
        values = tuple(x.new_zeros(shape) for x, shape in zip(found, sizes, strict=True))
        for way in (True, False):

            def once(going: Tensor, *_: Tensor, way: bool = way) -> Sequence[Tensor]:
                return torch.zeros_like(going), *results(way)

            going = which.reshape(()) if way else which.reshape(()).logical_not()
            values = while_joined(_goes_on, once, (going, *values), 0, (frozenset(), *dims))[1:]
        return values


def _goes_on(going: Tensor, *_: Tensor) -> Tensor:
    return going


def _differing(a: Sequence[Any] | None, b: Sequence[Any] | None) -> Dims | None:
    """The dimensions in which two lists of tensors differ; None where none does, or these are not alike."""
    pairs = [*zip(a or (), b or (), strict=False)]
    tensors = all(isinstance(x, Tensor) and isinstance(y, Tensor) for x, y in pairs)
    if not tensors or any((x.dim(), x.dtype) != (y.dim(), y.dtype) for x, y in pairs):
        return None
    found = tuple(frozenset(d for d in range(x.dim()) if x.shape[d] != y.shape[d]) for x, y in pairs)
    return found if any(found) else None


def _certain(x: Any, which: Tensor, way: bool) -> Tensor:
    if not isinstance(x, Tensor):
        raise Misfit("a branch that can be taken alone gives no tensor", type(x).__name__)
    return torch.ops.stepnet.certain(x, which, way)
