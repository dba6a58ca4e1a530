"""Control, neurons, mechanics, prices, returns of agents and sums over paths."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, N = 6, 8, 4


@ZOO.cell(D, [(4, N)])
class SemiCRF(nn.Module):
    """scores of segments of up to 4 rows"""

    def __init__(self):
        super().__init__()
        self.e = nn.Linear(D, N)
        self.t = nn.Parameter(torch.randn(N, N) / 2)
        self.d = nn.Parameter(torch.randn(4, N) / 2)

    def forward(self, x, al):
        e = self.e(x)
        into = torch.logsumexp(al.unsqueeze(-1) + self.t, dim=2) + self.d + e.unsqueeze(1)
        new = torch.logsumexp(into, 1)
        return (new, torch.cat([new.unsqueeze(1), al[:, :-1] + e.unsqueeze(1)], 1))


@ZOO.cell(3, [()])
class VTrace(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(0.9))

    def forward(self, x, acc):
        rho = x[:, 0].exp().clamp(max=1.0)
        c = rho.clamp(max=1.0) * 0.95
        acc = rho * (x[:, 1] - x[:, 2]) + self.g * c * acc
        return (acc + x[:, 2], acc)


@ZOO.cell(4, [(), ()])
class GAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Parameter(torch.tensor(0.95))

    def forward(self, x, st):
        nv, adv = st
        r, v, done, _ = x.unbind(-1)
        m = 1 - torch.sigmoid(done)
        d = r + 0.99 * nv * m - v
        adv = d + 0.99 * self.l * m * adv
        return (torch.stack([adv, adv + v], -1), (v, adv))


@ZOO.cell(D, [H])
class MuZeroUnroll(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Sequential(nn.Linear(D + H, H), nn.ReLU(), nn.Linear(H, H))
        self.r = nn.Linear(H, 5)
        self.p = nn.Linear(H, 3)
        self.v = nn.Linear(H, 5)

    def scale(self, h):
        lo, hi = (h.min(1, keepdim=True)[0], h.max(1, keepdim=True)[0])
        sc = hi - lo
        sc = torch.where(sc < 1e-05, sc + 1e-05, sc)
        return (h - lo) / sc

    def forward(self, a, h):
        h = self.scale(self.d(torch.cat([h, a], 1)))
        sup = torch.arange(-2, 3, dtype=h.dtype, device=h.device)
        return (
            ((self.r(h).softmax(-1) * sup).sum(-1), self.p(h), (self.v(h).softmax(-1) * sup).sum(-1)),
            h * 0.5 + h.detach() * 0.5,
        )


@ZOO.cell(D, [H, 3])
class OptionCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(D + H, H)
        self.term = nn.Linear(H, 3)
        self.q = nn.Linear(H, 3)
        self.pi = nn.Parameter(torch.randn(3, H, 4) / 3)

    def forward(self, x, st):
        h, w = st
        h = torch.tanh(self.f(torch.cat([x, h], -1)))
        beta = torch.sigmoid(self.term(h))
        stop = (w * beta).sum(-1, keepdim=True)
        w = (1 - stop) * w + stop * F.softmax(self.q(h), -1)
        pi = torch.einsum("bo,bh,oha->ba", w, h, self.pi)
        return (F.log_softmax(pi, -1), (h, w))


@ZOO.cell(2, [(), (), ()])
class PID(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.8, 0.1, 0.05]))

    def forward(self, x, st):
        i, prev, y = st
        e = x[:, 0] - y
        i = torch.clamp(i + e * 0.1, -1, 1)
        u = torch.clamp(self.k[0] * e + self.k[1] * i + self.k[2] * (e - prev) / 0.1, -2, 2)
        y = y + 0.1 * (u - y + x[:, 1] * 0.1)
        return (u, (i, e, y))


@ZOO.cell((3, 3), [(3, 3)])
class LQRRiccati(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.randn(3, 2) / 2)
        self.q = nn.Parameter(torch.ones(3))
        self.r = nn.Parameter(torch.ones(2))

    def forward(self, x, P):
        A = torch.eye(3, dtype=x.dtype) + 0.1 * x
        P = (P + P.mT) / 2
        BtP = self.b.mT @ P
        K = torch.linalg.solve(
            torch.diag(self.r.exp()) + BtP @ P.mT @ self.b * 0.1 + torch.eye(2, dtype=x.dtype), BtP @ A
        )
        P = torch.diag(self.q.exp()) + A.mT @ P @ (A - self.b @ K) * 0.5
        return (K, P)


@ZOO.cell((), [(), (), (), ()])
class HodgkinHuxley(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([1.2, 0.36, 0.003]) * 10)

    def forward(self, I, st):
        v, m, h, n = st
        V = v * 20
        am = torch.where(
            (V - 25).abs() < 0.0001, torch.ones_like(V), 0.1 * (25 - V) / (torch.exp((25 - V) / 10) - 1)
        )
        bm = 4 * torch.exp(-V / 18)
        ah = 0.07 * torch.exp(-V / 20)
        bh = 1 / (torch.exp((30 - V) / 10) + 1)
        an = 0.01 * (10 - V) / (torch.exp((10 - V) / 10) - 1)
        bn = 0.125 * torch.exp(-V / 80)
        dt = 0.01
        m = m + dt * (am * (1 - m) - bm * m)
        h = h + dt * (ah * (1 - h) - bh * h)
        n = n + dt * (an * (1 - n) - bn * n)
        i = self.g[0] * m.pow(3) * h * (V - 115) + self.g[1] * n.pow(4) * (V + 12) + self.g[2] * (V - 10.6)
        return (v, (v + dt * (I - i) / 20, m, h, n))


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + 10 * x.abs()) ** 2


@ZOO.cell(D, [H, H])
class Izhikevich(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(D, H)
        self.a = nn.Parameter(torch.full((H,), 0.02))
        self.register_buffer("c", torch.tensor(-0.65))

    def forward(self, x, st):
        v, u = st
        I = self.w(x)
        v = v + 0.5 * (0.04 * v * v * 10 + 0.5 * v + 0.14 - u + I)
        v = v + 0.5 * (0.04 * v * v * 10 + 0.5 * v + 0.14 - u + I)
        u = u + self.a * (0.2 * v - u)
        z = Surrogate.apply(v - 0.3)
        return (z, (torch.where(z > 0, self.c, v), u + z * 0.08))


@ZOO.cell(D, [(H, D), D, H, H])
class STDP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = nn.Parameter(torch.randn(H, D) / 3)
        self.eta = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, st):
        dw, pre, post, v = st
        v = 0.9 * v + torch.bmm(self.w0 + dw, x.unsqueeze(-1)).squeeze(-1)
        z = Surrogate.apply(v - 0.5)
        v = v * (1 - z)
        pre = 0.8 * pre + x
        post = 0.8 * post + z
        dw = torch.clamp(
            dw + self.eta * (z.unsqueeze(2) * pre.unsqueeze(1) - post.unsqueeze(2) * x.unsqueeze(1)), -1, 1
        )
        return (z, (dw, pre, post, v))


@ZOO.cell(D, [(), 4, 4])
class SymplecticHNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.U = nn.Sequential(nn.Linear(4, H), nn.Tanh(), nn.Linear(H, 1))
        self.f = nn.Linear(D, 4)

    def force(self, q):
        W1, b1, W2 = (self.U[0].weight, self.U[0].bias, self.U[2].weight)
        t = torch.tanh(F.linear(q, W1, b1))
        return -((1 - t * t) * W2[0]) @ W1

    def forward(self, x, st):
        t, q, p = st
        dt = 0.1
        p = p + 0.5 * dt * (self.force(q) + self.f(x))
        q = q + dt * p
        p = p + 0.5 * dt * (self.force(q) + self.f(x))
        return (torch.cat([q, p], -1), (t + dt, q, p))


@ZOO.cell(D, [4, 4])
class HNNAutograd(nn.Module):
    def __init__(self):
        super().__init__()
        self.H = nn.Sequential(nn.Linear(8, H), nn.Tanh(), nn.Linear(H, 1))
        self.f = nn.Linear(D, 4)

    def forward(self, x, st):
        q, p = st
        with torch.enable_grad():
            z = torch.cat([q, p], -1)
            if not z.requires_grad:
                z.requires_grad_()
            (dH,) = torch.autograd.grad(self.H(z).sum(), z, create_graph=True)
        dq, dp = dH.chunk(2, -1)
        return (z, (q + 0.1 * dp, p - 0.1 * dq + 0.1 * self.f(x)))


@ZOO.cell(D, [H, N, ()])
class HiPPOLegS(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Linear(H, 1)
        self.W = nn.Linear(D + N, H)
        q = torch.arange(N, dtype=torch.get_default_dtype())
        r = 2 * q + 1
        M = -(torch.where(q[:, None] >= q, r, torch.zeros(N, N)) - torch.diag(q))
        T = torch.sqrt(torch.diag(r))
        self.register_buffer("A", T @ M @ torch.inverse(T))
        self.register_buffer("B", torch.diag(T))

    def forward(self, x, st):
        h, c, t = st
        t = t.abs() + 1
        f = self.p(h)
        At = self.A / t[:, None, None]
        I = torch.eye(N, dtype=x.dtype)
        Bt = self.B * f / t.unsqueeze(-1)
        c = torch.linalg.solve_triangular(
            I - At / 2, (I + At / 2) @ c.unsqueeze(-1) + Bt.unsqueeze(-1), upper=False
        ).squeeze(-1)
        h = torch.tanh(self.W(torch.cat([x, c], -1)))
        return (h, (h, c, t))


@ZOO.cell(2, [(), ()])
class Heston(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([1.5, 0.04, 0.3, -0.7]))

    def forward(self, x, st):
        ls, v = st
        k, th, xi, rho = self.p
        vp = v.clamp(min=0)
        dt = 1 / 252
        dw = x[:, 0] * math.sqrt(dt)
        dz = (rho * x[:, 0] + torch.sqrt(1 - rho**2) * x[:, 1]) * math.sqrt(dt)
        return (
            torch.exp(ls),
            (
                ls - 0.5 * vp * dt + torch.sqrt(vp + 1e-12) * dw,
                v + k * (th - vp) * dt + xi * torch.sqrt(vp + 1e-12) * dz,
            ),
        )


@ZOO.cell((), [10, 10])
class Changepoint(nn.Module):
    """Adams and MacKay: run lengths of at most ten, in logarithms"""

    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor(-2.0))
        self.ls = nn.Parameter(torch.zeros(()))

    def forward(self, x, st):
        lp, mu = st
        n = torch.arange(1, 11, dtype=x.dtype)
        sd = torch.exp(self.ls) * torch.sqrt(1 + 1 / n)
        pred = torch.distributions.Normal(mu, sd).log_prob(x.unsqueeze(-1))
        j = lp + pred
        grow = j + F.logsigmoid(-self.h)
        cp = torch.logsumexp(j + F.logsigmoid(self.h), -1, keepdim=True)
        new = torch.cat([cp, grow[:, :-1]], -1)
        new = new - torch.logsumexp(new, -1, keepdim=True)
        mu = torch.cat([torch.zeros_like(mu[:, :1]), (mu * n + x.unsqueeze(-1))[:, :-1] / (n + 1)[:-1]], -1)
        return ((new.exp() * mu).sum(-1), (new, mu))


@ZOO.cell((), [5, ()], ints=5)
class CTCForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.randn(5, 5))
        self.register_buffer("skip", torch.tensor([False, False, False, True, False]))

    def forward(self, x, st):
        a, z = st
        lp = F.log_softmax(self.e[x], -1)
        ninf = torch.full_like(a[:, :1], -10000.0)
        a1 = torch.cat([ninf, a[:, :-1]], 1)
        a2 = torch.where(self.skip, torch.cat([ninf, ninf, a[:, :-2]], 1), torch.full_like(a, -10000.0))
        a = torch.logsumexp(torch.stack([a, a1, a2], -1), -1) + lp
        z = torch.logsumexp(a[:, -2:], 1)
        return (z, (a, z))


@ZOO.cell(D, [(8, 3), 8])
class BootstrapFilter(nn.Module):
    """soft resampling in the place of draws"""

    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.eye(3) * 0.9)
        self.C = nn.Linear(3, D)

    def forward(self, x, st):
        p, lw = st
        p = torch.tanh(p @ self.A.T)
        ll = -0.5 * ((x.unsqueeze(1) - self.C(p)) ** 2).sum(-1)
        lw = F.log_softmax(lw + ll, -1)
        w = lw.exp()
        mean = (w.unsqueeze(-1) * p).sum(1)
        q = 0.5 * w + 0.5 / 8
        cdf = torch.cumsum(q, -1)
        u = (torch.arange(8, dtype=x.dtype) + 0.5) / 8
        idx = torch.searchsorted(cdf.detach(), u.expand_as(cdf).contiguous()).clamp(max=7)
        p = torch.gather(p, 1, idx.unsqueeze(-1).expand(-1, -1, 3))
        lw = torch.gather(lw - torch.log(q), 1, idx)
        return (mean, (p, lw))
