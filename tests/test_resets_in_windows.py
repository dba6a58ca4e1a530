"""Resets joined with checkpoints and with gradients that are cut off: the loop by hand, whoever cuts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covering import examples
from outcomes import gradients
from stepnet import LoDTensor, Resets, cells, recurrent

DTYPE = torch.float64
F, H = 2, 3
CLOSE = {"rtol": 0, "atol": 1e-10}


class Learned(nn.Module):
    """A GRU whose first state is learned."""

    def __init__(self):
        super().__init__()
        self.cell, self.h0 = cells.GRU(F, H, dtype=DTYPE), nn.Parameter(torch.randn(H, dtype=DTYPE))

    def forward(self, x, h):
        return self.cell(x, h)

    def initial_state(self, n):
        return self.h0.expand(n, H)


torch.manual_seed(8)
CELL = Learned()
EMPTY = torch.zeros(0, H, dtype=DTYPE)


def by_hand(sequences, marks, state, kind, detach_every, reverse):
    """A sequence and a row at a time. Gradients are cut off at every so many steps of an episode."""
    ys, finals = [], []
    for b, (rows, own) in enumerate(zip(sequences, marks, strict=True)):
        n, h, at, y = len(rows), state[b : b + 1], 0, [EMPTY] * len(rows)
        begins = [*own, False] if kind == "is_init" else [False, *own]  # whether an episode begins at row t
        for t in reversed(range(n)) if reverse else range(n):
            if begins[t + reverse]:
                h, at = CELL.initial_state(1), 0
            h = h.detach() if detach_every and at and at % detach_every == 0 else h
            y[t], h = CELL(rows[t : t + 1], h)
            at += 1
        if begins[0 if reverse else n]:
            h = CELL.initial_state(1)
        ys += y
        finals.append(h)
    return torch.cat([EMPTY, *ys]), torch.cat([EMPTY, *finals])


@pytest.mark.parametrize("backend", ["c", "naive"])
def test_law(backend):
    @settings(max_examples=examples(25))
    @given(
        st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=3),
        st.sampled_from(["is_init", "done"]),
        st.sampled_from([None, 1, 2, 3, True]),
        st.sampled_from([None, 1, 2, 3]),
        st.booleans(),
    )
    def law(marks, kind, checkpoint, detach_every, reverse):
        lengths = list(map(len, marks))
        generator = torch.Generator().manual_seed(sum(lengths))
        rows = torch.randn(sum(lengths), F, dtype=DTYPE, generator=generator).requires_grad_()
        state = torch.randn(len(lengths), H, dtype=DTYPE, generator=generator).requires_grad_()
        x = LoDTensor.from_lengths(rows, [lengths])
        flags = torch.tensor([mark for own in marks for mark in own], dtype=torch.bool)
        y, final = recurrent(
            CELL, x, state, resets=Resets(**{kind: flags}), checkpoint=checkpoint, detach_every=detach_every,
            reverse=reverse, backend=backend,
        )  # fmt: skip
        expected = by_hand(list(x), marks, state, kind, detach_every, reverse)
        torch.testing.assert_close((y.values, final), expected, **CLOSE)
        inputs = [rows, state, *CELL.parameters()]
        found, wanted = gradients((y.values, final), inputs), gradients(expected, inputs)
        torch.testing.assert_close(found, wanted, **CLOSE)

    law()


@pytest.mark.parametrize("kind", ["is_init", "done"])
@pytest.mark.parametrize("reverse", [False, True])
def test_marks_without_numbers(kind, reverse):
    """Under vmap each mark is looked at; gradients are cut off where they are otherwise."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 5, 2, F, dtype=DTYPE, generator=generator)
    marks = torch.rand(3, 5, 2, generator=generator) < 0.4

    def loss(x, marks):
        resets = Resets(**{kind: marks})
        how = {"reverse": reverse, "backend": "naive"}
        return recurrent(CELL, x, resets=resets, detach_every=2, **how)[0].square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(x, marks)
    for grad, own, flags in zip(found, x, marks, strict=True):
        own = own.clone().requires_grad_()
        torch.testing.assert_close(grad, torch.autograd.grad(loss(own, flags), own)[0], **CLOSE)
