"""Ops element by element that are made of others: as exact as in torch, at zeros and infinities, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stepnet
from covering import few
from file_formats import FORMATS
from stepnet.errors import IRError
from stepnet.export.composed_ops import MADE_OF

NAN, INF = float("nan"), float("inf")
SOME = [
    0.0,
    -0.0,
    1e-30,
    -1e-6,
    3e-4,
    0.01,
    -0.3,
    0.4999,
    0.5,
    0.75,
    -0.9,
    1.0,
    -1.0,
    2.0,
    -2.5,
    8.0,
    20.0,
    -90.0,
    3e30,
]
X, Y = (t.flatten() for t in torch.meshgrid(*[torch.tensor([*SOME, INF, -INF, NAN])] * 2, indexing="ij"))
NAMES = [name for name in MADE_OF if not name.startswith("bitwise")]
OF_TWO = ("atan2", "hypot", "copysign", "ldexp")
# OpenVINO's exp of NaN is infinite, which is no matter of what is written
ODD = {
    ("openvino", "expm1"): X.isfinite(),
    ("openvino", "erfc"): X.isfinite(),
    ("openvino", "exp2"): X.isfinite(),
    ("openvino", "ldexp"): Y.isfinite(),
}


class Called(nn.Module):
    def forward(self, x, y):
        return tuple(getattr(torch, name)(*((x, y) if name in OF_TWO else (x,))) for name in NAMES)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("one_trace")
def test_made_of_others(name, tmp_path):
    form, runtime, file = FORMATS[name]
    form.save(Called(), tmp_path / file, (X, Y))
    expected = Called()(X, Y)
    read = form.load(tmp_path / file)(X, Y).tuple()
    run = [torch.as_tensor(np.asarray(t)) for t in runtime(tmp_path / file, [X.numpy(), Y.numpy()])]
    for what, want, ours, theirs in zip(NAMES, expected, read, run, strict=True):
        for found, here in ((ours, ...), (theirs, ODD.get((name, what), ...))):
            torch.testing.assert_close(
                found[here], want[here], rtol=1e-6, atol=0, equal_nan=True, msg=lambda m, w=what: f"{w}: {m}"
            )


class Shifted(nn.Module):
    def forward(self, x, y):
        return torch.bitwise_left_shift(x, y), torch.bitwise_right_shift(x, y)


@pytest.mark.parametrize("name", FORMATS)
def test_bits_are_shifted(name, tmp_path):
    """By less than none, and beyond the width; the sign comes along."""
    form, runtime, file = FORMATS[name]
    some = torch.tensor([-(2**31), -77, -1, 0, 1, 2, 5, 30, 31, 32, 100, 2**31 - 1], dtype=torch.int32)
    x, y = (t.flatten() for t in torch.meshgrid(some, some, indexing="ij"))
    form.save(Shifted(), tmp_path / file, (x, y))
    run = [torch.as_tensor(np.asarray(t)) for t in runtime(tmp_path / file, [x.numpy(), y.numpy()])]
    for found in (run, form.load(tmp_path / file)(x, y).tuple()):
        for ours, want in zip(found, Shifted()(x, y), strict=True):
            assert torch.equal(ours, want)


@pytest.mark.parametrize("name", few(FORMATS, ["onnx"]))
def test_their_gradients_are_those_of_torch(name, tmp_path):
    form, _, file = FORMATS[name]
    x = torch.tensor([-60.0, -2.0, -0.3, 1e-6, 0.3, 0.5, 2.0, 60.0], requires_grad=True)
    module = Called()
    form.save(module, tmp_path / file, (x.detach(), x.detach()))
    for out, want in zip(form.load(tmp_path / file)(x, x.flip(0)).tuple(), module(x, x.flip(0)), strict=True):
        if want.requires_grad:
            found, expected = (torch.autograd.grad(t.nansum(), x)[0] for t in (out, want))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def stepping(*ops):
    """A state for each op."""

    def step(x, states):
        new = [getattr(torch, op)(0.1 * h.abs()).to(h.dtype) + x for op, h in zip(ops, states, strict=True)]
        return tuple(new), tuple(new)

    return stepnet.Recurrent(step), (torch.rand(3, 2, 4) + 1, tuple(torch.rand(2, 4) for _ in ops))


@pytest.mark.exhaustive  # outside of a step: below
@pytest.mark.parametrize("name", few(FORMATS, ["onnx"]))
def test_in_a_step(name, tmp_path):
    form, _, file = FORMATS[name]
    ops = [*(op for op in NAMES if op not in OF_TWO), "asinh", "atanh"]
    module, example = stepping(*ops)
    form.save(module, tmp_path / file, example)
    found = form.load(tmp_path / file)(example[0], *example[1]).tuple()
    for op, got, want in zip(ops, found, module(*example)[0], strict=False):
        torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text, op=op: f"{op}: {text}")


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("what", few(["erfinv", "lgamma", "digamma", "i0"], ["i0"]))
def test_what_cannot_be_made_is_named(what, name, tmp_path):
    form, _, file = FORMATS[name]
    module, example = stepping(what)
    with pytest.raises(IRError, match=rf"aten.{what}.*test_composed_ops.py"):
        form.save(module, tmp_path / file, example)


@pytest.mark.parametrize("name", FORMATS)
def test_bits_of_whole_numbers(name, tmp_path):
    class Bits(nn.Module):
        def forward(self, x, y):
            return x & y, x | y, x ^ y, ~x, (x > 0) ^ (y > 0)

    form, runtime, file = FORMATS[name]
    x, y = torch.arange(-6, 6), torch.arange(12) * 3 % 7
    form.save(Bits(), tmp_path / file, (x, y))
    run = [torch.as_tensor(np.asarray(t)) for t in runtime(tmp_path / file, [x.numpy(), y.numpy()])]
    for found in (form.load(tmp_path / file)(x, y).tuple(), run):
        assert all(torch.equal(got, want) for got, want in zip(found, Bits()(x, y), strict=True))
