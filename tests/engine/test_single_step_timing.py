"""Calls of one step, where the step itself is faster than its plan: the numbers of the plain loop."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from outcomes import outcome, same, wanting
from stepnet import LoDTensor, Recurrent, explain, recurrent, stream
from stepnet.engine import executor_choice, plans, warm_calls
from stepnet.errors import StepError
from torch_since import TOLD

BACKEND = "auto"
N, F, H = 3, 2, 4


@pytest.fixture
def ran(monkeypatch):
    """How often steps ran by themselves; they are timed faster."""
    runs: list[int] = []

    def counted(*given):
        out = one_step(*given)
        runs.append(out is not None)
        return out

    turns = itertools.cycle((2.0, 1.0))
    one_step = warm_calls.one_step
    monkeypatch.setattr(warm_calls, "one_step", counted)
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: (call(), next(turns))[1])
    plans.forget()
    yield runs
    plans.forget()


class Cell(nn.Module):
    """Two states, one of which is y; the other is handed on as it came."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(F + H, H, dtype=torch.float64)

    def forward(self, x, state):
        h, kept = state
        h = torch.tanh(self.linear(torch.cat([x, h], dim=1)) + kept)
        return (h, h * 2), (h, kept)


def given(steps, axis=0):
    shape = (steps, N, F) if axis == 0 else (N, steps, F)
    x = torch.randn(shape, dtype=torch.float64)
    return x, (torch.randn(N, H, dtype=torch.float64), torch.randn(N, H, dtype=torch.float64))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_numbers_of_the_plain_loop(ran, steps, axis, reverse, train):
    cell, (x, state) = Cell(), given(steps, axis)
    if train:
        x, state = wanting((x, state))
    with torch.set_grad_enabled(train):
        plain = outcome(cell, x, state, "naive", axis=axis, reverse=reverse)
        for _ in range(3):
            found = outcome(cell, x, state, axis=axis, reverse=reverse)
            same(found[0], plain[0])
            same(found[1], plain[1])
    assert bool(ran) == (steps == 1)


@pytest.mark.parametrize("train", [False, True])
def test_sequences_of_one_row_each(ran, train):
    cell, (x, state) = Cell(), given(1)
    rows, state = wanting((x[0], state)) if train else (x[0], state)
    with torch.set_grad_enabled(train):
        for lengths in ([1, 1, 1], [1, 2, 0], [1, 1, 1], [0, 3, 0], [1, 1, 1]):
            ragged = LoDTensor.from_lengths(rows, [lengths])
            ran.clear()
            for _ in range(3):
                plain = outcome(cell, ragged, state, "naive")
                found = outcome(cell, ragged, state)
                same(found[0], plain[0])
                same(found[1], plain[1])
            assert bool(ran) == (lengths == [1, 1, 1])


def test_streams_frame_by_frame(ran):
    cell = nn.GRUCell(F, H, dtype=torch.float64)
    frames = torch.randn(12, N, F, dtype=torch.float64)
    pushed = stream(Recurrent(cell))
    ids = [pushed.open() for _ in range(N)]
    found = [torch.cat([*pushed.push(dict(zip(ids, f[:, None], strict=True))).values()]) for f in frames]
    same([torch.stack(found)], [recurrent(cell, frames, backend="naive")[0]])
    assert ran


@pytest.mark.parametrize("ragged", [False, True])
def test_results_are_the_callers(ran, ragged):
    cell, (x, state) = Cell(), given(1)
    given_x = LoDTensor.from_lengths(x[0], [[1] * N]) if ragged else x
    with torch.no_grad():
        for _ in range(3):
            (first, second), (h, kept) = recurrent(cell, given_x, state)
        if ragged:
            first, second = first.values, second.values
        want = [t.clone() for t in (first, second, h, kept, *state)]
        for k, t in enumerate((first, second, h, kept)):
            t.zero_()
            assert all(
                torch.equal(*pair)
                for pair in zip((first, second, h, kept, *state)[k + 1 :], want[k + 1 :], strict=True)
            )
    x, state = wanting((x, state))
    (first, _), (h, kept) = recurrent(cell, x, state)
    seen = []
    h.register_hook(seen.append)
    (first.sum() + 3 * h.sum()).backward()
    assert torch.equal(seen[0], torch.full((N, H), 3.0, dtype=torch.float64))
    assert ran


def test_a_call_after_something_changed(ran):
    cell, (x, state) = Cell(), given(1)
    for change in (
        lambda: None,
        lambda: cell.linear.weight.data.mul_(2),
        lambda: cell.linear.requires_grad_(False),
        lambda: setattr(cell, "linear", nn.Linear(F + H, H, dtype=torch.float64)),
    ):
        change()
        x, state = wanting((x, state))
        for _ in range(2):
            for ours, plain in zip(outcome(cell, x, state), outcome(cell, x, state, "naive"), strict=True):
                same(ours, plain)


def test_steps_that_draw_noise_go_by_plans(ran):
    x, h = torch.randn(1, N, H, dtype=torch.float64), torch.zeros(N, H, dtype=torch.float64)

    def noisy(x, h):
        h = h + torch.rand_like(x)
        return h, h

    for _ in range(3):
        torch.manual_seed(1)
        plain = recurrent(noisy, x, h, backend="naive")[0]
        torch.manual_seed(1)
        assert torch.equal(recurrent(noisy, x, h)[0], plain)
    assert not ran


def test_a_call_after_an_error(ran):
    def filters(x, p):
        factor = torch.linalg.cholesky(p)
        return torch.cholesky_solve(x[..., None], factor)[..., 0], p

    x, p = torch.randn(1, N, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64).expand(N, 2, 2)
    recurrent(filters, x, p)
    with pytest.raises(RuntimeError, match="positive-definite"):
        recurrent(filters, x, -p)
    same([recurrent(filters, x, p)[0]], [x])


def test_penalties_and_checkpoints(ran):
    cell, (x, state) = Cell(), given(1)
    x, state = wanting((x, state))

    def penalty(backend):
        y, _ = recurrent(cell, x, state, backend=backend)
        (g,) = torch.autograd.grad(y[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, *cell.parameters()))

    same(penalty(None), penalty("naive"))
    for _ in range(2):
        y = checkpoint(lambda x: recurrent(cell, x, state)[0][0], x, use_reentrant=False)
        found = torch.autograd.grad(y.sum(), x)
        same(found, torch.autograd.grad(recurrent(cell, x, state, backend="naive")[0][0].sum(), x))
    assert ran


def test_explain_says_so(ran):
    cell, (x, state) = Cell(), given(1)
    recurrent(cell, x, state)
    assert "calls of 1 step run by the plain loop: the plan 2e+06 us, the plain loop 1e+06 us" in str(
        explain(cell, x, state)
    )


class Asking(Cell):
    """The same, of which all rows are asked for one answer: where they disagree, its plan does not hold."""

    def forward(self, x, state):
        y, (h, kept) = super().forward(x, state)
        return y, ((h, kept) if torch.all(kept > 0) else (h * 0.5, kept))


def test_a_plan_that_may_not_hold(ran):
    cell, (x, (h, _)) = Asking(), given(1)
    for kept in (torch.ones_like(h), -torch.ones_like(h), torch.randn_like(h)):
        plain = outcome(cell, x, (h, kept), "naive")
        for turn in range(5):
            before = len(ran)
            same(outcome(cell, x, (h, kept))[0], plain[0])
            assert turn < 3 or len(ran) == before + 1
    longer = given(3)
    same(outcome(cell, *longer, "auto")[0], outcome(cell, *longer, "naive")[0])


def test_a_step_that_may_be_called_without_static_is_called_with_it(ran):
    def step(x, h, static=None):
        return (x if static is None else x + static), h

    x, (h, static) = torch.zeros(1, N, H), (torch.ones(N, H), torch.ones(N, H))
    for _ in range(4):
        y, last = recurrent(step, x, h, static=static, backend=BACKEND)
        assert y.equal(x + 1)
        assert last.equal(h)
    assert not ran


def halved(cell):
    cell.linear = nn.Linear(F + H, H, dtype=torch.float64).requires_grad_(False)


def gives(change):
    """A change of what a cell gives for x and the state."""

    def changed(cell):
        forward = Cell.forward
        cell.forward = lambda x, state: change(cell, x, *forward(cell, x, state))

    return changed


CHANGES = {
    "nothing": lambda cell: None,
    "numbers": lambda cell: cell.linear.weight.data.mul_(2),
    "a module": halved,
    "y": gives(lambda cell, x, y, new: ({"first": y[0]}, new)),
    "y without rows": gives(lambda cell, x, y, new: (y[0].sum(), new)),
    "a state of its own": gives(lambda cell, x, y, new: (y, (new[0], cell.linear.weight.data[:, :N].t()))),
    "a list": gives(lambda cell, x, y, new: (y, [*new])),
    "a larger state": gives(lambda cell, x, y, new: (y, (torch.cat(new, 1), new[1]))),
    "a state of float32": gives(lambda cell, x, y, new: (y, (new[0].float(), new[1]))),
    "no pair": gives(lambda cell, x, y, new: y[0]),
    "no features": gives(lambda cell, x, y, new: (cell.linear(x), new)),
    "a key": gives(lambda cell, x, y, new: {}["none"]),
    "a gradient": gives(lambda cell, x, y, new: (_with_gradient(x), new)),
}


@torch.enable_grad()
def _with_gradient(x):
    return x.detach().requires_grad_() * 2


def told(cell, x, state, axis, backend):
    try:
        y, last = recurrent(cell, x, state, axis=axis, backend=backend)
    except (StepError, KeyError) as error:
        return type(error), str(error)
    return tree_map(lambda t: (t.tolist(), t.requires_grad, t.is_contiguous()), (y, last))


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # that it changed is told
@TOLD
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_a_step_gives_is_asked_each_time(ran, axis, train):
    for change in CHANGES.values():
        cell, (x, state) = Cell(), given(1, axis)
        with torch.set_grad_enabled(train):
            for _ in range(4):
                recurrent(cell, x, state, axis=axis)
            change(cell)
            for _ in range(2):
                assert told(cell, x, state, axis, None) == told(cell, x, state, axis, "naive")
            odd = (state[0], state[1][:1])
            assert told(cell, x, odd, axis, None) == told(cell, x, odd, axis, "naive")


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # that it changed is told
@TOLD
def test_what_a_step_refers_to_is_not_given(ran):
    cell, (x, state) = Cell(), given(1)
    with torch.no_grad():
        for _ in range(3):
            recurrent(cell, x, state)
        own = torch.zeros(N, H, dtype=torch.float64)
        cell.forward = lambda x, state: ((own, own), (own, own))
        for _ in range(2):
            (first, second), (h, kept) = recurrent(cell, x, state)
            for t in (first, second, h, kept):
                t += 1
            assert not own.any()
            assert all(t.eq(1).all() for t in (first, second, h, kept))


def test_a_step_that_reads_what_was_made_in_inference_mode(ran):
    with torch.inference_mode():
        shift = torch.randn(H, dtype=torch.float64)
    x, (h, _) = given(1)

    def step(x, h):
        return x, h + shift

    for _ in range(3):
        _, last = recurrent(step, x, h, backend=BACKEND)
        torch.testing.assert_close(last, h + shift)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_plan_that_is_as_fast_as_the_step_itself_is_kept(monkeypatch, ragged):
    """Both are found by the same look, which takes nothing off either."""
    runs: list[bool] = []
    one_step = warm_calls.one_step
    monkeypatch.setattr(warm_calls, "one_step", lambda *given: runs.append(True) or one_step(*given))
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: (call(), 2e-5)[1])
    plans.forget()
    cell, (x, state) = Cell(), given(1)
    call = LoDTensor.from_lengths(x[0], [[1] * N]) if ragged else x
    with torch.no_grad():
        for _ in range(2):
            recurrent(cell, call, state)
        runs.clear()
        recurrent(cell, call, state)
    assert not runs
    plans.forget()
