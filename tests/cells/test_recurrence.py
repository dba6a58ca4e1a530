"""Every cell over ragged and dense sequences, against a loop by hand and torch.nn on a PackedSequence."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from cells.laws import CLOSE, DTYPE, LENGTHS, by_hand, check_autocast
from covering import few
from outcomes import gradients, tensors, wanting
from stepnet import cells, set_backend
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import by_leaf

FEATURES, HIDDEN = 2, 3
CELLS = {
    "RNN tanh": lambda: cells.RNN(FEATURES, HIDDEN, dtype=DTYPE),
    "RNN relu": lambda: cells.RNN(FEATURES, HIDDEN, nonlinearity="relu", dtype=DTYPE),
    "LSTM": lambda: cells.LSTM(FEATURES, HIDDEN, dtype=DTYPE),
    "GRU": lambda: cells.GRU(FEATURES, HIDDEN, dtype=DTYPE),
    "PeepholeLSTM": lambda: cells.PeepholeLSTM(FEATURES, HIDDEN, dtype=DTYPE),
    "LayerNormLSTM": lambda: cells.LayerNormLSTM(FEATURES, HIDDEN, dtype=DTYPE),
    "SLSTM": lambda: cells.SLSTM(FEATURES, HIDDEN, dtype=DTYPE),
    "MinGRU": lambda: cells.MinGRU(FEATURES, HIDDEN, dtype=DTYPE),
    "MinLSTM": lambda: cells.MinLSTM(FEATURES, HIDDEN, dtype=DTYPE),
}


def some_state(cell, n):
    """A state that a run could have: n of an sLSTM is above zero."""
    return by_leaf(lambda leaf: torch.rand_like(leaf) + 0.5, cell.initial_state(n))


@pytest.mark.covering(2)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("given", ["no h0", "h0 with grad", "h0 without grad"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", CELLS)
def test_ragged_equals_a_hand_loop(name, lengths, given, reverse):
    cell, n = CELLS[name](), len(lengths)
    values = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
    h0 = None if given == "no h0" else some_state(cell, n)
    if given == "h0 with grad":
        h0 = wanting(h0)
    inputs = [values, *cell.parameters(), *(tensors(h0) if given == "h0 with grad" else [])]

    y, final = recurrent(cell, LoDTensor.from_lengths(values, [lengths]), h0, reverse=reverse)
    assert y.lengths().tolist() == lengths
    start = cell.initial_state(n) if h0 is None else h0
    ys, expected = by_hand(cell, values.split(lengths) if n else (), start, reverse)

    for b in range(n):
        torch.testing.assert_close(y[b], ys[b], **CLOSE)
    torch.testing.assert_close(tensors(final), expected, **CLOSE)
    found = gradients([y.values, *tensors(final)], inputs)
    joined = torch.cat(ys) if n else y.values.detach()
    torch.testing.assert_close(found, gradients([joined, *expected], inputs), **CLOSE)
    if sum(lengths) and name != "RNN relu":  # its few units may all be off
        assert found[0].any()


@pytest.mark.parametrize("name", few(CELLS, ["LSTM", "GRU"]))
def test_compiled_equals_a_hand_loop(name):
    """The same step, whatever runs it: first on real sequences, then on what has no rows."""
    set_backend("auto")
    cell = CELLS[name]()
    for lengths, reverse in itertools.product(LENGTHS.values(), (False, True)):
        n = len(lengths)
        values = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
        h0 = some_state(cell, n)
        h0 = wanting(h0)
        inputs = [values, *cell.parameters(), *tensors(h0)]
        y, final = recurrent(cell, LoDTensor.from_lengths(values, [lengths]), h0, reverse=reverse)
        ys, expected = by_hand(cell, values.split(lengths) if n else (), h0, reverse)
        joined = torch.cat(ys) if n else y.values.detach()
        torch.testing.assert_close([y.values, *tensors(final)], [joined, *expected], **CLOSE)
        found = gradients([y.values, *tensors(final)], inputs)
        torch.testing.assert_close(found, gradients([joined, *expected], inputs), **CLOSE)


@pytest.mark.covering(2)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("axis", "n"), [(0, 2), (1, 3), (1, 1), (0, 0)])
@pytest.mark.parametrize("name", CELLS)
def test_dense_equals_a_hand_loop(name, axis, n, reverse):
    cell = CELLS[name]()
    shape = (4, n, FEATURES) if axis == 0 else (n, 4, FEATURES)
    x = torch.randn(shape, dtype=DTYPE, requires_grad=True)
    h0 = wanting(some_state(cell, n))
    inputs = [x, *tensors(h0), *cell.parameters()]

    y, final = recurrent(cell, x, h0, axis=axis, reverse=reverse)
    ys, expected = by_hand(cell, x.unbind(1 - axis), h0, reverse)
    joined = torch.stack(ys, 1 - axis) if n else y.detach()
    assert y.shape == (*shape[:2], HIDDEN)
    torch.testing.assert_close(y, joined, **CLOSE)
    torch.testing.assert_close(tensors(final), expected, **CLOSE)
    found = gradients([y, *tensors(final)], inputs)
    torch.testing.assert_close(found, gradients([joined, *expected], inputs), **CLOSE)


PEERS = {
    "LSTM": (cells.LSTM, nn.LSTM, {}),
    "GRU": (cells.GRU, nn.GRU, {}),
    "RNN tanh": (cells.RNN, nn.RNN, {}),
    "RNN relu": (cells.RNN, nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("lengths", [[3, 5, 1, 3], [1, 1], [4]], ids=str)
@pytest.mark.parametrize("given", ["no h0", "h0 with grad", "h0 without grad"])
@pytest.mark.parametrize("name", PEERS)
def test_ragged_equals_torch_on_a_packed_sequence(name, given, lengths):
    ours, theirs, options = PEERS[name]
    cell = ours(FEATURES, HIDDEN, **options, dtype=DTYPE)
    peer = theirs(FEATURES, HIDDEN, **options, dtype=DTYPE)
    peer.load_state_dict({f"{key}_l0": values for key, values in cell.state_dict().items()}, strict=True)
    values = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
    h0 = None if given == "no h0" else some_state(cell, len(lengths))
    if given == "h0 with grad":
        h0 = wanting(h0)
    inputs = [values, *(tensors(h0) if given == "h0 with grad" else [])]

    y, final = recurrent(cell, LoDTensor.from_lengths(values, [lengths]), h0)
    found = gradients([y.values, *tensors(final)], [*inputs, *cell.parameters()])

    packed = pack_sequence(values.split(lengths), enforce_sorted=False)
    hx = None if h0 is None else by_leaf(lambda leaf: leaf[None], h0)
    out, last = peer(packed, hx)
    rows = torch.cat(unpack_sequence(out))
    states = [leaf[0] for leaf in tensors(last)]
    expected = gradients([rows, *states], [*inputs, *peer.parameters()])

    torch.testing.assert_close(y.values, rows, **CLOSE)
    torch.testing.assert_close(tensors(final), states, **CLOSE)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("name", CELLS)
def test_under_autocast_the_state_keeps_its_dtype(name):
    check_autocast(CELLS[name]().float(), FEATURES, 0.03)
