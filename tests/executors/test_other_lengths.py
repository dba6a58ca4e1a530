"""Calls of ragged sequences whose lengths are new each time go by places, a backward too: the same bits as by
names, and what the plain loop gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from covering import few
from outcomes import tensors
from stepnet import LoDTensor, recurrent
from stepnet.cells import GRU, LSTM
from stepnet.executors.direct import Direct, Lately

BACKEND = "c"
OPTIMISED = False  # both ways run the same code
D = 4


class Detached(nn.Module):
    """Beside what carries gradients, a state without one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(D, D)

    def initial_state(self, n: int) -> Any:
        return torch.zeros(n, D), torch.zeros(n, D)

    def forward(self, x: Any, h: Any) -> Any:
        h, seen = h
        h = torch.tanh(self.w(x + h) + seen)
        return h, (h, (seen + h).detach())


class OneGradient(Detached):
    """Of two inputs and of two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Linear(D, D)

    def initial_state(self, n: int) -> Any:
        return torch.zeros(n, D, dtype=self.w.weight.dtype)

    def forward(self, x: Any, h: Any) -> Any:
        one, two = x
        h = torch.tanh(one + two + self.w(h) + self.v(h))
        return {"y": 2 * h, "h": h}, h


class Beside(OneGradient):
    """Maps around the scan of backward, of doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(2 * D, D)

    def forward(self, x: Any, h: Any) -> Any:
        one, two = x
        gate = torch.sigmoid(self.both(torch.cat([one, h], -1)) * two)
        h = gate * h + (1 - gate) * torch.tanh(self.w(h))
        return {"y": 2 * h, "h": h}, h


class Head(OneGradient):
    """A map after the scan, and a counter, which is a scan of its own."""

    def initial_state(self, n: int) -> Any:
        return super().initial_state(n), torch.zeros(n, 1)

    def forward(self, x: Any, h: Any) -> Any:
        h, steps = h
        h = torch.tanh(self.w(x[0] + h) + 0.1 * steps)
        return {"y": self.v(nn.functional.gelu(self.w(h)) * x[1]), "h": h}, (h, steps + 1)


class CutOff(OneGradient):
    """A state whose gradient is cut off: which results carry one hangs on whether a sequence has no steps."""

    def forward(self, x: Any, h: Any) -> Any:
        return torch.tanh(self.w(x[0]) + x[1] + h), torch.tanh(x[0] + h).detach()


STEPS: dict[str, tuple[Any, int]] = {
    "lstm": (lambda: LSTM(D, D), 1),
    "gru": (lambda: GRU(D, D), 1),
    "wide": (lambda: LSTM(32, 32), 1),  # products over its rows are torch's
    "detached": (Detached, 1),
    "one gradient": (OneGradient, 2),
    "maps": (lambda: Beside().double(), 2),
    "head": (Head, 2),
    "cut off": (CutOff, 2),
}
_DRAW = random.Random(0)
LENGTHS = [[_DRAW.choice((0, 1, 2, 5, 9)) for _ in range(_DRAW.choice((3, 3, 2)))] for _ in range(40)]
LENGTHS = [lengths for lengths in LENGTHS if sum(lengths)]
USED = {
    "sums": lambda out, seeds: (out, [s[:1].flatten()[:1].expand(s.shape) for s in seeds]),  # one number each
    "all": lambda out, seeds: (out, seeds),
    "rows": lambda out, seeds: (out[:1], seeds[:1]),
    "last": lambda out, seeds: (out[-1:], seeds[-1:]),
}


def calls(name: str, used: str, reverse: bool, backend: str) -> list[list[Tensor | None]]:
    torch.manual_seed(0)
    make, count = STEPS[name]
    step, found = make(), []
    weights = [*step.parameters()]
    size, dtype = 32 if name == "wide" else D, weights[0].dtype
    for k, lengths in enumerate(LENGTHS):
        rows = [torch.randn(sum(lengths), size, dtype=dtype, requires_grad=True) for _ in range(count)]
        x = tuple(LoDTensor.from_lengths(t, [lengths]) for t in rows)
        state = step.initial_state(len(lengths))
        states = (
            [] if name == "detached" else tensors((state, ()))[:1] if name == "head" else tensors((state, ()))
        )
        leaves = [t.requires_grad_() for t in states]
        given = x if count > 1 else x[0]
        results = tensors(recurrent(step, given, state, reverse=reverse, backend=backend))
        out = [t for t in results if t.requires_grad]
        of, seeds = USED[used](out, [torch.randn(t.shape, dtype=t.dtype) for t in out])
        wanted = [*rows, *leaves, *weights]
        twice = k > len(LENGTHS) - 3
        how: Any = {"allow_unused": True, "create_graph": twice}
        grads = torch.autograd.grad(of, wanted, [s.clone() if s.stride()[0] else s for s in seeds], **how)
        moving = [g for g in grads if twice and g is not None and g.requires_grad]
        if moving:
            total = torch.stack([g.square().sum() for g in moving]).sum()
            grads += torch.autograd.grad(total, wanted, allow_unused=True)
        found.append([*results, *grads])
    return found


TABLE = [(n, u, r) for n in STEPS for u in USED for r in (False, True)]


def noted(method: str, own: Any, ways: list[Any]) -> Any:
    def run(self: Direct, *given: Any, **named: Any) -> Any:
        out = own(self, *given, **named)
        ways.append((method, out is not None and named.get("layout", given[-1]) is not self.layout))
        return out

    return run


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "used", "reverse"),
    few(TABLE, [(n, u, bool(k % 2)) for k, (n, u) in enumerate(zip(STEPS, [*USED] * 2, strict=False))]),
)
def test_new_lengths_at_each_call(monkeypatch, name, used, reverse, threads):
    ways, torch_threads = [], torch.get_num_threads()
    for method in ("forward", "gradients"):
        monkeypatch.setattr(Direct, method, noted(method, getattr(Direct, method), ways))
    torch.set_num_threads(threads)
    try:
        by_places = calls(name, used, reverse, BACKEND)
        counted = [ways.count((method, True)) for method in ("forward", "gradients")]
        plain = calls(name, used, reverse, "naive")
        monkeypatch.setattr(Lately, "direct", lambda *_: None)
        by_names = calls(name, used, reverse, BACKEND)
    finally:
        torch.set_num_threads(torch_threads)
    if name == "cut off":
        assert counted == [0, 0]
    else:
        assert counted[0] >= 7
        assert counted[1] >= 5
    for one, other, expected in zip(by_places, by_names, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)
        assert [g is None or g.stride() for g in one] == [g is None or g.stride() for g in other]


def test_packed_sequences_go_the_same_way(monkeypatch):
    """Of new lengths at each call."""
    ways: list[Any] = []
    monkeypatch.setattr(Direct, "gradients", noted("gradients", Direct.gradients, ways))
    torch.manual_seed(0)
    step = LSTM(D, D)
    for k in range(14):
        rows = [torch.randn(n, D, requires_grad=True) for n in (1 + k % 3, 4, 2 + k % 5)]
        ran: list[list[Tensor]] = []
        for backend in (BACKEND, "naive"):
            y, state = recurrent(step, pack_sequence(rows, enforce_sorted=False), backend=backend)
            grads = torch.autograd.grad(y.data.square().sum(), [*rows, *step.parameters()])
            ran.append([y.data, y.batch_sizes, *tensors((state, ())), *grads])
        torch.testing.assert_close(*ran, rtol=1e-4, atol=1e-5)
    assert ways.count(("gradients", True)) >= 5
