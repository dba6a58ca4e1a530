"""Calls by all threads or by one, whichever takes less."""

import itertools

import pytest
import torch
from torch import nn

from covering import few
from stepnet import LoDTensor, Recurrent, cells, recurrent
from stepnet.engine import plans
from stepnet.executors.c import placement
from stepnet.executors.c.placement import Placements
from stepnet.executors.c.thread_gain import Pace
from stepnet.executors.direct import Direct

OPTIMISED = False  # both ways run the same code


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


def test_long_calls_are_told_by_few_and_by_their_rows():
    pace = Pace()
    for rows in (10, 30, 20):
        assert pace.by_all
        pace.note(pace.takes_all(), rows * (10**6 if pace.takes_all() else 10**6 // 2), rows)
    assert not pace.by_all


class Diagonal(nn.Module):
    def __init__(self, size, _):
        super().__init__()
        self.kept, self.taken = nn.Parameter(torch.rand(size)), nn.Parameter(torch.rand(size))

    def forward(self, x, h):
        h = torch.tanh(self.kept * h + self.taken * x)
        return h, h

    def initial_state(self, n):
        return self.kept.new_zeros(n, *self.kept.shape)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.covering(1)
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize(
    ("cell", "sharing"),
    few(
        [(cells.MinGRU, "turns"), (Diagonal, "features"), (cells.LayerNormLSTM, "members")],
        [(cells.MinGRU, "turns"), (Diagonal, "features")],
    ),
    ids=["turns", "features", "members"],
)
def test_the_numbers_and_gradients_are_the_same(cell, sharing, sequences, monkeypatch):
    plans.forget()  # a scan remembers how it shared the work of a layout
    monkeypatch.setattr(placement, "FAR", 0)  # however small, weights that a step reads are far
    monkeypatch.setattr(placement, "ALONE", 0)
    torch.manual_seed(0)
    run, x = Recurrent(cell(96, 96)), torch.randn(150, sequences, 96, requires_grad=True)
    found, noted = [], []
    monkeypatch.setattr(Pace, "note", lambda self, by_all, time, rows: noted.append(by_all))
    shared, shared_out = set(), Placements.shared_out
    monkeypatch.setattr(
        Placements, "shared_out", lambda *given: (shared.add((how := shared_out(*given))[0]), how)[1]
    )
    for by_all in (True, False):
        monkeypatch.setattr(Pace, "takes_all", lambda self, by_all=by_all: by_all)
        noted.clear()
        y = run(x)[0]
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *run.parameters()])])
        assert set(noted) == {by_all}
    assert sharing in shared
    for by_threads, by_one in zip(*found, strict=True):
        assert torch.equal(by_threads, by_one)


@pytest.mark.usefixtures("two_threads")
def test_calls_by_places_have_a_pace(monkeypatch):
    monkeypatch.setattr(placement, "ALONE", 0)
    turns, forward = itertools.cycle([True, False, False]), Direct.forward
    noted, found = [], []
    monkeypatch.setattr(Pace, "takes_all", lambda self: next(turns))
    monkeypatch.setattr(Pace, "note", lambda self, by_all, *_: noted.append(by_all))
    monkeypatch.setattr(Direct, "forward", lambda *given: (found.append(out := forward(*given)), out)[1])
    step, others = cells.LSTM(4, 4), [[4, 4, 1], [6, 2, 2], [3, 3, 3]]
    for lengths in [*[[5, 3, 2]] * 7, *others * 3]:
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), 4), [lengths])
        with torch.no_grad():
            (y, final), (expected, last) = (recurrent(step, x, backend=b) for b in ("c", "naive"))
        torch.testing.assert_close((y.values, *final), (expected.values, *last))
    assert len(found) >= 9
    assert None not in found
    assert {*noted[-9:]} == {True, False}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("cell", "sharing"),
    [(cells.MinGRU, "turns"), (Diagonal, "features"), (cells.LSTM, "members")],
    ids=["turns", "features", "members"],
)
def test_trained_calls_by_places_have_a_pace(cell, sharing, monkeypatch):
    plans.forget()
    if sharing == "members":
        monkeypatch.setattr(placement, "FAR", 0)
        monkeypatch.setattr(placement, "MEMBER_BYTES", 1 << 10)
    monkeypatch.setattr(placement, "ALONE", 0)
    turns, gradients = itertools.cycle([True, False, False]), Direct.gradients
    noted, found, shared, shared_out = [], [], set(), Placements.shared_out
    monkeypatch.setattr(Pace, "takes_all", lambda self: next(turns))
    monkeypatch.setattr(Pace, "note", lambda self, by_all, *_: noted.append(by_all))
    monkeypatch.setattr(
        Direct, "gradients", lambda *given, **how: (found.append(out := gradients(*given, **how)), out)[1]
    )
    monkeypatch.setattr(
        Placements, "shared_out", lambda *given: (shared.add((how := shared_out(*given))[0]), how)[1]
    )
    torch.manual_seed(0)
    run, first = Recurrent(cell(96, 96)), {}
    for lengths in [*[(70, 9)] * 7, *[(66, 12), (80, 5), (70, 9)] * 4]:
        if lengths not in first:
            first[lengths] = torch.randn(sum(lengths), 96), None
        rows, expected = first[lengths]
        x = rows.clone().requires_grad_()
        y = run(LoDTensor.from_lengths(x, [lengths]))[0].values
        out = [y, *torch.autograd.grad(y.sin().sum(), [x, *run.parameters()])]
        if expected is None:
            first[lengths] = rows, [t.detach() for t in out]
        else:
            assert all(map(torch.equal, out, expected))
    assert len(found) > 9
    assert None not in found
    assert sharing in shared
    assert {*noted[-9:]} == {True, False}
