"""Random models of some recurrences: steps of many kinds, one after or beside the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import stepnet
from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten

H = 3

# ---- steps: x [n, 3], what is carried, and the module with the weights


def linear(x, h, m):
    h = torch.tanh(x @ m.W + h @ m.U + m.b)
    return h, h


def gated(x, h, m):
    z, r = torch.sigmoid(torch.cat([x, h], -1) @ m.Z).chunk(2, -1)
    h = z * h + (1 - z) * torch.tanh(x @ m.W + (r * h) @ m.U)
    return h, h


def pair(x, state, m):
    h, c = state
    c = 0.5 * c + x * h
    h = torch.tanh(c @ m.U)
    return (h, c.sum(-1)), (h, c)


def counts(x, state, m):
    h, n = state
    return {"h": h, "n": n}, (h * 0.5 + x @ m.W / (n[:, None] + 1), n + 1)


def threshold(x, h, m):
    spikes = (h + x > 0.3).to(x.dtype)
    h = h * 0.9 * (1 - spikes) + x @ m.W
    return spikes * h, h


def detached(x, h, m):
    h = h.detach() * 0.3 + x @ m.W
    return h + h.detach(), h


def branch(x, h, m):
    h = torch.tanh(x @ m.W + h) if m.b[0] > 0 else torch.sin(x + h @ m.U)
    return h, h


def matrix(x, s, m):
    s = s * 0.8 + x[:, :, None] * (x @ m.U)[:, None, :]
    return (s @ x[:, :, None])[..., 0], s


def ignores(x, h, m):
    return torch.zeros_like(h) + m.b, h


def passes(x, h, m):
    return x, x + h * 0


def written(x, h, m):
    v = h.clone()
    v[:, 0] = x[:, 1]
    v[:, 1:] += x[:, 1:]
    return v * m.b, v


def normed(x, h, m):
    h = nn.functional.layer_norm(x + h @ m.U, (H,))
    return h, h


def largest(x, h, m):
    values, places = (h + x).topk(2, -1)
    return values.sum(-1, keepdim=True) * m.b, torch.zeros_like(h).scatter(-1, places, values)


ONE = (linear, gated, threshold, detached, branch, ignores, passes, written, normed, largest)
STEPS = {step.__name__: step for step in (*ONE, pair, counts, matrix)}
STATES: dict[str, Callable[[Tensor, int], Any]] = {
    **{step.__name__: lambda w, n: w.new_zeros(n, H) for step in ONE},
    "pair": lambda w, n: (w.new_full((n, H), 0.2), w.new_zeros(n, H)),
    "counts": lambda w, n: (w.new_zeros(n, H), torch.zeros(n, dtype=torch.int64)),
    "matrix": lambda w, n: w.new_zeros(n, H, H),
}


class Cell(nn.Module):
    """A step by its name: looked up at each call, or once."""

    def __init__(self, kind: str, looked_up: bool, other: Cell | None):
        super().__init__()
        self.kind, self.looked_up, self.step = kind, looked_up, STEPS[kind]
        self.W, self.U = (nn.Parameter(torch.zeros(H, H)) for _ in range(2))
        self.b, self.Z = nn.Parameter(torch.zeros(H)), nn.Parameter(torch.zeros(2 * H, 2 * H))
        if other is not None:
            self.W = other.W

    def forward(self, x, state):
        return (STEPS[self.kind] if self.looked_up else self.step)(x, state, self)

    def initial_state(self, n):
        return STATES[self.kind](self.W, n)


class Model(nn.Module):
    """Some recurrences, and how each is run."""

    def __init__(self, pick: random.Random):
        super().__init__()
        self.cells, self.how = nn.ModuleList(), []
        for _ in range(pick.choice([1, 1, 2, 2, 3])):
            kind = pick.choice([*STATES, "GRUCell", "LSTM"])
            before = [cell for cell in self.cells if isinstance(cell, Cell)]
            shared = before[-1] if before and pick.random() < 0.3 else None
            if kind == "LSTM":
                self.cells.append(stepnet.nn.LSTM(H, H))
            elif kind == "GRUCell":
                self.cells.append(nn.GRUCell(H, H))
            else:
                self.cells.append(Cell(kind, pick.random() < 0.3, shared))
            options: dict[str, Any] = {"reverse": pick.random() < 0.3}
            if kind != "LSTM":
                options |= pick.choice(
                    [
                        {},
                        {},
                        {},
                        {"checkpoint": True},
                        {"checkpoint": 2},
                        {"checkpoint": 1},
                        {"detach_every": 2},
                    ]
                )
            again = kind not in ("LSTM", "GRUCell") and pick.random() < 0.2
            first = pick.choice(["own", "given", "before", "learned"])
            link = pick.choice(["y", "y", "x", "sum", "pool"])
            self.how.append((kind, options, again, first, link))
        self.first = nn.Parameter(torch.zeros(H))

    def forward(self, x, given, starts):
        out, before = [], None
        for cell, (kind, options, again, first, link) in zip(self.cells, self.how, strict=True):
            if kind == "LSTM":
                y, (final, _) = cell(x)
                final = final[0]
            else:
                state = None if kind == "GRUCell" else cell.initial_state(len(given))
                if kind == "GRUCell" or kind in {step.__name__ for step in ONE}:
                    states = {"given": given, "before": before, "learned": self.first.expand(len(given), H)}
                    state = state if states.get(first) is None else states[first]
                resets = {"resets": starts} if again else {}
                y, final = recurrent(cell, x, state, **options, **resets)
            out += [*tensors(y), *tensors(final)]
            final = tensors(final)[0]
            before = final if final.shape == given.shape else None
            y = y["h"] if isinstance(y, dict) else y[0] if type(y) is tuple else y
            wide = tensors(y)[0].shape[-1] == H
            if link == "y" and wide:
                x = y
            elif link == "sum" and wide and not isinstance(x, PackedSequence):
                x = x * 0.5 + y
            elif link == "pool" and isinstance(y, LoDTensor):
                out.append(stepnet.sequence_pool(y, "sum"))
        return tuple(out)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a result."""
    leaves = flatten(value)[0]
    return [
        t.values if isinstance(t, LoDTensor) else t.data if isinstance(t, PackedSequence) else t
        for t in leaves
    ]
