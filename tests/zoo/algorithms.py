"""Cells that pick, sort, solve and count: addressed memories, filters, decoders, flows, discrete states."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, N, K = 5, 4, 3


@ZOO.cell(D, [(N, K), N, (N, N), N, N, D])
class DNC(nn.Module):
    """Graves et al. (2016): usage sorted for allocation, temporal links, content addressing."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D + K, D)
        self.head = nn.Linear(D, 3 * K + 7)

    def forward(self, x, state):
        memory, usage, link, precedence, read, h = state
        h = self.cell(torch.cat([x, (read.unsqueeze(1) @ memory).squeeze(1)], 1), h)
        key, erase, add, gates = self.head(h).split([K, K, K, 7], 1)
        free, allocate, write = torch.sigmoid(gates[:, :3]).unbind(1)
        modes, strength = F.softmax(gates[:, 3:6], 1), F.softplus(gates[:, 6:]) + 1
        usage = usage * (1 - free[:, None] * read)
        ordered, places = torch.sort(usage, dim=1)
        before = torch.cumprod(torch.cat([torch.ones_like(ordered[:, :1]), ordered[:, :-1]], 1), 1)
        allocation = torch.zeros_like(usage).scatter(1, places, (1 - ordered) * before)
        content = F.softmax(strength * F.cosine_similarity(memory, key[:, None], -1), 1)
        w = write[:, None] * (allocate[:, None] * allocation + (1 - allocate[:, None]) * content)
        usage = usage + w - usage * w
        memory = memory * (1 - w[:, :, None] * torch.sigmoid(erase)[:, None]) + w[:, :, None] * add[:, None]
        link = (1 - w[:, :, None] - w[:, None]) * link + w[:, :, None] * precedence[:, None]
        link = link * (1 - torch.eye(N, dtype=x.dtype))
        precedence = (1 - w.sum(1, keepdim=True)) * precedence + w
        content = F.softmax(F.cosine_similarity(memory, key[:, None], -1), 1)
        forth, back = torch.bmm(link, read[:, :, None])[..., 0], torch.bmm(read[:, None], link)[:, 0]
        read = modes[:, :1] * back + modes[:, 1:2] * content + modes[:, 2:] * forth
        return h, (memory, usage, link, precedence, read, h)


@ZOO.cell(D, [(N, N)])
class Sinkhorn(nn.Module):
    """Mena et al. (2018): a soft permutation, normalised by rows and columns in turn."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(D, N * N)

    def forward(self, x, p):
        log = self.scores(x).view(-1, N, N) + p
        for _ in range(3):
            log = log - log.logsumexp(2, keepdim=True)
            log = log - log.logsumexp(1, keepdim=True)
        p = log.exp()
        return (p @ x[:, :N, None]).squeeze(-1), p


@ZOO.cell(1, [N], ints=6)
class HMM(nn.Module):
    """The forward algorithm with a table of emissions."""

    def __init__(self):
        super().__init__()
        self.turn, self.emit = nn.Parameter(torch.randn(N, N)), nn.Parameter(torch.randn(N, 6))

    def forward(self, x, log):
        emission = torch.log_softmax(self.emit, 1).T[x[:, 0]]
        log = torch.logsumexp(log[:, :, None] + torch.log_softmax(self.turn, 1), 1) + emission
        return log.logsumexp(1), log - log.logsumexp(1, keepdim=True)


@ZOO.cell(D, [D])
class NeuralODE(nn.Module):
    """Chen et al. (2018): a fixed number of midpoint steps between observations."""

    def __init__(self):
        super().__init__()
        self.flow = nn.Sequential(nn.Linear(D + 1, 8), nn.Tanh(), nn.Linear(8, D))
        self.cell = nn.GRUCell(D, D)

    def forward(self, x, h):
        dt = F.softplus(x[:, :1]) / 4
        for i in range(4):
            t = torch.full_like(dt, i / 4)
            half = h + dt / 2 * self.flow(torch.cat([h, t], 1))
            h = h + dt * self.flow(torch.cat([half, t], 1))
        h = self.cell(x, h)
        return h, h


@ZOO.cell(N, [K, (K, D)])
class Beams(nn.Module):
    """The best continuations of several hypotheses, whose states move with them."""

    def __init__(self):
        super().__init__()
        self.words, self.next = nn.Linear(D, N), nn.Linear(D + N, D)

    def forward(self, x, state):
        scores, h = state
        all_scores = scores[:, :, None] + F.log_softmax(self.words(h) + x[:, None], -1)
        scores, best = all_scores.flatten(1).topk(K, dim=1)
        beam, word = best // N, best % N
        h = torch.gather(h, 1, beam[:, :, None].expand(-1, -1, D))
        h = torch.tanh(self.next(torch.cat([h, F.one_hot(word, N).to(h.dtype)], -1)))
        return (word, scores), (scores, h)


@ZOO.cell(D, [D])
class ExpRNN(nn.Module):
    """Lezcano-Casado and Martinez-Rubio (2019): an orthogonal matrix as the exponential of a skew one."""

    def __init__(self):
        super().__init__()
        self.a, self.w, self.b = (
            nn.Parameter(torch.randn(D, D)),
            nn.Linear(D, D),
            nn.Parameter(torch.randn(D)),
        )

    def forward(self, x, h):
        z = self.w(x) + h @ torch.matrix_exp(self.a - self.a.T)
        h = torch.sgn(z) * F.relu(z.abs() + self.b)
        return h, h


@ZOO.cell(D, [(K, K), K])
class SquareRootFilter(nn.Module):
    """A Gaussian by its Cholesky factor: predicted, updated, and the log likelihood of what is seen."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Parameter(torch.eye(K) * 0.9), nn.Parameter(torch.randn(2, K))
        self.q, self.r = nn.Parameter(torch.zeros(K)), nn.Parameter(torch.zeros(2))

    def forward(self, x, state):
        factor, mean = state
        mean = mean @ self.a.T
        cov = self.a @ factor @ factor.mT @ self.a.T + torch.diag(self.q.exp())
        seen = self.c @ cov @ self.c.T + torch.diag(self.r.exp())
        lower = torch.linalg.cholesky(seen)
        error = (x[:, :2] - mean @ self.c.T).unsqueeze(-1)
        white = torch.linalg.solve_triangular(lower, error, upper=False)
        gain = torch.cholesky_solve(self.c @ cov, lower).mT
        mean = mean + (gain @ error).squeeze(-1)
        likelihood = -0.5 * (white.square().sum((1, 2)) + torch.logdet(seen) + 2 * math.log(2 * math.pi))
        cov = cov - gain @ seen @ gain.mT
        return (mean, likelihood), (torch.linalg.cholesky(0.5 * (cov + cov.mT)), mean)


@ZOO.cell(D, [(N, D), 1])
class RingBuffer(nn.Module):
    """The last inputs, written in place at a position that is counted, and the largest of each feature."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(D, D)

    def forward(self, x, state):
        ring, t = state
        slot = t[:, 0].round().long() % N
        ring = ring.clone()
        ring[torch.arange(x.shape[0]), slot] = torch.tanh(self.w(x))
        most, where = ring.max(dim=1)
        return (most, where), (ring, t.detach() + 1)


@ZOO.cell(D, [D, N])
class MonotonicAttention(nn.Module):
    """Raffel et al. (2017): where to read moves on by running products and sums."""

    def __init__(self):
        super().__init__()
        self.score, self.cell = nn.Linear(2 * D, N), nn.GRUCell(D, D)

    def forward(self, x, state):
        h, where = state
        p = torch.sigmoid(self.score(torch.cat([x, h], 1)))
        left = torch.cumprod(F.pad(1 - p[:, :-1] + 1e-3, (1, 0), value=1.0), 1)
        where = p * left * torch.cumsum(where / left.clamp(min=1e-3, max=1), 1)
        h = self.cell(x * where.sum(1, keepdim=True), h)
        return where, (h, where)


@ZOO.cell(D, [D])
class Quantised(nn.Module):
    """van den Oord et al. (2017): the nearest row of a codebook, its gradient passed straight through."""

    def __init__(self):
        super().__init__()
        self.w, self.codes = nn.Linear(2 * D, D), nn.Parameter(torch.randn(7, D))

    def forward(self, x, h):
        z = torch.tanh(self.w(torch.cat([x, h], 1)))
        apart = (z[:, None] - self.codes).square().sum(-1)
        index = apart.argmin(1)
        code = F.embedding(index, self.codes)
        h = z + (code - z).detach()
        return (h, index, (code - z.detach()).square().sum(1)), h


@ZOO.cell(D, [D])
class SplineFlow(nn.Module):
    """Durkan et al. (2019), with lines: a bin found by its edges, the value within by a fraction."""

    def __init__(self):
        super().__init__()
        self.heights = nn.Linear(D, D * N)

    def forward(self, x, h):
        heights = self.heights(x).view(-1, D, N).softmax(-1)
        edges = F.pad(heights.cumsum(-1), (1, 0))
        u = torch.sigmoid(h) * N
        at = u.detach().floor().long().clamp(0, N - 1)
        low = edges.gather(-1, at[..., None])[..., 0]
        height = heights.gather(-1, at[..., None])[..., 0]
        out = low + (u - at) * height
        return height.log().sum(-1), out + x


@ZOO.cell(D, [D, D], floats="count")
class Counters(nn.Module):
    """Small whole numbers beside a state: what was on how often, and whether it is now."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(2 * D, D)

    def forward(self, x, state):
        h, count = state
        h = torch.tanh(self.w(torch.cat([x, h], 1)) + 0.1 * (count % 3).to(h.dtype))
        count = count + (h > 0).to(count.dtype)
        return (h, count.amax(1)), (h, count)


@ZOO.cell(N, [N], floats="complex")
class UnitaryRNN(nn.Module):
    """Arjovsky et al. (2016): rotations and a reflection of a complex state, modReLU."""

    def __init__(self):
        super().__init__()
        self.theta, self.reflect = nn.Parameter(torch.randn(N)), nn.Parameter(torch.randn(N, 2))
        self.w, self.bias = nn.Parameter(torch.randn(N, N, 2) / 2), nn.Parameter(torch.randn(N) / 4)

    def forward(self, x, h):
        v = torch.view_as_complex(self.reflect)
        h = h * torch.polar(torch.ones_like(self.theta), self.theta)
        h = h - 2 * (h @ v.conj())[:, None] * v / (v.abs().square().sum())
        z = h.roll(1, 1) + x.to(h.dtype) @ torch.view_as_complex(self.w)
        size = z.abs()
        h = z * F.relu(size + self.bias) / (size + 1e-5)
        return torch.cat([h.real, h.imag], 1), h


@ZOO.cell(D, [(K, K)])
class SortedMixture(nn.Module):
    """Rows of a state in the order of their scores, the first two of which are mixed."""

    def __init__(self):
        super().__init__()
        self.score, self.new = nn.Linear(K, 1), nn.Linear(D, K)

    def forward(self, x, h):
        order = self.score(h)[..., 0].argsort(1, descending=True)
        h = torch.take_along_dim(h, order[:, :, None], 1)
        mixed = torch.lerp(h[:, 0], h[:, 1], torch.sigmoid(self.new(x)))
        h = torch.tanh(torch.cat([mixed[:, None], h[:, :-1]], 1) + self.new(x)[:, None])
        return h.kthvalue(2, 1)[0], h


@ZOO.cell(D, [(N, N), N])
class RecursiveLeastSquares(nn.Module):
    """Weights fitted on the way, by the inverse of what was seen; its determinant comes out."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(D, N)

    def forward(self, x, state):
        gram, target = state
        f = torch.tanh(self.features(x))
        gram = 0.9 * gram + f[:, :, None] * f[:, None]
        target = 0.9 * target + f * x[:, :1]
        known = gram @ gram.mT + 0.1 * torch.eye(N, dtype=x.dtype)
        weights = torch.linalg.solve(known, target)
        return ((weights * f).sum(1), torch.linalg.slogdet(known)[1], torch.linalg.inv(known)), (gram, target)
