"""Cells that keep tables: images, graphs, memories, stacks, rows of dynamic programs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
D, H, N, M = 5, 6, 4, 6


@ZOO.cell((2, 4, 4), [(3, 4, 4), (3, 4, 4), (3, 4, 4)])
class PredRNN(nn.Module):
    """Wang et al. (2017): a second memory, which zigzags through the layers."""

    def __init__(self):
        super().__init__()
        self.x, self.h = nn.Conv2d(2, 21, 3, padding=1), nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.m, self.o, self.last = (
            nn.Conv2d(3, 9, 3, padding=1),
            nn.Conv2d(6, 3, 3, padding=1),
            nn.Conv2d(6, 3, 1),
        )

    def forward(self, x, state):
        h, c, m = state
        i, f, g, i2, f2, g2, o = torch.split(self.x(x), 3, dim=1)
        ih, fh, gh, oh = torch.split(self.h(h), 3, dim=1)
        im, fm, gm = torch.split(self.m(m), 3, dim=1)
        c = torch.sigmoid(f + fh + 1.0) * c + torch.sigmoid(i + ih) * torch.tanh(g + gh)
        m = torch.sigmoid(f2 + fm + 1.0) * m + torch.sigmoid(i2 + im) * torch.tanh(g2 + gm)
        both = torch.cat((c, m), 1)
        h = torch.sigmoid(o + oh + self.o(both)) * torch.tanh(self.last(both))
        return h, (h, c, m)


@ZOO.cell((2, 4, 4), [(4, 4, 4)])
class NormedConvGRU(nn.Module):
    """Ballas et al. (2016) with GroupNorm, and upsampled differences."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8))
        self.cand = nn.Sequential(nn.Conv2d(6, 4, 3, padding="same", bias=False), nn.GroupNorm(2, 4))

    def forward(self, x, h):
        z, r = self.gates(torch.cat([x, h], dim=1)).sigmoid().chunk(2, dim=1)
        h = (1 - z) * h + z * torch.tanh(self.cand(torch.cat([x, r * h], dim=1)))
        return F.avg_pool2d(h, 2).flatten(1), h


@ZOO.cell((N, D), [(D, H)])
class EvolveGCN(nn.Module):
    """Pareja et al. (2020): the weights of a layer of a graph are the state of a GRU; nodes that matter."""

    def __init__(self):
        super().__init__()
        self.cell, self.score = nn.GRUCell(D, D), nn.Parameter(torch.randn(D))
        self.register_buffer("edges", torch.tensor([[0, 1, 1, 2, 3, 0], [1, 0, 2, 3, 0, 2]]))

    def forward(self, x, w):
        score = (x * self.score).sum(-1) / self.score.norm()
        best, place = score.topk(H - 2, dim=1)
        picked = x.gather(1, place[..., None].expand(-1, -1, D)) * torch.tanh(best)[..., None]
        picked = torch.cat([picked, picked[:, :2]], 1)
        w = self.cell(picked.flatten(0, 1), w.mT.flatten(0, 1)).view(-1, H, D).mT
        source, target = self.edges
        messages = torch.zeros_like(x).index_add(1, target, x[:, source])
        return F.relu((x + messages) / 3 @ w), w


@ZOO.cell((N, D), [(N, H)])
class GraphAttentionGRU(nn.Module):
    """Messages weighed by attention over an adjacency, a GRU at each node."""

    def __init__(self):
        super().__init__()
        self.w, self.a, self.cell = nn.Linear(D + H, H), nn.Linear(2 * H, 1), nn.GRUCell(H, H)
        self.register_buffer("adjacency", torch.eye(N) + torch.diag(torch.ones(N - 1), 1))

    def forward(self, x, h):
        z = self.w(torch.cat([x, h], -1))
        pairs = torch.cat([z[:, :, None].expand(-1, -1, N, -1), z[:, None].expand(-1, N, -1, -1)], -1)
        e = F.leaky_relu(self.a(pairs).squeeze(-1), 0.2).masked_fill(self.adjacency == 0, -1e9)
        m = torch.softmax(e, -1) @ z
        h = self.cell(m.reshape(-1, H), h.reshape(-1, H)).view_as(h)
        return h.mean(1), h


@ZOO.cell(D, [(N, H), H])
class HopfieldMemory(nn.Module):
    """Ramsauer et al. (2021): what was seen last is attended to, by torch's own attention."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.cell = nn.Linear(H, H), nn.Linear(H, 2 * H), nn.GRUCell(D + H, H)

    def forward(self, x, state):
        memory, h = state
        k, v = self.kv(memory).view(-1, N, 2, 2, H // 2).permute(2, 0, 3, 1, 4)
        q = self.q(h).view(-1, 2, 1, H // 2)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, H)
        h = self.cell(torch.cat([x, read], -1), h)
        return h, (torch.cat([memory[:, 1:], h.unsqueeze(1)], dim=1), h)


@ZOO.cell(D, [(N, H), N])
class LeastUsedMemory(nn.Module):
    """Santoro et al. (2016): written where it was used least, read by cosine."""

    def __init__(self):
        super().__init__()
        self.key, self.gate = nn.Linear(D, H), nn.Linear(D, 1)

    def forward(self, x, state):
        memory, usage = state
        key = torch.tanh(self.key(x))
        w = F.softmax(F.cosine_similarity(memory, key.unsqueeze(1), dim=-1), -1)
        least = F.one_hot(usage.argmin(-1), N).to(w.dtype)
        alpha = torch.sigmoid(self.gate(x))
        write = alpha * w + (1 - alpha) * least
        memory = memory * (1 - least).unsqueeze(-1) + write.unsqueeze(-1) * key.unsqueeze(1)
        return (w.unsqueeze(1) @ memory).squeeze(1), (memory, 0.95 * usage + w + write)


@ZOO.cell((M, D), [H, M])
class PointerGenerator(nn.Module):
    """See et al. (2017): words of the source are copied by scatter_add; coverage."""

    def __init__(self):
        super().__init__()
        self.cell, self.w, self.v = nn.GRUCell(D, H), nn.Linear(D + H + 1, H), nn.Linear(H, 1, bias=False)
        self.words, self.gate = nn.Linear(H + D, 10), nn.Linear(H + D, 1)
        self.register_buffer("source", torch.tensor([3, 1, 4, 1, 9, 2]))

    def forward(self, x, state):
        h, coverage = state
        h = self.cell(x[:, 0], h)
        given = torch.cat([x, h[:, None].expand(-1, M, -1), coverage[..., None]], -1)
        attention = F.softmax(self.v(torch.tanh(self.w(given))).squeeze(-1), dim=-1)
        context = torch.bmm(attention.unsqueeze(1), x).squeeze(1)
        both = torch.cat([h, context], 1)
        p = torch.sigmoid(self.gate(both))
        words = (p * F.softmax(self.words(both), dim=1)).scatter_add(
            1, self.source.expand(len(x), -1), (1 - p) * attention
        )
        loss = torch.min(attention, coverage).sum(-1)
        return (torch.log(words + 1e-9), loss), (h, coverage + attention)


@ZOO.cell(D, [M])
class SoftDTW(nn.Module):
    """Cuturi and Blondel (2017): a row of the table, cell by cell."""

    def __init__(self):
        super().__init__()
        self.template = nn.Parameter(torch.randn(M, D))

    def forward(self, x, row):
        cost = torch.cdist(x[:, None], self.template.expand(len(x), -1, -1)).squeeze(1).square()
        new = [row[:, 0] + cost[:, 0]]
        for j in range(1, M):
            three = torch.stack([row[:, j - 1], row[:, j], new[-1]], dim=-1)
            new.append(cost[:, j] - torch.logsumexp(-three, dim=-1))
        row = torch.stack(new, dim=1)
        return row[:, -1], row


@ZOO.cell(1, [M + 1], ints=5)
class EditDistance(nn.Module):
    """Wagner and Fischer (1974): a row, insertions by a running minimum."""

    def __init__(self):
        super().__init__()
        self.cost = nn.Parameter(torch.ones(3))
        self.register_buffer("word", torch.tensor([1, 0, 3, 2, 2, 4]))
        self.register_buffer("at", torch.arange(M + 1))

    def forward(self, x, row):
        delete = row + self.cost[0]
        change = row[:, :-1] + self.cost[1] * (x != self.word)
        best = torch.minimum(delete[:, 1:], change)
        best = torch.cat([delete[:, :1], best], dim=1)
        steps = self.cost[2] * self.at
        row = torch.cummin(best - steps, dim=1).values + steps
        return row[:, -1], row


@ZOO.cell((M, 2), [M])
class Transducer(nn.Module):
    """Graves (2012): the forward variables of an RNN-T over a target, in logarithms."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x, alpha):
        blank, emit = F.logsigmoid(x * self.scale).unbind(-1)
        within = F.pad(emit[:, :-1].cumsum(1), (1, 0))
        alpha = torch.logcumsumexp(alpha + blank - within, dim=1) + within
        return alpha[:, -1], alpha


@ZOO.cell((M + 1, 2), [M + 1])
class ShiftedTransducer(nn.Module):
    """The CTC of it: a blank between labels, skips by a mask."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(M + 1))
        self.register_buffer("skip", torch.tensor([0, 0, 0, 1, 0, 1, 0], dtype=torch.bool))

    def forward(self, x, alpha):
        low = torch.full_like(alpha[:, :1], -1e4)
        one = torch.cat([low, alpha[:, :-1]], 1)
        two = torch.where(self.skip, torch.cat([low, low, alpha[:, :-2]], 1), -1e4)
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + x[..., 0] + self.bias
        return alpha[:, -2:].logsumexp(1), alpha


@ZOO.cell(D, [(N, H), N, H])
class NeuralStack(nn.Module):
    """Grefenstette et al. (2015): strengths, popped from the top by running sums."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(D + H, H), nn.Linear(H, 2 + H)

    def forward(self, x, state):
        values, strength, read = state
        h = self.cell(torch.cat([x, read], -1), read)
        push, pop, value = self.head(h).split([1, 1, H], dim=-1)
        push, pop = push.sigmoid(), pop.sigmoid()
        above = strength.flip(1).cumsum(1).flip(1) - strength
        strength = F.relu(strength - F.relu(pop - above))
        values = torch.cat([values[:, 1:], value.tanh()[:, None]], 1)
        strength = torch.cat([strength[:, 1:], push], 1)
        above = strength.flip(1).cumsum(1).flip(1) - strength
        weight = torch.minimum(strength, F.relu(1 - above))
        read = torch.einsum("bn,bnh->bh", weight, values)
        return read, (values, strength, read)


@ZOO.cell(3, [N, (N, N)])
class ExtendedKalman(nn.Module):
    """A filter whose motion is a network, linearised by torch.func at each step."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(N, H), nn.Tanh(), nn.Linear(H, N))
        self.c, self.q = nn.Parameter(torch.randn(3, N)), nn.Parameter(torch.zeros(N))
        self.r = nn.Parameter(torch.zeros(3))

    def move(self, m):
        return m + 0.1 * self.f(m)

    def forward(self, x, state):
        m, p = state
        a = torch.func.vmap(torch.func.jacrev(self.move))(m)
        m = self.move(m)
        p = a @ p @ a.mT + torch.diag_embed(self.q.exp())
        s = self.c @ p @ self.c.T + torch.diag(self.r.exp())
        gain = torch.linalg.solve(s, self.c @ p).mT
        m = m + (gain @ (x - m @ self.c.T).unsqueeze(-1)).squeeze(-1)
        left = torch.eye(N, dtype=p.dtype) - gain @ self.c
        p = left @ p @ left.mT + gain @ torch.diag(self.r.exp()) @ gain.mT
        return m, (m, p)


@ZOO.cell(3, [(8, N)], noise=True)
class EnsembleKalman(nn.Module):
    """Evensen (1994): covariances of an ensemble, perturbed observations, a Cholesky solve."""

    def __init__(self):
        super().__init__()
        self.f, self.c = nn.Linear(N, N), nn.Parameter(torch.randn(3, N))
        self.r = nn.Parameter(torch.zeros(3))

    def forward(self, x, e):
        e = e + 0.1 * torch.tanh(self.f(e))
        a = e - e.mean(1, keepdim=True)
        y = e @ self.c.T
        ya = y - y.mean(1, keepdim=True)
        s = ya.mT @ ya / 7 + torch.diag(self.r.exp())
        noise = torch.randn_like(y) * (0.5 * self.r).exp()
        gap = x[:, None] + noise - y
        gain = torch.cholesky_solve(ya.mT @ a / 7, torch.linalg.cholesky(s)).mT
        e = e + gap @ gain.mT
        return e.mean(1), e


@ZOO.cell((4, 4), [(4, 4, 4)])
class CellularAutomaton(nn.Module):
    """Mordvintsev et al. (2020): fixed filters that perceive, living cells by a maximum around each."""

    def __init__(self):
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        self.register_buffer("filters", torch.stack([sobel, sobel.T])[:, None].repeat(4, 1, 1, 1))
        self.one, self.two = nn.Conv2d(12, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x, s):
        s = torch.cat([s[:, :1] + x[:, None], s[:, 1:]], 1)
        seen = F.conv2d(F.pad(s, (1, 1, 1, 1), mode="circular"), self.filters.to(s.dtype), groups=4)
        new = s + self.two(F.relu(self.one(torch.cat([s, seen], 1))))
        alive = F.max_pool2d(new[:, :1], 3, stride=1, padding=1) > 0.1
        new = new * alive.to(new.dtype)
        return new[:, 0], new


@ZOO.cell(D, [(M, H), (M, H), M])
class CompressedCache(nn.Module):
    """A cache of keys and values where the row that was attended to least gives way."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, H) for _ in range(3))

    def forward(self, x, state):
        k, v, score = state
        q, new_k, new_v = self.q(x), self.k(x), self.v(x)
        p = torch.softmax((k @ q[:, :, None]).squeeze(-1) / math.sqrt(H), -1)
        score = 0.9 * score + p
        place = score.argmin(-1, keepdim=True)
        at = place[..., None].expand(-1, -1, H)
        k, v = k.scatter(1, at, new_k[:, None]), v.scatter(1, at, new_v[:, None])
        score = score.scatter(1, place, 1.0)
        return (p[:, None] @ v).squeeze(1), (k, v, score)
