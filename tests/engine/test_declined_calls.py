"""Calls of one step of a step that no plan is for: what the plain loop gives, without its records."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from outcomes import outcome, same, wanting
from stepnet import recurrent
from stepnet.engine import calls_in_progress, other_threads, plans, refused_steps
from stepnet.errors import SlowPathWarning, Unsupported
from stepnet.executors import naive
from threads import at_once
from torch_since import TOLD

N, F, H = 3, 2, 4
pytestmark = pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")


@pytest.fixture
def ran(monkeypatch):
    """The steps that ran so."""
    runs, run_one = [], naive.run_one
    monkeypatch.setattr(naive, "run_one", lambda body, *given: (runs.append(body), run_one(body, *given))[1])
    monkeypatch.setattr(refused_steps, "_LONG", float("inf"))  # else a slow look at a step lets it rest
    monkeypatch.setattr(
        other_threads, "is_only_thread", lambda: True
    )  # those that other tests left do nothing here
    plans.forget()
    yield runs
    plans.forget()


class Asking(nn.Module):
    """It asks a number of its rows."""

    def __init__(self, give, key=()):
        super().__init__()
        self.linear, self.give, self.key = nn.Linear(F + H, H, dtype=torch.float64), give, key

    def forward(self, x, state):
        h = state if self.key == () else state[self.key]
        new = torch.tanh(self.linear(torch.cat([x, h], dim=1)))
        return self.give(self, x, state, new * new.sum().item())


class Mixing(Asking):
    """It mixes rows."""

    def forward(self, x, state):
        return super().forward(x - x.mean(0), state)


def states(*shapes):
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


KINDS = {
    "a tensor": (lambda cell, x, h, new: (new, new), lambda h: h),
    "a pair": (lambda cell, x, s, new: (new, (new, s[1] + new)), lambda h: (h, h * 2)),
    "a state as it came": (lambda cell, x, s, new: (s[1], (new, s[1])), lambda h: (h, h * 2)),
    "x": (lambda cell, x, h, new: (x, new), lambda h: h),
    "parts": (lambda cell, x, s, new: ({"y": new, "x": [x]}, {"h": new, "c": (s["c"][0] * 2,)}),
              lambda h: {"h": h, "c": (h * 3,)}),
    "the other order": (lambda cell, x, s, new: (new, {"c": s["c"], "h": new}),
                        lambda h: {"h": h, "c": h * 3}),
    "columns": (lambda cell, x, h, new: (new.t().contiguous().t(), new.t().contiguous().t()), lambda h: h),
    "what it refers to": (lambda cell, x, h, new: (cell.linear.weight.t()[:N, :H], new), lambda h: h),
}  # fmt: skip


def looks(tree):
    return [(t.shape, t.stride(), t.dtype, t.requires_grad, t.is_leaf) for t in tree_leaves(tree)]


@TOLD
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_the_numbers_of_the_plain_loop(ran, axis, kind, train):
    give, of = KINDS[kind]
    key = {tuple: 0, dict: "h"}.get(type(of(torch.ones(1))), ())
    for cell in (Asking(give, key), Mixing(give, key)):
        for _ in range(6):
            x, h = states((1, N, F) if axis == 0 else (N, 1, F), (N, H))
            state = of(h)
            if train:
                x, state = wanting((x, state))
            with torch.set_grad_enabled(train):
                how = {"axis": axis, "reverse": True}
                plain, found = outcome(cell, x, state, "naive", **how), outcome(cell, x, state, **how)
                same(found[0], plain[0], 0, 0)
                same(found[1], plain[1], 0, 0)
                given, wanted = (
                    recurrent(cell, x, state, **how),
                    recurrent(cell, x, state, backend="naive", **how),
                )
                assert looks(given) == looks(wanted)
        mine = {t.untyped_storage().data_ptr() for t in tree_leaves(given)}
        others = [x, *cell.parameters(), *tree_leaves(state)]
        assert not mine & {t.untyped_storage().data_ptr() for t in others}
    assert ran


@TOLD
def test_second_gradients(ran):
    cell = Asking(KINDS["a pair"][0], 0)
    found = []
    for backend in [None] * 5 + ["naive"]:
        torch.manual_seed(0)
        x, state = wanting((*states((1, N, F)), tuple(states((N, H), (N, H)))))
        y, last = recurrent(cell, x, state, backend=backend)
        (of_x,) = torch.autograd.grad((y * y).sum() + last[1].sum(), x, create_graph=True)
        found.append(
            torch.autograd.grad(of_x.square().sum(), [x, *state, *cell.parameters()], allow_unused=True)
        )
    assert ran
    for grads in found[:-1]:
        same(grads, found[-1], 0, 0)


def known(ran, cell, x, state, **how):
    """It ran by itself."""
    for _ in range(6):
        recurrent(cell, x, state, **how)
    assert ran
    ran.clear()


def of_key(cell, x, state, new):
    raise KeyError("none")


def of_value(cell, x, state, new):
    raise ValueError("none")


CHANGES = {
    "y": lambda cell, x, h, new: ({"first": new}, new),
    "y without rows": lambda cell, x, h, new: (new.sum(), new),
    "y of another kind": lambda cell, x, h, new: (1.0, new),
    "a list": lambda cell, x, h, new: (new, [new]),
    "a larger state": lambda cell, x, h, new: (new, torch.cat([new, new], 1)),
    "a state of float32": lambda cell, x, h, new: (new, new.float()),
    "no pair": lambda cell, x, h, new: new,
    "no features": lambda cell, x, h, new: (cell.linear(x), new),
    "a key": of_key,
    "a value": of_value,
    "x written to": lambda cell, x, h, new: (x.mul_(2), new),
}


def told(cell, x, h, backend=None):
    try:
        y, last = recurrent(cell, x * 1, h, backend=backend)
    except Exception as error:
        return type(error), str(error), str(error.__cause__)
    return tree_map(lambda t: (t.tolist(), t.dtype, t.requires_grad), (y, last))


@TOLD
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_step_gives_is_asked_each_time(ran, change, wants):
    """And told in the user's words, whether a look at it finds another step or the same."""
    x, h = states((1, N, F), (N, H))
    x.requires_grad_(wants)
    cell = Asking(KINDS["a tensor"][0])
    known(ran, cell, x, h)
    cell.give = CHANGES[change]
    assert told(cell, x, h) == told(cell, x, h, "naive")

    rule = [KINDS["a tensor"][0]]

    def step(x, h):
        return rule[0](cell, x, h, torch.tanh(x.sum(1, True) + h) * h.sum().item())

    known(ran, step, x * 1, h)
    rule[0] = CHANGES[change]
    for _ in range(3):
        assert told(step, x, h) == told(step, x, h, "naive")


@TOLD
def test_errors_of_a_step_that_reads_the_same(ran):
    """What its state holds says what it gives."""
    x, h = states((1, N, F), (N, H))
    cell, rules = Asking(KINDS["a tensor"][0]), [KINDS["a tensor"][0], *CHANGES.values()]

    def step(x, h):
        return rules[int(h[0, 0].item())](cell, x, h, torch.tanh(x.sum(1, True) + h))

    known(ran, step, x, h.zero_())
    for k in range(len(rules)):
        assert told(step, x, h.fill_(k)) == told(step, x, h, "naive")
    assert len(ran) == len(rules)


@TOLD
def test_a_step_that_changed_is_seen(ran):
    cell, (x, h) = Asking(KINDS["a tensor"][0]), states((1, N, F), (N, H))
    known(ran, cell, x, h)
    seen = []
    handle = cell.register_forward_hook(lambda *of: seen.append(of))
    assert told(cell, x, h) == told(cell, x, h, "naive")
    assert len(seen) >= 2
    handle.remove()
    cell.linear.weight.data.mul_(2)
    assert told(cell, x, h) == told(cell, x, h, "naive")
    cell.linear = nn.Linear(F + H, H, dtype=torch.float64)
    assert told(cell, x, h) == told(cell, x, h, "naive")
    cell.forward = lambda x, h: (torch.tanh(cell.linear(torch.cat([x, h], 1))),) * 2  # which has a plan
    ran.clear()
    for _ in range(3):
        torch.testing.assert_close(recurrent(cell, x, h), recurrent(cell, x, h, backend="naive"))
    assert not ran


@TOLD
def test_it_is_told_once_and_declined_by_name(ran):
    cell, (x, h) = Asking(KINDS["a tensor"][0]), states((1, N, F), (N, H))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        known(ran, cell, x, h)
    assert sum(issubclass(each.category, SlowPathWarning) for each in caught) == 1
    with pytest.raises(Unsupported, match="mixes rows"):
        recurrent(cell, x, h, backend="c")


@TOLD
def test_modes_and_regions_around(ran):
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(getattr(function, "__name__", ""))
            return function(*args, **kwargs or {})

    cell, (x, h) = Asking(KINDS["a tensor"][0]), states((1, N, F), (N, H))
    known(ran, cell, x, h)
    names = []
    for backend in (None, "naive"):
        with Seen():
            found = recurrent(cell, x, h, backend=backend)
        assert {"stack", "tanh"} <= {*names}
        names.clear()
        torch.testing.assert_close(found, recurrent(cell, x, h))
    with torch.autocast("cpu", torch.bfloat16):
        assert told(cell, x, h) == told(cell, x, h, "naive")
    of_x = []
    for again in (False, True, True):
        leaf = x.clone().requires_grad_()
        y = checkpoint(lambda t: recurrent(cell, t, h)[0], leaf, use_reentrant=False) if again else None
        y = recurrent(cell, leaf, h)[0] if y is None else y
        of_x.append(torch.autograd.grad(y.square().sum(), leaf)[0])
    same(of_x[1:], of_x[:1] * 2, 0, 0)
    tangent = torch.func.jvp(lambda t: recurrent(cell, t, h)[0], (x,), (x,))[1]
    torch.testing.assert_close(
        tangent, torch.func.jvp(lambda t: recurrent(cell, t, h, backend="naive")[0], (x,), (x,))[1]
    )


@TOLD
def test_other_threads_are_told_of_the_call(ran, monkeypatch):
    cell, (x, h) = Asking(KINDS["a tensor"][0]), states((1, N, F), (N, H))
    known(ran, cell, x, h)
    seen, run_one = [], naive.run_one

    def asked(*given):
        for step in (cell, Asking(None)):
            at_once(lambda _, step=step: seen.append(calls_in_progress.is_called_elsewhere(step)), 1)
        return run_one(*given)

    monkeypatch.setattr(naive, "run_one", asked)
    recurrent(cell, x, h)
    assert seen == [True, False]
    assert not calls_in_progress.is_called_elsewhere(cell)
    assert not calls_in_progress._calls


@TOLD
def test_what_is_no_call_of_one_step_of_tensors_goes_the_plain_way(ran):
    cell, (x, h) = Asking(KINDS["a tensor"][0]), states((2, N, F), (N, H))
    for _ in range(6):
        recurrent(cell, x, h)
    for _ in range(6):
        recurrent(cell, x[:0], h)
    for _ in range(6):
        recurrent(cell, x[:1, :0], h[:0])
    assert not ran
