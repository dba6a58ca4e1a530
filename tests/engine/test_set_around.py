"""What is set around a call holds for its derivatives, wherever those are asked for. Forward mode goes its
own way through a step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import jacfwd, jvp, linearize, vjp
from torch.nn.utils import parametrizations, parametrize

from covering import few
from stepnet import recurrent
from stepnet.engine.cached_parametrizations import cached_again, cached_here
from torch_since import torch_since

F = 3


class Mixed(nn.Module):
    """Casts nothing itself: only under autocast its product is of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(F, F)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.linear(x) + h * 0.5).to(h.dtype)
        return h, h


class Thirds(nn.Module):
    """Makes tensors of torch's default type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(F, dtype=torch.float64))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x * torch.full((F,), 1 / 3) + h * self.weight)
        return h, h


@contextlib.contextmanager
def default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: dict[str, tuple[Callable[[], nn.Module], torch.dtype, Callable[[], Any]]] = {
    "autocast": (Mixed, torch.bfloat16, lambda: torch.autocast("cpu", torch.bfloat16)),
    "default dtype": (Thirds, torch.float64, default_dtype),
    "parametrize.cached": (Mixed, torch.float32, parametrize.cached),
}


def directly(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    return [run(x)]


def pulled(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    pulled: Any = vjp(run, x)
    y, pull = pulled
    return [y, *pull(torch.ones_like(y))]


@pytest.mark.parametrize("way", few([directly, pulled], [directly]))
@pytest.mark.parametrize("around", few(AROUND, ["autocast"]))
def test_a_derivative_outside_of_what_was_set_around_the_call(around: str, way: Callable[..., Any]) -> None:
    make, dtype, block = AROUND[around]
    torch.manual_seed(0)
    step = make()
    x0, h0 = torch.randn(2, 2, F).to(dtype), torch.randn(2, F)
    h0 = h0.double() if dtype == torch.float64 else h0

    def found(backend: Any) -> list[Tensor]:
        x = x0.clone().requires_grad_()
        with block():
            out = way(lambda x: recurrent(step, x, h0, backend=backend)[0], x)
        total: Any = sum(t.double().square().sum() for t in out)
        inputs = [x, *step.parameters()]
        first = torch.autograd.grad(total, inputs, create_graph=True)
        again: Any = sum(g.double().square().sum() for g in first)
        return [*first, *torch.autograd.grad(again, inputs)]

    close: dict[str, Any] = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found("eager"), found("naive"), **close)


@pytest.mark.exhaustive
@pytest.mark.parametrize("again", [contextlib.nullcontext, parametrize.cached])
def test_derivatives_after_a_block_read_what_it_cached(again: Callable[[], Any]) -> None:
    """Three of them, of calls one after the other; also where another block has something else by then."""
    torch.manual_seed(0)
    step = Mixed().double()
    parametrizations.weight_norm(step.linear)
    x0, h0 = torch.randn(3, 2, F, dtype=torch.float64), torch.randn(2, F, dtype=torch.float64)

    def found(backend: Any) -> list[Tensor]:
        made: list[Tensor] = []
        for _ in range(3):
            inputs = [x0.clone().requires_grad_(), *step.parameters()]
            with parametrize.cached():
                y = recurrent(step, inputs[0], h0, backend=backend)[0]
            with again():
                step(x0[0], h0)
                of: Any = y
                for _ in range(3):
                    grads = torch.autograd.grad(of.square().sum(), inputs, create_graph=True)
                    of = torch.cat([g.flatten() for g in grads])
                    made.append(of)
            assert parametrize._cache == {}
            assert not parametrize._cache_enabled
        return made

    torch.testing.assert_close(found("eager"), found("naive"))


def test_other_threads_do_not_see_what_is_cached_again() -> None:
    linear: Any = parametrizations.weight_norm(nn.Linear(2, 2))
    with parametrize.cached():
        kept = linear.weight
        cached = cached_here([kept, kept.detach()])
    seen: list[Tensor] = []

    def look() -> None:
        seen.append(linear.weight)
        with parametrize.cached(), cached_again({}):
            seen.extend([linear.weight, linear.weight])

    with cached_again(cached):
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert linear.weight is kept
        with parametrize.cached(), cached_again({next(iter(cached)): seen[0]}):
            assert linear.weight is seen[0]
        assert linear.weight is kept
    assert len(cached) == 1
    assert all(each is not kept for each in seen)
    assert seen[1] is seen[2]
    assert linear.weight is not kept
    assert parametrize._cache == {}
    assert not parametrize._cache_enabled


class Custom(torch.autograd.Function):
    """Whose derivative in forward mode is no transpose of its backward."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent * 3


def under_no_grad(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        gate = 0.1 * torch.sigmoid(h)
    h = torch.tanh(x) + gate * h
    return h, h


def by_a_custom_function(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = Custom.apply(x + h)
    return h, h


def with_a_hook(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(x + h)
    if h.requires_grad:
        h.register_hook(lambda grad: grad * 3)
    return h, h


def dual(run: Callable[[Tensor], Tensor], x: Tensor) -> Sequence[Tensor | None]:
    with forward_ad.dual_level():
        return [forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones_like(x)))).tangent]


def moved(run: Callable[[Tensor], Tensor], x: Tensor) -> Sequence[Tensor]:
    return [jvp(run, (x,), (torch.ones_like(x),))[1]]


def linear(run: Callable[[Tensor], Tensor], x: Tensor) -> Sequence[Tensor]:
    return [linearize(run, x)[1](torch.ones_like(x))]


def whole(run: Callable[[Tensor], Tensor], x: Tensor) -> Sequence[Tensor]:
    return [jacfwd(run)(x)]


OF_TORCH = torch_since("2.11", "its own jvp gives zeros under inference mode, its jacfwd fails")
FORWARD = [
    (dual, torch.no_grad),
    (linear, torch.no_grad),
    pytest.param(moved, torch.inference_mode, marks=OF_TORCH),
    pytest.param(whole, torch.inference_mode, marks=OF_TORCH),
    (moved, contextlib.nullcontext),
]


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's linearize
@pytest.mark.parametrize(("way", "block"), few(FORWARD, [FORWARD[0], FORWARD[2]]))
def test_forward_mode_where_no_gradients_are(way: Callable[..., Any], block: Callable[[], Any]) -> None:
    weight = torch.randn(F, F, dtype=torch.float64, requires_grad=True)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ weight + h)
        return h, h

    x, h0 = torch.randn(2, 2, F, dtype=torch.float64), torch.zeros(2, F, dtype=torch.float64)
    with block():
        ours, plain = (way(lambda x, b=b: recurrent(step, x, h0, backend=b)[0], x) for b in ("auto", "naive"))
    torch.testing.assert_close(ours, plain)
    assert ours[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float64]))
@pytest.mark.parametrize("step", few([under_no_grad, by_a_custom_function, with_a_hook], [under_no_grad]))
def test_what_forward_mode_does_not_take_from_gradients(step: Callable[..., Any], dtype: torch.dtype) -> None:
    """Under autocast, too, where a check of numbers allows for much."""
    x, h0 = torch.randn(2, 2, F, dtype=dtype), torch.randn(2, F, dtype=dtype)
    layer = nn.Linear(F, F, dtype=dtype)
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}

    def through(x: Tensor, h: Tensor) -> Any:
        return step(layer(x).to(h.dtype), h)

    def twice(backend: Any, x: Tensor) -> Tensor:
        y, h = recurrent(through, x, h0, backend=backend)
        return recurrent(through, y, h, backend=backend)[0]

    by = "auto" if step is with_a_hook else "eager"  # a step with hooks has no plan inside of transforms
    for block in (torch.autocast("cpu", torch.bfloat16), contextlib.nullcontext()):
        with block:
            found = [moved(partial(twice, backend), x) for backend in (by, "naive")]
        torch.testing.assert_close(*found, **close)


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_that_no_tangent_reaches_has_none_under_no_grad(which: int) -> None:
    layer = nn.Linear(F, F, dtype=torch.float64)

    def step(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(layer(x) + h)
        return (h, x.sin(), h.detach()), h

    def found(backend: str) -> list[Tensor | None]:
        torch.manual_seed(0)
        given = [torch.randn(3, 2, F, dtype=torch.float64), torch.randn(2, F, dtype=torch.float64)]
        recurrent(step, *given, backend=backend)  # a plan
        with torch.no_grad(), forward_ad.dual_level():
            given[which] = forward_ad.make_dual(given[which], given[which].cos())
            y, final = recurrent(step, *given, backend=backend)
            return [forward_ad.unpack_dual(t).tangent for t in (*y, final)]

    along, expected = found("eager"), found("naive")
    assert [t is None for t in along] == [t is None for t in expected]
    torch.testing.assert_close(along, expected, rtol=1e-9, atol=1e-12)
