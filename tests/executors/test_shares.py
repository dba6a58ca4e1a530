"""Sequences dealt to threads, and threads that split a step: the same numbers however the work is shared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stepnet
from stepnet import LoDTensor, cells
from stepnet.engine import plans
from stepnet.executors.c import scan as c_scan
from stepnet.executors.c.scan import CScan
from stepnet.executors.layout import Layout

OPTIMISED = False
LENGTHS = {"ragged": [3, 0, 7, 1, 6], "one": [9], "none": [], "pair": [2, 5]}


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n} threads")
def threads(request):
    torch.set_num_threads(request.param)
    return request.param


@pytest.mark.covering(2)
@pytest.mark.parametrize("together", [False, True], ids=["shares", "together"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kind", [cells.LSTM, cells.LayerNormLSTM], ids=["LSTM", "LayerNormLSTM"])
def test_numbers_do_not_depend_on_how_work_is_shared(monkeypatch, threads, together, lengths, kind):
    def shared_out(self, layout, threads):
        return ("members", threads) if together and layout.sequences else (None, 1)

    monkeypatch.setattr(CScan, "shared_out", shared_out)
    monkeypatch.setattr(c_scan, "ALONE", 0)
    plans.forget()  # a scan remembers how it shared the work of a layout
    torch.manual_seed(0)
    cell = kind(5, 70, dtype=torch.float64)  # wider than one panel of columns
    rows = torch.randn(sum(lengths), 5, dtype=torch.float64, requires_grad=True)
    boot = [torch.randn(len(lengths), 70, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    found = {}
    for backend in ("naive", "c"):
        x = LoDTensor.from_lengths(rows, [lengths])
        y, final = stepnet.recurrent(cell, x, tuple(boot), backend=backend)
        loss = y.values.square().sum() + sum(s.cos().sum() for s in final)
        wanted = [rows, *boot, *cell.parameters()]
        found[backend] = [y.values, *final, *torch.autograd.grad(loss, wanted, allow_unused=True)]
    for plain, shared in zip(found["naive"], found["c"], strict=True):
        if plain is None:
            assert shared is None or not shared.any()
        else:
            torch.testing.assert_close(shared, plain, rtol=1e-10, atol=1e-10)


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
