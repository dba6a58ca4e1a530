"""`torch.export` of steps that differentiate, by torch.func or torch.autograd.grad, or set where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from covering import few
from stepnet import recurrent
from stepnet.data.modes import transforms
from stepnet.errors import StepError
from stepnet.graph import decompositions
from torch_since import torch_since

ANY = Dim.AUTO
since = torch_since("2.13", "its Dynamo follows torch.autograd.grad")


def _energy(x: Tensor, h: Tensor) -> Tensor:
    return (torch.tanh(h) * x).sum()


def _asked(x: Tensor, h: Tensor, create_graph: bool) -> Tensor:
    with torch.enable_grad():
        z = h.detach().requires_grad_()
        return torch.autograd.grad(_energy(x, z) + z.sin().sum(), z, create_graph=create_graph)[0]


def _half(x: Tensor, h: Tensor) -> Tensor:
    with torch.no_grad():
        known = torch.func.grad(_energy, argnums=1)(x, h)
    return known + torch.func.grad(lambda h: _energy(h, h.sin()))(h)


def _partly(x: Tensor, h: Tensor) -> Tensor:
    return torch.func.grad(lambda z: (z.sin() * x.detach() + z.data.cos() * x).sum())(h.detach()) + h


DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad": torch.func.grad(_energy, argnums=1),
    "jvp": lambda x, h: torch.func.jvp(torch.sin, (h,), (x,))[1],
    "jacrev": lambda x, h: (torch.vmap(torch.func.jacrev(torch.tanh))(h) @ x[..., None]).squeeze(-1),
    "vmap": torch.vmap(torch.func.grad(_energy, argnums=1)),
    "no_grad": _half,
    "detach": _partly,
    "autograd.grad": lambda x, h: _asked(x, h, False),
    "create_graph": lambda x, h: _asked(x, h, True),
}


@since  # torch's Dynamo follows the last two
@pytest.mark.parametrize("name", few(DERIVATIVES, ["create_graph"]))
def test_derivatives_inside_of_a_step(name: str) -> None:
    """Their operators are part of the program, which has the gradient of the plain loop."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        found = DERIVATIVES[name](x, h)
        return found, torch.tanh(h - 0.1 * found + x)

    class Model(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            return recurrent(step, x, h)

    example = torch.randn(4, 3, 2), torch.randn(3, 2)
    program = export(Model(), example, dynamic_shapes=({0: ANY, 1: ANY}, {0: ANY})).module()
    assert not transforms()
    x, h = torch.randn(5, 2, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    plainly = recurrent(step, x, h, backend="naive")
    for found, want in zip(program(x, h), plainly, strict=True):
        torch.testing.assert_close(found, want)
    found, want = (torch.autograd.grad(out[1].sin().sum(), (x, h)) for out in (program(x, h), plainly))
    torch.testing.assert_close(found, want)


@pytest.mark.exhaustive
def test_what_is_detached_in_place_is_told() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        half = (h * 0.5).detach_()
        return x, torch.func.grad(_energy, argnums=1)(x, h) + half * h

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return recurrent(step, x, x[0])

    with pytest.raises(StepError, match=r"'step' cannot be part .*: it detaches in place"):
        export(Model(), (torch.randn(4, 2, 3),), dynamic_shapes=({0: ANY, 1: ANY},))


@pytest.mark.exhaustive
def test_a_gradient_that_is_not_always_there_is_told() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = h.detach().requires_grad_()
        torch.autograd.grad(z.sum(), [z, x.detach().requires_grad_()], allow_unused=True)
        return x, h

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return recurrent(step, x, x[0])

    with pytest.raises(StepError, match=r"'step' cannot be part .*: it calls torch\.autograd\.grad with"):
        export(Model(), (torch.randn(4, 2, 3),), dynamic_shapes=({0: ANY, 1: ANY},))


class Modes(nn.Module):
    """A step that sets gradients on and off, around another recurrence too."""

    def forward(self, x: Tensor) -> Tensor:
        def step(x: Tensor, h: Tensor) -> Any:
            with torch.no_grad():
                a = torch.sigmoid(h)
                with torch.enable_grad():
                    a = a + x.sin() * h
                _, a = recurrent(lambda x, h: (h, x * h), a.T[..., None], a[:, :1])
            with torch.inference_mode():
                b = h.tanh()
            y = torch.tanh(x + a * h) + b.clone() * h
            return y, y

        return recurrent(step, x, x[0].cos())[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:step")  # the inner recurrence has another plan
@pytest.mark.exhaustive
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_gradients_on_and_off_in_a_step(mode: Any, decomposed: bool) -> None:
    """They are as in the plain loop, whatever is around the export and the run."""
    model, x = Modes(), torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    with mode():
        program = export(model, (x.detach(),))
        program = program.run_decompositions(decompositions()) if decomposed else program
    called = program.module()
    found, want = called(x), model(x)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(*(torch.autograd.grad(y.cos().sum(), x)[0] for y in (found, want)))
    with torch.no_grad():
        assert not called(x).requires_grad
        assert not torch.is_grad_enabled()
