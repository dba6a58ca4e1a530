"""Gates and memories spelt as their repositories spell them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, NH, N = 6, 8, 2, 4


def g(x):
    return torch.where(x >= 0, x + 0.5, x.sigmoid())


def log_g(x):
    return torch.where(x >= 0, (F.relu(x) + 0.5).log(), -F.softplus(-x))


@ZOO.cell(D, [H])
class MinGRULog(nn.Module):
    """Feng et al. (2024), in logarithms."""

    def __init__(self):
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(D, 2 * H, bias=False)
        self.out = nn.Linear(H, D)

    def forward(self, x, log_prev):
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        log_coeffs = -F.softplus(gate)
        log_z = -F.softplus(-gate)
        log_tilde_h = log_g(hidden)
        log_values = log_z + log_tilde_h
        h = torch.logaddexp(log_coeffs + log_prev, log_values)
        return self.out(h.exp()), h


@ZOO.cell(D, [H, H, H, H])
class SLSTMRef(nn.Module):
    """NX-AI's slstm_pointwise."""

    def __init__(self):
        super().__init__()
        self.Wx = nn.Linear(D, 4 * H)
        self.R = nn.Parameter(torch.randn(NH, H // NH, 4 * H // NH) / 3)

    def forward(self, x, states):
        y, c, n, m = states
        Ry = (
            y.reshape(-1, NH, 1, H // NH)
            .matmul(self.R.unsqueeze(0))
            .reshape(-1, NH, 4, H // NH)
            .transpose(1, 2)
            .reshape(-1, 4 * H)
        )
        raw = self.Wx(x) + Ry
        iraw, fraw, zraw, oraw = torch.unbind(raw.view(-1, 4, H), dim=1)
        logfplusm = m + F.logsigmoid(fraw)
        if torch.all(n == 0.0):
            mnew = iraw
        else:
            mnew = torch.max(iraw, logfplusm)
        ogate = torch.sigmoid(oraw)
        igate = torch.minimum(torch.exp(iraw - mnew), torch.ones_like(iraw))
        fgate = torch.minimum(torch.exp(logfplusm - mnew), torch.ones_like(iraw))
        cnew = fgate * c + igate * torch.tanh(zraw)
        nnew = fgate * n + igate
        ynew = ogate * cnew / nnew
        return ynew, (ynew, cnew, nnew, mnew)


@ZOO.cell(D, [(5, D)])
class RWKVIn150(nn.Module):
    """BlinkDL's v4: all state of a layer is rows of one tensor, written by place."""

    def __init__(self):
        super().__init__()
        self.tmk, self.tmv, self.tmr, self.cmk, self.cmr = (nn.Parameter(torch.rand(D)) for _ in range(5))
        self.time_first, self.time_decay = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(D))
        self.kw, self.vw, self.rw, self.ow, self.ckw, self.crw, self.cvw = (
            nn.Parameter(torch.randn(D, D) / 2) for _ in range(7)
        )
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def channel_mixing(self, x, state):
        xk = x * self.cmk + state[:, 0].clone() * (1 - self.cmk)
        xr = x * self.cmr + state[:, 0].clone() * (1 - self.cmr)
        state[:, 0] = x
        r = torch.sigmoid(xr @ self.crw.T)
        k = torch.square(torch.relu(xk @ self.ckw.T))
        return r * (k @ self.cvw.T)

    def time_mixing(self, x, state):
        xk = x * self.tmk + state[:, 1].clone() * (1 - self.tmk)
        xv = x * self.tmv + state[:, 1].clone() * (1 - self.tmv)
        xr = x * self.tmr + state[:, 1].clone() * (1 - self.tmr)
        state[:, 1] = x
        r = torch.sigmoid(xr @ self.rw.T)
        k = xk @ self.kw.T
        v = xv @ self.vw.T
        aa, bb, pp = state[:, 2:].clone().unbind(1)
        ww = self.time_first + k
        qq = torch.maximum(pp, ww)
        e1 = torch.exp(pp - qq)
        e2 = torch.exp(ww - qq)
        a = e1 * aa + e2 * v
        b = e1 * bb.abs() + e2 + 1e-3
        wkv = a / b
        ww = pp - torch.exp(self.time_decay)
        qq = torch.maximum(ww, k)
        e1 = torch.exp(ww - qq)
        e2 = torch.exp(k - qq)
        state[:, 2] = e1 * aa + e2 * v
        state[:, 3] = e1 * bb + e2
        state[:, 4] = qq
        return (r * wkv) @ self.ow.T

    def forward(self, x, state):
        state = state.clone()
        x = x + self.time_mixing(self.ln1(x), state)
        x = x + self.channel_mixing(self.ln2(x), state)
        return x, state


@ZOO.cell(D, [D, (NH, 3, 3)])
class RWKV6LoRA(nn.Module):
    """BlinkDL's x060: five token shifts by low rank, of one bmm."""

    def __init__(self):
        super().__init__()
        self.maa_x = nn.Parameter(torch.rand(1, D))
        self.maa = nn.Parameter(torch.rand(5, 1, D))
        self.w1 = nn.Parameter(torch.randn(D, 5 * 2) / 2)
        self.w2 = nn.Parameter(torch.randn(5, 2, D) / 2)
        self.decay = nn.Parameter(torch.randn(1, D))
        self.dw1 = nn.Parameter(torch.randn(D, 3) / 2)
        self.dw2 = nn.Parameter(torch.randn(3, D) / 2)
        self.faaaa = nn.Parameter(torch.randn(NH, 3))
        self.r, self.k, self.v, self.g, self.o = (nn.Linear(D, D, bias=False) for _ in range(5))
        self.ln_x = nn.GroupNorm(NH, D, eps=64e-5)

    def forward(self, x, state):
        last, s = state
        B = x.size(0)
        sx = last - x
        xxx = x + sx * self.maa_x
        xxx = torch.tanh(xxx @ self.w1).view(B, 5, -1).transpose(0, 1)
        xxx = torch.bmm(xxx, self.w2).view(5, B, -1)
        mw, mk, mv, mr, mg = (xxx + self.maa).unbind(dim=0)
        xw, xk, xv, xr, xg = x + sx * mw, x + sx * mk, x + sx * mv, x + sx * mr, x + sx * mg
        r = self.r(xr).view(B, NH, 1, 3)
        k = self.k(xk).view(B, NH, 3, 1)
        v = self.v(xv).view(B, NH, 1, 3)
        g = F.silu(self.g(xg))
        w = self.decay + (torch.tanh(xw @ self.dw1) @ self.dw2)
        w = torch.exp(-torch.exp(w.view(B, NH, 3, 1)))
        a = k @ v
        y = r @ (self.faaaa.view(NH, 3, 1) * a + s)
        s = a + w * s
        y = self.ln_x(y.flatten(start_dim=1)) * g
        return self.o(y), (x, s)


@ZOO.cell(D, [(NH, N, N)])
class KimiDelta(nn.Module):
    """fla's naive_recurrent_kda: a decay of each channel."""

    def __init__(self):
        super().__init__()
        self.qkvg = nn.Linear(D, 4 * NH * N)
        self.b = nn.Linear(D, NH)

    def forward(self, x, S):
        q, k, v, g = (t.unflatten(-1, (NH, -1)) for t in self.qkvg(x).chunk(4, -1))
        q, k = F.normalize(q, dim=-1) * N**-0.5, F.normalize(k, dim=-1)
        g, beta = F.logsigmoid(g) / 16, self.b(x).sigmoid()
        S = S * g[..., None].exp()
        S = S + torch.einsum("b h k, b h v -> b h k v", beta[..., None] * k, v - (k[..., None] * S).sum(-2))
        o = torch.einsum("b h k, b h k v -> b h v", q, S)
        return o.flatten(1), S


def loss_of(params, k, v):
    w1, b1 = params
    return ((k @ w1 + b1 - v) ** 2).sum()


@ZOO.cell(D, [(N, N), N])
class TTTFunc(nn.Module):
    """An inner step of gradient by torch.func, of each sequence by vmap."""

    def __init__(self):
        super().__init__()
        self.kvq = nn.Linear(D, 3 * N)
        self.lr = nn.Linear(D, 1)

    def forward(self, x, state):
        k, v, q = self.kvq(x).chunk(3, -1)
        grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=((0, 0), 0, 0))(state, k, v)
        lr = torch.sigmoid(self.lr(x)) * 0.1
        W, b = state[0] - lr[..., None] * grads[0], state[1] - lr * grads[1]
        return torch.einsum("bi,bij->bj", q, W) + b, (W, b)


@ZOO.cell(D, [(N, H), (H, N)])
class TTTMLPAutograd(nn.Module):
    """An inner step by autograd.grad with create_graph."""

    def __init__(self):
        super().__init__()
        self.kvq = nn.Linear(D, 3 * N)
        self.ln = nn.LayerNorm(N)

    def forward(self, x, state):
        W1, W2 = state
        k, v, q = self.kvq(x).chunk(3, -1)
        with torch.enable_grad():
            W1r, W2r = W1 + 0, W2 + 0
            if not W1r.requires_grad:
                W1r.requires_grad_()
                W2r.requires_grad_()
            pred = self.ln(
                torch.bmm(F.gelu(torch.bmm(k.unsqueeze(1), W1r), approximate="tanh"), W2r).squeeze(1)
            )
            loss = F.mse_loss(pred, v, reduction="sum")
            g1, g2 = torch.autograd.grad(loss, (W1r, W2r), create_graph=True)
        W1, W2 = W1 - 0.05 * g1, W2 - 0.05 * g2
        y = self.ln(torch.bmm(F.gelu(torch.bmm(q.unsqueeze(1), W1), approximate="tanh"), W2).squeeze(1))
        return y + q, (W1, W2)


@ZOO.cell(D, [(N, N), (N, N)])
class AtlasMuon(nn.Module):
    """Momentum orthogonalised by Newton and Schulz."""

    def __init__(self):
        super().__init__()
        self.kvq = nn.Linear(D, 3 * N)
        self.gates = nn.Linear(D, 3)

    def newton_schulz(self, G, steps=3, eps=1e-7):
        a, b, c = (3.4445, -4.7750, 2.0315)
        X = G / (G.norm(dim=(-2, -1), keepdim=True) + eps)
        if G.size(-2) > G.size(-1):
            X = X.mT
        for _ in range(steps):
            A = X @ X.mT
            B = b * A + c * A @ A
            X = a * X + B @ X
        return X

    def forward(self, x, state):
        M, S = state
        k, v, q = self.kvq(x).chunk(3, dim=-1)
        theta, eta, alpha = self.gates(x).sigmoid()[:, :, None, None].unbind(1)
        err = torch.einsum("bij,bj->bi", M, k) - v
        grad = torch.einsum("bi,bj->bij", err, k)
        S = eta * S - theta * grad
        M = (1 - 0.1 * alpha) * M + 0.1 * self.newton_schulz(S)
        return (M @ q.unsqueeze(-1)).squeeze(-1), (M, S)


@ZOO.cell(
    D,
    [H, H],
)
class JitLSTM(nn.Module):
    """pytorch's own fastrnns: a script function of the pointwise part."""

    def __init__(self):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * H, D) / 3)
        self.weight_hh = nn.Parameter(torch.randn(4 * H, H) / 3)
        self.bias_ih = nn.Parameter(torch.zeros(4 * H))
        self.bias_hh = nn.Parameter(torch.zeros(4 * H))

    def forward(self, input: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]):
        hx, cx = state
        gates = (
            torch.mm(input, self.weight_ih.t())
            + self.bias_ih
            + torch.mm(hx, self.weight_hh.t())
            + self.bias_hh
        )
        cy, hy = pointwise(gates, cx)
        return hy, (hy, cy)


@torch.jit.script
def pointwise(gates: torch.Tensor, cx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ingate, forgetgate, cellgate, outgate = gates.chunk(4, 1)
    ingate = torch.sigmoid(ingate)
    forgetgate = torch.sigmoid(forgetgate)
    cellgate = torch.tanh(cellgate)
    outgate = torch.sigmoid(outgate)
    cy = (forgetgate * cx) + (ingate * cellgate)
    hy = outgate * torch.tanh(cy)
    return cy, hy
