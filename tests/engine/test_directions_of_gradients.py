"""Gradients by torch.func at a level of autograd's own forward mode, of steps whose second derivative no plan
makes."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, vjp, vmap

from stepnet import LoDTensor, recurrent

STEPS = {
    "float_power": lambda t: torch.float_power(t.abs() + 0.5, 1.5).to(t.dtype).sin(),
    "gammaln": lambda t: torch.special.gammaln(t.abs() + 1),
    "one that has a plan": torch.tanh,
}
WAYS = {
    "grad": lambda of, *at: grad(of, argnums=(0, 1, 2))(*at),
    "vjp": lambda of, *at: vjp(of, *at)[1](torch.ones_like(at[1][0, 0])),
    "grad of many": lambda of, *at: vmap(grad(of), in_dims=(0, None, None))(
        torch.stack([at[0], at[0] * 0.7]), *at[1:]
    ),
}


@pytest.mark.parametrize("lengths", [[3, 0, 4], [2, 2]])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", STEPS)
def test_what_comes_in_is_moved_once(step, way, lengths):
    x = torch.randn(sum(lengths), 3, dtype=torch.float64)
    h = torch.randn(len(lengths), 3, dtype=torch.float64)
    w = torch.randn(3, 3, dtype=torch.float64)

    def moved(backend):
        def loss(x, h, w):
            def one(x, h):
                h = STEPS[step](x + h * w[0])
                return h, h

            y, last = recurrent(one, LoDTensor.from_lengths(x, [lengths]), h, backend=backend)
            return y.values.sin().sum() + last.sin().sum()

        with forward_ad.dual_level():
            found = WAYS[way](loss, *(forward_ad.make_dual(t, t.sin()) for t in (x, h, w)))
            leaves = [found] if isinstance(found, torch.Tensor) else found
            return [tuple(forward_ad.unpack_dual(t)) for t in leaves]

    torch.testing.assert_close(moved("c"), moved("naive"))
