"""Steps that write into a tensor they did not make, however: tried on no sample rows, once for each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beside_plain import H, ours, rows
from covering import few
from stepnet.errors import Unsupported

aten = torch.ops.aten


@torch.library.custom_op("stepnet_tests::count", mutates_args=("counts",))
def count(counts: Tensor) -> None:
    counts.add_(1)


def observed(step: Writes, h: Tensor) -> None:
    low, high = step.counts[:1], step.counts[1:2]
    on, scale, zero = torch.ones(1, dtype=torch.int64), torch.ones(1), torch.zeros(1, dtype=torch.int32)
    torch.fused_moving_avg_obs_fake_quant(h.float(), on, on, low, high, scale, zero, 0.1, 0, 255, 0)


WAYS: dict[str, Callable[[Writes, Tensor], object]] = {
    "a method": lambda step, h: step.counts.add_(1),
    "out": lambda step, h: torch.add(step.counts, 1, out=step.counts),
    "an operator": lambda step, h: aten.add_(step.counts, 1),
    "an overload": lambda step, h: aten.add_.Tensor(step.counts, step.counts),
    "an operator of the user's": lambda step, h: torch.ops.stepnet_tests.count(step.counts),
    "in place of what is given": lambda step, h: F.leaky_relu(step.counts, 2.0, inplace=True),
    "an embedding that is renormed": lambda step, h: F.embedding(torch.tensor([0]), step.table, max_norm=0.5),
    "an observer": observed,
    "statistics": lambda step, h: torch.native_batch_norm(
        torch.ones(3, H), None, None, step.counts, step.table[0], True, 0.1, 1e-5
    ),
    "numpy": lambda step, h: np.add(step.counts.numpy(), 1, out=step.counts.numpy()),
    "an array of it": lambda step, h: np.add(step.counts[1:], 1, out=np.asarray(step.counts[1:])),
}


class Writes(nn.Module):
    def __init__(self, way: str, open: bool) -> None:
        super().__init__()
        self.way, self.open = way, open
        self.register_buffer("counts", torch.tensor([-1.0, 2.0, 0.5, -3.0]))
        self.register_buffer("table", torch.ones(2, H))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        WAYS[self.way](self, h)
        # a name that is made as it runs is recorded, others are walked
        counts = getattr(self, "count" + "s"[:1]) if self.open else self.counts
        h = torch.tanh(x.sum(-1, keepdim=True) + h + counts + self.table[0])
        return h, h


EACH = [(way, open) for way in WAYS for open in (False, True)]
RECORDED = ["a method", "an operator of the user's", "numpy", "an observer"]


@pytest.mark.parametrize(
    ("way", "open"),
    few(EACH, [(way, way in RECORDED) for way in [*WAYS][::2]]),
    ids=[f"{way}, {'recorded' if open else 'walked'}" for way, open in EACH],
)
def test_writes_are_those_of_the_plain_loop(way: str, open: bool) -> None:
    step, twin = Writes(way, open), Writes(way, open)
    for _ in range(2):
        found, plain = ours(step, *rows()), ours(twin, *rows(), "naive")
        torch.testing.assert_close([*found, *step.buffers()], [*plain, *twin.buffers()], rtol=0, atol=0)
    with pytest.raises(Unsupported, match="tensor it did not make"):
        ours(step, *rows(), "eager")
    torch.testing.assert_close([*step.buffers()], [*twin.buffers()], rtol=0, atol=0)
