"""Steps that take only some states, as covariances: what holds a plan against the plain loop must not fail by
states that it moved by noise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet.api import recurrent

PLANS_ON_DISK = False
N, M = 16, 8


class Kalman(nn.Module):
    """Its last covariance has no Cholesky factor once the first one was moved by noise."""

    def __init__(self, cuts):
        super().__init__()
        self.turn = nn.Parameter(torch.eye(N) + 0.02 * torch.randn(N, N))
        self.seen = nn.Parameter(torch.randn(M, N) / 4)
        self.q, self.r = nn.Parameter(torch.full((N,), -2.0)), nn.Parameter(torch.full((M,), -1.0))
        self.cuts = cuts

    def forward(self, z, state):
        m, p = state
        m, p = m @ self.turn.T, self.turn @ p @ self.turn.T + torch.diag(self.q.exp())
        s = self.seen @ p @ self.seen.T + torch.diag(self.r.exp())
        gain = torch.cholesky_solve(self.seen @ p, torch.linalg.cholesky(s)).transpose(1, 2)
        m = m + (gain @ (z - m @ self.seen.T)[:, :, None]).squeeze(-1)
        if self.cuts:  # for which it is run on rows that lie otherwise, too
            m = torch.cat([m[:, :1].detach(), m[:, 1:]], 1)
        return m, (m, p - gain @ s @ gain.mT)


def _given(cuts):
    torch.manual_seed(0)
    state = torch.zeros(3, N).double(), torch.eye(N).double().expand(3, N, N).contiguous()
    return Kalman(cuts).double(), torch.randn(30, 3, M).double(), state


def _loop(step, x, state):
    ys = list[torch.Tensor]()
    for row in x:
        y, state = step(row, state)
        ys.append(y)
    return torch.stack(ys)


@pytest.mark.parametrize("cuts", [False, True])
def test_they_are_compiled(cuts):
    step, x, state = _given(cuts)
    y, _ = recurrent(step, x, state, backend="c")
    assert "generated C" in str(stepnet.explain(step, x, state)).splitlines()[1]
    torch.testing.assert_close(y, _loop(step, x, state))


def test_second_derivatives():
    step, x, state = _given(False)

    def found(run):
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(run(leaf).square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    ours = found(lambda leaf: recurrent(step, leaf, state)[0])
    torch.testing.assert_close(ours, found(lambda leaf: _loop(step, leaf, state)), rtol=1e-7, atol=1e-7)
