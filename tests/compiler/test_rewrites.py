"""What refusals say compiles instead: it does, and gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from stepnet import recurrent
from stepnet.compiler.rules.complex import REWRITES
from stepnet.errors import SlowPathWarning, Unsupported

N = 6
SPECTRUM = torch.fft.fft(torch.eye(N, dtype=torch.float64))
REAL, IMAGINARY = SPECTRUM.real.clone(), SPECTRUM.imag.clone()


def spectrum(x, h):
    h = torch.tanh(torch.fft.fft(x + h).abs().square() / N)
    return h, h


def spectrum_by_products(x, h):
    z = x + h
    h = torch.tanh(((z @ REAL).square() + (z @ IMAGINARY).square()) / N)
    return h, h


CASES = {
    "fft": (spectrum, spectrum_by_products),
}


def outcome(step, backend):
    torch.manual_seed(0)
    x = torch.randn(5, 3, N, dtype=torch.float64, requires_grad=True)
    y, h = recurrent(step, x, torch.zeros(3, N, dtype=torch.float64), backend=backend)
    return [y, h, *torch.autograd.grad(y.sum() + h.square().sum(), x)]


def test_every_rewrite_is_tried():
    assert CASES.keys() == REWRITES.keys()


@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_compiles_and_gives_the_same(name):
    written, rewritten = CASES[name]
    torch.testing.assert_close(outcome(rewritten, "c"), outcome(written, "naive"))


def spectrum_of_many(x, h):
    wide = torch.fft.fft((x + h).repeat(1, 100)).abs().square()
    h = torch.tanh(wide[:, :N] / N)
    return h, h


def test_a_refusal_and_a_warning_name_the_rewrite():
    with pytest.raises(Unsupported) as refused:
        outcome(spectrum_of_many, "c")
    assert refused.value.remedy == REWRITES["fft"]
    with pytest.warns(SlowPathWarning, match="torch.eye"):
        outcome(lambda x, h: spectrum_of_many(x, h), "auto")
