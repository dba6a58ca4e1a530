"""What the refusals of generated C say compiles instead: it does, and gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from stepnet import recurrent
from stepnet.errors import TorchOpsWarning, Unsupported
from stepnet.executors.c.limits import REWRITES

N = 6
SPECTRUM = torch.fft.fft(torch.eye(N, dtype=torch.float64))
REAL, IMAGINARY = SPECTRUM.real.clone(), SPECTRUM.imag.clone()
UPPER = torch.ones(N, N, dtype=torch.float64).triu()


def cumulated(x, h):
    h = torch.tanh((x + h).cumsum(-1))
    return h, h


def cumulated_by_a_product(x, h):
    h = torch.tanh((x + h) @ UPPER)
    return h, h


def squared(x, h):
    z = torch.view_as_complex((x + h).reshape(-1, N // 2, 2))
    h = torch.tanh(torch.view_as_real(z * z).flatten(1))
    return h, h


def squared_by_parts(x, h):
    re, im = (x + h).reshape(-1, N // 2, 2).unbind(-1)
    h = torch.tanh(torch.stack([re * re - im * im, 2 * re * im], -1).flatten(1))
    return h, h


def spectrum(x, h):
    h = torch.tanh(torch.fft.fft(x + h).abs().square() / N)
    return h, h


def spectrum_by_products(x, h):
    z = x + h
    h = torch.tanh(((z @ REAL).square() + (z @ IMAGINARY).square()) / N)
    return h, h


CASES = {
    "cumsum": (cumulated, cumulated_by_a_product),
    "complex": (squared, squared_by_parts),
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


def test_a_refusal_and_a_warning_name_the_rewrite():
    with pytest.raises(Unsupported) as refused:
        outcome(cumulated, "c")
    assert refused.value.remedy == REWRITES["cumsum"]
    with pytest.warns(TorchOpsWarning, match="torch.ones"):
        outcome(lambda x, h: cumulated(x, h), "auto")
