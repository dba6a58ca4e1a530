"""All rows joined behind all rows: `cat` along the batch, heads joined in it, what is split again."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import Unsupported

D = torch.float64
W = torch.randn(4, 4, dtype=D, generator=torch.Generator().manual_seed(3)).requires_grad_()
ONE = torch.randn(1, 4, dtype=D, generator=torch.Generator().manual_seed(4)).requires_grad_()


def through(*rows):
    return torch.tanh(F.linear(torch.cat(rows), W))


def heads(z):
    return torch.cat(z.unflatten(-1, (2, 2)).chunk(2, 2), 0)


def set_attention(x, h):
    """Heads as the Set Transformer joins them, and their masks as others repeat them."""
    q, k = heads(F.linear(x, W)), heads(torch.stack([h, x], 1).sum(1))
    scores = q @ k.mT / math.sqrt(2)
    seen = (h[:, :1] > -9).repeat(2, 1).unsqueeze(-1)
    scores = scores.masked_fill(torch.ones(1, 1, dtype=torch.bool).expand(len(q), 1, 1) == 0, -1e9)
    weights = torch.where(seen, scores, torch.full_like(scores, -9.0)).softmax(-1)
    return torch.cat((q + weights @ k).split(len(x), 0), 2).flatten(1)


def twice_written(x, h):
    z = torch.zeros(2 * len(x), 4, dtype=D)
    z[: len(x)] = x * h
    z[len(x) :] = h
    z[-len(x) :] *= 0.5
    return z.view(2, -1, 4).sum(0)


# Of x and h, [rows, 4] each.
STEPS = {
    "chunk": lambda x, h: torch.sub(*through(x, h).chunk(2)),
    "chunk of three": lambda x, h: sum(k * z for k, z in enumerate(through(x, h, x * h).chunk(3), 1)),
    "split": lambda x, h: torch.mul(*through(x, h).split(len(x))),
    "split unevenly": lambda x, h: torch.mul(*(z[: len(x)] for z in through(x, h, h).split(2 * len(x)))),
    "split by sizes": lambda x, h: through(x, h, x).split([len(x), 2 * len(x)])[1][len(x) :],
    "slices": lambda x, h: (z := through(x, h, x - h))[len(x) : 2 * len(x)] - z[-len(x) :] * z[: len(x)],
    "all of them": lambda x, h: through(x, h)[: 2 * len(x)].view(2, -1, 4).amax(0)[: len(x)],
    "views": lambda x, h: through(x, h).view(2, len(x), 4)[1] * x,
    "joined again": lambda x, h: torch.cat([through(x, h), through(h, x)]).chunk(4)[2],
    "other features": lambda x, h: torch.cat([x.t(), h.t()], 1).softmax(0).chunk(2, 1)[1].t(),
    "beside": lambda x, h: torch.cat([through(x, h), torch.cat([h, x])], 1).chunk(2)[0][:, 2:6],
    "repeated": lambda x, h: (x.repeat(2, 1) * torch.cat([h, h.sin()])).view(2, -1, 4).prod(0),
    "repeated beside": lambda x, h: x.repeat_interleave(2, 0).view(-1, 2, 4).sum(1) * h,
    "tiled": lambda x, h: torch.tile(x, (3, 1))[len(x) : 2 * len(x)] + h,
    "one for all": lambda x, h: (through(x, h) * ONE.expand(2 * len(x), 4)).chunk(2)[1],
    "one of all": lambda x, h: torch.cat([x, ONE.expand(len(x), 4)]).chunk(2)[1] + h,
    "norms": lambda x, h: F.layer_norm(torch.cat([x, h]), (4,), ONE[0]).chunk(2)[0],
    "sorted": lambda x, h: torch.cat([x, h]).sort(1).values.chunk(2)[1] * x,
    "attention": set_attention,
    "written": twice_written,
}


@pytest.mark.parametrize("backend", few(["c", "eager"], ["c"]))
def test_as_the_plain_loop(backend):
    def step(x, h):
        y = {name: of(x, h) for name, of in STEPS.items()}
        return y, torch.stack([*y.values()]).mean(0).tanh()

    x = LoDTensor.from_lengths(torch.randn(8, 4, dtype=D), [[3, 0, 1, 4]])
    x, h = wanting((x, torch.randn(4, 4, dtype=D)))
    assert explain(step, x, h, backend=backend).executor == backend
    as_the_plain_loop(step, x, h, backend)


@pytest.mark.parametrize(
    "of",
    [
        lambda x, h: torch.cat([x, h]).view(-1, 2, 4)[:, 0],  # pairs each row with another one
        lambda x, h: torch.cat([x, h]).mean(0, keepdim=True) + x,
        lambda x, h: torch.cat([x, h])[1 : len(x) + 1],
        lambda x, h: torch.cat([x, h]).softmax(0)[: len(x)],
        lambda x, h: x.repeat_interleave(2, 0)[: len(x)],
        lambda x, h: torch.cat([x, ONE])[1:],
    ],
    ids=["pairs", "mean", "shifted", "softmax over rows", "first of copies", "one row more"],
)
def test_what_mixes_rows_is_refused(of):
    x, h = torch.randn(3, 2, 4, dtype=D), torch.zeros(2, 4, dtype=D)
    with pytest.raises(Unsupported, match="rows"):
        recurrent(lambda x, h: (h, of(x, h)), x, h, backend="c")
