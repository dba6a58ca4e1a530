"""Cells over graphs, grids and codes, and filters that are mixed: rows merged with others on the way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Zoo

ZOO = Zoo()
NODES, D, K = 5, 4, 3


@ZOO.cell(NODES * 2, [NODES * K])
class DCGRU(nn.Module):
    """Li et al. (2018): diffusion as one product of all nodes and rows; one of the graphs is learned."""

    def __init__(self):
        super().__init__()
        self.learned = nn.Parameter(torch.randn(NODES, NODES) * 0.3)
        self.register_buffer("given", torch.rand(NODES, NODES).softmax(1))
        self.gates, self.new = (nn.Linear(5 * (2 + K), n) for n in (2 * K, K))

    def diffused(self, x, h, layer):
        rows = x.shape[0]
        x = torch.cat([x.reshape(rows, NODES, -1), h.reshape(rows, NODES, -1)], 2)
        x0 = x.permute(1, 2, 0).reshape(NODES, -1)
        found = x0.unsqueeze(0)
        for graph in (self.given, self.learned):
            before, at = x0, torch.mm(graph, x0)
            found = torch.cat([found, at.unsqueeze(0)], 0)
            before, at = at, 2 * torch.mm(graph, at) - before
            found = torch.cat([found, torch.where(at > 1e9, before, at).unsqueeze(0)], 0)
        found = found.reshape(5, NODES, 2 + K, rows).permute(3, 1, 2, 0)
        return layer(found.reshape(rows * NODES, -1)).reshape(rows, -1)

    def forward(self, x, h):
        both = torch.sigmoid(self.diffused(x, h, self.gates)).reshape(-1, NODES, 2 * K)
        reset, update = (part.reshape(-1, NODES * K) for part in both.split(K, -1))
        new = torch.tanh(self.diffused(x, reset * h, self.new))
        h = update * h + (1 - update) * new
        return h, h


@ZOO.cell((NODES, 2), [(NODES, K)])
class NodesFirst(nn.Module):
    """Nodes ahead of rows: [nodes, rows * features], and back by other sizes."""

    def __init__(self):
        super().__init__()
        self.graph, self.new = nn.Parameter(torch.randn(NODES, NODES)), nn.Linear(K + 2, 2 * K)

    def forward(self, x, h):
        flat = torch.cat([x, h], 2).transpose(0, 1).reshape(NODES, -1)
        spread = torch.tanh(self.graph @ flat + flat).reshape(NODES, -1, K + 2)
        pairs = self.new(spread).reshape(NODES, -1, 2, K).transpose(0, 1)
        h = torch.tanh(h + pairs[:, :, 0] * pairs[:, :, 1].sigmoid())
        return pairs.amax(1).flatten(1), h


@ZOO.cell(2, [(2, D), (2, D, D), 2])
class InteractingModels(nn.Module):
    """Blom and Bar-Shalom (1988): two Kalman filters, mixed; a matrix is read element by element, too."""

    def __init__(self):
        super().__init__()
        self.moves = nn.Parameter(torch.eye(D).repeat(2, 1, 1) + 0.1 * torch.randn(2, D, D))
        self.seen, self.jumps = nn.Parameter(torch.randn(2, D)), nn.Parameter(torch.randn(2, 2))

    def forward(self, z, state):
        m, root, odds = state
        P = root @ root.mT + torch.eye(D, dtype=z.dtype)
        odds, jumps = odds.softmax(1), self.jumps.softmax(1)
        come = odds @ jumps
        share = jumps * odds[:, :, None] / come[:, None]
        mixed = torch.einsum("bij,bik->bjk", share, m)
        off = m[:, :, None] - mixed[:, None]
        P = torch.einsum("bij,bikl->bjkl", share, P) + torch.einsum("bij,bijk,bijl->bjkl", share, off, off)
        m, P = torch.einsum("jkl,bjl->bjk", self.moves, mixed), self.moves @ P @ self.moves.mT
        missed = z[:, None] - m @ self.seen.T
        S = self.seen @ P @ self.seen.T + torch.eye(2, dtype=z.dtype)
        gain = P @ self.seen.T @ torch.linalg.inv(S)
        m, P = m + (gain @ missed[..., None]).squeeze(-1), P - gain @ S @ gain.mT
        fit = (missed[:, :, None] @ torch.linalg.solve(S, missed[..., None])).flatten(1) + torch.logdet(S)
        odds = torch.log(come) - 0.5 * fit
        root = torch.linalg.cholesky(P + torch.eye(D, dtype=z.dtype)) * 0.5
        return (odds.softmax(1)[..., None] * m).sum(1), (m, root, odds)


@ZOO.cell(D, [D])
class Codebook(nn.Module):
    """van den Oord et al. (2017): the nearest code of a state, straight through; both commit."""

    def __init__(self):
        super().__init__()
        self.cell, self.codes = nn.GRUCell(D, D), nn.Embedding(7, D)

    def forward(self, x, h):
        z = self.cell(x, h)
        apart = torch.cdist(z, self.codes.weight)
        code = self.codes(apart.argmin(1))
        commit = (z - code.detach()).square().mean(1) + (code - z.detach()).square().mean(1)
        return (commit, apart), z + (code - z).detach()


@ZOO.cell((1, 6, 5), [(2, 6, 5)])
class FourierOperator(nn.Module):
    """Li et al. (2021): a few modes of a field, mixed by complex weights."""

    def __init__(self):
        super().__init__()
        self.modes = nn.Parameter(torch.randn(2, 2, 3, 2, 2) * 0.2)
        self.near, self.given = nn.Conv2d(2, 2, 1), nn.Conv2d(1, 2, 1)

    def forward(self, x, h):
        u = h + self.given(x)
        waves = torch.fft.rfft2(u)
        kept = torch.zeros_like(waves)
        weight = torch.view_as_complex(self.modes)
        kept[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :3, :2], weight)
        h = F.gelu(torch.fft.irfft2(kept, s=u.shape[-2:]) + self.near(u))
        return h.mean((2, 3)), h
