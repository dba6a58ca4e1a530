"""Calls that few steps make: each compiles, and gives what the plain loop gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from outcomes import as_the_plain_loop

D = 4


def both(step):
    def stepped(x, h):
        y = step(x, h)
        return y, torch.tanh(x + y)

    return stepped


def waves(x, h):
    return torch.complex(x[:, :2], h[:, 2:]), torch.complex(h[:, :2], x[:, 2:])


def parts(z):
    return torch.cat([z.real, z.imag], 1)


def inverse(x, h):
    square = h.reshape(-1, 2, 2)
    lower = torch.linalg.cholesky(square @ square.mT + torch.eye(2, dtype=h.dtype))
    return x + torch.cholesky_inverse(lower).reshape(x.shape)


STEPS = {
    "gaussian_nll": lambda x, h: F.gaussian_nll_loss(x, h, h * h + 0.1, reduction="none"),
    "its variance of a row": lambda x, h: F.gaussian_nll_loss(
        x, h, (h * h)[:, :1] + 0.1, full=True, reduction="none"
    ),
    "ldexp": lambda x, h: torch.ldexp(x, h),
    "angle": lambda x, h: torch.angle(x * h) + h,
    "sinc": lambda x, h: torch.sinc(x + h),
    "select_scatter": lambda x, h: torch.select_scatter(h, x[:, 0], 1, -1),
    "cholesky_inverse": inverse,
    "the sign of whole numbers": lambda x, h: x + torch.signbit((4 * h).long()) * h,
    "complex sums by a factor": lambda x, h: parts(torch.sub(*waves(x, h), alpha=3)),
    "complex sgn": lambda x, h: parts(torch.sgn(torch.add(*waves(x, h)))),
    "complex isnan": lambda x, h: x + torch.isnan(waves(x, h)[0]).repeat(1, 2) * h + h,
    "the inverse of complex numbers": lambda x, h: parts(torch.pow(waves(x, h)[0] + 2, -1)),
}


@pytest.mark.parametrize("name", STEPS)
def test_as_the_plain_loop(name):
    x, h = (torch.randn(*n, D, dtype=torch.float64, requires_grad=True) for n in ((5, 3), (3,)))
    as_the_plain_loop(both(STEPS[name]), x, h, "eager")
