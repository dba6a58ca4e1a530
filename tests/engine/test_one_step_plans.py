"""Calls of one step of few sequences, of steps with layers around their cell: in one scan, the numbers of the
plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from outcomes import outcome, same, wanting
from stepnet import LoDTensor, Recurrent, explain, recurrent, stream
from stepnet.engine import one_step_plans, plans
from stepnet.errors import Unsupported

BACKEND = "c"
N, F, H = 3, 2, 4
SAID = "calls of 1 step of few sequences run in one scan"
DOUBLE: Any = {"dtype": torch.float64}


class Policy(nn.Module):
    """Layers, a cell, and layers of what it gives."""

    def __init__(self):
        super().__init__()
        self.encoder, self.cell = nn.Linear(F, H, **DOUBLE), nn.GRUCell(H, H, **DOUBLE)
        self.head = nn.Linear(H, 2, **DOUBLE)

    def forward(self, x, h):
        h = self.cell(torch.relu(self.encoder(x)), h)
        return self.head(h), h


class Deep(Policy):
    """Several cells, of which the first need not wait for others; and several results, one a number a row."""

    def __init__(self):
        super().__init__()
        self.first, self.value = nn.LSTMCell(H, H, **DOUBLE), nn.Linear(H, 1, **DOUBLE)

    def forward(self, x, state):
        (h, c), k = state
        h, c = self.first(torch.tanh(self.encoder(x)), (h, c))
        k = self.cell(h, k)
        y = {"logits": torch.log_softmax(self.head(k), -1), "value": self.value(k).squeeze(-1)}
        return y | {"action": y["logits"].argmax(-1)}, ((h, c), k)


class Bounded(Policy):
    """One that keeps what it saw, and mixes a state that no step changes into what it sees."""

    def forward(self, x, state):
        h, seen, scale = state
        y, h = super().forward(x + seen * scale, h)
        return y, (h, x, scale)


POLICIES = {
    "a cell between layers": (Policy, (H,), True),
    "several cells and results": (Deep, ((H, H), H), True),
    "the step before is read in a layer": (Bounded, (H, F, F), False),
}


def states(sizes: Any, n: int = N) -> Any:
    if isinstance(sizes, int):
        return torch.randn(n, sizes, **DOUBLE)
    return tuple(states(size, n) for size in sizes) if len(sizes) > 1 else states(sizes[0], n)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_the_numbers_of_the_plain_loop(name, train):
    made, sizes, in_one = POLICIES[name]
    step, x, state = made(), torch.randn(N, F, **DOUBLE), states(sizes)
    if train:
        x, state = wanting((x, state))
    with torch.set_grad_enabled(train):
        for lengths in ([1, 1, 1], [1, 2, 0]):
            ragged = LoDTensor.from_lengths(x, [lengths])
            for given in (x[None], ragged) if max(lengths) == 1 else (ragged,):
                plain = outcome(step, given, state, "naive")
                for _ in range(4):  # by names, then by addresses
                    for ours, theirs in zip(outcome(step, given, state, BACKEND), plain, strict=True):
                        same(ours, theirs)
        assert (SAID in str(explain(step, x[None], state, backend=BACKEND))) == in_one


@pytest.mark.parametrize("train", [False, True])
def test_the_numbers_of_a_call_do_not_change_from_one_to_the_next(train):
    step, x, state = Policy(), torch.randn(1, N, 257), states((H,)).float()
    step.encoder = nn.Linear(257, H)
    step.float()
    plans.forget()
    with torch.set_grad_enabled(train):
        first, *others = [recurrent(step, x, state, backend=BACKEND)[0] for _ in range(5)]
    assert all(first.equal(other) for other in others)


def test_what_changes_of_the_step_is_seen():
    step, x, state = Policy(), torch.randn(1, N, F, **DOUBLE), states((H,))
    changes = (
        lambda: step.encoder.weight.mul_(2),
        lambda: setattr(step.head, "bias", nn.Parameter(torch.ones(2, **DOUBLE))),
        lambda: setattr(step, "encoder", nn.Linear(F, H, bias=False, **DOUBLE)),
        lambda: step.head.register_forward_hook(lambda module, given, out: out + 1),
    )
    with torch.no_grad():
        for change in changes:
            change()
            for _ in range(4):
                same([recurrent(step, x, state, backend=BACKEND)[0][0]], [step(x[0], state)[0]])


def test_penalties_and_checkpoints():
    step = Policy()
    x, state = wanting((torch.randn(1, N, F, **DOUBLE), states((H,))))

    def penalty(backend):
        y, _ = recurrent(step, x, state, backend=backend)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, *step.parameters()), allow_unused=True)

    def again(backend):
        y = checkpoint(lambda x: recurrent(step, x, state, backend=backend)[0], x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), x)

    for _ in range(4):
        same(penalty(BACKEND), penalty("naive"))
        same(again(BACKEND), again("naive"))


class Begun(nn.Module):
    """One that says what it begins with."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def forward(self, x, h):
        return self.step(x, h)

    def initial_state(self, n):
        return torch.zeros(n, H, **DOUBLE)


def test_streams_frame_by_frame():
    step, frames = Policy(), torch.randn(6, N, F, **DOUBLE)
    with torch.no_grad():
        pushed = stream(Recurrent(Begun(step), backend=BACKEND))
        ids = [pushed.open() for _ in range(N)]
        found = [torch.cat([*pushed.push(dict(zip(ids, f[:, None], strict=True))).values()]) for f in frames]
        whole, _ = recurrent(step, frames, torch.zeros(N, H, **DOUBLE), backend="naive")
    same([torch.stack(found)], [whole])


def test_what_is_cut_as_ever(monkeypatch):
    step = Policy()

    def note(n):
        plans.forget()
        x, state = torch.randn(1, n, F, **DOUBLE), states((H,), n)
        with torch.no_grad():
            for _ in range(3):
                same([recurrent(step, x, state, backend=BACKEND)[0][0]], [step(x[0], state)[0]])
            return str(explain(step, x, state, backend=BACKEND))

    assert SAID not in note(200)  # of many sequences

    def refused(*given):
        raise Unsupported("it differs")

    monkeypatch.setattr(one_step_plans, "self_check", refused)
    assert SAID not in note(N)
    monkeypatch.undo()
    assert SAID in note(N)
