"""Steps that write into what they are given: the words and scores of the same step that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hurry import in_a_hurry
from stepnet import decode

V, H = 6, 4
TABLE, OUT = torch.randn(V, H, generator=torch.Generator().manual_seed(1)), torch.randn(H, V)


def clean(word: Tensor, state: Any) -> Any:
    h, m = state
    m = m * 0.5 + TABLE[word]
    h = torch.tanh(h + m)
    return h @ OUT, (h, m)


def into_the_word(word: Tensor, state: Any) -> Any:
    result = clean(word, state)
    word.fill_(0)
    return result


def into_the_state(word: Tensor, state: Any) -> Any:
    h, m = state
    m.mul_(0.5).add_(TABLE[word])
    h = torch.tanh(h + m)
    return h @ OUT, (h, m)


def other_memory(word: Tensor, state: Any) -> Any:
    h, m = state
    m.data = m.data * 0.5 + TABLE[word]
    h = torch.tanh(h + m)
    return h @ OUT, (h, m)


def by_greedy(step: Any, state: Any) -> Any:
    words, score = decode.greedy(step, state, bos=1, eos=0, max_length=4)
    return words.values, words.lengths(), score


def by_beams(step: Any, state: Any) -> Any:
    words, score = decode.beam_search(step, state, bos=1, eos=0, max_length=4, beam_size=2)
    return words.values, words.lengths(), score.values


@pytest.mark.filterwarnings("ignore:step .* runs by the plain loop")
@pytest.mark.parametrize("step", [into_the_word, into_the_state, other_memory], ids=lambda f: f.__name__)
@pytest.mark.parametrize("run", [by_greedy, by_beams])
def test_they_give_what_others_give(run: Callable[..., Any], step: Callable[..., Any]) -> None:
    state = torch.randn(3, H), torch.randn(3, H)
    before = [leaf.clone() for leaf in state]
    with in_a_hurry():
        torch.testing.assert_close(run(step, state), run(clean, state))
    torch.testing.assert_close(list(state), before, rtol=0, atol=0)
