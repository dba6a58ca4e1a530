"""Short calls by all threads or by one, whichever takes less."""

import pytest
import torch

import stepnet
from stepnet.executors.c.pace import Pace


def calls(pace, times, count):
    """Which calls went by all threads, for the times of calls by all and by one."""
    went = []
    for _ in range(count):
        went.append(pace.takes_all())
        pace.note(went[-1], times[went[-1]])
    return went


def test_what_takes_less_is_taken():
    pace = Pace()
    calls(pace, {True: 200, False: 100}, 200)
    went = calls(pace, {True: 200, False: 100}, 1000)
    assert went.count(False) > 950
    went = calls(pace, {True: 50, False: 100}, 20_000)
    assert went[-1000:].count(True) > 950


def test_a_call_that_waits_is_noticed_at_once():
    pace = Pace()
    calls(pace, {True: 100, False: 150}, 2000)
    while not pace.takes_all():
        pace.note(False, 150)
    pace.note(True, 20_000)
    assert not pace.takes_all()
    assert calls(pace, {True: 20_000, False: 150}, 4000).count(True) < 40


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("cell", [stepnet.cells.MinGRU, stepnet.cells.LayerNormLSTM])
def test_the_numbers_are_the_same(cell, sequences, monkeypatch):
    run, x = stepnet.Recurrent(cell(96, 96)), torch.randn(40, sequences, 96)
    found = []
    with torch.no_grad():
        run(x)
        for by_all in (True, False):
            noted = []
            monkeypatch.setattr(Pace, "takes_all", lambda self, by_all=by_all: by_all)
            monkeypatch.setattr(Pace, "note", lambda self, by_all, time, noted=noted: noted.append(by_all))
            found.append(run(x)[0])
            assert noted == [by_all]
    assert torch.equal(*found)
