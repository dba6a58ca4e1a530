"""Complex numbers and transforms between time and frequency: written, run and read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import fft, nn
from torch.nn.functional import pad

from covering import few
from file_formats import FORMATS, Applied
from stepnet.errors import IRError
from torch_since import torch_since

pytestmark = torch_since("2.8", "it traces no Fourier transform with sizes left open")
WEIGHTS = torch.tensor([1 + 2j, -1j, 0.5, 3])


def transforms(x, a):
    """x [n, 12], a [n, 4, 6]."""
    f, g, c = fft.rfft(x), fft.rfft(a, norm="ortho"), torch.complex(a[:, :2], a[:, 2:])
    window = torch.hann_window(6)
    return {
        "rfft": torch.view_as_real(f),
        "power": g.abs() ** 2,
        "angle": (f + (30 + 2j)).angle(),
        "filtered": fft.irfft(f * x[:, :7].sigmoid(), 12),
        "an odd length": fft.irfft(fft.rfft(x[:, :7]), 9, norm="forward"),
        "ifft": fft.ifft(fft.fft(a, dim=1, norm="ortho") * torch.exp(c[:, :1] * 0.3j), dim=1).imag,
        "two axes": fft.irfft2(fft.rfft2(a) / (2 - 1j), (4, 6)),
        "stft": torch.stft(x, 6, 3, window=window, return_complex=True).abs().mT,
        "products": torch.view_as_real((c.conj() * c - c / (c + 9)).transpose(1, 2).sum(1)),
        "matrices": torch.view_as_real(c @ torch.polar(torch.ones(6, 2), torch.arange(12.0).reshape(6, 2))),
        "joined": torch.view_as_real(torch.cat([pad(f + x[:1, :1], [1, 0], value=2.0), x[:, :3]], 1)),
        "by weights": ((1j * x[:, :4]).exp() * WEIGHTS + 2).abs(),
    }


class Transforms(nn.Module):
    def forward(self, x, a):
        return tuple(transforms(x, a).values())


@pytest.mark.parametrize("name", few(FORMATS, ["onnx"]))
@pytest.mark.usefixtures("one_trace")
def test_written_and_read_back(name, tmp_path):
    form, runtime, file = FORMATS[name]
    path = tmp_path / file
    form.save(Transforms(), path, (torch.randn(3, 12), torch.randn(3, 4, 6)))
    given = torch.randn(5, 12), torch.randn(5, 4, 6)
    expected = transforms(*given)
    for found in (runtime(path, [t.numpy() for t in given]), [*form.load(path)(*given)]):
        for (what, want), got in zip(expected.items(), found, strict=True):
            got = torch.as_tensor(np.asarray(got.detach() if isinstance(got, torch.Tensor) else got))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda m, w=what: f"{w}: {m}")


def slope(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.tanh().square().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize(
    ("run", "says", "remedy"),
    [
        (
            lambda x: fft.rfft(x, dim=0).abs(),
            "a transform is along a dimension that stays open",
            "frames of a known size.*dynamic=",
        ),
        (
            lambda x: fft.fft(x).sqrt().abs(),
            "'aten.sqrt.default' of complex numbers has no form of real ones",
            "view_as_real",
        ),
        (fft.rfft, "a result is complex", "view_as_real"),
        (slope, r"takes gradients as it runs \(test_transforms.py:\d+\)", "by its formula"),
    ],
)
def test_what_has_no_form(run, says, remedy, tmp_path):
    form, _, file = FORMATS["onnx"]
    with pytest.raises(IRError, match=rf"{says}.*\n.*\n.*\n.*{remedy}"):
        form.save(Applied(run), tmp_path / file, torch.randn(3, 4))
