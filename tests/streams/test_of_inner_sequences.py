"""Words of sentences that arrive a sentence at a time: what takes whole sequences takes those of words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from stepnet import LoDTensor, cells, recurrent

BACKEND = "naive"
CELL = cells.GRU(3, 3).double()


def over_sentences(rows):
    return recurrent(CELL, rows)[0]


def softmax(x):
    return x.with_values(x.values * stepnet.sequence_softmax(x.with_values(x.values[:, 0])).values[:, None])


def expanded(x):
    return x.with_values(
        x.values + stepnet.sequence_expand(stepnet.sequence_pool(x, "sum").values, x, -1).values
    )


def over_words(x):
    words = x.drop_levels(1)
    return x.with_values(recurrent(CELL, words)[0].values)


POOLINGS: tuple[Any, ...] = ("sum", "mean", "sqrt", "max", "first", "last")
MODULES = {
    **{how: lambda x, how=how: over_sentences(stepnet.sequence_pool(x, how)) for how in POOLINGS},
    "softmax": lambda x: over_sentences(stepnet.sequence_pool(softmax(x), "sum")),
    "reverse": lambda x: over_sentences(stepnet.sequence_pool(stepnet.sequence_reverse(x), "first")),
    "expand": lambda x: over_sentences(stepnet.sequence_pool(expanded(x), "last")),
    "a recurrence": lambda x: over_sentences(stepnet.sequence_pool(over_words(x), "last")),
    "words": expanded,
}


@pytest.mark.parametrize("name", MODULES)
def test_of_words(name):
    module = MODULES[name]
    texts = [[torch.randn(n, 3).double() for n in words] for words in ((2, 3, 1, 4), (1,), (3, 2))]
    live = stepnet.stream(module)
    got: dict[Any, list[torch.Tensor]] = {live.open(text): [] for text in range(3)}
    for at in range(4):
        sentences: dict[Any, Any] = {
            k: LoDTensor.from_sequences(t[at : at + 1]) for k, t in enumerate(texts) if t[at:]
        }
        for text, out in live.push(sentences).items():
            got[text].append(out.values if isinstance(out, LoDTensor) else out)
    whole = module(LoDTensor.from_sequences(texts))
    torch.testing.assert_close(torch.cat([row for rows in got.values() for row in rows]), whole.values)
