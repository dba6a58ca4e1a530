"""Cells with matrix, complex or image states: linear attention, state spaces, memories, spikes, filters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, N, K, V, HEADS = 6, 4, 4, 5, 2


@ZOO.cell(D, [(K, V), K, 1])
class MLSTM(nn.Module):
    """Beck et al., "xLSTM" (2024): the matrix memory."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, K), nn.Linear(D, K), nn.Linear(D, V)
        self.i, self.f, self.o = nn.Linear(D, 1), nn.Linear(D, 1), nn.Linear(D, V)

    def forward(self, x, state):
        c, n, m = state
        q, k, v = self.q(x), self.k(x) / math.sqrt(K), self.v(x)
        log_i, log_f = self.i(x), F.logsigmoid(self.f(x))
        m_new = torch.maximum(log_f + m, log_i)
        i, f = torch.exp(log_i - m_new), torch.exp(log_f + m - m_new)
        c = f.unsqueeze(-1) * c + i.unsqueeze(-1) * torch.einsum("bk,bv->bkv", k, v)
        n = f * n + i * k
        scale = torch.maximum((n * q).sum(-1, keepdim=True).abs(), torch.exp(-m_new))
        y = torch.sigmoid(self.o(x)) * (torch.einsum("bk,bkv->bv", q, c) / scale)
        return y, (c, n, m_new)


@ZOO.cell(D, [(D, N)])
class Mamba(nn.Module):
    """Gu and Dao (2023): the selective state space."""

    def __init__(self):
        super().__init__()
        self.proj, self.dt = nn.Linear(D, 2 * N + 2, bias=False), nn.Linear(2, D)
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, N + 1).repeat(D, 1)))
        self.d = nn.Parameter(torch.ones(D))

    def forward(self, x, h):
        dt, b, c = self.proj(x).split([2, N, N], dim=-1)
        dt = F.softplus(self.dt(dt))
        a = -torch.exp(self.a_log)
        h = torch.exp(dt[..., None] * a) * h + dt[..., None] * b[:, None, :] * x[..., None]
        y = (h * c[:, None, :]).sum(-1) + self.d * x
        return y, h


@ZOO.cell(D, [(HEADS, 3, N)])
class Mamba2(nn.Module):
    """Dao and Gu (2024): one decay a head."""

    def __init__(self):
        super().__init__()
        self.bc, self.dt = nn.Linear(D, 2 * N), nn.Linear(D, HEADS)
        self.a_log = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x, h):
        b, c = self.bc(x).chunk(2, -1)
        dt = F.softplus(self.dt(x))
        decay = torch.exp(-dt * self.a_log.exp())
        inp = (x.view(-1, HEADS, 3) * dt[..., None]).unsqueeze(-1) * b[:, None, None]
        h = h * decay[..., None, None] + inp
        y = torch.einsum("bhpn,bn->bhp", h, c)
        return y.flatten(1), h


@ZOO.cell(D, [D, D, D])
class RWKV4(nn.Module):
    """Peng et al. (2023): the WKV recurrence with its running maximum."""

    def __init__(self):
        super().__init__()
        self.k, self.v, self.r = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.w, self.u = nn.Parameter(torch.rand(D)), nn.Parameter(torch.rand(D))

    def forward(self, x, state):
        a, b, p = state
        k, v, r = self.k(x), self.v(x), self.r(x)
        q = torch.maximum(p, self.u + k)
        e1, e2 = torch.exp(p - q), torch.exp(self.u + k - q)
        wkv = (e1 * a + e2 * v) / (e1 * b.abs() + e2)
        q = torch.maximum(p - self.w.exp(), k)
        e1, e2 = torch.exp(p - self.w.exp() - q), torch.exp(k - q)
        return torch.sigmoid(r) * wkv, (e1 * a + e2 * v, e1 * b + e2, q)


@ZOO.cell(D, [(HEADS, K, 3), D])
class RWKV6(nn.Module):
    """Peng et al. (2024): decay that depends on x, token shift, heads normalised."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(D))
        self.r, self.k, self.w = (nn.Linear(D, HEADS * K) for _ in range(3))
        self.v, self.u = nn.Linear(D, D), nn.Parameter(torch.rand(HEADS, K))

    def forward(self, x, state):
        s, last = state
        x2 = torch.lerp(x, last, self.mix)
        r, k, v = self.r(x2).view(-1, HEADS, K), self.k(x2).view(-1, HEADS, K), self.v(x2).view(-1, HEADS, 3)
        w = torch.exp(-torch.exp(self.w(x2).view(-1, HEADS, K)))
        kv = k.unsqueeze(-1) @ v.unsqueeze(-2)
        y = (r.unsqueeze(-2) @ (s + self.u.unsqueeze(-1) * kv)).squeeze(-2)
        return F.group_norm(y.reshape(-1, D), HEADS), (w.unsqueeze(-1) * s + kv, x)


@ZOO.cell(D, [(K, V)])
class GLA(nn.Module):
    """Yang et al., "Gated linear attention" (2024)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, K), nn.Linear(D, K), nn.Linear(D, V)
        self.g = nn.Sequential(nn.Linear(D, 2, bias=False), nn.Linear(2, K))

    def forward(self, x, s):
        a = torch.sigmoid(self.g(x)) ** (1 / 16)
        s = a[:, :, None] * s + self.k(x)[:, :, None] * self.v(x)[:, None, :]
        return torch.bmm(self.q(x)[:, None, :], s)[:, 0], s


@ZOO.cell(D, [(V, K)])
class DeltaNet(nn.Module):
    """Schlag et al. (2021), Yang et al. (2024): the delta rule."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.b = nn.Linear(D, K), nn.Linear(D, K), nn.Linear(D, V), nn.Linear(D, 1)

    def forward(self, x, w):
        q, k = F.normalize(F.silu(self.q(x)), dim=-1), F.normalize(F.silu(self.k(x)), dim=-1)
        old = (w @ k.unsqueeze(-1)).squeeze(-1)
        delta = torch.sigmoid(self.b(x)) * (self.v(x) - old)
        w = w + delta.unsqueeze(-1) * k.unsqueeze(1)
        return torch.einsum("bvk,bk->bv", w, q), w


@ZOO.cell(D, [(V, K)])
class GatedDeltaNet(nn.Module):
    """Yang et al. (2024): decay before the delta rule."""

    def __init__(self):
        super().__init__()
        self.qkv, self.ab = nn.Linear(D, 2 * K + V), nn.Linear(D, 2)
        self.a_log = nn.Parameter(torch.zeros(1))

    def forward(self, x, s):
        q, k, v = self.qkv(x).split([K, K, V], -1)
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        a, b = self.ab(x).unbind(-1)
        alpha, beta = torch.exp(-self.a_log.exp() * F.softplus(a)), b.sigmoid()
        eye = torch.eye(K, dtype=x.dtype)
        erase = eye - beta[:, None, None] * k[:, :, None] * k[:, None, :]
        s = (
            alpha[:, None, None] * torch.matmul(s, erase)
            + beta[:, None, None] * v[:, :, None] * k[:, None, :]
        )
        return torch.matmul(s, q[:, :, None])[:, :, 0], s


@ZOO.cell(D, [(D, D), D])
class FastWeights(nn.Module):
    """Ba et al. (2016): fast weights attend to the recent past, in an inner loop with layer norm."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.norm = nn.Linear(D, D), nn.Linear(D, D, bias=False), nn.LayerNorm(D)

    def forward(self, x, state):
        a, h = state
        a = 0.95 * a + 0.5 * torch.bmm(h.unsqueeze(2), h.unsqueeze(1))
        pre = self.w(x) + self.u(h)
        s = torch.relu(pre)
        for _ in range(2):
            s = torch.relu(self.norm(pre + torch.bmm(a, s.unsqueeze(2)).squeeze(2)))
        return s, (a, s)


@ZOO.cell(D, [D, (D, D)])
class Plasticity(nn.Module):
    """Miconi et al. (2018): Hebbian traces beside slow weights."""

    def __init__(self):
        super().__init__()
        self.i, self.w = nn.Linear(D, D), nn.Parameter(torch.randn(D, D) / 4)
        self.alpha, self.eta = nn.Parameter(torch.randn(D, D) / 4), nn.Parameter(torch.tensor(0.1))

    def forward(self, x, state):
        h, hebb = state
        y = torch.tanh(self.i(x) + (h.unsqueeze(1) @ (self.w + self.alpha * hebb)).squeeze(1))
        hebb = torch.clamp(hebb + self.eta * torch.einsum("bi,bj->bij", h, y), -1, 1)
        return y, (y, hebb)


@ZOO.cell(D, [(K, K), K])
class TTTLinear(nn.Module):
    """Sun et al., "Learning to (learn at test time)" (2024): a step of gradient descent by hand."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.lr = nn.Linear(D, K), nn.Linear(D, K), nn.Linear(D, K), nn.Linear(D, 1)
        self.norm = nn.LayerNorm(K)

    def forward(self, x, state):
        w, b = state
        q, k, v = self.q(x), self.k(x), self.v(x)
        error = torch.einsum("bi,bij->bj", k, w) + b - (v - k)
        eta = 0.5 * torch.sigmoid(self.lr(x))
        w = w - eta.unsqueeze(-1) * torch.einsum("bi,bj->bij", k, error)
        b = b - eta * error
        y = q + self.norm(torch.einsum("bi,bij->bj", q, w) + b)
        return y, (w, b)


@ZOO.cell(D, [(N, K), N, D])
class NTM(nn.Module):
    """Graves et al., "Neural Turing machines" (2014): address by content and by shift, erase and add."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D + K, D)
        self.head = nn.Linear(D, K + 1 + 1 + 3 + 1 + K + K)

    def forward(self, x, state):
        memory, w, h = state
        read = (w.unsqueeze(-1) * memory).sum(1)
        h = self.cell(torch.cat([x, read], 1), h)
        k, beta, g, s, gamma, e, a = self.head(h).split([K, 1, 1, 3, 1, K, K], dim=1)
        scores = F.cosine_similarity(memory + 1e-8, k.unsqueeze(1) + 1e-8, dim=-1)
        content = F.softmax(F.softplus(beta) * scores, dim=1)
        wg = torch.sigmoid(g) * content + (1 - torch.sigmoid(g)) * w
        s = F.softmax(s, dim=1)
        ws = s[:, :1] * wg.roll(1, 1) + s[:, 1:2] * wg + s[:, 2:] * wg.roll(-1, 1)
        w = (ws.abs() + 1e-6) ** (1 + F.softplus(gamma))
        w = w / w.sum(1, keepdim=True)
        memory = memory * (1 - w.unsqueeze(-1) * torch.sigmoid(e).unsqueeze(1)) + w.unsqueeze(
            -1
        ) * a.unsqueeze(1)
        return read, (memory, w, h)


@ZOO.cell((2, 4, 4), [(3, 4, 4), (3, 4, 4)])
class ConvLSTM(nn.Module):
    """Shi et al. (2015)."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 12, 3, padding=1)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.conv(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


@ZOO.cell((2, 6), [(2, 6)])
class NeuralGPU(nn.Module):
    """Kaiser and Sutskever (2016): a convolutional gated unit over a line of cells."""

    def __init__(self):
        super().__init__()
        self.gates, self.new = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x, s):
        u, r = torch.sigmoid(self.gates(s)).chunk(2, dim=1)
        s = u * s + (1 - u) * torch.tanh(self.new(r * s) + x)
        return s, s


class Spike(torch.autograd.Function):
    """A step forward, the derivative of a fast sigmoid backward (Zenke and Ganguli, 2018)."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (10 * v.abs() + 1) ** 2


@ZOO.cell(D, [D, D])
class LIF(nn.Module):
    """Leaky integrate-and-fire neurons with surrogate gradients and a reset that is detached."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(D, D), nn.Linear(D, D, bias=False)

    def forward(self, x, state):
        v, s = state
        v = 0.9 * v * (1 - s.detach()) + self.w(x) + self.u(s)
        s = Spike.apply(v - 1.0)
        return s, (v, s)


@ZOO.cell(D, [D, D, D])
class ALIF(nn.Module):
    """Bellec et al. (2018): an adaptive threshold."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(D, D)
        self.rho = nn.Parameter(torch.rand(D))

    def forward(self, x, state):
        v, a, s = state
        rho = torch.sigmoid(self.rho)
        a = rho * a + (1 - rho) * s
        threshold = 1 + 1.8 * a
        v = 0.9 * v + self.w(x) - threshold * s
        s = Spike.apply((v - threshold) / threshold)
        return s, (v, a, s)


@ZOO.cell(D, [(N, 2)])
class LRU(nn.Module):
    """Orvieto et al. (2023): a complex diagonal, held as pairs of numbers."""

    def __init__(self):
        super().__init__()
        self.nu, self.theta = nn.Parameter(torch.rand(N)), nn.Parameter(torch.rand(N))
        self.b, self.c = nn.Parameter(torch.randn(N, D, 2) / 4), nn.Parameter(torch.randn(D, N, 2) / 4)
        self.d = nn.Parameter(torch.randn(D))

    def forward(self, x, h):
        lam = torch.exp(torch.complex(-torch.exp(self.nu), torch.exp(self.theta)))
        b, c = torch.view_as_complex(self.b), torch.view_as_complex(self.c)
        h = lam * torch.view_as_complex(h.contiguous()) + x.to(b.dtype) @ b.T
        y = (h @ c.T).real + self.d * x
        return y, torch.view_as_real(h)


@ZOO.cell(D, [N], floats="complex")
class S5(nn.Module):
    """Smith et al. (2023): complex states, discretised by zero-order hold."""

    def __init__(self):
        super().__init__()
        self.re, self.im = nn.Parameter(-torch.rand(N) - 0.1), nn.Parameter(torch.rand(N))
        self.b, self.c = nn.Parameter(torch.randn(2, N, D) / 4), nn.Parameter(torch.randn(2, D, N) / 4)
        self.log_dt = nn.Parameter(torch.rand(N) - 2)

    def forward(self, x, h):
        lam = torch.complex(self.re, self.im)
        bar = torch.exp(lam * self.log_dt.exp())
        b = (1 / lam * (bar - 1))[:, None] * torch.complex(self.b[0], self.b[1])
        h = bar * h + x.to(b.dtype) @ b.T
        return 2 * (h @ torch.complex(self.c[0], self.c[1]).T).real, h


@ZOO.cell(D, [N, (N, N)])
class Kalman(nn.Module):
    """The filter with its covariance; noise is learned."""

    def __init__(self):
        super().__init__()
        self.a, self.h = nn.Parameter(torch.eye(N) * 0.9), nn.Parameter(torch.randn(2, N))
        self.q, self.r = nn.Parameter(torch.zeros(N)), nn.Parameter(torch.zeros(2))

    def forward(self, x, state):
        m, p = state
        p = p @ p.mT + 0.1 * torch.eye(N, dtype=x.dtype)
        m = m @ self.a.T
        p = self.a @ p @ self.a.T + torch.diag(self.q.exp())
        s = self.h @ p @ self.h.T + torch.diag(self.r.exp())
        gain = torch.linalg.solve(s, self.h @ p).mT
        m = m + (gain @ (x[:, :2] - m @ self.h.T).unsqueeze(-1)).squeeze(-1)
        p = p - gain @ self.h @ p
        return m, (m, p)


@ZOO.cell(N, [N])
class CRF(nn.Module):
    """The forward algorithm of a linear chain."""

    def __init__(self):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(N, N))

    def forward(self, x, alpha):
        alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + x
        return alpha, alpha


@ZOO.cell(N, [N])
class Viterbi(nn.Module):
    """The best path so far and where it came from."""

    def __init__(self):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(N, N))

    def forward(self, x, score):
        best, where = (score[:, :, None] + self.transitions).max(dim=1)
        return (best, where), best + x


@ZOO.cell(D, [D, (5, K)])
class AttentionDecoder(nn.Module):
    """Bahdanau et al. (2015): additive attention over a memory that the state carries."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, K), nn.Linear(K, K), nn.Linear(K, 1, bias=False)
        self.cell = nn.GRUCell(D + K, D)

    def forward(self, x, state):
        h, memory = state
        weights = self.v(torch.tanh(self.q(h).unsqueeze(1) + self.k(memory))).squeeze(-1).softmax(-1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        h = self.cell(torch.cat([x, context], -1), h)
        return torch.cat([h, context], -1), (h, memory)


@ZOO.cell(D, [(4, D), 1])
class WindowAttention(nn.Module):
    """The last four inputs in a ring, attended to by heads; a token's place in it is written by index."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(D, D), nn.Linear(D, 2 * D)

    def forward(self, x, state):
        ring, t = state
        slot = F.one_hot(t[:, 0].round().long().remainder(4), 4).to(x.dtype)
        ring = ring * (1 - slot.unsqueeze(-1)) + slot.unsqueeze(-1) * x.unsqueeze(1)
        q = self.q(x).view(-1, HEADS, 1, 3)
        k, v = self.kv(ring).view(-1, 4, 2, HEADS, 3).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.reshape(-1, D), (ring, t + 1)
