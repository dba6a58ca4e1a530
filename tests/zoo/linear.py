"""Cells of linear attention and state spaces of 2023 to 2025: matrices that rules of learning change."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, HEADS, K, V, N = 8, 2, 4, 4, 4


class RMSNorm(nn.Module):
    """Zhang and Sennrich (2019), as models of language have it: computed in float32 at the least."""

    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


@ZOO.cell(D, [D, (HEADS, V, K)])
class RWKV7(nn.Module):
    """Peng et al., "Goose" (2025): a generalised delta rule, rates and decays of low rank, token shift."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(6, D))
        self.r, self.k, self.v = (nn.Linear(D, HEADS * K, bias=False) for _ in range(3))
        self.w1, self.w2 = nn.Parameter(torch.randn(D, 3) / 4), nn.Parameter(torch.randn(3, HEADS * K) / 4)
        self.a1, self.a2 = nn.Parameter(torch.randn(D, 3) / 4), nn.Parameter(torch.randn(3, HEADS * K) / 4)
        self.g1, self.g2 = nn.Parameter(torch.randn(D, 3) / 4), nn.Parameter(torch.randn(3, HEADS * V) / 4)
        self.w0, self.a0 = nn.Parameter(torch.zeros(HEADS * K)), nn.Parameter(torch.zeros(HEADS * K))
        self.k_k, self.k_a = nn.Parameter(torch.ones(HEADS * K)), nn.Parameter(torch.ones(HEADS * K))
        self.r_k = nn.Parameter(torch.randn(HEADS, K) / 4)
        self.norm, self.out = nn.GroupNorm(HEADS, HEADS * V, eps=64e-5), nn.Linear(HEADS * V, D, bias=False)

    def forward(self, x, state):
        last, s = state
        b, shift = x.shape[0], last - x
        xr, xw, xk, xv, xa, xg = (x + shift * m for m in self.mix)
        r, k, v = self.r(xr), self.k(xk), self.v(xv)
        w = torch.exp(-0.606531 * torch.sigmoid(self.w0 + torch.tanh(xw @ self.w1) @ self.w2))
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)
        g = torch.sigmoid(xg @ self.g1) @ self.g2
        kk = F.normalize((k * self.k_k).view(b, HEADS, K), dim=-1, p=2.0)
        k = k * (1 + (a - 1) * self.k_a)
        r, w, k, a = (t.view(b, HEADS, K) for t in (r, w, k, a))
        v = v.view(b, HEADS, V)
        s = (
            s * w[:, :, None, :]
            + s @ (-kk[..., None]) @ (kk * a)[:, :, None, :]
            + v[..., None] @ k[:, :, None, :]
        )
        y = (s @ r[..., None]).view(b, HEADS * V)
        y = self.norm(y) + ((r * k * self.r_k).sum(-1, keepdim=True) * v).view(b, HEADS * V)
        return self.out(y * g), (x, s)


@ZOO.cell(D, [(HEADS, K, V)])
class HGRN2(nn.Module):
    """Qin et al. (2024): forget gates above a bound are the keys of an outer product."""

    def __init__(self):
        super().__init__()
        self.q, self.f, self.i = (nn.Linear(D, HEADS * K, bias=False) for _ in range(3))
        self.bound, self.norm = nn.Parameter(torch.zeros(HEADS * K)), RMSNorm(HEADS * V)
        self.out = nn.Linear(HEADS * V, D, bias=False)

    def forward(self, x, s):
        q, f, i = F.silu(self.q(x)), self.f(x), self.i(x)
        low = torch.sigmoid(self.bound)
        g = low + (1 - low) * torch.sigmoid(f)
        q, k, g, v = (t.unflatten(-1, (HEADS, -1)) for t in (q, 1 - g, g, i))
        s = s * g[..., None] + k[..., None] * v[..., None, :]
        return self.out(self.norm(torch.einsum("bhk,bhkv->bhv", q, s).flatten(1))), s


@ZOO.cell(D, [(D, N)])
class Longhorn(nn.Module):
    """Liu et al. (2024): a state space as the closed form of online learning."""

    def __init__(self):
        super().__init__()
        self.proj, self.dt = nn.Linear(D, 2 * N + 2), nn.Linear(2, D)

    def forward(self, x, s):
        dt, q, k = torch.split(self.proj(x), [2, N, N], dim=-1)
        dt = torch.sigmoid(self.dt(dt))
        dt = dt / (1 + dt * k.square().sum(dim=-1, keepdim=True))
        s = (1 - torch.einsum("bd,bn->bdn", dt, k.pow(2))) * s + torch.einsum("bd,bn->bdn", dt * x, k)
        return torch.einsum("bdn,bn->bd", s, q), s


@ZOO.cell(D, [(D, 3), D])
class Griffin(nn.Module):
    """De et al. (2024): a block of a short causal convolution and the RG-LRU, gated by gelu."""

    def __init__(self):
        super().__init__()
        self.norm, self.y, self.x = RMSNorm(D), nn.Linear(D, D), nn.Linear(D, D)
        self.conv, self.bias = nn.Parameter(torch.randn(D, 4) / 2), nn.Parameter(torch.zeros(D))
        self.gates, self.gates_bias = (
            nn.Parameter(torch.randn(2, HEADS, 4, 4) / 2),
            nn.Parameter(torch.zeros(2, D)),
        )
        self.a, self.out = nn.Parameter(torch.rand(D)), nn.Linear(D, D)

    def forward(self, x, state):
        past, h = state
        u = self.norm(x)
        y, u = F.gelu(self.y(u), approximate="tanh"), self.x(u)
        window = torch.cat([past, u[..., None]], dim=-1)
        u = (window * self.conv).sum(-1) + self.bias
        heads = u.view(-1, HEADS, 4)
        r, i = (
            torch.einsum("bhi,ghij->gbhj", heads, self.gates).flatten(2) + self.gates_bias[:, None]
        ).sigmoid()
        log_a = -8.0 * r * F.softplus(self.a)
        a = torch.exp(log_a)
        h = a * h + torch.sqrt(-torch.expm1(2 * log_a)) * (i * u)
        return x + self.out(h * y), (window[..., 1:], h)


@ZOO.cell(D, [(3, 2 * HEADS * K + HEADS * V), (HEADS, K, V)])
class GatedDeltaBlock(nn.Module):
    """Yang et al. (2025), as Qwen3-Next has it: short convolutions, l2-normed keys, a gated norm."""

    def __init__(self):
        super().__init__()
        self.qkv, self.z = (
            nn.Linear(D, 2 * HEADS * K + HEADS * V, bias=False),
            nn.Linear(D, HEADS * V, bias=False),
        )
        self.ba, self.norm = nn.Linear(D, 2 * HEADS, bias=False), RMSNorm(V)
        self.conv = nn.Parameter(torch.randn(2 * HEADS * K + HEADS * V, 1, 4) / 2)
        self.a_log, self.dt = nn.Parameter(torch.zeros(HEADS)), nn.Parameter(torch.ones(HEADS))
        self.out = nn.Linear(HEADS * V, D, bias=False)

    def forward(self, x, state):
        past, s = state
        window = torch.cat([past, self.qkv(x)[:, None]], 1)
        mixed = F.silu(F.conv1d(window.transpose(1, 2), self.conv, groups=self.conv.shape[0])[..., 0])
        q, k, v = (t.reshape(len(x), HEADS, -1) for t in mixed.split([HEADS * K, HEADS * K, HEADS * V], -1))
        q = q * torch.rsqrt((q * q).sum(dim=-1, keepdim=True) + 1e-6) * K**-0.5
        k = k * torch.rsqrt((k * k).sum(dim=-1, keepdim=True) + 1e-6)
        b, a = self.ba(x).chunk(2, -1)
        g = (-self.a_log.exp() * F.softplus(a + self.dt)).exp()[..., None, None]
        s = s * g
        read = (s * k.unsqueeze(-1)).sum(dim=-2)
        s = s + k.unsqueeze(-1) * ((v - read) * b.sigmoid().unsqueeze(-1)).unsqueeze(-2)
        y = (s * q.unsqueeze(-1)).sum(dim=-2)
        y = self.norm(y) * F.silu(self.z(x).view(-1, HEADS, V))
        return self.out(y.flatten(1)), (window[:, 1:], s)


@ZOO.cell(D, [(HEADS, K, V)])
class DeltaProduct(nn.Module):
    """Siems et al. (2025): several Householder steps for each input."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(D, HEADS * K),
            nn.Linear(D, 2 * HEADS * K),
            nn.Linear(D, 2 * HEADS * V),
        )
        self.beta, self.g = nn.Linear(D, 2 * HEADS), nn.Linear(D, HEADS)

    def forward(self, x, s):
        q = F.normalize(self.q(x).view(-1, HEADS, K), dim=-1)
        k = F.normalize(F.silu(self.k(x)).view(-1, 2, HEADS, K), dim=-1)
        v, beta = F.silu(self.v(x)).view(-1, 2, HEADS, V), 2 * self.beta(x).view(-1, 2, HEADS, 1).sigmoid()
        s = s * F.logsigmoid(self.g(x)).exp()[..., None, None]
        for i in range(2):
            error = v[:, i] - torch.einsum("bhk,bhkv->bhv", k[:, i], s)
            s = s + torch.einsum("bhk,bhv->bhkv", k[:, i], beta[:, i] * error)
        return torch.einsum("bhk,bhkv->bhv", q, s).flatten(1), s


@ZOO.cell(D, [(HEADS, N, K), (HEADS, N, V)])
class GatedSlotAttention(nn.Module):
    """Zhang et al. (2024): a softmax over slots that are written with gates."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(D, HEADS * K), nn.Linear(D, HEADS * K)
        self.v, self.f = nn.Linear(D, HEADS * V), nn.Linear(D, HEADS * N)

    def forward(self, x, state):
        sk, sv = state
        q, k, v, f = (m(x).view(-1, HEADS, 4) for m in (self.q, self.k, self.v, self.f))
        f = torch.sigmoid(f) ** (1 / 4)
        sk = sk * f[..., None] + (1 - f)[..., None] * k[..., None, :]
        sv = sv * f[..., None] + (1 - f)[..., None] * v[..., None, :]
        p = torch.softmax(torch.einsum("bhk,bhnk->bhn", F.silu(q), sk), dim=-1)
        return torch.einsum("bhn,bhnv->bhv", p, sv).flatten(1), (sk, sv)


@ZOO.cell(D, [(HEADS, K, K), (HEADS, K, V)])
class MesaNet(nn.Module):
    """von Oswald et al. (2025): the least squares of what was seen, by conjugate gradients."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, HEADS * K) for _ in range(3))
        self.gates, self.ridge = nn.Linear(D, 2 * HEADS), nn.Parameter(torch.ones(HEADS, K))

    def forward(self, x, state):
        h, g = state
        q, k, v = (m(x).view(-1, HEADS, K) for m in (self.q, self.k, self.v))
        beta, gamma = self.gates(x).sigmoid()[..., None, None].chunk(2, dim=1)
        h = gamma * h + beta * k[..., :, None] * k[..., None, :]
        g = gamma * g + beta * k[..., :, None] * v[..., None, :]
        ridge = F.softplus(self.ridge) + 0.5
        z = torch.zeros_like(q)
        r, p = q.clone(), q.clone()
        for _ in range(3):
            hp = (h @ p.unsqueeze(-1)).squeeze(-1) + ridge * p
            old = (r * r).sum(-1, keepdim=True)
            alpha = old / ((p * hp).sum(-1, keepdim=True) + 1e-6)
            z, r = z + alpha * p, r - alpha * hp
            p = r + (r * r).sum(-1, keepdim=True) / (old + 1e-6) * p
        return (z.unsqueeze(-2) @ g).flatten(1), (h, g)


def layer_norm_gradient(x, target, gamma, beta, eps=1e-6):
    """The gradient of the squared error behind a norm, as the authors of TTT have it."""
    d = x.shape[-1]
    mu, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
    std = torch.sqrt(var + eps)
    x_hat = (x - mu) / std
    g = (gamma * x_hat + beta - target) * gamma
    return (
        (1.0 / d)
        * (d * g - g.sum(dim=-1, keepdim=True) - x_hat * (g * x_hat).sum(dim=-1, keepdim=True))
        / std
    )


@ZOO.cell(D, [(HEADS, K, 8), (HEADS, 1, 8), (HEADS, 8, K), (HEADS, 1, K)])
class TTTMLP(nn.Module):
    """Sun et al. (2024): the state is a network of two layers that a step of descent trains."""

    def __init__(self):
        super().__init__()
        self.qkv, self.rate = nn.Linear(D, 3 * HEADS * K), nn.Linear(D, HEADS)
        self.gamma, self.beta = nn.Parameter(torch.ones(HEADS, 1, K)), nn.Parameter(torch.zeros(HEADS, 1, K))
        self.out = nn.Linear(HEADS * K, D)

    def forward(self, x, state):
        w1, b1, w2, b2 = state
        q, k, v = (t.view(-1, HEADS, 1, K) for t in self.qkv(x).chunk(3, dim=-1))
        eta = torch.sigmoid(self.rate(x))[..., None, None] / K
        z1 = k @ w1 + b1
        x2 = F.gelu(z1, approximate="tanh")
        dz2 = layer_norm_gradient(x2 @ w2 + b2, v - k, self.gamma, self.beta)
        inner = torch.tanh(0.79788456 * z1 * (1 + 0.044715 * z1 * z1))
        bent = 0.5 * z1 * ((1 - inner * inner) * (0.79788456 + 0.1070322243 * z1 * z1)) + 0.5 * (1 + inner)
        dz1 = dz2 @ w2.transpose(-2, -1) * bent
        w1, b1 = w1 - eta * k.transpose(-1, -2) @ dz1, b1 - eta * dz1
        w2, b2 = w2 - eta * x2.transpose(-1, -2) @ dz2, b2 - eta * dz2
        z = F.gelu(q @ w1 + b1, approximate="tanh") @ w2 + b2
        z = q + F.layer_norm(z, (K,)) * self.gamma + self.beta
        return self.out(z.flatten(1)), (w1, b1, w2, b2)


@ZOO.cell(D, [(V, 8), (8, K), (V, 8), (8, K)])
class Titans(nn.Module):
    """Behrouz et al. (2025): surprise with momentum, and forgetting, of a memory that is a network."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, K, bias=False) for _ in range(3))
        self.gates = nn.Linear(D, 3)

    def forward(self, x, state):
        w2, w1, s2, s1 = state
        q, k = F.normalize(F.silu(self.q(x)), dim=-1), F.normalize(F.silu(self.k(x)), dim=-1)
        v = F.silu(self.v(x))
        alpha, eta, theta = torch.sigmoid(self.gates(x))[..., None].unbind(1)
        pre = torch.bmm(w1, k[..., None])
        hidden = F.silu(pre)
        error = 2 * (torch.bmm(w2, hidden) - v[..., None])
        g2 = torch.bmm(error, hidden.transpose(1, 2))
        back = torch.sigmoid(pre) * (1 + pre * (1 - torch.sigmoid(pre)))
        g1 = torch.bmm(torch.bmm(w2.mT, error) * back, k[:, None])
        s2, s1 = eta[..., None] * s2 - theta[..., None] * g2, eta[..., None] * s1 - theta[..., None] * g1
        w2, w1 = (1 - alpha[..., None]) * w2 + s2, (1 - alpha[..., None]) * w1 + s1
        return torch.bmm(w2, F.silu(torch.bmm(w1, q[..., None]))).squeeze(-1), (w2, w1, s2, s1)


def memory(weights, k):
    """What a memory of two layers recalls for a key."""
    return F.silu(k @ weights["w1"]) @ weights["w2"]


def surprise(weights, k, v):
    """How far that is from a value."""
    return F.mse_loss(memory(weights, k), v, reduction="sum")


@ZOO.cell(D, [(K, 8), (8, V)])
class NeuralMemory(nn.Module):
    """The same, without momentum, its gradient by torch.func as lucidrains has it."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, K, bias=False) for _ in range(3))
        self.rate, self.decay = nn.Linear(D, 1), nn.Linear(D, 1)

    def forward(self, x, state):
        weights = {"w1": state[0], "w2": state[1]}
        per_sample = torch.func.vmap(torch.func.grad(surprise), in_dims=(0, 0, 0))
        grads = per_sample(weights, self.k(x), self.v(x))
        rate, keep = (torch.sigmoid(m(x))[..., None] for m in (self.rate, self.decay))
        weights = {name: keep * w - 0.1 * rate * grads[name] for name, w in weights.items()}
        y = torch.func.vmap(memory)(weights, self.q(x))
        return y, (weights["w1"], weights["w2"])


@ZOO.cell(D, [(HEADS, V, N), HEADS * N // 2, (HEADS, N), (HEADS, V)])
class Mamba3(nn.Module):
    """Lahoti et al. (2026): a trapezoidal rule, and complex decays as rotations that add up."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, HEADS * (V + 2 * N + 2 + N // 2))
        self.b_bias, self.c_bias = nn.Parameter(torch.ones(HEADS, N)), nn.Parameter(torch.ones(HEADS, N))
        self.b_norm, self.c_norm, self.d = RMSNorm(N), RMSNorm(N), nn.Parameter(torch.ones(HEADS, 1))

    def forward(self, x, state):
        h, angle, b_last, x_last = state
        parts = self.proj(x).view(-1, HEADS, V + 2 * N + 2 + N // 2)
        v, b, c, dt, lam, theta = parts.split([V, N, N, 1, 1, N // 2], dim=-1)
        dt, lam = F.softplus(dt), torch.sigmoid(lam)
        alpha = torch.exp(-dt)
        angle = angle + (dt * math.pi * torch.tanh(theta)).flatten(1)
        cos, sin = torch.cos(angle).view(-1, HEADS, N // 2), torch.sin(angle).view(-1, HEADS, N // 2)

        def rotate(t):
            one, two = t[..., ::2], t[..., 1::2]
            return torch.stack([one * cos - two * sin, one * sin + two * cos], dim=-1).flatten(-2)

        b, c = rotate(self.b_norm(b) + self.b_bias), rotate(self.c_norm(c) + self.c_bias)
        before = ((1 - lam) * dt * alpha)[..., None] * x_last[..., :, None] * b_last[..., None, :]
        h = alpha[..., None] * h + before + (lam * dt)[..., None] * v[..., :, None] * b[..., None, :]
        y = torch.einsum("bhvn,bhn->bhv", h, c) + self.d * v
        return y.flatten(1), (h, angle, b, v)


@ZOO.cell(D, [(HEADS, K, V), 1])
class RetNet(nn.Module):
    """Sun et al. (2023): retention with a fixed decay a head, and rotations by position."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.g = (nn.Linear(D, HEADS * K, bias=False) for _ in range(4))
        self.register_buffer("gamma", 1 - torch.exp2(-5.0 - torch.arange(HEADS)))
        self.register_buffer("angle", 1.0 / 10000 ** torch.linspace(0, 1, K // 2).repeat_interleave(2))
        self.norm = nn.GroupNorm(HEADS, HEADS * V, affine=False)

    def forward(self, x, state):
        s, at = state
        q, k, v = (m(x).view(-1, HEADS, K) for m in (self.q, self.k, self.v))
        sin, cos = torch.sin(at * self.angle)[:, None], torch.cos(at * self.angle)[:, None]

        def rotate(t):
            return t * cos + torch.stack((-t[..., 1::2], t[..., ::2]), dim=-1).flatten(-2) * sin

        q, k = rotate(q), rotate(k * K**-0.5)
        s = self.gamma[None, :, None, None] * s + torch.einsum("bhk,bhv->bhkv", k, v)
        return F.silu(self.g(x)) * self.norm(torch.einsum("bhk,bhkv->bhv", q, s).flatten(1)), (s, at + 1)


@ZOO.cell(D, [(HEADS, 15, V), (HEADS, 15)])
class Based(nn.Module):
    """Arora et al. (2024): the exponential to its second power as a map of features."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, HEADS * 3), nn.Linear(D, HEADS * 3), nn.Linear(D, HEADS * V)
        self.extra = nn.Linear(D, HEADS)

    @staticmethod
    def features(t):
        square = torch.einsum("...i,...j->...ij", t, t).flatten(-2) / (math.sqrt(2) * math.sqrt(3))
        ones = torch.ones_like(t[..., :1])
        return torch.cat([ones, t / 3**0.25, square, torch.zeros_like(t[..., :2])], dim=-1)

    def forward(self, x, state):
        kv, z = state
        q, k = (self.features(m(x).view(-1, HEADS, 3)) for m in (self.q, self.k))
        v = self.v(x).view(-1, HEADS, V)
        kv, z = kv + k[..., None] * v[..., None, :], z + k
        y = torch.einsum("bhf,bhfv->bhv", q, kv) / (torch.einsum("bhf,bhf->bh", q, z)[..., None] + 1e-3)
        return y.flatten(1), (kv, z)


@ZOO.cell(D, [(2, N)])
class LinOSS(nn.Module):
    """Rusch and Rus (2025): forced harmonic oscillators, the implicit-explicit scheme."""

    def __init__(self):
        super().__init__()
        self.a, self.dt = nn.Parameter(torch.rand(N)), nn.Parameter(torch.rand(N))
        self.b, self.c, self.d = nn.Linear(D, N), nn.Linear(N, D), nn.Parameter(torch.randn(D))
        self.glu = nn.Linear(D, 2 * D)

    def forward(self, x, h):
        a, dt = F.relu(self.a), torch.sigmoid(self.dt)
        z, y = h[:, 0], h[:, 1]
        z = z + dt * (-a * y + self.b(x))
        y = y + dt * z
        out = F.gelu(self.c(y) + self.d * x)
        return F.glu(self.glu(out), dim=-1) + x, torch.stack([z, y], 1)


@ZOO.cell(D, [(HEADS, N, V)], floats="complex")
class GateLoop(nn.Module):
    """Katsch (2023): data-controlled complex decays."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, HEADS * 4) for _ in range(3))
        self.size, self.phase, self.out = (
            nn.Linear(D, HEADS * N),
            nn.Linear(D, HEADS * N),
            nn.Linear(HEADS * V, D),
        )

    def forward(self, x, s):
        q, k, v = (m(x).view(-1, HEADS, 4) for m in (self.q, self.k, self.v))
        a = torch.polar(torch.sigmoid(self.size(x)), self.phase(x)).view(-1, HEADS, N)
        s = a[..., None] * s + (k[..., None] * v[..., None, :]).to(a.dtype)
        y = torch.einsum("bhn,bhnv->bhv", q.to(a.dtype), s).real
        return self.out(y.flatten(1)), s
