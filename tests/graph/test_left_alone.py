"""Where Dynamo gave up on a frame that calls a recurrence, it follows nothing of how a call is run."""

from __future__ import annotations

import torch
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.utils import counters

from stepnet import LoDTensor, api, cells


def test_a_call_like_one_before_is_no_frame_of_dynamos():
    cell = cells.GRU(3, 4)
    x = LoDTensor.from_lengths(torch.randn(6, 3), [[2, 0, 4]])
    way = False, -1, 0, "auto"
    expected = api.recurrent(cell, x)[0].values

    def call():
        return api.warm(cell, x, None, way)[1]

    @torch.compile(backend="eager")
    def given_up():
        torch._dynamo.graph_break()
        return call()

    skip_code(call.__code__)  # as Dynamo does where it fails at a frame; what that calls it still follows
    counters.clear()
    out = given_up()
    assert out is None or torch.equal(out[0].values, expected)
    assert counters["frames"]["total"] <= 2  # `given_up`, and what is left of it after the break
