"""Resets: rows between them run as sequences of their own, against a loop by hand that looks at each mark."""

from __future__ import annotations

import copy
import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import stepnet
from covering import examples, few
from outcomes import gradients
from stepnet import LoDTensor, Recurrent, Resets, cells, recurrent
from stepnet import nn as modules
from stepnet.data.pieces import cut, places
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import LoDError, StepError
from stepnet.executors.c.pieces import cut_dense, cut_ragged
from stepnet.executors.layout import Layout
from stepnet.resets import run_with_resets

DTYPE = torch.float64
CLOSE = {"rtol": 0, "atol": 1e-10}
FEATURES, HIDDEN = 2, 3


class Start(nn.Module):
    """A cell whose initial state is learned: marked rows start from it, and it gets its gradient."""

    def __init__(self):
        super().__init__()
        self.cell = cells.LSTM(FEATURES, HIDDEN, dtype=DTYPE)
        self.h0 = nn.Parameter(torch.randn(HIDDEN, dtype=DTYPE))

    def initial_state(self, n):
        return self.h0.expand(n, HIDDEN), self.h0.new_ones(n, HIDDEN)

    def forward(self, x, state):
        return self.cell(x, state)


def by_hand(step, fresh, sequences, marks, state, done, reverse):
    """The masked loop, one sequence and one row at a time; `fresh` is the reset state of a sequence."""
    ys, finals = [], []
    leaves, spec = flatten(state)
    for b, (rows, own) in enumerate(zip(sequences, marks, strict=True)):
        s, y = unflatten(spec, [leaf[b : b + 1] for leaf in leaves]), [None] * len(rows)
        for t in reversed(range(len(rows))) if reverse else range(len(rows)):
            if own[t] and done == reverse:
                s = fresh(b)
            y[t], s = step(rows[t : t + 1], s)
            if own[t] and done != reverse:
                s = fresh(b)
        ys += y
        finals.append(flatten(s)[0])
    return ys, [torch.cat(leaf) for leaf in zip(*finals, strict=True)] if finals else leaves


CELL = Start()


@pytest.mark.parametrize("backend", few(["naive", "eager", "c"], ["naive", "eager"]))
def test_equals_the_masked_loop(backend):
    @settings(max_examples=examples(25))
    @given(
        st.lists(st.integers(0, 5), max_size=4),
        st.integers(0, 2**20),
        st.sampled_from(["is_init", "done"]),
        st.booleans(),
        st.sampled_from(["no state", "state", "state without grad"]),
        st.booleans(),
    )
    def law(lengths, seed, name, reverse, kind, look):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, generator=generator, requires_grad=True)
        marks = torch.rand(sum(lengths), generator=generator) < 0.4
        x, state = LoDTensor.from_lengths(rows, [lengths]), None
        inputs = [rows, *CELL.parameters()]
        if kind != "no state":
            state = tuple(torch.randn(2, len(lengths), HIDDEN, dtype=DTYPE, generator=generator).unbind())
            state = tuple(leaf.requires_grad_(kind == "state") for leaf in state)
            inputs += state if kind == "state" else ()
        resets = Resets(**{name: marks})
        how = {"reverse": reverse, "backend": backend}
        if look:
            how |= {"level": -1, "axis": 0, "scopes": False, "look": True}
            y, final = run_with_resets(recurrent, CELL, x, state, resets, **how)
        else:
            y, final = recurrent(CELL, x, state, resets=resets, **how)
        start = CELL.initial_state(len(lengths)) if state is None else state
        parts = rows.split(lengths) if lengths else ()
        own = marks.split(lengths) if lengths else ()
        done = name == "done"
        ys, expected = by_hand(CELL, lambda b: CELL.initial_state(1), parts, own, start, done, reverse)
        found = [y.values, *final]
        wanted = [torch.cat(ys) if ys else y.values.detach(), *expected]
        assert y.lengths().tolist() == lengths
        torch.testing.assert_close(found, wanted, **CLOSE)
        torch.testing.assert_close(gradients(found, inputs), gradients(wanted, inputs), **CLOSE)

    law()


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (0, True), (1, False)])
def test_pieces_of_tensors_run_where_they_lie(backend, axis, reverse):
    draw = torch.Generator().manual_seed(5)
    cell = copy.deepcopy(CELL)  # as hypothesis changes builtins, CELL was walked time and again

    def outcome(backend, shape, marks, state):
        x = torch.ones(*shape, FEATURES, dtype=DTYPE).cumsum(0).cumsum(1).cos().requires_grad_()
        how = {"resets": Resets(done=marks), "axis": axis, "reverse": reverse, "backend": backend}
        y, final = recurrent(cell, x, state, **how)
        out = [y, *final]
        given = (x, *cell.parameters(), *(state or ()))
        found = torch.autograd.grad(sum(t.square().sum() for t in out), given)
        return y.is_contiguous(), [*out, *found]

    for shape in ((6, 3), (6, 3), (6, 3), (6, 3), (1, 3), (6, 1), (6, 3)):
        marks = torch.rand(shape, generator=draw) < 0.4
        marks[0, 0] = True
        state = (torch.randn(2, shape[1 - axis], HIDDEN, dtype=DTYPE, requires_grad=True)).unbind()
        for begin in (None, state):
            _, expected = outcome("naive", shape, marks, begin)
            _, found = outcome(backend, shape, marks, begin)
            torch.testing.assert_close(found, expected, **CLOSE)
    for begin in (None, state):  # the first few calls are looked at before it is known what they are like
        lie = [outcome(backend, shape, marks, begin)[0] for _ in range(6)]
        assert lie[-1]  # a copy, whose sequences stood one after the other, would lie turned


@pytest.mark.parametrize("axis", [0, 1])
def test_one_step(axis):
    """Which is not cut: as an agent that acts runs it."""
    rows, fresh = torch.randn(3, 1, FEATURES, dtype=DTYPE), torch.randn(2, 3, HIDDEN, dtype=DTYPE).unbind()
    for marks, name, reverse, state, named in itertools.product(
        ([1, 0, 1], [1, 1, 1]), ("is_init", "done"), (False, True), (None, 0, 1), (False, True)
    ):
        x = rows.clone().requires_grad_()
        given = state if state is None else torch.randn(2, 3, HIDDEN, dtype=DTYPE).unbind()
        given = given and tuple(leaf.requires_grad_(bool(state)) for leaf in given)
        flags = torch.tensor(marks).view((3, 1) if axis else (1, 3))
        how = {"reverse": reverse, "axis": axis, "backend": "naive"}
        how["resets"] = Resets(**{name: flags}, state=fresh if named else None)
        y, final = recurrent(CELL, x if axis else x.transpose(0, 1), given, **how)

        def begin(b, named=named):
            return tuple(leaf[b : b + 1] for leaf in fresh) if named else CELL.initial_state(1)

        start = CELL.initial_state(3) if given is None else given
        own = [[mark] for mark in marks]
        ys, expected = by_hand(CELL, begin, x, own, start, name == "done", reverse)
        found, wanted = [y.reshape(3, HIDDEN), *final], [torch.cat(ys), *expected]
        torch.testing.assert_close(found, wanted, **CLOSE)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted]
        inputs = [x, *CELL.parameters(), *(given if state else ())]
        torch.testing.assert_close(gradients(found, inputs), gradients(wanted, inputs), **CLOSE)


X = torch.randn(4, 3, FEATURES, dtype=DTYPE)  # 4 steps of 3 sequences
DONE = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)


SHARES = st.sampled_from([0, 0.1, 0.5, 1])


@settings(max_examples=examples(40))
@given(st.integers(0, 4), st.integers(0, 6), SHARES, *[st.booleans()] * 3, st.integers(0, 99))
def test_pieces_are_cut_by_c_as_by_numpy(n, steps, share, after, by_step, turned, seed):
    size = (steps, n) if turned else (n, steps)
    marks = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < share
    marks = marks.t() if turned else marks
    pieces = cut(torch.arange(n + 1) * steps, places(marks), after)
    expected = Layout.pieces(pieces.offsets, pieces.owner, steps, n, by_step, False)
    check_pieces(cut_dense(marks.t() if by_step else marks, after, by_step), pieces, expected)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 4), max_size=5), SHARES, st.booleans(), st.booleans(), st.integers(0, 99))
def test_pieces_of_ragged_sequences_are_cut_by_c_as_by_numpy(lengths, share, after, apart, seed):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    marks = torch.rand(sum(lengths), 2, generator=torch.Generator().manual_seed(seed)) < share
    marks = marks[:, 0] if apart else marks[:, 0].contiguous()
    pieces = cut(offsets, places(marks), after)
    check_pieces(cut_ragged(marks, offsets, after), pieces, Layout.ragged(pieces.offsets, False))


def check_pieces(made, pieces, expected):
    if len(pieces.owner) == len(pieces.first):
        assert made == (None, None)
        return
    by_c, layout = made
    for field in ("offsets", "first", "last", "owner"):
        assert torch.equal(getattr(by_c, field), getattr(pieces, field))
    for ours, theirs in ((layout, expected), (layout.backward, expected.backward)):
        for field in ("starts", "lengths", "order", "before"):
            assert torch.equal(getattr(ours, field), getattr(theirs, field))
        for field in ("steps", "stride", "rows", "idle"):
            assert getattr(ours, field) == getattr(theirs, field)


@pytest.mark.parametrize("name", ["is_init", "done"])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_kind_of_input_gives_the_same(name, reverse):
    def run(x, marks, **how):
        return recurrent(CELL, x, resets=Resets(**{name: marks}), reverse=reverse, backend="naive", **how)

    y, final = run(X, DONE)
    ragged = LoDTensor.from_sequences(list(X.unbind(1)))
    flags = DONE.t().reshape(-1)
    packed = pack_sequence(list(X.unbind(1)))
    same = {
        "batch first": (run(X.transpose(0, 1), DONE.t(), axis=1), lambda v: v.transpose(0, 1)),
        "a column": (run(X, DONE.unsqueeze(-1).float()), lambda v: v),
        "time last": (run(X.permute(1, 2, 0), DONE.t(), axis=2), lambda v: v.permute(2, 0, 1)),
        "time last from the end": (run(X.permute(1, 2, 0), DONE.t(), axis=-1), lambda v: v.permute(2, 0, 1)),
        "ragged": (run(ragged, flags), lambda v: v.values.view(3, 4, -1).transpose(0, 1)),
        "ragged marks": (
            run(ragged, ragged.with_values(flags)),
            lambda v: v.values.view(3, 4, -1).transpose(0, 1),
        ),
        "packed": (
            run(packed, pack_sequence(list(DONE.t()))),
            lambda v: LoDTensor.from_packed(v).values.view(3, 4, -1).transpose(0, 1),
        ),
        "numpy": (run(X, DONE.numpy()), lambda v: v),
        "sparse": (run(X, DONE.to_sparse()), lambda v: v),
    }
    for kind, ((other, other_final), back) in same.items():
        torch.testing.assert_close(back(other), y, **CLOSE, msg=kind)
        torch.testing.assert_close(other_final, final, **CLOSE, msg=kind)
    assert isinstance(run(packed, flags)[0], PackedSequence)


def test_bare_marks_are_those_of_first_rows():
    y, final = recurrent(CELL, X, resets=DONE)
    expected, expected_final = recurrent(CELL, X, resets=Resets(is_init=DONE))
    assert torch.equal(y, expected)
    assert torch.equal(final[0], expected_final[0])


def test_a_done_at_the_end_hands_on_the_initial_state():
    _, (h, c) = recurrent(CELL, X, resets=Resets(done=DONE))
    fresh = CELL.initial_state(3)
    for b, ended in enumerate(DONE[-1]):
        assert torch.equal(h[b], fresh[0][b]) == bool(ended)
        assert torch.equal(c[b], fresh[1][b]) == bool(ended)
    for reverse, resets in ((False, Resets(done=[[1] * 3] * 4)), (True, Resets(is_init=[[1] * 3] * 4))):
        _, (h, c) = recurrent(CELL, X, resets=resets, reverse=reverse)
        assert h.requires_grad  # h0 is learned
        assert not c.requires_grad


def test_chunks_equal_the_whole():
    for name in ("is_init", "done"):
        whole, last = recurrent(CELL, X, resets=Resets(**{name: DONE}))
        state, parts = None, []
        for part, marks in zip(X.split([1, 2, 1]), DONE.split([1, 2, 1]), strict=True):
            y, state = recurrent(CELL, part, state, resets=Resets(**{name: marks}))
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)
        torch.testing.assert_close(state, last, **CLOSE)


def test_the_reset_state_may_be_named():
    def total(x, s):
        return s + x, s + x

    x = LoDTensor.from_lengths(torch.ones(5, 1), [[3, 2]])
    marks, state = [0, 1, 0, 0, 1], torch.tensor([[10.0], [20.0]])
    y, final = recurrent(total, x, state, resets=marks)
    assert y.values.flatten().tolist() == [11, 11, 12, 21, 21]  # without initial_state: from the state given
    zeros = Resets(is_init=marks, state=torch.zeros(2, 1))
    y, final = recurrent(total, x, state, resets=zeros)
    assert y.values.flatten().tolist() == [11, 1, 2, 21, 1]
    assert final.flatten().tolist() == [2, 1]


def test_a_level_above_the_last():
    x = LoDTensor.from_lengths(torch.arange(6.0).view(6, 1), [[3, 1], [2, 1, 0, 3]])

    def step(part, s):
        new = s + stepnet.sequence_pool(part, "sum")
        return part + stepnet.sequence_expand(s, part), new

    marks, zeros = torch.tensor([False, True, False, False]), torch.zeros(2, 1)
    y, final = recurrent(step, x, zeros + 10, level=0, resets=Resets(is_init=marks, state=zeros))
    assert y.recursive_sequence_lengths() == x.recursive_sequence_lengths()
    assert y.values.flatten().tolist() == [10, 11, 2, 13, 14, 15]
    assert final.flatten().tolist() == [2, 22]


def test_nested_inputs_and_outputs():
    def step(x, s):
        new = s + x["a"] * x["b"].sum(-1, keepdim=True)
        return {"new": new, "old": s}, new

    a, b = torch.randn(4, 3, 1), torch.randn(4, 3, 2)
    zeros = torch.zeros(3, 1)
    y, final = recurrent(step, {"a": a, "b": b}, zeros, resets=DONE)
    s = zeros
    for t in range(4):
        s = torch.where(DONE[t, :, None], zeros, s)
        torch.testing.assert_close(y["old"][t], s)
        s = s + a[t] * b[t].sum(-1, keepdim=True)
        torch.testing.assert_close(y["new"][t], s)
    torch.testing.assert_close(final, s)


def test_masks_of_dropout_are_drawn_for_each_episode():
    cell = cells.VariationalDropout(cells.GRU(1, 50), input_p=0.0, state_p=0.5)
    x = torch.zeros(6, 1, 1)
    _, (_, masks) = recurrent(cells.AllStates(cell), x, resets=[[0], [0], [0], [1], [0], [0]])[0]
    assert torch.equal(masks["h"][0], masks["h"][2])
    assert torch.equal(masks["h"][3], masks["h"][5])
    assert not torch.equal(masks["h"][2], masks["h"][3])


# --- storage and modes


def test_nothing_is_written_and_nothing_shared():
    x, marks, state = X.clone(), DONE.clone(), CELL.initial_state(3)
    state = tuple(leaf.detach().clone() for leaf in state)
    kept = [v.clone() for v in (x, marks, *state)]
    y, final = recurrent(CELL, x, state, resets=marks)
    no_marks = recurrent(CELL, x, state, resets=torch.zeros_like(marks))
    torch.testing.assert_close(no_marks, recurrent(CELL, x, state), **CLOSE)
    with torch.no_grad():
        y.fill_(7)
        for leaf in final:
            leaf.fill_(7)
    assert all(torch.equal(a, b) for a, b in zip((x, marks, *state), kept, strict=True))


def test_of_nothing():
    for shape in ((0, 3), (4, 0), (0, 0)):
        y, (h, _) = recurrent(CELL, X.new_zeros(*shape, FEATURES), resets=torch.zeros(shape))
        assert y.shape == (*shape, HIDDEN)
        assert h.shape == (shape[1], HIDDEN)
    y, (h, _) = recurrent(CELL, LoDTensor.from_lengths(X.new_zeros(0, FEATURES), [[0, 0]]), resets=[])
    assert torch.equal(h, CELL.initial_state(2)[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes(mode):
    expected, (h, _) = recurrent(CELL, X, resets=DONE)
    with mode():
        y, (found, _) = recurrent(CELL, X, resets=DONE)
    assert torch.equal(y, expected)
    assert torch.equal(found, h)
    torch.testing.assert_close(recurrent(CELL, X, resets=DONE)[0], expected, **CLOSE)


def test_tensors_without_data():
    cell = Start().to("meta")
    y, (h, c) = recurrent(cell, X.to("meta"), resets=DONE.to("meta"))
    assert y.shape == (4, 3, HIDDEN)
    assert h.shape == c.shape == (3, HIDDEN)


def test_autocast():
    cell = copy.deepcopy(CELL).float()
    expected, _ = recurrent(cell, X.float(), resets=DONE)
    with torch.autocast("cpu", torch.bfloat16):
        y, final = recurrent(cell, X.float(), resets=DONE)
    assert {leaf.dtype for leaf in final} == {torch.float32}
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=0.03)


def test_under_vmap_and_grad():
    rows = torch.randn(2, 4, 3, FEATURES, dtype=DTYPE)

    def loss(x):
        return recurrent(CELL, x, resets=DONE, backend="naive")[0].square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(rows)
    for x, grad in zip(rows, found, strict=True):
        x = x.clone().requires_grad_()
        torch.testing.assert_close(grad, torch.autograd.grad(loss(x), x)[0], **CLOSE)


@pytest.mark.exhaustive  # in a graph: tests/graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own, at any graph break
def test_inside_a_compiled_region():
    module = Recurrent(CELL)
    compiled = torch.compile(lambda x, done: module(x + 0, resets=Resets(done=done))[0] * 2, backend="eager")
    expected = recurrent(CELL, X, resets=Resets(done=DONE))[0] * 2
    torch.testing.assert_close(compiled(X, DONE), expected, **CLOSE)


# --- modules


@pytest.mark.covering(1)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["is_init", "done"])
def test_modules_of_nn(name, bidirectional):
    """Against torch.nn on each episode by itself."""
    ours = modules.LSTM(FEATURES, HIDDEN, 2, bidirectional=bidirectional, dtype=DTYPE)
    theirs = nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=bidirectional, dtype=DTYPE)
    theirs.load_state_dict(ours.state_dict())
    hx = tuple(torch.randn(2, 4 if bidirectional else 2, 3, HIDDEN, dtype=DTYPE).unbind())
    y, (h, _) = ours(X, hx, resets=Resets(**{name: DONE}))
    for b in range(3):
        cuts = [0, *(t + (name == "done") for t in range(4) if DONE[t, b]), 4]
        for k, (start, end) in enumerate(itertools.pairwise(cuts)):
            if start == end:
                continue
            first, last = k == 0, k == len(cuts) - 2
            zero = X.new_zeros(1, HIDDEN)
            begins = [first, last] * 2 if bidirectional else [first, first]  # the way back starts at the end
            own = tuple(
                torch.stack([v[i, b : b + 1] if begin else zero for i, begin in enumerate(begins)])
                for v in hx
            )
            expected, (h_piece, _) = theirs(X[start:end, b : b + 1], own)
            torch.testing.assert_close(y[start:end, b : b + 1], expected, **CLOSE)
            if last:
                torch.testing.assert_close(h[0, b], h_piece[0, 0], **CLOSE)


def test_other_kinds_of_input_of_nn():
    gru = modules.GRU(FEATURES, HIDDEN, batch_first=True, dtype=DTYPE)
    y, h = gru(X.transpose(0, 1), resets=DONE.t())
    ragged, h_ragged = gru(LoDTensor.from_sequences(list(X.unbind(1))), resets=DONE.t().reshape(-1))
    torch.testing.assert_close(ragged.values.view(3, 4, -1), y, **CLOSE)
    torch.testing.assert_close(h_ragged, h, **CLOSE)
    one, h_one = gru(X[:, 1], resets=DONE[:, 1])
    torch.testing.assert_close(one, y[1], **CLOSE)
    torch.testing.assert_close(h_one, h[:, 1], **CLOSE)
    named = Resets(is_init=DONE.t(), state=torch.ones(1, 3, HIDDEN, dtype=DTYPE))
    assert not torch.equal(gru(X.transpose(0, 1), resets=named)[0], y)


def test_a_stack():
    stack = modules.Stack([cells.GRU(2, 3)], bidirectional=True).double()
    y, (h, h_back) = stack(X, resets=Resets(done=DONE))
    gru, back = (layer.step for layer in stack.layers[0])
    expected, final = recurrent(gru, X, resets=Resets(done=DONE))
    other, final_back = recurrent(back, X, resets=Resets(done=DONE), reverse=True)
    torch.testing.assert_close(y, torch.cat([expected, other], -1), **CLOSE)
    torch.testing.assert_close((h, h_back), (final, final_back), **CLOSE)


@pytest.mark.parametrize("name", few(["is_init", "done"], ["done"]))
def test_saved_as_openvino(tmp_path, name):
    from stepnet.openvino import load, save

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = modules.GRU(FEATURES, HIDDEN)

        def forward(self, x, marks):
            return self.rnn(x, resets=Resets(**{name: marks}))

    agent = Agent().eval()
    save(agent, tmp_path / "agent.xml", (X.float(), DONE))
    x, marks = torch.randn(5, 2, FEATURES), torch.rand(5, 2) < 0.5
    found, (y, h) = load(tmp_path / "agent.xml")(x, marks), agent(x, marks)
    torch.testing.assert_close(found[0], y.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], h.detach(), rtol=1e-5, atol=1e-6)


class Marking(nn.Module):
    def __init__(self, name, given):
        super().__init__()
        self.rnn = modules.GRU(FEATURES, HIDDEN)
        self.name, self.given = name, given

    def forward(self, x, marks=None):
        marks = marks if self.given else x.map(lambda rows: rows[:, 0] > 0.3)
        return self.rnn(x, resets=Resets(**{self.name: marks}))[0]


@pytest.mark.exhaustive  # as in ONNX: tests/onnx/test_recurrences.py
@pytest.mark.parametrize(
    ("name", "given"), few(itertools.product(["is_init", "done"], [False, True]), [("is_init", True)])
)
def test_ragged_resets_are_saved(tmp_path, name, given):
    """A file takes padded rows and lengths."""
    from stepnet.openvino import load, save

    def batch(lengths):
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), FEATURES), [lengths])
        marks = x.with_values((torch.rand(sum(lengths)) < 0.4).float())
        return (x, marks) if given else (x,)

    agent = Marking(name, given).eval()
    save(agent, tmp_path / "agent.xml", batch([4, 2, 1]))
    loaded, inputs = load(tmp_path / "agent.xml"), batch([3, 6])
    found = loaded(*(x.to_padded()[0] for x in inputs), torch.tensor([3, 6]))[0]
    for rows, expected in zip(found, agent(*inputs), strict=True):
        torch.testing.assert_close(rows[: len(expected)], expected.detach(), rtol=1e-5, atol=1e-6)


def test_marks_of_arrays():
    """Of any strides, and of those that must not be written."""
    turned = np.ascontiguousarray(DONE.numpy()[::-1])[::-1]
    turned.flags.writeable = False
    found, wanted = (recurrent(CELL, X, resets=marks) for marks in (turned, DONE))
    torch.testing.assert_close(found, wanted)


def test_a_module_and_its_copy():
    module = Recurrent(CELL, reverse=True)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert torch.equal(twin(X, resets=DONE)[0], module(X, resets=DONE)[0])


# --- errors

RAGGED = LoDTensor.from_lengths(X.reshape(12, FEATURES), [[5, 7]])
ERRORS = {
    "both": (lambda: Resets(is_init=DONE, done=DONE), StepError, "got: +both"),
    "neither": (lambda: Resets(), StepError, "got: +neither"),
    "shape": (
        lambda: recurrent(CELL, X, resets=DONE.t()),
        LoDError,
        r"'resets' must hold a truth value per row\n.*\[3, 4\].*\n.*\[4, 3\]",
    ),
    "rows": (lambda: recurrent(CELL, RAGGED, resets=torch.zeros(11)), LoDError, r"expected: +shape \[12\]"),
    "text": (lambda: recurrent(CELL, X, resets="done"), LoDError, "a truth value per row"),
    "masked": (
        lambda: recurrent(CELL, X, resets=np.ma.array(DONE.numpy(), mask=DONE.numpy())),
        LoDError,
        "a truth value per row",
    ),
    "other sequences": (
        lambda: recurrent(CELL, RAGGED, resets=LoDTensor.from_lengths(torch.zeros(12), [[7, 5]])),
        LoDError,
        r"sequences of the lengths that x has\n.*7, 5.*\n.*5, 7",
    ),
    "scopes": (lambda: recurrent(CELL, X, resets=DONE, scopes=True), StepError, "cannot be joined with"),
    "state": (
        lambda: recurrent(CELL, X, resets=Resets(done=DONE, state=torch.zeros(3, 3))),
        StepError,
        r"the reset state of step 'Start' must be like its state\n.*\*: .*\n.*\(\*, \*\)",
    ),
    "rows of the initial state": (
        lambda: recurrent(CELL, X, CELL.initial_state(2), resets=DONE),
        StepError,
        "the initial state of step 'Start' must have one row per sequence\n.*\n.*3 rows",
    ),
    "rows of the reset state": (
        lambda: recurrent(CELL, X, resets=Resets(done=DONE, state=CELL.initial_state(2))),
        StepError,
        "must be like its state",
    ),
    "mixed": (lambda: recurrent(CELL, (X, RAGGED), resets=DONE), StepError, "all LoDTensors"),
    "steps": (
        lambda: recurrent(CELL, (X, X[:3]), resets=DONE),
        StepError,
        "as many steps and sequences",
    ),
    "axis": (lambda: recurrent(CELL, X, axis=3, resets=DONE), StepError, "no dimension 3 to step along"),
    "nothing": (lambda: recurrent(CELL, (), resets=DONE), StepError, "x holds no tensor"),
}


@pytest.mark.parametrize(("call", "error", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(("ragged", "axis"), [(False, 0), (False, 1), (True, 0)])
def test_no_marks_are_no_resets(ragged, axis):
    def step(x, h):
        h = torch.tanh(x + 0.5 * h)
        return h, h

    x, marks = torch.randn(4, 3, 2, dtype=DTYPE), torch.zeros(4, 3)
    n = x.shape[1 - axis]
    if ragged:
        x, marks, n = LoDTensor.from_lengths(x.flatten(0, 1), [[5, 0, 7]]), marks.flatten(), 3
    h0 = torch.randn(n, 2, dtype=DTYPE)
    want = flatten(recurrent(step, x, h0, axis=axis))[0]
    for resets in (marks, Resets(done=marks), Resets(is_init=marks.bool(), state=torch.zeros_like(h0))):
        got = flatten(recurrent(step, x, h0, axis=axis, resets=resets))[0]
        assert all(torch.equal(*map(_values, pair)) for pair in zip(got, want, strict=True))
        assert stepnet.explain(step, x, h0, axis=axis, resets=resets).executor == "c"


def _values(x):
    return x.values if isinstance(x, LoDTensor) else x
