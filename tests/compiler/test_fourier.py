"""Fourier transforms of the features of a row, by generated C: values and gradients of the plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outcomes import as_the_plain_loop
from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import Unsupported
from torch_since import torch_since

N = 6
W = torch.nn.Parameter(torch.eye(N, dtype=torch.float64) * 0.5)


def transformed(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Every transform, normalised in every way; of even and odd sizes, cut and padded, real and complex."""
    filtered = torch.fft.rfft(torch.tanh(x @ W)) * torch.fft.rfft(W.diagonal())
    bound = torch.fft.irfft(filtered * torch.fft.rfft(h), n=N)
    odd = torch.fft.irfft(torch.fft.rfft(h[:, :5], norm="ortho"), n=5, norm="ortho")
    both = torch.fft.fft(torch.complex(h, x), norm="forward")
    back = torch.fft.ifft(both * both, norm="ortho")
    wide = torch.fft.fft(x, n=9, norm="ortho").abs() + torch.fft.ifft(x, n=9).real
    few = torch.fft.rfft(x, n=3, norm="forward").imag + torch.fft.irfft(both, n=2, norm="forward").sum(
        1, True
    )
    h = torch.tanh(bound + back.real + back.imag)
    return (odd, wide, few, both.real), h


def of_several_dimensions(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Every transform along two dimensions, and one along a dimension that is not last."""
    grid, other = h.view(-1, 2, 3), torch.tanh(x @ W).view(-1, 2, 3)
    bound = torch.fft.irfft2(torch.fft.rfft2(other) * torch.fft.rfft2(grid), s=(2, 3))
    both = torch.fft.fft2(torch.complex(grid, other), s=(3, 4), norm="ortho")
    back = torch.fft.ifftn(both, dim=(2, 1), norm="forward")
    few = torch.fft.rfftn(grid, s=(2,), dim=(1,)).real + torch.fft.irfftn(both, s=(2,), dim=(1,))[..., :3]
    down = torch.fft.ifft2(torch.fft.fft(both, dim=-2), dim=(-1, -2)).imag.flatten(1)
    h = torch.tanh(bound + back[:, :2, :3].real + back[:, 1:, 1:].imag).flatten(1)
    return (few.flatten(1), down), h


@torch_since("2.10", "its FFT fails on a few rows")
def test_transforms_are_products(request: pytest.FixtureRequest):
    more = (of_several_dimensions,) if request.config.getoption("exhaustive") else ()
    for step in (transformed, *more):
        x, h = (torch.randn(n, N, dtype=torch.float64, requires_grad=True) for n in (4, 3))
        as_the_plain_loop(step, LoDTensor.from_lengths(x, [[3, 0, 1]]), h, weights=[W], atol=1e-11)


def test_long_ones_are_left_to_the_plain_loop():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.fft.fft(h).real + x
        return h, h

    x, h = torch.randn(2, 2, 200), torch.randn(2, 200)
    told = explain(step, x, h)
    assert "torch.fft.fft(x) of n features is x @ f.real" in str(told)
    with pytest.warns(UserWarning, match="plain loop"):
        recurrent(step, x, h)


def test_over_rows_mixes_them():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.fft.fft(h, dim=0).real + x
        return h, h

    with pytest.raises(Unsupported, match=r"over the rows: the step mixes rows \(test_fourier.py:"):
        recurrent(step, torch.randn(2, 2, N), torch.randn(2, N), backend="c")
