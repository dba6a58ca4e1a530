"""A stepnet on scopes as a step of `recurrent`; over values of a frame, a call that the frame records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import RECORDER, inside, recorded_in_frames
from stepnet.executors.base import Backend
from stepnet.executors.naive import PLAIN
from stepnet.executors.registry import AUTO
from stepnet.executors.setting import check_backend
from stepnet.front.memory import Memory, ScopeStep, Stepnet
from stepnet.front.scope import Scope, check_scope
from stepnet.watchers import said

Last = dict[str, Tensor]


def run_as_step(
    stepnet: Stepnet, scope: Scope, inputs: Sequence[str], outputs: Sequence[str], memories: Sequence[Memory],
    rows: tuple[int, Tensor], *, static: Mapping[str, Any] | None = None,
    ragged: dict[str, LoDTensor] | None = None, **how: Any,
) -> Last:  # fmt: skip
    """Run a stepnet over the inputs in a scope; writes the outputs to the scope, gives the last memories.

    Args:
        rows: how many a memory without an init has, and a tensor of the dtype and on the device of its own.
        static: what each step sees of the static inputs.
        ragged: those of which it sees sequences.
        how: as in `recurrent`.

    Raises:
        Unsupported: a backend is named, and no plan holds what a step sees of `ragged`.
    """
    static = static or {}
    hidden = {*inputs, *outputs, *static, *(m.init for m in memories)}
    around = Scope({n: v for n, v in scope.all_values().items() if n not in hidden})
    step = ScopeStep(stepnet, around, inputs, outputs, memories, tuple(static), ragged)
    refusal = step.refusal
    if refusal is not None:
        if how.get("backend") is not None and check_backend(how["backend"]) not in (AUTO, PLAIN.name):
            raise refusal.fresh()
        how["backend"] = PLAIN.name
    boots = tuple(memory.boot(scope, *rows) for memory in memories)
    x = tuple(scope[name] for name in inputs)
    y, last = recurrent(step, x, boots, static=tuple(static.values()) or None, **how)
    for name, value in zip(outputs, y, strict=True):
        scope[name] = value
    return dict(zip((memory.name for memory in memories), last, strict=True))


def run_in_frame(
    scope: Scope, run: Callable[[Scope, Backend | None], Last], outputs: Sequence[str],
    memories: Sequence[Memory],
) -> Last | None:  # fmt: skip
    """The last memories of a run as the frame around has recorded it; None where no frame is concerned.

    Args:
        scope: the outer scope, with values of the frame among what it holds; outputs are written to it.
        run: takes a scope with true values, and the backend or None; writes outputs, gives the memories.

    >>> run_in_frame(Scope({"x": 1}), lambda scope, backend: {}, [], []) is None
    True
    """
    check_scope(scope)
    values = scope.all_values()
    if said(RECORDER) is None or next(inside(values), None) is None:
        return None
    names = [memory.name for memory in memories]

    def results(held: dict[str, Any], backend: Backend | None = None) -> tuple[Any, ...]:
        within = Scope(held)
        last = run(within, backend)
        return (*(within[output] for output in outputs), *(last[name] for name in names))

    def like(held: dict[str, Any]) -> tuple[Any, ...]:
        return results(held, PLAIN.name)

    made = iter(recorded_in_frames(like, parts=len(outputs) + len(names))(results)(values))
    for output in outputs:
        scope[output] = next(made)
    return dict(zip(names, made, strict=True))
