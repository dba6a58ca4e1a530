"""Graphs of files whose loops take in the nodes around them, where those treat steps alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stepnet.data.bounded_cache import Bounded
from stepnet.errors import StepnetError
from stepnet.executors.setting import check_backend

from .joined_steps import Declined, found
from .recording import Recorder
from .specialized_graph import ERRORS, plainly_fed
from .step_rules import Step, Value

_MOST_KINDS = 64  # of calls, that one graph remembers


class Joining:
    """The steps of a graph with nodes in its loops, by the kind of a call.

    Args:
        steps, outputs, captured: of the graph.
    """

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Value], captured: Sequence[Value]) -> None:
        self.steps, self.outputs, self.captured = steps, outputs, captured
        self.possible = any(step.as_scan() is not None for step in steps)
        self.found = Bounded[Any, "list[Any] | None"](_MOST_KINDS)

    def run(
        self, arguments: Sequence[Any], values: Mapping[Any, Any],
        through: Callable[[Sequence[Any], dict[Any, Any], Recorder | None], tuple[Any, ...]],
        recorder: Recorder | None,
    ) -> tuple[Any, ...] | None:  # fmt: skip
        """What the graph gives; None: its steps are to run as they are.

        Args:
            arguments: of the call.
            values: these and what it captures.
            through: runs steps, from all values that they read.
            recorder: what notes what they do.
        """
        if not plainly_fed(value for name, value in values.items() if name is not None):
            return None
        key = (
            check_backend(None),
            torch.is_grad_enabled(),
            *((t.dtype, t.requires_grad, *(size == 1 for size in t.shape)) for t in arguments),
        )
        if key not in self.found:
            self.found[key] = found(self.steps, self.outputs, self.captured, values)
        steps = self.found[key]
        if steps is None:
            return None
        try:
            return through(steps, dict(values), recorder)
        except Declined:
            self.found[key] = None
        except (StepnetError, *ERRORS):  # which the nodes tell better, one by one
            pass
        if recorder is not None:
            recorder.forget()
        return None
