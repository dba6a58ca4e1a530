"""Dropout between layers drops what torch.nn drops after the same seed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from covering import few
from stepnet import nn as ours

F64 = torch.float64


def of_packed(module, x, lengths):
    given = [row[:length] for row, length in zip(x, lengths, strict=True)]
    return module(pack_sequence(given, enforce_sorted=False))[0].data


LAYOUTS = {
    "time first": ({}, lambda module, x: module(x.transpose(0, 1))[0]),
    "batch first": ({"batch_first": True}, lambda module, x: module(x)[0]),
    "unbatched": ({"batch_first": True}, lambda module, x: module(x[0])[0]),
    "packed": ({}, lambda module, x: of_packed(module, x, [2, 5, 1])),
    "packed, sorted": ({}, lambda module, x: of_packed(module, x, [5, 2, 1])),
    "checkpoint": (
        {"batch_first": True},
        lambda module, x: checkpoint(lambda x: module(x)[0], x, use_reentrant=False),
    ),
}


@pytest.mark.parametrize("both", few([False, True], [True]))
@pytest.mark.parametrize("kind", few(["LSTM", "GRU", "RNN"], ["GRU"]))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_the_same_seed_the_same_is_dropped(layout, kind, both):
    more, run = LAYOUTS[layout]
    options = {"num_layers": 3, "dropout": 0.4, "bidirectional": both, "dtype": F64, **more}
    peer, module = getattr(nn, kind)(2, 3, **options), getattr(ours, kind)(2, 3, **options)
    module.load_state_dict(peer.state_dict())
    x = torch.randn(3, 5, 2, dtype=F64)
    for seed in (0, 1):
        found = []
        for one in (module, peer):
            given = x.clone().requires_grad_()
            torch.manual_seed(seed)
            y = run(one, given)
            after = torch.rand(1)
            grads = torch.autograd.grad(y.square().sum(), [given, *one.parameters()])
            found.append([y, after, *grads])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
