"""Transforms of tensors with complex numbers as pairs, as the readers of files call them."""

from __future__ import annotations

import pytest
import torch

from stepnet.file_model import Misfit, transformed

X = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("by", [torch.fft.fftn, torch.fft.ifftn, torch.fft.rfftn, torch.fft.irfftn])
def test_small_types_are_those_of_the_result(by, dtype):
    pairs = by is not torch.fft.rfftn
    found = transformed(by, X.to(dtype), [0, 1], [4, -1], pairs=pairs)
    exact = transformed(by, X.to(dtype).double(), [0, 1], [4, -1], pairs=pairs)
    assert found.dtype is dtype
    assert torch.equal(found, exact.to(dtype)) or (found - exact).abs().max() < 0.05


@pytest.mark.parametrize("by", [torch.fft.fftn, torch.fft.rfftn, torch.fft.irfftn])
@pytest.mark.parametrize("shape", [(0, 6, 2), (3, 0, 2), (0, 0, 2)])
def test_no_signals(by, shape):
    x = torch.zeros(shape, requires_grad=True)
    found = transformed(by, x, [1], [4], pairs=by is not torch.fft.rfftn)
    assert (
        found.shape
        == transformed(by, X[: shape[0] or 1], [1], [4], pairs=by is not torch.fft.rfftn)[: shape[0]].shape
    )
    assert not found.any()
    found.sum().backward()


@pytest.mark.parametrize(
    ("x", "sizes", "says"),
    [
        (X[..., :1], [4], "holds no pairs"),
        (X, [0], "one size for each axis"),
        (X, [-2], "one size for each axis"),
        (X, [4, 4], "one size for each axis"),
        (X, [2**27], "too large"),
    ],
)
def test_refused(x, sizes, says):
    with pytest.raises(Misfit, match=says):
        transformed(torch.fft.fftn, x, [0], sizes, pairs=True)
