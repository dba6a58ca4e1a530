"""Stack: layers of any cells over every kind of input, against torch.nn and loops by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_sequence

import stepnet
from duplicates import DUPLICATES, check_duplicate
from outcomes import gradients
from stepnet import LoDTensor, Recurrent, cells, set_backend
from stepnet import nn as ours
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import StepError

LENGTHS = [3, 0, 5, 1]
CLOSE = {"rtol": 0, "atol": 1e-10}


class Decay(nn.Module):
    """A cell of one's own: a state of two tensors in a dict, and no `reset_parameters`."""

    def __init__(self, width):
        super().__init__()
        self.rate = nn.Parameter(torch.rand(width))

    def initial_state(self, n):
        zeros = self.rate.new_zeros(n, len(self.rate))
        return {"fast": zeros, "slow": zeros + 1}

    def forward(self, x, state):
        fast = state["fast"] * self.rate + x
        slow = 0.9 * state["slow"] + 0.1 * fast
        return torch.tanh(fast - slow), {"fast": fast, "slow": slow}


STACKS = {
    "one": lambda: ours.Stack([cells.GRU(2, 3)]),
    "mixed": lambda: ours.Stack([cells.GRU(2, 3), nn.LSTMCell(3, 4), Decay(4)]),
    "residual": lambda: ours.Stack(
        [cells.LSTM(2, 3), Decay(3), cells.MinGRU(3, 3)], residual=(False, True, True)
    ),
    "bidirectional": lambda: ours.Stack([cells.GRU(2, 3), cells.SLSTM(6, 2)], bidirectional=True),
    "pairs": lambda: ours.Stack([(Decay(2), cells.RNN(2, 2)), cells.RNN(4, 4)], residual=(False, True)),
}


def by_hand(stack, rows, start):
    """Output and final states of one sequence [length, features]; `start` holds states of one row."""
    finals, x = [], rows
    for directions, residual in zip(stack.layers, stack.residual, strict=True):
        ys = []
        for backwards, recurrence in enumerate(directions):
            state = start[len(finals)]
            y = [None] * len(x)
            for t in reversed(range(len(x))) if backwards else range(len(x)):
                y[t], state = recurrence.step(x[t : t + 1], state)
            finals.append(state)
            ys.append(torch.cat(y) if y else None)
        if len(rows):
            y = torch.cat(ys, -1)
            x = x + y if residual else y
    return x, finals


def random_states(stack, n):
    states = []
    for directions in stack.layers:
        for recurrence in directions:
            leaves, spec = flatten(recurrence.step.initial_state(n))
            states.append(unflatten(spec, [(torch.rand_like(v) + 0.5).requires_grad_() for v in leaves]))
    return states


def one(state, b):
    leaves, spec = flatten(state)
    return unflatten(spec, [leaf[b : b + 1] for leaf in leaves])


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["naive", "auto"])
@pytest.mark.parametrize("name", STACKS)
def test_ragged_equals_a_loop_by_hand(name, backend):
    set_backend(backend)
    stack = STACKS[name]().double()
    rows = torch.randn(sum(LENGTHS), 2, dtype=torch.float64, requires_grad=True)
    hx = random_states(stack, len(LENGTHS))
    inputs = [rows, *flatten(hx)[0], *stack.parameters()]
    y, final = stack(LoDTensor.from_lengths(rows, [LENGTHS]), hx)
    sequences = [
        by_hand(stack, part, [one(state, b) for state in hx]) for b, part in enumerate(rows.split(LENGTHS))
    ]
    ys = torch.cat([out for out, _ in sequences if len(out)])
    joined = [torch.cat(leaf) for leaf in zip(*(flatten(last)[0] for _, last in sequences), strict=True)]
    assert isinstance(final, tuple)
    assert y.lengths().tolist() == LENGTHS
    found = [y.values, *flatten(final)[0]]
    torch.testing.assert_close(found, [ys, *joined], **CLOSE)
    torch.testing.assert_close(gradients(found, inputs), gradients([ys, *joined], inputs), **CLOSE)


@pytest.mark.parametrize("name", STACKS)
def test_every_kind_of_input_gives_the_same(name):
    stack = STACKS[name]().double()
    rows = [torch.randn(4, 2, dtype=torch.float64) for _ in range(3)]
    y, final = stack(LoDTensor.from_sequences(rows))
    dense, dense_final = stack(torch.stack(rows, 1))
    torch.testing.assert_close(dense.transpose(0, 1).reshape(12, -1), y.values, **CLOSE)
    torch.testing.assert_close(flatten(dense_final)[0], flatten(final)[0], **CLOSE)
    packed, packed_final = stack(pack_sequence(rows))
    torch.testing.assert_close(LoDTensor.from_packed(packed).values, y.values, **CLOSE)
    torch.testing.assert_close(flatten(packed_final)[0], flatten(final)[0], **CLOSE)


def test_batch_first():
    stack = ours.Stack([cells.GRU(2, 3), Decay(3)], batch_first=True, bidirectional=False)
    x = torch.randn(4, 5, 2)
    y, final = stack(x)
    twin = ours.Stack([layer[0].step for layer in stack.layers])
    y_twin, final_twin = twin(x.transpose(0, 1))
    torch.testing.assert_close(y, y_twin.transpose(0, 1))
    torch.testing.assert_close(flatten(final)[0], flatten(final_twin)[0])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_torch_in_layers(bidirectional):
    peer = nn.LSTM(2, 3, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    widths = (2, 6 if bidirectional else 3)
    stack = ours.Stack([cells.LSTM(w, 3) for w in widths], bidirectional=bidirectional).double()
    weights = iter(peer.all_weights)
    for directions in stack.layers:
        for recurrence in directions:
            names = dict(recurrence.step.named_parameters())
            with torch.no_grad():
                for mine, theirs in zip(names.values(), next(weights), strict=True):
                    mine.copy_(theirs)
    x, (h0, c0) = (
        torch.randn(5, 4, 2, dtype=torch.float64),
        torch.randn(2, 4 if bidirectional else 2, 4, 3, dtype=torch.float64),
    )
    y, final = stack(x, list(zip(h0, c0, strict=True)))
    expected, (h, c) = peer(x, (h0, c0))
    torch.testing.assert_close(y, expected, **CLOSE)
    torch.testing.assert_close(torch.stack([state[0] for state in final]), h, **CLOSE)
    torch.testing.assert_close(torch.stack([state[1] for state in final]), c, **CLOSE)


def test_states_hand_on():
    stack = ours.Stack([cells.GRU(2, 3), nn.LSTMCell(3, 4)])
    x = torch.randn(6, 4, 2)
    whole, last = stack(x)
    first, state = stack(x[:2])
    second, again = stack(x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(flatten(again)[0], flatten(last)[0])


def test_a_tensor_holds_a_state_for_each_layer_and_none_is_the_initial_one():
    stack = ours.Stack([cells.GRU(2, 3), cells.GRU(3, 3)])
    x, h0 = torch.randn(4, 5, 2), torch.randn(2, 5, 3)
    torch.testing.assert_close(stack(x, h0)[0], stack(x, (h0[0], h0[1]))[0])
    h0[1] = 0
    torch.testing.assert_close(stack(x, [h0[0], None])[0], stack(x, h0)[0])


def test_of_nothing():
    stack = STACKS["bidirectional"]()
    for lengths in ([0, 0], []):
        hx = random_states(stack, len(lengths))
        y, final = stack(LoDTensor.from_lengths(torch.zeros(0, 2), [lengths]), hx)
        assert y.values.shape == (0, 4)
        for before, after in zip(flatten(hx)[0], flatten(final)[0], strict=True):
            assert torch.equal(before, after)
    y, _ = stack(torch.zeros(0, 4, 2))
    assert y.shape == (0, 4, 4)


def test_two_levels_run_over_the_last():
    stack = STACKS["bidirectional"]()
    rows = torch.randn(6, 2)
    y, final = stack(LoDTensor.from_lengths(rows, [[2, 0, 1], [3, 1, 2]]))
    flat, flat_final = stack(LoDTensor.from_lengths(rows, [[3, 1, 2]]))
    assert y.recursive_sequence_lengths() == [[2, 0, 1], [3, 1, 2]]
    assert torch.equal(y.values, flat.values)
    assert torch.equal(flatten(final)[0][0], flatten(flat_final)[0][0])


# --- dropout


@pytest.mark.parametrize("residual", [False, True])
def test_dropout_lies_between_layers_on_what_a_layer_adds(residual):
    stack = ours.Stack([Decay(2), Decay(2)], dropout=1.0, residual=residual)
    x, other = torch.randn(4, 3, 2), torch.randn(4, 3, 2)
    lone = ours.Stack([stack.layers[1][0].step], residual=residual)
    torch.testing.assert_close(stack(x)[0], lone(x if residual else torch.zeros_like(x))[0])
    stack.eval()
    assert not torch.equal(stack(x)[0], stack(other)[0])
    plain = ours.Stack([layer[0].step for layer in stack.layers], residual=residual)
    assert torch.equal(stack(x)[0], plain(x)[0])


def test_dropout_without_a_layer_to_drop_warns():
    with pytest.warns(UserWarning, match=r"Stack\(dropout=0.5\) drops nothing") as caught:
        ours.Stack([cells.GRU(2, 3)], dropout=0.5)
    assert caught[0].filename == __file__


# --- a module like others


def test_the_second_direction_has_parameters_of_its_own():
    torch.manual_seed(0)
    cell = cells.LearnedInitialState(cells.LayerNormLSTM(2, 3))
    stack = ours.Stack([cell], bidirectional=True)
    forwards, backwards = (dict(r.step.named_parameters()) for r in stack.layers[0])
    assert forwards["cell.weight_ih"] is cell.cell.weight_ih
    assert backwards["cell.weight_ih"].abs().max() <= 3**-0.5
    assert not torch.equal(forwards["cell.weight_ih"], backwards["cell.weight_ih"])
    assert torch.equal(backwards["cell.norm_ih.weight"], torch.ones(12))


def test_a_cell_draws_its_parts_in_its_own_way():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.eye_(self.linear.weight)

        def forward(self, x, h):
            h = self.linear(x + h)
            return h, h

    stack = ours.Stack([Own()], bidirectional=True)
    assert torch.equal(stack.layers[0][1].step.linear.weight, torch.eye(2))


def test_functions_are_cells_too():
    def total(x, s):
        return s + x, s + x

    stack = ours.Stack([total, total], bidirectional=True)
    x = LoDTensor.from_lengths(torch.ones(3, 1), [[3]])
    y, final = stack(x, (torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 2), torch.zeros(1, 2)))
    assert y.values.tolist() == [[1, 3, 6, 6], [3, 5, 5, 3], [6, 6, 3, 1]]
    assert final[3].tolist() == [[6, 6]]
    assert list(stack.parameters()) == []


@pytest.mark.parametrize("duplicate", DUPLICATES)
@pytest.mark.parametrize("name", STACKS)
def test_a_duplicate_is_equal_and_its_own(name, duplicate):
    module = STACKS[name]()
    check_duplicate(module, DUPLICATES[duplicate](module), torch.randn(3, 2, 2))


def test_state_dict_and_functional_call():
    stack, other = STACKS["bidirectional"](), STACKS["bidirectional"]()
    x = torch.randn(3, 2, 2)
    assert torch.equal(functional_call(stack, other.state_dict(), (x,))[0], other(x)[0])
    stack.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(stack(x)[0], other(x)[0])
    assert "layers.0.1.step.weight_hh" in stack.state_dict()


def test_of_other_dtypes_and_modes():
    stack = STACKS["residual"]()
    x = torch.randn(3, 2, 2)
    expected, _ = stack(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(stack(x)[0], expected)
    assert torch.equal(stack.double()(x.double())[0].float() - expected < 1e-5, torch.ones(3, 2, 3).bool())
    meta = STACKS["residual"]().to("meta")
    assert meta(x.to("meta"))[0].shape == expected.shape


def test_autocast():
    stack = ours.Stack([cells.GRU(2, 4), nn.LSTMCell(4, 4)], residual=(False, True))
    x = torch.randn(3, 2, 2)
    expected, _ = stack(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, final = stack(x)
    assert {leaf.dtype for leaf in flatten(final)[0]} == {torch.float32}
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=0.03)


def test_explained_layer_by_layer():
    told = stepnet.explain(STACKS["bidirectional"](), torch.zeros(4, 2, 2))
    assert [r.reverse for r in told.recurrences] == [False, True, False, True]


@pytest.mark.exhaustive
def test_saved_as_openvino(tmp_path):
    set_backend("auto")
    from stepnet.openvino import load, save

    stack = ours.Stack([cells.GRU(2, 3), Decay(3)], residual=(False, True)).eval()
    save(stack, tmp_path / "stack.xml", torch.zeros(4, 2, 2))
    x = torch.randn(3, 5, 2)
    found, (y, final) = load(tmp_path / "stack.xml")(x), stack(x)
    for k, leaf in enumerate([y, *flatten(final)[0]]):
        torch.testing.assert_close(found[k], leaf.detach(), rtol=1e-5, atol=1e-6)


# --- errors


X = torch.zeros(4, 5, 2)
GRU = cells.GRU(2, 3)
ERRORS = {
    "none": (lambda: ours.Stack([]), "needs a list of cells"),
    "no list": (lambda: ours.Stack(GRU), r"needs a list of cells.*\n.*GRU\n.*Stack\(\[cell\]\)"),
    "three": (lambda: ours.Stack([(GRU, GRU, GRU)]), "layer 0 must be a cell, or a pair"),
    "over sequences": (lambda: ours.Stack([GRU, ours.GRU(3, 3)]), "layer 1 must be a cell, which runs one"),
    "of torch": (lambda: ours.Stack([nn.LSTM(2, 3)]), "a LSTM, which runs over sequences"),
    "recurrent": (lambda: ours.Stack([Recurrent(GRU)]), "a Recurrent, which runs over sequences"),
    "no cell": (lambda: ours.Stack([3]), "a step must be callable"),
    "dropout": (lambda: ours.Stack([GRU], dropout=2), "Stack 'dropout' must be a probability"),
    "residual": (lambda: ours.Stack([GRU], residual=(True, False)), r"'residual' must be True.*\n.*\n.*or 1"),
    "residual of numbers": (lambda: ours.Stack([GRU], residual=0.5), "'residual' must be True or False"),
    "bidirectional": (lambda: ours.Stack([GRU], bidirectional=2), "'bidirectional' must be True or False"),
    "widths": (
        lambda: ours.Stack([GRU], residual=True)(X),
        r"layer 0 cannot be residual.*\n.*\[4, 5, 2\].*\[4, 5, 3\]",
    ),
    "widths ragged": (
        lambda: ours.Stack([GRU], residual=True)(LoDTensor.from_lengths(X[0], [[5]])),
        "layer 0 cannot be residual",
    ),
    "features": (
        lambda: ours.Stack([GRU, nn.GRUCell(4, 3)])(X),
        r"layer 1, a GRUCell, was built for other features.*\n.*3 features.*\n.*input_size=4",
    ),
    "features of both": (
        lambda: ours.Stack([GRU, cells.GRU(3, 3)], bidirectional=True)(X),
        r"layer 1, a GRU.*\n.*6 features",
    ),
    "states": (lambda: ours.Stack([GRU])(X, (X, X)), r"'hx' must hold a state.*\n.*tuple of 2\n.*1, each"),
    "one state": (lambda: ours.Stack([GRU])(X, 0), r"'hx' must hold a state for each.*\n.*int"),
    "unbatched": (lambda: ours.Stack([GRU])(X[0]), "no dimension of features"),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, text):
    with pytest.raises(StepError, match=text):
        call()
