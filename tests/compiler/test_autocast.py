"""Autocast around a step, in it, and both: every executor casts what the plain loop casts."""

from __future__ import annotations

import contextlib
import contextvars
import warnings

import pytest
import torch

from covering import few
from stepnet import LoDTensor, recurrent
from stepnet.errors import StepError

F_IN, H = 3, 4


SWITCHED_OFF = contextvars.ContextVar("SWITCHED_OFF", default=False)


def autocast(dtype=torch.bfloat16, enabled=True):
    return torch.autocast("cpu", dtype, enabled=enabled and not SWITCHED_OFF.get())


def plain(x, h, u, w):
    h = torch.tanh(x @ u + h @ w)
    return h * 2, h


def island(x, h, u, w):
    with autocast(enabled=False):
        inner = h.float() @ w
    h = torch.tanh(x @ u + inner)
    return h @ w, h


def island_at_the_end(x, h, u, w):
    h = torch.tanh(x @ u + h @ w)
    with autocast(enabled=False):
        return h.float() @ w @ w, h


def nested(x, h, u, w):
    with autocast():
        h = torch.tanh((x @ u).float() + (h @ w).float())
    return h @ w, h


def inside(x, h, u, w):
    with autocast():
        inner = h @ w
    h = torch.tanh(x @ u + inner.float())
    return inner, h


def carried_inside(x, h, u, w):
    with autocast():
        h = torch.tanh(x @ u + h @ w)
    return h, h


def shrunk(x, h, u, w):
    h = torch.nn.functional.hardshrink(x @ u + h @ w, 0.05)
    return torch.nn.functional.softshrink(h, 0.05), h.float()


STEPS = [plain, shrunk, island, island_at_the_end, nested, inside, carried_inside]
INSIDE = (nested, inside, carried_inside)
AROUND = {
    "none": contextlib.nullcontext,
    "bfloat16": autocast,
    "float16": lambda: autocast(torch.float16),
    "off in on": lambda: autocast(enabled=False),
}


BOTH = [(step, around) for step in STEPS for around in AROUND]
IN_TURN = [(step, around) for step, around in BOTH if around == "bfloat16" or step is plain] + [
    (inside, "none")
]


@pytest.mark.parametrize(
    ("step", "around"), few(BOTH, IN_TURN[::4]), ids=[f"{step.__name__}-{around}" for step, around in BOTH]
)
def test_every_executor_casts_as_the_plain_loop(step, around):
    if around == "float16" and step in INSIDE:
        pytest.skip("torch itself does not mix both")
    x = LoDTensor.from_lengths(torch.randn(6, F_IN), [[2, 0, 1, 3]])
    results = {backend: run(step, around, x, backend) for backend in ("naive", "eager", "auto")}
    switched = SWITCHED_OFF.set(True)
    exact = run(step, "none", x, "naive")
    SWITCHED_OFF.reset(switched)
    assert results["naive"][1].dtype == torch.float32
    half = around in ("bfloat16", "float16") or step in INSIDE
    for backend in ("eager", "auto"):
        for got, expected, true in zip(results[backend], results["naive"], exact, strict=True):
            assert got.dtype == expected.dtype
            # sums of many in low precision
            close = (0.02 if half else 1e-5) * float(expected.detach().abs().max())
            if half and backend == "auto":  # generated C rounds less: it is held against what nobody rounds
                torch.testing.assert_close(got.float(), true, rtol=0, atol=close + distance(expected, true))
            else:
                torch.testing.assert_close(got, expected, rtol=0, atol=close)


def distance(a, b):
    return float((a.detach().float() - b.detach()).abs().max())


def run(step, around, x, backend):
    torch.manual_seed(1)
    u, w = (torch.randn(n, H, requires_grad=True) for n in (F_IN, H))
    h0 = torch.zeros(4, H, requires_grad=True)
    outer = autocast() if around == "off in on" else contextlib.nullcontext()
    with warnings.catch_warnings(), outer, AROUND[around]():
        warnings.simplefilter("error")
        y, h = recurrent(lambda x, h, u=u, w=w: step(x, h, u, w), x, h0, backend=backend)
    loss = y.values.float().square().sum() + h.float().sum()
    return [y.values, h, *torch.autograd.grad(loss, [u, w, h0])]


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["naive", "eager", "auto"])
@pytest.mark.parametrize(
    ("given", "made"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_what_is_carried_keeps_its_dtype(backend, given, made):
    def step(x, h):
        return h.to(made) + 1, h.to(made) + 1

    x, h0 = torch.zeros(3, 2, H), torch.zeros(2, H, dtype=given, requires_grad=True)
    with autocast():
        y, h = recurrent(step, x, h0, backend=backend)
    assert (y.dtype, h.dtype) == (made, given)
    assert h.tolist() == [[3.0] * H] * 2
    (grad,) = torch.autograd.grad(h.sum(), h0)
    assert grad.tolist() == [[1.0] * H] * 2
    if made == torch.bfloat16:  # which a state of more bits holds without loss
        y, h = recurrent(step, x, h0, backend=backend)
        assert (y.dtype, h.dtype, h.tolist()) == (made, given, [[3.0] * H] * 2)
    else:
        with pytest.raises(StepError, match="changed the state's shape or dtype"):
            recurrent(step, x, h0, backend="naive")


@pytest.mark.parametrize("around", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["naive", "eager", "auto"])
def test_types_of_another_autocast_are_joined(backend, around):
    """torch's stack and cat refuse tensors of few bits that are not those of the autocast around."""
    other = torch.float16 if around == torch.bfloat16 else torch.bfloat16
    u = (0.1 * torch.arange(12.0).reshape(F_IN, H)).requires_grad_()

    def step(x, h):
        with autocast(other):
            z = x @ u
        return z, (h + z).to(h.dtype)

    for lengths in ([3, 3], [4, 0, 2], [1, 1]):
        rows = torch.linspace(-1, 1, sum(lengths) * F_IN).reshape(-1, F_IN)
        for x in (LoDTensor.from_lengths(rows, [lengths]), rows.reshape(len(rows) // 2, 2, F_IN)):
            n = len(lengths) if isinstance(x, LoDTensor) else x.shape[1]
            for kind in (torch.float32, other):
                with autocast(around):
                    y, h = recurrent(step, x, torch.zeros(n, H, dtype=kind), backend=backend)
                y = y.values if isinstance(y, LoDTensor) else y.reshape(-1, H)
                assert (y.dtype, h.dtype) == (other, kind)
                torch.testing.assert_close(y.float(), rows @ u, rtol=1e-2, atol=2e-2)
                torch.testing.assert_close(h.sum(0).float(), y.sum(0).float(), rtol=2e-2, atol=4e-2)
                (grad,) = torch.autograd.grad(y.float().sum(), u)
                torch.testing.assert_close(grad, rows.sum(0)[:, None].expand(-1, H), rtol=2e-2, atol=4e-2)


def test_gradients_taken_under_autocast():
    """A plan runs as it was captured, whatever is around its backward pass."""
    w = torch.randn(H, H, requires_grad=True)
    x = torch.randn(5, 2, H)
    y, _ = recurrent(lambda x, h: (torch.tanh(x + h @ w),) * 2, x, torch.zeros(2, H))
    (expected,) = torch.autograd.grad(y.sum(), w, retain_graph=True)
    with autocast():
        (found,) = torch.autograd.grad(y.sum(), w)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_first_call_leaves_no_cast_weights_behind():
    """What autocast keeps of a weight cast where gradients are off has no gradient."""
    w = torch.randn(H, H, requires_grad=True)
    x = torch.randn(2, H)

    def step(x, h):
        h = torch.tanh(x @ w + h)
        return h, h

    with autocast():
        recurrent(step, x[None], torch.zeros(2, H))
        (grad,) = torch.autograd.grad((x @ w).float().sum(), w)
    assert grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["decorator", "made once", "no_grad made once"])
def test_modes_that_are_made_once(kind):
    """They note at each entry what was set before, which is no change of the step."""
    w = torch.randn(F_IN, H, requires_grad=True)
    once = torch.no_grad() if "no_grad" in kind else torch.autocast("cpu", torch.bfloat16)

    def inner(x):
        return x @ w

    if kind == "decorator":
        inner = once(inner)

    def step(x, h):
        if kind == "decorator":
            return inner(x), torch.tanh(h + inner(x).float())
        with once:
            v = inner(x)
        return v, torch.tanh(h + v.float())

    results = {}
    for backend in ("eager", "auto", "naive"):
        y, h = recurrent(step, torch.ones(3, 2, F_IN), torch.zeros(2, H, requires_grad=True), backend=backend)
        results[backend] = [y, h]
        assert y.requires_grad == (kind != "no_grad made once")
        assert y.dtype == (torch.float32 if "no_grad" in kind else torch.bfloat16)
    torch.testing.assert_close(results["eager"], results["naive"], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(results["auto"], results["naive"], rtol=1e-2, atol=1e-2)


def test_a_mode_that_is_set_otherwise():
    """What is made once may be changed, too: the next call goes by it."""
    w, once = torch.randn(F_IN, H), torch.autocast("cpu", torch.bfloat16)

    def step(x, h):
        with once:
            return x @ w, h

    x, h = torch.randn(3, 2, F_IN), torch.zeros(2, H)
    assert recurrent(step, x, h, backend="eager")[0].dtype == torch.bfloat16
    once._enabled = False
    assert recurrent(step, x, h, backend="eager")[0].dtype == torch.float32
