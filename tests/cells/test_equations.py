"""One step of each cell against torch.nn's cells, or against its paper's formula written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from covering import every
from outcomes import tensors
from stepnet import cells
from stepnet.data.tree import by_leaf, flatten, unflatten
from stepnet.errors import StepError

ROWS, FEATURES, HIDDEN = 3, 2, 5
DTYPE = torch.float64

FROM_TORCH = {
    "RNN tanh": (cells.RNN, nn.RNNCell, {}),
    "RNN relu": (cells.RNN, nn.RNNCell, {"nonlinearity": "relu"}),
    "LSTM": (cells.LSTM, nn.LSTMCell, {}),
    "GRU": (cells.GRU, nn.GRUCell, {}),
}
ALL = {
    "RNN": cells.RNN,
    "LSTM": cells.LSTM,
    "GRU": cells.GRU,
    "PeepholeLSTM": cells.PeepholeLSTM,
    "LayerNormLSTM": cells.LayerNormLSTM,
    "SLSTM": cells.SLSTM,
    "MinGRU": cells.MinGRU,
    "MinLSTM": cells.MinLSTM,
}
WITHOUT_RECURRENT_WEIGHTS = ("MinGRU", "MinLSTM")


def some_state(cell, n=ROWS):
    """A state that a run could have: n of an sLSTM is positive."""
    state = by_leaf(torch.randn_like, cell.initial_state(n))
    if isinstance(cell, cells.SLSTM):
        h, c, n, m = state
        return h, c, n.abs() + 0.5, m
    return state


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", FROM_TORCH)
def test_equals_torch(name, bias):
    ours, theirs, options = FROM_TORCH[name]
    cell = ours(FEATURES, HIDDEN, bias, **options, dtype=DTYPE)
    peer = theirs(FEATURES, HIDDEN, bias, **options, dtype=DTYPE)
    peer.load_state_dict(cell.state_dict(), strict=True)
    x, state = torch.randn(ROWS, FEATURES, dtype=DTYPE), some_state(cell)
    weights = [torch.randn(ROWS, HIDDEN, dtype=DTYPE) for _ in tensors(state)]

    def run(step, parameters):
        inputs = [v.clone().requires_grad_() for v in (x, *tensors(state))]
        new = tensors(step(inputs[0], unflatten(flatten(state)[1], inputs[1:])))
        loss = sum((v * w).sum() for v, w in zip(new, weights, strict=True))
        return new, torch.autograd.grad(loss, [*inputs, *parameters])

    y, _ = cell(x, state)
    found, gradients = run(lambda x, s: cell(x, s)[1], list(cell.parameters()))
    expected, peers = run(peer, list(peer.parameters()))
    torch.testing.assert_close(y, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, peers, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FROM_TORCH)
def test_is_initialised_as_torch(name):
    ours, theirs, options = FROM_TORCH[name]
    torch.manual_seed(5)
    peer = theirs(FEATURES, HIDDEN, **options)
    torch.manual_seed(5)
    cell = ours(FEATURES, HIDDEN, **options)
    assert list(cell.state_dict()) == list(peer.state_dict())
    for key, values in peer.state_dict().items():
        assert torch.equal(cell.state_dict()[key], values), key


@pytest.mark.parametrize("name", FROM_TORCH)
def test_loads_what_torch_saved(name):
    ours, theirs, options = FROM_TORCH[name]
    cell, peer = ours(FEATURES, HIDDEN, **options), theirs(FEATURES, HIDDEN, **options)
    cell.load_state_dict(peer.state_dict(), strict=True)
    x, state = torch.randn(ROWS, FEATURES), some_state(cell)
    torch.testing.assert_close(tensors(cell(x, state)[1]), tensors(peer(x, state)))


# The formulas of the papers, one row at a time.


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def norm(v, p, name):
    scaled = (v - v.mean()) / np.sqrt(((v - v.mean()) ** 2).mean() + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def gate(p, k, x, h):
    rows = slice(k * HIDDEN, (k + 1) * HIDDEN)
    return p["weight_ih"][rows] @ x + p["bias_ih"][rows] + p["weight_hh"][rows] @ h + p["bias_hh"][rows]


def peephole(p, x, h, c):
    w = p["weight_c"].reshape(3, HIDDEN)
    i = sigmoid(gate(p, 0, x, h) + w[0] * c)
    f = sigmoid(gate(p, 1, x, h) + w[1] * c)
    c = f * c + i * np.tanh(gate(p, 2, x, h))
    h = sigmoid(gate(p, 3, x, h) + w[2] * c) * np.tanh(c)
    return h, c


def layer_norm(p, x, h, c):
    gates = norm(p["weight_ih"] @ x, p, "norm_ih") + norm(p["weight_hh"] @ h, p, "norm_hh")
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(norm(c, p, "norm_c")), c


def slstm(p, x, h, c, n, m):
    """Without the stabiliser: c and n as they are, not divided by exp(m)."""
    i, f = np.exp(gate(p, 0, x, h)), sigmoid(gate(p, 1, x, h))
    z, o = np.tanh(gate(p, 2, x, h)), sigmoid(gate(p, 3, x, h))
    c = f * c * np.exp(m) + i * z
    n = f * n * np.exp(m) + i
    return o * c / n, c, n


def min_gru(p, x, h):
    z, n = np.split(p["weight_ih"] @ x + p["bias_ih"], 2)
    return ((1 - sigmoid(z)) * h + sigmoid(z) * n,)


def min_lstm(p, x, h):
    f, i, n = np.split(p["weight_ih"] @ x + p["bias_ih"], 3)
    f, i = sigmoid(f), sigmoid(i)
    return (f / (f + i) * h + i / (f + i) * n,)


FORMULAS = {
    "PeepholeLSTM": peephole,
    "LayerNormLSTM": layer_norm,
    "SLSTM": slstm,
    "MinGRU": min_gru,
    "MinLSTM": min_lstm,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_equals_the_formula(name):
    cell = ALL[name](FEATURES, HIDDEN, dtype=DTYPE)
    for values in cell.parameters():  # norms start at one and zero, which would hide mistakes
        nn.init.normal_(values)
    x, state = torch.randn(ROWS, FEATURES, dtype=DTYPE), some_state(cell)
    y, new = cell(x, state)
    found = tensors(new)
    if name == "SLSTM":
        h, c, n, m = found
        found = [h, c * m.exp(), n * m.exp()]
    p = {key: values.numpy() for key, values in cell.state_dict().items()}
    rows = [FORMULAS[name](p, x[b].numpy(), *(s[b].numpy() for s in tensors(state))) for b in range(ROWS)]
    expected = [torch.tensor(np.stack(column)) for column in zip(*rows, strict=True)]
    torch.testing.assert_close([v.detach() for v in found], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(y, tensors(new)[0])


def test_min_lstm_stays_finite_where_both_gates_vanish():
    cell = cells.MinLSTM(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[1.0], [1.0], [0.5]]))
    x = torch.tensor([[-1000.0]], requires_grad=True)
    h, _ = cell(x, torch.tensor([[2.0]]))
    torch.testing.assert_close(h, torch.tensor([[0.5 * 2.0 + 0.5 * -500.0]]))
    h.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_slstm_stays_finite_where_the_formula_overflows():
    cell = cells.SLSTM(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[1.0], [1.0], [1.0], [1.0]]))
        cell.weight_hh.zero_()
    h, state = None, cell.initial_state(1)
    for value in (500.0, -500.0, 300.0):  # exp(500) is no float32
        h, state = cell(torch.tensor([[value]]), state)
        assert all(torch.isfinite(leaf).all() for leaf in state)
    # At 300 the input gate stands e^300 over the faded past: c / n = tanh(300) = 1.
    torch.testing.assert_close(h, torch.ones(1, 1))


def test_slstm_forgets_nothing_seen():
    cell = cells.SLSTM(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[-1.0], [0.0], [1.0], [0.0]]))
    h, (_, _, n, m) = cell(torch.tensor([[300.0]]), cell.initial_state(1))
    torch.testing.assert_close(
        (h, n, m), (torch.full((1, 1), 0.5), torch.ones(1, 1), torch.full((1, 1), -300.0))
    )


@pytest.mark.parametrize("name", every(2, ALL))
def test_gradcheck(name):
    cell = ALL[name](1, 2, dtype=DTYPE)
    parameters = dict(cell.named_parameters())
    state = some_state(cell, 2)

    def step(x, *values):
        given = unflatten(flatten(state)[1], values[: len(tensors(state))])
        named = dict(zip(parameters, values[len(tensors(state)) :], strict=True))
        y, new = functional_call(cell, named, (x, given))
        return (y, *tensors(new))

    inputs = [torch.randn(2, 1, dtype=DTYPE), *tensors(state), *parameters.values()]
    assert torch.autograd.gradcheck(step, [v.detach().requires_grad_() for v in inputs])


@pytest.mark.parametrize("name", ALL)
def test_initial_state_fits_its_cell(name):
    cell = ALL[name](FEATURES, HIDDEN, dtype=DTYPE)
    for n in (0, 1, 4):
        state = cell.initial_state(n)
        _, new = cell(torch.zeros(n, FEATURES, dtype=DTYPE), state)
        assert [(v.shape, v.dtype) for v in tensors(new)] == [(v.shape, v.dtype) for v in tensors(state)]
        assert all(v.shape == (n, HIDDEN) for v in tensors(state))
        assert not any(v.requires_grad for v in tensors(state))


@pytest.mark.parametrize("name", ALL)
def test_without_bias_no_bias(name):
    cell = ALL[name](FEATURES, HIDDEN, bias=False)
    assert not [key for key in cell.state_dict() if "bias" in key]
    y, _ = cell(torch.randn(ROWS, FEATURES), some_state(cell))
    assert y.shape == (ROWS, HIDDEN)
    assert "bias=False" in repr(cell)


@pytest.mark.parametrize("name", ALL)
def test_the_device_and_dtype_are_taken(name):
    cell = ALL[name](FEATURES, HIDDEN, device="meta", dtype=DTYPE)
    assert {(v.device.type, v.dtype) for v in cell.parameters()} == {("meta", DTYPE)}


@pytest.mark.parametrize("name", ALL)
def test_reset_draws_within_the_bound(name):
    cell = ALL[name](4, 25)
    for values in cell.parameters():
        nn.init.constant_(values, 7.0)
    cell.reset_parameters()
    bound = 1 / 2 if name in WITHOUT_RECURRENT_WEIGHTS else 1 / 5
    for key, values in cell.named_parameters():
        if key.startswith("norm"):
            assert torch.equal(values, torch.full_like(values, float(key.endswith("weight"))))
        else:
            assert 0.7 * bound < values.max() <= bound, key
            assert -bound <= values.min() < -0.7 * bound, key


@pytest.mark.parametrize("name", [n for n in ALL if n not in WITHOUT_RECURRENT_WEIGHTS])
def test_mask_changes_only_what_the_recurrent_weights_see(name):
    """With weight_hh of zero, h meets no weight, so a mask of zeros must change nothing."""
    cell = ALL[name](FEATURES, HIDDEN, dtype=DTYPE)
    x, state = torch.randn(ROWS, FEATURES, dtype=DTYPE), some_state(cell)
    nothing = torch.zeros(ROWS, HIDDEN, dtype=DTYPE)
    assert not torch.allclose(cell(x, state)[0], cell(x, state, nothing)[0])
    with torch.no_grad():
        cell.weight_hh.zero_()
    assert torch.equal(cell(x, state)[0], cell(x, state, nothing)[0])


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None], ids=repr)
def test_a_size_must_be_a_positive_whole_number(size):
    with pytest.raises(StepError, match="LSTM 'input_size' must be a positive whole number"):
        cells.LSTM(size, 3)
    with pytest.raises(StepError, match="GRU 'hidden_size' must be a positive whole number"):
        cells.GRU(3, size)


def test_a_nonlinearity_must_be_known():
    with pytest.raises(StepError, match="'tanh', 'relu'"):
        cells.RNN(2, 3, nonlinearity="sine")
