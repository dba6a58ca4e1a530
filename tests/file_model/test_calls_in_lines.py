"""Calls that a line holds, and calls that none does: what it gives is what torch gives, of any numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from stepnet.file_model.recording import Recorder

BACKEND = "c"
LIKE = torch.tensor([[0.5, -1.5, 2.5], [-0.0, 3.5, -4.0]])
PLACES, WHOLE, LONG = torch.tensor([2, 0]), torch.tensor([[1, -2, 3], [0, 5, -6]]), torch.ones(70, 3)


def held(x):
    """Calls that are part of one line."""
    a = x.sigmoid() + x.abs().sqrt() * x.clamp(-0.5, 2) - torch.where(x > 0, x, 1.5)
    b = torch.softmax(a, 0) + torch.softmax(a, -1).clamp(min=0.1) + torch.maximum(x, x.mean())
    c = F.pad(b, [1, -1], value=2.0).index_select(1, PLACES) @ a[:, :2]
    return [a, b, c, torch.stack([a, b], 1).sum([0, 2]), x.round() / x.expm1(), F.layer_norm(b, [2, 3])]


ODD = {
    "a matrix and a vector": lambda x: x @ x[0],
    "vectors": lambda x: F.linear(x, x[0]),
    "batches that spread": lambda x: x.unsqueeze(0).unsqueeze(0) @ torch.stack([x, x]).mT,
    "many rows": lambda x: torch.cat([x, LONG]) @ x.mT,
    "many matrices": lambda x: (x + torch.zeros(65, 1, 1)) @ (x + torch.zeros(65, 1, 1)).mT,
    "no rows": lambda x: x[:0].exp() @ x.mT,
    "whole numbers": lambda x: torch.maximum(WHOLE, x.long()),
    "whole numbers and others": lambda x: torch.maximum(x, WHOLE),
    "a comparison of kinds": lambda x: torch.lt(WHOLE, x),
    "a comparison with a fraction": lambda x: x.long() < 0.5,
    "truths": lambda x: torch.eq(x > 0, x > 1),
    "powers, each its own": lambda x: torch.pow(x, x),
    "a power that is a number": lambda x: torch.pow(x, 0.5),
    "no bound": lambda x: x.clamp(-math.inf, 0.5),
    "no bound of whole numbers": lambda x: x.long().clamp(max=1),
    "cut to whole numbers": lambda x: x.to(torch.int64),
    "doubles": lambda x: x.to(torch.float64).exp(),
    "a sum of doubles": lambda x: x.sum(1, dtype=torch.float64),
    "a softmax of doubles": lambda x: torch.softmax(x, 1, dtype=torch.float64),
    "a norm of nothing": lambda x: F.layer_norm(x[:0], [3]),
    "kinds put together": lambda x: torch.cat([x, WHOLE]),
    "kinds beside each other": lambda x: torch.stack([x, WHOLE.float().double()]),
    "whole numbers around": lambda x: F.pad(x.long(), [1, 1]),
    "infinity around": lambda x: F.pad(x, [1, 1], value=-math.inf),
    "an index that is one number": lambda x: x.index_select(1, PLACES[0]),
    "an index that is computed": lambda x: x.index_select(1, (x[0, 0] > 0).long().reshape(1)),
    "groups": lambda x: F.conv1d(x.unsqueeze(0), x[:, :1].unsqueeze(1), groups=2),
    "no batch": lambda x: F.conv1d(x, x.unsqueeze(0)),
    "whole numbers chosen": lambda x: torch.where(x > 0, x.long(), WHOLE),
    "other ways": lambda x: torch.add(x, x, alpha=2) + torch.div(x, x, rounding_mode="floor"),
}  # fmt: skip


@pytest.mark.parametrize("calls", [{}, ODD], ids=["held", "beside others"])
def test_calls(calls):
    def run(given):
        return [*held(*given), *(call(*given) for call in calls.values())]

    with torch.no_grad():
        recorder = Recorder([LIKE], {}, ())
        function = recorder.function(recorder.call(run, [LIKE])).run
        for odd in (0.25, -3.0, 1.0, math.nan, math.inf, -math.inf, -0.0, 1e-42):
            x = LIKE.flip(0).contiguous()
            x[1, 1] = odd
            found, expected = function(x), run([x])
            for a, b in zip(found, expected, strict=True):
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert function._fast is not None
