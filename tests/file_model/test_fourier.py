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
