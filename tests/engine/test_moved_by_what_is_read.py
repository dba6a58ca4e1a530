"""Second derivatives along what the step itself reads, and past what torch has no derivative of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from covering import few
from outcomes import same
from stepnet import recurrent

D = torch.float64
SIZES = (9, 4, 3), (4, 3), (3, 3), (3, 3), (3,)


def results(own: Sequence[Tensor], backend: Any) -> list[Tensor]:
    x, h, w, u, b = own

    def step(x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(x @ w + h @ u + b)
        return new * x, new

    return [*recurrent(step, x, h, backend=backend)]  # pyright: ignore


def total(own: Sequence[Tensor], backend: Any) -> Tensor:
    return torch.stack([t.sin().sum() for t in results(own, backend)]).sum()


# What comes in for the gradients of x, the state and w, u, b; None: nothing does.
CAME: dict[str, Callable[..., list[Tensor | None]]] = {
    "itself": lambda x, h, w, u, b: [None, None, w, None, None],
    "another weight": lambda x, h, w, u, b: [None, None, u, w, None],
    "all that there is": lambda *own: [*own],
    "one for two": lambda x, h, w, u, b: [None, None, t := w.T.detach(), t, None],
    "a detached weight": lambda x, h, w, u, b: [x.detach(), None, w.detach(), u, b.detach()],
}


@pytest.mark.parametrize("name", CAME)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
def test_along_weights(name: str, again: bool, backend: str) -> None:
    """`autograd.grad(g, w, w)`: a weight that moves is no weight that is moved along."""
    made = [torch.randn(size, dtype=D) for size in SIZES]

    def found(backend: Any) -> list[Tensor | None]:
        own = [t.clone().requires_grad_() for t in made]
        got = torch.autograd.grad(total(own, backend), own, create_graph=True)
        pairs = [(g, v) for g, v in zip(got, CAME[name](*own), strict=True) if v is not None]
        gradients, came = zip(*pairs, strict=True)
        second = torch.autograd.grad(gradients, own, came, create_graph=again, allow_unused=True)
        if not again:
            return [*second]
        third = torch.autograd.grad(torch.stack([t.sin().sum() for t in second if t is not None]).sum(), own)
        return [*second, *third]

    expected = found("naive")
    for _ in range(3):  # the first makes the plans; then by places
        same(found(backend), expected)


def test_what_comes_in_is_what_was_given() -> None:
    made = [torch.randn(size, dtype=D) for size in SIZES]

    def found(backend: Any) -> list[Tensor]:
        own = [t.clone().requires_grad_() for t in made]
        got = torch.autograd.grad(results(own, backend), own, [own[0], own[1]], create_graph=True)
        return [*got, *torch.autograd.grad([g.sin().sum() for g in got], own)]

    expected = found("naive")
    for _ in range(3):
        same(found("eager"), expected)


def test_forward_along_weights() -> None:
    own = [torch.randn(size, dtype=D).requires_grad_() for size in SIZES]

    def found(backend: Any) -> list[Tensor]:
        x, h, w, u, b = own
        both = torch.func.jvp(lambda *own: total(own, backend), (*own,), (x, h, u, w, b))
        own_way = torch.func.jvp(torch.func.grad(lambda w: total((x, h, w, u, b), backend)), (w,), (w,))
        with forward_ad.dual_level():
            moved = [x, h, forward_ad.make_dual(w, w.detach()), u, forward_ad.make_dual(b, b)]
            tangent: Any = forward_ad.unpack_dual(total(moved, backend)).tangent
            return [*both, *own_way, tangent.detach(), *torch.autograd.grad(tangent + both[1], own)]

    expected = found("naive")
    for _ in range(2):
        same(found("eager"), expected)


def test_what_a_norm_keeps_has_no_derivative() -> None:
    """Of the means of a batch norm torch has none, nor is one asked for."""
    norm = nn.BatchNorm1d(3, dtype=D).eval()
    assert norm.running_mean is not None
    norm.running_mean.normal_()

    def found(backend: Any) -> list[Tensor]:
        own = [x, h, *norm.parameters()]
        got = torch.autograd.grad(
            torch.stack([t.sin().sum() for t in recurrent(step, x, h, backend=backend)]).sum(),  # pyright: ignore
            own, create_graph=True,
        )  # fmt: skip
        return [*got, *torch.autograd.grad([g.sin().sum() for g in got], own)]

    def step(x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(norm(x + h) * x)
        return new, new

    x, h = (torch.randn(size, dtype=D).requires_grad_() for size in SIZES[:2])
    same(found("eager"), found("naive"))
