"""Steps without an input, `steps=`, and an output that is the next input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepnet import LoDTensor, Recurrent, recurrent
from stepnet.errors import StepError


def step(x: None, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(1.1 * h + 0.1) if x is None else x
    return h[:, :1], h


def by_hand(h: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    out = []
    for _ in range(steps):
        y, h = step(None, h)
        out.append(y)
    return torch.stack(out), h


@pytest.mark.parametrize("backend", ["naive", "eager", "c", "auto"])
def test_as_many_steps_as_asked_for(backend):
    h = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y, last = recurrent(step, steps=5, state=h, backend=backend)
    expected, final = by_hand(h, 5)
    torch.testing.assert_close((y, last), (expected, final))
    found, wanted = (torch.autograd.grad(v.sum() + w.sum(), h) for v, w in ((y, last), (expected, final)))
    torch.testing.assert_close(found, wanted)
    across, _ = Recurrent(step, axis=1, backend=backend)(state=h, steps=5)
    torch.testing.assert_close(across, expected.movedim(0, 1))


@pytest.mark.parametrize("backend", ["naive", "eager", "c"])
@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_a_number_of_steps_for_each_sequence(backend, kind):
    h, lengths = torch.randn(4, 2), [2, 0, 5, 1]
    y, last = recurrent(step, steps=kind(lengths), state=h, backend=backend)
    assert isinstance(y, LoDTensor)
    assert y.lengths().tolist() == lengths
    for b, n in enumerate(lengths):
        if n:
            torch.testing.assert_close(y[b], by_hand(h[b : b + 1], n)[0][:, 0])
    assert torch.equal(last[1], h[1])


def test_none_and_no_sequences():
    h = torch.randn(3, 4)
    y, last = recurrent(step, steps=0, state=h)
    assert y.shape == (0, 3, 1)
    assert torch.equal(last, h)
    assert recurrent(step, steps=2, state=h[:0])[0].shape == (2, 0, 1)


def test_the_step_says_its_initial_state_where_steps_say_how_many_sequences_there_are():
    class Booting(torch.nn.Module):
        def initial_state(self, n: int) -> Tensor:
            return torch.ones(n, 4)

        def forward(self, x: None, h: Tensor) -> tuple[Tensor, Tensor]:
            return step(x, h)

    for steps in ([2, 0, 3], []):
        y, last = recurrent(Booting(), steps=steps)
        expected = recurrent(step, steps=steps, state=torch.ones(len(steps), 4))
        assert y.lengths().tolist() == steps
        torch.testing.assert_close((y.values, last), (expected[0].values, expected[1]))
    with pytest.raises(StepError, match="how many sequences"):
        recurrent(Booting(), steps=2)


@pytest.mark.parametrize("backend", ["naive", "c"])
def test_an_output_fed_back_as_the_next_input(backend):
    table = torch.randn(5, 3, requires_grad=True)

    def says(x: None, state: Any) -> tuple[Tensor, Any]:
        word, h = state
        h = torch.tanh(h + torch.nn.functional.embedding(word, table))
        word = h.argmax(1)
        return word, (word, h)

    start = (torch.zeros(4, dtype=torch.int64), torch.randn(4, 3, generator=torch.Generator().manual_seed(3)))
    words, (_, h) = recurrent(says, steps=6, state=start, backend=backend)
    expected, state = [], start
    for _ in range(6):
        word, state = says(None, state)
        expected.append(word)
    assert torch.equal(words, torch.stack(expected))
    (found,), (wanted,) = (torch.autograd.grad(v.sum(), table) for v in (h, state[1]))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "call",
    [
        {"x": torch.zeros(2, 3, 1), "steps": 2, "state": torch.zeros(3, 1)},
        {"steps": 2},
        {"steps": 2, "state": ()},
        {"steps": 2.5, "state": torch.zeros(3, 1)},
        {"steps": -1, "state": torch.zeros(3, 1)},
        {"steps": [1, 2], "state": torch.zeros(3, 1)},
        {"steps": torch.ones(3), "state": torch.zeros(3, 1)},
    ],
)
def test_what_does_not_fit_is_told(call):
    with pytest.raises(StepError, match="steps"):
        recurrent(step, **call)
