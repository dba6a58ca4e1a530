"""What runs on all rows at once leaves the cache: where that may cost more than the loop, it is timed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepnet import explain, recurrent
from stepnet.engine import executor_choice, plans
from stepnet.executors.naive import PLAIN
from stepnet.report.explanation import Explanation

TIMED = True  # by the clock that each test sets
BACKEND = "auto"
LINES, WIDTH = 64, 16


@pytest.fixture
def clock(monkeypatch):
    """Sets how long each way takes, and returns the names of what was timed."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr("stepnet.executors.plan_files.read", kept.get)
    monkeypatch.setattr("stepnet.executors.plan_files.write", kept.__setitem__)
    go = executor_choice.Race.go

    def set_to(**seconds):
        timed: list[str] = []

        def told(race, rounds, of=()):
            for name in of or race.ways:
                timed.append(name)
                monkeypatch.setattr(executor_choice, "stopwatch", lambda call, name=name: seconds[name])
                go(race, rounds, [name])

        monkeypatch.setattr(executor_choice.Race, "go", told)
        return timed

    plans.forget()
    yield set_to
    plans.forget()


class Window(nn.Module):
    """A state of the last lines, by which only `seen` is made of each row."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x, lines):
        lines = torch.cat([lines[:, 1:], x[:, None]], 1)
        return self.seen(lines), lines


def attention(lines):
    return (lines @ lines.mT).softmax(-1) @ lines


def in_order(lines):
    return lines.flatten(1).sort(1).values


def of_pairs(lines):
    return torch.einsum("blk,bmk->blm", lines, lines).amax(-1)


WAYS = [attention, in_order, of_pairs]


def rows(sequences):
    return torch.randn(5, sequences, WIDTH, requires_grad=True), torch.zeros(sequences, LINES, WIDTH)


def told_of(step, *given) -> Explanation:
    told = explain(step, *given)
    assert isinstance(told, Explanation)
    return told


@pytest.mark.parametrize("seen", WAYS)
@pytest.mark.parametrize("trains", [False, True])
def test_maps_that_leave_the_cache_are_timed(clock, seen, trains):
    timed, step, given = clock(c=3.0, naive=1.0, eager=2.0), Window(seen), rows(32)
    with torch.set_grad_enabled(trains):
        assert told_of(step, *given).executor == PLAIN.name
        once = len(timed)
        assert once
        torch.testing.assert_close(recurrent(step, *given), recurrent(step, *given, backend="naive"))
    assert len(timed) == once


def test_calls_with_and_without_gradients_have_a_choice_each(clock):
    step, given = Window(attention), rows(32)
    clock(c=1.0, naive=3.0)
    assert told_of(step, *given).executor == "c"
    clock(c=3.0, naive=1.0, eager=2.0)
    with torch.no_grad():
        assert told_of(step, *given).executor == PLAIN.name
    assert told_of(step, *given).executor == "c"


class Head(nn.Module):
    """A product of vectors with a weight, which is as fast on all rows at once, whatever it writes."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 4096, bias=False)

    def forward(self, x, h):
        h = torch.tanh(x + h)
        return self.head(h), h


@pytest.mark.parametrize(
    ("step", "boot"), [(Window(lambda lines: lines[:, :8].mean(1).exp()), (LINES, WIDTH)), (Head(), (WIDTH,))]
)
def test_small_maps_and_products_with_weights_are_not(clock, step, boot):
    timed = clock()
    with torch.no_grad():
        assert told_of(step, torch.randn(5, 2, WIDTH), torch.zeros(2, *boot)).executor == "c"
    assert timed == []
