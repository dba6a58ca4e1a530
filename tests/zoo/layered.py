"""Layers, mixtures, transducers and optimisers as steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, NH, N = 6, 8, 2, 4


@ZOO.cell(D, [(2, H), (2, H)])
class StackedLSTMList(nn.Module):
    """Layers in a Python loop, states in one tensor of layers, dropout off, skip connections."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(D, H), nn.LSTMCell(H, H)])
        self.out = nn.Linear(2 * H, D)

    def forward(self, x, state):
        h, c = (list(torch.unbind(s, 1)) for s in state)
        outs = []
        for i, cell in enumerate(self.cells):
            h[i], c[i] = cell(x, (h[i], c[i]))
            x = h[i] if i == 0 else x + h[i]
            outs.append(h[i])
        return self.out(torch.cat(outs, -1)), (torch.stack(h, 1), torch.stack(c, 1))


@ZOO.cell(D, [(4, D)])
class NoisyTopKMoE(nn.Module):
    """Shazeer's gating in eval: topk, scatter into zeros, softmax with -inf, load by thresholds."""

    def __init__(self):
        super().__init__()
        self.wg, self.wn = nn.Parameter(torch.randn(D, 4) / 2), nn.Parameter(torch.randn(D, 4) / 2)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(D, 7), nn.ReLU(), nn.Linear(7, D)) for _ in range(4)]
        )

    def forward(self, x, h):
        x = x + h.mean(1)
        clean = x @ self.wg
        stddev = F.softplus(x @ self.wn) + 1e-2
        top_logits, top_idx = clean.topk(3, dim=1)
        gates = torch.zeros_like(clean).scatter(1, top_idx[:, :2], F.softmax(top_logits[:, :2], 1))
        masked = torch.full_like(clean, float("-inf")).scatter(1, top_idx[:, :2], top_logits[:, :2])
        prob = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)).cdf(
            (clean - top_logits[:, 2:3]) / stddev
        )
        out = torch.stack([e(x) for e in self.experts], dim=1)
        y = torch.einsum("be,bed->bd", gates, out)
        aux = (prob * masked.softmax(-1)).sum(-1)
        return (y, aux), 0.9 * h + 0.1 * torch.tanh(out)


@ZOO.cell(D, [(5, D)])
class SoftMoE(nn.Module):
    """Slots: a softmax over tokens to dispatch, over slots to combine."""

    def __init__(self):
        super().__init__()
        self.phi = nn.Parameter(torch.randn(D, 2, 2))
        self.w = nn.Parameter(torch.randn(2, D, D) / 2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, tokens):
        t = torch.cat([tokens[:, 1:], x.unsqueeze(1)], dim=1)
        logits = torch.einsum(
            "bmd,dnp->bmnp", F.normalize(t, dim=-1), self.scale * F.normalize(self.phi, dim=0)
        )
        d = logits.softmax(dim=1)
        c = logits.flatten(2).softmax(dim=-1).view_as(logits)
        xs = torch.einsum("bmd,bmnp->bnpd", t, d)
        ys = F.gelu(torch.einsum("bnpd,nde->bnpe", xs, self.w))
        t = t + torch.einsum("bnpd,bmnp->bmd", ys, c)
        return t[:, -1], t


@ZOO.cell(D, [(4, N), 4])
class GrefenstetteQueue(nn.Module):
    """Continuous stack of Joulin with matrices of shifts; push, pop, no-op; a depth of 4."""

    def __init__(self):
        super().__init__()
        self.A = nn.Linear(D + N, 3)
        self.Dv = nn.Linear(D, N)
        self.register_buffer("W_up", F.pad(torch.eye(3), (0, 1, 1, 0)))
        self.register_buffer("W_down", F.pad(torch.eye(3), (1, 0, 0, 1)))

    def forward(self, x, state):
        stack, depth = state
        a = F.softmax(self.A(torch.cat([x, stack[:, 0]], 1)), dim=-1)
        push, pop, noop = a[:, 0, None, None], a[:, 1, None, None], a[:, 2, None, None]
        pushed = self.W_up.to(x.dtype) @ stack
        pushed[:, 0] = torch.sigmoid(self.Dv(x))
        stack = push * pushed + pop * (self.W_down.to(x.dtype) @ stack) + noop * stack
        depth = torch.roll(depth, 1, dims=1) * push.squeeze(-1) + torch.roll(depth, -1, 1) * pop.squeeze(-1)
        return stack[:, 0], (stack, depth)


@ZOO.cell(1, [N])
class S4Bilinear(nn.Module):
    """HiPPO-LegS discretised bilinearly in the step, by a solve of weights, as the annotated S4 has it."""

    def __init__(self):
        super().__init__()
        P = torch.sqrt(1 + 2 * torch.arange(N).float())
        A = P[:, None] * P[None, :]
        self.A = nn.Parameter(-(torch.tril(A) - torch.diag(torch.arange(N).float())))
        self.B = nn.Parameter(P[:, None].clone())
        self.C = nn.Parameter(torch.randn(1, N))
        self.log_step = nn.Parameter(torch.tensor(-2.0))
        self.D = nn.Parameter(torch.ones(1))

    def discretize(self):
        I = torch.eye(N)
        step = self.log_step.exp()
        BL = torch.linalg.inv(I - (step / 2.0) * self.A)
        return BL @ (I + (step / 2.0) * self.A), (BL * step) @ self.B

    def forward(self, u, x):
        Ab, Bb = self.discretize()
        x = (Ab @ x.unsqueeze(-1) + Bb @ u.unsqueeze(-1)).squeeze(-1)
        y = torch.einsum("on,bn->bo", self.C, x) + self.D * u
        return F.gelu(y), x


@ZOO.cell(D, [(NH, N, N), (3 * NH * N, 3)])
class FastWeightDPFP(nn.Module):
    """Schlag et al.: DPFP features, delta rule, a write strength; a short convolution."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * NH * N)
        self.b = nn.Linear(D, NH)
        self.w = nn.Parameter(torch.randn(3 * NH * N, 1, 4) / 2)
        self.proj = nn.Linear(2 * N, N)

    def dpfp(self, x):
        x = torch.cat([F.relu(x), F.relu(-x)], dim=-1)
        x = x * torch.roll(x, 1, -1)
        x = x[..., :N] + x[..., N:]
        return x / (x.sum(-1, keepdim=True) + 1e-6)

    def forward(self, x, state):
        W, conv = state
        win = torch.cat([conv, self.qkv(x).unsqueeze(-1)], -1)
        u = F.silu(F.conv1d(win, self.w, groups=3 * NH * N)).squeeze(-1)
        q, k, v = (t.reshape(-1, NH, N) for t in u.split(NH * N, dim=-1))
        q, k = self.dpfp(q), self.dpfp(k)
        beta = torch.sigmoid(self.b(x))[..., None]
        v_old = torch.matmul(k.unsqueeze(-2), W).squeeze(-2)
        W = W + torch.einsum("bhi,bhj->bhij", k, beta * (v - v_old))
        return torch.matmul(q.unsqueeze(-2), W).flatten(1), (W, win[..., 1:])


@ZOO.cell(D, [H, 1, 1])
class EWMNormGRU(nn.Module):
    """Online normalisation: Welford's mean and variance among the states, clamp, rsqrt; a residual GRU."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRUCell(D, H)
        self.res = nn.Linear(H, H)

    def forward(self, x, state):
        h, mean, var = state
        d = x.mean(-1, keepdim=True) - mean
        mean = mean + 0.1 * d
        var = 0.9 * (var.abs() + 0.1 * d.square())
        x = ((x - mean) * torch.rsqrt(var + 1e-5)).clamp_(-5, 5)
        h2 = self.gru(x, h)
        h = torch.add(h2, torch.relu_(self.res(h2)), alpha=0.5)
        return h, (h, mean, var)


@ZOO.cell(D, [(3, 7)], ints=0)
class CTCPrefix(nn.Module):
    """Prefix probabilities of labels: logaddexp, padded shifts, masked by where."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, 4)
        self.register_buffer("labels", torch.tensor([0, 1, 0, 2, 0, 3, 0]))

    def forward(self, x, a):
        lp = F.log_softmax(self.proj(x), -1)[:, self.labels]
        prev = a[:, 0]
        s1 = F.pad(prev[:, :-1], (1, 0), value=-1e9)
        s2 = F.pad(prev[:, :-2], (2, 0), value=-1e9)
        skip = (self.labels != 0) & (self.labels != torch.roll(self.labels, 2))
        new = (
            torch.logaddexp(torch.logaddexp(prev, s1), torch.where(skip, s2, torch.full_like(s2, -1e9))) + lp
        )
        return torch.logsumexp(new[:, -2:], 1), torch.stack([new, a[:, 0], a[:, 1]], 1)


@ZOO.cell(D, [(2, 5)])
class IIRWithFFT(nn.Module):
    """A buffer's spectrum weighs its own next sample."""

    def __init__(self):
        super().__init__()
        self.f = nn.Parameter(torch.randn(2, 3))
        self.inp = nn.Linear(D, 2)

    def forward(self, x, buf):
        spec = torch.fft.rfft(buf, dim=-1)
        power = spec.abs().pow(2) + 1e-6
        gate = torch.sigmoid((self.f * torch.log(power)).sum(-1))
        new = torch.tanh(self.inp(x)) * gate
        return gate, torch.cat([buf[..., 1:], new.unsqueeze(-1)], -1)


@ZOO.cell(D, [(6, 2), 6])
class SlotAttentionStep(nn.Module):
    """Locatello: attention normalised over slots, a GRU for each, three iterations."""

    def __init__(self):
        super().__init__()
        self.k, self.v, self.q = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(3, 4)
        self.gru = nn.GRUCell(4, 3)
        self.init = nn.Parameter(torch.randn(1, 2, 3))
        self.norm = nn.LayerNorm(3)

    def forward(self, x, state):
        feats, m = state
        inputs = torch.cat([feats[:, 1:], x[:, None, :2]], 1)
        k, v = self.k(inputs), self.v(inputs)
        b = x.size(0)
        slots = self.init.expand(b, -1, -1) + 0.1 * m.view(b, 2, 3)
        for _ in range(3):
            prev = slots
            q = self.q(self.norm(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * 0.5
            attn = dots.softmax(dim=1) + 1e-8
            attn = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, attn)
            slots = self.gru(updates.reshape(-1, 4), prev.reshape(-1, 3)).reshape(b, -1, 3)
        return slots.flatten(1), (inputs, slots.flatten(1))


@ZOO.cell(D, [H], noise=True)
class GumbelSkip(nn.Module):
    """A hard gumbel softmax chooses among copying, updating and resetting."""

    def __init__(self):
        super().__init__()
        self.choose = nn.Linear(H + D, 3)
        self.cell = nn.GRUCell(D, H)

    def forward(self, x, h):
        z = F.gumbel_softmax(self.choose(torch.cat([h, x], -1)), tau=0.5, hard=True)
        options = torch.stack([h, self.cell(x, h), torch.zeros_like(h)], 1)
        h = torch.einsum("bk,bkh->bh", z, options)
        return (h, z.argmax(-1)), h


@ZOO.cell(D, [N, N, 1])
class InnerAdam(nn.Module):
    """An optimiser as a cell: gradients by torch.func, a moment, its bias corrected by powers of a count."""

    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.randn(N, N))
        self.lr = nn.Parameter(torch.tensor(0.1))
        self.inp = nn.Linear(D, N)

    def forward(self, x, state):
        theta, m, t = state
        target = self.inp(x)

        def loss(p, y):
            return ((p @ self.A - y) ** 2).sum()

        g = torch.func.vmap(torch.func.grad(loss))(theta, target)
        t = t.abs() + 1
        m = 0.9 * m + 0.1 * g
        mh = m / (1 - torch.pow(0.9, t))
        vh = g * g
        theta = theta - self.lr * mh / (vh.sqrt() + 1.0)
        return ((theta @ self.A - target) ** 2).mean(-1), (theta, m, t)
