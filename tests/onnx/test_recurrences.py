"""Recurrences in ONNX files compute the same in ONNX Runtime, at other lengths and batch sizes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import stepnet
from covering import every, few
from saved_modules import plain_loops
from stepnet import BackEdge, InputPort, LoDTensor, OutputPort, TensorIterator, cells
from stepnet.data.tree import flatten
from stepnet.errors import IRError

BACKEND = "auto"
CELLS = ["LSTM", "GRU", "RNN", "LayerNormLSTM", "PeepholeLSTM", "MinGRU", "SLSTM"]
WRAPPED = {
    "Zoneout": lambda: cells.Zoneout(cells.LSTM(3, 4), 0.2),
    "AllStates": lambda: cells.AllStates(cells.LSTM(3, 4)),
    "LearnedInitialState": lambda: cells.LearnedInitialState(cells.GRU(3, 4)),
    "RNN relu": lambda: cells.RNN(3, 4, nonlinearity="relu"),
    "torch LSTMCell": lambda: nn.LSTMCell(3, 4),
    "torch GRUCell": lambda: nn.GRUCell(3, 4),
}
KNOWN = ("LSTM", "GRU", "RNN")


def rows(lengths, features=3):
    return LoDTensor.from_lengths(torch.randn(sum(lengths), features), [lengths])


def loops(written):
    return [kind for kind in written.types if kind in (*KNOWN, "Scan", "Loop")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", few(CELLS, ["LSTM", "RNN"]))
def test_a_cell(name, reverse, check):
    module = stepnet.Recurrent(getattr(cells, name)(3, 4), reverse=reverse)
    written = check(module, lambda t, b: (torch.randn(t, b, 3),))
    assert loops(written) == [name if name in KNOWN else "Scan"]


OF_TORCH = {
    "layers in both directions": (lambda: nn.LSTM(3, 4, 2, dropout=0.5, bidirectional=True), ["LSTM"] * 4),
    "batch first": (lambda: nn.GRU(3, 4, batch_first=True), ["GRU"]),
    "relu, no biases": (lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), ["RNN"]),
    "projected": (lambda: nn.LSTM(3, 4, proj_size=2), ["Scan"]),
    "among others": (lambda: nn.Sequential(nn.Linear(3, 5), nn.RNN(5, 4)), ["RNN"]),
}


@pytest.mark.parametrize("name", few(OF_TORCH, ["layers in both directions", "projected"]))
def test_modules_of_torch_are_recurrences_of_any_length(name, check):
    make, kinds = OF_TORCH[name]
    assert loops(check(make().eval(), lambda t, b: (torch.randn(t, b, 3),))) == kinds


def test_modules_of_torch_take_no_ragged_sequences(tmp_path):
    with pytest.raises(
        IRError, match=r"torch\.nn\.GRU cannot be written over seq(?s:.)*stepnet\.nn\.GRU, which"
    ):
        stepnet.onnx.save(nn.GRU(3, 4), tmp_path / "m.onnx", rows([3, 2]))


@pytest.mark.parametrize("reverse", few([False, True], [False]))
def test_resets_of_ragged_sequences(reverse, check_ragged):
    class Episodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cells.LSTM(3, 4)

        def forward(self, x, first):
            return stepnet.recurrent(self.cell, x, resets=first, reverse=reverse)

    def make(lengths):
        x = rows(lengths)
        return x, x.with_values(torch.rand(len(x.values)) > 0.5)

    written = check_ragged(Episodes(), make)
    assert written.inputs == ["x", "first", "lengths"]


def test_a_softplus_is_one_op_where_no_exp_overflows(check):
    softplus, log_sigmoid = nn.functional.softplus, nn.functional.logsigmoid

    def step(x, h):
        h = softplus(0.5 * h) - log_sigmoid(x) + softplus(x, beta=2.0) - torch.log1p(torch.exp(h))
        return h, h

    class Steps(nn.Module):
        def forward(self, x):
            return stepnet.recurrent(step, x, x[0])[0]

    written = check(Steps(), lambda t, b: (torch.linspace(-60.0, 60.0, t * b * 3).reshape(t, b, 3),))
    ops = [*written.types, *(op for body in written.bodies for op in body)]
    assert [ops.count(op) for op in ("Softplus", "Atanh")] == [2, 2]


def test_a_softmax_is_one_op_by_what_it_computes(check):
    def step(x, h):
        e = torch.exp(h - h.amax(1, keepdim=True))
        h = (90 * h - x).softmax(-1) + e / e.sum(1, keepdim=True) + e / e.sum(2, keepdim=True)
        return h, h

    class Steps(nn.Module):
        def forward(self, x):
            return stepnet.recurrent(step, x, x[0])[0]

    written = check(Steps(), lambda t, b: (torch.randn(t, b, 2, 3),))
    (body,) = written.bodies
    assert [[*body].count(op) for op in ("Softmax", "ReduceMax")] == [2, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("masked", [False, True])
def test_a_memory_of_any_length(masked, check):
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cells.GRU(7, 4)

        def forward(self, x, memory, n, h):
            inside = torch.arange(memory.shape[1])[None] < n[:, None]

            def step(x, h):
                score = (memory * h[:, None]).sum(-1)
                score = (score.masked_fill(~inside, -torch.inf) if masked else score).softmax(-1)
                return self.cell(torch.cat([x, (score[..., None] * memory).sum(1)], -1), h)

            return stepnet.recurrent(step, x, h)

    check(
        Decoder(),
        lambda t, b: (torch.randn(t, b, 3), torch.randn(b, t + 2, 4), torch.arange(b) + 1, torch.randn(b, 4)),
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [("LSTM", 4, 4), ("MinGRU", 4, 4), pytest.param(("RWKVTimeMix", 4), marks=pytest.mark.exhaustive)],
    ids=lambda s: s[0],
)
def test_no_steps(sizes, reverse, tmp_path):
    """What is read gives no rows, and the state that it was given."""
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    cell = getattr(cells, sizes[0])(*sizes[1:])
    module = stepnet.Recurrent(cell, reverse=reverse, axis=int(reverse)).eval()
    stepnet.onnx.save(module, tmp_path / "m.onnx", torch.randn(3, 2, 4))
    x = torch.randn((2, 0, 4) if reverse else (0, 2, 4))
    with torch.no_grad(), plain_loops():
        found, expected = stepnet.onnx.load(tmp_path / "m.onnx")(x), flatten(module(x))[0]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", few(WRAPPED, ["Zoneout"]))
def test_a_cell_of_another_make(name, check):
    check(stepnet.Recurrent(WRAPPED[name](), axis=1), lambda t, b: (torch.randn(b, t, 3),))


def test_in_double_precision_a_known_cell_is_a_loop(check):
    module = stepnet.Recurrent(cells.LSTM(3, 4)).double()
    written = check(module, lambda t, b: (torch.randn(t, b, 3, dtype=torch.float64),), tolerance=1e-12)
    assert loops(written) == ["Scan"]


@pytest.mark.parametrize("name", few(["LayerNormLSTM", "MinLSTM", "SLSTM"], ["LayerNormLSTM", "MinLSTM"]))
def test_a_cell_in_double_precision(name, check):
    """ONNX Runtime has no Atanh and no Softplus of doubles; an epsilon of ONNX is a float32."""
    module = stepnet.Recurrent(getattr(cells, name)(3, 4)).double()
    check(module, lambda t, b: (torch.randn(t, b, 3, dtype=torch.float64),), tolerance=1e-12)


@pytest.mark.parametrize("reverse", few([False, True], [True]))
@pytest.mark.parametrize("name", few(CELLS, ["SLSTM"]))
def test_a_cell_over_ragged_sequences(name, reverse, check_ragged):
    module = stepnet.Recurrent(getattr(cells, name)(3, 4), reverse=reverse)
    written = check_ragged(module, lambda lengths: (rows(lengths),))
    assert loops(written) == [name if name in KNOWN else "Scan"]
    assert written.inputs == ["x", "lengths"]


@pytest.mark.exhaustive  # of torch: below
@pytest.mark.parametrize("name", few(KNOWN, ["LSTM"]))
def test_layers_in_two_directions(name, check, check_ragged):
    module = getattr(stepnet.nn, name)(3, 4, num_layers=2, bidirectional=True)
    assert loops(check(module, lambda t, b: (torch.randn(t, b, 3),))) == [name] * 4
    assert loops(check_ragged(module, lambda lengths: (rows(lengths),))) == [name] * 4


def test_only_what_depends_on_the_state_stands_in_the_loop(check):
    weight = torch.randn(4, 5)

    def step(x, h):
        h = torch.tanh(torch.tanh(x) + 0.5 * h)
        return h @ weight, h

    written = check(stepnet.Recurrent(step), lambda t, b: (torch.randn(t, b, 4), torch.randn(b, 4)))
    assert written.types.index("Tanh") < written.types.index("Scan") < written.types.index("MatMul")
    assert written.bodies == [["Mul", "Add", "Tanh", "Squeeze"]]


@pytest.mark.parametrize("before", [False, True])
def test_a_gate_that_is_used_twice_is_computed_once(check, before):
    """A GRU would hold its weights twice."""
    gates, own, again = torch.nn.Linear(3, 8), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def step(x, h):
        u, v = gates(x).chunk(2, -1)
        g = (u + own(h)).sigmoid()
        n = (v + (g * again(h) if before else again(g * h))).tanh()
        h = g * h + (1 - g) * n
        return h, h

    written = check(stepnet.Recurrent(step), lambda t, b: (torch.randn(t, b, 3), torch.randn(b, 4)))
    assert "GRU" not in written.types
    assert [body.count("MatMul") for body in written.bodies] == [2]
    outside = written.types[: written.types.index("Scan")]
    assert outside.count("Gemm") == 2
    assert "Add" not in outside  # the biases of both sides are one


def test_an_input_gate_that_forgets_is_no_gate_of_an_lstm(check):
    gates, own = torch.nn.Linear(3, 12), torch.nn.Linear(4, 12)

    def step(x, state):
        h, c = state
        i, g, o = (gates(x) + own(h)).chunk(3, -1)
        c = i.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, (h, c)

    states = lambda t, b: (torch.randn(t, b, 3), (torch.randn(b, 4), torch.randn(b, 4)))  # noqa: E731
    assert "LSTM" not in check(stepnet.Recurrent(step), states).types


def test_what_is_split_after_a_product_is_a_product_for_each_part(check):
    written = check(stepnet.Recurrent(stepnet.cells.MinGRU(3, 4)), lambda t, b: (torch.randn(t, b, 3),))
    assert written.types.count("Gemm") == 2
    assert "Split" not in written.types


def spread(x):
    """A positive definite matrix of each row."""
    return x[:, :, None] * x[:, None] + 2 * torch.eye(x.shape[1])


STEPS = {
    "whole": lambda x, h: (x, (x + h).cumsum(-1).sin()),
    "no loop at all": lambda x, h: (h + 1, x),
    "a state that stays": lambda x, h: (x * h, h),
    "no input": lambda x, h: (h, h * 0.5),
    "the largest": lambda x, h: ((x + h).topk(2)[0], torch.tanh(x - h)),
    "picks": lambda x, h: (h.gather(1, (x > 0).long()), torch.cat([h[:, 1:], x[:, :1]], 1).flip(1)),
    "one result twice": lambda x, h: ((h + x, h + x), h + x),
    "a factor": lambda x, h: (x, torch.linalg.cholesky(spread(x + h))[:, -1]),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", every(3, STEPS))
def test_a_step(name, reverse, check):
    def make(t, b):
        shape = (b, t, 4) if reverse else (t, b, 4)
        return torch.randn(*shape), torch.randn(b, 4)

    check(stepnet.Recurrent(STEPS[name], reverse=reverse, axis=int(reverse)), make)


@pytest.mark.parametrize(
    "name",
    few(["no loop at all", "a state that stays", "whole", "no input", "a factor"], ["no input", "a factor"]),
)
def test_a_step_over_ragged_sequences(name, check_ragged):
    module = stepnet.Recurrent(STEPS[name], reverse=True)
    check_ragged(module, lambda lengths: (rows(lengths, 4), torch.randn(len(lengths), 4)))


def test_states_that_change_places(check):
    def make(t, b):
        return torch.randn(t, b, 4), (torch.randn(b, 4), torch.randn(b, 4))

    check(stepnet.Recurrent(lambda x, s: (s[0] + s[1], (s[1], s[0] + x))), make)
    check(stepnet.Recurrent(lambda x, s: (s[0], (s[1], s[0]))), make)


@pytest.mark.parametrize("most", few([None, 30], [30]))
def test_a_while_loop(most, check):
    class Halved(nn.Module):
        def forward(self, x):
            return stepnet.while_loop(
                lambda v, i: (v.abs().sum() > 0.1) & (i < 20), lambda v, i: (v / 2, i + x.shape[0]),
                (x, torch.tensor(0)), max_steps=most,
            )  # fmt: skip

    written = check(Halved(), lambda t, b: (torch.randn(t, b, 3),))
    assert loops(written) == ["Loop"]


# TensorIterators


def _body(x_t, h):
    h = torch.tanh(0.5 * h + x_t.squeeze(1))
    return h, h.unsqueeze(1)


@pytest.mark.parametrize(
    "cut",
    few(
        [{}, {"start": -1, "end": 0, "stride": -1}, {"start": 1, "end": -2}],
        [{"start": -1, "end": 0, "stride": -1}, {"start": 1, "end": -2}],
    ),
)
def test_a_tensor_iterator(cut, check):
    joined = cut if "stride" in cut else {}
    loop = TensorIterator(
        _body,
        [InputPort("x", "x_t", axis=1, **cut), InputPort("h0", "h"), OutputPort("y", 1, axis=1, **joined),
         OutputPort("h", 0), OutputPort("last", 1)],
        [BackEdge(0, "h")],
    )  # fmt: skip
    written = check(loop, lambda t, b: (torch.randn(b, t + 2, 3), torch.randn(b, 3)))
    assert written.inputs == ["x", "h0"]
    assert written.read.states == ({} if cut.get("start") == 1 else {"h0": "h0_out"})


@pytest.mark.parametrize("stride", few([2, -2], [-2]))
def test_blocks_of_two_steps(stride, check):
    def body(pair, h):
        h = h + pair.sum(0, keepdim=True)
        return {"h": h, "rows": pair * h}

    ends = {"start": 1} if stride > 0 else {"start": -1, "end": 1}
    out = {} if stride > 0 else {"start": -1, "end": 0}
    loop = TensorIterator(
        body,
        [InputPort("x", "pair", axis=0, stride=stride, part_size=2, **ends), InputPort("h0", "h"),
         OutputPort("h", "h"), OutputPort("rows", "rows", axis=0, stride=stride, part_size=2, **out)],
        [BackEdge("h", "h")],
    )  # fmt: skip
    check(loop, lambda t, b: (torch.randn(2 * t + 1, b, 3), torch.randn(1, b, 3)))


@pytest.mark.parametrize("cut", few([{"start": 0, "end": 4}, {"start": 4, "end": 0, "stride": -1}, {}], [{}]))
def test_a_tensor_iterator_without_slices(cut, check):
    loop = TensorIterator(
        lambda a, b: (a + b, b, b.unsqueeze(0)),
        [InputPort("a", "a"), InputPort("b", "b"), OutputPort("sum", 0), OutputPort("all", 2, axis=0, **cut)],
        [BackEdge(1, "a"), BackEdge(0, "b")],
    )  # fmt: skip
    written = check(loop, lambda t, b: (torch.randn(t, b, 3), torch.randn(t, b, 3)))
    assert loops(written) == ["Scan"]


# states


@pytest.mark.parametrize("kind", few([stepnet.nn.LSTM, nn.LSTM], [nn.LSTM]))
def test_a_model_streams_by_its_states(kind, check):
    module = kind(3, 4, num_layers=2)

    def make(t, b):
        return torch.randn(t, b, 3), (torch.randn(2, b, 4), torch.randn(2, b, 4))

    written = check(module, make)
    (entry,) = [p.value for p in written.model.metadata_props if p.key == "stepnet.states"]
    pairs = json.loads(entry)
    assert pairs == {"hx[0]": "hx[0]_out", "hx[1]": "hx[1]_out"}
    assert written.read.open_sizes["hx[0]"] == [1]  # how many layers there are is not open
    x, (h, c) = make(6, 2)
    whole = written(x, h, c)
    state, pieces = {"hx[0]": h, "hx[1]": c}, []
    for part in x.split(2):
        out = dict(zip(written.outputs, written(part, *state.values()), strict=True))
        pieces.append(out["y[0]"])
        state = {name: out[after] for name, after in pairs.items()}
    torch.testing.assert_close(torch.cat(pieces), whole[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(list(state.values()), whole[1:], rtol=1e-5, atol=1e-6)


def test_what_is_no_state_has_no_pair(check):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (stepnet.Recurrent(cells.GRU(3, 3)) for _ in range(2))

        def forward(self, x, h, g):
            y, h = self.first(x, h)
            z, _ = self.second(y, h)  # from the other's state on
            return {"z": z, "h": h, "sum": h + g, "same": g}

    def make(t, b):
        return torch.randn(t, b, 3), torch.randn(b, 3), torch.randn(b, 3)

    written = check(Two(), make)
    assert written.outputs == ["z", "h_out", "sum", "same"]
