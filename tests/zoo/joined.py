"""Cells that join heads or inputs in the batch, and what goes with them in their repositories."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H = 6, 8


class MAB(nn.Module):
    """As in the Set Transformer: heads are joined in the batch, and split by its size."""

    def __init__(self, dim_V, num_heads, ln=True):
        super().__init__()
        self.dim_V, self.num_heads = dim_V, num_heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(dim_V, dim_V) for _ in range(4))
        if ln:
            self.ln0, self.ln1 = nn.LayerNorm(dim_V), nn.LayerNorm(dim_V)

    def forward(self, Q, K):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)
        dim_split = self.dim_V // self.num_heads
        Q_ = torch.cat(Q.split(dim_split, 2), 0)
        K_ = torch.cat(K.split(dim_split, 2), 0)
        V_ = torch.cat(V.split(dim_split, 2), 0)
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dim_V), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = O if getattr(self, "ln0", None) is None else self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        return O if getattr(self, "ln1", None) is None else self.ln1(O)


@ZOO.cell((3, D), [(3, H)])
class SetTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mab, self.pool = nn.Linear(D, H), MAB(H, 2), MAB(H, 4, ln=False)
        self.S = nn.Parameter(torch.randn(1, 2, H))

    def forward(self, x, s):
        s = self.mab(s, torch.cat([s, self.inp(x)], 1))
        return self.pool(self.S.repeat(s.size(0), 1, 1), s).flatten(1), 0.5 * s


@ZOO.cell((3, D), [(3, H)])
class TiledMaskHeads(nn.Module):
    """Heads by chunk, masks of keys tiled by repeat, causal ones by expand."""

    def __init__(self, h=2):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = nn.Linear(D, H), nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, x, s):
        Q_, K_, V_ = (
            torch.cat(torch.chunk(z, self.h, dim=2), dim=0) for z in (self.q(x), self.k(s), self.v(s))
        )
        o = torch.bmm(Q_, K_.permute(0, 2, 1)) / (K_.size()[-1] ** 0.5)
        keys = torch.sign(torch.abs(torch.sum(s, dim=-1))).repeat(self.h, 1)
        keys = keys.unsqueeze(1).repeat(1, x.size()[1], 1)
        o = torch.where(keys == 0, torch.ones_like(o) * -1e9, o)
        o = o.masked_fill(torch.tril(torch.ones(3, 3)).expand(o.size(0), 3, 3) == 0, -1e9)
        o = torch.cat(torch.chunk(torch.bmm(F.softmax(o, dim=-1), V_), self.h, dim=0), dim=2)
        return o.mean(1), 0.5 * s + o


@ZOO.cell(D, [H, H])
class GuidedTwice(nn.Module):
    """Both branches of classifier-free guidance through one net at once."""

    def __init__(self):
        super().__init__()
        self.inp, self.net = nn.Linear(D, H), nn.Sequential(nn.Linear(2 * H, H), nn.LayerNorm(H), nn.SiLU())
        self.none = nn.Parameter(torch.randn(1, H))

    def forward(self, x, state):
        h, c = state
        n = x.shape[0]
        z = torch.cat([torch.cat([h, h], 0), torch.cat([self.inp(x), self.none.expand(n, -1)])], dim=-1)
        with_x, without = self.net(z).chunk(2)
        c = 0.9 * c + without
        h = torch.tanh(without + 2.0 * (with_x - without))
        return h, (h, c)


@ZOO.cell(D, [H, H])
class OrderedNeurons(nn.Module):
    """ON-LSTM: master gates by sums over softmaxes, in chunks of features."""

    def __init__(self, chunk=2):
        super().__init__()
        self.chunk, self.n = chunk, H // chunk
        self.ih, self.hh = nn.Linear(D, 4 * H + 2 * self.n), nn.Linear(H, 4 * H + 2 * self.n)

    @staticmethod
    def cumsoftmax(x, dim=-1):
        return torch.cumsum(F.softmax(x, dim=dim), dim=dim)

    def forward(self, x, state):
        hx, cx = state
        gates, cx = self.ih(x) + self.hh(hx), cx.view(-1, self.n, self.chunk)
        cin, cfg = gates[:, : self.n * 2].chunk(2, 1)
        o, c, i, f = gates[:, self.n * 2 :].view(-1, self.n * 4, self.chunk).chunk(4, 1)
        cin = (1 - self.cumsoftmax(cin))[:, :, None].expand(-1, -1, self.chunk)
        cfg = self.cumsoftmax(cfg)[:, :, None].expand_as(cin)
        overlap = cfg * cin
        f, i = f.sigmoid() * overlap + (cfg - overlap), i.sigmoid() * overlap + (cin - overlap)
        cy = f * cx + i * c.tanh()
        hy = (o.sigmoid() * torch.tanh(cy)).view(-1, H)
        return hy, (hy, cy.view(-1, H))


class EntmaxBisect(torch.autograd.Function):
    @classmethod
    def _p(cls, x, alpha):
        return torch.clamp(x, min=0) ** (1 / (alpha - 1))

    @classmethod
    def forward(cls, ctx, x, alpha=1.5, dim=-1, n_iter=12):
        ctx.dim, d = dim, x.shape[dim]
        ctx.alpha = alpha = torch.tensor(alpha, dtype=x.dtype, device=x.device).expand(*[1] * x.dim())
        x = x * (alpha - 1)
        most, _ = x.max(dim=dim, keepdim=True)
        low, high = most - 1, most - (1 / d) ** (alpha - 1)
        f_low, gap = cls._p(x - low, alpha).sum(dim) - 1, high - low
        for _ in range(n_iter):
            gap = gap / 2
            p = cls._p(x - low - gap, alpha)
            low = torch.where(((p.sum(dim) - 1) * f_low >= 0).unsqueeze(dim), low + gap, low)
        p = p / p.sum(dim=dim).unsqueeze(dim=dim)
        ctx.save_for_backward(p)
        return p

    @classmethod
    def backward(cls, ctx, grad):
        (p,) = ctx.saved_tensors
        g = torch.where(p > 0, p ** (2 - ctx.alpha), p.new_zeros(1))
        dx = grad * g
        dx -= (dx.sum(ctx.dim) / g.sum(ctx.dim)).unsqueeze(ctx.dim) * g
        return dx, None, None, None


@ZOO.cell(D, [H, (4, H)])
class EntmaxMemory(nn.Module):
    """A memory read by alpha-entmax, found by bisection in a Function of class methods."""

    def __init__(self):
        super().__init__()
        self.c, self.q = nn.GRUCell(D, H), nn.Linear(H, H)

    def forward(self, x, state):
        h, m = state
        h = self.c(x, h)
        w = EntmaxBisect.apply((m * self.q(h)[:, None]).sum(-1) / math.sqrt(H), 1.5)
        h = h + (w[..., None] * m).sum(1)
        return w, (h, torch.cat([h[:, None], m[:, :-1]], 1))


@ZOO.cell(D, [H])
class BSplineKAN(nn.Module):
    """Splines of Cox and de Boor over a grid that is a buffer, as efficient-kan has them."""

    def __init__(self, grid=3, order=3):
        super().__init__()
        self.order, at = order, torch.arange(-order, grid + order + 1) * (2.0 / grid) - 1
        self.register_buffer("grid", at.expand(H, -1).contiguous())
        self.inp = nn.Linear(D, H)
        self.spline = nn.Parameter(torch.randn(H, H, grid + order) * 0.1)
        self.base = nn.Parameter(torch.randn(H, H) * 0.1)

    def b_splines(self, x):
        grid, x = self.grid, x.unsqueeze(-1)
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        return bases.contiguous()

    def forward(self, x, h):
        z = torch.tanh(self.inp(x) + h)
        splines = self.b_splines(z).view(x.size(0), -1)
        y = F.linear(F.silu(z), self.base) + F.linear(splines, self.spline.view(H, -1))
        return y, y
