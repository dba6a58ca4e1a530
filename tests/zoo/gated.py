"""Cells with vector states: gates, norms, time scales, several networks in one step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
F_IN, H = 5, 8


@ZOO.cell(F_IN, [H])
class MinGRU(nn.Module):
    """Feng et al., "Were RNNs all we needed?" (2024)."""

    def __init__(self):
        super().__init__()
        self.z, self.n = nn.Linear(F_IN, H), nn.Linear(F_IN, H)

    def forward(self, x, h):
        z = torch.sigmoid(self.z(x))
        n = self.n(x)
        n = torch.where(n >= 0, n + 0.5, torch.sigmoid(n))
        h = (1 - z) * h + z * n
        return h, h


@ZOO.cell(F_IN, [H])
class MinLSTM(nn.Module):
    """Feng et al. (2024), with normalised gates."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(F_IN, 3 * H)

    def forward(self, x, h):
        f, i, n = self.gates(x).chunk(3, dim=-1)
        diff = F.softplus(-f) - F.softplus(-i)
        f, i = torch.sigmoid(-diff), torch.sigmoid(diff)
        h = f * h + i * torch.where(n >= 0, n + 0.5, n.sigmoid())
        return h, h


@ZOO.cell(H, [H])
class RGLRU(nn.Module):
    """De et al., "Griffin" (2024): the real-gated linear recurrent unit."""

    def __init__(self):
        super().__init__()
        self.r, self.i = nn.Linear(H, H), nn.Linear(H, H)
        self.a = nn.Parameter(torch.rand(H) + 1)
        self.c = 8.0

    def forward(self, x, h):
        log_a = -self.c * F.softplus(self.a) * torch.sigmoid(self.r(x))
        a = torch.exp(log_a)
        multiplier = torch.sqrt(-torch.expm1(2 * log_a))
        h = a * h + multiplier * (torch.sigmoid(self.i(x)) * x)
        return h, h


@ZOO.cell(F_IN, [H, H, H, H])
class SLSTM(nn.Module):
    """Beck et al., "xLSTM" (2024): exponential gates with a stabiliser."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(F_IN, 4 * H), nn.Linear(H, 4 * H, bias=False)

    def forward(self, x, state):
        h, c, n, m = state
        i, f, z, o = (self.w(x) + self.u(h)).split(H, dim=-1)
        log_f = F.logsigmoid(f)
        m_new = torch.max(log_f + m, i)
        i, f = torch.exp(i - m_new), torch.exp(log_f + m - m_new)
        c = f * c + i * torch.tanh(z)
        n = f * n + i
        h = torch.sigmoid(o) * c / n.clamp(min=1e-6)
        return h, (h, c, n, m_new)


@ZOO.cell(F_IN, [H, H])
class PhasedLSTM(nn.Module):
    """Neil et al. (2016): a gate that opens in a phase of the time given with x."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(F_IN - 1, H)
        self.tau = nn.Parameter(torch.rand(H) * 3 + 1)
        self.shift = nn.Parameter(torch.rand(H))
        self.open = nn.Parameter(torch.full((H,), 0.3))
        self.leak = 0.001

    def forward(self, x, state):
        time, x = x[:, :1], x[:, 1:]
        phi = torch.remainder(time - self.shift, self.tau) / self.tau
        up, down = 2 * phi / self.open, 2 - 2 * phi / self.open
        k = torch.where(phi < 0.5 * self.open, up, torch.where(phi < self.open, down, self.leak * phi))
        h0, c0 = state
        h1, c1 = self.cell(x, (h0, c0))
        c = k * c1 + (1 - k) * c0
        h = k * h1 + (1 - k) * h0
        return h, (h, c)


@ZOO.cell(F_IN, [H, 1])
class Clockwork(nn.Module):
    """Koutnik et al. (2014): groups of units that tick at periods 1, 2, 4, 8."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(F_IN, H), nn.Linear(H, H)
        self.register_buffer("period", torch.tensor([1.0, 1, 2, 2, 4, 4, 8, 8]))
        self.register_buffer(
            "mask", torch.triu(torch.ones(4, 4)).repeat_interleave(2, 0).repeat_interleave(2, 1)
        )

    def forward(self, x, state):
        h, t = state
        new = torch.tanh(self.w(x) + F.linear(h, self.u.weight * self.mask, self.u.bias))
        tick = torch.fmod(t, self.period) == 0
        h = torch.where(tick, new, h)
        return h, (h, t + 1)


@ZOO.cell(F_IN, [H])
class LTC(nn.Module):
    """Hasani et al., "Liquid time-constant networks" (2021), with the fused solver of 6 substeps."""

    def __init__(self):
        super().__init__()
        self.sensory, self.inner = nn.Linear(F_IN, H), nn.Linear(H, H)
        self.tau, self.a = nn.Parameter(torch.rand(H) + 1), nn.Parameter(torch.randn(H))

    def forward(self, x, h):
        sensed = self.sensory(x)
        for _ in range(6):
            f = torch.sigmoid(sensed + self.inner(h))
            h = (h + 0.1 * f * self.a) / (1 + 0.1 * (1 / self.tau + f))
        return h, h


@ZOO.cell(F_IN, [H])
class CfC(nn.Module):
    """Hasani et al., "Closed-form continuous-time networks" (2022)."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(F_IN + H, 12), nn.SiLU())
        self.f1, self.f2, self.ta, self.tb = (nn.Linear(12, H) for _ in range(4))

    def forward(self, x, h):
        z = self.backbone(torch.cat([x, h], -1))
        t = torch.sigmoid(self.ta(z) * x[:, :1] + self.tb(z))
        h = torch.tanh(self.f1(z)) * (1 - t) + t * torch.tanh(self.f2(z))
        return h, h


@ZOO.cell(F_IN, [H, H])
class HyperLSTM(nn.Module):
    """Ha et al., "HyperNetworks" (2016): a small network scales the rows of the weights at each step."""

    def __init__(self):
        super().__init__()
        self.hyper = nn.GRUCell(F_IN + H, H)
        self.w, self.u = nn.Linear(F_IN, 2 * H, bias=False), nn.Linear(H, 2 * H, bias=False)
        self.scale_w, self.scale_u, self.bias = (nn.Linear(H, 2 * H) for _ in range(3))

    def forward(self, x, state):
        h, k = state
        k = self.hyper(torch.cat([x, h], 1), k)
        pre = self.scale_w(k) * self.w(x) + self.scale_u(k) * self.u(h) + self.bias(k)
        g, n = F.layer_norm(pre, [2 * H]).chunk(2, 1)
        h = torch.sigmoid(g) * h + (1 - torch.sigmoid(g)) * torch.tanh(n)
        return h, (h, k)


@ZOO.cell(F_IN, [H])
class IndRNN(nn.Module):
    """Li et al. (2018)."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(F_IN, H), nn.Parameter(torch.rand(H))

    def forward(self, x, h):
        h = F.relu(self.w(x) + self.u * h)
        return h, h


@ZOO.cell(F_IN, [H])
class FastGRNN(nn.Module):
    """Kusupati et al. (2018): low-rank weights shared by gate and candidate."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(F_IN, 2)), nn.Parameter(torch.randn(2, H))
        self.u1, self.u2 = nn.Parameter(torch.randn(H, 2)), nn.Parameter(torch.randn(2, H))
        self.bz, self.bh = nn.Parameter(torch.zeros(1, H)), nn.Parameter(torch.zeros(1, H))
        self.zeta, self.nu = nn.Parameter(torch.ones(1, 1)), nn.Parameter(-4 * torch.ones(1, 1))

    def forward(self, x, h):
        pre = torch.matmul(torch.matmul(x, self.w1), self.w2) + torch.matmul(
            torch.matmul(h, self.u1), self.u2
        )
        z, c = torch.sigmoid(pre + self.bz), torch.tanh(pre + self.bh)
        h = z * h + (torch.sigmoid(self.zeta) * (1.0 - z) + torch.sigmoid(self.nu)) * c
        return h, h


@ZOO.cell(F_IN, [H, H])
class CoRNN(nn.Module):
    """Rusch and Mishra (2021): coupled oscillators."""

    def __init__(self):
        super().__init__()
        self.i2h, self.h2h = nn.Linear(F_IN, H), nn.Linear(2 * H, H, bias=False)
        self.dt, self.gamma, self.eps = 0.1, 1.2, 0.9

    def forward(self, x, state):
        y, z = state
        z = z + self.dt * (
            torch.tanh(self.h2h(torch.cat((z, y), 1)) + self.i2h(x)) - self.gamma * y - self.eps * z
        )
        y = y + self.dt * z
        return y, (y, z)


@ZOO.cell(F_IN, [H])
class LipschitzRNN(nn.Module):
    """Erichson et al. (2021): a skew-symmetric part and a damped part, made anew from weights in the step."""

    def __init__(self):
        super().__init__()
        self.b, self.d = nn.Parameter(torch.randn(H, H) / 4), nn.Parameter(torch.randn(H, H) / 4)
        self.w = nn.Linear(F_IN, H)

    def forward(self, x, h):
        beta, eye = 0.7, torch.eye(H, dtype=x.dtype)
        a = (1 - beta) * (self.b + self.b.T) + beta * (self.b - self.b.T) - 0.01 * eye
        w = (1 - beta) * (self.d + self.d.T) + beta * (self.d - self.d.T) - 0.01 * eye
        h = h + 0.1 * (h @ a + torch.tanh(h @ w + self.w(x)))
        return h, h


@ZOO.cell(F_IN, [H, H])
class Mogrifier(nn.Module):
    """Melis et al. (2020): x and h gate each other before the LSTM."""

    def __init__(self):
        super().__init__()
        self.q, self.r = nn.Linear(H, F_IN), nn.Linear(F_IN, H)
        self.cell = nn.LSTMCell(F_IN, H)

    def forward(self, x, state):
        h, c = state
        for turn in range(4):
            if turn % 2 == 0:
                x = 2 * torch.sigmoid(self.q(h)) * x
            else:
                h = 2 * torch.sigmoid(self.r(x)) * h
        h, c = self.cell(x, (h, c))
        return h, (h, c)


@ZOO.cell(F_IN, [H])
class RecurrentHighway(nn.Module):
    """Zilly et al. (2017), three layers deep in a step."""

    def __init__(self):
        super().__init__()
        self.x = nn.Linear(F_IN, 2 * H)
        self.layers = nn.ModuleList(nn.Linear(H, 2 * H) for _ in range(3))

    def forward(self, x, s):
        for depth, layer in enumerate(self.layers):
            pre = layer(s) + (self.x(x) if depth == 0 else 0)
            a, t = pre.tensor_split(2, dim=-1)
            t = t.sigmoid()
            s = torch.lerp(s, a.tanh(), t)
        return s, s


@ZOO.cell(2 * F_IN, [H, F_IN])
class GRUD(nn.Module):
    """Che et al. (2018): values, a mask of what is missing, decay towards the mean."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2 * F_IN, H)
        self.decay_x, self.decay_h = nn.Parameter(torch.rand(F_IN)), nn.Linear(F_IN, H)
        self.register_buffer("mean", torch.randn(F_IN))

    def forward(self, x, state):
        h, last = state
        value, mask = x[:, :F_IN], (x[:, F_IN:] > 0).to(x.dtype)
        gamma = torch.exp(-F.relu(self.decay_x))
        filled = mask * value + (1 - mask) * (gamma * last + (1 - gamma) * self.mean)
        last = torch.where(mask.bool(), value, last)
        h = self.cell(torch.hstack([filled, mask]), h * torch.exp(-F.relu(self.decay_h(1 - mask))))
        return h, (h, last)


@ZOO.cell(F_IN, [H])
class GRUODE(nn.Module):
    """De Brouwer et al. (2019): Runge-Kutta steps of a GRU flow, then an update."""

    def __init__(self):
        super().__init__()
        self.flow = nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, H))
        self.cell = nn.GRUCell(F_IN, H)

    def forward(self, x, h):
        dt = F.softplus(x[..., -1:])
        k1 = self.flow(h)
        k2 = self.flow(h + dt / 2 * k1)
        k3 = self.flow(h + dt / 2 * k2)
        k4 = self.flow(h + dt * k3)
        h = h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        h = self.cell(x, h)
        return h, h


@ZOO.cell(F_IN, [H, H])
class RSSM(nn.Module):
    """Hafner et al., "Dreamer" (2020): deterministic and stochastic state; noise comes with x."""

    def __init__(self):
        super().__init__()
        self.pre = nn.Sequential(nn.Linear(H + 1, H), nn.ELU())
        self.gru = nn.GRUCell(H, H)
        self.post = nn.Linear(H + F_IN, 2 * H)
        self.prior = nn.Linear(H, 2 * H)

    def forward(self, x, state):
        deter, stoch = state
        deter = self.gru(self.pre(torch.cat([stoch, x[:, :1]], -1)), deter)
        mean, std = torch.chunk(self.post(torch.cat([deter, x], -1)), 2, -1)
        std = 2 * torch.sigmoid(std / 2) + 0.1
        stoch = mean + std * torch.sin(100 * x[:, 1:2])
        p_mean, p_std = self.prior(deter).chunk(2, -1)
        p_std = F.softplus(p_std) + 0.1
        ratio = (std / p_std).pow(2)
        kl = 0.5 * (ratio + ((mean - p_mean) / p_std).square() - 1 - ratio.log()).sum(-1, keepdim=True)
        return (stoch, kl), (deter, stoch)


@ZOO.cell(F_IN, [H])
class MixtureOfExperts(nn.Module):
    """Four expert cells, of which the two best of a router are used."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(F_IN + H, 4)
        self.experts = nn.ModuleList(nn.Linear(F_IN + H, H) for _ in range(4))

    def forward(self, x, h):
        z = torch.cat([x, h], -1)
        scores = self.router(z)
        top, index = scores.topk(2, dim=-1)
        weight = torch.zeros_like(scores).scatter(-1, index, top.softmax(-1))
        h = sum(weight[:, i : i + 1] * torch.tanh(e(z)) for i, e in enumerate(self.experts))
        return h, h


@ZOO.cell(F_IN, [H, H])
class StackRNN(nn.Module):
    """Joulin and Mikolov (2015): a continuous stack of 8 cells with push, pop and no-op."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.p = nn.Linear(F_IN, H), nn.Linear(H, H), nn.Linear(3, H)
        self.action, self.d = nn.Linear(H, 3), nn.Linear(H, 1)

    def forward(self, x, state):
        h, stack = state
        h = torch.sigmoid(self.w(x) + self.u(h) + self.p(stack[:, :3]))
        push, pop, keep = F.softmax(self.action(h), -1).unbind(-1)
        down = torch.cat([torch.sigmoid(self.d(h)), stack[:, :-1]], 1)
        up = F.pad(stack[:, 1:], (0, 1))
        stack = push[:, None] * down + pop[:, None] * up + keep[:, None] * stack
        return h, (h, stack)


@ZOO.cell(F_IN, [H, H])
class UGRNN(nn.Module):
    """Collins et al. (2017) beside an exponential average of what it sees (SCRN, Mikolov 2014)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(F_IN + H, 2 * H), nn.Linear(F_IN, H, bias=False)
        self.alpha = 0.95

    def forward(self, x, state):
        h, s = state
        c, g = torch.split(self.a(torch.cat((x, h), dim=1)), [H, H], dim=1)
        g = torch.sigmoid(g + 1.0)
        s = (1 - self.alpha) * self.b(x) + self.alpha * s
        h = g * h + (1 - g) * torch.tanh(c + s)
        return h, (h, s)


@ZOO.cell(F_IN, [H])
class BistableCell(nn.Module):
    """Vecoven et al. (2021): a GRU whose units may have two stable states."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(F_IN, 3 * H)
        self.ua, self.uc = nn.Parameter(torch.randn(H)), nn.Parameter(torch.randn(H))

    def forward(self, x, h):
        u, wa, wc = self.w(x).chunk(3, 1)
        a = 1 + torch.tanh(wa + self.ua * h)
        c = torch.sigmoid(wc + self.uc * h)
        h = c * h + (1 - c) * torch.tanh(u + a * h)
        return h, h


@ZOO.cell(F_IN, [H])
class GroupNormGRU(nn.Module):
    """Gates through group normalisation, and batch normalisation of x in its eval mode."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(F_IN).eval()
        self.w, self.u = nn.Linear(F_IN, 2 * H), nn.Linear(H, 2 * H, bias=False)
        self.norm = nn.GroupNorm(4, 2 * H)

    def forward(self, x, h):
        z, n = self.norm(self.w(self.bn(x)) + self.u(h)).chunk(2, 1)
        h = torch.lerp(h, torch.tanh(n), torch.sigmoid(z))
        return h, h


@ZOO.cell(1, [H, 1], ints=10)
class CharLevel(nn.Module):
    """Embedding of a symbol, and of the symbol before by a lookup; argmax of the state comes out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, F_IN)
        self.cell = nn.GRUCell(2 * F_IN, H)
        self.bias = nn.Parameter(torch.randn(10))

    def forward(self, x, state):
        h, last = state
        token = x[:, 0]
        before = last[:, 0].round().long().clamp(0, 9)
        both = torch.cat([self.table(token), self.table.weight[before]], -1)
        h = self.cell(both, h)
        one_hot = F.one_hot(token, 10).to(h.dtype)
        return (h, (one_hot * self.bias).sum(-1)), (h, token[:, None].to(h.dtype))
