"""Calls like one before whose x is several inputs: they take the short way where these stand side by side,
and give what the plain loop gives whatever one of them is now."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import every
from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten
from stepnet.engine import plans, warm_calls
from stepnet.errors import StepError, StepnetError

F, H, B = 2, 3, 2
D = torch.float64
LENGTHS = [3, 1]


@dataclass
class Given:
    """Rows, and which of them count."""

    rows: Any
    counts: Any


class Masked(nn.Module):
    """A step of rows that keeps its state where a mask is false."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.into = nn.Parameter(torch.randn(H, F, generator=draw, dtype=D))
        self.back = nn.Parameter(torch.randn(H, H, generator=draw, dtype=D) / 2)

    def forward(self, x: Any, h: Tensor, static: Any = None) -> tuple[Tensor, Tensor]:
        if isinstance(x, Given):
            x = x.rows, x.counts
        rows, mask = x.values() if isinstance(x, dict) else x
        new = torch.tanh(rows.to(D) @ self.into.T + h @ self.back.T)
        new = new if static is None else new + static
        part = mask.to(D).reshape(mask.shape[0], -1)
        h = new * part + h * (1 - part)
        return h, h

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, H, dtype=D)


def inputs(ragged: bool, *lengths: int) -> tuple[Any, Any]:
    """Rows and a mask of as many."""
    draw = torch.Generator().manual_seed(2)
    shape = (sum(lengths or LENGTHS),) if ragged else (3, B)
    rows, mask = torch.randn(*shape, F, generator=draw, dtype=D), torch.rand(*shape, generator=draw) > 0.4
    if not ragged:
        return rows, mask
    x = LoDTensor.from_lengths(rows, [lengths or LENGTHS])
    return x, x.with_values(mask)


def outcome(cell, x, h0, backend, **how):
    y, h = recurrent(cell, x, h0, backend=backend, **how)
    rows = y.values if isinstance(y, LoDTensor) else y
    if not rows.requires_grad:
        return [rows, h]
    weight = torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).reshape(rows.shape)
    leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(x)[0]]
    wanted = [t for t in (*cell.parameters(), *leaves, h0) if t is not None and t.requires_grad]
    found = torch.autograd.grad((rows * weight).sum() + h.square().sum(), wanted, create_graph=True)
    return [rows, h, *found]


def same(cell, x, h0=None, backend="c", **how):
    ours, plain = (outcome(cell, x, h0, name, **how) for name in (backend, "naive"))
    for a, b in zip(ours, plain, strict=True):
        assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.fixture
def short(monkeypatch):
    """Calls of this block must take the short way, or must not."""

    @contextlib.contextmanager
    def within(taken: bool = True):
        went: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(plans, "find_plan", lambda *a, **k: (went.append(a), find_plan(*a, **k))[1])
            yield
        assert bool(went) != taken

    find_plan = plans.find_plan
    return within


FORMS = {
    "a tuple": lambda rows, mask: (rows, mask),
    "a dict": lambda rows, mask: {"rows": rows, "mask": mask},
    "a dataclass": Given,
}
WAYS = {
    "as they are": {},
    "backwards": {"reverse": True},
    "static": {"static": torch.ones(B, H, dtype=D)},
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("form", every(2, FORMS))
@pytest.mark.parametrize("way", every(2, WAYS))
def test_the_third_call_takes_the_short_way(form, way, ragged, short):
    cell, make = Masked(), FORMS[form]
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            same(cell, make(*inputs(ragged)), **WAYS[way])
            same(cell, make(*inputs(ragged)), **WAYS[way])
            with short():
                for _ in range(4):
                    cell.back.data.mul_(-1)
                    same(cell, make(*inputs(ragged)), **WAYS[way])


def test_other_lengths_and_batches_take_it_too(short):
    cell = Masked()
    with torch.no_grad():
        for ragged in (False, True):
            for _ in range(3):
                same(cell, inputs(ragged))
        with short():
            for lengths in ((2, 2), (0, 4), (1, 1), (5, 1)):
                same(cell, inputs(True, *lengths))
            rows, mask = inputs(True)
            same(cell, (rows, LoDTensor.from_lengths(mask.values, [LENGTHS])))  # a structure of its own
            same(cell, (rows, mask), level=0)
            rows, mask = inputs(False)
            same(cell, (rows[:2], mask[:2]))
            same(cell, (rows.transpose(0, 1), mask.transpose(0, 1)), axis=1)


CHANGES = {
    "another type": lambda rows, mask: (rows, mask.to(D)),
    "another type of the first": lambda rows, mask: (rows.float(), mask),
    "a gradient": lambda rows, mask: (rows.clone().requires_grad_(), mask),
    "a gradient of the last": lambda rows, mask: (rows, mask.to(D).requires_grad_()),
    "more numbers": lambda rows, mask: (rows, mask[..., None].repeat_interleave(H, -1)),
    "apart": lambda rows, mask: (rows.repeat_interleave(2, -1)[..., ::2], mask),
    "of complex ones": lambda rows, mask: (torch.complex(rows, rows).conj().imag, mask),
    "a parameter": lambda rows, mask: (nn.Parameter(rows), mask),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("change", every(2, CHANGES))
def test_a_call_after_one_input_changed(change, ragged):
    cell = Masked()
    for again in range(5):
        x = inputs(ragged)
        same(cell, x)
        values = [t.values if ragged else t for t in x]
        changed = CHANGES[change](*values)
        same(cell, tuple(t.with_values(new) if ragged else new for t, new in zip(x, changed, strict=True)))
        with torch.no_grad() if again % 2 else torch.inference_mode():
            same(cell, x)


def test_one_tensor_twice_and_then_two(short):
    def step(x, h):
        h = torch.tanh(x[0] * 2 + x[1] - h)
        return h, h

    one, h0 = torch.randn(3, B, F, dtype=D, requires_grad=True), torch.zeros(B, F, dtype=D)
    for _ in range(4):
        for x in ((one, one), (one, one.detach() + 1), (one, one)):
            found = [
                torch.autograd.grad(recurrent(step, x, h0, backend=name)[0].square().sum(), one)[0]
                for name in ("c", "naive")
            ]
            torch.testing.assert_close(*found)


def test_what_does_not_stand_side_by_side_is_told_as_at_the_first_call():
    cell = Masked()
    (rows, mask), (dense, flat) = inputs(True), inputs(False)
    other = LoDTensor.from_lengths(mask.values, [[1, 3]])
    for _ in range(3):
        same(cell, (rows, mask))
        same(cell, (dense, flat))
    for x in ((rows, other), (rows, flat), (dense, flat[:2]), (dense, [[1.0]])):
        with pytest.raises(StepnetError) as raised:
            recurrent(cell, x, backend="naive")
        with pytest.raises(raised.type) as ours:
            recurrent(cell, x)
        assert str(ours.value) == str(raised.value)
    with pytest.raises(StepError, match="one row per sequence"):
        recurrent(cell, (rows, mask), torch.zeros(3, H, dtype=D), backend="c")


def test_an_input_written_to_before_backward():
    cell, h0 = Masked(), torch.zeros(B, H, dtype=D, requires_grad=True)
    rows, mask = inputs(False)
    for _ in range(5):
        y, _ = recurrent(cell, (rows, mask), h0, backend="c")
        rows.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("ragged", [False, True])
def test_one_step_of_several_inputs_by_itself(ragged, monkeypatch):
    ran: list[bool] = []

    def counted(*given):
        out = one_step(*given)
        ran.append(out is not None)
        return out

    def is_faster(given, weights, by_plan, by_itself, besides):
        for a, b in zip(by_plan(*given), by_itself(*given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        return "as the test says"

    one_step = warm_calls.one_step
    monkeypatch.setattr(warm_calls, "one_step", counted)
    monkeypatch.setattr(warm_calls, "is_faster", is_faster)
    plans.forget()
    cell, x = Masked(), inputs(True, 1, 1) if ragged else [t[:1] for t in inputs(False)]
    for form in FORMS.values():
        ran.clear()
        for _ in range(4):
            same(cell, form(*x), backend="auto")
        assert len(ran) >= 4
        assert all(ran)
    plans.forget()
