"""Static inputs of recurrences in a stream: read at each push, never carried."""

from __future__ import annotations

import torch

import stepnet
from stepnet import LoDTensor, cells, stream

DTYPE, F, H = torch.float64, 2, 3
CLOSE = {"rtol": 0, "atol": 1e-10}


def test_static_inputs_of_a_dynamic_recurrence_are_those_of_the_push():
    """They are no states: what a push gives is read, whichever streams it is of."""
    cell = cells.GRU(F, H, dtype=DTYPE)

    def net(x):
        def step(s):
            s["h"] = cell(s["x"] * s["m"] + stepnet.sequence_pool(s["seen"], "sum"), s["before"])[0]

        seen = x["seen"]
        scope = stepnet.Scope({"x": x["x"], "m": torch.stack([own[0] for own in seen]), "seen": seen})
        memory = stepnet.Memory("h", "before", shape=(H,))
        stepnet.dynamic_recurrent(step, scope, ["x"], ["h"], [memory], static_inputs=["m", "seen"])
        return scope["h"]

    rows, seen = torch.randn(3, 6, F, dtype=DTYPE), torch.randn(3, 2, F, dtype=DTYPE)
    live, got, left = stream(net), [[], [], []], [[*own.split(2)] for own in rows]
    for k in range(3):
        live.open(k)
    for own in ((1, 2), (0, 2), (2, 1, 0), (0, 1)):
        for k, y in live.push({k: {"x": left[k].pop(0), "seen": seen[k]} for k in own}).items():
            got[k].append(y)
    with torch.no_grad():
        whole = {"x": rows, "seen": seen}
        expected = net({k: LoDTensor.from_sequences(list(each)) for k, each in whole.items()})
    torch.testing.assert_close([torch.cat(own) for own in got], list(expected), **CLOSE)
