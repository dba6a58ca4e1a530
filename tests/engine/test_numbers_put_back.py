"""Second derivatives of a step whose numbers are others by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from covering import every
from stepnet import recurrent
from stepnet.errors import StepError

D, DTYPE = 3, torch.float64


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without other threads, which tests are run by."""
    monkeypatch.setattr("stepnet.compiler.reads.put_back.is_only_thread", lambda: True)


class Held:
    """Where a step finds a number."""

    gain: Any = 2.0

    def __init__(self) -> None:
        self.gain = 2.0


def _gains() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    items, held, inner = [2.0], Held(), 2.0

    def rebind(value: Any) -> None:
        nonlocal inner
        inner = value

    return {
        "list": (lambda: items[0], lambda g: items.__setitem__(0, g)),
        "attribute": (lambda: held.gain, lambda g: setattr(held, "gain", g)),
        "class": (lambda: Held.gain, lambda g: setattr(Held, "gain", g)),
        "closure": (lambda: inner, rebind),
    }


@pytest.mark.parametrize("kind", every(2, ["list", "attribute", "class", "closure"]))
def test_a_number_that_changed_before_a_second_derivative(kind):
    """It is that of the call, as in a loop by hand; what else changes is refused."""
    read, change = _gains()[kind]
    shift = torch.sin

    def step(x, h):
        h = torch.tanh(shift(x) + h * read())
        return h, h

    x = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True)
    h = torch.zeros(2, D, dtype=DTYPE)
    found = []
    for backend in ("eager", "naive"):
        change(2.0)
        y = recurrent(step, x, h, backend=backend)[0].pow(2).sum()
        change(5.0)
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        change(7.0)
        found.append((grad, *torch.autograd.grad(grad.pow(2).sum(), x)))
        assert read() == 7.0
    torch.testing.assert_close(*found)
    change(2.0)
    y, _ = recurrent(step, x, h, backend="eager")
    shift = torch.cos
    with pytest.raises(StepError, match="'step' no longer reads what it read when it ran"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
