"""The node of a recurrence in a traced module as layers: by its plan, or its whole step in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.errors import IRError, Unsupported

from .builder import Out
from .capture_trace import Call, call_of
from .loops import Steps, write_plan
from .loops_step import write_step
from .ops import AtenNet, rule
from .ops_body import unwritable


@rule("stepnet.recurrence")
def _recurrence(
    b: AtenNet, number: int, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode],
    lengths: Sequence[FxNode],
) -> list[Out]:  # fmt: skip
    call = call_of(number)
    where = f"the recurrence of step '{call.body.name}' ({call.line})"
    steps = Steps(1 if call.ragged or call.axis == 1 else 0, call.reverse, _lengths(b, call, x))
    _check_open(b, call, x, where)
    states = [b.out(node) for node in state]
    given = [b.out(node) for node in x]
    values: list[Tensor | Out] = [
        b.constant(node) if b.is_constant(node) else b.out(node) for node in weights
    ]
    why: str | None = None
    if call.compiled is not None and _fixed(b, x, state, weights, call):
        try:
            plan = call.compiled.hoisted
            y, finals = write_plan(b.emit, plan, call.compiled.constants, given, states, values, steps)
            return [*y, *finals]
        except Unsupported as error:
            if call.ragged:
                raise unwritable(where, error.reason, error.line) from error
            why = error.reason
    if call.ragged:
        raise IRError(
            f"{where} cannot be written over ragged sequences: {call.refusal}",
            expected="a step whose rows are proved not to mix",
        )
    y, finals = write_step(b, call, where, given, states, (x, state, weights), steps, why)
    return [*y, *finals]


def _lengths(b: AtenNet, call: Call, x: Sequence[FxNode]) -> Out | None:
    return b.ragged[str(b.shape(x[0])[0])] if call.ragged else None


def _check_open(b: AtenNet, call: Call, x: Sequence[FxNode], where: str) -> None:
    """Refuse a loop whose number of steps became a fixed number without anyone asking for it."""
    if call.ragged:
        return
    time = int(call.axis == 1)
    for axis, what in ((time, "steps"), (1 - time, "sequences")):
        if call.alone and axis != time:
            continue
        size = b.shape(x[0])[axis]
        if isinstance(size, int) and b.must_be_open:
            raise IRError(
                f"{where} cannot be written for any number of {what}: it became {size} in the trace",
                got=f"an example of {size} {what}",
                expected="at least 2 steps and 2 sequences in the example, and sizes that come from tensors",
                remedy="dynamic=... says which dimensions of the inputs stay open; "
                "those it leaves out are fixed",
            )


def _fixed(
    b: AtenNet, x: Sequence[FxNode], state: Sequence[FxNode], weights: Sequence[FxNode], call: Call
) -> bool:
    """Whether all sizes but those of time and batch are plain numbers, as a plan takes them to be."""
    lead = 1 if call.ragged else 2
    shapes: list[list[Any]] = [b.shape(n)[lead:] for n in x]
    shapes += [b.shape(n)[1:] for n in state]
    shapes += [b.shape(n) for n in weights]
    return all(isinstance(size, int) for shape in shapes for size in shape)
