"""Whole modules, saved as OpenVINO IR, compute the same at other lengths and batch sizes."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import check, loops, types
from stepnet import cells

BACKEND = "naive"


def _x(t, b):
    return (torch.randn(t, b, 3),)


@pytest.mark.exhaustive  # ragged: test_save_ragged.py
def test_two_layers_in_two_directions_with_projections(tmp_path):
    module = stepnet.nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2)
    assert len(loops(check(module, _x, tmp_path / "m.xml"))) == 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", few([stepnet.nn.GRU, nn.GRU], [nn.GRU]))
def test_layers_with_the_batch_first_are_cells(kind, tmp_path):
    module = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    model = check(module, lambda t, b: (torch.randn(b, t, 3),), tmp_path / "m.xml")
    assert all("GRUCell" in types(body) for body in loops(model))


def test_initial_states_are_inputs(tmp_path):
    module = stepnet.nn.LSTM(3, 4, bidirectional=True)

    def make(t, b):
        return torch.randn(t, b, 3), (torch.randn(2, b, 4), torch.randn(2, b, 4))

    model = check(module, make, tmp_path / "m.xml")
    assert [i.name for i in model.inputs] == ["input", "hx[0]", "hx[1]"]
    assert [i.shape for i in model.inputs] == [(-1, -1, 3), (2, -1, 4), (2, -1, 4)]


class _Words(nn.Module):
    """A step that reads words, each of two letters, by a module of torch."""

    def __init__(self):
        super().__init__()
        self.letters = nn.LSTM(3, 3)

    def forward(self, x):
        def step(word, h):
            y, _ = self.letters(word.transpose(0, 1))
            return h + y[-1], h + y[-1]

        return stepnet.recurrent(step, x, x.new_zeros(x.shape[1], 3))


def test_a_module_of_torch_over_a_fixed_number_in_a_step_is_written_out(tmp_path):
    """Of any number it is a loop in a loop."""
    sizes, dynamic = ((5, 2), (1, 3)), {"x": (0, 1)}
    (loop,) = loops(
        check(
            _Words(), lambda t, b: (torch.randn(t, b, 2, 3),), tmp_path / "m.xml", sizes=sizes,
            dynamic=dynamic,
        )
    )  # fmt: skip
    assert not {"LSTMCell", "TensorIterator"}.intersection(types(loop))


class _Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.rnn = stepnet.nn.LSTM(8, 6, bidirectional=True)
        self.norm = nn.LayerNorm(12)
        self.score = nn.Linear(12, 1)
        self.linear = nn.Linear(12, 3)

    def forward(self, tokens):
        y, _ = self.rnn(self.embedding(tokens))
        weights = torch.softmax(self.score(y), 0)
        return {"logits": self.linear(self.norm(y)), "pooled": (weights * y).sum(0), "last": y[-1]}


def test_embedding_recurrence_and_linear(tmp_path):
    model = check(_Tagger(), lambda t, b: (torch.randint(0, 10, (t, b)),), tmp_path / "m.xml")
    assert [o.name for o in model.outputs] == ["logits", "pooled", "last"]


class _Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        self.rnn = stepnet.Recurrent(cells.PeepholeLSTM(8, 5), axis=2)

    def forward(self, x):
        y, (h, c) = self.rnn(torch.relu(self.norm(self.conv(x))))
        return y.flatten(1), torch.cat([h, c], -1)


class Pictures(nn.Module):
    """Columns of pictures, from convolutions and pools, as the steps of a recurrence."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
            nn.MaxPool2d(3, 1, padding=1), nn.AvgPool2d((1, 3), 1, (0, 1)),
            nn.MaxPool2d((2, 1), 1, dilation=(2, 1)),
        )  # fmt: skip
        self.rnn = stepnet.nn.GRU(4, 3)

    def forward(self, x):
        rows = self.layers(x).mean(2)
        return self.rnn(rows.permute(2, 0, 1))


@pytest.mark.exhaustive
def test_pools_before(tmp_path):
    check(Pictures(), lambda t, b: (torch.randn(b, 1, 8, t),), tmp_path / "m.xml")


def test_a_convolution_before_and_time_as_the_last_dimension(tmp_path):
    check(_Convolution(), lambda t, b: (torch.randn(b, 3, t + 2),), tmp_path / "m.xml")


class _Decoder(nn.Module):
    """Attention over a memory that another recurrence made, of a length of its own."""

    def __init__(self, carried):
        super().__init__()
        self.encoder = stepnet.nn.GRU(3, 4, batch_first=True)
        self.cell = nn.GRUCell(7, 4)
        self.carried = carried

    def attend(self, z, h, memory):
        weights = torch.softmax((memory @ h.unsqueeze(2)).squeeze(2), -1)
        context = (weights.unsqueeze(1) @ memory).squeeze(1)
        h = self.cell(torch.cat([z, context], -1), h)
        return (h, weights), h

    def forward(self, x, z):
        memory, h = self.encoder(x)
        if not self.carried:
            return stepnet.recurrent(lambda z, h: self.attend(z, h, memory), z, h[0], axis=1, backend="naive")

        def step(z, state):
            y, h = self.attend(z, *state)
            return y, (h, state[1])

        y, (h, _) = stepnet.recurrent(step, z, (h[0], memory), axis=1)
        return y, h


@pytest.mark.exhaustive  # as tests/openvino/test_hoisting.py, which reads one
def test_attention_over_a_memory_in_the_closure(tmp_path):
    sizes = ((5, 3), (2, 2), (1, 4))
    check(
        _Decoder(False), lambda t, b: (torch.randn(b, t + 1, 3), torch.randn(b, t, 3)), tmp_path / "m.xml",
        sizes=sizes,
    )  # fmt: skip


@pytest.mark.exhaustive  # as in the closure
def test_attention_over_a_memory_in_the_state(tmp_path):
    sizes = ((5, 3), (2, 2), (1, 4))
    check(
        _Decoder(True), lambda t, b: (torch.randn(b, t + 1, 3), torch.randn(b, t, 3)), tmp_path / "m.xml",
        sizes=sizes,
    )  # fmt: skip


@pytest.mark.exhaustive  # as in the closure
def test_words_of_a_memory_of_any_length(tmp_path):
    """Whole numbers [sequences, rows] are not features."""

    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cells.GRU(4, 4)

        def step(self, x, h, words):
            _, h = self.cell(x, h)
            weights = (h[:, :1] * torch.arange(words.shape[1])).softmax(1)
            return h.new_zeros(len(h), 9).scatter_add(1, words, weights), h

        def forward(self, x, words):
            return stepnet.recurrent(self.step, x, torch.zeros(x.shape[1], 4), static=words)

    check(Pointer(), lambda t, b: (torch.randn(t, b, 4), torch.randint(0, 9, (b, t + 2))), tmp_path / "m.xml")


def _state(*shapes):
    return lambda b: tuple(torch.randn(b, *shape) for shape in shapes)


def _fibonacci(x, s):
    a, b = s
    return b + x, (0.5 * a + 0.5 * b + 0.1 * x, a)


def _swap(x, s):
    a, b = s
    return a + x, (b, a)


def _delay(x, s):
    a, b = s
    return b + x, (x, a)


def _count(x, s):
    return x * s[0], (s[0] + 1,)


def _forget(x, s):
    return s[0], (torch.tanh(0.5 * s[0]),)


def _fast_weights(x, s):
    k, v = x[:, :2], x[:, 2:]
    w = s[0] * 0.9 + k.unsqueeze(2) * v.unsqueeze(1)
    return (k.unsqueeze(1) @ w).squeeze(1), (w,)


def _of_every_kind(x, s):
    h = torch.where(x > s[0], torch.clamp(x - s[0], -1, 1), torch.remainder(x, 0.7))
    g = torch.cumsum(h, -1) * torch.softmax(x, -1) + h.flip(-1) + torch.gather(h, 1, (x > 0).long())
    return (g.argmax(-1), h.amax(-1, keepdim=True), torch.sort(x, -1).values.shape[1] * h), (
        torch.tanh(torch.round(4 * g) / 4 + torch.log1p(h.abs())),
    )


_TURNS = torch.polar(torch.linspace(0.2, 0.9, 2), torch.linspace(0, 3, 2))


def _turned(x, s):
    z = _TURNS * torch.complex(*s[0].chunk(2, -1))
    h = torch.cat([z.real, z.imag], -1) + x
    return h, (h,)


def _several_rows_each(x, s):
    h = torch.tanh(s[0] + x.repeat_interleave(2, 0) / (1 + s[1]))
    return h.unflatten(0, (-1, 2)).sum(1), (h, s[1] + 1)


STEPS = {
    "turned by complex numbers": (_turned, _state((4,)), {}),
    "two rows of the state for each of x, and a counter": (
        _several_rows_each,
        lambda b: (torch.zeros(2 * b, 4), torch.tensor(0.0)),
        {},
    ),
    "a step of the Fibonacci kind": (_fibonacci, _state((4,), (4,)), {}),
    "states that change places": (_swap, _state((4,), (4,)), {}),
    "a delay line": (_delay, _state((4,), (4,)), {}),
    "a delay line backwards": (_delay, _state((4,), (4,)), {"reverse": True}),
    "a state that looks at no input": (_count, _state((4,)), {}),
    "a step that looks at no input": (_forget, _state((4,)), {"axis": 1}),
    "a matrix as the state": (_fast_weights, _state((2, 2)), {}),
    "many calls": (_of_every_kind, _state((4,)), {}),
}


class _EachOfItsOwn(nn.Module):
    """Recurrences, each of inputs of its own, in one model."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, given):
        return [part(*inputs) for part, inputs in zip(self.parts, given, strict=True)]


def test_odd_steps(tmp_path):
    def make(t, b):
        return (
            [
                (torch.randn(*((b, t) if how.get("axis") else (t, b)), 4), state(b))
                for _, state, how in STEPS.values()
            ],
        )

    parts = [stepnet.Recurrent(step, **how) for step, _, how in STEPS.values()]
    check(_EachOfItsOwn(parts), make, tmp_path / "m.xml")


def test_nested_inputs_and_outputs(tmp_path):
    weight = torch.randn(4, 4)

    def step(x, s):
        h = torch.tanh(x["a"] @ weight + s["h"] * x["b"][0])
        return {"out": h, "both": (h + x["a"],)}, {"h": h}

    def make(t, b):
        x = {"a": torch.randn(t, b, 4), "b": (torch.randn(t, b, 4),)}
        return x, {"h": torch.randn(b, 4)}

    model = check(stepnet.Recurrent(step), make, tmp_path / "m.xml")
    assert len(model.inputs) == 3


def test_inputs_by_name(tmp_path):
    module = stepnet.Recurrent(cells.GRU(3, 4)).eval()
    from stepnet.openvino import load, save

    save(module, tmp_path / "m.xml", {"x": torch.randn(4, 3, 3), "state": torch.randn(3, 4)})
    assert [i.name for i in load(tmp_path / "m.xml").inputs] == ["x", "state"]


def _random_step(seed):
    """A step of random calls; states may be results as they are, or results of one another."""
    draw = random.Random(seed)
    calls = [(draw.randrange(7), draw.random(), draw.random()) for _ in range(draw.randint(3, 9))]
    count = draw.choice([1, 2, 3])
    taken = [draw.random() for _ in range(count + 1)]
    table = [
        lambda a, b: 0.5 * a + b,
        lambda a, b: a - 0.5 * b,
        lambda a, b: torch.clamp(a, -1, 1) * b,
        lambda a, b: torch.tanh(a),
        lambda a, b: torch.maximum(a, b),
        lambda a, b: torch.sigmoid(a),
        lambda a, b: torch.where(a > b, a, b * 0.3),
    ]

    def step(x, state):
        values = [x, *state]
        for kind, i, j in calls:
            a, b = (values[int(p * len(values))] for p in (i, j))
            values.append(table[kind](a, b))
        found = [values[int(p * len(values))] for p in taken]
        return found[-1], tuple(found[:-1])

    return step, count


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", few([range(4), range(4, 8)], [range(4)]), ids=str)
def test_random_steps(seeds, tmp_path):
    steps = [(seed, *_random_step(seed)) for seed in seeds]

    def given(seed, count, t, b):
        shape = (b, t, 3) if seed % 3 == 0 else (t, b, 3)
        return torch.randn(*shape), tuple(torch.randn(b, 3) for _ in range(count))

    def make(t, b):
        return ([given(seed, count, t, b) for seed, _, count in steps],)

    parts = [
        stepnet.Recurrent(step, reverse=seed % 2 == 1, axis=int(seed % 3 == 0)) for seed, step, _ in steps
    ]
    check(_EachOfItsOwn(parts), make, tmp_path / "m.xml", sizes=((6, 3), (1, 1)))


def test_the_largest_features(tmp_path):
    def step(x, s):
        values, places = torch.topk(s + x, 2, -1)
        s = torch.tanh(s + x + values.sum(-1, keepdim=True))
        return (values, places), s

    module = stepnet.Recurrent(step)
    check(module, lambda t, b: (torch.randn(t, b, 4), torch.randn(b, 4)), tmp_path / "m.xml")
