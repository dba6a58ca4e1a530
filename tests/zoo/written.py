"""Cells as repositories of the last years write them: assigned by mask, learned gains, inner gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from .kinds import Zoo

ZOO = Zoo()
D, H = 5, 6


def elup1(x):
    return torch.where(x < 0.0, torch.exp(x), x + 1.0)


@ZOO.cell(12, [6, 6, 6, 6, 6])
class RKN(nn.Module):
    def __init__(self, lod=6, nb=3, bw=2):
        super().__init__()
        self.lod = lod
        self.nb = nb
        self.enc = nn.Linear(6, lod)
        self.var = nn.Linear(6, lod)
        self.coefficient_net = nn.Sequential(nn.Linear(2 * lod, nb), nn.Softmax(dim=-1))
        for n in ("11", "12", "21", "22"):
            setattr(self, f"_tm_{n}_full", nn.Parameter(torch.randn(nb, lod, lod) * 0.1))
        self.register_buffer("_band_mask", torch.triu(torch.tril(torch.ones(lod, lod), bw), -bw)[None])
        self._log_q_u = nn.Parameter(torch.zeros(lod))
        self._log_q_l = nn.Parameter(torch.zeros(lod))

    def get_transition_model(self, mean):
        coeff = torch.reshape(self.coefficient_net(mean), [-1, self.nb, 1, 1])
        return tuple(
            (coeff * (getattr(self, f"_tm_{n}_full") * self._band_mask)).sum(dim=1)
            for n in ("11", "12", "21", "22")
        )

    def forward(self, obs, st):
        mu, ml, cu, cl, cs = st
        cu, cl = F.softplus(cu), F.softplus(cl)
        tm11, tm12, tm21, tm22 = self.get_transition_model(torch.cat([mu, ml], -1))

        def bmv(mat, vec):
            return torch.bmm(mat, vec[..., None])[..., 0]

        def dadat(a, dm):
            return bmv(a.square(), dm)

        def dadbt(a, dm, b):
            return bmv(a * b, dm)

        nmu = bmv(tm11, mu) + bmv(tm12, ml)
        nml = bmv(tm21, mu) + bmv(tm22, ml)
        ncu = dadat(tm11, cu) + 2.0 * dadbt(tm11, cs, tm12) + dadat(tm12, cl) + elup1(self._log_q_u)
        ncl = dadat(tm21, cu) + 2.0 * dadbt(tm21, cs, tm22) + dadat(tm22, cl) + elup1(self._log_q_l)
        ncs = dadbt(tm21, cu, tm11) + dadbt(tm22, cs, tm11) + dadbt(tm21, cs, tm12) + dadbt(tm22, cl, tm12)
        m, v = self.enc(obs[:, :6]), elup1(self.var(obs[:, 6:]))
        denom = ncu + v
        qu, ql = ncu / denom, ncs / denom
        r = m - nmu
        pmu, pml = nmu + qu * r, nml + ql * r
        f = 1 - qu
        return torch.cat([pmu, pml], 1), (pmu, pml, f * ncu, ncl - ql * ncs, f * ncs)


class Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0.5).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


def hard_sigm(a, x):
    return (a * x + 1.0).div(2.0).clamp(min=0, max=1)


class HMCell(nn.Module):
    def __init__(self, bottom, hidden, top, a, last):
        super().__init__()
        self.hidden_size = hidden
        self.a = a
        self.last_layer = last
        self.U_11 = nn.Parameter(torch.randn(4 * hidden + 1, hidden) * 0.2)
        self.W_01 = nn.Parameter(torch.randn(4 * hidden + 1, bottom) * 0.2)
        self.bias = nn.Parameter(torch.zeros(4 * hidden + 1))
        if not last:
            self.U_21 = nn.Parameter(torch.randn(4 * hidden + 1, top) * 0.2)

    def forward(self, c, h_bottom, h, h_top, z, z_bottom):
        s_rec = torch.mm(self.W_01, h_bottom)
        if not self.last_layer:
            s_td = z.expand_as(s_rec) * torch.mm(self.U_21, h_top)
        else:
            s_td = torch.zeros_like(s_rec)
        f_s = (
            s_rec
            + s_td
            + z_bottom.expand_as(s_rec) * torch.mm(self.U_11, h)
            + self.bias.unsqueeze(1).expand_as(s_rec)
        )
        n = self.hidden_size
        f, i, o, g = (
            torch.sigmoid(f_s[0:n, :]),
            torch.sigmoid(f_s[n : 2 * n, :]),
            torch.sigmoid(f_s[2 * n : 3 * n, :]),
            torch.tanh(f_s[3 * n : 4 * n, :]),
        )
        z_hat = hard_sigm(self.a, f_s[4 * n : 4 * n + 1, :])
        one = torch.ones_like(f)
        z_, zb_ = z.expand_as(f), z_bottom.expand_as(f)
        c_new = z_ * (i * g) + (one - z_) * (one - zb_) * c + (one - z_) * zb_ * (f * c + i * g)
        h_new = (
            z_ * o * torch.tanh(c_new)
            + (one - z_) * (one - zb_) * h
            + (one - z_) * zb_ * o * torch.tanh(c_new)
        )
        return h_new, c_new, Bound.apply(z_hat)


@ZOO.cell(D, [16, 16, 1, 16, 16, 1])
class HMLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell_1 = HMCell(D, 16, 16, 1.0, False)
        self.cell_2 = HMCell(16, 16, None, 1.0, True)

    def forward(self, x, st):
        h1, c1, z1, h2, c2, z2 = (t.t() for t in st)
        one = torch.ones(1, x.size(0), dtype=x.dtype)
        h1, c1, z1 = self.cell_1(c1, x.t(), h1, h2, z1, one)
        h2, c2, z2 = self.cell_2(c2, h1, h2, None, z2, z1)
        return torch.cat([h1, h2]).t(), tuple(t.t() for t in (h1, c1, z1, h2, c2, z2))


@ZOO.cell(6, [(6, 8), (6, 8), 6])
class L2L(nn.Module):
    def __init__(self, preproc=True, hidden_sz=8, p=10.0):
        super().__init__()
        self.hidden_sz = hidden_sz
        self.recurs = nn.LSTMCell(2, hidden_sz)
        self.output = nn.Linear(hidden_sz, 1)
        self.preproc = preproc
        self.preproc_factor = p
        self.preproc_threshold = math.exp(-p)

    def forward(self, target, st):
        h, c, theta = st
        grad = 2 * (theta - target)
        inp = grad.reshape(-1, 1)
        if self.preproc:
            inp = inp.data
            inp2 = torch.zeros(inp.size()[0], 2)
            keep = (torch.abs(inp) >= self.preproc_threshold).squeeze()
            inp2[:, 0][keep] = (torch.log(torch.abs(inp[keep]) + 1e-8) / self.preproc_factor).squeeze()
            inp2[:, 1][keep] = torch.sign(inp[keep]).squeeze()
            inp2[:, 0][~keep] = -1
            inp2[:, 1][~keep] = (float(math.exp(self.preproc_factor)) * inp[~keep]).squeeze()
            inp = inp2
        h1, c1 = self.recurs(inp, (h.flatten(0, 1), c.flatten(0, 1)))
        upd = self.output(h1).view(theta.shape)
        theta = theta + 0.1 * upd
        return (theta - target).square().sum(-1), (h1.view(h.shape), c1.view(c.shape), theta)


@ZOO.cell((1, 12), [(1, 12), (4, 12), (4, 12)])
class FourDVarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Conv1d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv1d(6, 1, 3, padding=1))
        self.Gates = nn.Conv1d(1 + 4, 16, 3, padding=1)
        self.conv_out = nn.Conv1d(4, 1, 1, bias=False)
        self.alpha = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, obs, st):
        x, h, c = st
        with torch.enable_grad():
            xr = x.detach().requires_grad_(True) if not x.requires_grad else x
            loss = (
                self.alpha[0] ** 2 * ((xr - obs) ** 2).sum()
                + self.alpha[1] ** 2 * ((self.phi(xr) - xr) ** 2).sum()
            )
            g = torch.autograd.grad(loss, xr, create_graph=True)[0]
        i, r, o, ce = self.Gates(torch.cat((g, h), 1)).chunk(4, 1)
        c = torch.sigmoid(r) * c + torch.sigmoid(i) * torch.tanh(ce)
        h = torch.sigmoid(o) * torch.tanh(c)
        x = x - self.conv_out(h)
        return x, (x, h, c)


@ZOO.cell((3, 8), [(3, 16)])
class QMIX(nn.Module):
    def __init__(self, n=3, a=5, emb=8):
        super().__init__()
        self.n, self.emb = n, emb
        self.fc1 = nn.Linear(8, 16)
        self.rnn = nn.GRUCell(16, 16)
        self.fc2 = nn.Linear(16, a)
        self.hyper_w_1 = nn.Linear(24, emb * n)
        self.hyper_w_final = nn.Linear(24, emb)
        self.hyper_b_1 = nn.Linear(24, emb)
        self.V = nn.Sequential(nn.Linear(24, emb), nn.ReLU(), nn.Linear(emb, 1))

    def forward(self, inputs, hidden):
        b, a, e = inputs.size()
        x = F.relu(self.fc1(inputs.view(-1, e)), inplace=True)
        h = self.rnn(x, hidden.reshape(-1, 16))
        q = self.fc2(h).view(b, a, -1)
        chosen = torch.gather(q, dim=2, index=q.detach().max(dim=2, keepdim=True)[1]).squeeze(2)
        states = inputs.reshape(-1, 24)
        w1 = torch.abs(self.hyper_w_1(states)).view(-1, self.n, self.emb)
        b1 = self.hyper_b_1(states).view(-1, 1, self.emb)
        hid = F.elu(torch.bmm(chosen.view(-1, 1, self.n), w1) + b1)
        wf = torch.abs(self.hyper_w_final(states)).view(-1, self.emb, 1)
        return (torch.bmm(hid, wf) + self.V(states).view(-1, 1, 1)).view(b, -1), h.view(b, a, -1)


@ZOO.cell(3, [4, 4, 3, 16, 16, 9])
class KalmanNet(nn.Module):
    def __init__(self, m=4, n=3):
        super().__init__()
        self.m, self.n = m, n
        self.GRU_Q = nn.GRU(m, 16)
        self.GRU_Sigma = nn.GRU(16 + m, 16)
        self.GRU_S = nn.GRU(16 + 2 * n, 9)
        self.FC2 = nn.Sequential(nn.Linear(9 + 16, 20), nn.ReLU(), nn.Linear(20, m * n))
        self.FC1 = nn.Sequential(nn.Linear(16, n * n), nn.ReLU())
        self.A = nn.Parameter(torch.eye(m) + 0.1 * torch.randn(m, m))
        self.C = nn.Parameter(torch.randn(n, m) * 0.3)

    def f(self, x):
        return x + 0.1 * torch.sin(torch.bmm(self.A[None].expand(x.shape[0], -1, -1), x))

    def h(self, x):
        return torch.matmul(self.C, x)

    def forward(self, y, st):
        xpost, xpost_prev, y_prev, hQ, hSig, hS = st
        B = y.shape[0]
        y = y.unsqueeze(2)
        xprior = self.f(xpost.unsqueeze(2))
        m1y = self.h(xprior)
        obs_diff = F.normalize(torch.squeeze(y, 2) - y_prev, p=2, dim=1, eps=1e-12)
        innov = F.normalize((y - m1y).squeeze(2), p=2, dim=1, eps=1e-12)
        evol = F.normalize(xpost - xpost_prev, p=2, dim=1, eps=1e-12)

        def expand_dim(x):
            e = torch.empty(1, B, x.shape[-1])
            e[0, :, :] = x
            return e

        o, hQ1 = self.GRU_Q(expand_dim(evol), hQ[None])
        o2, hSig1 = self.GRU_Sigma(torch.cat((o, expand_dim(evol)), 2), hSig[None])
        o3, hS1 = self.GRU_S(torch.cat((o2, expand_dim(innov), expand_dim(obs_diff)), 2), hS[None])
        KG = torch.reshape(self.FC2(torch.cat((o2, o3), 2)).squeeze(0), (B, self.m, self.n))
        dy = y - m1y
        new = xprior + torch.bmm(KG, dy)
        return new.squeeze(2), (new.squeeze(2), xpost, y.squeeze(2), hQ1[0], hSig1[0], hS1[0])


@ZOO.cell((6, 2), [(6, 2), (6, 2)])
class PBDRope(nn.Module):
    e: torch.Tensor
    w: torch.Tensor

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([0.0, -1.0]))
        self.rest = nn.Parameter(torch.tensor(0.3))
        i = torch.arange(5)
        self.register_buffer("e", torch.stack([i, i + 1]))
        w = torch.ones(6)
        w[0] = 0
        self.register_buffer("w", w)

    def forward(self, f, st):
        p, v = st
        v = v + 0.05 * (self.g + f) * self.w[:, None]
        q = p + 0.05 * v
        i, j = self.e
        for _ in range(3):
            d = q[:, i] - q[:, j]
            L = d.norm(dim=-1, keepdim=True).clamp(min=1e-6)
            c = (L - self.rest) * d / L / (self.w[i] + self.w[j])[:, None]
            q = q.index_add(1, i, -c * self.w[i, None]).index_add(1, j, c * self.w[j, None])
        v = (q - p) / 0.05
        return q.flatten(1), (q, v)


@ZOO.cell((5, 2), [(5, 12), (5, 12), (5, 2)])
class SocialLSTM(nn.Module):
    def __init__(self, g=2):
        super().__init__()
        self.g = g
        self.emb = nn.Linear(2, 6)
        self.soc = nn.Linear(g * g * 12, 6)
        self.c = nn.LSTMCell(12, 12)
        self.out = nn.Linear(12, 5)

    def forward(self, x, st):
        h, c, pos = st
        B, N, _ = x.shape
        g = self.g
        pos = pos + 0.1 * x
        rel = pos[:, None] - pos[:, :, None]
        cellid = ((rel + 0.3) / 0.6 * g).floor()
        inside = ((cellid >= 0) & (cellid < g)).all(-1) & ~torch.eye(N, dtype=torch.bool)
        idx = (cellid[..., 0] + g * cellid[..., 1]).clamp(0, g * g - 1).long()
        at = F.one_hot(idx, g * g).to(h) * inside[..., None]
        grid = torch.einsum("bijg,bjh->bigh", at, h)
        e = torch.cat([F.relu(self.emb(x)), F.relu(self.soc(grid.flatten(2)))], -1)
        h1, c1 = self.c(e.view(B * N, -1), (h.reshape(B * N, -1), c.reshape(B * N, -1)))
        return self.out(h1).view(B, N, 5), (h1.view(B, N, -1), c1.view(B, N, -1), pos)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.z, self.n = nn.Linear(D + H, H), nn.Linear(D + H, H)

    def forward(self, x, h):
        xh = torch.cat([x, h], -1)
        z = torch.sigmoid(self.z(xh))
        return z * h + (1 - z) * torch.tanh(self.n(xh))


@ZOO.cell(D, [H])
class EnsembleClosed(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([Gated() for _ in range(4)])

    def forward(self, x, h):
        params, buffers = stack_module_state(list(self.cells))
        base = self.cells[0]
        hs = vmap(lambda p, b: functional_call(base, (p, b), (x, h)))(params, buffers)
        h = hs.mean(0)
        return hs.std(0), h


@ZOO.cell(D, [(8, 8)])
class TTTFuncDict(nn.Module):
    """fast weights beside the module's own, learning by grad of a functional call"""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8, bias=False)
        self.kvq = nn.Linear(D, 24)
        self.lr = nn.Parameter(torch.tensor(0.1))

    def loss(self, p, k, v):
        return F.mse_loss(functional_call(self.net, p, (k,)), v, reduction="sum")

    def forward(self, x, dW):
        k, v, q = self.kvq(x).chunk(3, -1)

        def one(dw, k, v, q):
            p = {n: w + dw for n, w in self.net.named_parameters()}
            g, l = grad_and_value(self.loss)(p, k, v)
            dw = dw - self.lr * g["weight"]
            return dw, functional_call(self.net, {"weight": self.net.weight + dw}, (q,)), l

        dW, y, l = vmap(one)(dW, k, v, q)
        return (y, l), dW


@ZOO.cell(D, [H])
class HardMoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.GRUCell(D, H) for _ in range(3)])
        self.router = nn.Linear(D + H, 3)

    def forward(self, x, h):
        logits = self.router(torch.cat([x, h], -1))
        p, idx = logits.softmax(-1).max(-1)
        outs = torch.stack([e(x, h) for e in self.experts])
        h = outs[idx, torch.arange(x.shape[0])] * p[:, None] + (1 - p[:, None]) * h
        return logits, h


@ZOO.cell(D, [H, 7, (7, 3)])
class DynamicConvolutionAttention(nn.Module):
    """Battenberg et al. (2020): the filters over the last alignment are made from the query."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(D + 3, H)
        self.filters = nn.Sequential(nn.Linear(H, 4), nn.Tanh(), nn.Linear(4, 2 * 3, bias=False))
        self.static = nn.Conv1d(1, 2, 3, padding=1, bias=False)
        self.U, self.T = nn.Linear(2, 4, bias=False), nn.Linear(2, 4)
        self.v = nn.Linear(4, 1, bias=False)

    def forward(self, x, state):
        h, alignment, memory = state
        B = x.size(0)
        G = self.filters(h).view(-1, 1, 3)
        g = F.conv1d(alignment.unsqueeze(0), G, padding=1, groups=B).view(B, 2, -1).transpose(1, 2)
        f = self.static(alignment.unsqueeze(1)).transpose(1, 2)
        alignment = self.v(torch.tanh(self.U(f) + self.T(g))).squeeze(-1).softmax(-1)
        context = torch.bmm(alignment.unsqueeze(1), memory).squeeze(1)
        h = self.rnn(torch.cat((context, x), -1), h)
        return h, (h, alignment, memory)
