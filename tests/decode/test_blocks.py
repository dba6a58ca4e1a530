"""Decoding by generated C, a block of steps at a time, against the plain loop."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import few
from saved_modules import plain_loops
from stepnet import LoDTensor
from stepnet.decode import beam_search, blocks, greedy
from stepnet.engine import warm_calls
from stepnet.errors import BuildError, NotBuilt, StepError, TorchOpsWarning
from stepnet.executors.c import build as c_build
from stepnet.executors.setting import set_backend
from threads import at_once
from torch_since import TOLD

V, H, EOS, BOS = 7, 5, 6, 0


class Speaker(nn.Module):
    """A decoder that attends to a memory; its table has no row for eos, which is never a word before."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(V - 1, H), nn.GRUCell(2 * H, H), nn.Linear(H, V)
        self.double()

    def forward(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, memory = state
        context = torch.bmm(torch.einsum("nlh,nh->nl", memory, h).softmax(1)[:, None], memory)[:, 0]
        h = self.cell(torch.cat([self.table(words), context], 1), h)
        return self.head(3 * h), (h, memory)


def a_state(rows: int) -> tuple[Tensor, Tensor]:
    return 2 * torch.randn(rows, H, dtype=torch.float64), torch.randn(rows, 3, H, dtype=torch.float64)


def plainly(*args: Any, by: Any = greedy, **how: Any) -> tuple[LoDTensor, Any]:
    with plain_loops():
        return by(*args, **how)


def same(found: tuple[LoDTensor, Tensor], expected: tuple[LoDTensor, Tensor]) -> None:
    assert found[0].lengths().tolist() == expected[0].lengths().tolist()
    assert torch.equal(found[0].values, expected[0].values)
    torch.testing.assert_close(found[1], expected[1])


def rows(found: tuple[LoDTensor, Any]) -> tuple[LoDTensor, Tensor]:
    """Words and scores, those of beams as rows."""
    words, scores = found
    return words, scores.values if isinstance(scores, LoDTensor) else scores


@pytest.fixture
def in_c(monkeypatch):
    """Whether each call ran in blocks, or was left to the plain loop."""
    ran: list[bool] = []
    run = blocks.in_blocks

    def counted(*args: Any, **how: Any) -> Any:
        out = run(*args, **how)
        if "plainly" not in how:
            ran.append(out is not None)
        return out

    for name in ("greedy", "beam"):
        monkeypatch.setattr(sys.modules[f"stepnet.decode.{name}"], "in_blocks", counted)
    return ran


def test_c_that_cannot_be_built_is_told(monkeypatch):
    def fails(*_: Any) -> Any:
        raise BuildError("the C compiler failed", got="no room")

    def step(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([state, words + state], 1), state + 0.5

    run = functools.partial(greedy, step, torch.zeros(2), bos=0, eos=1, max_length=3)
    monkeypatch.setattr(c_build, "_built", fails)
    with pytest.warns(
        TorchOpsWarning, match=r"step' runs by torch ops(.|\n)*failed(.|\n)*set_backend"
    ) as told:
        found = [run(), run()]
    assert len(told) == 1
    same(found[1], plainly(step, torch.zeros(2), bos=0, eos=1, max_length=3))
    set_backend("c")
    with pytest.raises(NotBuilt, match="the C compiler failed"):
        run()


@pytest.mark.covering(1)
@pytest.mark.parametrize("max_length", [1, 2, 16, 17, 18, 60])
@pytest.mark.parametrize("rows", [1, 9])
def test_words_and_scores_are_those_of_the_plain_loop(rows, max_length, in_c):
    torch.manual_seed(rows)
    step, state = Speaker(), a_state(rows)
    how = {"bos": BOS, "eos": EOS, "max_length": max_length}
    for bias in (0.0, 1.5, -9.0):  # eos comes late, early, never
        with torch.no_grad():
            step.head.bias[EOS] = bias
        same(greedy(step, state, **how), plainly(step, state, **how))
    assert in_c == [True, False] * 3


@pytest.mark.parametrize("penalty", few([0.0, 0.7], [0.7]))
def test_beams_are_those_of_the_plain_loop(penalty, in_c):
    step, state = Speaker(), a_state(5)
    how = {"bos": BOS, "eos": EOS, "beam_size": 3, "n_best": 2, "length_penalty": penalty}
    for bias, longest in ((0.0, 1), (0.0, 24), (3.0, 24), (-9.0, 18)):  # ends late, early, never
        with torch.no_grad():
            step.head.bias[EOS] = bias
        found = beam_search(step, state, max_length=longest, **how)
        words, scores = plainly(step, state, max_length=longest, by=beam_search, **how)
        assert found[0].lengths(0).tolist() == words.lengths(0).tolist()
        same((found[0], found[1].values), (words, scores.values))
    assert in_c == [True, False] * 4


@pytest.mark.parametrize("by", [greedy, functools.partial(beam_search, beam_size=2)])
def test_a_ragged_memory_is_seen_by_each_row_and_beam(by, in_c):
    speaker = Speaker()

    def attend(words: Tensor, h: Tensor, static: Any) -> tuple[Tensor, Tensor]:
        memory, bias = static
        scores = torch.einsum("nlh,nh->nl", memory.rows, h).masked_fill(~memory.mask, -torch.inf)
        context = torch.bmm(scores.softmax(1)[:, None], memory.rows)[:, 0]
        h = speaker.cell(torch.cat([speaker.table(words), context], 1), h)
        return speaker.head(3 * h) + bias, h

    lengths = [3, 1, 9, 2]
    memory = LoDTensor.from_lengths(torch.randn(15, H, dtype=torch.float64), [lengths])
    h, bias = 2 * torch.randn(4, H, dtype=torch.float64), torch.randn(4, V, dtype=torch.float64)
    how = {"bos": BOS, "eos": EOS, "max_length": 20}
    found = rows(by(attend, h, static=(memory, bias), **how))
    same(found, rows(plainly(attend, h, static=(memory, bias), by=by, **how)))
    for i in range(4):  # each row sees its own, of the length it has
        one = memory[i : i + 1], bias[i : i + 1]
        alone = rows(plainly(attend, h[i : i + 1], static=one, by=by, **how))
        torch.testing.assert_close(alone[1], found[1][i : i + 1])
        assert torch.equal(alone[0].values, found[0][i : i + 1].values)
    assert in_c[0]


def test_eos_may_be_the_word_that_begins(in_c):
    def step(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(state + words[:, None]), state * 1.1 + 0.3

    state = torch.randn(6, 4)
    same(greedy(step, state, bos=3, eos=3, max_length=20), plainly(step, state, bos=3, eos=3, max_length=20))
    assert in_c[0]


def test_inside_of_a_derivative(in_c):
    """Where tensors do not tell where they lie."""
    step, (h, memory) = Speaker(), a_state(3)

    def weighed(h: Tensor) -> tuple[Tensor, Any]:
        found = greedy(step, (h, memory), bos=BOS, eos=EOS, max_length=5)
        return h.sum() + found[1].sum(), found

    for _ in range(2):
        of_h, found = torch.func.grad(weighed, has_aux=True)(h)
        assert torch.equal(of_h, torch.ones_like(h))
        same(found, plainly(step, (h, memory), bos=BOS, eos=EOS, max_length=5))


@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_a_step_that_notes_what_it_sees_runs_by_the_plain_loop(in_c):
    seen: list[int] = []

    def step(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(words))
        return torch.sin(state + words[:, None]), state + 1

    state = torch.arange(12.0).view(3, 4)
    expected = plainly(step, state, bos=0, eos=3, max_length=9)
    noted = seen.copy()
    seen.clear()
    same(greedy(step, state, bos=0, eos=3, max_length=9), expected)
    assert seen[1:] == noted[1:]
    assert in_c == [False, False]


@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_what_is_wrong_is_told_as_by_the_plain_loop():
    def grows(words: Tensor, state: Tensor) -> tuple[Tensor, Any]:
        return torch.zeros(words.shape[0], 3), (state, state)

    with pytest.raises(StepError, match="changed the structure of the state"):
        greedy(grows, torch.zeros(2, 1), bos=0, eos=2, max_length=5)

    table = nn.Embedding(2, 3)

    def looks_up(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return table(words) + torch.tensor([0.0, 9.0, 20.0]) * (words[:, None] > 0), state

    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]))
    with pytest.raises(IndexError):
        greedy(looks_up, torch.zeros(2, 1), bos=0, eos=0, max_length=40)


@TOLD
def test_a_step_is_found_again_and_what_changes_of_it_is_seen(monkeypatch):
    step, state = Speaker(), a_state(3)
    walked: list[Any] = []
    reach = warm_calls.reach

    def counted(*given: Any) -> Any:
        walked.append(given[0])
        return reach(*given)

    monkeypatch.setattr(warm_calls, "reach", counted)
    how = {"bos": BOS, "eos": EOS, "max_length": 9}
    for by in (greedy, functools.partial(beam_search, beam_size=2)):
        for words in (step, step.forward):
            for _ in range(5):
                by(words, state, **how)
            walked.clear()
            by(words, state, **how)
            assert not walked
            step.head.weight.data.mul_(-2)
            same(rows(by(words, state, **how)), rows(plainly(words, state, by=by, **how)))
            step.head = nn.Linear(H, V).double()
            same(rows(by(words, state, **how)), rows(plainly(words, state, by=by, **how)))
    alive = weakref.ref(step)
    del step, words
    walked.clear()
    gc.collect()
    assert alive() is None


def test_from_several_threads():
    step, state = Speaker(), a_state(4)
    how = {"bos": BOS, "eos": EOS, "max_length": 30}
    expected = plainly(step, state, **how)
    for one in at_once(lambda _: greedy(step, state, **how)):
        same(one, expected)


@pytest.mark.parametrize("beam_size", few([1, 3], [3]))
@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_memories_that_a_step_writes_are_each_beams_own(beam_size, in_c):
    """What a step hands on as it is, is kept once for all beams of a row; not what it writes in place."""
    speaker = Speaker()

    def in_place(words: Tensor, state: Any) -> tuple[Tensor, Any]:
        scores, (h, memory) = speaker(words, state)
        memory[:, 0] += 0.3 * h
        return scores, (h, memory)

    def now_and_then(words: Tensor, state: Any) -> tuple[Tensor, Any]:
        scores, (h, memory) = speaker(words, state[:2])
        after = (state[2] > 2).to(memory)[:, None, None]
        return scores, (h, memory + 0.3 * after * h[:, None], state[2] + 1)

    def through_a_view(words: Tensor, state: Any) -> tuple[Tensor, Any]:
        scores, (h, memory) = speaker(words, state)
        memory.view(len(memory), -1)[:, :H].mul_(0.9).add_(0.1 * h)
        return scores, (h, memory)

    how = {"bos": BOS, "eos": EOS, "beam_size": beam_size, "max_length": 20}
    count = torch.zeros(4, dtype=torch.float64)
    for step, more in ((in_place, ()), (now_and_then, (count,)), (through_a_view, ())):
        torch.manual_seed(3)
        state = (*a_state(4), *more)
        found = beam_search(step, state, **how)
        words, scores = plainly(step, state, by=beam_search, **how)
        same((found[0], found[1].values), (words, scores.values))
        rows = [[v[i : i + 1] for v in state] for i in range(4)]
        alone = [plainly(step, tuple(row), by=beam_search, **how)[1].values for row in rows]
        torch.testing.assert_close(scores.values, torch.cat(alone))
    assert in_c.count(True) == 1  # what is written in place is left to the plain loop


@pytest.mark.parametrize("by", few([greedy, functools.partial(beam_search, beam_size=2)], [greedy]))
def test_what_was_known_of_a_step_is_held_against_what_it_does(by):
    """Steps of one source that differ in types, sizes, and in what they hand on as it is."""

    def made(dtype: torch.dtype, words: int, keeps: bool) -> Any:
        table = torch.randn(words, words, dtype=dtype)

        def step(words: Tensor, state: Any) -> tuple[Tensor, Any]:
            h, more = state
            return table[words] + h, (h * 0.9, more if keeps else more + 1)

        return step

    f32, f64 = torch.float32, torch.float64
    for dtype, words, keeps in ((f32, 5, True), (f64, 5, True), (f32, 7, True), (f32, 5, False)):
        step, state = made(dtype, words, keeps), (torch.randn(3, 1, dtype=dtype), torch.zeros(3))
        for longest in (20, 33):
            how = {"bos": 1, "eos": 0, "max_length": longest}
            same(rows(by(step, state, **how)), rows(plainly(step, state, by=by, **how)))


@pytest.mark.parametrize("generator", [None, torch.Generator()])
@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_a_step_that_draws_goes_on_as_the_plain_loop_draws(generator, in_c):
    table = torch.zeros(5, 5)

    def step(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return table[words] - torch.rand(len(words), 5, generator=generator).log().neg().log(), state

    state, how = torch.zeros(6, 1), {"bos": 1, "eos": 0, "max_length": 40}
    for by in (greedy, functools.partial(beam_search, beam_size=2)):
        found = []
        for run in (by, by, functools.partial(plainly, by=by)):
            seeded = torch.manual_seed(3) if generator is None else generator.manual_seed(3)
            found.append((*rows(run(step, state, **how)), seeded.get_state()))
        for one in found:
            same(one[:2], found[2][:2])
            assert torch.equal(one[2], found[2][2])
    assert not any(in_c)
