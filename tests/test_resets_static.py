"""Recurrences that start anew and see a memory: each piece has the memory of its sequence."""

from __future__ import annotations

import pytest
import torch

from stepnet import LoDTensor, Resets, recurrent

D = torch.float64
LENGTHS = [4, 0, 1, 6]


def step(x, h, memory):
    rows, mask = memory
    scores = torch.where(mask, (rows * h[:, None]).sum(-1), -torch.inf)
    h = torch.tanh(x + h + (torch.softmax(scores, -1)[..., None] * rows).sum(1))
    return h, h


def inputs():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(sum(LENGTHS), 3, dtype=D, generator=g, requires_grad=True)
    h = torch.randn(len(LENGTHS), 3, dtype=D, generator=g, requires_grad=True)
    memory = torch.randn(11, 3, dtype=D, generator=g, requires_grad=True)
    marks = torch.tensor([0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0], dtype=torch.bool)
    return x, h, memory, marks


def by_hand(x, h, memory, marks, reverse):
    """A loop over each sequence, with the memory as long as it is."""
    ys, finals = [], []
    parts = zip(x.split(LENGTHS), h, memory.split([3, 2, 5, 1]), marks.split(LENGTHS), strict=True)
    for rows, first, own, starts in parts:
        state, out = first[None], {}
        order = range(len(rows))
        for t in reversed(order) if reverse else order:
            at = (
                t + 1 if reverse else t
            )  # backwards, an episode begins at the row before the next one's first
            state = first[None] if at < len(rows) and starts[at] else state
            mask = torch.ones(1, len(own), dtype=torch.bool)
            out[t], state = step(rows[t][None], state, (own[None], mask))
        ys += [out[t] for t in order]
        finals.append(first[None] if reverse and len(rows) and starts[0] else state)
    return torch.cat(ys), torch.cat(finals)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("backend", ["naive", "eager", "c", "auto"])
def test_pieces_have_the_memory_of_their_sequence(backend, reverse):
    x, h, memory, marks = inputs()
    given = LoDTensor.from_lengths(x, [LENGTHS])
    static = LoDTensor.from_lengths(memory, [[3, 2, 5, 1]])
    y, final = recurrent(
        step, given, h, static=static, resets=Resets(is_init=marks), reverse=reverse, backend=backend
    )
    expected = by_hand(x, h, memory, marks, reverse)
    torch.testing.assert_close((y.values, final), expected)
    ours = torch.autograd.grad(y.values.sum() + final.square().sum(), [x, h, memory])
    plain = torch.autograd.grad(expected[0].sum() + expected[1].square().sum(), [x, h, memory])
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("backend", ["naive", "auto"])
def test_of_tensors(backend):
    x, h = torch.randn(5, 2, 3, dtype=D), torch.randn(2, 3, dtype=D)
    memory = torch.randn(2, 3, dtype=D)
    marks = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 1], [0, 0]])

    def add(x, h, memory):
        h = torch.tanh(x + h * memory)
        return h, h

    y, final = recurrent(add, x, h, static=memory, resets=marks, backend=backend)
    state = h
    for t in range(5):
        state = torch.where(marks[t][:, None] != 0, h, state)
        expected, state = add(x[t], state, memory)
        torch.testing.assert_close(y[t], expected)
    torch.testing.assert_close(final, state)
