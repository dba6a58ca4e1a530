"""Graphs of files as they run: by the table of all operators, nodes around Scans as part of their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from stepnet.data.bounded import Bounded
from stepnet.executors.setting import check_backend
from stepnet.file_model import Recorder, plainly_fed

from . import (
    attention,
    branches,
    cells,
    control,
    distinct,
    elementwise,
    fourier,
    joined_steps,
    regions,
    resizing,
    sequences,
    shapes,
    sizes,
    spaces,
    sums,
    whole_numbers,
)
from .graph import SEEN, Graph, Step

OPERATORS = (
    elementwise,
    sizes,
    shapes,
    spaces,
    resizing,
    regions,
    sums,
    whole_numbers,
    fourier,
    distinct,
    attention,
    cells,
    sequences,
    branches,
    control,
)  # which fill the table
_MOST_KINDS = 64  # of calls, that one graph remembers


class JoiningGraph(Graph):
    """A graph whose Scans take in the nodes around them, where those treat steps alike."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._scans = any(isinstance(step.run, control.ScanRunner) for step in self.steps)
        # steps with nodes in Scans, by the kind of a call
        self._found = Bounded[Any, "list[Step] | None"](_MOST_KINDS)

    def plainly(
        self, arguments: Sequence[Any], around: Mapping[ir.Value, Any], recorder: Recorder | None
    ) -> tuple[Any, ...]:
        values = self.values(arguments, around)
        fed = (value for name, value in values.items() if name is not None)
        if self._scans and SEEN.get() is None and plainly_fed(fed):
            key, steps = self._joined(arguments, values)
            if steps is not None:
                try:
                    return self.through(steps, dict(values), recorder)
                except joined_steps.Declined:
                    self._found[key] = None
                    if recorder is not None:
                        recorder.forget()
        return self.through(self.steps, values, recorder)

    def _joined(
        self, arguments: Sequence[Any], given: dict[ir.Value | None, Any]
    ) -> tuple[Any, list[Step] | None]:
        """The kind of a call, and its steps with nodes around Scans as part of them; None: there are none."""
        key = (
            check_backend(None),
            torch.is_grad_enabled(),
            *((t.dtype, t.requires_grad, *(size == 1 for size in t.shape)) for t in arguments),
        )
        if key not in self._found:
            self._found[key] = joined_steps.found(self._opset, self.steps, self.outputs, self.captured, given)
        return key, self._found[key]
