"""Products of states and weights so small that they are made row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor
from stepnet.engine import plans

OPTIMISED = False
PLANS_ON_DISK = False


class Mixed(nn.Module):
    """One small weight as it lies, turned, in part, of rows from outside; others of each head, and made."""

    def __init__(self):
        super().__init__()
        self.whole, self.heads, self.made = (
            nn.Parameter(torch.randn(shape, dtype=torch.float64) / 3) for shape in [(6, 6), (3, 2, 2), (3, 2)]
        )

    def forward(self, x, state):
        h, s = state
        h = torch.tanh(h @ self.whole + h @ self.whole.T + h[:, 1:5] @ self.whole[2:, 1:] @ h.new_ones(5, 6))
        h = h + x @ self.whole
        s = torch.einsum("kij,bkj->bki", self.heads, s) + x.unflatten(1, (3, 2))
        turned = torch.einsum("kij,bki->bkj", self.heads, s).sin()
        return torch.cat([(turned @ self.made.exp().T).flatten(1), h @ self.made.repeat(2, 1)], 1), (h, s)


def check(step, lengths, *shapes, width, weights=()):
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), width, dtype=torch.float64), [lengths])
    boots = tuple(torch.randn(len(lengths), *shape, dtype=torch.float64) for shape in shapes)
    as_the_plain_loop(step, *wanting((x, boots if len(boots) > 1 else boots[0])), weights=weights)


@pytest.mark.exhaustive
def test_weights_as_they_lie_and_turned_of_each_head_and_made():
    check(Mixed(), [3, 0, 1, 4], (6,), (3, 2), width=6)


SIZES = st.integers(1, 10)


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None)
@given(
    k=SIZES,
    heads=st.sampled_from([(), (1,), (3,)]),
    turned=st.booleans(),
    lengths=st.lists(st.integers(0, 5)),
)
def test_of_any_size(k, heads, turned, lengths):
    weight = nn.Parameter(torch.randn(*heads, k, k, dtype=torch.float64) / 3)

    def step(x, h):
        w = weight.mT if turned else weight
        h = (h.unsqueeze(-2) @ w).squeeze(-2) + torch.sin(x.unflatten(1, (*heads, k)))
        return h, h

    plans.forget()
    check(step, lengths, (*heads, k), width=torch.Size((*heads, k)).numel(), weights=[weight])
