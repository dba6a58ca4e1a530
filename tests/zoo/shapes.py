"""Gates, memories and products in the forms of their papers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, N = 6, 8, 4


@ZOO.cell((), [H, H], ints=11)
class RNNTPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(11, D, padding_idx=0)
        self.c = nn.LSTMCell(D, H)
        self.n = nn.LayerNorm(H)

    def forward(self, x, st):
        h, c = self.c(self.e(x), st)
        return (self.n(h), (h, c))


@ZOO.cell(D, [(5, H)])
class VectorizedFSMN(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Linear(D, H)
        self.p = nn.Linear(H, H, bias=False)
        self.a = nn.Parameter(torch.randn(6, H) / 3)
        self.o = nn.Linear(H, H)

    def forward(self, x, mem):
        p = self.p(F.relu(self.u(x)))
        win = torch.cat([p[:, None], mem], 1)
        m = p + (self.a * win).sum(1)
        return (F.relu(self.o(m)), win[:, :-1])


@ZOO.cell(D, [(3, D), H, H])
class TDNNLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Linear(3 * D, H)
        self.c = nn.LSTMCell(H, H)

    def forward(self, x, st):
        past, h, c = st
        win = torch.cat([past[:, 1:], x[:, None]], 1)
        f = F.relu(self.t(torch.stack([win[:, 0], win[:, 1], win[:, 2]], 1).flatten(1)))
        h, c = self.c(f, (h, c))
        return (h, (win, h, c))


@ZOO.cell(6, [8])
class TensorTrainRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(1, 2, 2, 3) / 2)
        self.b = nn.Parameter(torch.randn(3, 3, 4, 1) / 2)
        self.u = nn.Linear(8, 8)

    def forward(self, x, h):
        t = x.reshape(-1, 2, 3)
        t = torch.einsum("nij,aipr,rjqz->npq", t, self.a, self.b).flatten(1)
        h = torch.tanh(t + self.u(h))
        return (h, h)


def hamilton(a, b):
    a0, a1, a2, a3 = a.chunk(4, -1)
    b0, b1, b2, b3 = b.chunk(4, -1)
    return torch.cat(
        [
            a0 * b0 - a1 * b1 - a2 * b2 - a3 * b3,
            a0 * b1 + a1 * b0 + a2 * b3 - a3 * b2,
            a0 * b2 - a1 * b3 + a2 * b0 + a3 * b1,
            a0 * b3 + a1 * b2 - a2 * b1 + a3 * b0,
        ],
        -1,
    )


@ZOO.cell(8, [8])
class QuaternionRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.r, self.i, self.j, self.k = (nn.Parameter(torch.randn(2, 2) / 2) for _ in range(4))
        self.w = nn.Linear(8, 8)

    def forward(self, x, h):
        r, i, j, k = (self.r, self.i, self.j, self.k)
        W = torch.cat(
            [
                torch.cat([r, -i, -j, -k], 0),
                torch.cat([i, r, -k, j], 0),
                torch.cat([j, k, r, -i], 0),
                torch.cat([k, -j, i, r], 0),
            ],
            1,
        )
        h = torch.tanh(h @ W + hamilton(self.w(x), h))
        return (h, h)


def mobadd(x, y, c=1.0):
    xy = (x * y).sum(-1, keepdim=True)
    x2 = (x * x).sum(-1, keepdim=True)
    y2 = (y * y).sum(-1, keepdim=True)
    return ((1 + 2 * c * xy + c * y2) * x + (1 - c * x2) * y) / (1 + 2 * c * xy + c * c * x2 * y2).clamp_min(
        1e-15
    )


def mobmat(M, x):
    xn = x.norm(dim=-1, keepdim=True, p=2).clamp_min(1e-15)
    mx = x @ M.t()
    mn = mx.norm(dim=-1, keepdim=True, p=2).clamp_min(1e-15)
    return torch.tanh(mn / xn * torch.atanh(xn.clamp(max=1 - 1e-05))) * mx / mn


def proj(x):
    n = x.norm(dim=-1, keepdim=True).clamp_min(1e-15)
    return torch.where(n > 1 - 0.004, x / n * (1 - 0.004), x)


@ZOO.cell(D, [H])
class HyperbolicGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u = (
            nn.ParameterList([nn.Parameter(torch.randn(H, n) / 3) for _ in range(3)]) for n in (H, D)
        )

    def log(self, x):
        n = x.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        return torch.atanh(n.clamp(max=1 - 1e-05)) * x / n

    def forward(self, x, h):
        x = proj(torch.tanh(x) * 0.3)
        z = torch.sigmoid(self.log(mobadd(mobmat(self.w[0], h), mobmat(self.u[0], x))))
        r = torch.sigmoid(self.log(mobadd(mobmat(self.w[1], h), mobmat(self.u[1], x))))
        t = proj(mobadd(mobmat(self.w[2], proj(r * h)), mobmat(self.u[2], x)))
        h = proj(mobadd(h, z * mobadd(-h, t)))
        return (h, h)


def squash(v):
    n2 = (v * v).sum(-1, keepdim=True)
    return n2 / (1 + n2) * v / torch.sqrt(n2 + 1e-08)


@ZOO.cell((4, 3), [(2, 5)])
class CapsuleRouting(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 2, 5, 3) / 2)

    def forward(self, x, v):
        u = torch.einsum("ijkl,bil->bijk", self.w, x)
        b = (u * v.unsqueeze(1)).sum(-1)
        for _ in range(3):
            c = F.softmax(b, 2)
            o = squash((c.unsqueeze(-1) * u).sum(1))
            b = b + (u * o.unsqueeze(1)).sum(-1)
        return (o.norm(dim=-1), o)


@ZOO.cell(D, [H])
class DARTSCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = nn.Parameter(torch.randn(D + H, 2 * H) / 4)
        self.ws = nn.ParameterList([nn.Parameter(torch.randn(H, 2 * H) / 4) for _ in range(3)])
        self.al = nn.Parameter(torch.randn(6, 5) * 0.1)

    def forward(self, x, h):
        c0, h0 = torch.split(torch.cat([x, h], -1).mm(self.w0), H, dim=-1)
        s0 = h + c0.sigmoid() * (h0.tanh() - h)
        states = s0.unsqueeze(0)
        off = 0
        pr = F.softmax(self.al, -1)
        for i in range(3):
            ch = torch.matmul(states.view(-1, H), self.ws[i]).view(i + 1, -1, 2 * H)
            c, hh = torch.split(ch, H, dim=-1)
            c = c.sigmoid()
            acc = torch.zeros_like(s0)
            for k, fn in enumerate((torch.tanh, F.relu, torch.sigmoid, lambda z: z)):
                acc = acc + torch.sum(
                    pr[off : off + i + 1, k + 1].unsqueeze(-1).unsqueeze(-1)
                    * (states + c * (fn(hh) - states)),
                    dim=0,
                )
            off += i + 1
            states = torch.cat([states, acc.unsqueeze(0)], 0)
        o = torch.mean(states[-3:], dim=0)
        return (o, o)


@ZOO.cell(D, [(5, H), 5])
class DiffStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Linear(D, H)
        self.a = nn.Linear(D + H, 2)

    def forward(self, x, st):
        V, st_ = st
        top = V[:, 0]
        a = torch.sigmoid(self.a(torch.cat([x, top], -1)))
        u, d = (a[:, :1], a[:, 1:])
        left = torch.relu(u - torch.cat([torch.zeros_like(u), torch.cumsum(st_, 1)[:, :-1]], 1))
        st_ = torch.relu(st_ - left)
        V = torch.cat([torch.tanh(self.v(x)).unsqueeze(1), V[:, :-1]], 1)
        st_ = torch.cat([d, st_[:, :-1]], 1)
        w = torch.minimum(
            st_, torch.relu(1 - torch.cat([torch.zeros_like(d), torch.cumsum(st_, 1)[:, :-1]], 1))
        )
        return ((w.unsqueeze(-1) * V).sum(1), (V, st_))


@ZOO.cell(D, [(4, H), (H, H)])
class PaTH(nn.Module):
    """keys transformed by Householder-like products, a window of four"""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.w = (nn.Linear(D, H) for _ in range(4))
        self.b = nn.Linear(D, 1)

    def forward(self, x, st):
        K, V = st
        w = F.normalize(self.w(x), dim=-1)
        b = 2 * torch.sigmoid(self.b(x))
        K = K - b.unsqueeze(1) * (K @ w.unsqueeze(-1)) * w.unsqueeze(1)
        K = torch.cat([K[:, 1:], self.k(x).unsqueeze(1)], 1)
        V = torch.cat([V[:, 1:], self.v(x).unsqueeze(1)], 1)
        q = self.q(x)
        o = F.scaled_dot_product_attention(q.unsqueeze(1), K, V[:, -4:]).squeeze(1)
        return (o, (K, V))


@ZOO.cell(D, [(3, N, N), ()])
class LogLinear(nn.Module):
    """states of buckets, merged by the bits of the number of the step, which is state"""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, N) for _ in range(3))
        self.l = nn.Linear(D, 3)
        self.g = nn.Linear(D, 1)

    def forward(self, x, st):
        S, t = st
        t = t + 1
        S = S * torch.sigmoid(self.g(x))[:, :, None, None]
        new = self.k(x).unsqueeze(-1) * self.v(x).unsqueeze(-2)
        low = (torch.remainder(t, 2) < 1)[:, None, None]
        S0 = torch.where(low, torch.zeros_like(new), new)
        S1 = S[:, 1] + torch.where(low, S[:, 0] + new, torch.zeros_like(new))
        S = torch.stack([S0, S1, S[:, 2]], 1)
        lam = F.softplus(self.l(x))
        return (torch.einsum("bl,blde,bd->be", lam, S, self.q(x)), (S, t))


@ZOO.cell(D, [H])
class MinimalGatedUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(D + H, H)
        self.h = nn.Linear(D + H, H)

    def forward(self, x, h):
        f = torch.sigmoid(self.f(torch.cat([h, x], 1)))
        c = torch.tanh(self.h(torch.cat([f * h, x], 1)))
        h = (1 - f) * h + f * c
        return (h, h)


@ZOO.cell(D, [H, 5])
class SCRN(nn.Module):
    def __init__(self):
        super().__init__()
        self.B = nn.Linear(D, 5, bias=False)
        self.A = nn.Linear(D, H, bias=False)
        self.P = nn.Linear(5, H, bias=False)
        self.R = nn.Linear(H, H, bias=False)
        self.a = nn.Parameter(torch.zeros(5))

    def forward(self, x, st):
        h, c = st
        a = torch.sigmoid(self.a)
        c = (1 - a) * self.B(x) + a * c
        h = torch.sigmoid(self.P(c) + self.A(x) + self.R(h))
        return (torch.cat([h, c], -1), (h, c))


@ZOO.cell(D, [H, H])
class MultiplicativeLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wm = nn.Linear(D, H)
        self.um = nn.Linear(H, H, bias=False)
        self.g = nn.Linear(D + H, 4 * H)

    def forward(self, x, st):
        h, c = st
        m = self.wm(x) * self.um(h)
        i, o, f, g = self.g(torch.cat([x, m], -1)).split(H, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (c * o.sigmoid()).tanh()
        return (h, (h, c))


@ZOO.cell(D, [H, H, H])
class NestedLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(D + H, 4 * H)
        self.inner = nn.LSTMCell(H, H)

    def forward(self, x, st):
        h, c, ci = st
        i, f, o, g = self.g(torch.cat([x, h], -1)).chunk(4, 1)
        c, ci = self.inner(i.sigmoid() * g.tanh(), (f.sigmoid() * c, ci))
        h = o.sigmoid() * c.tanh()
        return (h, (h, c, ci))


@ZOO.cell(D, [H, (2, N)])
class LMU(nn.Module):
    def __init__(self):
        super().__init__()
        self.ex = nn.Linear(D, 2, bias=False)
        self.eh = nn.Linear(H, 2, bias=False)
        self.W = nn.Linear(D + H + 2 * N, H)
        i = torch.arange(N, dtype=torch.get_default_dtype())
        R = (2 * i + 1)[:, None] / 8
        j, k = torch.meshgrid(i, i, indexing="ij")
        A = torch.where(k <= j, (-1.0) ** (j - k + 1), -torch.ones(N, N)) * R
        self.register_buffer("A", torch.matrix_exp(A))
        self.register_buffer("B", (-1.0) ** i[:, None] * R)

    def forward(self, x, st):
        h, m = st
        u = self.ex(x) + self.eh(h)
        m = m @ self.A.T + u.unsqueeze(-1) @ self.B.T
        h = torch.tanh(self.W(torch.cat([x, h, m.flatten(1)], -1)))
        return (h, (h, m))


@ZOO.cell((4, D), [(4, H)])
class AdjacencyRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adj", (torch.rand(4, 4) > 0.5).float())
        self.c = nn.GRUCell(D + H, H)

    def forward(self, x, h):
        B = x.size(0)
        deg = self.adj.sum(1, keepdim=True).clamp(min=1)
        m = torch.matmul(self.adj / deg, h)
        h = self.c(torch.cat([x, m], -1).view(B * 4, -1), h.reshape(B * 4, -1)).view(B, 4, -1)
        return (h.mean(1), h)


@ZOO.cell(D, [(3, H), (3, H)])
class GridLSTMDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.i = nn.Linear(D, H)
        self.cells = nn.ModuleList([nn.LSTMCell(H, H) for _ in range(3)])
        self.n = nn.ModuleList([nn.LayerNorm(H) for _ in range(3)])

    def forward(self, x, st):
        h, c = st
        y = self.i(x)
        hs, cs = [], []
        for k, (cell, n) in enumerate(zip(self.cells, self.n, strict=True)):
            a, b = cell(y, (h[:, k], c[:, k]))
            y = n(y + a)
            hs.append(a)
            cs.append(b)
        return (y, (torch.stack(hs, 1), torch.stack(cs, 1)))


@ZOO.cell(D, [(6, H), ()])
class RingByStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.q = (nn.Linear(D, H), nn.Linear(D, H))

    def forward(self, x, st):
        buf, t = st
        i = torch.remainder(t.abs().floor(), 6).long()
        buf = buf.scatter(1, i[:, None, None].expand(-1, 1, H), self.k(x).unsqueeze(1))
        a = torch.softmax(torch.einsum("bh,bth->bt", self.q(x), buf) / math.sqrt(H), -1)
        return (torch.einsum("bt,bth->bh", a, buf), (buf, t.abs() + 1))


@ZOO.cell(D, [H, H])
class WaveRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.R = nn.Linear(H, 3 * H, bias=False)
        self.I = nn.Linear(D, 3 * H)
        self.O1, self.O2 = (nn.Linear(H // 2, 5), nn.Linear(H // 2, 5))

    def forward(self, x, st):
        h, _ = st
        Ru, Rr, Re = self.R(h).split(H, 1)
        Iu, Ir, Ie = self.I(x).split(H, 1)
        u = torch.sigmoid(Ru + Iu)
        r = torch.sigmoid(Rr + Ir)
        e = torch.tanh(r * Re + Ie)
        h = u * h + (1 - u) * e
        c, f = h.split(H // 2, 1)
        return ((F.log_softmax(self.O1(F.relu(c)), -1), F.log_softmax(self.O2(F.relu(f)), -1)), (h, e))


@ZOO.cell(D, [(H, 4), H])
class CacheLRUWrite(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(D, H)
        self.b = nn.Parameter(torch.randn(H, 4) / 2)

    def forward(self, x, st):
        M, h = st
        a = torch.sigmoid(self.g(x))
        M = M * a.unsqueeze(-1) + torch.addcmul(
            torch.zeros_like(M), self.b.expand_as(M), h.unsqueeze(-1), value=0.5
        )
        h = torch.tanh(torch.addmm(a, h, self.b @ self.b.mT) + M.amax(-1))
        return (h, (M, h))
