"""Decoding against exhaustive search and plain loops, on a small vocabulary."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import few
from stepnet.decode import beam_search, greedy
from stepnet.errors import StepError
from torch_since import torch_since

V, BOS, EOS = 4, 0, 3
embed = nn.Embedding(V, 5).double()
cell = nn.GRUCell(5, 6).double()
head = nn.Linear(6, V).double()
# Told of `step` once in a process: by whichever of its tests runs first.
two_types = pytest.mark.filterwarnings(
    "ignore:step 'step' runs by the plain loop. the loop computes in float32, float64"
)


@pytest.fixture(autouse=True)
def _weights() -> None:
    with torch.no_grad():
        for module in (embed, cell, head):
            for weight in module.parameters():
                weight.copy_(
                    torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
                )


def step(words: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    h = cell(embed(words), state["h"])
    return head(h), {"h": h, "count": state["count"] + 1}


def a_state(rows: int) -> dict[str, Tensor]:
    return {"h": 2 * torch.randn(rows, 6, dtype=torch.float64), "count": torch.zeros(rows, 1)}


def one_row(state: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row : row + 1] for name, value in state.items()}


def log_probability(state: Any, words: tuple[int, ...]) -> float:
    """Of a sequence with its eos, by itself."""
    total, before = 0.0, BOS
    with torch.no_grad():
        for word in words:
            scores, state = step(torch.tensor([before]), state)
            total += scores.log_softmax(1)[0, word].item()
            before = word
    return total


def exhaustive(state: Any, max_length: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence that ends with eos or at its last word, best first."""
    found = []
    for n in range(1, max_length + 1):
        for head_ in itertools.product([w for w in range(V) if w != EOS], repeat=n - 1):
            lasts = range(V) if n == max_length else [EOS]
            for last in lasts:
                words = (*head_, last)
                score = log_probability(state, words) / ((5 + n) / 6) ** penalty
                found.append((score, words[:-1] if last == EOS else words))
    return sorted(found, reverse=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("penalty", few([0.0, 0.6, 2.0], [0.6, 2.0]))
@pytest.mark.parametrize("rows", [1, 3])
@two_types
def test_a_wide_beam_finds_what_exhaustive_search_finds(rows, penalty):
    state = a_state(rows)
    words, scores = beam_search(
        step, state, bos=BOS, eos=EOS, beam_size=81, max_length=4, n_best=5, length_penalty=penalty
    )
    for row in range(rows):
        best = exhaustive(one_row(state, row), 4, penalty)[:5]
        assert [tuple(sequence.tolist()) for sequence in words[row]] == [w for _, w in best]
        assert scores[row].tolist() == pytest.approx([score for score, _ in best], rel=1e-9)


@pytest.mark.parametrize("beam_size", few([1, 2, 3], [2]))
@two_types
def test_the_scores_of_a_narrow_beam_are_those_of_its_sequences(beam_size):
    state = a_state(5)
    words, scores = beam_search(
        step, state, bos=BOS, eos=EOS, beam_size=beam_size, max_length=7, n_best=beam_size, length_penalty=0.5
    )
    for row in range(5):
        assert scores[row].tolist() == sorted(scores[row].tolist(), reverse=True)
        assert len({tuple(sequence.tolist()) for sequence in words[row]}) == len(scores[row])
        for sequence, score in zip(words[row], scores[row].tolist(), strict=True):
            ended = tuple(sequence.tolist()) + ((EOS,) if len(sequence) < 7 else ())
            expected = log_probability(one_row(state, row), ended) / ((5 + len(ended)) / 6) ** 0.5
            full = log_probability(one_row(state, row), (*ended[:6], EOS)) / ((5 + 7) / 6) ** 0.5
            assert score == pytest.approx(expected) or (len(ended) == 7 and score == pytest.approx(full))


@two_types
def test_rows_do_not_depend_on_each_other():
    state = a_state(4)
    options = {"bos": BOS, "eos": EOS, "beam_size": 2, "max_length": 9, "n_best": 2}
    words, scores = beam_search(step, state, **options)
    for row in range(4):
        alone, score = beam_search(step, one_row(state, row), **options)
        assert [s.tolist() for s in alone[0]] == [s.tolist() for s in words[row]]
        torch.testing.assert_close(score[0], scores[row])


@pytest.mark.parametrize("rows", [0, 1, 6])
@two_types
def test_greedy_is_the_plain_loop(rows):
    state = a_state(rows)
    words, scores = greedy(step, state, bos=BOS, eos=EOS, max_length=8)
    assert len(words) == len(scores) == rows
    for row in range(rows):
        now, before, expected, total = one_row(state, row), BOS, [], 0.0
        while len(expected) < 8 and (before != EOS or not expected):
            with torch.no_grad():
                log_p, now = step(torch.tensor([before]), now)
            before = int(log_p.argmax())
            total += log_p.log_softmax(1)[0, before].item()
            expected.append(before)
        assert words[row].tolist() == [word for word in expected if word != EOS]
        assert scores[row].item() == pytest.approx(total)


def by_row(ends: list[int]) -> tuple[Any, list[int]]:
    """A step that says eos for row i after ends[i] words, and the sizes that it was called with."""
    sizes: list[int] = []

    def run(words: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(words))
        likely = torch.where(left[:, 0] == 0, EOS, 1)
        return nn.functional.one_hot(likely, V) * 50.0, left - 1

    return run, sizes


@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_rows_that_are_done_cost_nothing():
    ends = [1, 5, 0, 2]
    run, sizes = by_row(ends)
    words, _ = greedy(run, torch.tensor(ends)[:, None], bos=BOS, eos=EOS, max_length=20)
    assert words.lengths().tolist() == ends
    assert sum(sizes) == sum(ends) + len(ends)
    run, sizes = by_row(ends)
    words, _ = beam_search(run, torch.tensor(ends)[:, None], bos=BOS, eos=EOS, beam_size=2, max_length=20)
    assert words.lengths().tolist() == ends
    assert sum(sizes) == 2 * (sum(ends) + len(ends))


@pytest.mark.parametrize("dtype", few([torch.float16, torch.bfloat16], [torch.float16]))
def test_scores_of_16_bits_are_added_up_in_32(dtype):
    scores = torch.tensor([0.0, 2.0, 1.5, -60.0], dtype=dtype)

    def run(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return scores.expand(len(words), V), state

    options = {"bos": BOS, "eos": EOS, "max_length": 40}
    expected = torch.full((2,), 40 * scores.float().log_softmax(0)[1].item())
    for by in (greedy, functools.partial(beam_search, beam_size=2)):
        for _ in range(2):
            found = by(run, torch.zeros(2, 1), **options)[1]
            torch.testing.assert_close(found if by is greedy else found.values, expected)


def test_a_beam_that_leads_nowhere_ends_no_other():
    table = torch.full((V, V), -torch.inf).double()
    table[BOS, 1:3], table[2, 2], table[2, EOS] = torch.tensor([1.0, 0.5]).double(), 0.0, 0.0

    def run(words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return table[words], state  # nothing comes after word 1

    words, scores = beam_search(run, torch.zeros(1, 1), bos=BOS, eos=EOS, beam_size=2, max_length=20)
    assert words[0][0].tolist() == [2]
    assert scores.values.item() == pytest.approx(table[BOS].log_softmax(0)[2].item() + math.log(0.5))


def test_no_rows_give_no_sequences():
    words, scores = beam_search(step, a_state(0), bos=BOS, eos=EOS, beam_size=2, max_length=3)
    assert (len(words), len(scores)) == (0, 0)


class Decoder(nn.Module):
    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        words, scores = greedy(step, {"h": h, "count": h[:, :1]}, bos=BOS, eos=EOS, max_length=3)
        return words.values, scores


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    "graph",
    [
        torch.jit.trace,
        pytest.param(torch.export.export, marks=torch_since("2.13", "its Dynamo asks for no modes")),
    ],
)
def test_what_has_no_graph_says_so(graph):
    with pytest.raises(StepError, match="greedy goes by the numbers of scores, which no graph holds"):
        graph(Decoder(), (a_state(2)["h"],))


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # told once: by whichever is first
@pytest.mark.parametrize(
    "decode",
    [
        greedy,
        pytest.param(
            functools.partial(beam_search, beam_size=2), marks=torch_since("2.13", "it has no numbers there")
        ),
    ],
)
def test_under_transforms(decode):
    state = a_state(2)

    def scores(h: Tensor) -> Tensor:
        found = decode(step, {**state, "h": h}, bos=BOS, eos=EOS, max_length=3)[1]
        return found if isinstance(found, Tensor) else found.values

    h = state["h"]
    torch.testing.assert_close(torch.func.grad(lambda h: scores(h).sum() + h.sum())(h), torch.ones_like(h))
    with pytest.raises(StepError, match=r"numbers of scores, of which torch\.vmap shows none"):
        torch.vmap(scores)(h[None])


GOOD = {"bos": BOS, "eos": EOS, "beam_size": 2, "max_length": 3}


@pytest.mark.parametrize(
    ("step_", "state", "options", "words"),
    [
        (step, a_state(2), {"max_length": 0}, "'max_length' must be a positive whole number"),
        (step, a_state(2), {"beam_size": True}, "'beam_size' must be a positive whole number"),
        (step, a_state(2), {"n_best": 3}, "n_best is at most beam_size"),
        (step, a_state(2), {"length_penalty": -1.0}, "'length_penalty' must be a number"),
        (step, a_state(2), {"eos": 9}, "eos is not in the vocabulary of step 'step'"),
        (step, {"h": torch.ones(2, 1), "count": torch.ones(3, 1)}, {}, "state['count'] float32[3, 1]"),
        (step, (), {}, "a row per sequence"),
        (step, a_state(2), {"static": torch.ones(3)}, "must have one row per sequence"),
        (lambda w, s: w, a_state(2), {}, "must return a pair"),
        (lambda w, s: (w, s), a_state(2), {}, "a score for each word"),
        (lambda w, s: (torch.ones(len(w), V).long(), s), a_state(2), {}, "logits or log probabilities"),
        (lambda w, s: (torch.ones(len(w), V), ()), a_state(2), {}, "changed the structure"),
        (lambda w, s: (torch.ones(len(w), V), torch.ones(9, 1)), torch.ones(2, 1), {}, "state float32[9, 1]"),
        (lambda w, s: (torch.ones(len(w), V), 1.0), torch.ones(2, 1), {}, "a state with a row per sequence"),
        (
            lambda w, s: (s.expand(-1, V) * torch.arange(V, 0, -1), s.double()),
            torch.ones(2, 1),
            {},
            "another dtype",
        ),
    ],
)
def test_errors(step_, state, options, words):
    with pytest.raises(StepError) as caught:
        beam_search(step_, state, **{**GOOD, **options})
    assert words in str(caught.value)


def test_a_state_of_all_sequences_is_not_cut_to_those_that_run():
    """Of two rows that still run of three, those of the first two were taken."""
    kept = torch.arange(3.0)[:, None]

    def at_once(words, state):
        return nn.functional.one_hot(state[:, 0].long() + (state[:, 0] < 1) * 3, V) * 9.0, kept

    with pytest.raises(StepError, match="must return a state with a row per sequence"):
        greedy(at_once, kept, bos=0, eos=3, max_length=4)
