"""An inner recurrence that needs nothing of the outer state runs once; any other, at each step."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import stepnet.api
import stepnet.engine
from covering import few
from stepnet.api import recurrent
from stepnet.cells import GRU, LSTM, LearnedInitialState, VariationalDropout
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import SlowPathWarning
from stepnet.testing import assert_close

BUILDS = False
LENGTHS = [[2, 0, 4, 1], [3, 1, 4, 0, 6, 0, 2]]
F64 = torch.float64


@pytest.fixture
def runs(monkeypatch):
    """How many sequences each inner recurrence ran over, in order."""
    counts: list[int] = []
    run, again, warm = stepnet.api.run, stepnet.api.run_again, stepnet.api.run_warm

    def counted(loop, feeds, **how):
        result = run(loop, feeds, **how)  # raises for the outer step, which has no plan
        counts.append(len(feeds[loop.slices[0].source].lengths()))
        return result

    def counted_again(call):
        result = again(call)
        if result is not None:
            counts.append(call.layout.sequences)
        return result

    def counted_warm(steps, step, x, *how):
        state, result = warm(steps, step, x, *how)
        if result is not None:
            counts.append(len(flatten(x)[0][0].lengths()))
        return state, result

    # each step is one of sentences
    monkeypatch.setattr("stepnet.nested.loop_flattening._as_one", lambda *_, **__: None)
    monkeypatch.setattr(stepnet.api, "run", counted)
    monkeypatch.setattr("stepnet.nested.lifting.run", counted)
    monkeypatch.setattr(stepnet.api, "run_warm", counted_warm)
    monkeypatch.setattr(stepnet.api, "run_again", counted_again)
    return counts


def documents(lengths=LENGTHS):
    rows = torch.randn(sum(lengths[-1]), 3, dtype=F64, requires_grad=True)
    start = torch.zeros(len(lengths[0]), 5, dtype=F64, requires_grad=True)
    return LoDTensor.from_lengths(rows, lengths), start


def check(step, modules, runs, expected_runs, x=None, start=None, reverse=False):
    """Values and gradients are those of the plain loop, which lifts nothing; it ran as often as expected."""
    if x is None or start is None:
        x, start = documents()
    runs.clear()
    (y, last), (plain, plain_last) = (
        recurrent(step, x, start, level=0, reverse=reverse, backend=backend) for backend in (None, "naive")
    )
    if expected_runs is not None:
        assert runs[: len(expected_runs)] == expected_runs
    inputs = [x.values, start, *modules.parameters()]
    found, wanted = [], []
    for a, b in zip((*y, last), (*plain, plain_last), strict=True):
        if isinstance(b, LoDTensor):
            assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
            a, b = a.values, b.values
        assert_close("result", a, b, 1e-10)
        found.append(a)
        wanted.append(b)
    seeds = [torch.randn_like(t) for t in wanted]
    assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted]
    kept = [i for i, t in enumerate(wanted) if t.requires_grad]
    if not kept:
        return
    gradients = (
        torch.autograd.grad(
            [t[i] for i in kept],
            inputs,
            [seeds[i] for i in kept],
            allow_unused=True,
            materialize_grads=True,
        )
        for t in (found, wanted)
    )
    for a, b in zip(*gradients, strict=True):
        assert_close("gradient", a, b, 1e-10)


class Reader(nn.Module):
    """Reads sentences by a cell, and documents by what it read."""

    def __init__(self, cell, size, reverse=False):
        super().__init__()
        self.cell, self.reverse = cell, reverse
        self.outer = nn.GRUCell(size, 5, dtype=F64)

    def forward(self, sentences, h):
        y, final = recurrent(self.cell, sentences, reverse=self.reverse)
        h = self.outer(final[0] if isinstance(final, tuple) else final, h)
        return (h, y), h


CELLS = {
    "GRUCell": lambda: nn.GRUCell(3, 4, dtype=F64),
    "LSTM, two states": lambda: LSTM(3, 4, dtype=F64),
    "learned initial state": lambda: LearnedInitialState(GRU(3, 4, dtype=F64)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("outer", [False, True], ids=["outer forward", "outer reverse"])
@pytest.mark.parametrize("inner", [False, True], ids=["inner forward", "inner reverse"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_it_runs_once_over_all_sentences(cell, inner, outer, runs):
    reader = Reader(cell(), 4, reverse=inner)
    for parameter in reader.parameters():
        nn.init.normal_(parameter)
    check(reader, reader, runs, [7], reverse=outer)
    assert 7 not in runs[1:]


@pytest.mark.parametrize(
    "lengths",
    [[[0, 0], []], [[], []], [[1, 2], [0, 0, 0]], [[1, 1], [2, 3]], [[2, 2], [3, 3, 3, 3]]],
    ids=["empty documents", "none", "empty sentences", "one sentence each", "equal"],
)
def test_odd_structures(lengths, runs):
    reader = Reader(nn.GRUCell(3, 4, dtype=F64), 4)
    check(reader, reader, runs, None, *documents(lengths))


def test_three_levels(runs):
    """The middle level: sentences of paragraphs, the words of all of them at once."""
    lengths = [[2, 0, 2], [2, 0, 3, 1], [3, 1, 0, 4, 2, 2]]
    x, _ = documents(lengths)
    reader = Reader(nn.GRUCell(3, 4, dtype=F64), 4)
    runs.clear()
    (h, y), last = recurrent(reader, x, torch.zeros(4, 5, dtype=F64), level=1)
    assert runs == [6]
    (h2, y2), last2 = recurrent(reader, x, torch.zeros(4, 5, dtype=F64), level=1, backend="naive")
    assert y.recursive_sequence_lengths() == y2.recursive_sequence_lengths() == lengths
    for a, b in ((y.values, y2.values), (h.values, h2.values), (last, last2)):
        assert_close("result", a, b, 1e-10)


def test_paragraphs_of_documents(runs):
    """An element holds two levels: every word of every sentence of a paragraph, by one run over all."""
    lengths = [[2, 0, 1], [2, 0, 3], [3, 1, 0, 4, 2]]
    x, start = documents(lengths)
    cell, outer = nn.GRUCell(3, 4, dtype=F64), nn.GRUCell(4, 5, dtype=F64)

    def step(paragraphs, h):
        y, ends = recurrent(cell, paragraphs)  # by the last level: a final state for each sentence
        ends = LoDTensor(ends, paragraphs.lod[:1])
        h = outer(stepnet.sequence_pool(ends, "sum"), h)
        return (h, y), h

    check(step, nn.ModuleList([cell, outer]), runs, [5], x, start)


class Halved(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made / 2 if getattr(func, "__name__", "") == "gru_cell" else made


class Steps(nn.Module):
    """Steps around one cell, each with a call that looks as if it could run once."""

    def __init__(self):
        super().__init__()
        self.cell, self.outer = nn.GRUCell(3, 5, dtype=F64), nn.GRUCell(5, 5, dtype=F64)
        self.scale = nn.Parameter(torch.ones(1, dtype=F64))
        self.count = 0

    def state_itself(self, sentences, h):
        y, h = recurrent(self.cell, sentences, h)
        return (h, y), h

    def made_from_the_state(self, sentences, h):
        y, new = recurrent(self.cell, sentences, (h * 2).detach())  # all zeros at the first step
        h = self.outer(new, h)
        return (h, y), h

    def made_from_the_state_with_gradient(self, sentences, h):
        y, new = recurrent(self.cell, sentences, h * 2)
        h = self.outer(new, h)
        return (h, y), h

    def in_a_closure(self, sentences, h):
        shift = h.mean()

        def shifted(word, s):
            return self.cell(word, s)[:, :5] + shift, self.cell(word, s)

        y, new = recurrent(shifted, sentences, torch.zeros(len(sentences), 5, dtype=F64))
        h = self.outer(new, h)
        return (h, y), h

    def words_from_the_state(self, sentences, h):
        y, new = recurrent(self.cell, sentences * (1 + h.mean()))
        h = self.outer(new, h)
        return (h, y), h

    def words_in_place(self, sentences, h):
        with torch.no_grad():
            sentences.values.mul_(1 + h.mean())
        y, new = recurrent(self.cell, sentences)
        h = self.outer(new, h)
        return (h, y), h

    def bias_by_way_of_data(self, sentences, h):
        self.cell.bias_ih.data.fill_(float(h.detach().mean()))  # which no version counts
        y, new = recurrent(self.cell, sentences)
        h = self.outer(new, h)
        return (h, y), h

    def in_a_mode_at_times(self, sentences, h):
        with Halved() if h.detach().any() else contextlib.nullcontext():
            y, new = recurrent(self.cell, sentences)
        h = self.outer(new, h)
        return (h, y), h

    def another_constant_at_each_step(self, sentences, h):
        y, new = recurrent(self.cell, sentences, torch.full_like(h, float(h.detach().abs().sum())))
        h = self.outer(new, h)
        return (h, y), h

    def another_number_at_each_step(self, sentences, h):
        power = float(h.detach().sum() > 0)

        def scaled(word, s):
            s = self.cell(word, s)
            return s * power, s

        y, new = recurrent(scaled, sentences, torch.zeros_like(h))
        h = self.outer(new, h)
        return (h, y), h

    def without_gradient_at_times(self, sentences, h):
        with torch.set_grad_enabled(bool(h.detach().abs().sum() == 0)):
            y, new = recurrent(self.cell, sentences)
        h = self.outer(new, h)
        return (h, y), h

    def other_rows_of_an_initial_state(self, sentences, h):
        first = torch.arange(len(sentences), dtype=F64)[:, None].expand(-1, 5)
        y, new = recurrent(self.cell, sentences, first)
        h = self.outer(new, h)
        return (h, y), h


STEPS = [name for name, value in vars(Steps).items() if callable(value) and not name.startswith("_")]


@pytest.mark.parametrize("name", few(STEPS, [*STEPS][::3]))
def test_what_depends_on_the_state_runs_at_each_step(name, runs):
    module = Steps()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    step = getattr(module, name)
    for _ in range(2):
        x, start = documents()
        if name == "words_in_place":
            x = x.detach()
            y, last = recurrent(step, x, start, level=0)
            plain, plain_last = recurrent(step, x, start, level=0, backend="naive")
            assert_close("y", y[1].values, plain[1].values, 1e-10)
            assert_close("final state", last, plain_last, 1e-10)
        else:
            check(step, module, runs, None, x, start)
    by_plans = len([n for n in runs if n in (1, 2, 3)])
    assert name == "in_a_mode_at_times" or by_plans >= 3  # 3 documents have a first sentence, and so on


def test_an_inner_call_that_turned_out_to_depend_is_not_tried_again(runs):
    cell = nn.GRUCell(3, 5, dtype=F64)
    x, start = documents()

    def step(sentences, h):
        y, new = recurrent(cell, sentences, torch.full_like(h, float(h.detach().abs().sum())))
        return y, new

    for expected in ([7, 2, 1, 1], [3, 2, 1, 1]):
        runs.clear()
        recurrent(step, x, start, level=0)
        assert runs == expected


def test_noise_is_drawn_at_each_step(runs):
    cell = VariationalDropout(GRU(3, 4, dtype=F64), input_p=0.5, state_p=0.5)
    reader = Reader(cell, 4)
    x, start = documents()
    recurrent(reader, x, start, level=0)
    assert runs == [3, 2, 1, 1]


def test_two_inner_recurrences_one_of_them_lifted(runs):
    encoder, inner = nn.GRUCell(3, 5, dtype=F64), nn.GRUCell(3, 5, dtype=F64)

    def step(sentences, h):
        y, ends = recurrent(encoder, sentences)
        z, h = recurrent(inner, sentences, h)
        h = torch.tanh(h + ends)
        return (y, z), h

    check(step, nn.ModuleList([encoder, inner]), runs, [7, 3, 2, 1, 1])


def test_several_leaves_at_once(runs):
    a, b = nn.GRUCell(3, 4, dtype=F64), nn.GRUCell(4, 5, dtype=F64)
    x, start = documents()
    other = x.map(lambda rows: rows.detach().cos())

    def both(words, h):
        h = a(words["x"] * words["other"], h)
        return h, h

    def step(sentences, h):
        y, ends = recurrent(both, sentences, torch.zeros(len(sentences["x"]), 4, dtype=F64))
        h = b(ends, h)
        return (h, y), h

    runs.clear()
    (_, y), last = recurrent(step, {"x": x, "other": other}, start, level=0)
    assert runs == [7]
    (_, y2), last2 = recurrent(step, {"x": x, "other": other}, start, level=0, backend="naive")
    assert_close("y", y.values, y2.values, 1e-10)
    assert_close("final state", last, last2, 1e-10)


def test_inner_recurrences_share_one_plan(monkeypatch):
    """However many outer steps, of whatever sizes, the inner step is captured once; nothing warns."""
    compiled = []
    make = stepnet.engine.make.compile_loop
    monkeypatch.setattr(
        stepnet.engine.make, "compile_loop", lambda *args: compiled.append(args[1].name) or make(*args)
    )
    cell = nn.GRUCell(3, 7, dtype=F64)
    for lengths in (LENGTHS, [[5, 1], [1, 2, 0, 2, 1, 3]]):
        rows = torch.randn(sum(lengths[1]), 3, dtype=F64, requires_grad=True)
        start = torch.randn(len(lengths[0]), 7, dtype=F64, requires_grad=True)
        x = LoDTensor.from_lengths(rows, lengths)
        recurrent(lambda words, h: recurrent(cell, words, h), x, start, level=0)
    # the state of the first outer step is the caller's own, those after it are results: two kinds at the most
    assert 1 <= len(compiled) <= 2
    assert set(compiled) == {"GRUCell"}


def test_an_inner_step_that_has_no_plan_warns_by_its_own_name():
    def odd(word, h):
        return word * (2.0 if float(word.detach().sum()) > 0 else 1.0), h

    x, start = documents()
    with pytest.warns(SlowPathWarning, match="odd"):
        recurrent(lambda s, h: (recurrent(odd, s, h)[0], h), x, start, level=0)


def test_an_inner_recurrence_that_waits_for_the_outer_state_is_found_as_others_are(monkeypatch):
    """Its calls go the short way, and count: what comes behind it still runs once."""
    # each step is one of sentences
    monkeypatch.setattr("stepnet.nested.loop_flattening._as_one", lambda *_, **__: None)
    long = []
    run = stepnet.api.run
    inner, once, outer = (nn.GRUCell(n, 4, dtype=F64) for n in (3, 3, 4))
    x, start = documents()
    start = start[:, :4]

    def step(sentences, h):
        _, last = recurrent(inner, sentences, h)
        _, said = recurrent(once, sentences)
        h = outer(last + said, h)
        return h, h

    y, last = recurrent(step, x, start, level=0)
    recurrent(step, x, start, level=0)
    for runs in ("stepnet.api.run", "stepnet.nested.lifting.run"):
        monkeypatch.setattr(runs, lambda *a, **k: long.append(a) or run(*a, **k))
    recurrent(step, x, start, level=0)
    assert len(long) == 2  # the outer loop, which has no plan, and what runs once
    y2, last2 = recurrent(step, x, start, level=0, backend="naive")
    assert_close("y", y.values, y2.values, 1e-10)
    assert_close("final state", last, last2, 1e-10)
