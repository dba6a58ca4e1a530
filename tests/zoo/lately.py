"""Cells as they are written today that gate, sample, wire, halt and remember."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, HEADS, N = 6, 8, 2, 4


@ZOO.cell(D, [H, H, H, H, (3, D)])
class BlockSLSTM(nn.Module):
    """Beck et al. (2024): a convolution, recurrent heads, the stabiliser, a norm of heads."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, 4, groups=D)
        self.i, self.f, self.z, self.o = (nn.Linear(D, H) for _ in range(4))
        self.recurrent = nn.Parameter(torch.randn(HEADS, H // HEADS, 4, H // HEADS) / 3)
        self.norm, self.up = nn.GroupNorm(HEADS, H), nn.Linear(H, D)

    def forward(self, x, state):
        h, c, n, m, past = state
        window = torch.cat([past, x.unsqueeze(1)], dim=1)
        u = F.silu(self.conv(window.mT)).squeeze(-1)
        r = torch.einsum("bhd,hdge->bghe", h.view(-1, HEADS, H // HEADS), self.recurrent).flatten(2)
        i, f, z, o = (
            t + part
            for t, part in zip((self.i(u), self.f(u), self.z(x), self.o(x)), r.unbind(1), strict=True)
        )
        log_f = m + F.logsigmoid(f)
        m_new = torch.where((n == 0.0).all(-1, keepdim=True), i, torch.maximum(i, log_f))
        i, f = torch.minimum(torch.exp(i - m_new), torch.ones_like(i)), torch.exp(log_f - m_new)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / torch.clamp(n, min=1e-6)
        return x + self.up(self.norm(h)), (h, c, n, m_new, window[:, 1:])


@ZOO.cell(D, [(2, H)])
class OnePassSLSTM(nn.Module):
    """A cell whose parts are kept in one tensor, picked by place and put back."""

    def __init__(self):
        super().__init__()
        self.w, self.r = nn.Linear(D, 3 * H), nn.Linear(H, 3 * H, bias=False)

    def forward(self, x, state):
        h, c = state[:, 0], state[:, 1]
        i, f, z = (self.w(x) + self.r(h)).tensor_split(3, dim=-1)
        new = state.clone()
        new[:, 1] = torch.sigmoid(f) * c + (1 - torch.sigmoid(f)) * torch.tanh(z)
        new[:, 0] = torch.sigmoid(i) * torch.tanh(new[:, 1])
        return new[:, 0], new


@ZOO.cell(D + 1, [H])
class WiredCfC(nn.Module):
    """Hasani et al. (2022) and Lechner et al. (2020): closed form in time, layers wired by sparse masks."""

    def __init__(self):
        super().__init__()
        self.sizes, layers = [4, 3, 1], []
        torch.manual_seed(1)
        for n, before in zip(self.sizes, [D, 4, 3], strict=True):
            layer = nn.ModuleDict({k: nn.Linear(before + n, n) for k in ("ff1", "ff2", "a", "b")})
            layer.register_buffer("mask", (torch.rand(n, before + n) > 0.4).float())
            layers.append(layer)
        self.layers = nn.ModuleList(layers)

    def forward(self, x, h):
        x, ts = x[:, :-1], x[:, -1:].abs()
        new = []
        for part, layer in zip(torch.split(h, self.sizes, dim=1), self.layers, strict=True):
            joined = torch.cat([x, part], 1)
            mask = layer.mask.to(x.dtype)
            ff1 = torch.tanh(F.linear(joined, layer["ff1"].weight * mask, layer["ff1"].bias))
            ff2 = torch.tanh(F.linear(joined, layer["ff2"].weight * mask, layer["ff2"].bias))
            t = torch.sigmoid(-layer["a"](joined) * ts + layer["b"](joined))
            x = ff1 * (1.0 - t) + t * ff2
            new.append(x)
        return x, torch.cat(new, dim=1)


@ZOO.cell(D + 1, [H])
class RungeKutta(nn.Module):
    """Rubanova et al. (2019), ODE-RNN: four slopes between observations, then a GRU."""

    def __init__(self):
        super().__init__()
        self.f, self.cell = nn.Sequential(nn.Linear(H, 12), nn.Tanh(), nn.Linear(12, H)), nn.GRUCell(D, H)

    def odeint(self, f, y, t):
        dt = t / 3
        for _ in range(3):
            k1 = f(y)
            k2 = f(y + dt * k1 / 3)
            k3 = f(y + dt * (k2 - k1 / 3))
            k4 = f(y + dt * (k1 - k2 + k3))
            y = y + (k1 + 3 * (k2 + k3) + k4) * dt * 0.125
        return y

    def forward(self, x, h):
        h = self.odeint(lambda y: self.f(y), h, x[:, -1:].abs())
        h = self.cell(x[:, :-1], h)
        return h, h


@ZOO.cell(D, [H, D])
class NeuralCDE(nn.Module):
    """Kidger et al. (2020): a matrix of the state drives it by what x moved."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(H, 12), nn.ReLU(), nn.Linear(12, H * D), nn.Tanh())

    def forward(self, x, state):
        z, last = state
        dx = (x - last)[..., None]
        half = z + 0.5 * (self.f(z).view(*z.shape, -1) @ dx).squeeze(-1)
        z = z + (self.f(half).view(*z.shape, -1) @ dx).squeeze(-1)
        return z, (z, x)


@ZOO.cell(D, [H, 4])
class HyperNetwork(nn.Module):
    """Ha et al. (2017), the weights whole: a matrix for each sequence at each step."""

    def __init__(self):
        super().__init__()
        self.small = nn.GRUCell(D, 4)
        self.weights, self.bias = nn.Linear(4, H * (D + H)), nn.Linear(4, H)

    def forward(self, x, state):
        h, z = state
        z = self.small(x, z)
        w = self.weights(z).reshape(-1, H, D + H) / math.sqrt(D + H)
        h = torch.tanh(torch.baddbmm(self.bias(z)[..., None], w, torch.cat([x, h], -1)[..., None])[..., 0])
        return h, (h, z)


@ZOO.cell(D, [D])
class Mixtral(nn.Module):
    """Jiang et al. (2024): each expert is given the rows that chose it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, N, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(D, H), nn.SiLU(), nn.Linear(H, D)) for _ in range(N)]
        )

    def forward(self, x, h):
        x = torch.tanh(x + h)
        weights = F.softmax(self.gate(x), dim=1)
        weights, chosen = torch.topk(weights, 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=N).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, row = torch.where(mask[number])
            out.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        return out, out


@ZOO.cell(D, [D])
class DenseMixture(nn.Module):
    """The same by stacked weights and picks of a table."""

    def __init__(self):
        super().__init__()
        self.gate, self.w1 = nn.Linear(D, N), nn.Parameter(torch.randn(N, D, H) / 3)
        self.w2 = nn.Parameter(torch.randn(N, H, D) / 3)

    def forward(self, x, h):
        x = x + h
        weights, chosen = self.gate(x).topk(2, -1)
        hidden = F.silu(torch.einsum("bd,bkdh->bkh", x, self.w1[chosen]))
        out = torch.einsum("bkh,bkhd->bkd", hidden, self.w2[chosen])
        h = torch.tanh((out * weights.softmax(-1)[..., None]).sum(1))
        return h, h


@ZOO.cell(D, [H])
class ACT(nn.Module):
    """Graves (2016): pondering until each row has had enough."""

    def __init__(self):
        super().__init__()
        self.cell, self.halt = nn.GRUCell(D + 1, H), nn.Linear(H, 1)

    def forward(self, x, h):
        halted = torch.zeros_like(h[:, :1])
        out, n = torch.zeros_like(h), 0
        while (running := halted < 0.99).any() and n < 4:
            h = torch.where(
                running, self.cell(torch.cat([x, torch.full_like(halted, float(n == 0))], 1), h), h
            )
            p = torch.sigmoid(self.halt(h))
            p = torch.where((halted + p > 0.99) | (n == 3), 1 - halted, p)
            out, halted = torch.where(running, out + p * h, out), torch.where(running, halted + p, halted)
            n += 1
        return out, out


@ZOO.cell(D, [H], noise=True)
class VRNN(nn.Module):
    """Chung et al. (2015): a latent with noise, and the divergence of what it was expected to be."""

    def __init__(self):
        super().__init__()
        self.prior, self.posterior = nn.Linear(H, 2 * N), nn.Linear(H + D, 2 * N)
        self.decode, self.cell = nn.Linear(N + H, D), nn.GRUCell(D + N, H)

    def forward(self, x, h):
        mean, spread = self.prior(h).chunk(2, -1)
        p = torch.distributions.Normal(mean, F.softplus(spread) + 0.1)
        mean, spread = self.posterior(torch.cat([x, h], -1)).chunk(2, -1)
        q = torch.distributions.Normal(mean, F.softplus(spread) + 0.1)
        z = q.rsample()
        kl = torch.distributions.kl_divergence(q, p).sum(-1)
        guess = self.decode(torch.cat([z, h], -1))
        h = self.cell(torch.cat([x, z], -1), h)
        return (guess, kl), h


@ZOO.cell(D, [H, (3, 4)], noise=True)
class DreamerV3(nn.Module):
    """Hafner et al. (2023): a categorical latent, straight through; a GRU of blocks."""

    def __init__(self):
        super().__init__()
        self.inp, self.norm = nn.Linear(12 + D, H, bias=False), nn.LayerNorm(H, eps=1e-3)
        self.hidden, self.gru_norm = (
            nn.Parameter(torch.randn(2, 4 + H // 2, 12) / 3),
            nn.LayerNorm(3 * H, eps=1e-3),
        )
        self.prior, self.posterior = nn.Linear(H, 12), nn.Linear(H + D, 12)

    def latent(self, logits):
        logits = logits.view(-1, 3, 4)
        probs = 0.99 * logits.softmax(-1) + 0.01 / 4
        return torch.distributions.Independent(torch.distributions.OneHotCategoricalStraightThrough(probs), 1)

    def forward(self, x, state):
        deter, stoch = state
        x = torch.sign(x) * torch.log(x.abs() + 1)
        u = F.silu(self.norm(self.inp(torch.cat([stoch.flatten(1), x], -1))))
        blocks = torch.cat([deter.view(-1, 2, H // 2), u.view(-1, 2, H // 2)], -1)
        parts = self.gru_norm(torch.einsum("bgi,gio->bgo", blocks, self.hidden).flatten(1))
        reset, cand, update = parts.chunk(3, -1)
        update = torch.sigmoid(update - 1)
        deter = update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * deter
        post, prior = self.latent(self.posterior(torch.cat([deter, x], -1))), self.latent(self.prior(deter))
        stoch = post.rsample()
        kl = torch.distributions.kl_divergence(post, prior).clamp(min=1.0)
        return (deter, kl), (deter, stoch)


@ZOO.cell(D, [(5, H), (5, 1)], noise=True)
class ParticleFilter(nn.Module):
    """Ma et al., "PF-RNN" (2020): particles with weights, sampled anew by soft resampling."""

    def __init__(self):
        super().__init__()
        self.cell, self.noise, self.score = nn.GRUCell(D + H, H), nn.Linear(H + D, H), nn.Linear(H + D, 1)

    def forward(self, x, state):
        h, p = state
        b, k = h.shape[:2]
        xs = x[:, None].expand(-1, k, -1)
        both = torch.cat([h, xs], -1)
        std = F.softplus(self.noise(both))
        z = torch.randn_like(std) * std
        h = self.cell(torch.cat([xs, z], -1).flatten(0, 1), h.flatten(0, 1)).view(b, k, H)
        p = F.log_softmax(p + self.score(torch.cat([h, xs], -1)), dim=1)
        q = 0.5 * p.exp().squeeze(-1) + 0.5 / k
        index = torch.multinomial(q, k, replacement=True)
        h = torch.gather(h, 1, index[..., None].expand(-1, -1, H))
        p = torch.gather(p, 1, index[..., None]) - torch.gather(q, 1, index).log()[..., None]
        p = p - p.logsumexp(1, keepdim=True)
        return (p.exp() * h).sum(1), (h, p)


@ZOO.cell(D, [16])
class EchoState(nn.Module):
    """Jaeger (2001): a sparse reservoir that leaks, and is never trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        w = torch.randn(16, 16) * (torch.rand(16, 16) < 0.2)
        self.register_buffer("w", 0.9 * w / torch.linalg.eigvals(w).abs().max().clamp(min=0.1))
        self.register_buffer("w_in", torch.rand(16, D) - 0.5)
        self.leak, self.read = 0.3, nn.Linear(16 + D, D)

    def forward(self, x, h):
        with torch.no_grad():
            h = (1 - self.leak) * h + self.leak * torch.tanh(F.linear(x, self.w_in) + F.linear(h, self.w))
        return self.read(torch.cat([h, x], -1)), h


class ATan(torch.autograd.Function):
    """Fang et al. (2021): a spike, and the gradient of an arcus tangens."""

    @staticmethod
    def forward(ctx, u, alpha):
        ctx.save_for_backward(u)
        ctx.alpha = alpha
        return (u > 0).float().to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * u).pow(2)) * grad, None


def atan(alpha=2.0):
    """A surrogate, as snntorch makes one."""

    def inner(u):
        return ATan.apply(u, alpha)

    return inner


@ZOO.cell(D, [H, H, H])
class RefractorySpikes(nn.Module):
    """Neurons that rest after a spike for some steps; a learnt decay; reset without a gradient."""

    def __init__(self):
        super().__init__()
        self.fc, self.back = nn.Linear(D, H), nn.Linear(H, H, bias=False)
        self.beta, self.spike = nn.Parameter(torch.full((H,), 0.9)), atan()

    def forward(self, x, state):
        mem, spikes, rest = state
        rest = (rest - 1).clamp_min(0)
        mem = self.beta.clamp(0, 1) * mem + self.fc(x) + self.back(spikes) - spikes.detach()
        spikes = self.spike(mem - 1.0) * (rest <= 0)
        rest = torch.where(spikes.detach() > 0, torch.full_like(rest, 3.0), rest)
        return spikes, (mem, spikes, rest)


@ZOO.cell(D, [H, 1, 1])
class SkipRNN(nn.Module):
    """Campos et al. (2018): a binary gate, rounded straight through, copies the state."""

    def __init__(self):
        super().__init__()
        self.cell, self.update = nn.GRUCell(D, H), nn.Linear(H, 1)

    def forward(self, x, state):
        h, u, delta = state
        gate = (torch.round(u) - u).detach() + u
        new = gate * self.cell(x, h) + (1 - gate) * h
        delta = gate * torch.sigmoid(self.update(new)) + (1 - gate) * delta
        u = gate * delta + (1 - gate) * (u + torch.min(delta, 1.0 - u))
        return (new, gate), (new, u, delta)


@ZOO.cell(D, [H, H])
class LEM(nn.Module):
    """Rusch et al. (2022): two times of its own for each unit."""

    def __init__(self):
        super().__init__()
        self.x, self.h, self.z, self.dt = nn.Linear(D, 4 * H), nn.Linear(H, 3 * H), nn.Linear(H, H), 0.7

    def forward(self, x, state):
        y, z = state
        i1, i2, iz, iy = self.x(x).chunk(4, 1)
        h1, h2, h3 = self.h(y).chunk(3, 1)
        ms, ms2 = self.dt * torch.sigmoid(i1 + h1), self.dt * torch.sigmoid(i2 + h2)
        z = (1.0 - ms) * z + ms * torch.tanh(iy + h3)
        y = (1.0 - ms2) * y + ms2 * torch.tanh(self.z(z) + iz)
        return y, (y, z)


@ZOO.cell(H, [H, H])
class UnICORNN(nn.Module):
    """Rusch and Mishra (2021): independent undamped oscillators."""

    def __init__(self):
        super().__init__()
        self.w, self.c = nn.Parameter(torch.rand(H)), nn.Parameter(torch.randn(H))
        self.x, self.dt, self.alpha = nn.Linear(H, H), 0.1, 1.0

    def forward(self, x, state):
        y, z = state
        rate = self.dt * (0.5 + 0.5 * torch.tanh(self.c / 2))
        z = z - rate * (torch.tanh(self.w * y + self.x(x)) + self.alpha * y)
        y = y + rate * z
        return y, (y, z)


@ZOO.cell(D, [H])
class Antisymmetric(nn.Module):
    """Chang et al. (2019): a matrix that neither grows nor shrinks, with diffusion, and a gate of it."""

    def __init__(self):
        super().__init__()
        self.w, self.v, self.vz = nn.Parameter(torch.randn(H, H) / 3), nn.Linear(D, H), nn.Linear(D, H)
        self.register_buffer("eye", torch.eye(H))

    def forward(self, x, h):
        a = torch.triu(self.w, 1)
        turned = h @ (a - a.T - 0.01 * self.eye.to(h.dtype)).T
        h = h + 0.1 * torch.sigmoid(turned + self.vz(x)) * torch.tanh(turned + self.v(x))
        return h, h


@ZOO.cell(D, [H])
class Orthogonal(nn.Module):
    """Lezcano-Casado (2019): torch's own parametrization of an orthogonal matrix, modrelu."""

    def __init__(self):
        super().__init__()
        linear = nn.Linear(H, H, bias=False)
        self.turn = nn.utils.parametrizations.orthogonal(linear, orthogonal_map="cayley")
        self.x, self.b = nn.Linear(D, H), nn.Parameter(torch.zeros(H))

    def forward(self, x, h):
        z = self.x(x) + self.turn(h)
        h = torch.sign(z) * F.relu(z.abs() + self.b)
        return h, h


@ZOO.cell(D, [H, H], noise=True)
class Zoneout(nn.Module):
    """Krueger et al. (2017): units that keep their state, drawn anew for each; recurrent dropout."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(D, 4 * H), nn.Parameter(torch.randn(4 * H, H) / 3)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.w(x) + F.linear(h, self.u)).chunk(4, -1)
        new_c = f.sigmoid() * c + i.sigmoid() * F.dropout(g.tanh(), 0.2, self.training)
        keep = torch.bernoulli(torch.full_like(c, 0.1)) if self.training else 0.1
        c = keep * c + (1 - keep) * new_c
        h = o.sigmoid() * c.tanh()
        return h, (h, c)


@ZOO.cell(D, [H, D])
class QRNN(nn.Module):
    """Bradbury et al. (2017): windows of two inputs, gates without the state."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, 3 * H, 2)

    def forward(self, x, state):
        c, last = state
        z, f, o = self.conv(torch.stack([last, x], -1)).squeeze(-1).chunk(3, 1)
        f = f.sigmoid()
        c = f * c + (1 - f) * z.tanh()
        return o.sigmoid() * c, (c, x)


@ZOO.cell(D, [D])
class SRU(nn.Module):
    """Lei et al. (2018): light recurrence and a highway."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Linear(D, 3 * D, bias=False), nn.Parameter(torch.randn(2, D))
        self.b, self.alpha = nn.Parameter(torch.zeros(2, D)), math.sqrt(3)

    def forward(self, x, c):
        u0, u1, u2 = torch.chunk(self.w(x), 3, dim=-1)
        f = torch.sigmoid(u1 + self.v[0] * c + self.b[0])
        r = torch.sigmoid(u2 + self.v[1] * c + self.b[1])
        c = u0 + (c - u0) * f
        return (c - x * self.alpha) * r + x * self.alpha, c


@ZOO.cell(D, [(N, H), 1])
class FRU(nn.Module):
    """Zhang et al. (2018): sums of the past by frequencies, and a clock among the states."""

    def __init__(self):
        super().__init__()
        self.down, self.up, self.x = nn.Linear(N * H, N), nn.Linear(N, H), nn.Linear(D, N)
        self.register_buffer("freq", torch.tensor([0.5, 1.0, 2.0, 4.0]))
        self.register_buffer("phase", torch.linspace(0, math.pi, N))

    def forward(self, x, state):
        u, t = state
        g = F.relu(self.up(F.relu(self.down(u.flatten(1)) + self.x(x))))
        wave = torch.cos(2 * math.pi * self.freq * t / 256 + self.phase)
        u = u + wave[:, :, None] * g[:, None, :] / 256
        return u.mean(1), (u, t + 1)
