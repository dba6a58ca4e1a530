"""Batches of inputs: `torch.func.vmap` over x and states is one call with more sequences."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, stack_module_state, vmap

from stepnet import Recurrent, recurrent
from stepnet.cells import GRU, LearnedInitialState
from stepnet.engine import plans, vmapped_calls
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from stepnet.executors import transformed
from stepnet.executors.base import Backend
from stepnet.executors.direct import Direct

DTYPE = torch.float64
torch.manual_seed(5)
X, STATE = torch.randn(3, 2, 3, dtype=DTYPE), torch.randn(2, 4, dtype=DTYPE)
MIX = torch.randn(3, 4, dtype=DTYPE)

FOLDED = {
    "x": (0, None, {}),
    "x, its sequences first": (1, None, {"axis": 1}),
    "the state": (None, 0, {"reverse": True}),
    "both, elsewhere": (-1, 1, {}),
}


def several(tensor: torch.Tensor, dim: int | None = 0):
    return tensor if dim is None else torch.stack([tensor, tensor.sin(), -tensor], dim)


def parts(tensor: torch.Tensor, dim: int | None):
    return [tensor] * 3 if dim is None else tensor.unbind(dim)


@pytest.mark.parametrize(("of_x", "of_state", "how"), FOLDED.values(), ids=FOLDED)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not"])
def test_a_batch_of_inputs_is_a_call_with_more_sequences(of_x, of_state, how, recorded, monkeypatch):
    """Found as others are, by no look at what transforms made; another weight gives other numbers."""
    weight = MIX.clone().requires_grad_()

    def step(x, h):
        u = torch.tanh(x @ weight + h[0] + h[1])
        return {"y": u}, (u, h[1] * 0.5)

    def of(x, u, backend: Backend = "c"):
        y, (u, v) = recurrent(step, x, (u, STATE.cos()), backend=backend, **how)
        return y["y"], u, v

    def one_by_one(x, u):
        calls = zip(parts(x, of_x), parts(u, of_state), strict=True)
        outs = [of(*one, backend="naive") for one in calls]
        return tuple(map(torch.stack, zip(*outs, strict=True)))

    given = several(X.transpose(0, 1) if how.get("axis") else X, of_x), several(STATE, of_state)
    monkeypatch.setattr(plans, "find_transformed", None)
    for _ in range(4):
        with torch.set_grad_enabled(recorded):
            found, expected = vmap(of, (of_x, of_state))(*given), one_by_one(*given)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        if recorded:
            ends = [torch.stack([t.sin().sum() for t in out]).sum() for out in (found, expected)]
            grads = [torch.autograd.grad(end, weight)[0] for end in ends]
            torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)
        with torch.no_grad():
            weight.mul_(1.1)


def asks(x, h):
    h = torch.tanh(x @ MIX + h)
    return (h * 2 if h.requires_grad else h), h


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(MIX.shape[1], MIX.shape[1], dtype=DTYPE)
        self.mix.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.5,))

    def forward(self, x, h):
        h = torch.tanh(self.mix(x @ MIX) + h)
        return h, h


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("step", [asks, Hooked()])
def test_a_step_that_asks_what_wants_a_gradient(step):
    """A tensor says otherwise inside of a transform; outside it goes by a plan, before and after. torch asks
    for the hooks of modules."""
    weights, found = several(X).requires_grad_(), []
    for backend in (None, "naive", None):
        recurrent(step, weights[0], STATE, backend="eager")
        y = vmap(lambda x, b=backend: recurrent(step, x, STATE, backend=b)[0])(weights)
        found.append((y, *torch.autograd.grad(y.sin().sum(), weights)))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])


def test_steps_that_are_more_than_their_rows():
    """Rows that meet, noise, weights in the batch, tensors of a transform that is over."""
    rows = several(X)

    def meets(x, h):
        h = torch.tanh(x @ MIX + h.mean(0, keepdim=True))
        return h, h

    def noisy(x, h):
        h = torch.tanh(x @ MIX + h + torch.randn(h.shape, dtype=DTYPE))
        return h, h

    def run(step, x, h=STATE):
        return recurrent(step, x, h)[0]

    with pytest.warns(SlowPathWarning, match="mixes rows"):
        found = vmap(lambda x: run(meets, x))(rows)
    torch.testing.assert_close(found, torch.stack([run(meets, x) for x in rows]))
    with pytest.raises(StepError, match="randomness"):
        vmap(lambda x: run(noisy, x))(rows)
    same = vmap(lambda x: run(noisy, x), randomness="same")(torch.stack([X, X]))
    torch.testing.assert_close(same[0], same[1])

    def weighed(x, w, backend: Backend = "c"):
        def step(x, h):
            h = torch.tanh(x @ w + h)
            return h, h

        return recurrent(step, x, STATE, backend=backend)[0]

    for dim in (None, 0):
        found = vmap(weighed, (0, dim))(rows, several(MIX, dim))
        calls = zip(rows, parts(several(MIX, dim), dim), strict=True)
        torch.testing.assert_close(found, torch.stack([weighed(*one, backend="naive") for one in calls]))

    found = vmap(jacrev(lambda x: weighed(x, MIX)))(rows)
    expected = torch.stack([jacrev(lambda x: weighed(x, MIX, "naive"))(x) for x in rows])
    torch.testing.assert_close(found, expected)


def test_members_of_which_nothing_is_kept(monkeypatch):
    """One after the other, by addresses once it was called some times, each into its part of one table; views
    are read as they look."""
    monkeypatch.setattr(transformed.batched, "beside", None)
    forward, ran = Direct.forward, []

    def noted(*args):
        ran.append(forward(*args))
        return ran[-1]

    monkeypatch.setattr(Direct, "forward", noted)

    def of(w, backend: Backend = "c"):
        def step(x, h):
            h = torch.tanh(x @ w + h)
            return h, h

        return recurrent(step, X, STATE, backend=backend)

    for k in range(6):
        wide = several(MIX * (1 + k), 2 if k == 5 else 0)
        if k == 3:
            wide = torch.complex(wide, -wide).conj().imag
        with torch.no_grad():
            found = vmap(of, 2 if k == 5 else 0)(wide)
        outs = [of(w, "naive") for w in wide.unbind(2 if k == 5 else 0)]
        torch.testing.assert_close(found, tuple(map(torch.stack, zip(*outs, strict=True))))
        if k == 5:
            made = {t.untyped_storage().data_ptr() for out, _ in ran[-len(outs) :] for t in out}
            assert made == {t.untyped_storage().data_ptr() for t in found}


RECORDED = {"few": (3, 1 << 60, True), "large": (6, 1, True), "many small": (6, 1 << 60, False)}


@pytest.mark.parametrize(("k", "large", "one_by_one"), RECORDED.values(), ids=RECORDED)
def test_members_of_which_gradients_are_taken(k, large, one_by_one, monkeypatch):
    """Few or large ones run one after the other; gradients, and those of gradients, when functional_call is
    over. Of x some have their own, of the state all the same."""
    monkeypatch.setattr(vmapped_calls, "_LARGE", large)
    if one_by_one:
        monkeypatch.setattr(transformed.batched, "beside", None)
    else:
        monkeypatch.setattr(vmapped_calls, "_each_recorded", None)
    members = [Recurrent(GRU(3, 4, dtype=DTYPE)) for _ in range(k)]
    weights, _ = stack_module_state(members)  # pyright: ignore[reportArgumentType]
    state = STATE.clone().requires_grad_()

    def at_once(x, dim):
        def one(weights, x):
            return functional_call(members[0], weights, (x, state))

        return vmap(one, (0, dim))(weights, x)

    def each(x, dim):
        own = [x] * k if dim is None else x.unbind(dim)
        runs = []
        for j, x in enumerate(own):
            one = {name: t[j] for name, t in weights.items()}
            runs.append(functional_call(Recurrent(members[0].step, backend="naive"), one, (x, state)))
        return [torch.stack(of) for of in zip(*runs, strict=True)]

    for call in range(5):
        dim = None if call % 2 else 1
        x = (X if dim is None else torch.stack([X * (j + 1) for j in range(k)], 1)).requires_grad_()
        wanted = [*weights.values(), state, x]
        found = []
        for run in (at_once, each):
            y, last = run(x, dim)
            total = y.sin().sum() + last.square().sum()
            first = torch.autograd.grad(total, wanted, create_graph=True)
            square = torch.stack([g.square().sum() for g in first]).sum()
            found.append([y, last, *first, *torch.autograd.grad(square, wanted)])
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


GENERATOR = torch.Generator()


def draws(x, h):
    h = torch.tanh(x @ MIX + h) + torch.rand(len(x), 4, generator=GENERATOR, dtype=DTYPE)
    return h, h


def asks_all(x, h):
    h = torch.tanh(x @ MIX + h)
    return (h * 2 if (h.abs() < 9).all() else h), h


def looks_up(x, h):
    h = getattr(torch, "ta" + "nh")(x @ globals()["MIX"] + h)
    return h, h


NO_PART = {
    draws: "the step has a generator of its own",
    asks_all: "the step asks something of all rows",
    looks_up: "globals()",
}


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("step", NO_PART)
def test_what_takes_no_part_in_a_transform_says_why(step):
    """Nothing of the calls is in the batch but what is made of their results."""

    def by(backend: Backend):
        GENERATOR.manual_seed(3)
        scales = torch.ones(2, dtype=DTYPE)
        return vmap(lambda k: recurrent(step, X, STATE, backend=backend)[0] * k, randomness="same")(scales)

    torch.testing.assert_close(by("auto"), by("naive"), rtol=1e-12, atol=1e-12)
    with pytest.raises(Unsupported, match=re.escape(NO_PART[step])):
        by("eager")


def test_a_call_of_which_nothing_is_in_the_batch():
    """It runs once, as outside, recorded or not."""

    def step(x, h):
        h = torch.tanh(x @ MIX + h)
        return h, h

    x, scales = X.clone().requires_grad_(), torch.tensor([1.0, -2.0], dtype=DTYPE)
    y = recurrent(step, x, STATE, backend="naive")[0]
    for _ in range(3):
        found = vmap(lambda k: recurrent(step, x, STATE, backend="c")[0] * k)(scales)
        torch.testing.assert_close(found, torch.stack([y, -2 * y]))
        gradients = (torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (found, -y))
        torch.testing.assert_close(*gradients)


def test_vmap_tells_its_own_remedy():
    """Noise in a step, where vmap was not told whose it is: nothing is said of sizes, which are right."""

    def noisy(x, h):
        h = torch.dropout(x + h, 0.5, True)
        return h, h

    def call(x):
        return recurrent(noisy, x, torch.zeros(5, 3))[0]

    with pytest.raises(StepError, match="'same' or 'different' randomness") as caught:
        vmap(call)(torch.ones(2, 4, 5, 3))
    assert caught.value.remedy is None
    assert vmap(call, randomness="same")(torch.ones(2, 4, 5, 3)).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not"])
@pytest.mark.parametrize("learned", [True, False], ids=["learned", "zeros"])
def test_members_that_begin_by_themselves(learned, recorded, monkeypatch):
    """They go as those that are given a state."""
    members = [Recurrent(LearnedInitialState(cell) if learned else cell) for cell in (GRU(3, 4), GRU(3, 4))]
    for member in members:
        member.double().requires_grad_(recorded)
        for t in member.state_dict().values():
            t.copy_(torch.randn_like(t))
    weights, _ = stack_module_state(members)  # pyright: ignore[reportArgumentType]

    def one(weights, x):
        return functional_call(members[0], weights, (x,))

    with torch.set_grad_enabled(recorded):
        plain = [Recurrent(member.step, backend="naive")(X) for member in members]
        expected = [torch.stack(of) for of in zip(*plain, strict=True)]
        for _ in range(3):
            vmap(one, (0, None))(weights, X)
        monkeypatch.setattr(plans, "find_transformed", None)
        found = vmap(one, (0, None))(weights, X)
    torch.testing.assert_close([*found], expected)
    if recorded:
        moved = torch.autograd.grad(found[0].sin().sum(), [*weights.values()])
        own = torch.autograd.grad(expected[0].sin().sum(), [p for m in members for p in m.parameters()])
        own = [torch.stack(of) for of in zip(own[: len(moved)], own[len(moved) :], strict=True)]
        torch.testing.assert_close([*moved], own)


def test_a_step_is_asked_once_what_it_begins_with():
    asked = list[int]()

    class Counts(GRU):
        def initial_state(self, n):
            asked.append(n)
            return super().initial_state(n)

    run = Recurrent(Counts(3, 4, dtype=DTYPE))
    for _ in range(3):
        vmap(run)(torch.stack([X, X]))
    assert len(asked) == 3
