"""Cells of 2024 to 2026 and of the fields around them, as found in their repositories."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .kinds import Zoo

ZOO = Zoo()
D, H, N = 6, 8, 4


@ZOO.cell(D, [H, (H, N)])
class XLSTMGated(nn.Module):
    """Exponential gates held in a dict of linear layers, soft-capped."""

    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleDict({name: nn.Linear(D + H, H) for name in ("i", "f", "o", "z")})
        self.read = nn.Parameter(torch.randn(N) / N)
        self.cap = 15.0

    def soft_cap(self, v):
        return self.cap * torch.tanh(v / self.cap)

    def forward(self, x, state):
        h, c = state
        xh = torch.cat((x, h), dim=-1)
        g = {name: layer(xh) for name, layer in self.gates.items()}
        f = F.logsigmoid(self.soft_cap(g["f"])).exp().unsqueeze(-1)
        i = torch.sigmoid(self.soft_cap(g["i"]))[..., None]
        c = f * c + i * torch.einsum("bh,n->bhn", g["z"].tanh(), self.read)
        h = g["o"].sigmoid() * F.normalize(c.sum(-1), dim=-1, eps=1e-6)
        return h, (h, c)


class _FastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, slope):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (ctx.slope * v.abs() + 1.0) ** 2, None


@ZOO.cell(D, [H, H, H])
class TernaryAdaptiveLIF(nn.Module):
    """Spikes of both signs, learnt decays, soft reset, states in a tuple that is updated in place."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(D, H, bias=False)
        self.rec = nn.Linear(H, H, bias=False)
        self.raw_tau = nn.Parameter(torch.empty(H).uniform_(1.0, 3.0))
        self.register_buffer("threshold", torch.tensor(0.3))

    def forward(self, x, state):
        v, a, s = (t.clone() for t in state)
        beta = torch.clamp(1 - 1 / F.softplus(self.raw_tau), min=0.01, max=0.99)
        v *= beta
        v += self.fc(x) + self.rec(s)
        theta = self.threshold + a.abs()
        s = _FastSigmoid.apply(v - theta, 25.0) - _FastSigmoid.apply(-v - theta, 25.0)
        v -= s * theta
        a = a.mul(0.9).add_(s, alpha=0.1)
        return s, (v, a, s)


@ZOO.cell((D, 2), [(H, N)])
class GatedKVSlots(nn.Module):
    """Keys and values written to the slot that least is used, by softmax of a negative age."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(2 * D, 2 * H + N)
        self.scale = H**-0.5
        self.register_buffer("age", torch.arange(N).float(), persistent=False)

    def forward(self, x, memory):
        q, v, slot = torch.split(self.qkv(x.reshape(x.size(0), -1)), [H, H, N], dim=1)
        where = torch.softmax(slot - self.age.to(slot.dtype), -1)
        memory = memory * (1 - where.unsqueeze(1)) + torch.bmm(v.unsqueeze(2), where.unsqueeze(1))
        att = F.softmax(torch.matmul(q[:, None], memory).squeeze(1) * self.scale, dim=-1)
        return (memory @ att.unsqueeze(-1)).squeeze(-1), memory


@ZOO.cell(3, [2, (2, 2)])
class SquareRootUKFGain(nn.Module):
    """A filter with a learnt noise, its covariance kept symmetric by hand, in torch.linalg."""

    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.eye(2) * 0.9)
        self.C = nn.Parameter(torch.randn(3, 2))
        self.log_q, self.log_r = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))

    def forward(self, z, state):
        m, P = state
        P = P @ P.mT + torch.eye(2, dtype=P.dtype, device=P.device)
        m = m @ self.A.T
        P = self.A @ P @ self.A.T + torch.diag_embed(self.log_q.exp())
        S = self.C @ P @ self.C.T + torch.diag(self.log_r.exp())
        innovation = z - F.linear(m, self.C)
        L = torch.linalg.cholesky(S)
        K = torch.cholesky_solve(self.C @ P, L).mT
        m = m + torch.einsum("bij,bj->bi", K, innovation)
        P = P - K @ S @ K.transpose(-2, -1)
        loglik = -0.5 * torch.cholesky_solve(innovation[..., None], L).squeeze(-1).mul(innovation).sum(-1)
        loglik = loglik - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.cat([m, loglik[:, None]], 1), (m, 0.5 * (P + P.mT) * 0.1)


@ZOO.cell(1, [1, 1, 1])
class DifferentiableHedge(nn.Module):
    """Deep hedging: a position by a net, proportional costs, wealth; shapes with a dimension of one."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, H), nn.SiLU(), nn.LayerNorm(H), nn.Linear(H, 1), nn.Hardtanh(-2, 2)
        )
        self.cost = 1e-3

    def forward(self, ret, state):
        wealth, position, log_price = state
        new = self.net(torch.hstack([log_price, position, wealth]))
        trade = (new - position).abs()
        log_price = log_price + ret * 0.1
        wealth = wealth + position * torch.expm1(ret * 0.1) - self.cost * trade * log_price.exp()
        return (wealth, new), (wealth, new, log_price)


@ZOO.cell(D, [(N, H)])
class GatedGraphODE(nn.Module):
    """A graph of N nodes, its adjacency learnt and masked by a buffer, two Heun substeps."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(D, N * H)
        self.emb1, self.emb2 = (nn.Parameter(torch.randn(N, 3)) for _ in range(2))
        self.mix = nn.ModuleList([nn.Linear(H, H) for _ in range(2)])
        self.register_buffer("mask", ~torch.eye(N, dtype=torch.bool))

    def adjacency(self):
        logits = F.relu(self.emb1 @ self.emb2.t())
        return logits.masked_fill(~self.mask, float("-inf")).softmax(dim=1)

    def rhs(self, h, u, adj):
        for layer in self.mix:
            h = torch.tanh(layer(torch.einsum("nm,bmh->bnh", adj, h)))
        return u - h

    def forward(self, x, h):
        adj, u = self.adjacency(), self.enc(x).view(-1, N, H)
        dt = 0.25
        for _ in range(2):
            k1 = self.rhs(h, u, adj)
            k2 = self.rhs(h + dt * k1, u, adj)
            h = h + dt / 2 * (k1 + k2)
        return h.mean(dim=1), h


@torch.jit.script
def _gate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(a) * F.gelu(b, approximate="tanh")


@ZOO.cell(D, [H, H])
class ScriptedGate(nn.Module):
    """A scripted helper, an optional argument, an assert on shapes, scalars that are parameters."""

    def __init__(self):
        super().__init__()
        self.inp, self.hid = nn.Linear(D, 2 * H), nn.Linear(H, 2 * H, bias=False)
        self.alpha = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, state, skip=None):
        h, slow = state
        assert x.dim() == 2, "rows of features"
        a, b = (self.inp(x) + self.hid(h)).chunk(2, dim=-1)
        if skip is not None:
            b = b + skip
        h = _gate(a, b) + self.alpha * slow
        slow = torch.lerp(slow, h, 0.1)
        return h, (h, slow)


@ZOO.cell(D, [(H, 2)])
class RotaryComplexSSM(nn.Module):
    """A diagonal of complex numbers kept as pairs, input-dependent rotation (as Mamba-3 has it)."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, 4 * H)
        self.log_a = nn.Parameter(torch.rand(H).log())

    def forward(self, x, s):
        dt, theta, b, c = self.proj(x).tensor_split(4, dim=-1)
        dt = F.softplus(dt)
        a = torch.polar(torch.exp(-dt * self.log_a.exp()), theta * math.pi)
        z = torch.view_as_complex(s.contiguous()) * a + (dt * b)
        return (z * torch.conj(z)).real.clamp_min(1e-6).sqrt() * c, torch.view_as_real(z)


@ZOO.cell((2, D), [H, 1])
class SuccessorTrace(nn.Module):
    """TD(lambda) with eligibility traces: two observations a row, one under no_grad."""

    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(D, H), nn.Mish())
        self.w = nn.Parameter(torch.randn(H) * 0.1)

    def forward(self, obs, state):
        trace, avg = state
        now, after = obs.unbind(dim=1)
        phi = self.phi(now)
        with torch.no_grad():
            target = self.phi(after).mv(self.w)
        delta = 0.99 * target - phi.matmul(self.w)
        trace = torch.addcmul(phi, trace, torch.full_like(trace, 0.95 * 0.99))
        avg = avg + 0.01 * (delta.unsqueeze(-1) - avg)
        return F.smooth_l1_loss(delta, target, reduction="none", beta=0.5)[:, None] * trace, (trace, avg)


@ZOO.cell(D, [(3, 5, 5)])
class ReactionDiffusion(nn.Module):
    """A PDE by learnt stencils on a torus: circular pads, a fixed Laplacian as a buffer, depthwise."""

    def __init__(self):
        super().__init__()
        lap = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
        self.register_buffer("lap", lap.expand(3, 1, 3, 3).clone())
        self.force = nn.Linear(D, 3)
        self.react = nn.Conv2d(3, 3, kernel_size=1)
        self.diff = nn.Parameter(torch.full((3, 1, 1), 0.1))

    def forward(self, x, u):
        lap = F.conv2d(F.pad(u, (1, 1, 1, 1), mode="circular"), self.lap.to(u), groups=3)
        u = u + self.diff * lap + 0.1 * self.react(u).tanh() + self.force(x)[:, :, None, None] * 0.01
        return u.amax(dim=(-2, -1)), u


@ZOO.cell(D, [H, H], form=lambda h, c: {"layers": [h, c], "step": torch.zeros(len(h), 1, dtype=h.dtype)})
class WarmupStack(nn.Module):
    """States in a dict with a list in it, a counter that scales, a ParameterDict, layers that are zipped."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(D, H), nn.GRUCell(H, H)])
        self.scales = nn.ParameterDict({"0": nn.Parameter(torch.ones(1)), "1": nn.Parameter(torch.zeros(H))})

    def forward(self, x, state):
        layers, out = list(state["layers"]), x
        warm = torch.clamp(state["step"] / 10.0, max=1.0)
        for i, cell in enumerate(self.cells):
            layers[i] = cell(out, layers[i])
            out = layers[i] * (1 + self.scales[str(i)] * warm)
        return out, {"layers": layers, "step": state["step"] + 1}


@ZOO.cell(D, [(N, N), H])
class DiffTransformerState(nn.Module):
    """Two softmaxes whose difference is taken, lambda by exps of dot products, group norm over heads."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, 2 * N), nn.Linear(D, 2 * N), nn.Linear(D, N)
        self.lq, self.lk = (nn.Parameter(torch.randn(2, N) * 0.1) for _ in range(2))
        self.norm = nn.GroupNorm(2, H, affine=False)
        self.out = nn.Linear(2 * N, H)

    def forward(self, x, state):
        S, h = state
        q1, q2 = self.q(x).view(-1, 2, N).unbind(1)
        k = self.k(x).reshape(-1, 2, N)
        lam = torch.exp((self.lq[0] * self.lk[0]).sum()) - torch.exp(torch.dot(self.lq[1], self.lk[1])) + 0.2
        S = 0.9 * S + torch.einsum("bi,bj->bij", k[:, 0].softmax(-1), self.v(x))
        o1 = torch.einsum("bi,bij->bj", q1.softmax(-1), S)
        o2 = torch.einsum("b i, b i j -> b j", q2.softmax(-1), S)
        h = self.norm(self.out(torch.cat([o1 - lam * o2, k[:, 1]], -1)) + h)
        return h, (S, h)


@ZOO.cell((N, 3), [(N, 3), (N, 3)])
class LeapfrogBodies(nn.Module):
    """N bodies, forces by autograd-free pair distances with a softening, masses that are learnt."""

    def __init__(self):
        super().__init__()
        self.log_m = nn.Parameter(torch.zeros(N))
        self.G = nn.Parameter(torch.tensor(0.1))

    def acceleration(self, pos):
        diff = pos.unsqueeze(1) - pos.unsqueeze(2)
        inv = (diff.pow(2).sum(-1) + 0.1).rsqrt() ** 3
        inv = inv * (1 - torch.eye(N, device=pos.device, dtype=pos.dtype))
        return self.G * (diff * (inv * self.log_m.exp())[..., None]).sum(dim=2)

    def forward(self, push, state):
        pos, vel = state
        vel = vel + 0.05 * (self.acceleration(pos) + push)
        pos = pos + 0.1 * vel
        vel = vel + 0.05 * self.acceleration(pos)
        kinetic = 0.5 * (self.log_m.exp() * vel.square().sum(-1)).sum(-1)
        return {"pos": pos, "energy": kinetic}, (pos, vel)


@ZOO.cell(D, [(3,)])
class SIRWithControl(nn.Module):
    """An epidemic: fractions kept on the simplex, a rate by a net, `torch.stack` of columns."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Sequential(nn.Linear(D + 3, H), nn.Softplus(beta=2), nn.Linear(H, 2), nn.Sigmoid())

    def forward(self, u, y):
        y = F.softmax(y, 1)
        s, i, r = y[:, 0], y[:, 1], y[:, 2]
        beta, gamma = self.rate(torch.cat([u, y], 1)).split(1, 1)
        new, out = beta.squeeze(1) * s * i, gamma[:, 0] * i
        y = torch.stack([s - new, i + new - out, r + out], dim=-1)
        return y, torch.log(y + 1e-6)


@ZOO.cell(D, [(2, H)])
class ChunkedXCA(nn.Module):
    """Two heads merged with the rows: baddbmm of diagonals, l2 norms, `torch.where` by sign."""

    def __init__(self):
        super().__init__()
        self.kv = nn.Linear(D, 4 * H)
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))

    def forward(self, x, s):
        k, v = self.kv(x).view(-1, 2, 2, H).permute(2, 0, 1, 3)
        k = k / k.norm(dim=-1, keepdim=True).clamp(min=1e-4)
        att = torch.baddbmm(
            s.flatten(0, 1)[:, None] * 0.1,
            (k * self.temperature.squeeze(-1)).flatten(0, 1)[:, None],
            torch.diag_embed(v.flatten(0, 1)),
            beta=0.5,
            alpha=2.0,
        )
        s = torch.where(att.view(-1, 2, H) > 0, att.view(-1, 2, H), 0.2 * s)
        return s.transpose(1, 2).flatten(1), s


@ZOO.cell(D, [H, (3, D)])
class ConvMemoryGLU(nn.Module):
    """A rolling window shifted by cat, a causal depthwise product, GLU and RMS norm, dropout of zero."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, D) * 0.3)
        self.up, self.weight = nn.Linear(D + H, 2 * H), nn.Parameter(torch.ones(H))
        self.drop = nn.Dropout(0.0)

    def forward(self, x, state):
        h, window = state
        window = torch.cat([window, x.unsqueeze(1)], dim=1)
        u = F.silu((window * self.kernel).sum(1))
        g = F.glu(self.up(torch.cat([u, h], -1)), dim=-1)
        h = h + self.drop(F.rms_norm(g, (H,), self.weight, eps=1e-5))
        return h, (h, window[:, 1:])


@ZOO.cell(D, [(N,), H])
class TopPRouter(nn.Module):
    """Experts until their probabilities pass p: sort, cumsum, a mask put back by scatter, stacked weights."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D + H, N)
        self.w1, self.b1 = nn.Parameter(torch.randn(N, D + H, H) * 0.3), nn.Parameter(torch.zeros(N, H))

    def forward(self, x, state):
        load, h = state
        xh = torch.cat([x, h], 1)
        p = F.softmax(self.router(xh) - load, dim=-1)
        ordered, index = p.sort(dim=-1, descending=True)
        keep = (ordered.cumsum(-1) - ordered) < 0.6
        gates = torch.zeros_like(p).scatter(1, index, ordered * keep)
        gates = gates / gates.sum(-1, keepdim=True)
        out = torch.einsum("bd,ndh->bnh", xh, self.w1) + self.b1
        h = (gates.unsqueeze(-1) * F.relu(out).square()).sum(1).tanh()
        return h, (0.9 * load + 0.1 * gates.detach(), h)


@ZOO.cell(2, [1, 1])
class LatticeJSQ(nn.Module):
    """A lattice phase unwrapped by atan2 and remainder, huber of what is left, `torch.special`."""

    def __init__(self):
        super().__init__()
        self.bandwidth = nn.Parameter(torch.tensor([0.3, 0.05]))

    def forward(self, iq, state):
        phase, freq = state
        error = torch.atan2(iq[:, 1:], iq[:, :1]) - phase
        error = torch.remainder(error + math.pi, 2 * math.pi) - math.pi
        kp, ki = torch.special.expit(self.bandwidth)
        freq = (
            freq
            + ki * F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=0.7) * error.sign()
        )
        phase = torch.remainder(phase + freq + kp * error, 2 * math.pi)
        return torch.cat([phase.sin(), phase.cos(), torch.special.entr(error.abs())], 1), (phase, freq)


@ZOO.cell(D, [(N, H), N])
class SlotCompetition(nn.Module):
    """Recurrent independent mechanisms: the k most attending slots change, others stay; masks by topk."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Parameter(torch.randn(N, H, H) * 0.3), nn.Linear(D, H)
        self.w = nn.Parameter(torch.randn(N, D + H, H) * 0.3)

    def forward(self, x, state):
        h, usage = state
        scores = torch.einsum("bnh,nhk,bk->bn", h, self.query, self.key(x)) / H**0.5
        active = torch.zeros_like(scores).scatter_(1, scores.topk(2, dim=1).indices, 1.0)
        xs = torch.cat([x[:, None].expand(-1, N, -1), h], -1)
        new = torch.tanh(torch.matmul(xs.transpose(0, 1), self.w).transpose(0, 1))
        h = active[..., None] * new + (1 - active)[..., None] * h
        return (h * scores.softmax(1)[..., None]).sum(1), (h, usage + active)


@ZOO.cell(D, [H])
class LowRankLoRAGRU(nn.Module):
    """Weights built at each step of a frozen one and low-rank factors, bias by `F.linear(..., None)`."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w0", torch.randn(3 * H, D + H) * 0.2)
        self.a, self.b = nn.Parameter(torch.randn(2, D + H) * 0.2), nn.Parameter(torch.randn(3 * H, 2) * 0.2)
        self.m = nn.Parameter(torch.ones(3 * H))

    @property
    def weight(self):
        w = self.w0 + 0.5 * self.b @ self.a
        return self.m[:, None] * w / torch.linalg.vector_norm(w, dim=1, keepdim=True)

    def forward(self, x, h):
        r, z, n = F.linear(torch.cat([x, h], -1), self.weight, None).chunk(3, -1)
        h = torch.lerp(F.leaky_relu(n * r.sigmoid(), 0.1), h, z.sigmoid())
        return F.normalize(h, p=1, dim=1), h
