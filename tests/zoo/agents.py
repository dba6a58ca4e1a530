"""Spiking networks, world models, solvers and memories; states that are named tuples, dicts and records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributions as torchd
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, NH, N = 6, 8, 2, 4


# ---- spiking
class LIFState(NamedTuple):
    z: torch.Tensor
    v: torch.Tensor
    i: torch.Tensor


class LIFParameters(NamedTuple):
    tau_syn_inv: torch.Tensor = torch.as_tensor(1.0 / 5e-3)
    tau_mem_inv: torch.Tensor = torch.as_tensor(1.0 / 1e-2)
    v_leak: torch.Tensor = torch.as_tensor(0.0)
    v_th: torch.Tensor = torch.as_tensor(1.0)
    v_reset: torch.Tensor = torch.as_tensor(0.0)
    alpha: float = 100.0


class SuperSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_tensor, alpha):
        ctx.save_for_backward(input_tensor)
        ctx.alpha = alpha
        return torch.heaviside(input_tensor, torch.as_tensor(0.0).to(input_tensor.dtype))

    @staticmethod
    def backward(ctx, grad_output):
        (inp,) = ctx.saved_tensors
        return grad_output / (ctx.alpha * torch.abs(inp) + 1.0).pow(2), None


@ZOO.cell(D, [H, H, H], form=LIFState)
class NorseLIF(nn.Module):
    """Pehle and Pedersen's norse: parameters and states are named tuples."""

    def __init__(self):
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(H, D))
        self.w_rec = nn.Parameter(torch.randn(H, H) / 3)
        self.p = LIFParameters()
        self.dt = 0.001

    def forward(self, x, s):
        p, dt = self.p, self.dt
        dv = dt * p.tau_mem_inv * ((p.v_leak - s.v) + s.i)
        v_decayed = s.v + dv
        i_decayed = s.i + -dt * p.tau_syn_inv * s.i
        z_new = SuperSpike.apply(v_decayed - p.v_th, p.alpha)
        v_new = (1 - z_new.detach()) * v_decayed + z_new.detach() * p.v_reset
        i_new = i_decayed + F.linear(x, self.w_in) + F.linear(s.z, self.w_rec)
        return z_new, LIFState(z_new, v_new, i_new)


class Surr(torch.autograd.Function):
    gamma = 0.5
    lens = 0.5

    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.gt(0).to(input.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()

        def gaussian(x, mu=0.0, sigma=0.5):
            return torch.exp(-((x - mu) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi) / sigma

        temp = (
            gaussian(input, mu=0.0, sigma=Surr.lens) * (1.0 + 0.15)
            - gaussian(input, mu=Surr.lens, sigma=6 * Surr.lens) * 0.15
            - gaussian(input, mu=-Surr.lens, sigma=6 * Surr.lens) * 0.15
        )
        return grad_input * temp.to(input.dtype) * Surr.gamma


act_fun_adp = Surr.apply


@ZOO.cell(D, [H, H, H])
class AdaptiveSRNN(nn.Module):
    """Yin et al. (2021): ALIF with learnt time constants."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(D, H)
        self.rec = nn.Linear(H, H)
        self.tau_m = nn.Parameter(torch.rand(H) + 5)
        self.tau_adp = nn.Parameter(torch.rand(H) + 20)

    def forward(self, x, state):
        mem, spike, b = state
        inputs = self.dense(x) + self.rec(spike)
        alpha = torch.exp(-1.0 * 1 / self.tau_m)
        ro = torch.exp(-1.0 * 1 / self.tau_adp)
        b = ro * b + (1 - ro) * spike
        B = 0.1 + 1.8 * b
        mem = mem * alpha + (1 - alpha) * 1.0 * inputs - B * spike * 1
        spike = act_fun_adp(mem - B)
        return spike, (mem, spike, b)


@ZOO.cell(D, [H, H])
class SnnTorchSynaptic(nn.Module):
    """snntorch: reset to zero, by a mask of what spiked; straight through by detach."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(D, H)
        self.register_buffer("alpha", torch.tensor(0.8))
        self.beta = nn.Parameter(torch.tensor(0.9))
        self.register_buffer("threshold", torch.tensor(1.0))

    def fire(self, mem):
        mem_shift = mem - self.threshold
        fwd = (mem_shift > 0).to(mem.dtype)
        bwd = torch.sigmoid(25 * mem_shift)
        return (fwd - bwd).detach() + bwd

    def forward(self, x, state):
        syn, mem = state
        reset = (mem - self.threshold > 0).to(mem.dtype).detach()
        base_syn = self.alpha.clamp(0, 1) * syn + self.fc(x)
        base_mem = self.beta.clamp(0, 1) * mem + base_syn
        syn = base_syn
        mem = base_mem - reset * base_mem
        return self.fire(mem), (syn, mem)


# ---- state spaces, complex
@ZOO.cell(D, [(D, N)], floats="complex")
class S4DStep(nn.Module):
    """Gu et al. (2022), as the authors' kernel has it, a step."""

    def __init__(self):
        super().__init__()
        self.C = nn.Parameter(torch.randn(D, N, 2))
        self.log_dt = nn.Parameter(torch.rand(D) - 2)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(D, N)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(N).float().repeat(D, 1))
        self.D = nn.Parameter(torch.randn(D))
        self.out = nn.Linear(D, 2 * D)

    def forward(self, u, state):
        dt = torch.exp(self.log_dt)
        C = torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        C = C * (torch.exp(dtA) - 1.0) / A
        state = torch.einsum("hn,bhn->bhn", torch.exp(dtA), state) + u.unsqueeze(-1)
        y = 2 * torch.einsum("hn,bhn->bh", C, state).real
        y = F.glu(self.out(F.gelu(y + self.D * u)), dim=-1)
        return y, state


@ZOO.cell(D, [N], floats="complex")
class LRUZucchet(nn.Module):
    """Orvieto et al. (2023): eigenvalues by two exponentials, C of two parts."""

    def __init__(self):
        super().__init__()
        self.nu_log = nn.Parameter(torch.rand(N))
        self.theta_log = nn.Parameter(torch.rand(N))
        self.gamma_log = nn.Parameter(torch.rand(N))
        self.B_re, self.B_im = (nn.Parameter(torch.randn(N, D) / 3) for _ in range(2))
        self.C_re, self.C_im = (nn.Parameter(torch.randn(D, N) / 3) for _ in range(2))
        self.D = nn.Parameter(torch.randn(D))

    def forward(self, x, h):
        diag_lambda = torch.exp(torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log)))
        B_norm = (self.B_re + 1j * self.B_im) * torch.exp(self.gamma_log).unsqueeze(dim=-1)
        C = self.C_re + 1j * self.C_im
        h = diag_lambda * h + x.to(B_norm.dtype) @ B_norm.T
        return (h @ C.T).real + self.D * x, h


# ---- continuous time
@ZOO.cell(D + 1, [H, H])
class LatentODEEncoder(nn.Module):
    """Rubanova's GRU_unit: means and spreads, kept where nothing was seen."""

    def __init__(self):
        super().__init__()

        def mk(o):
            return nn.Sequential(nn.Linear(2 * H + D, 10), nn.Tanh(), nn.Linear(10, o))

        self.update_gate, self.reset_gate, self.new_state_net = (
            nn.Sequential(*mk(H), nn.Sigmoid()),
            nn.Sequential(*mk(H), nn.Sigmoid()),
            mk(2 * H),
        )
        self.ode = nn.Sequential(nn.Linear(H, 10), nn.Tanh(), nn.Linear(10, H))

    def forward(self, inp, state):
        y_mean, y_std = state
        dt, x = inp[:, :1].abs(), inp[:, 1:]
        y_mean = y_mean + self.ode(y_mean) * dt
        y_concat = torch.cat([y_mean, y_std, x], -1)
        update_gate, reset_gate = self.update_gate(y_concat), self.reset_gate(y_concat)
        concat = torch.cat([y_mean * reset_gate, y_std * reset_gate, x], -1)
        new_state, new_state_std = torch.chunk(self.new_state_net(concat), 2, -1)
        new_state_std = new_state_std.abs()
        new_y = (1 - update_gate) * new_state + update_gate * y_mean
        new_y_std = (1 - update_gate) * new_state_std + update_gate * y_std
        mask = (torch.sum(x[:, D // 2 :] > 0, -1, keepdim=True) > 0).to(x.dtype)
        new_y = mask * new_y + (1 - mask) * y_mean
        new_y_std = (mask * new_y_std + (1 - mask) * y_std).abs()
        return new_y, (new_y, new_y_std)


@ZOO.cell(D + 1, [H])
class RK4Solver(nn.Module):
    """A small odeint over a grid of times, which keeps what it finds in a list."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(H + 1, 10), nn.Tanh(), nn.Linear(10, H))
        self.cell = nn.GRUCell(D, H)

    def f(self, t, y):
        return self.net(torch.cat([y, torch.full_like(y[:, :1], t)], dim=-1))

    def forward(self, inp, h):
        x, dt = inp[:, :-1], inp[:, -1:].abs()
        grid = torch.linspace(0, 1, 4).tolist()
        ys = [h]
        for t0, t1 in pairwise(grid):
            step = (t1 - t0) * dt
            y = ys[-1]
            k1 = self.f(t0, y)
            k2 = self.f((t0 + t1) / 2, y + step * k1 / 2)
            k3 = self.f((t0 + t1) / 2, y + step * k2 / 2)
            k4 = self.f(t1, y + step * k3)
            ys.append(y + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        h = self.cell(x, ys[-1])
        return torch.stack(ys, 1).mean(1), h


# ---- world models
class OneHotDist(torchd.one_hot_categorical.OneHotCategorical):
    def __init__(self, logits=None, probs=None, unimix_ratio=0.0):
        if logits is not None and unimix_ratio > 0.0:
            probs = F.softmax(logits, dim=-1)
            probs = probs * (1.0 - unimix_ratio) + unimix_ratio / probs.shape[-1]
            logits = torch.log(probs)
            super().__init__(logits=logits, probs=None)
        else:
            super().__init__(logits=logits, probs=probs)

    def mode(self):
        _mode = F.one_hot(torch.argmax(super().logits, axis=-1), super().logits.shape[-1])
        return _mode.detach() + super().logits - super().logits.detach()

    def sample(self, sample_shape=(), seed=None):
        sample = super().sample(sample_shape).detach()
        probs = super().probs
        while len(probs.shape) < len(sample.shape):
            probs = probs[None]
        sample += probs - probs.detach()
        return sample


def by_name(stoch, deter, logit):
    """A state as Dreamer has it."""
    return {"stoch": stoch, "deter": deter, "logit": logit}


class DreamerCore(nn.Module):
    def __init__(self):
        super().__init__()
        self._img_in = nn.Sequential(nn.Linear(12 + 3, H, bias=False), nn.LayerNorm(H, eps=1e-3), nn.SiLU())
        self._cell_layer = nn.Linear(2 * H, 3 * H, bias=False)
        self.norm = nn.LayerNorm(3 * H, eps=1e-3)
        self._img = nn.Linear(H, 12)
        self._obs = nn.Linear(H + 3, 12)
        self.w = nn.Parameter(torch.zeros(H))

    def dist(self, logit):
        return torchd.independent.Independent(OneHotDist(logit, unimix_ratio=0.01), 1)

    def pick(self, d):
        return d.base_dist.mode()

    def forward(self, inp, prev):
        action, embed = inp[:, :3], inp[:, 3:]
        x = self._img_in(torch.cat([prev["stoch"].reshape([*prev["stoch"].shape[:-2], 12]), action], -1))
        parts = self.norm(self._cell_layer(torch.cat([x, prev["deter"]], -1)))
        reset, cand, update = torch.split(parts, [H] * 3, -1)
        reset = torch.sigmoid(reset)
        cand = torch.tanh(reset * cand)
        update = torch.sigmoid(update - 1)
        deter = update * cand + (1 - update) * prev["deter"]
        prior_logit = self._img(deter).reshape(-1, 3, 4)
        logit = self._obs(torch.cat([deter, embed], -1)).reshape([*deter.shape[:-1], 3, 4])
        stoch = self.pick(self.dist(logit))
        kld = torchd.kl.kl_divergence
        rep = torch.clip(kld(self.dist(logit), self.dist(prior_logit.detach())), min=1.0)
        dyn = torch.clip(kld(self.dist(logit.detach()), self.dist(prior_logit)), min=1.0)
        post = {"stoch": stoch, "deter": deter, "logit": logit}
        return (deter, 0.5 * dyn + 0.1 * rep), post


@ZOO.cell(D, [(3, 4), H, (3, 4)], form=by_name)
class DreamerFirst(DreamerCore):
    """NM512's obs_step: states begun anew where is_first says so, if any does."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.zeros(H))

    def initial(self, n):
        return {
            "stoch": torch.zeros(n, 3, 4),
            "deter": torch.tanh(self.W).repeat(n, 1),
            "logit": torch.zeros(n, 3, 4),
        }

    def forward(self, inp, prev):
        is_first = (inp[:, 0] > 1.2).to(inp.dtype)
        if torch.sum(is_first) > 0:
            first = is_first[:, None]
            inp = inp * (1.0 - first)
            init = self.initial(len(is_first))
            new = {}
            for key, val in prev.items():
                is_first_r = torch.reshape(
                    is_first, is_first.shape + (1,) * (len(val.shape) - len(is_first.shape))
                )
                new[key] = val * (1.0 - is_first_r) + init[key] * is_first_r
            prev = new
        return super().forward(inp, prev)


@dataclass
class Latent:
    mean: torch.Tensor
    std: torch.Tensor
    h: torch.Tensor

    def dist(self):
        return torchd.Normal(self.mean, self.std)


@ZOO.cell(D, [N, N, H], noise=True, form=Latent)
class PlanetRSSM(nn.Module):
    """A state that is a dataclass, normals by rsample, KL with free nats."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(H, H)
        self.inp = nn.Linear(N + D, H)
        self.prior = nn.Linear(H, 2 * N)
        self.post = nn.Linear(H + D, 2 * N)

    def forward(self, x, s):
        z = torchd.Normal(s.mean, F.softplus(s.std) + 0.1).rsample()
        h = self.cell(F.elu(self.inp(torch.cat([z, x], dim=-1))), s.h)
        pm, ps = torch.chunk(self.prior(h), 2, dim=-1)
        qm, qs = torch.chunk(self.post(torch.cat([h, x], dim=-1)), 2, dim=-1)
        kl = torchd.kl_divergence(
            torchd.Normal(qm, F.softplus(qs) + 0.1), torchd.Normal(pm, F.softplus(ps) + 0.1)
        ).sum(-1)
        return (h, torch.max(kl, torch.full_like(kl, 0.5))), Latent(qm, qs, h)


# ---- memory and attention
@ZOO.cell(D, [(4, N), (4, N), 1])
class KVCacheBlock(nn.Module):
    """A decoder layer with a cache of keys and values that is shifted, RoPE by position, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(D, N, bias=False),
            nn.Linear(D, N, bias=False),
            nn.Linear(D, N, bias=False),
            nn.Linear(N, D, bias=False),
        )
        self.w1, self.w2, self.w3 = (
            nn.Linear(D, 9, bias=False),
            nn.Linear(9, D, bias=False),
            nn.Linear(D, 9, bias=False),
        )
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, N, 2).float() / N)))

    def rotate_half(self, x):
        x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-x2, x1), dim=-1)

    def forward(self, x, state):
        ck, cv, pos = state
        h = self.n1(x)
        q, k, v = self.wq(h), self.wk(h), self.wv(h)
        freqs = pos.floor() * self.inv_freq.to(pos.dtype)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos(), emb.sin()
        q = q * cos + self.rotate_half(q) * sin
        k = k * cos + self.rotate_half(k) * sin
        ck = torch.cat([ck[:, 1:], k.unsqueeze(1)], dim=1)
        cv = torch.cat([cv[:, 1:], v.unsqueeze(1)], dim=1)
        valid = torch.arange(4, device=x.device)[None, :] >= (3 - pos)
        o = F.scaled_dot_product_attention(
            q[:, None, None], ck[:, None], cv[:, None], attn_mask=valid[:, None, None]
        ).flatten(1)
        x = x + self.wo(o)
        h = self.n2(x)
        x = x + self.w2(F.silu(self.w1(h)) * self.w3(h))
        return x, (ck, cv, pos + 1)


@ZOO.cell(D, [(3, N * 2), (3, H)])
class MHAMemory(nn.Module):
    """Relational memory core: slots attend to themselves and the input, by nn.MultiheadAttention, gated."""

    def __init__(self):
        super().__init__()
        self.att = nn.MultiheadAttention(H, 2, batch_first=True)
        self.inp = nn.Linear(D, H)
        self.mlp = nn.Sequential(nn.Linear(H, H), nn.ReLU(), nn.Linear(H, H))
        self.ln1, self.ln2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.gx, self.gm = nn.Linear(H, 2 * H), nn.Linear(H, 2 * H)

    def forward(self, x, state):
        m, _ = state
        xi = self.inp(x).unsqueeze(1)
        mem = torch.cat([m, xi], dim=1)
        a, _ = self.att(m, mem, mem, need_weights=False)
        new = self.ln1(m + a)
        new = self.ln2(new + self.mlp(new))
        i, f = (self.gx(xi) + self.gm(torch.tanh(m))).chunk(2, dim=2)
        m2 = torch.sigmoid(i + 0.0) * torch.tanh(new) + torch.sigmoid(f + 1.0) * m
        return m2.flatten(1), (m2, m)


@ZOO.cell(D, [H, (7, D), 7])
class PointerNet(nn.Module):
    """Bello et al.: masked glimpses over items, the chosen one masked by scatter, its embedding gathered."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2 * D, H)
        self.wq, self.wr = nn.Linear(H, N), nn.Linear(D, N)
        self.v = nn.Parameter(torch.randn(N))

    def forward(self, x, state):
        h, items, mask = state
        used = mask > 0.9
        h = self.cell(torch.cat([x, items.mean(1)], 1), h)
        u = torch.matmul(torch.tanh(self.wq(h).unsqueeze(1) + self.wr(items)), self.v)
        logits = 10 * torch.tanh(u)
        logits = logits.masked_fill(used, float("-1e9"))
        p = F.log_softmax(logits, dim=-1)
        idx = p.argmax(dim=-1)
        mask = mask.scatter(1, idx.unsqueeze(1), 0.95)
        chosen = items.gather(1, idx.view(-1, 1, 1).expand(-1, 1, D)).squeeze(1)
        logp = p.gather(1, idx.unsqueeze(1)).squeeze(1)
        return (chosen, logp, idx), (h, items + 0.01 * h[:, None, :D], mask)
