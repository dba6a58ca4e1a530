"""What a handler of a signal raises is the caller's, wherever it comes, and the next call runs as ever."""

from __future__ import annotations

import signal

import pytest
import torch

import stepnet.engine.executor_choice as choosing
import stepnet.engine.make as making
import stepnet.engine.trial as trying
import stepnet.executors.c.build as building
from outcomes import as_the_plain_loop
from stepnet import recurrent

PLANS_ON_DISK = False  # each step is made and built in its test
BACKEND = "auto"

PLACES = {
    "as it is tried": (trying, "iteration", RuntimeError),
    "as it is traced": (making, "compile_loop", ValueError),
    "as C is compiled": (building, "_run", TimeoutError),  # an OSError
    "as it is checked": (choosing, "self_check", RuntimeError),
}


@pytest.fixture
def late():
    """A kind of error to be raised by the next signal."""
    kinds = []

    def handler(*_):
        raise kinds.pop()("late")

    before = signal.signal(signal.SIGUSR1, handler)
    yield kinds.append
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("place", PLACES)
def test_an_error_while_a_plan_is_made(place, late, monkeypatch):
    module, name, kind = PLACES[place]
    original, gain = getattr(module, name), 1.0 + 0.1 * list(PLACES).index(place)

    def interrupted(*args, **how):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return original(*args, **how)

    def step(x, h):
        h = torch.tanh(gain * x + h)
        return h, h

    x, h = torch.randn(3, 2, 4, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)
    late(kind)
    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(kind, match="late"):
        recurrent(step, x, h)
    as_the_plain_loop(step, x, h, "c")


@pytest.mark.parametrize(
    ("backend", "kind"), [("naive", RuntimeError), ("auto", SystemExit), ("auto", KeyboardInterrupt)]
)
def test_an_error_while_a_step_runs(backend, kind, late):
    """By the plain loop; and on sample rows, where what a step raises to end the program does not."""

    def step(x, h):
        signal.raise_signal(signal.SIGUSR1)
        return x, h

    late(kind)
    with pytest.raises(kind, match="late"):
        recurrent(step, torch.ones(3, 2, 4), torch.zeros(2, 4), backend=backend)
