"""A branch of a model: one of two graphs; or both, where each row of a compiled loop takes its own, and in
what is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.watchers import instead

from .misfit import Misfit
from .own_end import BOTH, both_run, chosen
from .recording import decided

Results = Callable[[bool], Sequence[Any]]


class Branching:
    """What runs a branch, and remembers which of its graphs fit the example of a model that is written.

    Args:
        unanswered: a block of code in which nothing notes what runs.
    """

    def __init__(self, unanswered: Callable[[], AbstractContextManager[None]]) -> None:
        self._unanswered = unanswered
        self._fit: tuple[Any, set[bool]] = None, set()  # and what notes that model

    def run(self, which: Tensor, results: Results) -> Sequence[Any]:
        """What the graph gives that a condition says.

        Args:
            which: the condition, a scalar.
            results: what the graph of a truth gives.
        """
        noted = instead()
        if both_run(which):
            of, fit = self._fit
            if noted is None or of is None or BOTH.get() or len(fit) != 1:
                return tuple(chosen(which, *pair) for pair in zip(results(True), results(False), strict=True))
            (way,) = fit
            return tuple(_certain(x, which, way) for x in results(way))
        way = bool(decided(which))
        if noted is None:
            return results(way)
        fit = {w for w in (True, False) if w == way or self._fits(results, w)}
        self._fit = noted, fit | (self._fit[1] if self._fit[0] is noted else set())
        # it traces both, with the loops in them
        return {w: results(w) for w in (True, False) if w in fit}[way]

    def _fits(self, results: Results, way: bool) -> bool:
        """Whether a graph runs on these sizes: one that the example does not take may be for others."""
        try:
            with self._unanswered():
                results(way)
        except (StepnetError, Misfit):
            return False
        return True


def _certain(x: Any, which: Tensor, way: bool) -> Tensor:
    if not isinstance(x, Tensor):
        raise Misfit("a branch that can be taken alone gives no tensor", type(x).__name__)
    return torch.ops.stepnet.certain(x, which, way)
