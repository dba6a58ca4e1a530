"""Linear recurrences in passes over all rows: the numbers of the plain loop, for any a and any lengths."""

from __future__ import annotations

import pytest
import torch

import stepnet
from covering import few
from outcomes import outcome, same, wanting
from stepnet.executors.layout import Layout
from stepnet.executors.torch_ops import linear_scan
from stepnet.report import explain
from stepnet.report.svg import ONCE, STEP

H = 3
LENGTHS = {
    "ragged": [5, 0, 1, 17, 2, 8, 0],
    "one": [1],
    "long": [500, 63, 64, 65],
    "empty": [0, 0],
}


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Passes wherever they can be, and how many times they were taken and were right to be."""
    found = []
    honest = linear_scan.LinearScan._passes

    def passes(self, region, values, states, layout):
        out = honest(self, region, values, states, layout)
        found.append(out is not None)
        return out

    monkeypatch.setattr(linear_scan, "pays", lambda device, steps, state_bytes: True)
    monkeypatch.setattr(linear_scan.LinearScan, "_passes", passes)
    return found


def gate(x, h):
    """a of both signs, and 0 in places."""
    a = torch.where(x[:, :H] > 1, 0.0, 1.2 * torch.tanh(x[:, H:]))
    h = h * a - x[:, :H]
    return h, h


def two(x, state):
    h, c = state
    a = torch.sigmoid(x[:, :H])
    h = x[:, H:] - h / (1 + a)
    c = (c + x[:, :1]) * 0.5
    return h * c, (h, c)


def fading(x, h):
    """What is read of the state is not the state itself."""
    kept = h * torch.sigmoid(x[:, :H])
    h = kept + x[:, H:]
    return torch.cat([kept, torch.sin(h)], -1), h


def summed(x, h):
    h = h + x
    return h, h


def outer(x, s):
    """A state of two dimensions, as in linear attention."""
    s = s * torch.sigmoid(x[:, :1])[:, :, None] + x[:, :H, None] * x[:, None, H:]
    return s.sum(-1), s


def chosen(x, h):
    """Rows that keep their state, by a condition that no state goes into; torch.lerp is a choice, too."""
    h = torch.where(x[:, :1] > 0, torch.lerp(h, x[:, H:], torch.sigmoid(x[:, :H])), h)
    h = torch.where(x[:, 1:2] > 1, x[:, :H], h)
    return h, h


STEPS = {
    "chosen": (chosen, lambda n: torch.randn(n, H)),
    "gate": (gate, lambda n: torch.randn(n, H)),
    "two": (two, lambda n: (torch.randn(n, H), torch.randn(n, H))),
    "fading": (fading, lambda n: torch.randn(n, H)),
    "sum": (summed, lambda n: torch.randn(n, 2 * H)),
    "minGRU": (stepnet.cells.MinGRU(2 * H, H, dtype=torch.float64), lambda n: torch.randn(n, H)),
    "outer": (outer, lambda n: torch.randn(n, H, H)),
}


def check(step, x, state, **how):
    """Values and gradients by passes and by the plain loop."""
    x, state = wanting((x, state))
    (values, grads), (plain, plain_grads) = (outcome(step, x, state, by, **how) for by in ("eager", "naive"))
    same(values, plain, rtol=1e-12, atol=1e-12)
    same(grads, plain_grads, atol=1e-10, rtol=1e-10)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", STEPS)
def test_ragged(name, lengths, reverse, calls, double):
    torch.manual_seed(3)
    step, boot = STEPS[name]
    counts = LENGTHS[lengths]
    x = stepnet.LoDTensor.from_lengths(torch.randn(sum(counts), 2 * H), [counts])
    check(step, x, boot(len(counts)), reverse=reverse)
    assert calls
    assert all(calls)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dense(axis, reverse, calls, double):
    torch.manual_seed(4)
    check(gate, torch.randn(13, 9, 2 * H), torch.randn((9, 13)[axis], H), axis=axis, reverse=reverse)
    assert len(calls) >= 2  # forward and backward
    assert all(calls)


def test_a_detached_state_has_no_recurrence_backward(calls, double):
    def step(x, h):
        h = h.detach() * 0.5 + x
        return h, h

    check(step, torch.randn(7, 2, H), torch.randn(2, H))
    assert all(calls)


@pytest.mark.parametrize("a", few([1.5, -1.5, 1e200, 0.0, 1e-200], [1e200, 0.0]))
def test_products_out_of_range(a, calls, double):
    """a^T may overflow where h stays finite, because h is 0 until late: steps then take over."""

    def step(x, h):
        h = h * a + x
        return h, h

    x = torch.zeros(2000, 2, 1)
    x[-2:] = 1.0
    (values, _), (plain, _) = (outcome(step, x, torch.zeros(2, 1), by) for by in ("eager", "naive"))
    torch.testing.assert_close(values, plain, rtol=1e-12, atol=0)


def test_one_sequence_that_is_not_finite_leaves_the_others_alone(calls, double):
    def step(x, h):
        h = h * x + x
        return h, h

    rows = torch.randn(30, 2)
    rows[13] = torch.nan
    x = stepnet.LoDTensor.from_lengths(rows, [[10, 10, 10]])
    y, final = stepnet.recurrent(step, x, torch.zeros(3, 2), backend="eager")
    expected, last = stepnet.recurrent(step, x, torch.zeros(3, 2), backend="naive")
    assert not all(calls)
    torch.testing.assert_close(y.values, expected.values, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(final, last, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert y.values[:10].isfinite().all()
    assert y.values[20:].isfinite().all()


def test_what_is_not_linear_goes_step_by_step(calls):
    def step(x, h):
        h = h * torch.tanh(h) + x
        return h, h

    def mixed(x, state):
        h, c = state
        h = 0.5 * h + x
        c = c * h + x
        return c, (h, c)

    x = torch.randn(6, 2, 3)
    stepnet.recurrent(step, x, torch.zeros(2, 3), backend="eager")
    assert not calls
    y, _ = stepnet.recurrent(mixed, x, (torch.zeros(2, 3), torch.ones(2, 3)), backend="eager")
    plain, _ = stepnet.recurrent(mixed, x, (torch.zeros(2, 3), torch.ones(2, 3)), backend="naive")
    torch.testing.assert_close(y, plain)
    assert all(calls)  # first h, then c, each in its own scan


def test_number_of_passes():
    """Each doubles the distance; the last reaches from the last step to the first."""
    for steps in range(1, 70):
        assert 2 ** linear_scan.passes(steps) >= steps
        assert steps == 1 or 2 ** (linear_scan.passes(steps) - 1) < steps


def test_join_is_the_recurrence(double):
    layout = Layout.ragged(torch.tensor([0, 4, 4, 9]), False)
    a, b, boot = torch.randn(9, 2), torch.randn(9, 2), torch.randn(3, 2)
    h = linear_scan.join(a, b, boot, layout)
    for n, (start, length) in enumerate(zip([0, 4, 4], [4, 0, 5], strict=True)):
        state = boot[n]
        for row in range(start, start + length):
            state = a[row] * state + b[row]
            torch.testing.assert_close(h[row], state, rtol=1e-13, atol=1e-13)


def test_explain_says_passes():
    told = explain(stepnet.cells.MinGRU(2 * H, H), torch.randn(20, 4, 2 * H), backend="eager")
    scans = [region for region in told.regions if region.kind == "scan"]
    assert [region.passes for region in scans] == [5, 5]
    assert [region.runs for region in scans] == [5, 5]
    assert not any(region.per_step for region in scans)
    assert "5 passes over all 80 rows" in str(told)
    drawing = told.to_svg()
    assert "5 passes over all 80 rows" in drawing
    assert f'fill="{ONCE.paper}" stroke="{ONCE.ink}"' in drawing
    assert f'fill="{STEP.paper}"' not in drawing


def test_where_passes_pay(monkeypatch):
    monkeypatch.undo()
    assert not linear_scan.pays("cpu", 10000, 4)
    assert linear_scan.pays("cuda", 500, 32 * 64 * 4)
    assert not linear_scan.pays("cuda", 4, 4)
    assert not linear_scan.pays("cuda", 500, 1 << 24)
