"""Calls of whole numbers and truths, of infinities, of more axes: each is written as what it means there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from file_formats import FORMATS

SIGHT = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()


def calls(x, k, seen):
    """x float [n, 3, 4], k whole numbers [n, 3], seen truths [n, 3]."""
    attended, bias = F.scaled_dot_product_attention, torch.where(seen, 0.0, -math.inf)[:, None]
    beginning = torch.where(torch.arange(4) < 2, -math.inf, x)
    return {
        "whole": [k.floor() + k.ceil(), k.round() * k.trunc(), k.relu(), k.isnan() | k.isinf()],
        "truths": [torch.maximum(seen, k > 1), torch.minimum(seen, k > 1), seen + (k > 1), seen.amax(1)],
        "all": [x.prod(), seen.amin(0), x.argmax(keepdim=True), F.hinge_embedding_loss(x, torch.ones(4))],
        "nothing seen": [
            attended(x, x, x, seen[:, None]),
            attended(x, x, x, bias),
            attended(x, x, x, SIGHT),
            attended(x, x, x, torch.where(SIGHT, 0.0, -math.inf)),
        ],
        "of any width": attended(x.mT, x.mT, x.mT),
        "infinities": [beginning.logcumsumexp(2), (-beginning).logcumsumexp(2)],
        "more axes": [x.repeat(2, 1, 1, 3), x[0, 0].repeat(x.shape[0], 2, 1)],
        "scaled": [
            torch.addmm(x[0], x[0, :, :3], x[0], beta=0.5, alpha=2.0),
            torch.baddbmm(x * math.nan, x @ x.mT, x, beta=0),
        ],
    }


class Calls(nn.Module):
    def forward(self, x, k, seen):
        return calls(x, k, seen)


def given(n):
    k = torch.randint(-2, 3, (n, 3))
    return torch.randn(n, 3, 4), k, k > 0 if n > 1 else torch.zeros(n, 3, dtype=torch.bool)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("one_trace")
def test_written_and_read_back(name, tmp_path):
    form, runtime, file = FORMATS[name]
    torch.manual_seed(0)
    path = tmp_path / file
    form.save(Calls(), path, given(4))
    read = form.load(path)
    for n in (3, 1):
        inputs = given(n)
        wanted = [
            (what, value)
            for what, found in calls(*inputs).items()
            for value in (found if isinstance(found, list) else [found])
        ]
        run = [torch.as_tensor(np.asarray(t)) for t in runtime(path, [t.numpy() for t in inputs])]
        for found in (run, read(*inputs).tuple()):
            for (what, want), got in zip(wanted, found, strict=True):
                torch.testing.assert_close(got, want, msg=lambda m, w=what: f"{w}: {m}")
