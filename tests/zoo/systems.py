"""Graphs, filters, sound, control and points in time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, NH, N = 6, 8, 2, 4


@ZOO.cell(D, [H])
class ACTBudget(nn.Module):
    """ACT over a fixed number of turns, breaking off when all rows have halted."""

    def __init__(self):
        super().__init__()
        self.cell, self.halt = nn.GRUCell(D + 1, H), nn.Linear(H, 1)

    def forward(self, x, h):
        budget = torch.ones((x.size(0), 1)) - 1e-2
        accum_p = torch.zeros_like(budget)
        accum_h = torch.zeros_like(h)
        continuing = torch.ones_like(budget)
        for act_step in range(5):
            flag = torch.full_like(budget, float(act_step == 0))
            h = self.cell(torch.cat([x, flag], 1), h)
            p = torch.sigmoid(self.halt(h))
            ended = (accum_p + p) > budget
            weight = torch.where(ended, 1 - accum_p, p) * continuing
            accum_h = accum_h + weight * h
            accum_p = accum_p + weight
            continuing = continuing * (~ended).to(h.dtype)
            if not continuing.any():
                break
        return accum_h, accum_h


@ZOO.cell(D, [H, 1], ints=0)
class PlacesByState(nn.Module):
    """A weight of its own for each phase of a clock among the states."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(3, H, H) / 3)
        self.inp = nn.Linear(D, H)

    def forward(self, x, state):
        h, t = state
        k = t.squeeze(-1).round().long() % 3
        h = torch.tanh(self.inp(x) + torch.einsum("bi,bij->bj", h, self.W[k]))
        return h, (h, t + 1)


@ZOO.cell((5, 3), [(5, H)])
class GGNN(nn.Module):
    """A GRU at nodes of a fixed graph, two rounds of messages by edge types."""

    def __init__(self):
        super().__init__()
        self.register_buffer("A", (torch.rand(2, 5, 5) > 0.5).float())
        self.msg = nn.ModuleList([nn.Linear(H, H) for _ in range(2)])
        self.gru = nn.GRUCell(H + 3, H)

    def forward(self, x, h):
        for _ in range(2):
            m = sum(torch.matmul(self.A[i].to(h.dtype), self.msg[i](h)) for i in range(2))
            h = self.gru(torch.cat([m, x], -1).reshape(-1, H + 3), h.reshape(-1, H)).view_as(h)
        return h.max(dim=1)[0], h


@ZOO.cell((5, 3), [(5, H)])
class EdgeIndexGNN(nn.Module):
    """Messages over an edge list: index_select, scatter_add (index_add)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("src", torch.tensor([0, 1, 2, 3, 4, 0, 2]))
        self.register_buffer("dst", torch.tensor([1, 2, 3, 4, 0, 3, 0]))
        self.msg = nn.Linear(2 * H, H)
        self.upd = nn.GRUCell(H + 3, H)

    def forward(self, x, h):
        m = F.relu(self.msg(torch.cat([h[:, self.src], h[:, self.dst]], -1)))
        agg = torch.zeros_like(h).index_add(1, self.dst, m)
        deg = h.new_zeros(5).scatter_add_(0, self.dst, h.new_ones(len(self.dst))).clamp(min=1)
        agg = agg / deg[None, :, None]
        h = self.upd(torch.cat([agg, x], -1).flatten(0, 1), h.flatten(0, 1)).unflatten(0, (-1, 5))
        return h.mean(1), h


@ZOO.cell(
    2 * H,
    [H, H],
)
class ChildSumTree(nn.Module):
    """A shift and reduce LSTM over spans: two children from x, one from the state."""

    def __init__(self):
        super().__init__()
        self.iou = nn.Linear(2 * H, 3 * H)
        self.f = nn.Linear(H, H)

    def forward(self, x, state):
        h, c = state
        hs = torch.stack([h, x[:, :H]], 1)
        cs = torch.stack([c, x[:, H:]], 1)
        i, o, u = torch.split(self.iou(torch.cat([hs.sum(1), x[:, H:]], 1)), H, dim=1)
        f = torch.sigmoid(self.f(hs))
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sum(f * cs, dim=1)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


# ---- probabilistic
@ZOO.cell((3,), [(4,), (4, 4)])
class KalmanJoseph(nn.Module):
    """Joseph's form of the update, a gain by a solve, the likelihood of what is missed."""

    def __init__(self):
        super().__init__()
        self.F_ = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))
        self.H_ = nn.Parameter(torch.randn(3, 4))
        self.q, self.r = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(3))

    def forward(self, z, state):
        x, L = state
        P = L @ L.transpose(-1, -2) + torch.eye(4)
        Q, R = torch.diag(self.q.exp()), torch.diag(self.r.exp())
        x = x @ self.F_.T
        P = self.F_ @ P @ self.F_.T + Q
        S = self.H_ @ P @ self.H_.T + R
        K = torch.linalg.solve(S, self.H_ @ P).transpose(-2, -1)
        y = z - x @ self.H_.T
        x = x + torch.einsum("bij,bj->bi", K, y)
        I_KH = torch.eye(4) - K @ self.H_
        P = I_KH @ P @ I_KH.mT + K @ R @ K.mT
        dist = torch.distributions.MultivariateNormal(torch.zeros(3), S)
        return (x, dist.log_prob(y)), (x, torch.linalg.cholesky(P) * 0.5)


@ZOO.cell((3,), [(3,), (3, 3)])
class UnscentedKF(nn.Module):
    """Sigma points of a Cholesky factor through a network."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
        self.h = nn.Linear(3, 3)

    def forward(self, z, state):
        m, L = state
        n = 3
        L = L.tril() + torch.eye(3)
        pts = torch.cat(
            [m.unsqueeze(1), m.unsqueeze(1) + math.sqrt(n) * L.mT, m.unsqueeze(1) - math.sqrt(n) * L.mT], 1
        )
        w = torch.full((2 * n + 1,), 1 / (2 * n + 1))
        pts = pts + 0.1 * self.f(pts)
        m = (w[:, None] * pts).sum(1)
        d = pts - m[:, None]
        P = torch.einsum("k,bki,bkj->bij", w, d, d) + 0.1 * torch.eye(3)
        zs = self.h(pts)
        zm = (w[:, None] * zs).sum(1)
        e = zs - zm[:, None]
        S = torch.einsum("k,bki,bkj->bij", w, e, e) + 0.1 * torch.eye(3)
        C = torch.einsum("k,bki,bkj->bij", w, d, e)
        K = torch.cholesky_solve(C.mT, torch.linalg.cholesky(S)).mT
        m = m + (K @ (z - zm).unsqueeze(-1)).squeeze(-1)
        P = P - K @ S @ K.mT
        L = torch.linalg.cholesky(P + 1e-3 * torch.eye(3))
        return m, (m, L - torch.eye(3))


# ---- econometrics, DSP, control
@ZOO.cell(1, [1, 1, 2])
class GARCH(nn.Module):
    """Bollerslev (1986) over an autoregression; the likelihood and a quantile's loss."""

    def __init__(self):
        super().__init__()
        self.w, self.a, self.b, self.phi = (nn.Parameter(torch.tensor(v)) for v in (-1.0, 0.1, 0.8, 0.5))
        self.th = nn.Parameter(torch.randn(2))

    def forward(self, r, state):
        var, eps, lags = state
        var = F.softplus(self.w) + self.a.abs() * eps**2 + torch.sigmoid(self.b) * var.abs()
        mu = self.phi * lags[:, :1] + (self.th * lags).sum(-1, keepdim=True)
        eps = r - mu
        nll = 0.5 * (torch.log(2 * torch.pi * var + 1e-6) + eps**2 / (var + 1e-6))
        q = torch.maximum(0.9 * eps, (0.9 - 1) * eps)
        return torch.cat([nll, q], -1), (var, eps, torch.cat([r, lags[:, :-1]], -1))


@ZOO.cell(2, [(3, 2, 2)])
class BiquadCascade(nn.Module):
    """Three sections of a filter in transposed direct form II, their parameters by frequency and Q."""

    def __init__(self):
        super().__init__()
        self.freq, self.q = nn.Parameter(torch.tensor([0.1, 0.3, 0.6])), nn.Parameter(torch.ones(3))
        self.gain = nn.Parameter(torch.zeros(3))

    def forward(self, x, state):
        w0 = math.pi * torch.sigmoid(self.freq)
        alpha = torch.sin(w0) / (2 * F.softplus(self.q))
        A = 10 ** (self.gain / 40)
        b = torch.stack([1 + alpha * A, -2 * torch.cos(w0), 1 - alpha * A], -1)
        a = torch.stack([1 + alpha / A, -2 * torch.cos(w0), 1 - alpha / A], -1)
        b, a = b / a[:, :1], a / a[:, :1]
        new = []
        for i in range(3):
            s1, s2 = state[:, i].unbind(-1)
            y = b[i, 0] * x + s1
            s1 = b[i, 1] * x - a[i, 1] * y + s2
            s2 = b[i, 2] * x - a[i, 2] * y
            new.append(torch.stack([s1, s2], -1))
            x = y
        return x, torch.stack(new, 1)


@ZOO.cell(1, [(16,), 1])
class KarplusStrong(nn.Module):
    """A delay line with a fractional read by lerp, written at a pointer by scatter."""

    def __init__(self):
        super().__init__()
        self.delay = nn.Parameter(torch.tensor(9.3))
        self.damp = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, state):
        line, pos = state
        t = pos.floor().long() % 16
        d = self.delay.clamp(1, 14)
        k = d.floor()
        frac = d - k
        i0 = (t - k.long()) % 16
        i1 = (i0 - 1) % 16
        y = torch.lerp(line.gather(1, i0), line.gather(1, i1), frac)
        s = torch.sigmoid(self.damp)
        w = x + 0.99 * (s * y + (1 - s) * line.gather(1, (i1 - 1) % 16))
        line = line.scatter(1, t, w)
        return y, (line, pos + 1)


@ZOO.cell(1, [1, 1])
class Compressor(nn.Module):
    """Attack and release, soft knee, in decibels."""

    def __init__(self):
        super().__init__()
        self.th, self.ratio, self.knee = (
            nn.Parameter(torch.tensor(-20.0)),
            nn.Parameter(torch.tensor(4.0)),
            6.0,
        )
        self.att, self.rel = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x, state):
        g, env = state
        db = 20 * torch.log10(x.abs().clamp(min=1e-5))
        over = db - self.th
        gc = torch.where(
            2 * over < -self.knee,
            torch.zeros_like(over),
            torch.where(
                2 * over.abs() <= self.knee,
                (1 / self.ratio - 1) * (over + self.knee / 2) ** 2 / (2 * self.knee),
                (1 / self.ratio - 1) * over,
            ),
        )
        coef = torch.where(gc < g, torch.sigmoid(self.att), torch.sigmoid(self.rel))
        g = coef * g + (1 - coef) * gc
        env = torch.max(x.abs(), 0.9 * env)
        return x * 10 ** (g / 20), (g, env)


@ZOO.cell(2, [4, (3, 1)])
class DiffMPC(nn.Module):
    """A cart pole, an inner plan of three actions that two steps of gradient improve."""

    def __init__(self):
        super().__init__()
        self.cost = nn.Parameter(torch.tensor([1.0, 0.1, 10.0, 0.1]))
        self.lr = 0.05

    def dyn(self, s, u):
        x, xd, th, thd = s.unbind(-1)
        u = u.squeeze(-1)
        sin, cos = torch.sin(th), torch.cos(th)
        temp = (u + 0.05 * thd**2 * sin) / 1.1
        thacc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        xacc = temp - 0.05 * thacc * cos / 1.1
        return torch.stack([x + 0.02 * xd, xd + 0.02 * xacc, th + 0.02 * thd, thd + 0.02 * thacc], dim=-1)

    def rollout(self, plan, s):
        total = 0.0
        for k in range(3):
            s = self.dyn(s, plan[:, k])
            total = total + (self.cost * s**2).sum(-1) + 0.01 * (plan[:, k] ** 2).sum(-1)
        return total.sum()

    def forward(self, noise, state):
        s, plan = state
        for _ in range(2):
            g = torch.func.grad(self.rollout)(plan, s)
            plan = plan - self.lr * g
        s = self.dyn(s, plan[:, 0] + 0.1 * noise[:, :1])
        plan = torch.cat([plan[:, 1:], torch.zeros_like(plan[:, :1])], 1)
        return s, (s, plan)


@ZOO.cell(2, [(4, 2), (4, 2)])
class SpringNet(nn.Module):
    """Four masses on springs, semi-implicit, in double loops over pairs; clamped at walls."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.rand(4, 4))
        self.damp = nn.Parameter(torch.tensor(0.1))

    def forward(self, f, state):
        pos, vel = state
        d = pos[:, :, None] - pos[:, None, :]
        r = torch.linalg.norm(d + 1e-6, dim=-1, keepdim=True)
        force = -(self.k[..., None] * (r - 1.0) * d / r).sum(2)
        force[:, 0] += f
        vel = (1 - self.damp * 0.05) * vel + 0.05 * force
        pos = pos + 0.05 * vel
        hit = pos.abs() > 2
        vel = torch.where(hit, -0.5 * vel, vel)
        pos = pos.clamp(-2, 2)
        energy = 0.5 * vel.pow(2).sum((1, 2))
        return energy, (pos, vel)


@ZOO.cell(4, [4, 4, 1])
class NeuralHawkes(nn.Module):
    """Mei and Eisner: cells that decay between events, an intensity by softplus."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3 + 4, 7 * 4)
        self.w = nn.Linear(4, 3)

    def forward(self, inp, state):
        c, cbar, delta = state
        dt, k = inp[:, :1].abs(), inp[:, 1:].argmax(-1)
        ct = cbar + (c - cbar) * torch.exp(-F.softplus(delta) * dt)
        h = torch.tanh(ct)
        lam = F.softplus(self.w(h), beta=2)
        ll = torch.log(lam.gather(1, k[:, None]).squeeze(1) + 1e-8) - lam.sum(-1) * dt.squeeze(1)
        i, f, z, _, ib, fb, d = self.lin(torch.cat([F.one_hot(k, 3).to(h.dtype), h], 1)).chunk(7, -1)
        c = f.sigmoid() * ct + i.sigmoid() * z.tanh()
        cbar = fb.sigmoid() * cbar + ib.sigmoid() * z.tanh()
        return ll, (c, cbar, F.softplus(d).mean(-1, keepdim=True))


@ZOO.cell(D, [H, (3,), 2], noise=True)
class PPOPolicy(nn.Module):
    """An actor that draws its action from a Categorical and gives log probabilities, entropy and value."""

    def __init__(self):
        super().__init__()
        self.core = nn.GRUCell(D + 3, H)
        self.pi, self.v = nn.Linear(H, 3), nn.Linear(H, 1)

    def forward(self, obs, state):
        h, last, env = state
        done = (obs[:, 0] > 1.0).to(obs.dtype).unsqueeze(-1)
        h = h * (1 - done)
        last = last * (1 - done)
        h = self.core(torch.cat([obs, last], -1), h)
        dist = torch.distributions.Categorical(logits=self.pi(h))
        a = dist.sample()
        env = torch.stack([env[:, 0] + a.to(env.dtype) - 1, env[:, 1] * 0.9], 1)
        return (dist.log_prob(a), dist.entropy(), self.v(h).squeeze(-1), a), (
            h,
            F.one_hot(a, 3).to(h.dtype),
            env,
        )
