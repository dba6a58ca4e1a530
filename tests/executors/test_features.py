"""Threads that take turns, or some features each, make the numbers of the plain loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import stepnet
from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, cells
from stepnet.data.tree import by_leaf
from stepnet.engine import plans
from stepnet.errors import BuildError
from stepnet.executors.c import placement
from stepnet.executors.c import source as c_source
from stepnet.executors.c.placement import Placements
from stepnet.executors.layout import Layout, is_uneven
from stepnet.executors.schedule.features import Features

OPTIMISED = False
DTYPE = torch.float64
F = 24
LENGTHS = {"ragged": [3, 0, 30, 1, 6], "one": [9], "none": []}


class Heads(nn.Module):
    """States of several dimensions, a number that all heads see, sums within a head, results side by side."""

    def __init__(self):
        super().__init__()
        self.scale, self.key = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 3))
        self.value = nn.Parameter(torch.randn(4, 5))

    def forward(self, x, state):
        s, m = state  # [4, 3, 5], [4]
        x = x.detach()
        kept, k = torch.sigmoid(x[:, 12:13]), torch.tanh(x[:, :12].view(-1, 4, 3) + self.key)
        s = s * kept[:, :, None, None] + k[..., None] * self.value[:, None, :]
        m = torch.tanh(m * self.scale) + s.amax((2, 3))
        read = (s * k[..., None]).sum(2)
        return torch.cat([m, read.sum(-1) * m], 1), (s, m)

    def initial_state(self, n):
        return self.scale.new_zeros(n, 4, 3, 5), self.scale.new_ones(n, 4)


def per_sequence(x, state, bias):
    """What is the same at all steps of a sequence: its gradient is a sum over them."""
    h = torch.sigmoid(x) * state + bias
    return h * h, h


class Crossed(nn.Module):
    """A product of whole panels of columns; features read those of others, too. A sum over them that a state
    is made of: threads can only take turns."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, F) / 5)

    def forward(self, x, h):
        made = x @ self.weight.T
        h = torch.sigmoid(made[:, 64:192]) * h / (1 + h.square().mean(1, keepdim=True)) + made[:, :128]
        return torch.cat([h[:, :3], made[:, 3:9]], 1), h

    def initial_state(self, n):
        return self.weight.new_zeros(n, 128)


class Diagonal(nn.Module):
    """Less to compute than to fetch."""

    def __init__(self):
        super().__init__()
        self.decay, self.gain, self.out = (nn.Parameter(torch.rand(48)) for _ in range(3))

    def forward(self, x, h):
        h = self.decay * h + self.gain * x.repeat(1, 2)
        return self.out * h, h

    def initial_state(self, n):
        return self.decay.new_ones(n, 48)


torch.manual_seed(1)
STEPS = {
    "minGRU": cells.MinGRU(F, 37, dtype=DTYPE),
    "panels": cells.MinGRU(F, 128, dtype=DTYPE),
    "crossed": Crossed().to(DTYPE),
    "heads": Heads().to(DTYPE),
    "per sequence": per_sequence,
    "diagonal": Diagonal().to(DTYPE),
}
STATIC = {"per sequence": 24}
TAKEN = {
    "turns": {"heads": ["features", "turns"], "per sequence": ["features", "turns"]},  # no products
    "features": {"crossed": ["turns", "turns"], "diagonal": ["turns", "turns"]},
}


@pytest.fixture(params=[2, 3], ids=lambda n: f"{n} threads")
def threads(request):
    torch.set_num_threads(request.param)
    return request.param


@pytest.fixture
def shared_out(monkeypatch):
    """How threads shared the rows, and how many, call by call."""
    found = []
    honest = Placements.shared_out

    def shared_out(self, *how):
        found.append(honest(self, *how))
        return found[-1]

    monkeypatch.setattr(Placements, "shared_out", shared_out)
    monkeypatch.setattr(placement, "is_uneven", lambda layout, threads: threads > 1 and layout.rows > 0)
    monkeypatch.setattr(placement, "ALONE", 0)
    plans.forget()  # a scan remembers how it shared the work of a layout
    yield found
    plans.forget()


def state_of(name, n):
    step = STEPS[name]
    if name == "per sequence":
        return torch.randn(n, 24, dtype=DTYPE)
    return by_leaf(torch.randn_like, step.initial_state(n))


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", few(STEPS, ["minGRU", "heads", "crossed"]))
@pytest.mark.parametrize("sharing", ["turns", "features"])
def test_numbers_do_not_depend_on_who_makes_them(name, lengths, sharing, threads, shared_out, monkeypatch):
    monkeypatch.setattr(placement, "WORTH_TURNS", 1e-3)
    monkeypatch.setattr(placement, "WORTH_TURNS_TOO", 1e-3 if sharing == "turns" else 1e9)
    torch.manual_seed(0)
    counts = LENGTHS[lengths]
    x = LoDTensor.from_lengths(torch.randn(sum(counts), F, dtype=DTYPE), [counts])
    state = state_of(name, len(counts))
    static = torch.randn(len(counts), 24, dtype=DTYPE) if name in STATIC else None
    as_the_plain_loop(STEPS[name], *wanting((x, state)), rtol=1e-10, static=wanting(static))
    if sum(counts):  # forward and backward; a first call checks itself before
        assert [how for how, _ in shared_out[-2:]] == TAKEN[sharing].get(name, [sharing] * 2)
        assert {n for how, n in shared_out[-2:] if how} <= {threads}


def test_rows_on_the_heap(shared_out, monkeypatch):
    """As large ones are, with what is added up after each of them."""
    monkeypatch.setattr(placement, "WORTH_TURNS", 1e-3)
    monkeypatch.setattr(placement, "WORTH_TURNS_TOO", 1e-3)
    monkeypatch.setattr(c_source, "_MOST_STACK", 0)
    torch.set_num_threads(2)
    x = LoDTensor.from_lengths(torch.randn(70, F, dtype=DTYPE), [[70]])
    as_the_plain_loop(STEPS["heads"], *wanting((x, state_of("heads", 1))), rtol=1e-10)
    assert [how for how, _ in shared_out[-2:]] == TAKEN["turns"].get("heads", ["turns"] * 2)
    plans.forget()


def test_generated_c_asks_for_no_memory():
    """It could not say that none is left: what is too large for a stack is in the workspace."""
    asks = re.compile(r"\b(malloc|calloc|realloc|alloca) ?\(")
    folder = Path(c_source.__file__).parent
    files = [folder / "source.py", *folder.glob("*.h"), *folder.glob("*.in"), *folder.glob("products/*.h")]
    assert [file.name for file in files if asks.search(file.read_text())] == []


@pytest.mark.parametrize("bad", few([float("nan"), float("inf"), -0.0], [float("inf")]))
def test_what_is_not_finite_stays_in_its_feature(bad, shared_out):
    torch.set_num_threads(2)
    cell = STEPS["minGRU"]
    x = torch.randn(40, 1, F, dtype=DTYPE)
    state = torch.zeros(1, 37, dtype=DTYPE)
    state[0, 30] = bad
    (y, h), (plain, last) = (stepnet.recurrent(cell, x, state, backend=b) for b in ("c", "naive"))
    torch.testing.assert_close((y, h), (plain, last), rtol=1e-12, atol=1e-12, equal_nan=True)
    assert y[:, :, :30].isfinite().all()
    assert shared_out[-1][1] == 2


def test_code_that_is_not_built_is_told_of(shared_out, monkeypatch):
    """One thread runs the scan then."""
    built = placement.codes

    def without_room(sources):
        if any("members that" in source.text for source in sources):
            raise BuildError("no room")
        return built(sources)

    monkeypatch.setattr(placement, "codes", without_room)
    torch.set_num_threads(2)
    plans.forget()
    x, cell = torch.randn(40, 1, F, dtype=DTYPE), STEPS["minGRU"]
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="runs on one thread.*\n.*no room"):
        y, _ = stepnet.recurrent(cell, x, backend="c")
    torch.testing.assert_close(y, stepnet.recurrent(cell, x, backend="naive")[0])
    assert set(shared_out) == {(None, 1)}
    plans.forget()


def test_a_long_sequence_is_the_one_of_one_thread():
    """As it is chosen: one long sequence, two threads; and the call after with one thread again."""
    cell, found = cells.MinGRU(8, 64), []
    x = torch.randn(3000, 1, 8)
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        rows = x.detach().requires_grad_()
        y, h = stepnet.recurrent(cell, rows, backend="c")
        found.append((y, h, *torch.autograd.grad(y.sin().sum() + h.sum(), [rows, *cell.parameters()])))
    for other in found[1:]:  # gradients of weights are sums of 3000 rows, in another order
        for a, b in zip(other, found[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * float(b.detach().abs().max()))


@pytest.mark.parametrize(
    ("lengths", "threads", "uneven"),
    [
        ([100], 2, True),
        ([100], 1, False),
        ([100, 100], 2, False),
        ([100, 100, 100], 2, True),
        ([100] * 9, 2, False),
        ([100, 1, 1], 2, True),
        ([], 2, False),
        ([0, 0], 2, False),
    ],
    ids=str,
)
def test_where_sequences_are_dealt_unevenly(lengths, threads, uneven):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    assert is_uneven(Layout.ragged(offsets, False), threads) == uneven


def coupled(x, h):
    """Each feature is made of its neighbour."""
    h = 0.5 * h.roll(1, -1) + x
    return h, h


def summed(x, h):
    """Each feature is made of all."""
    h = h / h.square().sum(-1, keepdim=True).clamp(min=1.0) + x
    return h, h


def elsewhere(x, state):
    """One state is read at another place of the other."""
    h, c = state
    h = torch.tanh(h + x)
    return h, (h, torch.cat([c[:, 16:], h[:, :16]], 1))


@pytest.mark.parametrize("step", [coupled, summed, elsewhere], ids=lambda step: step.__name__)
def test_features_that_meet_are_not_shared_out(step, shared_out):
    torch.set_num_threads(2)
    state = torch.zeros(1, 32, dtype=DTYPE)
    state = (state, state + 1) if step is elsewhere else state
    x = torch.randn(30, 1, 32, dtype=DTYPE)
    y, plain = (stepnet.recurrent(step, x, state, backend=b)[0] for b in ("c", "naive"))
    torch.testing.assert_close(y, plain, rtol=1e-12, atol=1e-12)
    assert not {how for how, _ in shared_out} & {"features"}


def test_whole_lines_of_the_cache():
    assert Features(64, 16).parts == 4
    assert Features(17, 16).parts == 2
    assert Features(8, 16).parts == 1


def decaying(x, h):
    """No products, and nothing to spare."""
    h = torch.tanh(0.9 * h + x)
    return h, h


@pytest.mark.parametrize(
    ("step", "shared"),
    [
        (cells.MinGRU(64, 32), ("turns", "turns")),
        (cells.RNN(64, 64), (None, None)),
        (decaying, ("features", "turns")),
    ],
    ids=["minGRU", "RNN", "decaying"],
)
def test_explain_says_so(step, shared):
    x = torch.randn(5, 1, 64, requires_grad=True)
    told = stepnet.explain(step, x, None if isinstance(step, nn.Module) else torch.zeros(1, 64), backend="c")
    assert [region.for_few for region in told.regions if region.carries] == [*shared]
    assert ("threads take turns" in str(told)) == ("turns" in shared)
    assert ("each thread takes some features" in str(told)) == ("features" in shared)
