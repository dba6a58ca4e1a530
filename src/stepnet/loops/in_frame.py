"""A stepnet run over a scope that holds values of a frame: the frame records the run as one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepnet.data.recording import RECORDER, inside, recorded_in_frames
from stepnet.executors.base import Backend
from stepnet.executors.naive import PLAIN
from stepnet.front.scope import Scope


def run_in_frame(
    scope: Scope, run: Callable[[Scope, Backend | None], tuple[Any, ...]], count: int
) -> tuple[Any, ...] | None:
    """The results of a run as the frame around has recorded it; None where no frame is concerned.

    Args:
        scope: the outer scope, with values of the frame among what it holds.
        run: takes a scope with true values, and the backend or None, and gives `count` results.
        count: how many.

    >>> run_in_frame(Scope({"x": 1}), lambda scope, backend: (scope["x"],), 1) is None
    True
    """
    values = scope.all_values()
    if RECORDER.get() is None or next(inside(values), None) is None:
        return None

    def recorded(held: dict[str, Any]) -> tuple[Any, ...]:
        return run(Scope(held), None)

    def like(held: dict[str, Any]) -> tuple[Any, ...]:
        return run(Scope(held), PLAIN.name)

    results = recorded_in_frames(like, parts=count)(recorded)(values)
    return tuple(results[i] for i in range(count))
