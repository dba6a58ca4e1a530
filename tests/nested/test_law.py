"""The law of nesting: inner recurrences started from the outer state are the flat one over all their rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from covering import every
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError
from stepnet.testing import assert_close

LENGTHS = {
    "unequal numbers of sentences, empty ones at both levels": [[2, 0, 3], [3, 1, 4, 0, 6]],
    "equal numbers of sentences": [[2, 2, 2], [1, 2, 3, 4, 2, 1]],
    "equal lengths": [[2, 2], [3, 3, 3, 3]],
    "one sentence each": [[1, 1], [4, 2]],
    "empty sentences first and last": [[3, 2], [0, 2, 0, 0, 3]],
    "only empty sentences": [[1, 2], [0, 0, 0]],
    "only empty documents": [[0, 0], []],
    "batch of one": [[3], [2, 1, 2]],
    "batch of none": [[], []],
}
THREE = {
    "unequal, empty ones at each level": [[2, 0, 2], [2, 0, 3, 1], [3, 1, 0, 4, 2, 2]],
    "equal": [[2, 2], [1, 1, 1, 1], [2, 2, 2, 2]],
    "paragraphs without sentences": [[1, 2], [0, 0, 1], [3]],
    "batch of none": [[], [], []],
}


def tensors(lengths, features=3, hidden=4):
    rows = torch.randn(sum(lengths[-1]), features, dtype=torch.float64, requires_grad=True)
    start = torch.randn(len(lengths[0]), hidden, dtype=torch.float64, requires_grad=True)
    return LoDTensor.from_lengths(rows, lengths), start


def flat(x: LoDTensor) -> LoDTensor:
    """The rows of each outermost sequence as one sequence."""
    bounds = x.lod[0]
    for offsets in x.lod[1:]:
        bounds = offsets[bounds]
    return LoDTensor(x.values, [bounds])


def check(results, expected, inputs):
    """Results, and gradients of a loss made of all of them."""
    for what, got, wanted in zip(("y", "final state"), results, expected, strict=True):
        assert_close(what, got, wanted, 1e-10)
    seeds = [torch.randn_like(t) for t in expected]
    gradients = [
        torch.autograd.grad(
            [t for t in side if t.requires_grad],
            list(inputs.values()),
            [seed for seed, t in zip(seeds, side, strict=True) if t.requires_grad],
            allow_unused=True,
            materialize_grads=True,
        )
        for side in (results, expected)
        if any(t.requires_grad for t in side)
    ]
    if gradients:
        for name, got, wanted in zip(inputs, *gradients, strict=True):
            assert_close(f"gradient of {name}", got, wanted, 1e-10)


def inputs_of(x, start, cell):
    return {"x": x.values, "start": start, **dict(cell.named_parameters())}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("lengths", every(3, LENGTHS.values()), ids=LENGTHS.keys())
def test_two_levels(lengths, reverse):
    cell = nn.GRUCell(3, 4, dtype=torch.float64)
    x, start = tensors(lengths)

    def sentence(words, h):
        return recurrent(cell, words, h, reverse=reverse)

    y, h = recurrent(sentence, x, start, level=0, reverse=reverse)
    expected, last = recurrent(cell, flat(x), start, reverse=reverse, backend="naive")
    assert y.recursive_sequence_lengths() == lengths
    check((y.values, h), (expected.values, last), inputs_of(x, start, cell))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("lengths", THREE.values(), ids=THREE.keys())
def test_three_levels(lengths, reverse):
    cell = nn.GRUCell(3, 4, dtype=torch.float64)
    x, start = tensors(lengths)

    def sentence(words, h):
        return recurrent(cell, words, h, reverse=reverse)

    def paragraph(sentences, h):
        return recurrent(sentence, sentences, h, level=0, reverse=reverse)

    y, h = recurrent(paragraph, x, start, level=0, reverse=reverse)
    expected, last = recurrent(cell, flat(x), start, reverse=reverse, backend="naive")
    assert y.recursive_sequence_lengths() == lengths
    check((y.values, h), (expected.values, last), inputs_of(x, start, cell))


def test_the_middle_level_alone():
    """Steps over the sentences of each paragraph: a state for each paragraph, whatever document it is in."""
    cell = nn.GRUCell(3, 4, dtype=torch.float64)
    lengths = THREE["unequal, empty ones at each level"]
    x, _ = tensors(lengths)
    start = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    y, h = recurrent(lambda words, h: recurrent(cell, words, h), x, start, level=1)
    paragraphs = LoDTensor(x.values, x.lod[1:])
    expected, last = recurrent(cell, flat(paragraphs), start, backend="naive")
    assert y.recursive_sequence_lengths() == lengths
    check((y.values, h), (expected.values, last), inputs_of(x, start, cell))


@pytest.mark.parametrize("lengths", every(3, LENGTHS.values()), ids=LENGTHS.keys())
def test_several_inputs(lengths):
    """Words, the same number of sentences of other lengths, and a row for each sentence; each document is
    run by itself in Python."""
    words_cell = nn.GRUCell(3, 4, dtype=torch.float64)
    tags_cell = nn.GRUCell(2, 4, dtype=torch.float64)
    x, start = tensors(lengths)
    others = [lengths[0], [(2 * n + 1) % 5 for n in lengths[1]]]
    tags, _ = tensors(others, features=2)
    weights = LoDTensor.from_lengths(torch.rand(sum(lengths[0]), 1, dtype=torch.float64), lengths[:1])

    def step(given, h):
        words, tags, weight = given["words"], given["tags"], given["weight"]
        y, a = recurrent(words_cell, words, h)
        _, b = recurrent(tags_cell, tags, h, reverse=True)
        h = weight * a + (1 - weight) * b
        return {"words": y, "sentence": h}, h

    given = {"words": x, "tags": tags, "weight": weights}
    y, h = recurrent(step, given, start, level=0)
    assert y["words"].recursive_sequence_lengths() == lengths
    assert y["sentence"].recursive_sequence_lengths() == lengths[:1]

    words_of = x.values.split(lengths[1])
    tags_of = tags.values.split(others[1])
    bounds = weights.lod[0].tolist()
    rows, sentences, last = [x.values[:0, :1].expand(-1, 4)], [start[:0]], [start[:0]]
    for document, (begin, end) in enumerate(pairwise(bounds)):
        state = start[document : document + 1]
        for s in range(begin, end):
            a = b = state
            for word in words_of[s]:
                a = words_cell(word[None], a)
                rows.append(a)
            for tag in tags_of[s].flip(0):
                b = tags_cell(tag[None], b)
            weight = weights.values[s : s + 1]
            state = weight * a + (1 - weight) * b
            sentences.append(state)
        last.append(state)
    assert_close("y of sentences", y["sentence"].values, torch.cat(sentences), 1e-10)
    inputs = inputs_of(x, start, words_cell) | {"tags": tags.values} | dict(tags_cell.named_parameters())
    check((y["words"].values, h), (torch.cat(rows), torch.cat(last)), inputs)


def test_different_numbers_of_sentences_are_refused():
    a = LoDTensor.from_lengths(torch.zeros(3, 1), [[2, 1], [1, 1, 1]])
    b = LoDTensor.from_lengths(torch.zeros(3, 1), [[1, 2], [1, 1, 1]])
    with pytest.raises(LoDError, match="same lengths"):
        recurrent(lambda x, h: (h, h), (a, b), torch.zeros(2, 1), level=0)
