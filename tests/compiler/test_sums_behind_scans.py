"""What gradients of weights are made of is made in the scan of backward, not by torch before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outcomes import as_the_plain_loop, wanting
from plans import plan_of
from stepnet import LoDTensor
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.verify import verify

OPTIMISED = False
D, H = 3, 5


class Gated(nn.Module):
    """A gate of what no state goes into, whose gradient waits for no step but that of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(D, 4 * H).double(), nn.Linear(H, D, bias=False).double()
        self.v = nn.Parameter(torch.randn(2, H, dtype=torch.float64))

    def forward(self, x, state):
        u, f, r, s = self.into(x).chunk(4, -1)
        f, r = torch.sigmoid(f + self.v[0] * state), torch.sigmoid(r + self.v[1] * u)
        new = u + f * (state - u)
        return self.out(r * new + s * (1 - r)), new


class Mixed(Gated):
    """Whose inputs are mixed with those of the step before, as in RWKV."""

    def forward(self, x, state):
        last, old = state
        y, new = super().forward(x + 0.5 * (last - x), old)
        return y, (x, new)


class Turned(Gated):
    """What a new state is multiplied by reads no other one: states are made again for its gradient."""

    def forward(self, x, state):
        a, b = state
        u, w, _, _ = self.into(x).chunk(4, -1)
        r, s = self.v.tanh()
        a, b = r * a - s * b + u, r * b + s * a + w
        return self.out(a) - self.out(2 * b), (a, b)


STATES = {Gated: (H,), Mixed: (D, H), Turned: (H, H)}


@pytest.mark.parametrize("kind", STATES)
def test_where_they_are_made_and_the_numbers(kind):
    torch.manual_seed(0)
    step = kind()
    x = LoDTensor.from_lengths(torch.randn(9, D, dtype=torch.float64), [[3, 0, 5, 1]])
    states = [torch.randn(4, size, dtype=torch.float64) for size in STATES[kind]]
    x, state = wanting((x, tuple(states) if states[1:] else states[0]))
    plan = plan_of(step, x, state, backend="c")
    assert plan.backward is not None
    verify(plan, "plan")
    regions = plan.backward.regions
    scan = max(at for at, region in enumerate(regions) if region.carries)

    def elements(some):
        """Ops on elements that are torch's in some regions, and sums over rows."""
        nodes = [node for region in some if region.kind == "map" for node in region.nodes]
        stages = [OPS[node.op].stage for node in nodes]
        return stages.count(Stage.POINTWISE), stages.count(Stage.ROWS)

    # one op before a product, and sums that hold nothing back: of that op and of the product's other rows
    assert elements(regions[:scan]) == ((1, 2) if kind is Turned else (0, 0))
    assert elements(regions[scan:])[0] <= 4  # behind the last products
    as_the_plain_loop(step, x, state, weights=[*step.parameters()])


def test_what_holds_nothing_back_stays():
    """Rows that are only put side by side for a weight's gradient: no scan makes them on its way."""
    torch.manual_seed(0)
    into = nn.Linear(D + 2 * H, H).double()

    def step(x, state):
        y, z = state
        z = z + 0.1 * torch.tanh(into(torch.cat((x, z, y), 1))) - 0.1 * y
        return y + z, (y + 0.1 * z, z)

    x = LoDTensor.from_lengths(torch.randn(9, D, dtype=torch.float64), [[3, 0, 5, 1]])
    x, state = wanting((x, tuple(torch.randn(4, H, dtype=torch.float64) for _ in range(2))))
    plan = plan_of(step, x, state, backend="c")
    assert plan.backward is not None
    regions = plan.backward.regions
    scan = next(at for at, region in enumerate(regions) if region.carries)
    assert "cat" in [node.op for region in regions[:scan] for node in region.nodes]
    as_the_plain_loop(step, x, state, weights=[*into.parameters()])


@pytest.mark.parametrize("lines", [2, 16])
def test_a_product_of_rows_from_outside_is_read_by_another_as_lines(lines):
    """In backward the first is made for some steps at a time, the second at each step."""
    torch.manual_seed(0)
    gate, inner = (torch.randn(lines, n, dtype=torch.float64).requires_grad_() for n in (lines, 3))
    outer = torch.randn(9, 3 * lines, dtype=torch.float64).requires_grad_()

    def step(x, h):
        inside = (h * h * torch.sigmoid(gate) @ inner).flatten(1)
        return inside @ outer.t(), torch.tanh(h + x)

    x = LoDTensor.from_lengths(torch.randn(9, lines, lines, dtype=torch.float64), [[3, 0, 5, 1]])
    x, h = wanting((x, torch.randn(4, lines, lines, dtype=torch.float64)))
    as_the_plain_loop(step, x, h, weights=[gate, inner, outer])
