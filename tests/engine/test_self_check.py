"""An executor held against the plain loop before its first use: wrong ones, and one that rounds otherwise."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from covering import few
from stepnet.api import recurrent
from stepnet.cells import SLSTM, LayerNormLSTM
from stepnet.compiler.trace import torch_tracers
from stepnet.errors import SlowPathWarning, Unsupported
from stepnet.executors.torch_ops import ops

PLANS_ON_DISK = False


def _run(step, parameters, backend, dtype):
    x = torch.randn(5, 3, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    h = torch.full((3, 2), 1e-3, dtype=dtype)
    y, new = recurrent(step, x, h, backend=backend)
    if not parameters:
        return [y, new]
    return [y, new, *torch.autograd.grad(y.sum() + (new * new).sum(), list(parameters))]


@pytest.mark.covering(1)
@pytest.mark.parametrize("off", [1.0 + 1e-6, 1.001])
@pytest.mark.parametrize("op", ["tanh", "mul"])
def test_a_wrong_executor_is_declined(op, off, monkeypatch):
    right = ops._POINTWISE[op]
    monkeypatch.setitem(ops._POINTWISE, op, lambda *values: right(*values) * off)
    w = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def step(x, h):
        h = torch.tanh(x @ w + h)
        return h, h

    with pytest.raises(Unsupported, match="self-check"):
        _run(step, [w], "eager", torch.float64)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_differences_of_equals_are_rounding(size, dtype, backend):
    """The gradient through a norm over one or two numbers is a difference of equals, times a thousand."""
    norm = nn.LayerNorm(size, eps=1e-12, dtype=dtype)
    w = (torch.randn(2, size, generator=torch.Generator().manual_seed(0)).to(dtype) * 30).requires_grad_()

    def step(x, h):
        h = h + norm(torch.hypot(x @ w, torch.ones(1, dtype=dtype))).sum(-1, keepdim=True)
        return h, h

    ours = _run(step, [norm.weight, norm.bias], backend, dtype)
    plain = _run(step, [norm.weight, norm.bias], "naive", dtype)
    torch.testing.assert_close(
        (ours[0], ours[1], ours[3]), (plain[0], plain[1], plain[3]), rtol=0.0001, atol=0.0001
    )


def test_a_difference_of_equals_among_numbers_coarser_than_the_inputs():
    """What float32 leaves of a difference is met by other float32, not by other last digits of float64."""
    norm = nn.LayerNorm(1)

    def step(x, h):
        v = norm(x.float()[:, :1])
        return v + torch.clamp(x[:, :1].float(), v - 1, v + 1), h

    ours = _run(step, [norm.bias], "eager", torch.float64)
    torch.testing.assert_close(ours, _run(step, [norm.bias], "naive", torch.float64))


def test_what_rounding_leaves_of_a_gradient_under_autocast():
    """A norm over weights times one number does not see how large that is: its gradient is nearly zero."""
    torch.manual_seed(78)
    cell, x = LayerNormLSTM(1, 3), torch.randn(8, 1, 1, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert recurrent(cell, x, backend="eager")[0].requires_grad


@pytest.mark.parametrize("op", few(["tanh", "sigmoid"], ["sigmoid"]))
def test_a_wrong_executor_is_declined_under_autocast(op, monkeypatch):
    right = ops._POINTWISE[op]
    monkeypatch.setitem(ops._POINTWISE, op, lambda *values: right(*values) * 1.3)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(Unsupported, match="self-check"):
        recurrent(LayerNormLSTM(1, 4), torch.randn(8, 1, 1, requires_grad=True), backend="eager")


@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16], [torch.bfloat16]), ids=str)
@pytest.mark.parametrize("op", few(["tanh", "sigmoid"], ["tanh"]))
def test_a_wrong_executor_of_16_bits_is_declined(op, dtype, monkeypatch):
    """Their last digits are percents: numbers that nudged inputs may reach a hundred times as far are any."""
    right = ops._POINTWISE[op]
    monkeypatch.setitem(ops._POINTWISE, op, lambda *values: right(*values) * 1.3)
    x = torch.randn(8, 2, 16).to(dtype).requires_grad_()
    with pytest.raises(Unsupported, match="self-check"):
        recurrent(LayerNormLSTM(16, 16).to(dtype), x, backend="eager")


def test_what_is_wrong_for_one_row_alone_is_not_laid_on_the_step(monkeypatch):
    right = ops._POINTWISE["tanh"]
    monkeypatch.setitem(ops._POINTWISE, "tanh", lambda t: right(t) * (2.0 if t.shape[0] == 1 else 1.0))

    def step(x, h):
        h = torch.tanh(x + h)
        return h, h

    def asks(x, h):
        h = torch.tanh(x + h) if x.shape[0] > 1 else x - h
        return h, h

    x, h = torch.randn(5, 3, 2), torch.zeros(3, 2)
    with pytest.raises(Unsupported, match="self-check: y0 differs"):
        recurrent(step, x, h, backend="eager")
    with pytest.raises(Unsupported, match="for one it gives other results"):
        recurrent(asks, x, h, backend="eager")


def test_ties_met_by_rounding_to_16_bits():
    """Whole rows of the gradient of a weight hang on which of two about equal numbers is the largest."""
    torch.manual_seed(9)
    cell, x = SLSTM(128, 128), torch.randn(6, 3, 128, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert recurrent(cell, x, backend="c")[0].requires_grad


@pytest.mark.parametrize(
    "met",
    [
        lambda x: (x[:, :1] @ x.new_full((1, 4), -0.5)).signbit(),
        lambda x: nn.functional.layer_norm(x, (3,)).sum(-1) != 0,
    ],
    ids=["the sign of a zero", "a sum of rounding"],
)
def test_thresholds_that_rounding_meets(met):
    """Which side of such a threshold numbers are on is torch's own accident: no reason to decline a plan."""

    def step(x, h):
        h = h * 0.5 + x
        return (met(x), met(h)), torch.tanh(h)

    for x in (torch.zeros(5, 3, 3, dtype=torch.float64), torch.randn(5, 3, 3, dtype=torch.float64)):
        recurrent(step, x, torch.zeros(3, 3, dtype=torch.float64), backend="eager")


def test_a_wrong_threshold_is_declined(monkeypatch):
    monkeypatch.setitem(ops._POINTWISE, "gt", torch.ge)

    def step(x, h):
        return x.round() > 0.0, torch.tanh(x + h)

    with pytest.raises(Unsupported, match="self-check: y0 differs"):
        recurrent(step, torch.linspace(-2, 2, 30).reshape(5, 3, 2), torch.zeros(3, 2), backend="eager")


def test_what_torchs_compiler_fails_at_the_plain_loop_runs(monkeypatch):
    """It looks into all modules of the process as it is imported, which is before a step that reads its
    environment is tried, and one of somebody else's may be odd."""

    def warm():
        raise AttributeError("'float' object has no attribute 'endswith'")

    def step(x, h):
        return h, torch.tanh(x * len(os.environ) + h)

    monkeypatch.setattr(torch_tracers, "warm", warm)
    with pytest.warns(SlowPathWarning, match="compiling it fails"):
        ours = _run(step, [], "auto", torch.float64)
    for a, b in zip(ours, _run(step, [], "naive", torch.float64), strict=True):
        torch.testing.assert_close(a, b)
