"""Second derivatives by plans: of the plain loop's numbers, and without it."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.func import grad, jacrev, jvp

from covering import few
from stepnet import LoDTensor, cells, recurrent, while_loop
from stepnet.engine import jvp_plan
from stepnet.engine.jvp_loop import Along
from stepnet.errors import StepError
from stepnet.executors import higher_order

DTYPE = torch.float64
LENGTHS = [2, 0, 3, 1]
N, B, D = 6, 4, 3


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return 3 * x * grad  # on purpose not the derivative


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D + D, D)
        self.layer, self.group = nn.LayerNorm(D), nn.GroupNorm(1, D)

    def forward(self, x, h):
        h = torch.tanh(self.layer(self.linear(torch.cat([x, h], 1))))
        return self.group(h * x), h


WEIGHT = torch.randn(D, D, dtype=DTYPE, generator=torch.Generator().manual_seed(3)).requires_grad_()


def detached(x, h):
    h = torch.tanh(x @ WEIGHT) * h.sigmoid().detach() + h
    return h * x.detach(), h


def without_grad(x, h):
    with torch.no_grad():
        gate = torch.sigmoid(x @ WEIGHT)
    return (h * gate).square(), h * gate + x


def own_function(x, h):
    h = Square.apply(torch.tanh(x @ WEIGHT + h))
    return h, h


def branches(x, h):
    h = torch.where(x > 0, x * h, torch.exp(-h.square()) @ WEIGHT)
    return torch.logsumexp(h, 1, keepdim=True), h


def asks(x, h):
    h = torch.tanh(x @ WEIGHT + h)
    if not torch.isfinite(h).all():
        raise ValueError("not finite")
    if (h.abs() < 2).all():
        h = h * 1.5
    return h.square(), h


def loops(x, h):
    def more(n, h, x):
        return n + 1, torch.tanh(h @ WEIGHT + x), x

    start = torch.zeros(len(x), dtype=torch.int64), h, x
    _, h, _ = while_loop(lambda n, h, x: (n < 3) & (h.abs().sum(1) < 2), more, start)
    return h * x, h


def counting(x, state):
    h, n = state
    return h * x, (torch.tanh(h @ WEIGHT + x / n[:, None]), n + 1)


def attention(x, h, memory):
    scores = ((h + x)[:, None] * memory.rows).sum(2).masked_fill(~memory.mask, -1e9).softmax(1)
    h = torch.tanh((scores[:, :, None] * memory.rows).sum(1) @ WEIGHT)
    return h, h


STEPS = {
    "RNN": lambda: cells.RNN(D, D, dtype=DTYPE),
    "GRU": lambda: cells.GRU(D, D, dtype=DTYPE),
    "LSTM": lambda: cells.LSTM(D, D, dtype=DTYPE),
    "norms": lambda: Norms().to(DTYPE),
    **{f.__name__: lambda f=f: f for f in (detached, without_grad, own_function, branches, asks, loops)},
}


@pytest.fixture
def only_plans(monkeypatch):
    """Where the plain loop is differentiated twice, but to check a plan, the test fails."""

    def fail(*_):
        raise AssertionError("the plain loop was differentiated twice")

    monkeypatch.setattr(higher_order, "by_plain_loop", fail)
    monkeypatch.setattr(jvp_plan, "by_plain_loop", twice_by_plain_loop)


twice_by_plain_loop = higher_order.by_plain_loop


def inputs():
    torch.manual_seed(1)
    x = torch.randn(N, D, dtype=DTYPE, requires_grad=True)
    return x, torch.randn(B, D, dtype=DTYPE, requires_grad=True)


def derivatives(run, wanted, orders=2):
    """The first, second, ... derivatives of what a run gives, each of a number made from those before."""
    y, finals = run()
    loss = torch.stack([(t * (t + 1)).sum() for t in (y, *finals) if t.is_floating_point()]).sum()
    found = []
    for order in range(orders):
        # one that nothing depends on may be zeros or nothing
        grads = torch.autograd.grad(
            loss, wanted, create_graph=order + 1 < orders, allow_unused=True, materialize_grads=True
        )
        found += [g.detach() for g in grads]
        loss = torch.stack([(g.square() * (i + 1)).sum() for i, g in enumerate(grads)]).sum()
    return found


def weights_of(step):
    return list(step.parameters()) if isinstance(step, nn.Module) else [WEIGHT]


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["c", "eager"])
@pytest.mark.parametrize("name", few(STEPS, ["detached", "asks"]))
def test_second_derivatives(name, backend, only_plans):
    step = STEPS[name]()
    x, h = inputs()

    def run(chosen):
        state = (h, h * 2) if name == "LSTM" else h
        y, final = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), state, backend=chosen)
        return y.values, final if isinstance(final, tuple) else (final,)

    wanted = [x, h, *weights_of(step)]
    expected = derivatives(lambda: run("naive"), wanted)
    for _ in range(2):
        found = derivatives(lambda: run(backend), wanted)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


SCALE = ContextVar("scale", default=0.5)


def recorded(x, h):
    """Looked into at each call, for nobody can tell what a context holds where this is called."""
    before = SCALE.set(SCALE.get() * 2)
    try:
        h = torch.tanh(x @ WEIGHT + h) * SCALE.get()
    finally:
        SCALE.reset(before)
    return h, h


@pytest.mark.exhaustive  # that of a transform: test_transforms.py
@pytest.mark.parametrize("name", ["RNN", "GRU", "recorded"])
def test_third_derivatives(name, only_plans):
    cell = recorded if name == "recorded" else STEPS[name]()
    x, h = inputs()
    if name == "recorded":
        x, h = x.detach(), h.detach()

    def run(chosen):
        y, final = recurrent(cell, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=chosen, reverse=True)
        return y.values, (final,)

    wanted = [*(t for t in (x, h) if t.requires_grad), *weights_of(cell)]
    expected = derivatives(lambda: run("naive"), wanted, 3)
    torch.testing.assert_close(derivatives(lambda: run("c"), wanted, 3), expected, rtol=1e-8, atol=1e-8)


def test_states_of_whole_numbers_and_dense_rows(only_plans):
    torch.manual_seed(1)
    x = torch.randn(3, B, D, dtype=DTYPE, requires_grad=True)
    h = torch.randn(B, D, dtype=DTYPE, requires_grad=True)

    def run(chosen):
        return recurrent(counting, x, (h, torch.ones(B, dtype=torch.int64)), backend=chosen)

    expected = derivatives(lambda: run("naive"), [x, h, WEIGHT])
    torch.testing.assert_close(derivatives(lambda: run("c"), [x, h, WEIGHT]), expected, rtol=1e-8, atol=1e-9)


def test_a_memory_of_each_sequence(only_plans):
    x, h = inputs()
    rows = torch.randn(7, D, dtype=DTYPE, requires_grad=True)

    def run(chosen):
        memory = LoDTensor.from_lengths(rows, [[2, 3, 1, 1]])
        y, final = recurrent(
            attention, LoDTensor.from_lengths(x, [LENGTHS]), h, static=memory, backend=chosen
        )
        return y.values, (final,)

    wanted = [x, h, rows, WEIGHT]
    expected = derivatives(lambda: run("naive"), wanted)
    torch.testing.assert_close(derivatives(lambda: run("eager"), wanted), expected, rtol=1e-8, atol=1e-9)


def test_a_step_whose_gradient_has_no_derivative_says_what_the_plain_loop_says():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
            return grad * 2

    def step(x, h):
        h = Once.apply(torch.tanh(x + h))
        return h, h

    x, h = inputs()
    texts = []
    for backend in ("naive", "eager"):
        y, _ = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
        (g,) = torch.autograd.grad(y.values.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError) as error:
            g.sum().backward()
        texts.append(str(error.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", [DTYPE, torch.complex128])
@pytest.mark.parametrize("bent", [False, True])
def test_hooks_that_are_not_linear_in_the_gradient(bent, dtype):
    """A loss and a penalty on its gradient reach a hook at once in the plain loop, one by one in a plan."""

    def step(x, h):
        h = torch.tanh(x + h)
        if h.requires_grad:
            h.register_hook(lambda g: g / (1 + g.abs()) if bent else g / 2)
        return h.real * 2, h

    def penalty(backend):
        y, last = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
        loss = y.values.square().sum() + last.abs().square().sum()
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        first.append(g.detach())
        return torch.autograd.grad(loss + g.square().sum(), [x, h])

    x, h = inputs()
    h = h.detach().to(dtype).requires_grad_()
    first = []
    expected = penalty("naive")
    with pytest.raises(StepError, match="not linear in the gradient") if bent else nullcontext():
        torch.testing.assert_close(penalty("eager"), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(*first, rtol=1e-9, atol=1e-10)  # it may be taken, and not differentiated


def test_a_gradient_that_is_linear_but_for_rounding():
    """torch computes that of matrix_exp in more or fewer squarings, as large as it is."""

    def step(x, h):
        h = torch.matrix_exp(torch.tanh(x[:, :1] * h).reshape(-1, 1, 1).expand(-1, 2, 2)).flatten(1)[:, 1:2]
        return h, h

    def twice(backend):
        y, _ = recurrent(step, x, h, backend=backend)
        (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.sin().sum(), [x, h])

    x, h = torch.randn(3, 2, 2, requires_grad=True), torch.randn(2, 1, requires_grad=True)
    torch.testing.assert_close(twice("eager"), twice("naive"), rtol=1e-4, atol=1e-5)


def test_a_wrong_plan_is_not_used(monkeypatch):
    """A plan of a derivative is held against the plain loop once; a wrong one is left."""
    cell = STEPS["RNN"]()
    x, h = inputs()

    def wrong(results, points, along, recorded):
        return [t * 2 for t in right(results, points, along, recorded)]

    from stepnet.engine import jvp_loop as module

    right = module._derivative

    def run(chosen):
        y, final = recurrent(cell, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=chosen)
        return y.values, (final,)

    wanted = [x, h, *cell.parameters()]
    expected = derivatives(lambda: run("naive"), wanted)
    monkeypatch.setattr(module, "_derivative", wrong)
    torch.testing.assert_close(derivatives(lambda: run("eager"), wanted), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("backend", few(["c", "eager"], ["eager"]))
def test_a_weight_made_from_another_one(backend, only_plans):
    """Its history is the caller's: compiling neither follows nor spends it."""
    base = torch.randn(D, D, dtype=DTYPE, requires_grad=True)
    x, h = inputs()

    def run(chosen):
        made = torch.tanh(base)

        def step(x, h):
            h = torch.tanh(x @ made + h @ base)
            return h, h

        y, final = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=chosen)
        return y.values, (final,)

    expected = derivatives(lambda: run("naive"), [x, h, base])
    for _ in range(2):
        found = derivatives(lambda: run(backend), [x, h, base])
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


FIXED = torch.randn(D, D, dtype=DTYPE, generator=torch.Generator().manual_seed(4))


def delay_line(x, state):
    *older, last = state
    return last * 1.0, (torch.sin(x), *older)


LINEAR = {
    "nothing to depend on": lambda x, h: (x @ FIXED + h, x @ FIXED + h),
    "a weight": lambda x, h: (x @ WEIGHT + h, x @ WEIGHT + h),
    "a product": lambda x, h: (x * h, h * 1.0),
    "a square of the input": lambda x, h: (x * x + h, h + x),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", [LENGTHS, [1] * 6], ids=["long", "one step"])
@pytest.mark.parametrize("name", LINEAR)
def test_a_gradient_that_depends_on_nothing_has_no_history(name, lengths):
    step = LINEAR[name]
    found = []
    for backend in ("naive", "eager", "eager"):
        x, h = inputs()
        h = torch.ones(len(lengths), D, dtype=DTYPE, requires_grad=True)
        y, final = recurrent(step, LoDTensor.from_lengths(x, [lengths]), h, backend=backend)
        grads = torch.autograd.grad(
            y.values.sum() + final.sum(), [x, h, WEIGHT], create_graph=True, allow_unused=True
        )
        found.append([g is not None and g.requires_grad for g in grads])
    assert found[1] == found[2] == found[0]


def test_a_history_through_many_states():
    x = torch.randn(12, D, dtype=DTYPE, requires_grad=True)
    for backend in ("naive", "eager"):
        states = tuple(torch.zeros(1, D, dtype=DTYPE) for _ in range(7))
        y, _ = recurrent(delay_line, LoDTensor.from_lengths(x, [[12]]), states, backend=backend)
        (grad,) = torch.autograd.grad(y.values.sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(grad.sum(), x)
        torch.testing.assert_close(twice[:5], -torch.sin(x[:5]))
        assert not twice[5:].any()


class Body(NamedTuple):
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    name: str = "body"


def test_names_in_the_derivative_of_a_derivative_are_new():
    """Also where another body stands around the first one, as in a batch."""
    body = Body(("x", "h"), ("y", "h+"))
    first = Along(body, ("x", "h"), ("y",), {"h": "h+"}, (), ())
    around = Body(first.parameters, first.results)
    second = Along(around, around.parameters, ("y",), {"h": "h+", "h'1": "h+'1"}, (), ())
    for names in (second.parameters, second.results):
        assert len(set(names)) == len(names)


TWICE = torch.linspace(-1, 1, 9, dtype=DTYPE).view(3, 3)  # x of one step, a state of three rows, a weight
ONE_TENSOR = {  # what one tensor is given as
    "two states": lambda t: (torch.ones(2, 3, 3, dtype=DTYPE), (t, t), WEIGHT.detach()),
    "x and a state": lambda t: (t.expand(2, 3, 3), (t, t * 2), WEIGHT.detach()),
    "a state and a weight": lambda t: (torch.ones(2, 3, 3, dtype=DTYPE), (t, TWICE), t),
    "all": lambda t: (t[None], (t, t), t),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ONE_TENSOR)
def test_one_tensor_in_several_places(name):
    """Its second derivative is by all of them."""

    def by(backend):
        def squares(t):
            x, states, w = ONE_TENSOR[name](t)

            def step(x, state):
                h, c = state
                h = torch.tanh(x @ w + h + 0.5 * c)
                return h, (h, c * h)

            y, final = recurrent(step, x, states, backend=backend)
            return y.pow(3).sum() + final[0].sin().sum() + final[1].sum()

        return jacrev(grad(squares))(TWICE), jvp(grad(squares), (TWICE,), (TWICE.cos(),))

    torch.testing.assert_close(by("eager"), by("naive"), rtol=1e-9, atol=1e-10)
