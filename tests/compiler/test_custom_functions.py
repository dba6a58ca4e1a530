"""Custom autograd Functions of a step that are handed tensors which the step did not make."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

from stepnet.api import Recurrent, recurrent
from stepnet.compiler.trace.unseen_calls import applied
from stepnet.data.lod import LoDTensor
from stepnet.errors import SlowPathWarning, StepError, Unsupported
from threads import at_once

D = torch.float64


class Product(torch.autograd.Function):
    """With other gradients than the product has, so that its backward shows."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return 2 * grad * b, (3 * grad * a).sum(0)


class First(torch.autograd.Function):
    """Reads its second argument in backward only, and gives it nothing."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return a.clone()

    @staticmethod
    def backward(ctx, grad):
        (b,) = ctx.saved_tensors
        return grad * b, None


class Cell(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(3, dtype=D))

    def forward(self, x, h):
        y = self.function.apply(x, self.weight)
        return y, torch.tanh(h + y)


def _outcome(cell, backend, wants, order=1):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 2, 3, dtype=D, generator=g, requires_grad=wants)
    y, new = recurrent(cell, x, torch.zeros(2, 3, dtype=D), backend=backend)
    asked = [t for t in (x, cell.weight) if t.requires_grad]
    loss = y.square().sum() + new.sum()
    found = torch.autograd.grad(loss, asked, create_graph=order > 1, allow_unused=True)
    if order > 1:
        loss = sum(t.square().sum() for t in found if t is not None)
        found = torch.autograd.grad(loss, asked, allow_unused=True)
    values = [y.detach(), new.detach(), *(t for t in found if t is not None)]
    return [y.requires_grad, new.requires_grad, *(t is None for t in found)], values


@pytest.mark.covering(1)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("function", [Product, First])
def test_a_weight_handed_to_a_function(function, backend, wants, order):
    cell = Cell(function)
    for _ in range(2):  # another weight the second time
        if order > 1 and function is First and not wants:
            break  # torch has nothing to differentiate again
        flags, values = _outcome(cell, backend, wants, order)
        plain_flags, plain = _outcome(cell, "naive", wants, order)
        assert flags == plain_flags
        torch.testing.assert_close(values, plain)
        with torch.no_grad():
            cell.weight.add_(1)


def test_functional_call():
    module = Recurrent(Cell(Product))
    x = torch.randn(4, 2, 3, dtype=D)

    def gradients(backend):
        module.backend = backend
        weight = torch.linspace(-1, 1, 3, dtype=D).requires_grad_()
        y, new = functional_call(module, {"step.weight": weight}, (x, torch.zeros(2, 3, dtype=D)))
        return torch.autograd.grad(y.sum() + new.sum(), weight)

    torch.testing.assert_close(gradients("c"), gradients("naive"))


def test_other_threads_and_later_calls_see_torch_as_it_is():
    before = torch.autograd.Function.__dict__["apply"]
    met = []
    a = torch.ones(1, requires_grad=True)

    def see(args, kwargs):
        met.append(threading.current_thread())
        return args, kwargs

    with applied(see):
        at_once(lambda _: Product.apply(a, a), 1)
        assert not met
        with applied(see):
            Product.apply(a, a)
        assert len(met) == 2
    assert torch.autograd.Function.__dict__["apply"] is before
    with pytest.raises(StepError, match="deliberate"):
        recurrent(_failing, torch.randn(4, 2, 3, dtype=D), torch.zeros(2, 3, dtype=D))
    assert torch.autograd.Function.__dict__["apply"] is before


def _failing(x, h):
    Product.apply(x, h)
    raise RuntimeError("deliberate")


class Straight(torch.autograd.Function):
    """Makes zeros of no gradient, as torch has it."""

    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class FirstAndZeros(First):
    @staticmethod
    def backward(ctx, grad):
        return *First.backward(ctx, grad)[:1], torch.zeros_like(grad)


class Dead(torch.autograd.Function):
    """Backward writes one number where a mask says so: elements, then rows."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        grad = grad.clone()
        grad[a < 0] = 0
        grad[a[:, 0] > 0.5] = 0.25
        return grad


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_masked_writes_in_backward(backend):
    def step(x, h):
        h = Dead.apply(x + h)
        return h, h

    def gradients(backend):
        x, h = torch.linspace(-1, 1, 24, dtype=D).view(4, 2, 3).requires_grad_(), torch.zeros(2, 3, dtype=D)
        y, new = recurrent(step, x, h.requires_grad_(), backend=backend)
        return torch.autograd.grad(y.square().sum() + new.sum(), [x, h])

    torch.testing.assert_close(gradients(backend), gradients("naive"))


@pytest.mark.parametrize("lengths", [[1, 1], [2, 0, 3]])
def test_none_of_which_another_function_makes_zeros(lengths):
    """Whether the weight gets None or zeros depends on whether a step came before; told by the plain loop."""
    w = torch.randn(3, dtype=D, requires_grad=True)

    def gradient(function, backend):
        x = LoDTensor.from_lengths(torch.ones(sum(lengths), 3, dtype=D).requires_grad_(), [lengths])
        h = torch.zeros(len(lengths), 3, dtype=D)
        y = recurrent(lambda x, h: (function.apply(x, h), Straight.apply(x * w)), x, h, backend=backend)[0]
        return torch.autograd.grad(y.values.sum(), w, allow_unused=True)[0]

    expected = None if max(lengths) == 1 else torch.zeros(3, dtype=D)
    for function, backends in (First, ["naive", "auto"]), (FirstAndZeros, ["naive", "eager", "c"]):
        for backend in backends:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SlowPathWarning)
                found = gradient(function, backend)
            assert (found is None) == (expected is None)
            assert expected is None or torch.equal(found, expected)
    with pytest.raises(Unsupported, match="returns None as a gradient"):
        gradient(First, "eager")


@pytest.mark.covering(1)
@pytest.mark.parametrize("cut", ["ragged", "axis", "windows"])
@pytest.mark.parametrize("backend", ["naive", "eager", "c"])
def test_none_for_all_rows_stays_none_however_they_are_cut(backend, cut):
    """As torch's own indexing has it: x is told from one of which zeros came."""

    def step(x, h):
        h = First.apply(h, x)
        return (x, h), torch.tanh(h)

    x, h = torch.ones(4, 3, dtype=D).requires_grad_(), torch.ones(2, 3, dtype=D).requires_grad_()
    rows = x.reshape(2, 2, 3) if cut == "axis" else LoDTensor.from_lengths(x, [[3, 1]])
    settings = {"checkpoint": 2} if cut == "windows" else {}
    (y, z), new = recurrent(step, rows, h, backend=backend, **settings)
    leaves = [t.values if isinstance(t, LoDTensor) else t for t in (y, z)]
    for asked, expected in (([new], False), ([leaves[1], new], False), ([*leaves, new], True)):
        total = torch.stack([t.sum() for t in asked])
        found = torch.autograd.grad(total.sum(), [x, h], retain_graph=True, allow_unused=True)
        assert [t is not None for t in found] == [expected, True]


def test_a_function_in_a_recurrence_inside_a_step():
    """While the step around it is traced, `apply` is another function: the step still reads what it read."""
    w = torch.randn(3, dtype=D, requires_grad=True)

    def inner(x, h):
        h = Straight.apply(x * w) + h
        return h, h

    def step(x, h):
        return (recurrent(inner, torch.stack([x, x]), h)[1],) * 2

    x = torch.ones(4, 2, 3, dtype=D)
    y, _ = recurrent(step, x, torch.zeros(2, 3, dtype=D))
    (found,) = torch.autograd.grad(y.sum(), w)
    torch.testing.assert_close(found, torch.full_like(w, 2 * 2 * (4 + 3 + 2 + 1)))
