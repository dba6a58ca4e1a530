"""Cells of torch's own modules, transforms and distributions, stepped."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import torch
import torch.distributions as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from .kinds import Zoo

ZOO = Zoo()
D, H, NH, N = 6, 8, 2, 4


@ZOO.cell(D, [(2, H), (2, H)])
class LSTMModuleStep(nn.Module):
    """nn.LSTM of two layers, one step at a time."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(D, H, num_layers=2, batch_first=True)
        self.fc = nn.Linear(H, D)

    def forward(self, x, hidden):
        h, c = (t.transpose(0, 1).contiguous() for t in hidden)
        out, (h, c) = self.lstm(x.unsqueeze(1), (h, c))
        return self.fc(out.squeeze(1)), (h.transpose(0, 1), c.transpose(0, 1))


@ZOO.cell(D, [(5, N), 1])
class RowWrites(nn.Module):
    """mem[arange(B), slot] read and written."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(D, N)
        self.pick = nn.Linear(D, 5)

    def forward(self, x, state):
        mem, t = state
        B = x.size(0)
        mem = mem.clone()
        slot = t.squeeze(1).floor().long() % 5
        mem[torch.arange(B, device=x.device), slot] = torch.tanh(self.inp(x))
        best = self.pick(x).argmax(dim=1)
        y = mem[torch.arange(B), best]
        return y, (mem, t + 1)


def sparsemax(z, dim=-1):
    z = z - z.max(dim=dim, keepdim=True)[0]
    zs = torch.sort(z, dim=dim, descending=True)[0]
    rng = torch.arange(1, z.size(dim) + 1, device=z.device, dtype=z.dtype)
    bound = 1 + rng * zs
    cum = torch.cumsum(zs, dim)
    is_gt = torch.gt(bound, cum).type(z.type())
    k = torch.max(is_gt * rng, dim, keepdim=True)[0]
    taus = (torch.sum(is_gt * zs, dim, keepdim=True) - 1) / k
    return torch.max(torch.zeros_like(z), z - taus)


@ZOO.cell(D, [(5, D)])
class SparsemaxAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(D, D)

    def forward(self, x, mem):
        a = sparsemax(torch.bmm(mem, self.q(x).unsqueeze(2)).squeeze(2))
        r = torch.bmm(a.unsqueeze(1), mem).squeeze(1)
        return r, torch.cat([mem[:, 1:], torch.tanh(x + r).unsqueeze(1)], 1)


@ZOO.cell(D, [H])
class BitLinearGRU(nn.Module):
    """BitNet's straight-through ternary weights and int8 activations."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(2 * H, D) / 2), nn.Parameter(torch.randn(2 * H, H) / 2)
        self.norm = nn.RMSNorm(H)

    def wq(self, w):
        scale = 1.0 / w.abs().mean().clamp_(min=1e-5)
        return w + ((w * scale).round().clamp_(-1, 1) / scale - w).detach()

    def aq(self, x):
        scale = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        return x + ((x * scale).round().clamp_(-128, 127) / scale - x).detach()

    def forward(self, x, h):
        z, c = (
            F.linear(self.aq(x), self.wq(self.w)) + F.linear(self.aq(self.norm(h)), self.wq(self.u))
        ).chunk(2, -1)
        z = torch.sigmoid(z)
        h = (1 - z) * h + z * torch.tanh(c)
        return h, h


@ZOO.cell(D, [H])
class EnsembleVmap(nn.Module):
    """Experts stacked by torch.func, run by vmap, mixed."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(D + H, 7), nn.Tanh(), nn.Linear(7, H)) for _ in range(3)]
        )
        self.gate = nn.Linear(H, 3)

    def forward(self, x, h):
        params, buffers = stack_module_state(list(self.experts))
        base = self.experts[0]
        out = vmap(lambda p, b, z: functional_call(base, (p, b), (z,)), in_dims=(0, 0, None))(
            params, buffers, torch.cat([x, h], 1)
        )
        h = torch.tanh(torch.einsum("ebh,be->bh", out, self.gate(h).softmax(1)))
        return h, h


@ZOO.cell(D, [(4, H)])
class EncoderLayerMemory(nn.Module):
    """nn.TransformerEncoderLayer over a window of the past."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(D, H)
        self.layer = nn.TransformerEncoderLayer(H, 2, 12, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x, mem):
        seq = torch.cat([mem, self.inp(x).unsqueeze(1)], 1)
        out = self.layer(seq)
        return out[:, -1], torch.cat([mem[:, 1:], out[:, -1:]], 1)


@ZOO.cell(D, [H, N], noise=True)
class SACActor(nn.Module):
    """A squashed Gaussian by TransformedDistribution, log probabilities."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D + N, H)
        self.net = nn.Linear(H, 2 * N)

    def forward(self, x, state):
        h, a = state
        h = self.cell(torch.cat([x, a], -1), h)
        mu, ls = self.net(h).chunk(2, -1)
        base = dist.Normal(mu, ls.clamp(-5, 2).exp())
        law = dist.TransformedDistribution(base, [dist.transforms.TanhTransform(cache_size=1)])
        a = law.rsample()
        return (a, law.log_prob(a).sum(-1)), (h, a)


@ZOO.cell(D, [H])
class MDNRNN(nn.Module):
    """World Models: mixtures of normals as MixtureSameFamily."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D, H)
        self.head = nn.Linear(H, 3 + 2 * 3 * D)

    def forward(self, x, h):
        pi, mu, ls = torch.split(self.head(h), [3, 3 * D, 3 * D], -1)
        mix = dist.MixtureSameFamily(
            dist.Categorical(logits=pi),
            dist.Independent(dist.Normal(mu.view(-1, 3, D), ls.view(-1, 3, D).exp()), 1),
        )
        nll = -mix.log_prob(x)
        h = self.cell(x, h)
        return nll, h


@ZOO.cell(D, [(2, H)])
class NamedLayers(nn.Module):
    """getattr by names made at run time, options in a namespace, activations in a dict."""

    ACTS = MappingProxyType({"tanh": torch.tanh, "silu": F.silu})

    def __init__(self):
        super().__init__()
        self.cfg = SimpleNamespace(layers=2, act="silu", scale=0.5)
        for i in range(2):
            setattr(self, f"w{i}", nn.Linear(D if i == 0 else H, H))
            self.add_module(f"u{i}", nn.Linear(H, H, bias=False))

    def forward(self, x, state):
        new = []
        for i, h in enumerate(state.unbind(1)):
            x = (
                self.ACTS[self.cfg.act](getattr(self, f"w{i}")(x) + getattr(self, f"u{i}")(h))
                * self.cfg.scale
            )
            new.append(x)
        return x, torch.stack(new, dim=1)


@ZOO.cell(D, [(1, 6, 6)])
class SpatialTransformer(nn.Module):
    """A canvas that is sampled and written through affine grids, as DRAW and AIR do."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Linear(D, 6)
        self.write = nn.Linear(D, 9)

    def forward(self, x, canvas):
        theta = self.theta(x).view(-1, 2, 3) * 0.3 + torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        grid = F.affine_grid(theta, (x.size(0), 1, 3, 3), align_corners=False)
        glimpse = F.grid_sample(canvas, grid, align_corners=False)
        back = F.affine_grid(theta, (x.size(0), 1, 6, 6), align_corners=False)
        patch = (glimpse.flatten(1) * 0.5 + self.write(x)).view(-1, 1, 3, 3)
        canvas = torch.tanh(canvas + F.grid_sample(patch, back, padding_mode="zeros", align_corners=False))
        return glimpse.flatten(1), canvas


@ZOO.cell(D, [(1, 8, 8)])
class DRAWFilters(nn.Module):
    """Gregor et al.: filter banks of Gaussians, F_Y @ canvas @ F_X^T."""

    def __init__(self):
        super().__init__()
        self.p = nn.Linear(D, 4)
        self.w = nn.Linear(D, 9)

    def bank(self, g, delta, sigma, A):
        mu = g[:, None] + (torch.arange(3) - 1.0) * delta[:, None]
        a = torch.arange(A).view(1, 1, -1)
        Fb = torch.exp(-(((a - mu.unsqueeze(2)) / (2 * sigma.view(-1, 1, 1))) ** 2))
        return Fb / (Fb.sum(2, keepdim=True) + 1e-8)

    def forward(self, x, c):
        gx, gy, ls, ld = self.p(x).split(1, 1)
        gx, gy = 4.5 * (gx.squeeze(1) + 1), 4.5 * (gy.squeeze(1) + 1)
        s2, delta = ls.squeeze(1).exp(), ld.squeeze(1).exp()
        Fx, Fy = self.bank(gx, delta, s2, 8), self.bank(gy, delta, s2, 8)
        img = c.squeeze(1)
        read = Fy.bmm(img).bmm(Fx.transpose(1, 2))
        w = self.w(x).view(-1, 3, 3)
        img = img + Fy.transpose(1, 2) @ w @ Fx
        return read.reshape(-1, 9), torch.sigmoid(img).unsqueeze(1)


@ZOO.cell(D, [H])
class JacobianPenalty(nn.Module):
    """A contraction penalty of the step's own Jacobian, a spectral norm by a power step."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(D, H), nn.Parameter(torch.randn(H, H) / 3)
        self.register_buffer("v", F.normalize(torch.randn(H), dim=0))

    def forward(self, x, h):
        v = self.v.to(self.u.dtype)
        with torch.no_grad():
            t = F.normalize(self.u @ v, dim=0)
            v = F.normalize(self.u.t() @ t, dim=0)
        sigma = torch.dot(t, self.u @ v)

        def f(h, x):
            return torch.tanh(self.w(x) + h @ self.u.T / sigma)

        J = vmap(torch.func.jacrev(f))(h, x)
        h = f(h, x)
        return (h, J.pow(2).sum((1, 2))), h


@ZOO.cell(D, [H, (3, H)])
class WeightNormed(nn.Module):
    """weight_norm by parametrization, layer norm over x.size()[1:], history by deque-like lists."""

    def __init__(self):
        super().__init__()
        self.w = nn.utils.parametrizations.weight_norm(nn.Linear(D + H, H))
        self.a = nn.Parameter(torch.zeros(4))

    def forward(self, x, state):
        h, hist = state
        past = [*torch.unbind(hist, dim=1), h]
        mix = sum(w * p for w, p in zip(self.a.softmax(0), past, strict=True))
        z = self.w(torch.cat([x, mix], -1))
        h = torch.tanh(F.layer_norm(z, z.size()[1:]))
        return h, (h, torch.stack(past[1:], dim=1))
