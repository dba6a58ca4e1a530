"""Any step, dense or ragged, in any direction: the file computes what the plain loop does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepnet
from stepnet import LoDTensor

WEIGHT = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)) / 2
OPS = {
    "sum": lambda a, b: 0.5 * a + b,
    "gate": lambda a, b: a.sigmoid() * b,
    "product": lambda a, b: a @ WEIGHT + b,
    "clamp": lambda a, b: torch.clamp(a, -1, 1) - b,
    "larger": lambda a, b: torch.maximum(a, b),
    "choice": lambda a, b: torch.where(a > b, a, b * 0.3),
    "norm": lambda a, b: torch.nn.functional.layer_norm(a, (3,)) * b.tanh(),
    "shift": lambda a, b: torch.cat([a[:, 1:], b[:, :1]], 1),
    "total": lambda a, b: a - b.sum(-1, keepdim=True).tanh(),
}


@st.composite
def steps(draw):
    """A step, and how many states it has."""
    states = draw(st.integers(1, 3))
    place = st.integers(0, 20)
    calls = draw(st.lists(st.tuples(st.sampled_from(sorted(OPS)), place, place), min_size=1, max_size=7))
    taken = draw(st.lists(place, min_size=states + 1, max_size=states + 1))

    def step(x, state):
        values = [x, *state]
        for op, i, j in calls:
            values.append(OPS[op](values[i % len(values)], values[j % len(values)]))
        y, *new = (values[i % len(values)] for i in taken)
        return y, tuple(new)

    return step, states


@pytest.mark.exhaustive
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=steps(), reverse=st.booleans(), axis=st.integers(0, 1), ragged=st.booleans())
def test_a_random_step(made, reverse, axis, ragged, check, check_ragged):
    step, states = made
    module = stepnet.Recurrent(step, reverse=reverse, axis=0 if ragged else axis)

    def first(batch):
        return tuple(torch.randn(batch, 3) for _ in range(states))

    if ragged:
        check_ragged(
            module,
            lambda lengths: (
                LoDTensor.from_lengths(torch.randn(sum(lengths), 3), [lengths]),
                first(len(lengths)),
            ),
        )
    else:
        check(module, lambda t, b: (torch.randn(*((t, b, 3), (b, t, 3))[axis]), first(b)))
