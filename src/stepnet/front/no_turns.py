"""Loops that end in their first turn, before a line of the frame that cannot be recorded: Python would never
come to that line."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from stepnet.data.in_graph import is_exporting
from stepnet.data.modes import draws_put_back
from stepnet.interrupts import let_through
from stepnet.watchers import instead

from .program import Program
from .recorded import Break, Op


def ops_of_no_turn(program: Program, loop_vars: Sequence[Any]) -> list[Op] | None:
    """What a loop does of what was recorded so far, up to the end of its first turn; None where it does not
    end there, or where the values that say so are not known yet: in a frame around, on a tape, in a file."""
    waits = program.around is not None or program.stand_in is not None
    if waits or instead() is not None or is_exporting():
        return None
    values: dict[int, Any] = {**program.constants, **dict(enumerate(loop_vars))}
    arrays = [copy.copy(array) for array in program.arrays]
    values |= {-1 - number: array for number, array in enumerate(arrays)}
    with torch.no_grad(), draws_put_back():
        for at, op in enumerate(program.ops):
            try:
                if not isinstance(op, Break):
                    op.do(values, arrays)
                elif bool(values[op.condition.place]):
                    return program.ops[: at + 1]
            except Exception as error:  # of what the user calls: that of the frame is the one to be told
                let_through(error)
                return None
    return None
