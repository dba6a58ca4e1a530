"""Arrays of a frame around the one around: what a turn of one frame writes, the next turn of each reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from stepnet import TensorArray

DTYPE = torch.float64
ZERO = torch.zeros(2, dtype=DTYPE)


def as_frame(count, start, body):
    """What a frame carries after so many turns; `body` is given the turn and what is carried."""
    loop = stepnet.create_whileloop([torch.tensor(0), start])
    with loop.frame() as (turn, value):
        loop.break_if(turn == count)
        loop.update(value, body(turn, value))
        loop.update(turn, turn + 1)
    return loop.results[1]


def by_hand(count, start, body):
    """The same by Python."""
    for turn in range(count):
        start = body(torch.tensor(turn), start)
    return start


def noted(run, x, does):
    """A program that notes what it meets: `does` says who writes to the notes of the outermost turn, and who
    reads them."""
    rows, out = TensorArray(unstack_from=x), TensorArray()

    def outermost(i, value):
        notes, inside = TensorArray(), TensorArray(unstack_from=rows.read(i))
        if "begins" in does:
            notes.write(0, value * 2)

        def middle(j, value):
            own = TensorArray(unstack_from=inside.read(j))
            if "middle reads" in does:
                value = value + notes.read(1, ZERO)
            if "middle asks for all" in does:
                value = value + notes.stack().sum(0)
            if "middle writes first" in does:
                notes.write(0, value)

            def innermost(k, value):
                value = value * 0.9 + own.read(k)
                if "innermost reads" in does:
                    value = value + 0.1 * notes.read(k, ZERO)
                if "innermost writes" in does:
                    notes.write(k, value)
                return value

            value = run(2, value, innermost)
            if "middle writes" in does:
                notes.write(j, value)
            return value

        value = run(2, value, middle)
        out.write(i, notes.read(1, ZERO) + notes.stack().sum(0) if "outermost reads" in does else value)
        return value

    return run(2, ZERO, outermost), out.stack()


CASES: list[tuple[str, ...]] = [
    ("innermost writes", "outermost reads"),
    ("innermost reads", "innermost writes"),
    ("begins", "innermost reads", "innermost writes", "outermost reads"),
    ("middle writes first", "innermost reads", "innermost writes"),
    ("middle reads", "innermost writes"),
    ("innermost reads", "middle writes"),
    ("begins", "innermost reads", "middle writes"),
    ("begins", "middle asks for all", "middle writes"),
    ("begins", "middle asks for all", "innermost writes"),
]


@pytest.mark.parametrize("backend", ["eager", "naive"])
@pytest.mark.parametrize("does", CASES, ids=", ".join)
def test_what_a_turn_wrote_is_read_in_the_next(does: tuple[str, ...], backend: Any) -> None:
    stepnet.set_backend(backend)
    x = torch.randn(2, 2, 2, 2, dtype=DTYPE, requires_grad=True)
    results = []
    for run in (as_frame, by_hand):
        found = noted(run, x, does)
        results.append((*found, *torch.autograd.grad((found[0] ** 2 + found[1] ** 2).sum(), x)))
    torch.testing.assert_close(*results)
