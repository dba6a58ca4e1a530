"""Scans that wait for nothing but one another are one, where they multiply by the same weights."""

from __future__ import annotations

import pytest
import torch

from covering import few
from plans import plan_of
from stepnet import LoDTensor, recurrent

H = 6
U, V = (torch.randn(H, H, dtype=torch.float64) / 3 for _ in range(2))
WIDE = torch.randn(H, 1 << 15, dtype=torch.float64) / 3

WEIGHTS = {"the same": (U, U), "others": (U, V), "none": (None, None), "of one": (U, None)}
BETWEEN = {
    "cheap": lambda h: torch.tanh(h) * 2,
    "a view": lambda h: torch.cat([h[:, H // 2 :], h[:, : H // 2]], 1),
    "a product": lambda h: h @ V,
    "a large product": lambda h: (h @ WIDE)[:, :H],
    "a sort": lambda h: h.sort(-1).values,
}


def joins(weights, between):
    if weights in ("others", "of one"):
        return False
    return between in ("cheap", "a view") or (between == "a product" and weights == "the same")


def made(weights, between):
    first, second = WEIGHTS[weights]

    def step(x, state):
        a, b = state
        a = torch.tanh(x + (a if first is None else a @ first))
        b = torch.sigmoid(x * 3 + BETWEEN[between](a) + (b * 0.5 if second is None else b @ second))
        return (a, b), (a, b)

    return step


@pytest.mark.covering(1)
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_which_are_joined_and_their_numbers(weights, between, request):
    """Numbers of those that stay two scans, as those of any step, are compared of some."""
    compares = joins(weights, between) or between == "a product" or request.config.getoption("exhaustive")
    torch.manual_seed(0)
    step = made(weights, between)
    x = LoDTensor.from_lengths(torch.randn(9, H, dtype=torch.float64, requires_grad=True), [[3, 0, 5, 1]])
    state = tuple(torch.randn(4, H, dtype=torch.float64, requires_grad=True) for _ in range(2))
    plan = plan_of(step, x, state, backend="c" if compares else "eager")
    scans = [region for region in plan.forward.regions if region.kind == "scan"]
    assert len(scans) == (1 if joins(weights, between) else 2)
    if len(scans) == 1:  # what the second one alone reads of x is made in there, too
        assert not any(region.nodes for region in plan.forward.regions if region.kind == "map")

    def outcome(backend):
        (a, b), last = recurrent(step, x, state, backend=backend)
        results = [a.values, b.values, *last]
        return results, torch.autograd.grad(sum(t.sin().sum() for t in results), [x.values, *state])

    if compares:
        torch.testing.assert_close(outcome("c"), outcome("naive"))


@pytest.mark.parametrize("calls", few([1, 2], [2]))
def test_many_ops_behind_a_last_product_are_one_pass(calls):
    """And the product is made in it, by blocks of rows."""

    def step(x, h):
        h = torch.tanh(x + h @ U)
        y = h @ V
        for _ in range(calls):
            y = torch.sin(y * h)
        return y, h

    x, h = torch.randn(4, 2, H, dtype=torch.float64), torch.randn(2, H, dtype=torch.float64)
    plan = plan_of(step, x, h, backend="c")
    kinds = [region.kind for region in plan.forward.regions]
    assert kinds.count("scan") == (1 if calls == 1 else 2)
    for got, want in zip(*(recurrent(step, x, h, backend=of) for of in ("c", "naive")), strict=True):
        torch.testing.assert_close(got, want)
