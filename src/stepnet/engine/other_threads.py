"""What other threads change of what a step reads, while a plan is made of it."""

from __future__ import annotations

import builtins
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.reads.undo import Snapshot, is_only_thread
from stepnet.compiler.trace.iteration import iteration, reached
from stepnet.compiler.trace.set_aside import without_hooks
from stepnet.data.modes import draws_put_back
from stepnet.ir.loop import Loop

from .reads import Reads, looks, read_anew
from .rows import Sequences, samples
from .self_check import versions


class Meanwhile:
    """Tells of what was read whether it is still that. Where a thread is alone, it is.

    Args:
        holders: the containers that the step reads.
        loop, reads, sequences: the run, and what was read of it.
    """

    def __init__(self, holders: Sequence[Any], loop: Loop, reads: Reads, sequences: Sequences) -> None:
        self.alone = is_only_thread()
        self._holders, self._loop, self._reads, self._sequences = holders, loop, reads, sequences
        self._tensors, self._looks, self._same = _numbers(reads.reach.tensors), looks(reads.tensors), True

    def watch(self) -> Callable[[], bool] | None:
        """Begin an attempt: what tells in it whether the step reads something else by now."""
        if self.alone:
            return None
        own = vars(builtins)  # where functions that note what a step does stand while it is tried
        before = Snapshot([holder for holder in self._holders if holder is not own])
        key = reached(self._loop).key

        def moved() -> bool:
            if not before.changed():
                return False
            with torch._C.DisableTorchFunction():  # of the trace
                return self._reads.open is not None or reached(self._loop).key != key

        self._same = read_anew(self._reads, self._loop, self._sequences) is not None and not moved()
        return moved

    def changed(self, failed: bool) -> bool:
        """Whether it was changed since, so that the last attempt is of nothing that was read. One that failed
        may have done so for other numbers of tensors."""
        if self.alone:
            return False
        now = read_anew(self._reads, self._loop, self._sequences)
        if now is None or not self._same or self._looks != looks(self._reads.tensors):
            return True
        return failed and _numbers(now.tensors) != self._tensors

    def moves_itself(self, moved: Callable[[], bool]) -> bool:
        """Whether the step reads something else while it runs and then no more, at the same calls each time:
        under `functional_call`, say. Another thread would hardly be so punctual."""
        rows = self._sequences
        few = samples(rows.x_rows, ROWS), samples(rows.states, ROWS)

        def run() -> list[int]:
            with draws_put_back(), without_hooks(), _Moves(moved) as moves:
                iteration(self._loop, *few, rows.shared)
            return moves.calls

        try:
            first = contextvars.copy_context().run(run)
            return (
                bool(first) and not moved() and contextvars.copy_context().run(run) == first and not moved()
            )
        except Exception:  # what it may be is found by who compiles it
            return False


def _numbers(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which tensors they are, and whether they were changed in place."""
    return *map(id, tensors), *versions(tensors)


class _Moves(TorchFunctionMode):
    """Notes at which of torch's functions a step reads something else than before it ran."""

    def __init__(self, moved: Callable[[], bool]) -> None:
        super().__init__()
        self.moved, self.count, self.calls = moved, 0, list[int]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.moved():
            self.calls.append(self.count)
        return func(*args, **(kwargs or {}))
