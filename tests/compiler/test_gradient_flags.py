"""What requires a gradient, and which gradients are None: as in the plain loop, in values and flags."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from plans import entry_of
from stepnet.api import recurrent
from stepnet.compiler.trace.torch_tracers import _harmless
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from torch_since import torch_since

PLANS_ON_DISK = False  # flags are those of a step just recorded

W = torch.tensor([[0.5, -0.3], [0.2, 0.7]], dtype=torch.float64, requires_grad=True)


def under_no_grad(x, h):
    with torch.no_grad():
        return x @ W, torch.tanh(x @ W + h)


def partly_no_grad(x, h):
    with torch.no_grad():
        z = torch.tanh(x @ W)
    return z, z + h


def straight(x, h):
    z = torch.tanh(x @ W + h)
    return z + (z.round() - z).detach(), z


STEPS = {
    "detached result": lambda x, h: ((x @ W).detach(), torch.tanh(x @ W + h)),
    "detached state": lambda x, h: (x @ W + h, torch.tanh(x @ W + h).detach()),
    "detached both": lambda x, h: ((x @ W + h).detach(), torch.tanh(x + h).detach()),
    "detached and used": lambda x, h: ((x @ W).detach(), (x @ W).detach() + h),
    "no_grad": under_no_grad,
    "no_grad in part": partly_no_grad,
    "straight through": straight,
    "thresholds": lambda x, h: ((x > 0).to(x.dtype), (h > 0.5).to(h.dtype)),
    "a constant of the step": lambda x, h: ((x > 0).long() + torch.tensor([1, 2]), (h > 0).to(h.dtype)),
    "whole numbers": lambda x, h: ((x > 0).long(), (x @ W + h > 0).to(h.dtype)),
    "x unused": lambda x, h: (h * 1, torch.tanh(h)),
    "state unused": lambda x, h: (x @ W, torch.tanh(x)),
    "weights unused": lambda x, h: (h * 1, x * 1),
    "inputs themselves": lambda x, h: (x, h),
    "the state itself": lambda x, h: (h, torch.tanh(x @ W + h)),
    "the same twice": lambda x, h: ((h, h), h * 0.5),
    "no gradient flows": lambda x, h: (torch.zeros_like(x) * x, torch.sign(h)),
    "results, one cut": lambda x, h: ((x @ W, x.detach()), h.detach() + x.detach()),
}
LENGTHS = [[3, 0, 1, 4], [0, 0], [], [2, 2]]
NEEDS = ["xhw", "x", "h", "w", "xh", ""]


def run(step, lengths, needs, backend, dense):
    g = torch.Generator().manual_seed(3)
    rows = torch.randn(sum(lengths), 2, generator=g, dtype=torch.float64).requires_grad_("x" in needs)
    state = torch.randn(len(lengths), 2, generator=g, dtype=torch.float64).requires_grad_("h" in needs)
    W.requires_grad_("w" in needs)
    x = rows.reshape(2, len(lengths), 2) if dense else LoDTensor.from_lengths(rows, [lengths])
    y, final = recurrent(step, x, state, backend=backend)
    results = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]] + [final]
    inputs = [t for t in (rows, state, W) if t.requires_grad]
    gradients = []
    for picked in (results, results[:1], results[-1:]):  # of all, of y alone, of the state alone
        asked = [t for t in picked if t.requires_grad]
        if asked and inputs:
            seeds = [torch.linspace(1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in asked]
            gradients += torch.autograd.grad(asked, inputs, seeds, allow_unused=True, retain_graph=True)
    W.requires_grad_()
    return results, gradients


_WANTED = [(name, needs) for name in STEPS for needs in NEEDS]
_IN_TURN = [case for i, case in enumerate(_WANTED) if (i + i // len(NEEDS)) % 3 == 0]


@pytest.mark.parametrize(
    ("name", "needs"),
    few(_WANTED, [(name, max(NEEDS, key=len)) for name in STEPS]),
    ids=[f"{name}-{needs or 'none'}" for name, needs in _WANTED],
)
def test_as_the_plain_loop(name, needs):
    for lengths in LENGTHS:
        for dense in (False, True) if not lengths else (lengths == [2, 2],):
            ours = run(STEPS[name], lengths, needs, "eager", dense)
            plain = run(STEPS[name], lengths, needs, "naive", dense)
            assert [t.requires_grad for t in ours[0]] == [t.requires_grad for t in plain[0]], lengths
            for a, b in zip(ours[0], plain[0], strict=True):
                torch.testing.assert_close(a, b)
            assert [g is None for g in ours[1]] == [g is None for g in plain[1]], lengths
            for a, b in zip(ours[1], plain[1], strict=True):
                assert a is b is None or torch.allclose(a, b), lengths


@pytest.mark.parametrize(
    "name", few(["detached result", "detached state", "no_grad", "straight through"], ["straight through"])
)
def test_in_generated_c(name):
    ours, plain = (run(STEPS[name], [3, 0, 1, 4], "xhw", backend, False) for backend in ("c", "naive"))
    assert [t.requires_grad for t in ours[0]] == [t.requires_grad for t in plain[0]]
    assert [g is None for g in ours[1]] == [g is None for g in plain[1]]
    for a, b in zip((*ours[0], *ours[1]), (*plain[0], *plain[1]), strict=True):
        assert a is b is None or torch.allclose(a, b)


def test_states_that_trade_places():
    """What carries a gradient after t steps depends on whether t is even."""

    def step(x, state):
        a, b = state
        return a + b, (b, a.detach())

    for lengths in ([1], [2], [3], [1, 2], [4, 0]):
        found = {}
        for backend in ("eager", "naive"):
            one = torch.ones(len(lengths), 1, dtype=torch.float64)
            states = (one.clone().requires_grad_(), one)
            x = LoDTensor.from_lengths(torch.ones(sum(lengths), 1, dtype=torch.float64), [lengths])
            y, final = recurrent(step, x, states, backend=backend)
            found[backend] = [t.requires_grad for t in (y.values, *final)]
        assert found["eager"] == found["naive"], lengths


ASKED = {
    "state": lambda x, h: h.requires_grad,
    "x": lambda x, h: x.requires_grad,
    "made of it": lambda x, h: (h * 2).requires_grad,
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore")
def test_a_step_that_asks_for_them(name):
    """Of the first state, and of views made under no_grad, the answer is another one than of later states."""

    def step(x, h):
        return x * (2.0 if ASKED[name](x, h) else 0.5), x + h

    def noisy(x, h):  # no plan of it is checked
        return step(x, h)[0], x + h * torch.rand_like(h)

    for needs in ("xh", "x", "h", ""):
        for around in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            for form in (step, noisy):
                x = torch.ones(3, 2, 2).requires_grad_("x" in needs)
                h = torch.ones(2, 2).requires_grad_("h" in needs)
                with around():
                    ours, plain = (recurrent(form, x, h, backend=b)[0].clone() for b in ("auto", "naive"))
                assert torch.equal(ours, plain), (needs, around)


def test_a_step_that_asks_what_stays_so_has_a_plan():
    def of_the_state(x, h):
        k = 2.0 if h.requires_grad and W.requires_grad else 0.5
        return h, torch.tanh(x @ W + h * k)

    def of_what_it_made(x, h):  # as those who register a hook
        h = torch.tanh(x @ W + h)
        return h * (2.0 if h.requires_grad else 0.5), h

    x, h = torch.ones(3, 2, 2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    for step, first in (
        (of_the_state, h.clone().requires_grad_()),
        (of_what_it_made, h),
        (of_what_it_made, h.clone().requires_grad_()),
    ):
        recurrent(step, x, first, backend="eager")
        for rows in (x, x.clone().requires_grad_()):
            with torch.no_grad():
                y, _ = recurrent(step, rows, first.detach(), backend="eager")
                assert torch.equal(y, recurrent(step, rows, first.detach(), backend="naive")[0])


@torch_since("2.13", "torch.func takes no hooks of saved tensors, or a hessian is not traced")
@pytest.mark.parametrize("derivative", [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_a_step_of_derivatives_has_a_plan(derivative):
    """Torch asks for itself, of tensors of which the derivative alone tells."""

    def step(x, h):
        h = h * torch.vmap(derivative(lambda row: torch.tanh(row @ W)))(x + h).flatten(2).sum(2)
        return h, h

    x, h = torch.ones(3, 2, 2, dtype=torch.float64, requires_grad=True), torch.ones(2, 2, dtype=torch.float64)
    for around in (torch.enable_grad, torch.no_grad):
        with around():
            ours, plain = (recurrent(step, x, h, backend=b)[0] for b in ("eager", "naive"))
        torch.testing.assert_close(ours, plain)


def test_a_step_that_torch_asks_for_them_has_a_plan():
    """As a hook of a module does; and what is asked to differentiate a gradient is not asked by the step."""
    module = torch.nn.Tanh()
    module.register_full_backward_hook(lambda module, of_inputs, grads: (of_inputs[0] * 0.5,))

    def step(x, h):
        h = module(x + h @ W)
        return h.sin(), h

    def second(backend):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 2, 2).requires_grad_()
        y, _ = recurrent(step, x, x.new_zeros(2, 2), backend=backend)
        first = torch.autograd.grad(y.square().sum(), [x, W], create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, W])

    torch.testing.assert_close(second("eager"), second("naive"))


BRANCHES = {
    "above a million": lambda n: n > 1_000_000,
    "a product": lambda n: 3 * n > 1_000_000,
    "a square": lambda n: n * n > 5_000_000_000,
    "a quotient": lambda n: n // 64 > 3000,
    "not this one": lambda n: n != 123_457,
    "multiples": lambda n: n % 4099 == 0,
    "two bounds": lambda n: 70_001 < n < 70_005,
}


@pytest.mark.parametrize("name", few(BRANCHES, ["a square", "above a million"]))
def test_a_branch_on_many_rows_is_seen(name):
    def step(x, h):
        new = torch.tanh(x + h)
        return (new if BRANCHES[name](x.shape[0]) else 2 * new), new

    entry = entry_of(step, torch.zeros(3, 2, 2), torch.zeros(2, 2))
    assert entry.ready is None
    assert "how many rows" in str(entry.refusals[-1][1])


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("n > 1", True), ("n < 2**62", True), ("4*n < 9223372036854775807", True), ("Ne(n, 1)", True),
        ("n <= 1000000", False), ("2*n < 1999999", False), ("Ne(Mod(n, 4099), 0)", False),
        ("n**2 < 10**14", False), ("n*7 < 10**9", False), ("floor(n/64) < 5000", False),
    ],
)  # fmt: skip
def test_guards(text, harmless):
    sympy = pytest.importorskip("sympy")
    n = sympy.Symbol("n", integer=True, positive=True)
    assert _harmless(sympy.sympify(text, locals={"n": n}), n) is harmless


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def _views_under_no_grad():
    """Steps with views made under no_grad: they require a gradient if their base does, and pass none on."""
    w = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def of_a_result(x, h):
        v = x * 2
        with torch.no_grad():
            e = v[:, :1]
        return e.detach(), e.clamp(-2, 2)

    def of_an_input(x, h):
        with torch.no_grad():
            e = x.flatten(1)
        return x * 1, e[:, :1] * 1

    def of_a_view(x, h):
        v = x * 2
        with torch.no_grad():
            g = v[:, :1].reshape(-1)
        return g.unsqueeze(1) * 2, g.unsqueeze(1) + h

    def of_the_state(x, h):
        v = torch.cat([h, h], 1) @ w
        with torch.no_grad():
            e = v[:, :1]
        return (e.repeat(1, 2).detach(), v * 1), e.clamp(-2, 2)

    def itself(x, h):
        with torch.no_grad():
            e = h[:]
        return x * 1, e

    def through_a_function(x, h):
        with torch.no_grad():
            e = x[:, :1]
        return Doubled.apply(e), h * 0.5

    return of_a_result, of_an_input, of_a_view, of_the_state, itself, through_a_function


@pytest.mark.covering(1)
@pytest.mark.parametrize("wants", [(False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("step", _views_under_no_grad(), ids=lambda f: f.__name__)
def test_a_view_made_under_no_grad(step, backend, wants):
    def flags(executor):
        x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=wants[0])
        h = torch.randn(2, 1, dtype=torch.float64, requires_grad=wants[1])
        y, new = recurrent(step, x, h, backend=executor)
        results = [*(y if isinstance(y, tuple) else (y,)), new]
        asked = [t.sum() for t in results if t.requires_grad]
        leaves = [t for t in (x, h) if t.requires_grad]
        grads = torch.autograd.grad(sum(asked), leaves, allow_unused=True) if asked else ()
        return [t.requires_grad for t in results], [None if g is None else g.tolist() for g in grads]

    assert flags(backend) == flags("naive")


_COPY_OR_NOT = {  # whether a result is the input, a view of it or a copy: torch's answer, not the trace's
    "dropout of nothing": lambda v: F.dropout(v, 0.0),
    "dropout in eval": nn.Dropout(0.5).eval(),
    "torch.dropout": lambda v: torch.dropout(v, 0.3, train=False),
    "alpha dropout": lambda v: F.alpha_dropout(v, 0.0, training=True),
    "feature alpha dropout": lambda v: F.feature_alpha_dropout(v, 0.5),
    "dropout1d": lambda v: F.dropout1d(v[:, None], 0.0)[:, 0],
    "identity": nn.Identity(),
    "to": lambda v: v.to(torch.float64),
    "type_as": lambda v: v.type_as(v),
    "expand_as": lambda v: v.expand_as(v),
    "reshape": lambda v: v.reshape(v.shape),
    "broadcast_to": lambda v: torch.broadcast_to(v, v.shape),
    "positive": lambda v: +v,
    "real": lambda v: torch.real(v),
    "narrow": lambda v: v.narrow(1, 0, 3),
    "repeat of one": lambda v: v.repeat(1, 1),
    "tile of one": lambda v: v.tile(1, 1),
    "repeat": lambda v: v.repeat(1, 2)[:, 3:],
    "roll by nothing": lambda v: v.roll(3, 1),
    "roll": lambda v: v.roll(1, 1),
    "pad by nothing": lambda v: F.pad(v, (0, 0)),
    "cat of one": lambda v: torch.cat([v], 1),
    "clone": lambda v: v.clone(),
    "clamp": lambda v: v.clamp(-9, 9),
    "sum_to_size": lambda v: v.sum_to_size(v.shape),
    "atleast_2d": lambda v: torch.atleast_2d(v),
    "flip": lambda v: v.flip(1),
    "where": lambda v: torch.where(v == v, v, v),
    "squeeze": lambda v: v.squeeze(1),
    "select and stack": lambda v: torch.stack([v[:, 0], v[:, 1], v[:, 2]], 1),
}


# Flags are those of the recording, whatever runs it.
_BOTH = [(name, backend) for name in _COPY_OR_NOT for backend in ("eager", "c")]


@pytest.mark.parametrize(
    ("name", "backend"), few(_BOTH, [both for i, both in enumerate(_BOTH) if i % 16 in (0, 7)])
)
def test_what_shares_memory_with_what(name, backend):
    function = _COPY_OR_NOT[name]
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def cut(x, h):
        v = x * w
        with torch.no_grad():
            u = function(v)
        return u * 2, u + h

    def written(x, h):
        v = x * w
        function(v).mul_(2)
        return v, v + h

    def results(step, executor):
        x = torch.randn(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        y, new = recurrent(step, x, torch.zeros(2, 3, dtype=torch.float64), backend=executor)
        flags = [t.requires_grad for t in (y, new)]
        grads = torch.autograd.grad(y.sum() + new.sum(), [w], allow_unused=True) if any(flags) else ()
        return flags, [t is None for t in grads], [t.detach() for t in (y, new, *grads) if t is not None]

    for step in (cut, written):
        *ours, values = results(step, backend)
        *plain, expected = results(step, "naive")
        assert ours == plain
        torch.testing.assert_close(values, expected)


def test_a_function_that_gives_no_gradient_to_one_of_its_inputs():
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * b

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    w = torch.randn(2, requires_grad=True)

    def step(x, h):
        return First.apply(x, h * w), torch.tanh(h * w)

    def gradients(backend):
        x = torch.ones(3, 2, 2, requires_grad=True)
        y, new = recurrent(step, x, torch.ones(2, 2), backend=backend)
        return [torch.autograd.grad(t.sum(), [x, w], retain_graph=True, allow_unused=True) for t in (y, new)]

    for ours, plain in zip(gradients("c"), gradients("naive"), strict=True):
        for a, b in zip(ours, plain, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b)
