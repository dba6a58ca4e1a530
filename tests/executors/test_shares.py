"""Sequences dealt to threads, and threads that split a step: the same numbers however the work is shared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, cells
from stepnet.engine import plans
from stepnet.executors.c import placement
from stepnet.executors.c.placement import Placements
from stepnet.executors.layout import Layout

OPTIMISED = False
LENGTHS = [3, 0, 7, 1, 6], [9], [], [2, 5]


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n} threads")
def threads(request):
    torch.set_num_threads(request.param)
    return request.param


@pytest.mark.covering(1)
@pytest.mark.parametrize("together", [False, True], ids=["shares", "together"])
@pytest.mark.parametrize(
    "kind", few([cells.LSTM, cells.LayerNormLSTM], [cells.LSTM]), ids=["LSTM", "LayerNormLSTM"]
)
def test_numbers_do_not_depend_on_how_work_is_shared(monkeypatch, threads, together, kind):
    def shared_out(self, layout, threads):
        return ("members", threads) if together and layout.sequences else (None, 1)

    monkeypatch.setattr(Placements, "shared_out", shared_out)
    monkeypatch.setattr(placement, "ALONE", 0)
    plans.forget()  # a scan remembers how it shared the work of a layout
    torch.manual_seed(0)
    cell = kind(5, 70, dtype=torch.float64)  # wider than one panel of columns
    for lengths in LENGTHS:
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), 5, dtype=torch.float64), [lengths])
        boot = tuple(torch.randn(len(lengths), 70, dtype=torch.float64) for _ in range(2))
        as_the_plain_loop(cell, wanting(x), wanting(boot), rtol=1e-10)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 5))
def test_sequences_are_dealt_fairly(lengths, shares):
    layout = Layout.ragged(torch.tensor([0, *lengths]).cumsum(0), False)
    dealt = layout.dealt(shares).tolist()
    assert sorted(dealt) == list(range(len(lengths)))
    each = [[lengths[b] for b in dealt[share::shares]] for share in range(shares)]
    assert all(own == sorted(own, reverse=True) for own in each)
    rows = [sum(own) for own in each]
    assert max(rows) - min(rows) <= max(lengths, default=0)


@pytest.mark.parametrize("shares", [1, 2, 3, 16])
def test_lengths_that_grow_evenly_are_dealt_in_equal_shares(shares):
    lengths = torch.arange(1, 4 * shares + 1)
    layout = Layout.ragged(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), False)
    assert layout.lengths[layout.dealt(shares)].view(4, shares).sum(0).unique().numel() == 1
