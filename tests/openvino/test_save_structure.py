"""What a saved module looks like: hoisted products, recognised cells, and errors with the user's line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import check, layers, loops, types
from stepnet import cells
from stepnet.errors import IRError
from stepnet.openvino import load, save

BACKEND = "naive"


def _steps(t, b):
    return (torch.randn(t, b, 3),)


def test_the_product_of_x_stands_before_the_loop(tmp_path):
    model = check(stepnet.Recurrent(cells.PeepholeLSTM(3, 4)), _steps, tmp_path / "m.xml")
    outside = [layer.type for layer in layers(model)]
    (body,) = loops(model)
    assert outside.count("MatMul") == 1
    assert outside.index("MatMul") < outside.index("TensorIterator")
    assert types(body).count("MatMul") == 1  # of the state alone


def test_what_follows_from_the_state_stands_after_the_loop(tmp_path):
    weight = torch.randn(4, 5)

    def step(x, h):
        h = torch.tanh(torch.tanh(x) + 0.5 * h)
        return h @ weight, h

    model = check(
        stepnet.Recurrent(step), lambda t, b: (torch.randn(t, b, 4), torch.randn(b, 4)), tmp_path / "m.xml"
    )
    outside = [layer.type for layer in layers(model)]
    assert outside.index("Tanh") < outside.index("TensorIterator") < outside.index("MatMul")
    assert "MatMul" not in types(loops(model)[0])


def test_layer_normalisation_is_one_layer(tmp_path):
    model = check(stepnet.Recurrent(cells.LayerNormLSTM(3, 4)), _steps, tmp_path / "m.xml")
    (body,) = loops(model)
    assert types(body).count("MVN") == 2  # of h U and of c
    assert [layer.type for layer in layers(model)].count("MVN") == 1  # of x W


@pytest.mark.parametrize(
    ("cell", "expected"),
    few(
        [(cells.LSTM, "LSTMCell"), (cells.GRU, "GRUCell"), (cells.RNN, "RNNCell"), (nn.GRUCell, "GRUCell")],
        [(cells.GRU, "GRUCell")],
    ),
)
def test_a_known_cell_is_one_layer_between_reshapes(cell, expected, tmp_path):
    model = check(stepnet.Recurrent(cell(3, 4)), _steps, tmp_path / "m.xml")
    (body,) = loops(model)
    assert types(body) == ["Squeeze", expected, "Unsqueeze"]  # the form that OpenVINO fuses
    assert "MatMul" not in [layer.type for layer in layers(model)]


def _own_lstm():
    weight, bias = torch.randn(7, 16), torch.randn(16)

    def step(x, state):
        h, c = state
        o, f, g, i = (torch.cat([h, x], -1) @ weight + bias).split(4, -1)
        c = torch.tanh(g) * torch.sigmoid(i) + c * torch.sigmoid(f)
        h = torch.tanh(c) * torch.sigmoid(o)
        return h, (h, c)

    return step, 2


def _own_gru_after_reset():
    w = [torch.randn(7, 4) for _ in range(3)]

    def step(x, h):
        z, r = (torch.sigmoid(torch.cat([x, h], -1) @ v) for v in w[:2])
        n = torch.tanh(torch.cat([x, r * h], -1) @ w[2])
        return h + z * (n - h), h + z * (n - h)

    return step, 1


def _own_rnn_of_two_inputs_made_before():
    w, u, v = torch.randn(3, 4), torch.randn(4, 4), torch.randn(3, 4)

    def step(x, h):
        h = torch.relu(torch.sin(x) @ w + x @ v - h @ u)
        return h, h

    return step, 1


@pytest.mark.parametrize(
    ("make", "expected"),
    few(
        [
            (_own_lstm, "LSTMCell"),
            (_own_gru_after_reset, "GRUCell"),
            (_own_rnn_of_two_inputs_made_before, "RNNCell"),
        ],
        [(_own_gru_after_reset, "GRUCell")],
    ),
)
def test_a_cell_is_recognised_by_its_form(make, expected, tmp_path):
    step, states = make()

    def inputs(t, b):
        state = tuple(torch.randn(b, 4) for _ in range(states))
        return torch.randn(t, b, 3), state if states > 1 else state[0]

    model = check(stepnet.Recurrent(step), inputs, tmp_path / "m.xml")
    assert types(loops(model)[0]) == ["Squeeze", expected, "Unsqueeze"]


def test_a_cell_that_only_looks_like_one_is_not_recognised(tmp_path):
    weight = torch.randn(7, 16)

    def step(x, state):  # the output gate looks at tanh of the old c
        h, c = state
        i, f, g, o = (torch.cat([x, h], -1) @ weight).chunk(4, -1)
        new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, new)

    model = check(
        stepnet.Recurrent(step),
        lambda t, b: (torch.randn(t, b, 3), (torch.randn(b, 4), torch.randn(b, 4))),
        tmp_path / "m.xml",
    )
    assert "LSTMCell" not in types(loops(model)[0])


def test_a_step_that_cannot_be_cut_is_written_whole(tmp_path):
    def step(x, s):
        s = torch.tanh(s + x - x.mean(0, keepdim=True))
        return s * 2, s

    module = stepnet.Recurrent(step, backend="naive")
    model = check(module, lambda t, b: (torch.randn(t, b, 4), torch.randn(b, 4)), tmp_path / "m.xml")
    assert "ReduceMean" in types(loops(model)[0])


def test_a_call_without_a_layer_is_an_error_that_names_it_and_its_line(tmp_path):
    def step(x, s):
        s = s + x
        q = torch.linalg.qr(s.unsqueeze(1)).R.squeeze(1)
        return q, s

    line = inspect.getsourcelines(step)[1] + 2
    with pytest.raises(IRError, match=rf"linalg_qr.*test_save_structure.py:{line}"):
        save(
            stepnet.Recurrent(step, backend="naive"), tmp_path / "m.xml",
            (torch.randn(4, 3, 4), torch.randn(3, 4)),
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_call_outside_of_steps_names_its_line_too(tmp_path):
    class Module(nn.Module):
        def forward(self, x):
            return torch.linalg.matrix_exp(x)

    line = inspect.getsourcelines(Module.forward)[1] + 1
    with pytest.raises(IRError, match=rf"linalg_matrix_exp.*test_save_structure.py:{line}"):
        save(Module(), tmp_path / "m.xml", torch.randn(5, 3, 3))


def test_noise_is_refused(tmp_path):
    module = stepnet.Recurrent(cells.Zoneout(cells.LSTM(3, 4), 0.2)).train()
    with pytest.raises(IRError, match="cannot be written"):
        save(module, tmp_path / "m.xml", torch.randn(4, 3, 3))


def test_an_example_of_one_step_says_what_it_lacks(tmp_path):
    with pytest.raises(IRError, match="at least 2 steps"):
        save(stepnet.Recurrent(cells.GRU(3, 4)), tmp_path / "m.xml", torch.randn(1, 3, 3))


def test_sizes_that_are_left_out_of_dynamic_are_fixed(tmp_path):
    module = stepnet.Recurrent(cells.GRU(3, 4))
    save(module, tmp_path / "m.xml", torch.randn(4, 2, 3), dynamic={"x": (0,)})
    model = load(tmp_path / "m.xml")
    assert model.inputs[0].shape == (-1, 2, 3)
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(model(x)[0], module(x)[0])


def test_dynamic_of_an_unknown_input_is_an_error(tmp_path):
    with pytest.raises(IRError, match="no input 'tokens'"):
        save(
            stepnet.Recurrent(cells.GRU(3, 4)), tmp_path / "m.xml", torch.randn(4, 2, 3),
            dynamic={"tokens": (0,)},
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_layers_are_refused(tmp_path):
    part = torch.ao.nn.quantized.dynamic.Linear(3, 4)
    with pytest.raises(IRError, match=r"'1' is quantised\n.*quantized.*Linear\n.*\n  remedy: .*before it is"):
        save(torch.nn.Sequential(torch.nn.ReLU(), part), tmp_path / "m.xml", (torch.ones(2, 3),))
