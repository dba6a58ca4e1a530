"""A small cell of torch.nn's modules, beside the plain loop and beside each sequence alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import SlowPathWarning

F_IN, H = 3, 4
LENGTHS = [2, 0, 4, 1]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Cell(nn.Module):
    """The shared cell: a plan of it is read from the disk by all files that use it."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(F_IN, H)
        self.rec = nn.Linear(H, H)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.inp(x) + self.rec(h))
        return h, h


def cell(dtype: torch.dtype = torch.float64) -> Cell:
    torch.manual_seed(3)
    return Cell().to(dtype)


def rows(dtype: torch.dtype = torch.float64) -> tuple[LoDTensor, Tensor]:
    torch.manual_seed(4)
    values = torch.randn(sum(LENGTHS), F_IN, dtype=dtype, requires_grad=True)
    return LoDTensor.from_lengths(values, [LENGTHS]), torch.randn(
        len(LENGTHS), H, dtype=dtype, requires_grad=True
    )


def by_hand(step: nn.Module, x: LoDTensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Each sequence alone, row by row, with nothing of stepnet."""
    outputs: list[Tensor] = []
    finals: list[Tensor] = []
    for i, sequence in enumerate(x.values.split(LENGTHS)):
        h = h0[i : i + 1]
        for t in range(len(sequence)):
            y, h = step(sequence[t : t + 1], h)
            outputs.append(y)
        finals.append(h)
    return torch.cat(outputs), torch.cat(finals)


def ours(step: nn.Module, x: LoDTensor, h0: Tensor, backend: str | None = None) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        y, h = recurrent(step, x, h0, backend=backend)
    return y.values, h


def results(step: nn.Module, run: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Outputs, final state, and the gradients of x, of the initial state and of all that is trained."""
    weights = [p for p in step.parameters() if p.requires_grad]
    x, h0 = rows(next(step.parameters()).dtype if weights else torch.float64)
    y, h = run(step, x, h0)
    loss = y.sin().sum() + h.square().sum()
    for weight in weights:
        weight.grad = None
    loss.backward()
    grads = [x.values.grad, h0.grad, *(w.grad for w in weights)]
    return [y.detach(), h.detach(), *(torch.zeros(()) if g is None else g.clone() for g in grads)]


def executor_of(step: nn.Module) -> tuple[str, str]:
    """Which executor `explain` names, and why no faster one."""
    x, h0 = rows()
    told = explain(step, x, h0)
    return told.executor, told.refusals[0].reason if told.refusals else ""


def check(step: nn.Module, twin: nn.Module, how: Any = None, **close: float) -> None:
    """Two trainings of `step` give what those of its twin give, by hand and by the plain loop."""
    for _ in range(2):
        expected = results(twin, by_hand)
        plain = results(twin, lambda *a: ours(*a, backend="naive"))
        torch.testing.assert_close(plain, expected, **{**CLOSE, **close})
        torch.testing.assert_close(results(step, how or ours), expected, **{**CLOSE, **close})
