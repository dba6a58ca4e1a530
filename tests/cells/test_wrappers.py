"""Wrappers of cells: learned initial states, zoneout, variational dropout, all states."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from stepnet import cells
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.errors import StepError

DTYPE = torch.float64
LENGTHS = [3, 0, 5, 1]
CLOSE = {"rtol": 0, "atol": 1e-12}


def ragged(lengths=LENGTHS, features=2):
    return LoDTensor.from_lengths(torch.randn(sum(lengths), features, dtype=DTYPE), [lengths])


class Counted(nn.Module):
    """A step whose state holds an integer beside h."""

    def initial_state(self, n):
        return {"h": torch.zeros(n, 2), "count": torch.zeros(n, dtype=torch.int64)}

    def forward(self, x, state):
        h = torch.tanh(state["h"] + x)
        return h, {"h": h, "count": state["count"] + 1}


# --- LearnedInitialState


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", [LENGTHS, [0, 0], []], ids=str)
@pytest.mark.parametrize("make", [cells.LSTM, cells.GRU, cells.SLSTM, nn.LSTMCell, nn.GRUCell])
def test_learned_state_gets_the_gradient_of_every_sequence(make, lengths):
    inner = make(2, 3, dtype=DTYPE)
    cell = cells.LearnedInitialState(inner)
    for values in cell.initial:
        nn.init.uniform_(values, 0.5, 1.5)
    x = ragged(lengths)
    y, final = recurrent(cell, x)
    final = final if isinstance(final, tuple) else (final,)
    loss = y.values.pow(2).sum() + sum(leaf.pow(2).sum() for leaf in final)
    found = torch.autograd.grad(loss, list(cell.initial), allow_unused=True, materialize_grads=True)

    rows = [values.detach().expand(len(lengths), -1).clone().requires_grad_() for values in cell.initial]
    y, final = recurrent(inner, x, tuple(rows) if len(rows) > 1 else rows[0])
    final = final if isinstance(final, tuple) else (final,)
    loss = y.values.pow(2).sum() + sum(leaf.pow(2).sum() for leaf in final)
    each = torch.autograd.grad(loss, rows, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, tuple(g.sum(0) for g in each), **CLOSE)
    assert not lengths or found[0].any()


def test_learned_state_starts_where_the_cell_does():
    inner = cells.SLSTM(2, 3)
    cell = cells.LearnedInitialState(inner)
    torch.testing.assert_close(cell.initial_state(4), inner.initial_state(4))
    assert [key for key in cell.state_dict() if key.startswith("initial")] == [
        f"initial.{i}" for i in range(4)
    ]


def test_learned_state_leaves_integers_alone():
    cell = cells.LearnedInitialState(Counted())
    assert [tuple(v.shape) for v in cell.initial] == [(2,)]
    assert cell.initial_state(3)["count"].tolist() == [0, 0, 0]
    _, final = recurrent(cell, LoDTensor.from_lengths(torch.randn(3, 2), [[2, 0, 1]]))
    assert final["count"].tolist() == [2, 0, 1]


def test_learned_state_needs_an_initial_state():
    with pytest.raises(StepError, match="has no initial state"):
        cells.LearnedInitialState(lambda x, h: (h, h))


def test_learned_state_refuses_to_learn_masks():
    with pytest.raises(StepError, match=r"VariationalDropout\(LearnedInitialState\(cell\)"):
        cells.LearnedInitialState(cells.Zoneout(cells.VariationalDropout(cells.GRU(2, 3), 0.5), 0.1))


# --- Zoneout


def test_zoneout_in_training_keeps_whole_units_at_its_rate():
    n, inner = 4000, cells.LSTM(2, 3, dtype=DTYPE)
    cell = cells.Zoneout(inner, p=(0.2, 0.7))
    x, old = torch.randn(n, 2, dtype=DTYPE), tuple(torch.randn(2, n, 3, dtype=DTYPE))
    _, new = inner(x, old)
    y, zoned = cell(x, old)
    assert y is zoned[0]
    for before, after, found, p in zip(old, new, zoned, (0.2, 0.7), strict=True):
        kept = found == before
        assert torch.equal(found, torch.where(kept, before, after))
        assert abs(kept.double().mean().item() - p) < 0.02  # 12000 draws: 5 standard deviations
    again = cell(x, old)[1][0]
    assert not torch.equal(again, zoned[0])


def test_zoneout_in_evaluation_is_the_expectation():
    inner = cells.GRU(2, 3, dtype=DTYPE)
    cell = cells.Zoneout(inner, p=0.3).eval()
    x = ragged()
    y, final = recurrent(cell, x)
    for b, length in enumerate(LENGTHS):
        h, rows = torch.zeros(1, 3, dtype=DTYPE), x[b]
        for t in range(length):
            h = 0.3 * h + 0.7 * inner(rows[t : t + 1], h)[0]
            torch.testing.assert_close(y[b][t : t + 1], h, **CLOSE)
        torch.testing.assert_close(final[b : b + 1], h, **CLOSE)


def test_zoneout_expectation_is_the_mean_of_training():
    cell = cells.Zoneout(cells.GRU(2, 3, dtype=DTYPE), p=0.3)
    x, h = torch.randn(1, 2, dtype=DTYPE), torch.randn(1, 3, dtype=DTYPE)
    mean = cell(x.expand(20000, -1), h.expand(20000, -1))[0].mean(0, keepdim=True)
    torch.testing.assert_close(mean, cell.eval()(x, h)[0], rtol=0, atol=0.03)


@pytest.mark.parametrize("training", [True, False])
def test_zoneout_gradient(training):
    cell = cells.Zoneout(cells.LSTM(2, 3, dtype=DTYPE), p=0.5).train(training)

    def step(x, h, c):
        torch.manual_seed(1)
        return cell(x, (h, c))[1]

    inputs = [torch.randn(2, size, dtype=DTYPE, requires_grad=True) for size in (2, 3, 3)]
    assert torch.autograd.gradcheck(step, inputs)


def test_zoneout_of_zero_changes_nothing():
    inner = cells.LSTM(2, 3, dtype=DTYPE)
    x = ragged()
    y, _ = recurrent(cells.Zoneout(inner, p=0.0), x)
    assert torch.equal(y.values, recurrent(inner, x)[0].values)


def test_zoneout_leaves_integers_and_other_outputs_alone():
    class Other(Counted):
        def forward(self, x, state):
            h, new = super().forward(x, state)
            return {"h": h, "twice": 2 * h}, new

    state = {"h": torch.ones(2, 2), "count": torch.zeros(2, dtype=torch.int64)}
    y, new = cells.Zoneout(Other(), p=1.0)(torch.zeros(2, 2), state)
    assert torch.equal(y["h"], state["h"])
    assert torch.equal(y["twice"], 2 * torch.tanh(state["h"]))
    assert new["count"].tolist() == [1, 1]


def test_zoneout_of_slstm_may_keep_h():
    cell = cells.Zoneout(cells.SLSTM(2, 3, dtype=DTYPE), p=(1, 0, 0, 0))
    _, (h, _, n, _) = cell(torch.randn(2, 2, dtype=DTYPE), cell.initial_state(2))
    assert not h.any()
    assert (n >= 1).all()


ZONEOUT_ERRORS = {
    "too large": (lambda: cells.Zoneout(cells.GRU(2, 3), p=1.5), "'p' must be a probability"),
    "no number": (lambda: cells.Zoneout(cells.LSTM(2, 3), p=(0.1, None)), r"'p\[1\]' must be a probability"),
    "sLSTM": (lambda: cells.Zoneout(cells.SLSTM(2, 3), p=0.1), r"p=\(0.1, 0, 0, 0\)"),
    "sLSTM within": (
        lambda: cells.Zoneout(cells.AllStates(cells.SLSTM(2, 3)), p=(0, 0, 0, 0.1)),
        "zone out h alone",
    ),
    "mLSTM": (lambda: cells.Zoneout(cells.MLSTM(2, 3), p=0.1), "an MLSTM's state without.*\n.*\n.*p=0 alone"),
    "RWKV": (lambda: cells.Zoneout(cells.RWKVTimeMix(3), p=(0, 0, 0, 0.1)), "an RWKVTimeMix's state"),
    "count": (
        lambda: recurrent(cells.Zoneout(cells.GRU(2, 3), p=(0.1, 0.2)), torch.zeros(1, 1, 2)),
        "2 for 1 tensors",
    ),
    "structure": (
        lambda: cells.Zoneout(lambda x, s: (x, (s, s)), p=0.1)(torch.zeros(1, 2), torch.zeros(1, 2)),
        "changed the structure of the state",
    ),
}


@pytest.mark.parametrize(("call", "text"), ZONEOUT_ERRORS.values(), ids=ZONEOUT_ERRORS)
def test_zoneout_errors(call, text):
    with pytest.raises(StepError, match=text):
        call()


# --- VariationalDropout

MASKED = {
    "RNN": cells.RNN,
    "LSTM": cells.LSTM,
    "GRU": cells.GRU,
    "PeepholeLSTM": cells.PeepholeLSTM,
    "LayerNormLSTM": cells.LayerNormLSTM,
    "SLSTM": cells.SLSTM,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", MASKED)
def test_a_sequence_keeps_its_masks_over_all_its_steps(name, reverse):
    inner = MASKED[name](2, 3, dtype=DTYPE)
    cell = cells.VariationalDropout(inner, input_p=0.5, state_p=0.5)
    x = ragged()
    start, masks = cell.initial_state(len(LENGTHS))
    y, (final, after) = recurrent(cell, x, (start, masks), reverse=reverse)
    assert torch.equal(after["x"], masks["x"])
    assert torch.equal(after["h"], masks["h"])
    for b, length in enumerate(LENGTHS):
        one = slice(b, b + 1)
        state = tuple(s[one] for s in start) if isinstance(start, tuple) else start[one]
        for t in reversed(range(length)) if reverse else range(length):
            h, state = inner(x[b][t : t + 1] * masks["x"][one], state, masks["h"][one])
            torch.testing.assert_close(y[b][t : t + 1], h, **CLOSE)
        torch.testing.assert_close(final[0][b] if isinstance(final, tuple) else final[b], _h(state), **CLOSE)


def _h(state):
    return (state[0] if isinstance(state, tuple) else state)[0]


def test_masked_gru_keeps_its_own_past():
    """h is masked in the products alone, not where z keeps it."""
    inner = cells.GRU(2, 3, bias=False, dtype=DTYPE)
    x, h = torch.randn(1, 2, dtype=DTYPE), torch.randn(1, 3, dtype=DTYPE)
    mask = torch.tensor([[0.0, 2.0, 2.0]], dtype=DTYPE)
    x_r, x_z, x_n = (inner.weight_ih @ x[0]).split(3)
    h_r, h_z, h_n = (inner.weight_hh @ (mask * h)[0]).split(3)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    expected = (1 - z) * torch.tanh(x_n + r * h_n) + z * h[0]
    torch.testing.assert_close(inner(x, h, mask)[0][0], expected, **CLOSE)


def test_masks_are_drawn_for_each_sequence_at_its_rate():
    cell = cells.VariationalDropout(cells.GRU(2, 3), input_p=0.2, state_p=0.5)
    _, masks = cell.initial_state(5000)
    for name, p in (("x", 0.2), ("h", 0.5)):
        torch.testing.assert_close(masks[name].unique(), torch.tensor([0.0, 1 / (1 - p)]))
        assert abs((masks[name] == 0).float().mean().item() - p) < 0.02
    assert not torch.equal(masks["h"], cell.initial_state(5000)[1]["h"])


@pytest.mark.parametrize(("input_p", "state_p", "names"), [(0.5, 0, ["x"]), (0, 0.5, ["h"]), (0, 0, [])])
def test_only_masks_with_a_probability_are_drawn(input_p, state_p, names):
    cell = cells.VariationalDropout(cells.LSTM(2, 3, dtype=DTYPE), input_p, state_p)
    _, (_, masks) = recurrent(cell, ragged())
    assert list(masks) == names


def test_in_evaluation_nothing_is_dropped():
    inner = cells.LSTM(2, 3, dtype=DTYPE)
    cell = cells.VariationalDropout(inner, 0.5, 0.5).eval()
    x = ragged()
    y, ((h, _), _) = recurrent(cell, x)
    plain, (h_plain, _) = recurrent(inner, x)
    assert torch.equal(y.values, plain.values)
    assert torch.equal(h, h_plain)


def test_masks_stay_for_the_next_part_of_the_sequences():
    cell = cells.VariationalDropout(cells.GRU(2, 3, dtype=DTYPE), 0.5, 0.5)
    x = torch.randn(6, 4, 2, dtype=DTYPE)
    start = cell.initial_state(4)
    whole, _ = recurrent(cell, x, start)
    first, state = recurrent(cell, x[:2], start)
    second, _ = recurrent(cell, x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, **CLOSE)


def test_masks_go_with_a_state_of_the_users_own():
    cell = cells.VariationalDropout(cells.LSTM(2, 3, dtype=DTYPE), 0.5, 0.5)
    given = tuple(torch.randn(2, 4, 3, dtype=DTYPE))
    state, masks = cell.initial_state(4, given)
    assert state is given
    assert masks["x"].shape == (4, 2)
    _, (final, _) = recurrent(cell, ragged(), (state, masks))
    torch.testing.assert_close(final[0][1], given[0][1], **CLOSE)  # the empty sequence


def test_a_torch_cell_may_drop_its_input():
    inner = nn.GRUCell(2, 3, dtype=DTYPE)
    cell = cells.VariationalDropout(inner, input_p=0.5)
    x = torch.randn(1, 4, 2, dtype=DTYPE)
    y, (_, masks) = recurrent(cell, x)
    torch.testing.assert_close(y[0], inner(x[0] * masks["x"]), **CLOSE)


def test_gradients_flow_through_the_masks():
    cell = cells.VariationalDropout(cells.GRU(2, 3, dtype=DTYPE), 0.5, 0.5)
    masks = {"x": torch.tensor([[2.0, 0.0]], dtype=DTYPE), "h": torch.tensor([[0.0, 2.0, 2.0]], dtype=DTYPE)}
    x, h = (torch.randn(1, size, dtype=DTYPE, requires_grad=True) for size in (2, 3))
    assert torch.autograd.gradcheck(lambda x, h: cell(x, (h, masks))[0], (x, h))
    cell(x, (h, masks))[0].sum().backward()
    assert x.grad is not None
    assert x.grad[0, 0] != 0
    assert x.grad[0, 1] == 0


VARIATIONAL_ERRORS = {
    "input_p": (
        lambda: cells.VariationalDropout(cells.GRU(2, 3), input_p=-0.1),
        "'input_p' must be a probab",
    ),
    "state_p": (
        lambda: cells.VariationalDropout(cells.GRU(2, 3), state_p=True),
        "'state_p' must be a probab",
    ),
    "torch cell": (
        lambda: cells.VariationalDropout(nn.GRUCell(2, 3), state_p=0.5),
        "cannot mask h inside step 'GRUCell'",
    ),
    "no weight_hh": (
        lambda: cells.VariationalDropout(cells.MinGRU(2, 3), state_p=0.5),
        "cannot mask h inside step 'MinGRU'",
    ),
    "no sizes": (
        lambda: cells.VariationalDropout(lambda x, h: (h, h), input_p=0.5),
        "needs the 'input_size' of step '<lambda>'",
    ),
    "bare state": (
        lambda: recurrent(
            cells.VariationalDropout(cells.LSTM(2, 3), 0.5), torch.zeros(1, 1, 2), (torch.zeros(1, 3),) * 2
        ),
        r"pass state=cell.initial_state\(n, state\)",
    ),
}


@pytest.mark.parametrize(("call", "text"), VARIATIONAL_ERRORS.values(), ids=VARIATIONAL_ERRORS)
def test_variational_dropout_errors(call, text):
    with pytest.raises(StepError, match=text):
        call()


# --- AllStates, and wrappers of wrappers


def test_all_states_come_back_at_every_step():
    inner = cells.LSTM(2, 3, dtype=DTYPE)
    x = ragged()
    (y, (h, c)), final = recurrent(cells.AllStates(inner), x)
    plain, (h_last, c_last) = recurrent(inner, x)
    assert torch.equal(y.values, plain.values)
    assert torch.equal(h.values, plain.values)
    for b, length in enumerate(LENGTHS):
        state = inner.initial_state(1)
        for t in range(length):
            _, state = inner(x[b][t : t + 1], state)
            torch.testing.assert_close(c[b][t : t + 1], state[1], **CLOSE)
    torch.testing.assert_close(final, (h_last, c_last), **CLOSE)


def test_wrappers_wrap_each_other():
    cell = cells.VariationalDropout(
        cells.Zoneout(cells.LearnedInitialState(cells.AllStates(cells.LSTM(2, 3, dtype=DTYPE))), 0.1),
        0.5,
        0.5,
    )
    x = ragged()
    (y, (h, c)), ((h_last, c_last), masks) = recurrent(cell, x)
    assert torch.equal(y.values, h.values)
    assert torch.equal(y[2][-1], h_last[2])
    assert torch.equal(c[2][-1], c_last[2])
    assert sorted(masks) == ["h", "x"]
    (y.values.sum() + c_last.sum()).backward()
    assert all(p.grad is not None for p in cell.parameters())


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda cell: pickle.loads(pickle.dumps(cell))], ids=["copy", "pickle"]
)
def test_wrapped_cells_are_copied_and_pickled(duplicate):
    inner = cells.LearnedInitialState(cells.Zoneout(cells.PeepholeLSTM(2, 3, dtype=DTYPE), (0.1, 0.2)))
    cell = cells.VariationalDropout(inner, 0.5, 0.5).eval()
    twin = duplicate(cell)
    x = ragged()
    assert torch.equal(recurrent(twin, x)[0].values, recurrent(cell, x)[0].values)
    assert repr(twin) == repr(cell)
    assert "p=(0.1, 0.2)" in repr(cell)
    assert "input_p=0.5, state_p=0.5" in repr(cell)
