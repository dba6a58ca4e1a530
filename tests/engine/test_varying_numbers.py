"""Numbers of Python's that change at each call: a schedule. Few plans, always the plain loop's values."""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepnet import explain, recurrent
from stepnet.engine import plans, varying_numbers
from torch_since import torch_since

D = 3
BACKEND = "eager"
BUILDS = False
FEW = 6  # plans: two, the one that tells what changes, that of any number, two to spare

torch.manual_seed(0)
W = torch.randn(D, D, dtype=torch.float64, requires_grad=True)
NOW = types.SimpleNamespace(t=1.0, n=1, d={"alpha": 0.5})
RAMP = [0.97**k for k in range(8)]
COUNTS = [*range(1, 7), 0, -3, 2**40]


def step_of(f):
    def step(x, h):
        h = f(torch.tanh(x @ W + h))
        return h, h

    return step


@pytest.fixture
def made(monkeypatch):
    """How many plans were made."""
    plans.forget()
    count = []
    make = plans.make

    def counted(*args, **kwargs):
        count.append(1)
        return make(*args, **kwargs)

    monkeypatch.setattr(plans, "make", counted)
    return count


def same_as_plain(step, own="eager"):
    """Results and gradients, their dtypes too. Plans are the same for torch ops as for generated C, which
    takes a number as it is told: of a table of uses, and of any value."""
    x = torch.linspace(-2, 2, 4 * 2 * D, dtype=torch.float64).reshape(4, 2, D)
    found = []
    for backend in (own, "naive"):
        h = torch.full((2, D), 0.25, dtype=torch.float64, requires_grad=True)
        y, final = recurrent(step, x, h, backend=backend)
        leaves = [t for t in (h, W) if y.requires_grad]
        grads = torch.autograd.grad((y * y).sum() + final.sum(), leaves, allow_unused=True) if leaves else ()
        found.append([y, final, *(g for g in grads if g is not None)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9, equal_nan=True)


def run(step, values, change, own="eager"):
    for value in values:
        change(value)
        same_as_plain(step, own)


def temperature(value):
    NOW.t = value


def count(value):
    NOW.n = value


def test_what_a_step_does_with_a_number_is_known_of_rows_like_these_alone():
    """Of others Python may do something else with it."""
    x = torch.randn(3, 2, D)

    def step(x, h):
        h = torch.tanh(x + h * (NOW.t if x.requires_grad else 3 * NOW.t))
        return h, h

    for needs, shift in ((True, 0), (False, 0.05), (False, 0)):
        x.requires_grad_(needs)
        for value in (0.2, 0.3, 0.4, 0.5, 0.6):
            temperature(value + shift)
            ours, plain = (recurrent(step, x, torch.zeros(2, D), backend=b)[0] for b in ("eager", "naive"))
            torch.testing.assert_close(ours, plain)


USES = {
    "product": lambda h: h * NOW.t,
    "quotient": lambda h: h / (NOW.t + 1),
    "of other numbers": lambda h: h * math.exp(-NOW.t) + math.sqrt(NOW.t),
    "power": lambda h: (h.abs() + 0.1) ** NOW.t,
    "of a power": lambda h: (NOW.t + 1) ** h,
    "between": lambda h: torch.clamp(h, -NOW.t, NOW.t),
    "compared": lambda h: torch.where(h > NOW.t, h * 2, NOW.t),
    "lerp": lambda h: torch.lerp(h, h.cos(), NOW.t),
    "alpha": lambda h: torch.add(h, h.cos(), alpha=-NOW.t),
    "slope": lambda h: F.leaky_relu(h, NOW.t),
    "softmax": lambda h: torch.softmax(h / NOW.t, -1),
    "made": lambda h: h * torch.tensor(NOW.t, dtype=h.dtype) + torch.full_like(h, NOW.t),
    "filled": lambda h: h.masked_fill(h > 0, NOW.t),
    "integers": lambda h: h + ((h > 0).long() * NOW.t).to(h.dtype),
}


BY_TORCH = ("slope", "made")  # recorded by its tracer, for which all beside takes longer


@pytest.mark.parametrize("names", [USES.keys() - BY_TORCH, BY_TORCH], ids=["recorded", "by torch"])
def test_a_float_that_changes_takes_few_plans(names, made, monkeypatch):
    """One use that takes a plan for each value would make as many plans of all of them."""
    if names != BY_TORCH:
        monkeypatch.setattr("stepnet.compiler.trace.torch_tracers.by_torch", None)
    uses = [use for name, use in USES.items() if name in names]
    run(step_of(lambda h: sum(use(h) for use in uses) / len(uses)), RAMP, temperature, "auto")
    assert len(made) <= FEW


def test_a_whole_number_that_changes_takes_few_plans(made):
    def uses(h):
        return torch.tanh(h * NOW.n / 4) + h / (1 + abs(NOW.n)) + (h.abs() + 0.1) ** (NOW.n % 5)

    run(step_of(uses), COUNTS, count, "auto")
    assert len(made) <= FEW


@pytest.mark.exhaustive  # of each kind of number: above
@pytest.mark.filterwarnings("error")
def test_many_values(made):
    run(step_of(lambda h: h * NOW.t + NOW.n), range(30), lambda k: (temperature(0.9**k), count(k)))
    assert len(made) <= FEW


def test_any_value_goes_by_the_same_plan(made):
    step = step_of(lambda h: (h * NOW.t + torch.clamp(h, 0, NOW.t)).masked_fill(h < -0.5, NOW.t))
    run(step, RAMP, temperature, "auto")
    known = len(made)
    run(step, [math.inf, -math.inf, math.nan, -0.0, 0.0, 5e-324, 1e308], temperature, "auto")
    assert len(made) == known
    run(step, [1, True, np.float64(0.3), np.float32(0.3), -2], temperature, "auto")  # each of its own kind


def test_equal_numbers_are_not_one():
    step = step_of(lambda h: h * NOW.t + NOW.d["alpha"] * NOW.t)
    both = [(a, a) for a in RAMP[:6]]
    apart = [(0.3, 0.8), (0.8, 0.3), (0.3, 0.3)]

    def change(pair):
        NOW.t, NOW.d["alpha"] = pair

    run(step, both + apart, change)


def test_what_python_decides_is_decided_at_each_call(made):
    step = step_of(lambda h: h * NOW.t if NOW.t > 0.85 else sum(h.cos() * k for k in range(int(NOW.t * 5))))
    run(step, RAMP, temperature)
    assert len(made) <= 3 * FEW


def test_places_of_tensors_are_no_numbers():
    weights = [torch.full((D,), float(k), dtype=torch.float64) for k in range(4)]
    run(
        step_of(lambda h: h * weights[NOW.n] * NOW.t),
        [0, 1, 2, 3] * 2,
        lambda n: (count(n), temperature(n / 7)),
    )


def test_backward_reads_numbers_too():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):  # pyright: ignore
            return grad * NOW.t

    def hooked(h):
        h = Scaled.apply(h) * NOW.t
        if h.requires_grad:
            h.register_hook(lambda grad: grad * NOW.t)
        return h

    run(step_of(hooked), RAMP[:6], temperature)


def test_a_step_made_at_each_call(made):
    def at(alpha):
        return step_of(lambda h: h * alpha)

    for alpha in RAMP:
        same_as_plain(at(alpha))
    assert len(made) <= FEW


def test_modules_of_one_class_keep_their_plans(made):
    class Cell(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x, h):
            h = torch.tanh(x @ W + h * self.scale)
            return h, h

    cells = [Cell(0.5 + k) for k in range(3)]
    for cell in cells:
        same_as_plain(cell)
    for _ in range(6):
        cells[0].scale *= 0.9
        same_as_plain(cells[0])
    known = len(made)
    for cell in cells[1:]:
        same_as_plain(cell)
    assert len(made) == known
    assert not any("change from call to call" in note for note in notes(cells[1]))
    assert any("change from call to call" in note for note in notes(cells[0]))


def notes(step):
    told: Any = explain(step, *rows())
    return told.notes


def rows():
    return torch.randn(4, 2, D, dtype=torch.float64), torch.zeros(2, D, dtype=torch.float64)


def test_dropout_on_a_schedule(made):
    step = step_of(lambda h: F.dropout(h, NOW.t))
    x, h = torch.zeros(400, 8, D, dtype=torch.float64) + 3.0, torch.zeros(8, D, dtype=torch.float64)
    for p in [0.9, 0.5, 0.3, 0.2, 0.1, 0.0, 1.0]:
        temperature(p)
        y = recurrent(step, x, h)[0]
        assert abs(float((y == 0).double().mean()) - p) < 0.03
        assert y.isfinite().all()
    assert len(made) <= FEW


@pytest.mark.exhaustive
def test_derivatives_of_derivatives(made):
    step = step_of(lambda h: torch.sin(h * NOW.t))
    x, _ = rows()
    for t in RAMP:
        temperature(t)
        found = []
        for backend in ("eager", "naive"):
            h = torch.full((2, D), 0.5, dtype=torch.float64, requires_grad=True)
            y, _ = recurrent(step, x, h, backend=backend)
            (grad,) = torch.autograd.grad(y.pow(2).sum(), h, create_graph=True)
            found.append(torch.autograd.grad(grad.pow(2).sum(), (h, W)))
        torch.testing.assert_close(*found)
    assert len(made) <= 2 * FEW
    found = []
    for backend in ("auto", "naive"):
        temperature(0.3)
        h = torch.full((2, D), 0.5, dtype=torch.float64, requires_grad=True)
        (grad,) = torch.autograd.grad(recurrent(step, x, h, backend=backend)[0].sum(), h, create_graph=True)
        temperature(0.123)
        found.append(torch.autograd.grad(grad.pow(2).sum(), (h, W)))
    torch.testing.assert_close(*found)


def test_the_gradient_of_a_call_is_of_its_number():
    step = step_of(lambda h: h * NOW.t)
    run(step, RAMP[:5], temperature)
    x, _ = rows()
    found = []
    for backend in ("eager", "naive"):
        h = torch.full((2, D), 0.5, dtype=torch.float64, requires_grad=True)
        temperature(0.3)
        y = recurrent(step, x, h, backend=backend)[0]
        temperature(0.9)
        found.append(torch.autograd.grad(y.sum(), h))
    torch.testing.assert_close(*found)


def test_a_number_that_torch_refuses_is_refused_once(made):
    step = step_of(lambda h: F.dropout(h, NOW.t))
    run_of = lambda: recurrent(step, *rows())  # noqa: E731
    for p in [0.1, 0.2, 0.3, 0.4, 0.5, 0.55]:
        temperature(p)
        run_of()
    temperature(1.5)
    with pytest.raises(ValueError, match="dropout probability"):
        run_of()
    known = len(made)
    for p in [0.6, 0.7]:
        temperature(p)
        run_of()
    assert len(made) == known
    assert varying_numbers._steps


@pytest.mark.parametrize("name", ["t"])
def test_open_steps_too(name, made):
    """Of which no walk tells what they read."""
    asked = torch.tensor(0.7, dtype=torch.float64)
    run(step_of(lambda h: h * getattr(NOW, name)), RAMP, temperature)
    assert len(made) <= FEW
    run(step_of(lambda h: h * NOW.t if asked > NOW.t else h.cos() * asked.item()), RAMP, temperature)
    assert len(made) <= 2 * FEW


@pytest.mark.exhaustive
@torch_since("2.13", "its export has no recurrences in it")
def test_what_is_saved_keeps_its_numbers(tmp_path):
    pytest.importorskip("onnx")
    from stepnet import onnx

    class Model(nn.Module):
        scale = 1.0

        def forward(self, x, h):
            return recurrent(self.step, x, h)[0]

        def step(self, x, h):
            h = torch.tanh(x + h * self.scale)
            return h, h

    model, x, h = Model(), torch.randn(4, 2, D), torch.zeros(2, D)
    for scale in RAMP[:6]:
        model.scale = scale
        model(x, h)
    expected = model(x, h)
    onnx.save(model, tmp_path / "a.onnx", (x, h))
    (found,) = onnx.load(tmp_path / "a.onnx")(x, h).values()
    torch.testing.assert_close(found, expected)
    model.scale = 0.1
    torch.testing.assert_close(torch.export.export(model, (x, h)).module()(x, h), model(x, h))
