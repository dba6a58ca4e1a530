"""Loops inside loops in ONNX files, dense and over sequences of sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from saved_modules import plain_loops
from stepnet import BackEdge, InputPort, LoDTensor, OutputPort, TensorArray, TensorIterator, cells
from stepnet.data.tree import flatten
from stepnet.errors import IRError
from stepnet.saving.padded import PaddedLoD
from torch_since import torch_since

pytest.importorskip("onnx_ir")
import stepnet.onnx

BACKEND = "naive"


class Dense(nn.Module):
    """Each step runs a recurrence from the state of the outer one, a TensorIterator and a while loop."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = cells.LSTM(3, 4), cells.GRU(4, 4)
        weight = torch.randn(4, 4) / 3
        self.loop = TensorIterator(
            lambda part, h: torch.tanh(part.squeeze(1) @ weight + h),
            [InputPort("x", "part", axis=1), InputPort("h0", "h"), OutputPort("h", 0)],
            [BackEdge(0, "h")],
        )

    def step(self, x, h):
        y, (a, _) = stepnet.recurrent(self.inner, x, (h, h), axis=1)
        o, h = self.outer(a + self.loop(y, h)[0], h)
        h, n = stepnet.while_loop(
            lambda v, i: (v.abs().sum() > 3) & (i < 9), lambda v, i: (v * 0.7, i + 1), (h, torch.tensor(0))
        )
        return (y, o, n + h.new_zeros(h.shape[0])), h

    def forward(self, x):
        return stepnet.recurrent(self.step, x, torch.zeros(x.shape[1], 4), axis=0)


@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
def test_all_kinds_of_loops_in_a_step(check):
    written = check(Dense(), lambda t, b: (torch.randn(t, b, t + 1, 3),), sizes=((5, 3), (1, 1)))
    assert "Scan" in written.types
    assert {"LSTM", "Scan", "Loop"} <= set(written.bodies[0])


@pytest.mark.exhaustive
def test_a_recurrence_in_a_while_loop_and_in_a_tensor_iterator(check):
    cell = cells.MinGRU(4, 4)
    loop = TensorIterator(
        lambda part, h: stepnet.recurrent(cell, part.squeeze(0), h)[1],
        [InputPort("x", "part", axis=0), InputPort("h0", "h"), OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )

    class Both(nn.Module):
        def forward(self, x, h):
            h = loop(x, h)[0]
            return stepnet.while_loop(
                lambda v, i: (v.abs().sum() > 3) & (i < 9),
                lambda v, i: (stepnet.recurrent(cell, v * 0.7)[0], i + 1),
                (x[0] + h, torch.tensor(0)),
            )

    check(Both(), lambda t, b: (torch.randn(2, t, b, 4), torch.randn(b, 4)))


class Frames(nn.Module):
    """Each step runs a frame, of which each step runs a recurrence, whose weight the module computes."""

    def __init__(self):
        super().__init__()
        self.weight, self.outer = nn.Parameter(torch.randn(4, 4) / 3), cells.GRU(4, 4)

    def forward(self, x, h, scale):
        weight = self.weight * scale

        def low(x, h):
            h = torch.tanh(x @ weight + h)
            return h, h

        def step(x, h):
            means, parts = TensorArray(), TensorArray(unstack_from=x.transpose(0, 1))
            loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
            with loop.frame() as (s,):
                loop.break_if(s == parts.size())
                y, last = stepnet.recurrent(low, parts.read(s), means.read(s - 1, h), axis=1)
                means.write(s, y.mean(1) - last)
                loop.update(s, s + 1)
            return self.outer(means.stack().sum(0), h)

        return stepnet.recurrent(step, x, h)


def lists_of_lists(t, b):
    return torch.randn(t, b, t + 1, 2, 4), torch.randn(b, 4), torch.randn(4, 4)


@pytest.mark.exhaustive  # also a loop in a step
@torch_since("2.13", "its export wants the number of steps of the frame as a fixed number")
@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
def test_a_recurrence_in_a_frame_in_a_step(check):
    written = check(Frames(), lists_of_lists, sizes=((5, 3), (1, 1)))
    assert "Scan" in written.types
    assert "Scan" in written.bodies[0]


class FrameInFrame(nn.Module):
    """The inner frame begins with what the outer one wrote, and reads an array of its step."""

    def forward(self, x, h):
        steps, out = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == steps.size())
            columns = TensorArray(unstack_from=steps.read(s).t())
            inner = stepnet.create_whileloop([torch.tensor(0), out.read(s - 1, h)])
            with inner.frame() as (t, v):
                inner.break_if(t >= 2)
                inner.update(v, torch.tanh(v + columns.read(t)[:, None]))
                inner.update(t, t + 1)
            out.write(s, inner.results[1])
            loop.update(s, s + 1)
        return out.stack()


def test_a_frame_in_a_frame_that_reads_an_array_of_its_step(check):
    check(FrameInFrame(), lambda t, b: (torch.randn(t, b, 2), torch.randn(b, 2)), sizes=((5, 3), (2, 2)))


class Ragged(nn.Module):
    """Words make a sentence, from the state of the text that it is in; sentences make a text."""

    def __init__(self, reverse):
        super().__init__()
        self.words, self.inner, self.sentences = cells.LSTM(3, 4), cells.GRU(4, 4), cells.MinGRU(4, 4)
        self.reverse = reverse

    def step(self, words, h):
        y, new = stepnet.recurrent(self.inner, words, h)
        top = stepnet.sequence_pool(y, "max")
        return (y, top), new + 0.1 * top

    def forward(self, x, h):
        y, (last, _) = stepnet.recurrent(self.words, x)
        (inner, top), h = stepnet.recurrent(self.step, y, h, level=0, reverse=self.reverse)
        means = stepnet.sequence_pool(inner, "mean")
        z, _ = stepnet.recurrent(self.sentences, means)
        return inner, top, z, stepnet.sequence_expand(last, x), h


TEXTS = ([[2, 0, 3], [3, 1, 4, 0, 6]], [[1], [1]], [[4, 1], [2, 2, 0, 1, 5]], [[0, 1], [3]])


ENDS: dict[str, Any] = {
    "read inside": lambda x, block, rows: rows.size,
    "the array": lambda x, block, rows: rows.size(),
    "the block": lambda x, block, rows: block.shape[0],
    "what the blocks are of": lambda x, block, rows: x.shape[1],
}


@pytest.mark.parametrize("end", few(ENDS.values(), [ENDS["the array"], ENDS["what the blocks are of"]]))
def test_where_a_frame_inside_ends_stays_open(end, check):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4) / 3)

        def forward(self, x):
            blocks, out, weight = TensorArray(unstack_from=x), TensorArray(), self.weight
            outer = stepnet.create_whileloop([torch.tensor(0)])
            with outer.frame() as (s,):
                outer.break_if(s == blocks.size())
                block, before = blocks.read(s), out.read(s - 1, x[0, 0] * 0)
                rows, states = TensorArray(unstack_from=block), TensorArray()
                last = end(x, block, rows)
                loop = stepnet.create_whileloop([torch.tensor(0)])
                with loop.frame() as (t,):
                    loop.break_if(t == (last() if callable(last) else last))
                    states.write(t, torch.tanh(states.read(t - 1, before) @ weight + rows.read(t)))
                    loop.update(t, t + 1)
                out.write(s, states.stack()[-1])
                outer.update(s, s + 1)
            return out.stack()

    check(Inside(), lambda t, b: (torch.randn(t, t + 2, b, 4),), sizes=((5, 3), (1, 1), (2, 4)))


def text(lengths):
    words = LoDTensor.from_lengths(torch.randn(sum(lengths[1]), 3), lengths)
    return words, torch.randn(len(lengths[0]), 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reverse", few([False, True], [True]))
def test_sequences_of_sequences(reverse, tmp_path, opened):
    module = Ragged(reverse).eval()
    stepnet.onnx.save(module, tmp_path / "m.onnx", text(TEXTS[0]))
    written = opened(tmp_path / "m.onnx")
    assert written.inputs == ["x", "h", "lengths_0", "lengths_1"]
    for lengths in TEXTS:
        x, h = text(lengths)
        with torch.no_grad(), plain_loops():
            expected = flatten(module(x, h))[0]
        padded = PaddedLoD.of(x)
        inside = torch.arange(padded.grid.shape[2]) < padded.lengths[1].unsqueeze(-1)
        grid = padded.grid.masked_fill(~inside.unsqueeze(-1), torch.nan)
        beyond = torch.arange(padded.lengths[1].shape[1]) >= padded.lengths[0].unsqueeze(1)
        found = written(grid, h, padded.lengths[0], padded.lengths[1].masked_fill(beyond, 7))
        for a, b in zip(found, expected, strict=True):
            b = PaddedLoD.of(b).grid if isinstance(b, LoDTensor) else b
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_what_is_not_written(tmp_path):
    rows, cell = stepnet.Recurrent(cells.GRU(3, 4)), cells.GRU(3, 4)
    sentences = stepnet.Recurrent(lambda words, h: stepnet.recurrent(cell, words, h), level=0)
    deep = LoDTensor.from_lengths(torch.randn(3, 3), [[2], [1, 2], [1, 1, 1]])
    with pytest.raises(IRError, match=r"(?s)sequences of sequences\n.*3 levels\n.*two levels"):
        stepnet.onnx.save(rows, tmp_path / "m.onnx", deep)
    flat = LoDTensor.from_lengths(torch.randn(3, 3), [[1, 1], [1, 2]])
    with pytest.raises(IRError, match="no two sequences in one"):
        stepnet.onnx.save(sentences, tmp_path / "m.onnx", (flat, torch.zeros(2, 4)))


class Lengths(nn.Module):
    """A step asks how long its sentences are."""

    def step(self, words, h):
        n = words.lengths()[:, None]
        h = torch.tanh(stepnet.sequence_pool(words, "sum") / (n + 1) + h * n.max())
        return torch.cat([h, n.float()], 1), h

    def forward(self, x, h):
        return stepnet.recurrent(self.step, x, h, level=0)


def test_a_step_asks_how_long_its_sentences_are(tmp_path, opened):
    stepnet.onnx.save(Lengths(), tmp_path / "m.onnx", (text(TEXTS[0])[0], torch.zeros(3, 3)))
    written = opened(tmp_path / "m.onnx")
    for lengths in ([[2, 2], [3, 1, 4, 2]], [[1], [5]], [[2, 2, 2], [1, 2, 3, 4, 5, 6]]):
        x, h = text(lengths)[0], torch.randn(len(lengths[0]), 3)
        padded = PaddedLoD.of(x)
        y, last = Lengths()(x, h)
        found = written(padded.grid, h, *padded.lengths)
        torch.testing.assert_close(found[0], PaddedLoD.of(y).grid, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "asked",
    [
        lambda x, h: h + x.lod[-1].diff()[:, None],
        lambda x, h: h + torch.stack([part.sum(0) for part in x]),
        lambda x, h: stepnet.recurrent(lambda a, b, m: (b, b + m.rows.sum(1)), x, h, static=x)[1],
    ],
)
def test_numbers_of_the_sentences_of_a_step_are_refused(asked, tmp_path):
    class Model(nn.Module):
        def forward(self, x, h):
            return stepnet.recurrent(lambda x, h: (h, asked(x, h)), x, h, level=0)

    x, h = text([[2, 1], [3, 1, 4]])[0], torch.zeros(2, 3)
    with pytest.raises(IRError, match=r"(?s)(any lengths|inside a step over whole).*remedy"):
        stepnet.onnx.save(Model(), tmp_path / "m.onnx", (x, h))
