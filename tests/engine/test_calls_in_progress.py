"""Steps that collect what they give, called from several threads at once."""

from __future__ import annotations

import threading

import pytest
import torch

from stepnet import recurrent
from stepnet.engine import plans, refused_steps
from stepnet.engine.calls_in_progress import call_of, is_called_elsewhere
from threads import at_once


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("known", [False, True])
def test_nothing_that_threads_collect_is_lost(known):
    weight, log = torch.randn(3, 3), []

    def step(x, h):
        h = torch.tanh(x @ weight + h)
        log.append(h)
        return h, h

    x, h = torch.randn(4, 2, 3), torch.zeros(2, 3)
    if known:
        recurrent(step, x, h)
        log.clear()

    def work(_):
        return [recurrent(step, x, h)[0] for _ in range(3)]

    wanted = recurrent(step, x, h, backend="naive")[0]
    del log[:]
    for given in at_once(work, 3):
        for y in given:
            torch.testing.assert_close(y, wanted)
    assert [t.shape for t in log] == [(2, 3)] * 4 * 3 * 3


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_a_step_that_rests_waits_for_a_trial(monkeypatch):
    monkeypatch.setattr(refused_steps, "_LONG", 0.0)
    log = []

    def step(x, h):
        log.append(h)
        return h, torch.tanh(x + h)

    def call():
        recurrent(step, torch.ones(4, 2, 3), torch.zeros(2, 3))

    call(), call()
    assert refused_steps.rests(step)
    del log[:]
    other = threading.Thread(target=call)
    with plans._lock:  # as a trial does
        other.start()
        other.join(0.05)
        assert not log
    other.join()
    assert len(log) == 4


def test_a_call_is_seen_from_other_threads_alone():
    def step():
        raise NotImplementedError

    inside, done = threading.Event(), threading.Event()

    def call():
        with call_of(step):
            inside.set()
            done.wait(60)

    other = threading.Thread(target=call)
    other.start()
    inside.wait(60)
    with call_of(step):
        assert is_called_elsewhere(step)
        assert not is_called_elsewhere(call)
    done.set()
    other.join()
    with call_of(step), call_of(call):
        assert not is_called_elsewhere(step)
